//! SmolLM2-135M-Instruct against transformers (fixtures/reference/make_smollm2_goldens.py).
//!
//! These tests need the model's file: `cargo x test --full` fetches it and names it in `STRATA_SMOLLM2`. Without that
//! variable they say so and pass.
//!
//! The reference keeps the dequantised weights in f32; this engine holds them in bf16. That alone moves logprobs (by
//! 0.0044 on average, says fixtures/README.md), so a greedy token may differ from the reference's where the reference
//! itself hardly preferred it. How hardly is its *margin*, best logit minus second best: an exact arithmetic
//! (`f32`) is allowed margins below 0.02, activations rounded to bf16 margins below 0.25.

#[path = "../../l2-model/tests/support/smollm2.rs"]
mod real;

use std::path::PathBuf;
use std::process::Command;

use l1_tensor::{Precision, PrecisionRequest, Runtime, RuntimeOptions};
use l2_model::chat_template::Message;
use l2_model::generate::generate;
use l2_model::{
    Batch, ContiguousState, FinishReason, GenerateOptions, Model, Session, Workspace, WorkspaceSpec,
};
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct Greedy {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    text: String,
    tokens: Vec<u32>,
    greedy: Vec<u32>,
    margins: Vec<f64>,
    /// At each step the eight likeliest tokens with their logprobs.
    top: Vec<Vec<(u32, f64)>>,
}

fn fixture<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/smollm2").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn load(path: &std::path::Path, precision: Precision) -> (Runtime, Model) {
    let precision = PrecisionRequest::Exactly(precision);
    let rt = Runtime::new(RuntimeOptions { precision, ..Default::default() }).unwrap();
    let model = Model::load(path, &rt).unwrap();
    (rt, model)
}

/// The logits of every greedy step, given the reference's own tokens before it: `[48][V]`.
fn teacher_forced(rt: &Runtime, model: &Model, prompt: &Prompt) -> Vec<Vec<f32>> {
    let config = model.decoder.config();
    let steps = prompt.greedy.len();
    let tokens = [prompt.tokens.as_slice(), &prompt.greedy[..steps - 1]].concat();
    let n = tokens.len();
    let positions: Vec<i32> = (0..n as i32).collect();
    let rows: Vec<u32> = (prompt.tokens.len() as u32 - 1..n as u32).collect();
    let spec = WorkspaceSpec { max_tokens: n, max_rows: steps, max_context: n };
    let mut ws = Workspace::new(rt, config, spec).unwrap();
    let mut state = ContiguousState::new(config, 1, n, rt.activation_dtype()).unwrap();
    let batch = Batch {
        tokens: &tokens,
        positions: &positions,
        cu_seqlens_q: &[0, n as i32],
        state_slots: &[0],
        logit_rows: &rows,
        ..Batch::default()
    };
    let logits = model.decoder.forward(&batch, &mut state, &mut ws).unwrap();
    logits.to_vec_f32().unwrap().chunks(config.vocab).map(<[f32]>::to_vec).collect()
}

fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best }).unwrap() as u32
}

/// ln of the sum of exponentials: `logprob = logit - log_sum`.
fn log_sum(row: &[f32]) -> f64 {
    let max = f64::from(row[argmax(row) as usize]);
    row.iter().map(|x| (f64::from(*x) - max).exp()).sum::<f64>().ln() + max
}

/// Differences from the reference, of some number.
#[derive(Default)]
struct Differences(Vec<f64>);

impl Differences {
    fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    fn quantile(&self, q: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * q).round() as usize]
    }
}

/// What a precision must keep to.
struct Bounds {
    /// A greedy token may differ where the reference's margin is below this.
    margin: f64,
    /// Mean and 99th percentile of |logprob - reference's logprob| of the reference's token.
    chosen: (f64, f64),
    /// The same over the eight likeliest tokens of each step.
    top: (f64, f64),
    /// By how much less likely than the reference's choice, by the reference's own word, ours may be.
    regret: f64,
}

fn keeps_to_the_reference(precision: Precision, bounds: &Bounds) {
    let Some(path) = real::file() else { return };
    let (rt, model) = load(&path, precision);
    let (mut chosen, mut top, mut regret) =
        (Differences::default(), Differences::default(), Differences::default());
    let mut other_choices = vec![];
    let golden: Greedy = fixture("greedy.json");
    assert!(golden.prompts.len() >= 10);
    for prompt in &golden.prompts {
        assert_eq!(prompt.greedy.len(), 48);
        for (step, row) in teacher_forced(&rt, &model, prompt).iter().enumerate() {
            let sum = log_sum(row);
            let expected = &prompt.top[step];
            let off = |(id, p): &(u32, f64)| (f64::from(row[*id as usize]) - sum - p).abs();
            chosen.0.push(off(&expected[0]));
            top.0.extend(expected.iter().map(off));
            let ours = argmax(row);
            let known = expected.iter().find(|(id, _)| *id == ours);
            // A choice that is not even among the reference's eight is worse than the eighth.
            regret.0.push(known.map_or(f64::INFINITY, |(_, p)| expected[0].1 - p));
            if ours != prompt.greedy[step] {
                let margin = prompt.margins[step];
                other_choices.push(format!("{} step {step}: margin {margin}", prompt.name));
                assert!(
                    margin < bounds.margin,
                    "{} step {step}: {ours} instead of {}, where the margin is {margin}",
                    prompt.name,
                    prompt.greedy[step]
                );
            }
        }
    }
    let line = |d: &Differences| {
        format!("mean {:.5}, p99 {:.4}, max {:.4}", d.mean(), d.quantile(0.99), d.quantile(1.0))
    };
    println!("{precision} on {rt}: {} steps, teacher-forced", chosen.0.len());
    println!("  |logprob difference| of the reference's token: {}", line(&chosen));
    println!("  |logprob difference| of its eight likeliest:   {}", line(&top));
    println!("  regret of our choice:                          {}", line(&regret));
    println!("  other choices: {other_choices:?}");
    for (what, found, (mean, p99)) in
        [("chosen", &chosen, bounds.chosen), ("top", &top, bounds.top)]
    {
        assert!(found.mean() < mean, "{what}: mean {} is not below {mean}", found.mean());
        assert!(found.quantile(0.99) < p99, "{what}: p99 {}", found.quantile(0.99));
    }
    assert!(regret.quantile(1.0) < bounds.regret, "regret {}", regret.quantile(1.0));
}

