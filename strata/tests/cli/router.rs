//! `strata router`.

use std::fs;

use crate::strata::{arg, fixture, keys, strata, strata_reading};

#[test]
fn a_trained_classifier_is_used_and_the_same_seed_gives_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let data = fixture("router/sample.jsonl");
    let files = ["a.bin", "b.bin"].map(|name| arg(dir.path().join(name)));
    for file in &files {
        let said =
            strata(["router", "train", &data, "--out", file, "--bits", "10", "--epochs", "3"]);
        assert!(said.text().contains("temperature"), "{said:?}");
    }
    assert!(fs::read(&files[0]).unwrap() == fs::read(&files[1]).unwrap());
    // A small corpus gives small probabilities.
    let config = dir.path().join("router.toml");
    fs::write(&config, "min_score = 0.0").unwrap();
    let config = arg(&config);
    let args = ["router", "eval", &data, "--classifier", &files[0], "--config", &config];
    let args = args.into_iter().chain(["--no-rules", "--json"]);
    let figures = strata(args).json();
    assert!(figures["accuracy"].as_f64().unwrap() > 0.5, "on what it was trained on: {figures}");
    assert!(keys(&figures["decided_by"]).iter().all(|by| !by.starts_with("rule")), "{figures}");
}

#[test]
fn an_evaluation_shows_each_label_and_each_rule() {
    let text = strata(["router", "eval", &fixture("router/requests.jsonl")]);
    for line in
        ["accuracy ", "coverage at 90% precision", "concurrency", "reject", "rule sanitizer_report"]
    {
        assert!(text.text().contains(line), "{line}: {}", text.text());
    }
}

#[test]
fn an_explanation_names_lane_reason_and_evidence() {
    let report = b"==3==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010";
    let said = strata_reading(report, ["router", "explain", "-"]);
    assert!(said.text().starts_with("primary    debug\n"), "{said:?}");
    assert!(said.text().contains("why        rule sanitizer_report: "), "{said:?}");
    let answer =
        strata_reading(report, ["router", "explain", "--intent", "build_fix", "--json", "-"])
            .json();
    assert_eq!(keys(&answer), ["route", "findings"]);
    assert_eq!(answer["route"]["primary"], "build");
    assert_eq!(answer["route"]["why"]["by"], "declared_intent");
    let parts = br#"{"parts":[{"kind":"snippet","name":"CMakeLists.txt","text":"x"},{"kind":"user","text":"Why?"}]}"#;
    let answer = strata_reading(parts, ["router", "explain", "--json", "-"]).json();
    assert_eq!(answer["route"]["primary"], "build");
}

#[test]
fn what_cannot_be_used_is_an_error_that_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        arg(&path)
    };
    let config = file("router.toml", "min_score = 7\nlanes.stl = 'x'");
    let typo = file("typo.toml", "min_scores = 0.1");
    let corpus = file("corpus.jsonl", "{\"label\": 3}\n");
    let requests = fixture("router/requests.jsonl");
    let out = arg(dir.path().join("never"));
    for (args, part) in [
        (vec!["explain", "-", "--intent", "dance"], "use one of build_fix, codegen"),
        (vec!["explain", "-", "--config", &config], "`min_score` must be in [0, 1]; `lanes.stl`"),
        (vec!["explain", "-", "--config", &typo], "min_scores"),
        (vec!["explain", "-", "--classifier", &config], "not a router classifier"),
        (vec!["explain", "/no/such/file"], "cannot read /no/such/file"),
        (vec!["eval", &corpus], "line 1 of the corpus"),
        (
            vec!["train", &requests, "--out", &out, "--held-out", "nothing"],
            "no package \"nothing\"",
        ),
    ] {
        let ran = strata_reading(b"hello", ["router"].iter().chain(&args));
        assert_eq!(ran.code, 1, "{args:?}: {ran:?}");
        assert!(
            ran.stderr.starts_with("error: ") && ran.stderr.contains(part),
            "{args:?}: {ran:?}"
        );
        assert!(ran.stdout.is_empty());
    }
    let ran = strata(["router", "train", &requests, "--out", &out, "--bits", "40"]);
    assert_eq!(ran.code, 2, "{ran:?}");
}

#[test]
fn the_router_of_an_ensemble_file_is_explained_and_measured() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ensemble.toml");
    let text = "model = \"m\"\nfallback = \"rest\"\n[router]\nmin_score = 0.9\n[[specialist]]\nname = \"bugs\"\n\
                classes = [\"debug\"]\nintents = [\"triage\"]\n[[specialist]]\nname = \"rest\"\nclasses = []\n";
    fs::write(&file, text).unwrap();
    let file = arg(&file);
    let explain = |text: &str, more: &[&str]| {
        let args = ["router", "explain", "-", "--ensemble", &file];
        strata_reading(text.as_bytes(), args.iter().chain(more))
    };
    let report = "==3==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010";
    assert!(explain(report, &[]).text().starts_with("primary    bugs\n"));
    assert!(explain("?", &["--intent", "triage"]).text().starts_with("primary    bugs\n"));
    let none = explain("Hello.", &[]);
    assert!(
        none.text().starts_with("primary    none: the fallback of the ensemble, rest, serves it\n"),
        "{none:?}"
    );
    let args =
        ["router", "eval", &fixture("router/requests.jsonl"), "--ensemble", "demo", "--json"];
    assert!(strata(args).json()["examples"].as_u64() > Some(0));
    // A label is a class, and counts as the specialist that serves it.
    let corpus = "{\"label\":\"debug\",\"package\":\"a\",\"parts\":[{\"kind\":\"user\",\"text\":\"==3==ERROR: AddressSanitizer: \
                  heap-use-after-free on address 0x602000000010\"}]}\n";
    let args = ["router", "eval", "-", "--ensemble", &file, "--json"];
    assert_eq!(strata_reading(corpus.as_bytes(), args).json()["accuracy"], 1.0);
    let both = strata(["router", "explain", "-", "--ensemble", "demo", "--lanes", "a,b"]);
    assert_eq!(both.code, 2, "{both:?}");
}

#[test]
fn training_reports_the_held_out_part_and_warns_without_one() {
    let dir = tempfile::tempdir().unwrap();
    let out = arg(dir.path().join("own.bin"));
    let line = |label: &str, package: usize, text: &str| {
        format!(
            "{{\"label\":\"{label}\",\"package\":\"{label}{package}\",\"parts\":[{{\"kind\":\"user\",\"text\":\"{text}\"}}]}}\n"
        )
    };
    let corpus = |packages: usize| {
        let lines = (0..packages).map(|at| {
            line("cooking", at, "How long does bread bake in the oven?")
                + &line("travel", at, "Which train goes to the airport?")
        });
        lines.collect::<String>()
    };
    let train = |text: &str| {
        let args = ["router", "train", "-", "--bits", "10", "--out", &out];
        strata_reading(text.as_bytes(), args)
    };
    let ran = train(&corpus(3));
    assert!(ran.text().contains("classes               cooking, travel\n"), "{ran:?}");
    assert!(ran.text().contains("accuracy on held out  1.000, of 2 examples (cooking"), "{ran:?}");
    assert!(!ran.stderr.contains("warning"), "{ran:?}");
    let ran = train(&corpus(2));
    assert!(ran.text().contains("accuracy on held out  none was held out\n"), "{ran:?}");
    assert!(ran.stderr.contains("warning: nothing was held out"), "{ran:?}");
}
