//! Drafts, whatever they are, change no bit of an output.

use std::collections::HashMap;
use std::sync::Arc;

use l1_tensor::Precision;
use l4_sampler::draft::{DraftRow, Drafter, Drafts, NgramDrafter, SuffixDrafter, SuffixOptions};
use l4_sampler::guide::GuideSpec;
use l4_sampler::stop::StopRules;
use l4_sampler::{LogprobsOf, SamplingParams};
use l5_scheduler::engine::{EngineModel, EngineOptions, StartError};
use l5_scheduler::speculation::{DraftMethod, SpeculativeConfig, WindowMode};
use l5_scheduler::{EngineCore, ModelRunner, Scheduler, SchedulerConfig};
use proptest::prelude::*;

use crate::equality::{Alone, alone, arrivals, asks, config, crowded, for_any, mixed_with};
use crate::runtime::runtime;
use crate::support::{Apart, Ask, MAX_LEN, ask, drawn, penalised, prompt, rated, run};
use crate::tiny::{Tiny, on, tiny};

/// What a drafter proposes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// What the request will sample.
    Right,
    /// The same, with every third token replaced.
    Often,
    /// Any tokens: those of the model, and others.
    Garbage,
    /// What followed the last tokens before.
    Ngram,
    /// The same, in earlier outputs too.
    Suffix,
}

/// Knows every output, and proposes it, or something else.
pub struct Knowing {
    kind: Kind,
    /// Prompt and output of each request.
    outputs: Arc<[(Vec<u32>, Vec<u32>)]>,
    /// Prompt and number of output tokens of each slot.
    slots: HashMap<u32, (Vec<u32>, Vec<u32>)>,
    dice: u32,
}

impl Knowing {
    pub fn new(kind: Kind, alone: &[Alone]) -> Box<Self> {
        let outputs =
            alone.iter().map(|one| (one.ask.prompt.clone(), one.tokens.clone())).collect();
        Box::new(Self { kind, outputs, slots: HashMap::new(), dice: 1 })
    }

    fn roll(&mut self, sides: u32) -> u32 {
        self.dice = self.dice.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        (self.dice >> 12) % sides
    }
}

impl Drafter for Knowing {
    fn begin(&mut self, slot: u32, prompt: &[u32], _: Option<&str>, _: usize) {
        let before = self.slots.insert(slot, (prompt.to_vec(), Vec::new()));
        assert!(before.is_none(), "slot {slot} is begun twice");
    }

    fn extend(&mut self, slot: u32, tokens: &[u32]) {
        self.slots.get_mut(&slot).expect("a slot that was begun").1.extend_from_slice(tokens);
    }

    fn propose(&mut self, rows: &[DraftRow], out: &mut Drafts) {
        for row in rows {
            let (prompt, so_far) = &self.slots[&row.slot];
            let known =
                |(of, output): &&(Vec<u32>, Vec<u32>)| of == prompt && output.starts_with(so_far);
            let output =
                self.outputs.iter().find(known).map(|(_, output)| output[so_far.len()..].to_vec());
            let output = output.unwrap_or_default();
            for i in 0..row.most {
                let right = output.get(i).copied().unwrap_or(7);
                let hit = match self.kind {
                    Kind::Right => true,
                    Kind::Often => self.roll(3) > 0,
                    Kind::Garbage | Kind::Ngram | Kind::Suffix => false,
                };
                let token = if hit { right } else { self.roll(560) };
                out.push(token, 3);
            }
            out.end_row();
        }
    }

    fn end(&mut self, slot: u32) {
        assert!(self.slots.remove(&slot).is_some(), "slot {slot} ends once");
    }
}

fn speculating(config: SchedulerConfig, drafts: usize) -> SchedulerConfig {
    SchedulerConfig { num_speculative_tokens: drafts, ..config }
}

fn with(
    kind: Kind,
    alone: &[Alone],
    drafts: usize,
    window: WindowMode,
) -> impl FnOnce(ModelRunner) -> ModelRunner {
    let drafter: Box<dyn Drafter> = match kind {
        Kind::Ngram => Box::new(NgramDrafter::new(1, 3).unwrap()),
        Kind::Suffix => Box::new(SuffixDrafter::new(SuffixOptions::default())),
        _ => Knowing::new(kind, alone),
    };
    move |runner| runner.with_drafter(drafter, drafts, window)
}

