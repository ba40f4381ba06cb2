//! A steady decode step of the whole loop allocates nothing: counted, with an allocator that counts.

#[path = "../../l1-tensor/tests/support/counting.rs"]
mod counting;
#[path = "../../l1-tensor/tests/support/runtime.rs"]
mod runtime;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use counting::fewest_allocations;
use l1_tensor::{DType, Precision};
use l2_model::ModelFiles;
use l4_sampler::SamplingParams;
use l4_sampler::draft::NgramDrafter;
use l4_sampler::stop::StopRules;
use l5_scheduler::engine::{EngineModel, EngineOptions};
use l5_scheduler::speculation::{DraftMethod, DraftSampleMethod, SpeculativeConfig, WindowMode};
use l5_scheduler::{
    Adapter, ChoiceJob, Compose, EngineCore, Job, ModelRunner, OutputEnd, OutputSink, Request,
    RequestId, Scheduler, SchedulerConfig, Time, TokenDelta,
};
use runtime::runtime;

/// Held by a test while it runs: the counter sees the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts tokens.
struct Counts(Arc<AtomicUsize>);

impl OutputSink for Counts {
    fn push(&mut self, news: &TokenDelta<'_>) {
        self.0.fetch_add(news.tokens.len(), Ordering::Relaxed);
    }

    fn end(&mut self, _end: &OutputEnd) {}
}

/// Plan, pack, forward, sample, text, resolve, apply, for three requests with parameters of three kinds. Forty steps take
/// new blocks and hash full ones as they go along.
#[test]
fn a_steady_decode_step_of_the_whole_loop_allocates_nothing() {
    let _alone = alone();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
    let files = ModelFiles::open(&path).unwrap();
    for (threads, compose) in [(1, Compose::Mixed), (2, Compose::Mixed), (1, Compose::STABLE)] {
        let rt = runtime(Precision::F32, threads);
        let decoder = Arc::new(files.decoder(&rt).unwrap());
        let config = SchedulerConfig {
            max_num_seqs: 8,
            max_num_batched_tokens: 64,
            max_model_len: 256,
            compose,
            adapter_turn: usize::from(compose == Compose::STABLE),
            ..SchedulerConfig::new(80, 16)
        };
        let tokenizer = files.tokenizer().unwrap();
        let runner = ModelRunner::new(decoder, Some(tokenizer), &rt, &config, DType::F32).unwrap();
        let mut core = EngineCore::new(Scheduler::new(config).unwrap(), runner);
        let told = Arc::new(AtomicUsize::new(0));
        let kinds = [
            SamplingParams::greedy(),
            SamplingParams { top_k: 50, top_p: 0.9, temperature: 0.8, ..Default::default() },
            SamplingParams {
                repetition_penalty: 1.2,
                frequency_penalty: 0.1,
                min_p: 0.01,
                ..Default::default()
            },
        ];
        for (id, params) in kinds.into_iter().enumerate() {
            let stop = StopRules { max_tokens: 240, ..StopRules::default() };
            let sink = Box::new(Counts(Arc::clone(&told)));
            let job = ChoiceJob::new(vec![5, 17, 100, 3, id as u32], params, stop, sink);
            let adapter = Some(Adapter { name: "lora".to_owned(), path: "lora".to_owned() });
            let request = job.request(RequestId(id as u64), Time(0.0));
            // Its tool is looked for when it ends.
            let of = Some(Job { id: "agent".to_owned(), last_step: false });
            core.add_request(Request { adapter, job: of, ..request }, job).unwrap();
        }
        let first = fewest_allocations(1, || {
            core.step().unwrap();
        });
        assert!(first > 0, "the counter counts");
        for _ in 0..30 {
            core.step().unwrap();
        }
        let before = told.load(Ordering::Relaxed);
        let allocations = fewest_allocations(4, || {
            for _ in 0..40 {
                let result = core.step().unwrap();
                assert_eq!((result.scheduled, result.scheduled_tokens), (3, 3));
            }
        });
        let tokens = told.load(Ordering::Relaxed) - before;
        assert_eq!(tokens, 4 * 40 * 3, "tokens that were told of");
        assert_eq!(
            allocations, 0,
            "allocations of forty decode steps on {threads} threads, {compose}"
        );
    }
}

