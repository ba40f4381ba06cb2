//! `strata sweep`: the built binary on small grids.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::strata::{Ran, arg, strata, strata_reading};

/// A small sweep, and its results.
fn sweep(dir: &Path, more: &[&str]) -> (Ran, Value) {
    let out = arg(dir);
    let ran = strata([&["sweep", "--out", &out][..], more].concat());
    let results =
        fs::read_to_string(dir.join("results.json")).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
    (ran, serde_json::from_str(&results).unwrap())
}

const SMALL: [&str; 8] =
    ["--rates", "2,6", "--num-gpu-blocks", "400,900", "--seeds", "2", "--seconds", "6"];

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_policy_gets_the_same_jobs_and_the_files_say_what_came_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (ran, results) = sweep(
        dir.path(),
        &[&SMALL[..], &["--policies", "continuum,continuum-cdf,adaptive"]].concat(),
    );
    let simulations = results["simulations"].as_array().unwrap();
    let policies = ["fcfs", "continuum", "continuum-cdf", "adaptive"];
    assert_eq!(results["policies"], serde_json::json!(policies));
    assert_eq!(simulations.len(), 2 * 2 * 2 * 4);
    // The jobs of a rate and a seed, whatever the pool and the policy.
    let mut jobs = BTreeMap::<String, BTreeSet<u64>>::new();
    for one in simulations {
        assert_eq!(one["jobs"], one["finished"]);
        let key = format!("{} {}", one["rate"], one["seed"]);
        jobs.entry(key).or_default().insert(one["jobs"].as_u64().unwrap());
    }
    assert!(jobs.len() == 4 && jobs.values().all(|counts| counts.len() == 1), "{jobs:?}");
    let of = |policy: &str, field: &str| -> f64 {
        let own = simulations.iter().filter(|one| one["policy"] == policy);
        own.map(|one| one[field].as_f64().unwrap()).sum()
    };
    assert!(of("continuum", "leases_made") > 0.0 && of("fcfs", "leases_made") == 0.0);
    // What jobs ask is the same, so what is hit and what is computed differ by what was computed again only.
    assert!(of("adaptive", "computed_tokens") < of("fcfs", "computed_tokens"));

    let ratios = results["ratios"].as_array().unwrap();
    assert_eq!(ratios.len(), 4 * 3, "of mean, P90 and P99");
    assert_eq!(ratios[0]["to_baseline"]["mean"], 1.0, "fcfs");
    // One of them is the best of each cell, by hand.
    let mean = |policy: &str, pool: u64, rate: f64| -> f64 {
        let here = simulations.iter().filter(|one| {
            one["policy"] == policy && one["num_gpu_blocks"] == pool && one["rate"] == rate
        });
        here.map(|one| one["mean"].as_f64().unwrap()).sum::<f64>() / 2.0
    };
    let cells = [(400, 2.0), (400, 6.0), (900, 2.0), (900, 6.0)];
    let worst = cells.map(|(pool, rate)| {
        let others = policies[..3].iter().map(|policy| mean(policy, pool, rate));
        mean("adaptive", pool, rate) / others.fold(f64::INFINITY, f64::min)
    });
    let worst = worst.into_iter().fold(0.0, f64::max);
    let adaptive = &ratios[9];
    assert_eq!((&adaptive["policy"], &adaptive["metric"]), (&"adaptive".into(), &"mean".into()));
    assert!((adaptive["to_best_other"]["worst"].as_f64().unwrap() - worst).abs() < 1e-9);

    let files =
        ["pool-400.svg", "pool-900.svg", "pools.svg", "results.json", "speedup.svg", "table.md"];
    assert_eq!(names(dir.path()), files.map(str::to_owned).into());
    let table = fs::read_to_string(dir.path().join("table.md")).unwrap();
    assert_eq!(table, ran.text(), "the table is printed, too");
    assert!(table.contains("## 900 blocks") && table.contains("| continuum-cdf |"), "{table}");
    for file in &files[..3] {
        let svg = fs::read_to_string(dir.path().join(file)).unwrap();
        assert!(
            svg.starts_with("<svg role=\"img\"") && svg.contains("<title id=\"title\">"),
            "{file}"
        );
        assert!(svg.contains("prefers-color-scheme: dark") && svg.contains("adaptive"), "{file}");
    }
}