#[test]
fn any_drafts_give_every_request_the_bits_it_has_without() {
    for model in ["tiny-llama", "tiny-mistral", "tiny-qwen3"] {
        let tiny = tiny(model);
        let alone: Vec<_> = asks(&tiny).into_iter().map(|ask| alone(&tiny, ask)).collect();
        let mut preemptions = 0;
        for drafts in [1, 3, 8] {
            for kind in [Kind::Right, Kind::Often, Kind::Garbage] {
                let (config, arrivals) = crowded(&tiny);
                let config = speculating(config, drafts);
                let seen = mixed_with(
                    &tiny,
                    &alone,
                    config,
                    &arrivals,
                    with(kind, &alone, drafts, WindowMode::Fixed),
                );
                let what = format!("{model}, {drafts} drafts, {kind:?}: {seen:?}");
                assert!(seen.drafts > 0, "{what}");
                assert!(kind == Kind::Garbage || seen.accepted > 0, "{what}");
                preemptions += seen.preemptions;
            }
        }
        assert!(preemptions > 0, "{model}: requests with drafts are preempted");
    }
}

#[test]
fn drafts_in_bf16_on_other_numbers_of_threads_change_nothing_either() {
    for threads in [1, 3] {
        let tiny = on("tiny-llama", runtime(Precision::Bf16, threads));
        let alone: Vec<_> = asks(&tiny).into_iter().map(|ask| alone(&tiny, ask)).collect();
        let (config, arrivals) = crowded(&tiny);
        let set_up = with(Kind::Often, &alone, 4, WindowMode::Fixed);
        mixed_with(&tiny, &alone, speculating(config, 4), &arrivals, set_up);
    }
}

#[test]
fn drafts_as_rows_of_padded_decode_steps_change_nothing_either() {
    for model in ["tiny-llama", "tiny-mistral"] {
        let tiny = tiny(model);
        let alone: Vec<_> = asks(&tiny).into_iter().map(|ask| alone(&tiny, ask)).collect();
        let (config, arrivals) = crowded(&tiny);
        let set_up = with(Kind::Often, &alone, 4, WindowMode::Fixed);
        let seen = mixed_with(&tiny, &alone, speculating(config, 4), &arrivals, |runner| {
            set_up(runner).with_decode_widths(vec![2, 5, 8, 12])
        });
        assert!(seen.accepted > 0, "{seen:?}");
    }
}

#[test]
fn any_mix_with_any_drafts_gives_the_same_bits() {
    let tiny = tiny("tiny-llama");
    let alone: Vec<_> = asks(&tiny).into_iter().map(|ask| alone(&tiny, ask)).collect();
    let kinds = [Kind::Right, Kind::Often, Kind::Garbage, Kind::Ngram, Kind::Suffix];
    let kinds = prop::sample::select(kinds.to_vec());
    let window = prop::sample::select(vec![WindowMode::Fixed, WindowMode::Adaptive]);
    let cases =
        (config(&tiny), arrivals(), kinds, window, 0..=8usize, prop::option::of(0..12usize));
    for_any(cases, |(config, arrivals, kind, window, drafts, all)| {
        let config = SchedulerConfig { max_num_step_drafts: all, ..speculating(config, drafts) };
        mixed_with(&tiny, &alone, config, &arrivals, with(kind, &alone, drafts.max(1), window));
    });
}

/// Runs one request beside nothing, with right drafts. Returns the number of steps, and the counts of its drafts.
fn steps_with_right_drafts(
    tiny: &Tiny,
    one: &Ask,
    drafts: usize,
) -> (u64, l5_scheduler::DraftCounts) {
    let want = alone(tiny, one.clone());
    let config = speculating(tiny.config(64), drafts);
    let runner = with(Kind::Right, std::slice::from_ref(&want), drafts, WindowMode::Fixed)(
        tiny.runner(&config),
    );
    let mut core = EngineCore::new(Scheduler::new(config).unwrap(), runner);
    let ear = ask(&mut core, 0, one);
    run(&mut core);
    assert_eq!(ear.told().tokens, want.tokens);
    (core.scheduler().stats().steps, ear.told().ends[0].drafts)
}

#[test]
fn right_drafts_make_several_tokens_a_step_of_every_kind_of_request() {
    let tiny = tiny("tiny-llama");
    let spec = GuideSpec::Regex("(red|green|blue), (red|green|blue) and [a-z]{30}!".into());
    let plain = Ask::greedy(&prompt(0, 9), 31);
    let requests = [
        ("greedy", plain.clone(), 31),
        ("sampled", plain.clone().with(drawn(1.0)).seeded(3, 1), 31),
        (
            "penalties",
            plain.clone().with(rated(penalised(), LogprobsOf::Processed)).seeded(5, 0),
            31,
        ),
        ("guided", plain.with(rated(drawn(1.0), LogprobsOf::Raw)).guided(&tiny, &spec), 0),
    ];
    for (what, one, tokens) in requests {
        let tokens = if tokens == 0 { alone(&tiny, one.clone()).tokens.len() } else { tokens };
        let (steps, counts) = steps_with_right_drafts(&tiny, &one, 4);
        // One token with the prompt; then five in each step.
        let want = 1 + (tokens as u64 - 1).div_ceil(5);
        assert!(steps <= want + 1, "{what}: {steps} steps for {tokens} tokens");
        assert!(
            counts.accepted <= counts.proposed && counts.accepted >= (tokens - 1) * 4 / 5 - 4,
            "{what}: {counts:?}"
        );
    }
}

