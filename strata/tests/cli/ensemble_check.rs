//! `strata ensemble check`, and what `strata serve --ensemble` reports before it loads anything.

use std::fs;
use std::path::Path;

use crate::strata::{Ran, arg, command, fixture, keys, strata};

/// `ensemble check` of a file `e.toml` in `dir`.
fn check(dir: &Path, text: &str, more: &[&str]) -> Ran {
    let file = dir.join("e.toml");
    fs::write(&file, text).unwrap();
    strata(["ensemble", "check", &arg(&file)].iter().chain(more))
}

fn tiny() -> String {
    format!("model = {:?}\n", fixture("tiny-llama"))
}

#[test]
fn every_error_has_a_line_with_the_path_of_its_field() {
    let dir = tempfile::tempdir().unwrap();
    let text = "colour = 1\n[[specialist]]\n[[specialist]]\nname = \"a\"\nslo = { itl = 3 }\n[breaker]\ntrip_below = 3\nwindow = 1";
    let ran = check(dir.path(), text, &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert!(
        lines[0].starts_with("error: ") && lines[0].ends_with("e.toml has 7 problems:"),
        "{ran:?}"
    );
    assert_eq!(lines.len(), 8, "{ran:?}");
    for path in ["colour", "specialist[0].name", "specialist[0].model", "specialist.a.model"] {
        assert!(
            lines.iter().any(|line| line.starts_with(&format!("  `{path}` "))),
            "{path}: {ran:?}"
        );
    }
    let itl = "  `specialist.a.slo.itl` must be a duration such as \"500ms\", got 3";
    assert!(lines.contains(&itl), "{ran:?}");
    // One error stays in its line.
    let ran = check(dir.path(), &(tiny() + "colour = 1\n[[specialist]]\nname = \"a\""), &[]);
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
}

#[test]
fn a_file_that_cannot_be_served_is_refused_by_check_and_by_serve() {
    let dir = tempfile::tempdir().unwrap();
    let text = tiny()
        + "[router]\nclassifier = \"gone.bin\"\n[[specialist]]\nname = \"a\"\nmodel = \"./gone\"\n\
           [[specialist]]\nname = \"b\"\nmax_model_len = 1000000\n\
           [[specialist]]\nname = \"c\"\nreplicas = 0\n\
           remotes = [{ url = \"http://h/v1\", model = \"m\", api_key_env = \"NO_SUCH_KEY\" }]\n";
    let ran = check(dir.path(), &text, &[]);
    let served = strata(["serve", "--port", "0", "--ensemble", &arg(dir.path().join("e.toml"))]);
    for ran in [ran, served] {
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
        for part in [
            "`specialist.a.model` is ",
            "`specialist.b.max_model_len` must be at most the context of the model, which is 512",
            "`specialist.c.remotes[0].api_key_env` names the environment variable NO_SUCH_KEY, which is not set",
            "`router.classifier` cannot read the classifier ",
        ] {
            assert!(
                ran.stderr.lines().any(|line| line.trim().starts_with(part)),
                "{part}: {ran:?}"
            );
        }
        assert_eq!(ran.stderr.lines().filter(|line| line.starts_with("  `")).count(), 4, "{ran:?}");
    }
    // A model on the hub is no error: it would be downloaded.
    let hub = "[[specialist]]\nname = \"a\"\nmodel = \"no-such-org/no-such-model\"\nclasses = [\"debug\"]\n";
    let ran = check(dir.path(), hub, &["--json"]);
    let found = ran.json();
    let said = format!("{}{}", found["notes"], found["warnings"]);
    assert!(said.contains("no-such-org/no-such-model") && said.contains("not here"), "{said}");
}

#[test]
fn drafters_that_do_not_fit_are_refused_before_weights_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let specialist = |name: &str, target: &str, fields: &str| {
        let model = fixture(target);
        format!(
            "[[specialist]]\nname = \"{name}\"\nmodel = {model:?}\n\
             speculative_config = {{ num_speculative_tokens = 3, {fields} }}\n"
        )
    };
    let head = |name: &str| format!("model = {:?}", fixture(&format!("draft-heads/{name}")));
    let fits =
        format!("method = \"eagle\", draft_sample_method = \"probabilistic\", {}", head("eagle"));
    let text = specialist("fits", "tiny-qwen2", &fits)
        + &specialist("target", "tiny-llama-linear", &fits)
        + &specialist("method", "tiny-qwen2", &format!("method = \"eagle3\", {}", head("eagle")))
        + &specialist(
            "heads",
            "tiny-llama-linear",
            &format!("method = \"medusa\", {}", head("medusa-two-blocks")),
        )
        + &specialist("gone", "tiny-llama", "method = \"draft_model\", model = \"./gone\"")
        + &specialist(
            "vocabulary",
            "tiny-llama-linear",
            &format!("method = \"draft_model\", model = {:?}", fixture("tiny-qwen2")),
        );
    let ran = check(dir.path(), &text, &[]);
    assert_eq!(ran.code, 2, "{ran:?}");
    for (name, part) in [
        ("target", "hidden_size"),
        ("method", "set method to eagle"),
        ("heads", "set num_speculative_tokens to at most 1, got 3"),
        ("gone", "cannot use `model` of the speculative config"),
        ("vocabulary", "it has 351 tokens, and the model has 325"),
    ] {
        let begins = format!("  `specialist.{name}.speculative_config`: ");
        let line = ran.stderr.lines().find(|line| line.starts_with(&begins));
        assert!(line.is_some_and(|line| line.contains(part)), "{name}: {ran:?}");
    }
    assert_eq!(ran.stderr.lines().filter(|line| line.starts_with("  `")).count(), 5, "{ran:?}");
}