#[test]
fn the_same_options_give_the_same_files_on_any_number_of_threads() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = ["--traffic", "mixed", "--policies", "adaptive", "--threads"];
    for (dir, threads) in [(&one, "1"), (&two, "3")] {
        sweep(dir.path(), &[&SMALL[..], &options[..], &[threads]].concat());
    }
    assert_eq!(names(one.path()), names(two.path()));
    for name in names(one.path()) {
        let [a, b] = [&one, &two].map(|dir| fs::read(dir.path().join(&name)).unwrap());
        assert!(a == b, "{name} differs");
    }
    let results = fs::read_to_string(one.path().join("results.json")).unwrap();
    assert!(results.contains("\"chat_mean\":"), "half of the jobs are chats");
}

#[test]
fn a_host_memory_is_for_the_policies_that_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let small = ["--rates", "4", "--num-gpu-blocks", "400", "--seeds", "1", "--seconds", "6"];
    let host = ["--host-memory", "8GB", "--load-bandwidth", "25GB"];
    let (_, results) =
        sweep(dir.path(), &[&small[..], &host[..], &["--shared-history", "0"]].concat());
    let names: Vec<&str> =
        results["policies"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    for name in ["fcfs", "continuum", "lmcache", "adaptive+host"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    for one in results["simulations"].as_array().unwrap() {
        let loads = one["loaded_tokens"].as_u64() > Some(0);
        let host = one["policy"] == "lmcache" || one["policy"].as_str().unwrap().ends_with("+host");
        assert!(host || !loads, "{one}");
        assert!(loads || one["policy"] != "lmcache", "{one}");
    }
}

#[test]
fn jobs_can_come_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs.jsonl");
    let line = |job: &str, arrival: f64| {
        format!(
            r#"{{"job":"{job}","arrival":{arrival},"turns":[{{"prompt_tokens":40,"output_tokens":5,"tool":"ls","tool_seconds":0.5}},{{"prompt_tokens":90,"output_tokens":5}}]}}"#
        )
    };
    fs::write(&file, format!("{}\n{}\n", line("a", 0.0), line("b", 0.25))).unwrap();
    let file = arg(&file);
    let pool =
        ["--num-gpu-blocks", "64", "--policies", "continuum", "--seeds", "2", "--agents", &file];
    let (ran, results) = sweep(&dir.path().join("as-given"), &pool);
    assert!(ran.text().contains("as given"), "{ran:?}");
    let simulations = results["simulations"].as_array().unwrap();
    assert!(simulations.iter().all(|one| one["rate"].is_null() && one["jobs"] == 2));
    let (_, results) =
        sweep(&dir.path().join("rates"), &[&pool[..], &["--rates", "1,4", "--jobs", "1"]].concat());
    let simulations = results["simulations"].as_array().unwrap();
    assert_eq!(simulations.len(), 2 * 2 * 2);
    assert!(simulations.iter().all(|one| one["jobs"] == 1));
}

#[test]
fn bad_usage_and_bad_files_are_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let out = arg(dir.path());
    let usage: [(&[&str], &str); 8] = [
        (&["--policies", "lmcache"], "--policies lmcache needs --host-memory"),
        (&["--policies", "fifo"], "unknown scheduling policy `fifo`"),
        (&["--traffic", "none"], "use coding, long, mixed"),
        (&["--rates", "0"], "from 1e-9"),
        (&["--rates", "inf"], "--rates inf needs --jobs"),
        (&["--num-gpu-blocks", "1"], "at least 2"),
        (&["--rates", "0.001", "--seconds", "0.001"], "no job arrives in 0.001 s"),
        (&["--traffic", "long", "--agents", "x.json"], "cannot be used with"),
    ];
    for (args, want) in usage {
        let ran = strata([&["sweep", "--out", &out][..], args].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
        assert!(ran.stderr.lines().count() == 1 && ran.stderr.contains(want), "{want}: {ran:?}");
    }
    let ran = strata_reading(b"{\"jobs\":5}", ["sweep", "--out", &out, "--agents", "-"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
    assert!(ran.stderr.contains("fcfs, 3000 blocks, seed 0: "), "{ran:?}");
    let ran = strata(["sweep", "--out", &out, "--agents", "no-such-file.json"]);
    assert!(ran.code == 1 && ran.stderr.contains("cannot read no-such-file.json"), "{ran:?}");
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let ran = strata(["sweep", "--out", &arg(&file)]);
    assert!(ran.code == 1 && ran.stderr.contains("cannot write"), "{ran:?}");
    let ran = strata(["sweep", "--out", &out, "--max-num-seqs", "4096"]);
    assert!(ran.code == 1 && ran.stderr.contains("max_num_batched_tokens"), "{ran:?}");
    assert!(names(dir.path()).iter().all(|name| name == "file"), "nothing was written");
}