#[test]
fn a_request_that_wants_no_drafts_has_none() {
    let tiny = tiny("tiny-llama");
    let config = speculating(tiny.config(64), 4);
    let asks: Vec<_> = (0..2).map(|i| Ask::greedy(&prompt(i, 9), 20)).collect();
    let alone: Vec<_> = asks.iter().map(|ask| alone(&tiny, ask.clone())).collect();
    let runner = with(Kind::Right, &alone, 4, WindowMode::Fixed)(tiny.runner(&config));
    let mut apart = Apart::new(&config, runner);
    apart.ask(0, &asks[0]);
    apart.ask(1, &Ask { max_drafts: Some(1), ..asks[1].clone() });
    let ear = apart.ask(2, &Ask { max_drafts: Some(0), ..asks[1].clone() });
    let mut most = [0; 3];
    while apart.scheduler.has_unfinished() {
        for row in apart.step() {
            let most = &mut most[row.id.0 as usize];
            *most = (*most).max(row.drafts);
        }
    }
    assert_eq!(most, [4, 1, 0], "drafts in a step of each request");
    assert_eq!(ear.told().tokens, tiny.solo(&asks[1], MAX_LEN).tokens);
    assert_eq!(ear.told().ends[0].drafts, l5_scheduler::DraftCounts::default());
}

/// Engine options with a draft model of the fixtures.
fn drafted_by(model: &str, drafts: usize, window: WindowMode) -> EngineOptions {
    let path = format!("{}/../fixtures/{model}", env!("CARGO_MANIFEST_DIR"));
    let config = SpeculativeConfig::new(DraftMethod::DraftModel, drafts);
    EngineOptions {
        speculative: Some(SpeculativeConfig { model: Some(path), window, ..config }),
        max_model_len: Some(MAX_LEN),
        max_num_seqs: 3,
        max_num_batched_tokens: 32,
        block_size: 4,
        ..EngineOptions::default()
    }
}

/// Runs requests on an engine with a draft model or head, and compares their outputs with those without.
pub fn run_drafted(
    target: &str,
    options: &EngineOptions,
    asks: &[Ask],
) -> l5_scheduler::SchedulerStats {
    let tiny = on(target, runtime(Precision::Bf16, 2));
    let path = format!("{}/../fixtures/{target}", env!("CARGO_MANIFEST_DIR"));
    let model = EngineModel::open_on(path.as_ref(), &tiny.rt).unwrap();
    let (mut core, startup) = model.core(options).unwrap();
    let method = options.speculative.as_ref().unwrap().method.name();
    assert!(startup.to_string().contains(method), "{startup}");
    let ears: Vec<_> = asks.iter().zip(0..).map(|(one, id)| ask(&mut core, id, one)).collect();
    run(&mut core);
    for (i, (ear, one)) in ears.iter().zip(asks).enumerate() {
        let alone = tiny.solo(one, MAX_LEN);
        assert_eq!(ear.told().tokens, alone.tokens, "request {i}: tokens");
        assert_eq!(ear.told().logprobs, alone.logprobs, "request {i}: log probabilities");
    }
    core.scheduler().stats()
}

/// More requests than seats, of several kinds.
pub fn various() -> Vec<Ask> {
    let kinds = [SamplingParams::greedy(), drawn(0.8), rated(penalised(), LogprobsOf::Raw)];
    let of = |i: u32| {
        Ask::greedy(&prompt(i, 5 + 9 * i as usize), 30).with(kinds[i as usize % 3].clone())
    };
    (0..7).map(|i| of(i).seeded(u64::from(i), i)).collect()
}

#[test]
fn a_draft_model_that_is_the_model_itself_is_right_with_every_greedy_draft() {
    let greedy: Vec<_> = (0..5).map(|i| Ask::greedy(&prompt(i, 5 + 17 * i as usize), 16)).collect();
    let options = drafted_by("tiny-llama-linear", 4, WindowMode::Fixed);
    let stats = run_drafted("tiny-llama-linear", &options, &greedy);
    assert!(stats.draft_tokens >= 5 * 9, "{stats:?}");
    assert_eq!(stats.accepted_tokens, stats.draft_tokens, "{stats:?}");
}