#[test]
fn paths_are_relative_to_the_directory_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let data = fixture("router/sample.jsonl");
    let out = arg(dir.path().join("own.bin"));
    strata(["router", "train", &data, "--out", &out, "--bits", "10", "--epochs", "1"]).text();
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    for file in fs::read_dir(fixture("tiny-llama")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), model.join(file.file_name())).unwrap();
    }
    let text =
        "model = \"model\"\n[router]\nclassifier = \"own.bin\"\n[[specialist]]\nname = \"stl\"\n";
    let found = check(dir.path(), text, &["--json"]).json();
    assert_eq!(found["router"]["classifier"], out);
    assert_eq!(found["specialist"][0]["model"], arg(&model));
}

#[test]
fn a_class_that_nothing_gives_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let text = tiny() + "[[specialist]]\nname = \"a\"\nclasses = [\"debug\", \"poetry\"]\n";
    let ran = check(dir.path(), &text, &[]);
    ran.text();
    let warned = "warning: `specialist.a.classes` has `poetry`, which the classifier (builtin), the rules and the intents";
    assert!(ran.stderr.contains(warned), "{ran:?}");
    // A specialist that is a fallback needs no class; one that nothing reaches is reported.
    let names = tiny()
        + "[[specialist]]\nname = \"debug\"\nfallback = \"spare\"\n[[specialist]]\nname = \"spare\"\n";
    assert!(!check(dir.path(), &names, &[]).stderr.contains("warning"));
    let lost = names + "[[specialist]]\nname = \"lost\"\n";
    let ran = check(dir.path(), &lost, &[]);
    assert!(ran.stderr.contains("`specialist.lost.classes` has `lost`"), "{ran:?}");
    let intent = text
        + "intents = [\"poem\"]\n[[specialist]]\nname = \"b\"\nclasses = [\"stl\"]\n[intents.ode]\nclass = \"poetry\"";
    let ran = check(dir.path(), &intent, &[]);
    ran.text();
    assert!(!ran.stderr.contains("warning"), "an intent gives it: {ran:?}");
}

