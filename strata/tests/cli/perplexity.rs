//! `strata perplexity`: the figures of transformers, and what cannot be measured.

use serde_json::Value;

use crate::strata::{arg, fixture, keys, strata, strata_reading};

/// Bound of the difference of two means of -ln p, f32 against f32.
const TOLERANCE: f64 = 1e-4;

fn golden() -> (String, Vec<Value>) {
    let read =
        |name: &str| std::fs::read_to_string(fixture(&format!("perplexity/{name}"))).unwrap();
    let golden: Value = serde_json::from_str(&read("golden.json")).unwrap();
    let characters = golden["characters"].as_u64().unwrap() as usize;
    let text = read("glossary.txt").chars().take(characters).collect();
    (text, golden["cases"].as_array().unwrap().clone())
}

#[test]
fn the_mean_and_its_error_are_those_of_transformers_for_any_length_of_windows() {
    let (text, cases) = golden();
    for case in cases {
        let model = fixture(case["model"].as_str().unwrap());
        let context = case["context"].to_string();
        let args = [
            "perplexity",
            "-",
            "-m",
            &model,
            "--context",
            &context,
            "--precision",
            "f32",
            "--json",
        ];
        let got = strata_reading(text.as_bytes(), args).json();
        assert_eq!(
            keys(&got),
            [
                "perplexity",
                "perplexity_error",
                "mean_nll",
                "mean_nll_error",
                "scored",
                "tokens",
                "windows",
                "context"
            ]
        );
        for key in ["tokens", "scored", "context"] {
            assert_eq!(got[key], case[key], "{key} of {case}");
        }
        let number = |of: &Value, key: &str| of[key].as_f64().unwrap();
        for key in ["mean_nll", "mean_nll_error"] {
            let (got, want) = (number(&got, key), number(&case, key));
            assert!((got - want).abs() < TOLERANCE, "{key} of {case}: {got}");
        }
        let (mean, error) = (number(&got, "mean_nll"), number(&got, "mean_nll_error"));
        assert!((number(&got, "perplexity") / mean.exp() - 1.0).abs() < 1e-9, "{got}");
        assert!((number(&got, "perplexity_error") / (mean.exp() * error) - 1.0).abs() < 1e-9);
    }
}

#[test]
fn a_file_is_read_and_the_sentence_has_the_figures_of_the_object() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text");
    std::fs::write(&file, "Once upon a time there was a king.").unwrap();
    let (file, model) = (arg(&file), fixture("tiny-llama"));
    let args = ["perplexity", &file, "-m", &model];
    let object = strata(args.iter().chain(&["--json"])).json();
    let ran = strata(args);
    let perplexity = format!("perplexity {:.4} +-", object["perplexity"].as_f64().unwrap());
    assert!(ran.text().starts_with(&perplexity), "{ran:?}");
    let adapter = fixture("adapters/tiny-llama-all");
    let adapted = strata(args.iter().chain(&["--json", "--adapter", &adapter])).json();
    assert_ne!(adapted["mean_nll"], object["mean_nll"], "with a LoRA adapter");
}

#[test]
fn the_error_of_one_token_is_unknown() {
    let model = fixture("tiny-llama");
    let args = ["perplexity", "-", "-m", &model, "--context", "2"];
    // The first of lengths of which one token is scored: special tokens differ between models.
    let scored = |text: &str| {
        let ran = strata_reading(text.as_bytes(), args.iter().chain(&["--json"]).copied());
        (ran.code == 0).then(|| ran.json())
    };
    let texts = ["a", "ab", "a b", "a b c"];
    let one =
        texts.iter().find_map(|text| Some((text, scored(text).filter(|o| o["scored"] == 1)?)));
    let (text, object) = one.unwrap();
    assert!(object["perplexity_error"].is_null() && object["mean_nll_error"].is_null(), "{object}");
    assert!(object["perplexity"].is_f64(), "{object}");
    let ran = strata_reading(text.as_bytes(), args);
    assert!(ran.text().starts_with("perplexity ") && !ran.text().contains("+-"), "{ran:?}");
}

#[test]
fn what_cannot_be_measured_says_what_to_do() {
    let model = fixture("tiny-llama");
    let ran = |file: &str, text: &str, more: &[&str]| {
        let args = ["perplexity", file, "-m", &model];
        strata_reading(text.as_bytes(), args.iter().chain(more).copied())
    };
    for (file, text, more, code, says) in [
        ("-", "", &[][..], 2, "pass a longer one"),
        ("-", "a b", &["--context", "1"], 2, "--context must be at least 2"),
        ("-", "a b", &["--context", "100000"], 2, "--context must be at most 512"),
        ("/no/such/file", "", &[], 1, "cannot read /no/such/file"),
    ] {
        let ran = ran(file, text, more);
        assert!(ran.code == code && ran.stderr.contains(says), "{says}: {ran:?}");
    }
}
