//! Drafts that are drawn: tokens of their own, from the distribution of plain sampling.

use std::collections::HashMap;

use l2_model::{Batch, ContiguousState, Workspace, WorkspaceSpec};
use l4_sampler::{DrawKey, History, Row, Sampler, SamplingParams};
use l5_scheduler::engine::{EngineModel, EngineOptions};
use l5_scheduler::speculation::{DraftMethod, DraftSampleMethod, SpeculativeConfig, WindowMode};
use l5_scheduler::{EngineCore, ModelRunner, SchedulerStats};

use crate::chi_square::check_draws;
use crate::support::{Ask, ask, drawn, prompt, run};
use crate::tiny::{Tiny, tiny};

/// Number of requests whose outputs are counted, and of the tokens of each.
const REQUESTS: u64 = 6000;
const LEN: usize = 4;

fn fixture(name: &str) -> String {
    format!("{}/../fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// An engine that draws the drafts of this method and model.
fn options(method: DraftMethod, model: &str, drafts: usize, window: WindowMode) -> EngineOptions {
    let config = SpeculativeConfig {
        model: Some(fixture(model)),
        window,
        draft_sample_method: Some(DraftSampleMethod::Probabilistic),
        ..SpeculativeConfig::new(method, drafts)
    };
    EngineOptions {
        speculative: Some(config),
        max_model_len: Some(64),
        max_num_seqs: 24,
        max_num_batched_tokens: 64,
        block_size: 4,
        ..EngineOptions::default()
    }
}

fn engine(tiny: &Tiny, target: &str, options: &EngineOptions) -> EngineCore<ModelRunner> {
    let model = EngineModel::open_on(fixture(target).as_ref(), &tiny.rt).unwrap();
    let (core, startup) = model.core(options).unwrap();
    assert!(startup.to_string().contains("drawn"), "{startup}");
    core
}

/// Probabilities of the model behind some tokens, for requests with this prompt.
struct Exact<'a> {
    tiny: &'a Tiny,
    prompt: &'a [u32],
    params: &'a SamplingParams,
    sampler: Sampler,
}

impl Exact<'_> {
    fn behind(&mut self, output: &[u32]) -> Vec<(u32, f64)> {
        let Tiny { rt, decoder, .. } = self.tiny;
        let text = [self.prompt, output].concat();
        let (config, n) = (decoder.config(), text.len());
        let spec = WorkspaceSpec { max_tokens: n, max_rows: 1, max_context: n };
        let mut ws = Workspace::new(rt, config, spec).unwrap();
        let mut state = ContiguousState::new(config, 1, n, rt.activation_dtype()).unwrap();
        let batch = Batch {
            tokens: &text,
            positions: &(0..n as i32).collect::<Vec<_>>(),
            cu_seqlens_q: &[0, n as i32],
            state_slots: &[0],
            logit_rows: &[n as u32 - 1],
            ..Batch::default()
        };
        decoder.forward(&batch, &mut state, &mut ws).unwrap();
        let mut history = History::new(self.prompt, LEN);
        output.iter().for_each(|token| history.push(*token));
        let key = DrawKey { seed: 0, sample: 0, position: 0 };
        let row = Row { params: self.params, history: &history, ends: &[], mask: None, key };
        let logits = ws.logits(1).unwrap().to_vec_f32().unwrap();
        self.sampler.distribution(&logits, &row).unwrap().iter().collect()
    }

    /// All outputs of `len` tokens, with their probabilities.
    fn outputs(&mut self, len: usize) -> Outputs {
        let mut outputs = vec![(Vec::new(), 1.0)];
        for _ in 0..len {
            let longer = outputs.into_iter().flat_map(|(output, p): (Vec<u32>, f64)| {
                let next = self.behind(&output);
                next.into_iter().map(move |(token, q)| ([&output[..], &[token]].concat(), p * q))
            });
            outputs = longer.collect();
        }
        outputs
    }
}

/// Outputs with their probabilities.
type Outputs = Vec<(Vec<u32>, f64)>;

/// Runs many requests with one prompt and different seeds. Returns their outputs, the exact distribution of the first
/// `len` tokens, and the counts of the scheduler.
fn outputs(
    target: &str,
    options: &EngineOptions,
    params: &SamplingParams,
    len: usize,
) -> (Vec<Vec<u32>>, Outputs, SchedulerStats) {
    let (tiny, prompt) = (tiny(target), prompt(1, 6));
    let sampler = Sampler::new(&tiny.rt, tiny.vocab());
    let exact = Exact { tiny: &tiny, prompt: &prompt, params, sampler }.outputs(len);
    let mut core = engine(&tiny, target, options);
    let one = Ask::greedy(&prompt, LEN).with(params.clone());
    let ears: Vec<_> = (0..REQUESTS)
        .map(|id| ask(&mut core, id, &one.clone().seeded(id, id as u32 % 3)))
        .collect();
    run(&mut core);
    let outputs = ears.iter().map(|ear| ear.told().tokens).collect();
    (outputs, exact, core.scheduler().stats())
}

