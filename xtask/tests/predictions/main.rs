//! Questions must not rot: what `cargo x predict` calls right is what the layers do.
//!
//! xtask computes its answers without the layers. Here the built command is asked for many
//! instances of each kind as JSON, and the engine is asked the same through its public functions.

mod l0;
mod l1;
mod l2;
mod l3;
mod l4;
mod l5;
mod l5_costs;
mod l5_retention;
mod l6;
mod nano;

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Kinds whose answer no public function of a layer gives; their formulas are compared with the
/// chapters by unit tests and by readers.
const NOT_CHECKED: [&str; 7] = [
    "linear-intensity",
    "memory-floor",
    "butterfly",
    "warp-pieces",
    "split-blocks",
    "fragment-lane",
    "padded-width",
];

fn predict(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("predict")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn said(args: &[&str]) -> (Option<i32>, String, String) {
    let out = predict(args);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.code(), text(out.stdout), text(out.stderr))
}

/// The first `n` instances of a kind.
fn questions(layer: &str, kind: &str, n: usize) -> Vec<Value> {
    let (status, out, err) =
        said(&[layer, "--kind", kind, "--seed", "0", "--json", &n.to_string()]);
    assert_eq!(status, Some(0), "{err}");
    let all: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(all.len(), n);
    all
}

/// Ask the engine `n` instances of a kind; `engine` gets the parameters and returns its answer.
fn agree<T: PartialEq + std::fmt::Debug>(
    kind: (&str, &str),
    n: usize,
    answer: impl Fn(&Value) -> T,
    engine: impl Fn(&Value) -> T,
) {
    for question in questions(kind.0, kind.1, n) {
        let (expected, got) = (engine(&question["facts"]), answer(&question["answer"]));
        let seed = &question["seed"];
        assert_eq!(got, expected, "{} {}, seed {seed}: {}", kind.0, kind.1, question["text"]);
    }
}

/// Whether a real answer is the engine's, to what f32 can tell.
fn close(got: f64, expected: f32) -> bool {
    (got - f64::from(expected)).abs() <= 1e-4 * f64::from(expected).abs()
}

/// [`agree`] for real numbers.
fn agree_closely((layer, kind): (&str, &str), engine: impl Fn(&Value) -> f32) {
    for question in questions(layer, kind, 100) {
        let (got, expected) = (question["answer"].as_f64().unwrap(), engine(&question["facts"]));
        assert!(close(got, expected), "{kind} {}: {got}, engine {expected}", question["seed"]);
    }
}

fn number(v: &Value) -> usize {
    v.as_u64().unwrap_or_else(|| panic!("{v} is no count")) as usize
}

fn numbers(v: &Value) -> Vec<usize> {
    v.as_array().unwrap().iter().map(number).collect()
}

