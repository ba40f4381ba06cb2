//! Whoever else is there, and whatever the schedule: an answer is the same to the last bit.

use std::sync::{Arc, Mutex};

use l1_tensor::Precision;
use l4_sampler::guide::GuideSpec;
use l4_sampler::{LogprobsOf, SamplingParams};
use l5_scheduler::{
    EngineCore, FinishReason, ModelRunner, PolicyKind, RequestId, Scheduler, SchedulerConfig,
    StepObserver, StepResult, StepRow, StepView,
};
use proptest::prelude::*;

use crate::runtime::runtime;
use crate::support::{Ask, Ear, MAX_LEN, Told, ask, drawn, penalised, prompt, rated, run};
use crate::tiny::{Tiny, on, tiny};

/// Every tiny model: grouped heads, windows, norms of heads, biases, stretched contexts.
const MODELS: [&str; 7] = [
    "tiny-llama",
    "tiny-llama-linear",
    "tiny-llama-untied",
    "tiny-llama-yarn",
    "tiny-mistral",
    "tiny-qwen2",
    "tiny-qwen3",
];

/// Requests of all kinds. Some begin alike, so that they find each other's blocks.
pub fn asks(tiny: &Tiny) -> Vec<Ask> {
    let shared = prompt(0, 24);
    let longer = [&shared[..], &prompt(5, 13)].concat();
    let few = SamplingParams { top_k: 20, min_p: 0.02, ..drawn(0.8) };
    let spec = GuideSpec::Regex("(red|green|blue), (red|green|blue) and [a-z]{3,12}!".into());
    vec![
        Ask::greedy(&shared, 20),
        Ask::greedy(&shared, 30).with(drawn(1.0)).seeded(1, 0),
        Ask::greedy(&shared, 30).with(drawn(1.0)).seeded(1, 1),
        Ask::greedy(&longer, 12).with(rated(few.clone(), LogprobsOf::Raw)).seeded(8, 0),
        Ask::greedy(&prompt(1, 3), 25).with(rated(penalised(), LogprobsOf::Processed)).seeded(2, 0),
        Ask { priority: -1, ..Ask::greedy(&prompt(2, 50), 8).with(few).seeded(3, 0) },
        Ask { priority: 2, ..Ask::greedy(&prompt(3, 1), 40).with(penalised()).seeded(4, 7) },
        Ask::greedy(&prompt(4, 17), 30).with(drawn(0.7)).seeded(5, 0).guided(tiny, &spec),
    ]
}

/// What a request is alone: tokens, text, log probabilities, and the rows of logits that its tokens were chosen from.
pub struct Alone {
    pub ask: Ask,
    pub tokens: Vec<u32>,
    text: String,
    logprobs: Vec<l4_sampler::TokenLogprobs>,
    rows: Vec<(usize, Vec<u32>)>,
}

/// Alone twice: over blocks with the whole pool to itself, and on the layer below, without blocks or scheduler.
pub fn alone(tiny: &Tiny, ask_of: Ask) -> Alone {
    let config = tiny.config(64);
    let (runner, rows) = tiny.tapped(&config);
    let mut core = EngineCore::new(Scheduler::new(config).unwrap(), runner);
    let ear = ask(&mut core, 0, &ask_of);
    run(&mut core);
    let (told, choice) = (ear.told(), tiny.solo(&ask_of, MAX_LEN));
    assert_eq!(told.tokens, choice.tokens, "tokens, scheduled and from the layer below");
    assert_eq!(told.logprobs, choice.logprobs, "log probabilities, scheduled and from below");
    assert_eq!(told.text, choice.text, "text, scheduled and from the layer below");
    assert_eq!(told.ends[0].stop, Some(choice.reason), "why it ended");
    let Told { tokens, text, logprobs, .. } = told;
    Alone { ask: ask_of, tokens, text, logprobs, rows: rows.of(0) }
}

/// Keeps the rows of every step.
#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<Vec<StepRow>>>>);

impl StepObserver for Steps {
    fn planned(&mut self, step: &StepView<'_>, _scheduler: &Scheduler) {
        self.0.lock().unwrap().push(step.step().rows.clone());
    }

    fn applied(&mut self, _result: &StepResult, _scheduler: &Scheduler) {}
}

/// Who comes when, and who leaves before the end: (which request, at which step, aborted how many steps later).
pub type Arrivals = Vec<(usize, usize, Option<usize>)>;

/// What a run had of what makes runs differ.
#[derive(Debug, Default)]
pub struct Seen {
    pub preemptions: u64,
    cached: u64,
    mixed: usize,
    exhausted: usize,
    pub drafts: u64,
    pub accepted: u64,
}

