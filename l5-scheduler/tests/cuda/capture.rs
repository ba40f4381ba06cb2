//! Steps that are replayed give the bits of steps that are not.

use std::sync::{Arc, Mutex};

use l1_tensor::Precision;
use l2_model::adapter::LoraAdapter;
use l4_sampler::draft::NgramDrafter;
use l4_sampler::stop::StopRules;
use l4_sampler::{LogprobsOf, SamplingParams};
use l5_scheduler::engine::{EngineModel, EngineOptions};
use l5_scheduler::speculation::{DraftMethod, SpeculativeConfig, WindowMode};
use l5_scheduler::{
    EngineCore, FinishReason, ModelRunner, RequestAdapter, Scheduler, SchedulerConfig,
    StepObserver, StepResult, StepView,
};

use crate::device;
use crate::support::{Ask, Ear, Rows, ask, drawn, penalised, prompt, rated, run};
use crate::tiny::{Tiny, on};

const WIDTHS: [usize; 3] = [1, 2, 4];

fn config(tiny: &Tiny, blocks: usize) -> SchedulerConfig {
    SchedulerConfig { max_num_seqs: 4, max_num_batched_tokens: 24, ..tiny.config(blocks) }
}

/// How a step was launched: rows, and the width that was replayed.
type Launched = (usize, Option<usize>);

/// How every step was launched.
#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<Launched>>>);

