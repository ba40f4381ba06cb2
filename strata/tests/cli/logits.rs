//! `strata logits`.

use serde_json::Value;

use crate::golden::{Golden, tiny_models};
use crate::strata::{comma, fixture, keys, strata};

/// The bound of the reference parity gates: f32 against f32.
const TOLERANCE: f64 = 2e-3;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn every_logit_of_every_position_is_the_references() {
    for (model, golden) in tiny_models() {
        let golden = Golden::open(&golden);
        let tokens = comma(&golden.ids("tokens"));
        let args = ["logits", "-m", &model, "--tokens", &tokens, "--precision", "f32"];
        let answer = strata(args.into_iter().chain(["--all", "--full", "--json"])).json();
        assert_eq!(keys(&answer), ["positions"]);
        let positions = answer["positions"].as_array().unwrap();
        let expected = golden.rows("logits");
        assert_eq!(positions.len(), expected.len());
        for (i, (position, expected)) in positions.iter().zip(&expected).enumerate() {
            assert_eq!(keys(position), ["position", "top", "logits"]);
            assert_eq!(position["position"], i);
            let got = numbers(&position["logits"]);
            assert_eq!(got.len(), expected.len());
            for (id, (got, want)) in got.iter().zip(expected).enumerate() {
                let error = (got - f64::from(*want)).abs();
                assert!(error <= TOLERANCE, "{model}, position {i}, id {id}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn top_is_id_logit_and_logprob_best_first() {
    let model = fixture("tiny-llama");
    let args = ["logits", "-m", &model, "--tokens", "3,1,4,1,5", "--json", "--full", "--top", "7"];
    let answer = strata(args).json();
    let [position] = answer["positions"].as_array().unwrap().as_slice() else {
        panic!("one position unless --all");
    };
    assert_eq!(position["position"], 4);
    let logits = numbers(&position["logits"]);
    let sum: f64 = logits.iter().map(|x| x.exp()).sum();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let top = position["top"].as_array().unwrap();
    assert_eq!(top.len(), 7);
    for (entry, id) in top.iter().zip(order) {
        let entry = numbers(entry);
        assert_eq!((entry[0], entry[1]), (id as f64, logits[id]));
        assert!((entry[2] - (logits[id] - sum.ln())).abs() < 1e-4, "{entry:?}");
    }
}

#[test]
fn printed_numbers_read_back_as_the_same_floats() {
    let args = ["--tokens", "3,1,4", "--all", "--full", "--json", "--top", "3"];
    let model = fixture("tiny-qwen2");
    let run = || strata(["logits", "-m", &model].into_iter().chain(args));
    let (text, answer) = (run(), run().json());
    assert_eq!(text.stdout, run().stdout, "the same bits each time");
    for number in answer["positions"][0]["logits"].as_array().unwrap() {
        // Written with as few digits as tell one f32 from its neighbours.
        let as_f32 = number.as_f64().unwrap() as f32;
        assert_eq!(number.to_string().parse::<f32>().unwrap(), as_f32);
        assert_eq!(serde_json::to_string(&as_f32).unwrap(), number.to_string());
    }
}

#[test]
fn without_full_there_are_no_logits_and_without_json_a_table() {
    let model = fixture("tiny-llama");
    let args = ["logits", "-m", &model, "--tokens", "3,1,4", "--top", "2"];
    let answer = strata(args.into_iter().chain(["--json"])).json();
    assert_eq!(keys(&answer["positions"][0]), ["position", "top"]);
    let table = strata(args.into_iter().chain(["--all"]));
    assert_eq!(table.text().lines().count(), 3 * (1 + 2));
    assert!(table.text().starts_with("position 0, after token 3\n"), "{table:?}");
}

#[test]
fn the_last_position_is_the_same_alone_and_among_all() {
    let model = fixture("tiny-mistral");
    let tokens = comma(&(0..200).map(|i| i * 3 % 600).collect::<Vec<u32>>());
    let args = ["logits", "-m", &model, "--tokens", &tokens, "--json", "--full"];
    let last = strata(args).json();
    let all = strata(args.into_iter().chain(["--all"])).json();
    assert_eq!(all["positions"].as_array().unwrap().len(), 200);
    assert_eq!(last["positions"][0], all["positions"][199]);
}