#[test]
fn in_f32_every_step_is_the_references_but_for_the_rounding_of_the_weights() {
    // Found: chosen 0.0044 and 0.0244 (what fixtures/README.md states for the weights' rounding alone), top 0.0143
    // and 0.0700, regret 0.005.
    let bounds = Bounds { margin: 0.02, chosen: (0.005, 0.03), top: (0.017, 0.085), regret: 0.02 };
    keeps_to_the_reference(Precision::F32, &bounds);
}

#[test]
fn in_bf16_every_step_is_the_references_but_where_it_hardly_chose() {
    // Found: chosen 0.0081 and 0.048, top 0.026 and 0.130, regret 0.008.
    let bounds = Bounds { margin: 0.25, chosen: (0.012, 0.07), top: (0.04, 0.2), regret: 0.25 };
    keeps_to_the_reference(Precision::Bf16, &bounds);
}

/// Left to itself, token after token, until the first step where the reference's margin excuses another choice.
#[test]
fn generation_follows_the_reference_to_the_first_near_tie() {
    let Some(path) = real::file() else { return };
    for (precision, excuse) in [(Precision::F32, 0.02), (Precision::Bf16, 0.25)] {
        let (rt, model) = load(&path, precision);
        let golden: Greedy = fixture("greedy.json");
        let mut session = Session::new(&model.decoder, &rt, 700).unwrap();
        let mut followed = 0;
        for prompt in &golden.prompts {
            let options = GenerateOptions { max_tokens: 48, stop_tokens: &[], ignore_eos: true };
            let got = generate(&mut session, &prompt.tokens, &options, |_| true).unwrap();
            assert_eq!(got.tokens.len(), 48);
            let differs = (0..48).find(|i| got.tokens[*i] != prompt.greedy[*i]);
            if let Some(step) = differs {
                let margin = prompt.margins[step];
                assert!(margin < excuse, "{} step {step}: margin {margin}", prompt.name);
            }
            followed += differs.unwrap_or(48);
        }
        println!(
            "{precision}: {followed} of {} tokens as the reference's",
            golden.prompts.len() * 48
        );
    }
}

#[test]
fn prompts_get_the_references_ids_and_a_chat_ends_where_the_reference_ends_it() {
    const IM_END: u32 = 2;
    let Some(path) = real::file() else { return };
    let (rt, model) = load(&path, Precision::F32);
    assert!(model.stop_tokens.contains(&IM_END), "{:?}", model.stop_tokens);
    let golden: Greedy = fixture("greedy.json");
    let mut ended = 0;
    for prompt in &golden.prompts {
        assert_eq!(model.tokenizer.encode(&prompt.text, true).unwrap(), prompt.tokens);
        let end = prompt.greedy.iter().position(|id| *id == IM_END);
        let (Some(end), true) = (end, prompt.name.starts_with("chat")) else { continue };
        if prompt.margins[..=end].iter().any(|m| *m < 0.02) {
            continue;
        }
        let mut session = Session::new(&model.decoder, &rt, 200).unwrap();
        let stop_tokens = &model.stop_tokens;
        let options = GenerateOptions { max_tokens: 48, stop_tokens, ignore_eos: false };
        let got = generate(&mut session, &prompt.tokens, &options, |_| true).unwrap();
        assert_eq!(got.tokens, prompt.greedy[..=end], "{}", prompt.name);
        assert_eq!(got.finish_reason, FinishReason::Stop);
        ended += 1;
    }
    assert!(ended > 0, "no chat of the goldens ends");
}

#[test]
fn conversations_render_as_in_transformers() {
    let Some(path) = real::file() else { return };
    let tokenizer = l2_model::open_tokenizer(&path).unwrap();
    let golden: Value = fixture("chat.json");
    assert_eq!(tokenizer.chat_template(), golden["chat_template"].as_str());
    let template = l2_model::chat_template(&tokenizer).unwrap().unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
        let open = case["add_generation_prompt"].as_bool().unwrap();
        let text = template.render(&messages, open, &Map::new()).unwrap();
        assert_eq!(text, case["rendered"].as_str().unwrap(), "{}", case["name"]);
    }
}

#[test]
fn the_command_prints_the_references_text() {
    let Some(path) = real::file() else { return };
    let golden: Greedy = fixture("greedy.json");
    let capital = &golden.prompts[0];
    assert!(capital.margins[..5].iter().all(|m| *m > 0.25), "the prompt is no near tie");
    let output = Command::new(env!("CARGO_BIN_EXE_strata"))
        .args(["generate", "--max-tokens", "8", "--json", &capital.text, "--model"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let tokens: Vec<u32> = serde_json::from_value(answer["tokens"].clone()).unwrap();
    assert_eq!(tokens[..5], capital.greedy[..5]);
    assert!(answer["text"].as_str().unwrap().starts_with(" Paris."), "{answer}");
}