#[test]
fn all_values_in_force_are_printed_under_the_names_of_their_fields() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = "You are an expert in the C++ standard library. ".repeat(3);
    let text = tiny()
        + &format!(
            "[[specialist]]\nname = \"stl\"\ndecoding_policy = \"greedy\"\nsystem_prompt = {prompt:?}\n"
        );
    let ran = check(dir.path(), &text, &[]);
    let has = |field: &str, value: &str| {
        let is = |line: &str| {
            line.trim()
                .split_once("  ")
                .is_some_and(|(own, got)| own == field && got.trim() == value)
        };
        assert!(ran.text().lines().any(is), "{field} {value}: {ran:?}");
    };
    has("fallback", "none: requests that fit no class are rejected");
    has("max_num_seqs", "128 on a CPU, 256 on a GPU");
    has("max_model_len", "what model and memory allow");
    has("decoding_policy", "greedy (temperature 0, top_p 1, typical_p 1)");
    has("min_score", "0.2");
    has("margin", "1.5");
    has("trip_below", "0.7");
    has("max_in_flight", "8");
    has("latency_window", "5m");
    has("levels[2]", "shadow_scale 0, spill_raise 0.15 (level 3)");
    has("review", "class none, shadow_below 0.9, spill_below 0.3");
    has("tripwires.stl_code", "class stl, min_hits 4, min_density 0.07, enabled true");
    assert!(ran.stdout.contains("(141 characters)") && !ran.stdout.contains(&prompt), "shortened");
    let value = check(dir.path(), &text, &["--json"]).json();
    let sections = [
        "name",
        "kv_memory",
        "fallback",
        "specialist",
        "router",
        "intents",
        "shadow",
        "breaker",
        "escalation",
        "slo",
        "warnings",
        "notes",
    ];
    assert_eq!(keys(&value), sections);
    assert_eq!(value["specialist"][0]["system_prompt"], prompt);
    assert_eq!(value["escalation"]["levels"][4]["priority_floor"], 0);
}

#[test]
fn flags_beside_an_ensemble_are_refused_or_defaults_and_printed_as_such() {
    let refused = strata(["serve", "--ensemble", "demo", "--kv-memory", "1GiB", "--model", "m"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{refused:?}");
    for part in ["--kv-memory: set `kv_memory` of the file", "--model: set `model`"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
    let mut from_environment = command();
    from_environment.args(["serve", "--ensemble", "demo"]).env("STRATA_BLOCK_SIZE", "8");
    let output = from_environment.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("--block-size (STRATA_BLOCK_SIZE): set `block_size` of a [[specialist]]"),
        "{said}"
    );

    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.toml");
    fs::write(&other, "policy = \"fcfs\"").unwrap();
    let from_file = strata(["serve", "--ensemble", "demo", "--config", &arg(&other)]);
    let said = format!("--policy ({}): set `policy` of a [[specialist]]", other.display());
    assert!(from_file.code == 2 && from_file.stderr.contains(&said), "{from_file:?}");
    let file = dir.path().join("e.toml");
    fs::write(
        &file,
        tiny() + "[[specialist]]\nname = \"a\"\n[[specialist]]\nname = \"b\"\nmax_num_seqs = 3\n",
    )
    .unwrap();
    let config = dir.path().join("strata.toml");
    fs::write(&config, "max-num-seqs = 7\n").unwrap();
    let args = [
        "serve",
        "--ensemble",
        &arg(&file),
        "--config",
        &arg(&config),
        "--max-model-len",
        "64",
        "--print-config",
    ];
    let printed = strata(args);
    let line = |start: &str| {
        let found = printed.text().lines().find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("no {start}: {printed:?}")).to_owned()
    };
    assert!(line("# policy ").contains("by the ensemble: `policy` of a [[specialist]]"));
    assert!(line("# model ").contains("by the ensemble: `model`"));
    assert!(line("max-num-seqs = 7 ").contains("for specialists that do not set it"));
    let values = |field: &str| -> Vec<String> {
        let start = format!("#   {field} ");
        let lines = printed.text().lines().filter(|line| line.starts_with(&start));
        lines.map(|line| line[start.len()..].trim().to_owned()).collect()
    };
    assert_eq!(values("max_num_seqs"), ["7", "3"], "what is in force");
    assert_eq!(values("max_model_len"), ["64", "64"]);
    let table: toml::Table = printed.text().parse().unwrap();
    assert_eq!(
        table["ensemble"].as_str(),
        Some(arg(&file).as_str()),
        "it is such a configuration file"
    );
}