fn reals(v: &Value) -> Vec<f32> {
    v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

/// The kinds that `--list` shows: (layer, name).
fn kinds() -> Vec<(String, String)> {
    let (_, out, _) = said(&["--list"]);
    let row = |line: &str| {
        let mut words = line.split_whitespace().map(String::from);
        (words.next().unwrap(), words.next().unwrap())
    };
    out.lines().map(row).collect()
}

#[test]
fn every_kind_is_checked_against_the_engine_or_named_as_not_checked() {
    let checked = [
        include_str!("l0.rs"),
        include_str!("l1.rs"),
        include_str!("l2.rs"),
        include_str!("l3.rs"),
        include_str!("l4.rs"),
        include_str!("l5.rs"),
        include_str!("l5_costs.rs"),
        include_str!("l5_retention.rs"),
        include_str!("l6.rs"),
        include_str!("nano.rs"),
    ]
    .concat();
    for (layer, kind) in kinds() {
        let here = checked.contains(&format!("(\"{layer}\", \"{kind}\")"));
        assert_eq!(here, !NOT_CHECKED.contains(&kind.as_str()), "{layer} {kind}");
    }
}

#[test]
fn right_and_wrong_answers_have_exit_status_0_and_1() {
    for (layer, kind) in kinds() {
        let question = &questions(&layer, &kind, 8)[7];
        let plain = |v: &Value| match v {
            Value::Array(list) => list.iter().map(Value::to_string).collect::<Vec<_>>().join(" "),
            Value::String(text) => text.clone(),
            Value::Bool(yes) => if *yes { "yes" } else { "no" }.into(),
            number => number.to_string(),
        };
        let answer = |text: &str| said(&[&layer, "--kind", &kind, "--seed", "7", "--answer", text]);
        let (status, out, err) = answer(&plain(&question["answer"]));
        assert_eq!(status, Some(0), "{kind}: {out}{err}");
        assert!(out.contains("Right."));
        let Some(mistake) = question["mistakes"].get(0) else { continue };
        let (status, out, err) = answer(&plain(&mistake["answer"]));
        assert_eq!(status, Some(1), "{kind}: {out}{err}");
        let why = mistake["why"].as_str().unwrap();
        let (first, _) = why.split_at(why.char_indices().nth(20).map_or(why.len(), |(at, _)| at));
        assert!(out.to_lowercase().contains(&first.to_lowercase()), "{kind}: {why}\n{out}");
        let chapter = question["chapter"].as_str().unwrap();
        assert!(out.contains(&format!("More in book/src/{chapter}")), "{out}");
    }
}

#[test]
fn a_seed_repeats_its_question_and_without_one_it_is_said() {
    assert_eq!(said(&["l1", "--seed", "12"]), said(&["l1", "--seed", "12"]));
    let (status, out, _) = said(&["l2"]);
    assert_eq!(status, Some(0));
    let seed = out.split("--seed ").nth(1).unwrap().split(')').next().unwrap();
    assert_eq!(said(&["l2", "--seed", seed]).1, out);
}

#[test]
fn without_a_terminal_it_says_how_to_answer() {
    let (status, out, _) = said(&["l1", "--seed", "12"]);
    assert_eq!(status, Some(0));
    assert!(out.ends_with("cargo x predict l1 --seed 12 --answer ...\n"), "{out}");
}

#[test]
fn what_cannot_be_asked_or_read_is_an_error_that_says_what_can() {
    for (args, wanted) in [
        (
            vec!["l9"],
            "there are no questions for a layer `l9`: cargo x predict nano or cargo x predict l1 or",
        ),
        (vec![], "name a layer: cargo x predict nano"),
        (vec!["l1", "--kind", "nonsense"], "its kinds are bf16-round"),
        (vec!["l1", "--kind", "kv-bytes"], "cargo x predict l2 --kind kv-bytes"),
        (vec!["l2", "--kind", "pool-usage"], "cargo x predict l3 --kind pool-usage"),
        (vec!["l3", "--kind", "text-shown"], "cargo x predict l4 --kind text-shown"),
        (vec!["l4", "--kind", "gives-way"], "cargo x predict l5 --kind gives-way"),
        (vec!["l1", "--seed", "x"], "a seed is a whole number"),
        (vec!["l1", "--seed", "-1"], "a seed is a whole number"),
        (vec!["l1", "--seed", "99999999999999999999"], "a seed is a whole number"),
        (vec!["l1", "--answer", "3"], "--seed"),
        (vec!["l1", "--seed", "18446744073709551615", "--json", "2"], "the seed is too large"),
        (vec!["l1", "--kind", "gqa-head", "--seed", "1", "--answer", "h / 3"], "`h / 3`"),
        (vec!["l1", "--kind", "gqa-head", "--seed", "1", "--answer", ""], "a number is expected"),
        (vec!["l1", "--kind", "mask-row", "--seed", "1", "--answer", "3"], "2 whole numbers"),
    ] {
        let (status, _, err) = said(&args);
        assert_eq!(status, Some(2), "{args:?}: {err}");
        assert!(err.contains(wanted), "{args:?}: {err}");
        assert!(!err.contains("panicked"), "{args:?}: {err}");
    }
}