impl StepObserver for Steps {
    fn planned(&mut self, _step: &StepView<'_>, _scheduler: &Scheduler) {}

    fn applied(&mut self, result: &StepResult, _scheduler: &Scheduler) {
        if result.scheduled > 0 {
            self.0.lock().unwrap().push((result.scheduled, result.replayed));
        }
    }
}

/// What a run came to.
struct Ran {
    ears: Vec<Ear>,
    rows: Rows,
    steps: Vec<Launched>,
    preemptions: u64,
}

impl Ran {
    fn tokens(&self) -> Vec<Vec<u32>> {
        self.ears.iter().map(|ear| ear.told().tokens).collect()
    }
}

/// Requests, each from its own step on.
fn serve(
    tiny: &Tiny,
    asks: &[Ask],
    config: &SchedulerConfig,
    prepare: impl FnOnce(ModelRunner) -> ModelRunner,
) -> Ran {
    let (runner, rows) = tiny.tapped(config);
    let mut core = EngineCore::new(Scheduler::new(config.clone()).unwrap(), prepare(runner));
    let steps = Steps::default();
    core.set_observer(Some(Box::new(steps.clone())));
    let mut ears = Vec::new();
    for (id, of) in asks.iter().enumerate() {
        ears.push(ask(&mut core, id as u64, of));
        core.step().unwrap();
    }
    run(&mut core);
    for ear in &ears {
        assert_eq!(ear.told().finish(), Some(FinishReason::Length), "{:?}", ear.told().ends);
    }
    let steps = steps.0.lock().unwrap().clone();
    Ran { ears, rows, steps, preemptions: core.scheduler().stats().preemptions }
}

fn captured(mut runner: ModelRunner) -> ModelRunner {
    runner.capture_widths(WIDTHS.to_vec()).unwrap();
    runner
}

/// The same steps, filled up to the same widths, launched kernel by kernel.
fn eager(runner: ModelRunner) -> ModelRunner {
    runner.with_decode_widths(WIDTHS.to_vec())
}

/// Requests of several kinds, plain and not.
fn asks() -> Vec<Ask> {
    let few = SamplingParams { top_k: 20, top_p: 0.9, min_p: 0.02, ..drawn(0.8) };
    let rated = rated(drawn(0.9), LogprobsOf::Raw);
    let of = |which, len, max_tokens| {
        let ask = Ask::greedy(&prompt(which, len), max_tokens);
        Ask { stop: StopRules { ignore_eos: true, ..ask.stop.clone() }, ..ask }
    };
    vec![
        of(0, 9, 10),
        of(1, 3, 9).with(few).seeded(3, 0),
        of(2, 14, 7).with(penalised()).seeded(2, 0),
        of(3, 1, 6).with(rated).seeded(4, 1),
    ]
}

/// Nothing that filler stored shows either: whoever it belonged to would have other logits.
fn same_rows(what: &str, n: usize, got: &Rows, want: &Rows) {
    for id in 0..n as u64 {
        let (got, want) = (got.of(id), want.of(id));
        assert_eq!(got.len(), want.len(), "{what}: rows of logits of request {id}");
        for ((at, got), (_, want)) in got.iter().zip(&want) {
            let differ = got.iter().zip(want).filter(|(a, b)| a != b).count();
            assert_eq!(differ, 0, "{what}: logits of request {id}, place {at}, that differ");
        }
    }
}

#[test]
fn captured_steps_give_the_bits_of_eager_ones_and_are_counted() {
    for precision in [Precision::F32, Precision::Bf16] {
        let tiny = on("tiny-llama", device(precision, false));
        let (asks, config) = (asks(), config(&tiny, 64));
        let replayed = serve(&tiny, &asks, &config, captured);
        let eager = serve(&tiny, &asks, &config, eager);
        assert_eq!(replayed.tokens(), eager.tokens(), "{precision}: tokens, replayed and eager");
        same_rows("replayed and eager", asks.len(), &replayed.rows, &eager.rows);
        assert!(eager.steps.iter().all(|(_, width)| width.is_none()), "{:?}", eager.steps);
        let widths: Vec<_> = replayed.steps.iter().filter_map(|(_, width)| *width).collect();
        assert!(widths.contains(&4) && widths.contains(&2), "{:?}", replayed.steps);
        for (rows, width) in &replayed.steps {
            let next = WIDTHS.iter().copied().find(|width| width >= rows);
            assert!(width.is_none() || *width == next, "{rows} rows in a step of {width:?}");
        }
    }
}

/// The weights of an adapter are at addresses of their own, so a recording does not know them.
#[test]
fn a_step_with_an_adapter_is_not_replayed_and_has_the_bits_of_an_eager_one() {
    let tiny = on("tiny-llama", device(Precision::Bf16, true));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/adapters/tiny-llama-all");
    let weights = LoraAdapter::open(&tiny.rt, path.as_ref(), tiny.decoder.config(), 8).unwrap();
    let adapter = RequestAdapter { name: "all".to_owned(), weights: Arc::new(weights) };
    let (mut asks, config) = (asks(), config(&tiny, 64));
    // The second request has it, and ends before the others.
    asks[1].adapter = Some(adapter);
    asks[1].stop.max_tokens = 4;
    let prepare = |runner: ModelRunner| runner.with_adapters(Some(8)).unwrap();
    let plain = serve(&tiny, &asks, &config, prepare);
    let replayed = serve(&tiny, &asks, &config, |runner| captured(prepare(runner)));
    assert_eq!(replayed.tokens(), plain.tokens());
    same_rows("with captured steps", asks.len(), &replayed.rows, &plain.rows);
    let widths = |steps: &[Launched]| steps.iter().filter(|(_, width)| width.is_some()).count();
    assert!(widths(&replayed.steps) > 0, "steps without it are replayed: {:?}", replayed.steps);
    asks[1].adapter = None;
    let all = serve(&tiny, &asks, &config, captured);
    assert!(widths(&all.steps) > widths(&replayed.steps), "{:?}", replayed.steps);
    assert_ne!(all.tokens()[1], replayed.tokens()[1]);
    assert_eq!(all.tokens()[0], replayed.tokens()[0]);
}

#[test]
fn steps_with_drafts_are_replayed_and_give_the_bits_of_steps_without() {
    let tiny = on("tiny-llama", device(Precision::Bf16, true));
    // Texts that repeat, so that drafts are found.
    let mut asks = asks();
    for (ask, len) in asks.iter_mut().zip(2..) {
        ask.prompt = prompt(0, len).repeat(4);
        ask.stop.max_tokens = 40;
    }
    let plain = config(&tiny, 64);
    let want = serve(&tiny, &asks, &plain, captured);
    let config = SchedulerConfig { num_speculative_tokens: 3, ..plain };
    let got = serve(&tiny, &asks, &config, |runner| {
        let drafter = Box::new(NgramDrafter::new(1, 2).unwrap());
        let mut runner = runner.with_drafter(drafter, 3, WindowMode::Fixed);
        runner.capture_widths(vec![1, 2, 4, 6, 8]).unwrap();
        runner
    });
    assert_eq!(got.tokens(), want.tokens());
    same_rows("with drafts and without", asks.len(), &got.rows, &want.rows);
    let wider = |(rows, width): &&Launched| width.is_some_and(|w| w > rows.next_power_of_two());
    assert!(
        got.steps.iter().filter(wider).count() > 2,
        "steps with drafts that were replayed: {:?}",
        got.steps
    );
    assert!(got.steps.len() < want.steps.len(), "drafts were accepted");
}

#[test]
fn heads_draft_on_the_device_and_change_no_token() {
    let fixture = |name: &str| format!("{}/../fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    for (method, head, target) in [
        (DraftMethod::Eagle, "eagle", "tiny-qwen2"),
        (DraftMethod::Eagle3, "eagle3", "tiny-llama-untied"),
        (DraftMethod::Medusa, "medusa", "tiny-llama-linear"),
    ] {
        let rt = device(Precision::F32, true);
        let outputs = |speculative: Option<SpeculativeConfig>| {
            let options = EngineOptions {
                speculative,
                max_model_len: Some(64),
                max_num_seqs: 2,
                max_num_batched_tokens: 16,
                ..EngineOptions::default()
            };
            let model = EngineModel::open_on(fixture(target).as_ref(), &rt).unwrap();
            let mut core = model.core(&options).unwrap().0;
            let asks = [Ask::greedy(&prompt(0, 20), 8), Ask::greedy(&prompt(1, 5), 12)];
            let ears: Vec<_> =
                asks.iter().zip(0..).map(|(of, id)| ask(&mut core, id, of)).collect();
            run(&mut core);
            let tokens: Vec<_> = ears.iter().map(|ear| ear.told().tokens).collect();
            (tokens, core.scheduler().stats().draft_tokens)
        };
        let model = Some(fixture(&format!("draft-heads/{head}")));
        let window = WindowMode::Fixed;
        let config = SpeculativeConfig { model, window, ..SpeculativeConfig::new(method, 2) };
        let ((want, _), (got, drafts)) = (outputs(None), outputs(Some(config)));
        assert_eq!(got, want, "{head}");
        assert!(drafts > 10, "{head}: {drafts} drafts");
    }
}

#[test]
fn tokens_in_f32_are_those_of_a_cpu() {
    let (asks, there) = (asks(), on("tiny-llama", device(Precision::F32, false)));
    let here = on("tiny-llama", crate::runtime::runtime(Precision::F32, 2));
    let config = config(&there, 64);
    let got = serve(&there, &asks, &config, captured);
    let want = serve(&here, &asks, &config, |runner| runner);
    assert_eq!(got.tokens(), want.tokens());
    for (got, want) in got.ears.iter().zip(&want.ears) {
        assert_eq!(got.told().text, want.told().text);
    }
}

#[test]
fn in_the_batch_invariant_mode_a_request_has_the_bits_it_has_alone() {
    let tiny = on("tiny-llama", device(Precision::Bf16, true));
    let (asks, config) = (asks(), config(&tiny, 64));
    let together = serve(&tiny, &asks, &config, captured);
    for (id, ask) in asks.iter().enumerate() {
        // Launched kernel by kernel, without filler, with nobody beside it.
        let alone = serve(&tiny, std::slice::from_ref(ask), &config, |runner| runner);
        assert_eq!(together.tokens()[id], alone.tokens()[0], "tokens of request {id}");
        let (got, want) = (together.rows.of(id as u64), alone.rows.of(0));
        assert_eq!(got.len(), want.len(), "rows of logits of request {id}");
        for ((at, got), (_, want)) in got.iter().zip(&want) {
            let differ = got.iter().zip(want).filter(|(a, b)| a != b).count();
            assert_eq!(differ, 0, "logits of request {id}, place {at}, that differ");
        }
    }
}

#[test]
fn whoever_gave_way_comes_back_to_the_same_bits() {
    let tiny = on("tiny-llama", device(Precision::F32, true));
    let asks = asks();
    let roomy = serve(&tiny, &asks, &config(&tiny, 64), captured);
    let crowded = serve(&tiny, &asks, &config(&tiny, 13), captured);
    assert_eq!(roomy.preemptions, 0);
    assert!(crowded.preemptions > 0, "a pool this small must be too small");
    assert_eq!(crowded.tokens(), roomy.tokens());
    same_rows("crowded and roomy", asks.len(), &crowded.rows, &roomy.rows);
}