/// Run a mix, and compare everybody with what they are alone.
fn mixed(
    tiny: &Tiny,
    alone: &[Alone],
    config: SchedulerConfig,
    arrivals: &Arrivals,
    widths: Vec<usize>,
) -> Seen {
    mixed_with(tiny, alone, config, arrivals, |runner| runner.with_decode_widths(widths))
}

/// The same, with a runner that is set up.
pub fn mixed_with(
    tiny: &Tiny,
    alone: &[Alone],
    config: SchedulerConfig,
    arrivals: &Arrivals,
    set_up: impl FnOnce(ModelRunner) -> ModelRunner,
) -> Seen {
    let (runner, rows) = tiny.tapped(&config);
    let runner = set_up(runner);
    let mut core = EngineCore::new(Scheduler::new(config).unwrap(), runner);
    let steps = Steps::default();
    core.set_observer(Some(Box::new(steps.clone())));
    let mut ears: Vec<Option<Ear>> = vec![None; arrivals.len()];
    for step in 0.. {
        assert!(step < 5_000, "a run without end: {:?}", core.scheduler());
        for (id, (which, from, aborted)) in arrivals.iter().enumerate() {
            if *from == step {
                ears[id] = Some(ask(&mut core, id as u64, &alone[*which].ask));
            }
            if aborted.is_some_and(|later| from + later == step) {
                core.abort(RequestId(id as u64));
            }
        }
        if !core.has_unfinished() && arrivals.iter().all(|(_, from, _)| *from <= step) {
            break;
        }
        core.step().unwrap();
    }
    let mut seen = Seen::default();
    for (id, ((which, ..), ear)) in arrivals.iter().zip(&ears).enumerate() {
        let (want, told) = (&alone[*which], ear.as_ref().unwrap().told());
        let what = format!("request {id} ({which} of the kinds)");
        let n = told.tokens.len();
        match told.finish() {
            Some(FinishReason::Aborted) => {}
            Some(FinishReason::KvExhausted) => seen.exhausted += 1,
            Some(FinishReason::Stop | FinishReason::Length) => {
                assert_eq!(told.text, want.text, "{what}: text, in the mix and alone");
                assert_eq!(n, want.tokens.len(), "{what}: number of tokens, in the mix and alone");
            }
            other => panic!("{what} ended with {other:?}: {:?}", told.ends),
        }
        assert_eq!(told.tokens, want.tokens[..n], "{what}: tokens, in the mix and alone");
        assert!(want.text.starts_with(&told.text), "{what}: text, in the mix and alone");
        let rated = told.logprobs.len();
        assert_eq!(told.logprobs, want.logprobs[..rated], "{what}: log probabilities");
        let own = rows.of(id as u64);
        for ((at, got), (want_at, want)) in own.iter().zip(&want.rows) {
            assert_eq!(at, want_at, "{what}: the place whose logits were looked at");
            let differ = got.iter().zip(want).filter(|(a, b)| a != b).count();
            assert_eq!(differ, 0, "{what}: logits of place {at} that differ in their bits");
        }
    }
    let manager = core.scheduler().blocks();
    assert_eq!(manager.num_free(), core.scheduler().config().capacity(), "free blocks at the end");
    let stats = core.scheduler().stats();
    (seen.preemptions, seen.cached) = (stats.preemptions, stats.cached_tokens);
    (seen.drafts, seen.accepted) = (stats.draft_tokens, stats.accepted_tokens);
    let steps = steps.0.lock().unwrap();
    let is_mixed = |rows: &&Vec<StepRow>| {
        rows.iter().any(|row| row.len > 1)
            && rows.iter().any(|row| row.len == 1 && row.computed > 0)
    };
    seen.mixed = steps.iter().filter(is_mixed).count();
    seen
}

/// Everybody at once, over a pool that is too small for them, in chunks: with all that makes runs differ.
pub fn crowded(tiny: &Tiny) -> (SchedulerConfig, Arrivals) {
    let config = SchedulerConfig {
        max_num_batched_tokens: 24,
        long_prefill_token_threshold: 7,
        ..tiny.config(26)
    };
    let arrivals = (0..8).map(|i| (i, 3 * i, (i == 6).then_some(9))).collect();
    (config, arrivals)
}