#[test]
fn a_draft_that_ends_the_output_is_an_accepted_one() {
    let model = "tiny-llama-linear";
    let options = drafted_by(model, 3, WindowMode::Fixed);
    let tiny = on(model, runtime(Precision::Bf16, 2));
    let plain = Ask::greedy(&prompt(1, 9), 16);
    let output = tiny.solo(&plain, MAX_LEN).tokens;
    // The first token comes from the prompt. Then steps have three drafts and a token behind them.
    for (end, accepted) in [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4)] {
        assert!(!output[..end].contains(&output[end]), "{output:?}");
        let stop = StopRules { token_ids: vec![output[end]], ..plain.stop.clone() };
        let one = Ask { stop, ..plain.clone() };
        let stats = run_drafted(model, &options, &[one]);
        assert_eq!(stats.accepted_tokens, accepted, "{end}: {stats:?}");
    }
}

#[test]
fn drafts_of_another_model_change_no_output() {
    for window in [WindowMode::Fixed, WindowMode::Adaptive] {
        let options = drafted_by("tiny-llama-yarn", 3, window);
        let stats = run_drafted("tiny-llama-linear", &options, &various());
        assert!(stats.draft_tokens > 0, "{stats:?}");
    }
}

#[test]
fn drafts_of_a_model_whose_sequences_are_evicted_change_no_output() {
    // A pool for little more than one request. Whether another model's drafts are ever right is chance.
    for (model, some_right) in [("tiny-llama-yarn", false), ("tiny-llama-linear", true)] {
        let options = EngineOptions {
            kv_memory: Some(l3_paged_kv::sizing::Budget::exact(32_000)),
            ..drafted_by(model, 3, WindowMode::Fixed)
        };
        let stats = run_drafted("tiny-llama-linear", &options, &various());
        assert!(stats.preemptions > 0 && stats.draft_tokens > 0, "{stats:?}");
        assert!(stats.accepted_tokens > 0 || !some_right, "{stats:?}");
    }
}

#[test]
fn a_draft_model_with_another_vocabulary_is_an_error_that_says_so() {
    for (model, why) in [
        ("tiny-qwen2", "the draft model cannot be used: it has 351 tokens, and the model has 325"),
        ("no-such-model", "cannot use `model` of the speculative config"),
    ] {
        let options = drafted_by(model, 3, WindowMode::Fixed);
        let path = format!("{}/../fixtures/tiny-llama-linear", env!("CARGO_MANIFEST_DIR"));
        let target = EngineModel::open_on(path.as_ref(), &runtime(Precision::F32, 1)).unwrap();
        let error = target.core(&options).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(why), "{model}: {error}");
        assert!(model != "tiny-qwen2" || matches!(error, StartError::Speculation(_)), "{error:?}");
    }
}

/// Steps before the first one at which two tokens are nearly as likely, so that rounding decides.
fn decided(margins: &[f64]) -> usize {
    margins.iter().take_while(|margin| **margin > 2e-3).count()
}

#[test]
fn greedy_outputs_with_lookup_are_those_of_transformers_with_lookup() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/drafts/prompt_lookup.json");
    let cases: Vec<serde_json::Value> =
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let (mut compared, mut steps, mut passes) = (0, 0, 0);
    for case in &cases {
        let list = |name: &str| case[name].as_array().unwrap().iter();
        let ids = |name| list(name).map(|id| id.as_u64().unwrap() as u32).collect::<Vec<_>>();
        let margins: Vec<_> = list("margins").map(|margin| margin.as_f64().unwrap()).collect();
        let tiny = tiny(case["model"].as_str().unwrap());
        let (prompt, tokens) = (ids("prompt"), ids("tokens"));
        let config = speculating(tiny.config(64), 5);
        let drafter = NgramDrafter::new(1, 2).unwrap();
        let runner = tiny.runner(&config).with_drafter(Box::new(drafter), 5, WindowMode::Fixed);
        let mut core = EngineCore::new(Scheduler::new(config).unwrap(), runner);
        let ear = ask(&mut core, 0, &Ask::greedy(&prompt, tokens.len()));
        run(&mut core);
        let known = decided(&margins);
        assert_eq!(ear.told().tokens[..known], tokens[..known], "{} {prompt:?}", case["model"]);
        compared += known;
        steps += core.scheduler().stats().steps;
        passes += case["passes"].as_u64().unwrap();
    }
    assert!(compared > 300, "{compared} tokens");
    assert!(steps.abs_diff(passes) < 10, "{steps} steps, and {passes} of transformers");
}