#[test]
fn whole_outputs_with_drawn_drafts_have_their_joint_distribution() {
    // The model drafts for itself, without the bias: it is right, and wrong.
    let logit_bias: Vec<_> = (0..300).step_by(2).map(|id| (id, -0.6)).collect();
    let few = |temperature| {
        let logit_bias = logit_bias.clone();
        SamplingParams { top_k: 4, logit_bias, ..drawn(temperature) }
    };
    let penalised = SamplingParams { frequency_penalty: 1.0, ..few(2.0) };
    for params in [few(2.0), few(1.5), penalised] {
        let model = "tiny-llama-linear";
        let options = options(DraftMethod::DraftModel, model, 2, WindowMode::Fixed);
        let (outputs, exact, stats) = outputs(model, &options, &params, LEN);
        let bins: HashMap<_, _> = exact.iter().enumerate().map(|(i, (o, _))| (&o[..], i)).collect();
        let mut counts = vec![0; exact.len()];
        outputs.iter().for_each(|output| counts[bins[&output[..]]] += 1);
        let probs: Vec<f64> = exact.iter().map(|(_, p)| *p).collect();
        let SamplingParams { temperature, frequency_penalty, .. } = params;
        let what = format!("temperature {temperature}, penalty {frequency_penalty}");
        check_draws(format!("{what}: {stats:?}"), &counts, &probs);
        let rejected = stats.draft_tokens - stats.accepted_tokens;
        assert!(stats.accepted_tokens.min(rejected) > REQUESTS / 4, "{stats:?}");
    }
}

#[test]
fn a_token_that_was_drafted_has_the_distribution_that_it_has_without_drafts() {
    for (method, model, target) in [
        (DraftMethod::DraftModel, "tiny-llama-yarn", "tiny-llama-linear"),
        (DraftMethod::Eagle, "draft-heads/eagle", "tiny-qwen2"),
        (DraftMethod::Eagle3, "draft-heads/eagle3", "tiny-llama-untied"),
        (DraftMethod::Medusa, "draft-heads/medusa", "tiny-llama-linear"),
    ] {
        let options = options(method, model, 2, WindowMode::Fixed);
        // Flat distributions, so that a head with random weights is right now and then. The first token comes from the
        // prompt, without a draft. The second one is drafted.
        let (outputs, exact, stats) = outputs(target, &options, &drawn(4.0), 2);
        let vocab = exact.iter().map(|(output, _)| output[1] as usize + 1).max().unwrap();
        let (mut probs, mut counts) = (vec![0.0; vocab], vec![0; vocab]);
        exact.iter().for_each(|(output, p)| probs[output[1] as usize] += p);
        outputs.iter().for_each(|output| counts[output[1] as usize] += 1);
        check_draws(format!("{model}: {stats:?}"), &counts, &probs);
        let rejected = stats.draft_tokens - stats.accepted_tokens;
        assert!(stats.accepted_tokens.min(rejected) > REQUESTS / 4, "{model}: {stats:?}");
    }
}

#[test]
fn a_model_that_drafts_for_itself_is_right_with_every_drawn_draft() {
    let model = "tiny-llama-linear";
    let plenty = options(DraftMethod::DraftModel, model, 4, WindowMode::Fixed);
    let scarce = EngineOptions {
        kv_memory: Some(l3_paged_kv::sizing::Budget::exact(32_000)),
        max_model_len: Some(40),
        ..plenty.clone()
    };
    let tiny = tiny(model);
    for (options, preempts) in [(plenty, false), (scarce, true)] {
        let mut core = engine(&tiny, model, &options);
        for id in 0..5 {
            let params = SamplingParams { top_k: 40, ..drawn(0.5 + 0.2 * id as f32) };
            let one = Ask::greedy(&prompt(id, 5 + 3 * id as usize), 16).with(params);
            // Two choices of one seed.
            ask(&mut core, u64::from(2 * id), &one.clone().seeded(u64::from(id), 0));
            ask(&mut core, u64::from(2 * id + 1), &one.seeded(u64::from(id), 1));
        }
        run(&mut core);
        let stats = core.scheduler().stats();
        assert!(stats.draft_tokens >= 5 * 9, "{stats:?}");
        assert_eq!(stats.accepted_tokens, stats.draft_tokens, "{stats:?}");
        assert_eq!(stats.preemptions > 0, preempts, "{stats:?}");
    }
}

#[test]
fn a_greedy_request_has_the_same_bits_beside_requests_with_drawn_drafts() {
    let target = "tiny-llama-linear";
    let tiny = tiny(target);
    for window in [WindowMode::Fixed, WindowMode::Adaptive] {
        let options = options(DraftMethod::DraftModel, "tiny-llama-yarn", 3, window);
        let mut core = engine(&tiny, target, &options);
        let asks: Vec<_> = (0..8)
            .map(|i| {
                let one = Ask::greedy(&prompt(i, 4 + 2 * i as usize), 20).seeded(u64::from(i), 0);
                if i % 2 == 0 { one } else { one.with(drawn(0.9)) }
            })
            .collect();
        let ears: Vec<_> = (0..).zip(&asks).map(|(id, one)| ask(&mut core, id, one)).collect();
        run(&mut core);
        for (ear, one) in ears.iter().zip(&asks) {
            let told = ear.told();
            assert_eq!(told.tokens.len(), 20);
            if one.params.is_greedy() {
                assert_eq!(told.tokens, tiny.solo(one, 64).tokens, "{window:?}");
            }
        }
    }
}