#[test]
fn a_mix_of_everything_gives_every_request_the_bits_it_has_alone() {
    for model in MODELS {
        let tiny = tiny(model);
        let alone: Vec<_> = asks(&tiny).into_iter().map(|ask| alone(&tiny, ask)).collect();
        let (config, arrivals) = crowded(&tiny);
        let seen = mixed(&tiny, &alone, config, &arrivals, vec![]);
        assert!(seen.mixed > 0, "{model}: steps with a prefill and a decode: {seen:?}");
        assert!(seen.preemptions > 0, "{model}: somebody gives way: {seen:?}");
        assert!(seen.cached > 0, "{model}: somebody finds blocks of others: {seen:?}");
    }
}

#[test]
fn in_bf16_and_on_other_numbers_of_threads_too() {
    for threads in [1, 3] {
        let tiny = on("tiny-llama", runtime(Precision::Bf16, threads));
        let alone: Vec<_> = asks(&tiny).into_iter().map(|ask| alone(&tiny, ask)).collect();
        let (config, arrivals) = crowded(&tiny);
        mixed(&tiny, &alone, config, &arrivals, vec![]);
    }
}

#[test]
fn a_step_that_is_filled_up_to_a_width_gives_the_same_bits() {
    let tiny = tiny("tiny-llama");
    let alone: Vec<_> = asks(&tiny).into_iter().map(|ask| alone(&tiny, ask)).collect();
    let (config, arrivals) = crowded(&tiny);
    mixed(&tiny, &alone, config, &arrivals, vec![1, 2, 4, 8]);
}

#[test]
fn samples_of_one_prompt_share_its_blocks() {
    let tiny = tiny("tiny-llama");
    let config = tiny.config(64);
    let mut core = tiny.core(&config);
    let of = |sample| Ask::greedy(&prompt(1, 30), 10).with(drawn(1.1)).seeded(6, sample);
    let ears: Vec<_> = (0..4).map(|i| ask(&mut core, i, &of(i as u32))).collect();
    core.step().unwrap();
    // Seven whole blocks are the first one's and everybody's; what is behind them is each one's own.
    assert_eq!(core.scheduler().stats().cached_tokens, 3 * 28, "tokens that were found");
    assert_eq!(core.scheduler().stats().scheduled_tokens, 30 + 3 * 2, "tokens that were computed");
    run(&mut core);
    for (ear, i) in ears.iter().zip(0..) {
        assert_eq!(ear.told().tokens, tiny.solo(&of(i), MAX_LEN).tokens, "tokens of sample {i}");
    }
}

pub fn config(tiny: &Tiny) -> impl Strategy<Value = SchedulerConfig> + use<> {
    let base = tiny.config(64);
    let sizes = (prop_oneof![Just(4usize), Just(8), Just(16)], 24..80usize, 1..8usize);
    let shares = (8..64usize, prop_oneof![Just(0usize), 1..20usize], any::<bool>(), any::<bool>());
    let policy = prop::sample::select(PolicyKind::ALL.to_vec());
    (sizes, shares, policy, any::<bool>()).prop_map(move |(sizes, shares, policy, whole)| {
        let (block_size, slots, max_num_seqs) = sizes;
        let (budget, threshold, adaptive, caching) = shares;
        let (block_size, least) = (block_size, MAX_LEN.div_ceil(block_size) / 2 + 4);
        SchedulerConfig {
            policy,
            block_size,
            num_gpu_blocks: (slots * 4 / block_size).max(least),
            max_num_seqs,
            max_num_batched_tokens: budget.max(max_num_seqs),
            long_prefill_token_threshold: threshold,
            long_prefill_token_threshold_adaptive: adaptive,
            enable_prefix_caching: caching,
            scheduler_reserve_full_isl: whole,
            ..base.clone()
        }
    })
}

pub fn arrivals() -> impl Strategy<Value = Arrivals> {
    let one = (0..8usize, 0..40usize, prop::option::weighted(0.15, 0..30usize));
    prop::collection::vec(one, 1..12)
}

/// Checks forty cases.
pub fn for_any<S: Strategy>(cases: S, check: impl Fn(S::Value)) {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let ran = runner.run(&cases, |case| {
        check(case);
        Ok(())
    });
    if let Err(e) = ran {
        panic!("{e}");
    }
}

#[test]
fn any_mix_under_any_configuration_gives_the_same_bits() {
    let tiny = tiny("tiny-llama");
    let alone: Vec<_> = asks(&tiny).into_iter().map(|ask| alone(&tiny, ask)).collect();
    let widths = prop_oneof![Just(vec![]), Just(vec![2, 5, 8])];
    for_any((config(&tiny), arrivals(), widths), |(config, arrivals, widths)| {
        mixed(&tiny, &alone, config, &arrivals, widths);
    });
}