/// The same with adapters: two of them, and a row without one.
#[test]
fn a_steady_step_with_adapters_allocates_nothing() {
    let _alone = alone();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let rt = runtime(Precision::F32, 1);
    let model = EngineModel::open_on(&fixtures.join("tiny-llama"), &rt).unwrap();
    let options = EngineOptions {
        max_model_len: Some(256),
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_lora_rank: Some(8),
        ..EngineOptions::default()
    };
    let mut core = model.clone().core(&options).unwrap().0;
    let told = Arc::new(AtomicUsize::new(0));
    for (id, name) in [Some("all"), None, Some("rslora")].into_iter().enumerate() {
        let path = |name| fixtures.join(format!("adapters/tiny-llama-{name}"));
        let adapter = name.map(|name| model.adapter(&path(name), 8).unwrap());
        let stop = StopRules { max_tokens: 240, ignore_eos: true, ..StopRules::default() };
        let sink = Box::new(Counts(Arc::clone(&told)));
        let prompt = vec![5, 17, 100, 3, id as u32];
        let job = ChoiceJob::new(prompt, SamplingParams::greedy(), stop, sink);
        let job = ChoiceJob { adapter, ..job };
        core.add_request(job.request(RequestId(id as u64), Time(0.0)), job).unwrap();
    }
    for _ in 0..30 {
        core.step().unwrap();
    }
    let before = told.load(Ordering::Relaxed);
    let allocations = fewest_allocations(4, || {
        for _ in 0..40 {
            assert_eq!(core.step().unwrap().scheduled, 3, "all requests go on");
        }
    });
    assert_eq!(told.load(Ordering::Relaxed) - before, 4 * 40 * 3, "tokens that were told of");
    assert_eq!(core.executor().adapters_in_use(), 2);
    assert_eq!(allocations, 0, "allocations of forty decode steps with adapters");
}

/// The same with drafts: proposing, verifying and counting them.
#[test]
fn a_steady_step_with_drafts_allocates_nothing() {
    let _alone = alone();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
    let files = ModelFiles::open(&path).unwrap();
    for window in [WindowMode::Fixed, WindowMode::Adaptive] {
        let rt = runtime(Precision::F32, 1);
        let config = SchedulerConfig {
            max_num_seqs: 8,
            max_num_batched_tokens: 64,
            max_model_len: 256,
            num_speculative_tokens: 3,
            ..SchedulerConfig::new(80, 16)
        };
        let decoder = Arc::new(files.decoder(&rt).unwrap());
        let runner = ModelRunner::new(decoder, None, &rt, &config, DType::F32).unwrap();
        let drafter = NgramDrafter::new(1, 3).unwrap();
        let runner = runner.with_drafter(Box::new(drafter), 3, window);
        let core = EngineCore::new(Scheduler::new(config).unwrap(), runner);
        // How many drafts an adaptive window feeds depends on durations: on a busy machine perhaps none.
        steady_with_drafts(core, window == WindowMode::Fixed, &format!("{window:?}"));
    }
}

/// The same with draft heads, which read hidden rows of the model, and with a draft model.
#[test]
fn a_steady_step_with_drafts_of_a_head_allocates_nothing() {
    let _alone = alone();
    let fixture = |name: &str| format!("{}/../fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    for (method, head, target) in [
        (DraftMethod::Eagle, "eagle", "tiny-qwen2"),
        (DraftMethod::Eagle3, "eagle3", "tiny-llama-untied"),
        (DraftMethod::Medusa, "medusa", "tiny-llama-linear"),
        (DraftMethod::DraftModel, "../tiny-llama-yarn", "tiny-llama-linear"),
    ] {
        let model = Some(fixture(&format!("draft-heads/{head}")));
        let window = WindowMode::Fixed;
        for chosen in [DraftSampleMethod::Greedy, DraftSampleMethod::Probabilistic] {
            let config = SpeculativeConfig {
                model: model.clone(),
                window,
                draft_sample_method: Some(chosen),
                ..SpeculativeConfig::new(method, 3)
            };
            let options = EngineOptions {
                speculative: Some(config),
                max_model_len: Some(256),
                max_num_seqs: 8,
                max_num_batched_tokens: 64,
                ..EngineOptions::default()
            };
            let rt = runtime(Precision::F32, 1);
            let model = EngineModel::open_on(fixture(target).as_ref(), &rt).unwrap();
            let core = model.core(&options).unwrap().0;
            steady_with_drafts(core, true, &format!("{head}, {chosen:?}"));
        }
    }
}

/// Counts the allocations of steps with drafts; `certain`: whether there must be drafts.
fn steady_with_drafts(mut core: EngineCore<ModelRunner>, certain: bool, what: &str) {
    let told = Arc::new(AtomicUsize::new(0));
    let kinds = [
        SamplingParams::greedy(),
        SamplingParams { temperature: 0.3, ..Default::default() },
        // The history behind each draft is a copy, in memory that is reused.
        SamplingParams { repetition_penalty: 1.02, ..SamplingParams::greedy() },
    ];
    for (id, params) in kinds.into_iter().enumerate() {
        let stop = StopRules { max_tokens: 240, ..StopRules::default() };
        let sink = Box::new(Counts(Arc::clone(&told)));
        let job = ChoiceJob::new(vec![5, 17, 5, 17, id as u32], params, stop, sink);
        core.add_request(job.request(RequestId(id as u64), Time(0.0)), job).unwrap();
    }
    for _ in 0..20 {
        core.step().unwrap();
    }
    let before = core.scheduler().stats();
    let allocations = fewest_allocations(4, || {
        for _ in 0..8 {
            assert_eq!(core.step().unwrap().scheduled, 3, "all requests go on");
        }
    });
    let drafts = core.scheduler().stats().draft_tokens - before.draft_tokens;
    assert!(drafts > 0 || !certain, "drafts of these steps, {what}");
    assert_eq!(allocations, 0, "allocations of eight steps with drafts, {what}");
}
