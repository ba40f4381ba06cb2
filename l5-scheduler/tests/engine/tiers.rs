//! Tiers behind the pool of the real runner: tokens and log probabilities are those of an engine without tiers.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use l1_tensor::{DType, Precision, PrecisionRequest, RuntimeOptions};
use l3_paged_kv::sizing::{Budget, KvSpec};
use l4_sampler::LogprobsRequest;
use l5_scheduler::engine::{Engine, EngineModel, EngineOptions, EngineRequest};
use l5_scheduler::llm::{SamplingParams, StopRules};
use l5_scheduler::tiers::{TierOptions, TokenCounts};
use l5_scheduler::{
    ChoiceJob, EngineCore, Job, ModelRunner, OutputEnd, OutputSink, PolicyKind, Request, RequestId,
    TokenDelta,
};

const CHUNK: usize = 32;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama")
}

/// Tokens of a response, and their log probabilities as text, so that they are compared to the bit.
#[derive(Clone, Default)]
struct Response(Arc<Mutex<(Vec<u32>, String, bool)>>);

impl OutputSink for Response {
    fn push(&mut self, delta: &TokenDelta<'_>) {
        let mut own = self.0.lock().unwrap();
        own.0.extend(delta.tokens);
        own.1 += &format!("{:?}", delta.logprobs);
    }

    fn end(&mut self, _: &OutputEnd) {
        self.0.lock().unwrap().2 = true;
    }
}

/// Options of a pool of so many blocks, too few for all conversations.
fn options(policy: PolicyKind, tiers: TierOptions, blocks: usize) -> EngineOptions {
    let model = EngineModel::open(&tiny(), RuntimeOptions::default()).unwrap();
    let spec = KvSpec::from_config(model.decoder.config(), DType::F32, 16).unwrap();
    EngineOptions {
        policy,
        tiers: TierOptions { chunk_tokens: CHUNK, ..tiers },
        kv_dtype: Some(DType::F32),
        kv_memory: Some(Budget::exact(spec.pool_bytes(blocks))),
        max_num_seqs: 4,
        max_model_len: Some(300),
        ..EngineOptions::default()
    }
}

fn core(options: &EngineOptions) -> EngineCore<ModelRunner> {
    core_in(PrecisionRequest::Auto, options)
}

fn core_in(precision: PrecisionRequest, options: &EngineOptions) -> EngineCore<ModelRunner> {
    let runtime = RuntimeOptions { precision, ..RuntimeOptions::default() };
    EngineModel::open(&tiny(), runtime).unwrap().core(options).unwrap().0
}

fn ask(core: &mut EngineCore<ModelRunner>, id: u64, prompt: &[u32], temperature: f32) -> Response {
    ask_as(core, id, prompt, temperature, None)
}

fn ask_as(
    core: &mut EngineCore<ModelRunner>,
    id: u64,
    prompt: &[u32],
    temperature: f32,
    step_of: Option<Job>,
) -> Response {
    let logprobs = Some(LogprobsRequest { top: 2, ..Default::default() });
    let params = SamplingParams { temperature, logprobs, ..SamplingParams::default() };
    let stop = StopRules { max_tokens: 20, ignore_eos: true, ..Default::default() };
    let response = Response::default();
    let job = ChoiceJob::new(prompt.to_vec(), params, stop, Box::new(response.clone()));
    let request = job.request(RequestId(id), core.now());
    core.add_request(Request { job: step_of, ..request }, job).unwrap();
    response
}

/// Runs all requests to their ends, and what is under way behind them.
fn run(core: &mut EngineCore<ModelRunner>) {
    while core.has_unfinished() || core.time_to_deadline().is_some() {
        core.step().unwrap();
    }
}

/// Waits until the tier has written all that it was given.
fn settle(core: &mut EngineCore<ModelRunner>) {
    let written = |core: &EngineCore<ModelRunner>| {
        let stats = core.executor().tiers().unwrap().tier_stats();
        (stats.stored + stats.refused + stats.failed) * CHUNK as u64
    };
    while written(core) < counts(core).stored {
        std::thread::yield_now();
        core.step().unwrap();
    }
}

/// Lets an engine answer a prompt and store it, and ends the engine.
fn answered_and_stored(options: &EngineOptions, prompt: &[u32]) -> Response {
    let mut core = core(options);
    let response = ask(&mut core, 1, prompt, 0.0);
    run(&mut core);
    settle(&mut core);
    response
}

fn prompt(conversation: u32) -> Vec<u32> {
    (0..150).map(|at| 3 + (at * 7 + conversation * 31) % 300).collect()
}

/// Four conversations of three turns each, all turns of one number at once.
fn conversations(core: &mut EngineCore<ModelRunner>) -> Vec<(Vec<u32>, String)> {
    conversations_of(core, |_| None)
}

/// Conversations, each of which may be a job.
fn conversations_of(
    core: &mut EngineCore<ModelRunner>,
    job_of: impl Fn(u16) -> Option<String>,
) -> Vec<(Vec<u32>, String)> {
    let mut histories: Vec<_> = (0..4).map(prompt).collect();
    let (mut id, mut all) = (0, Vec::new());
    for turn in 0..3_u32 {
        let responses: Vec<_> = histories
            .iter()
            .zip(0_u16..)
            .map(|(history, n)| {
                id += 1;
                let job = job_of(n).map(|id| Job { id, last_step: turn == 2 });
                ask_as(core, id, history, f32::from(n % 2), job)
            })
            .collect();
        run(core);
        for (history, response) in histories.iter_mut().zip(responses) {
            let (tokens, logprobs, ended) = response.0.lock().unwrap().clone();
            assert!(ended && tokens.len() == 20);
            history.extend(&tokens);
            history.extend([5 + turn, 9, 11]);
            all.push((tokens, logprobs));
        }
    }
    all
}

fn counts(core: &EngineCore<ModelRunner>) -> TokenCounts {
    core.executor().tiers().unwrap().token_counts()
}

/// The same as steps of four jobs, each of which calls a tool.
fn jobs(core: &mut EngineCore<ModelRunner>) -> Vec<(Vec<u32>, String)> {
    conversations_of(core, |n| Some(format!("job {n}")))
}

fn dram(bytes: u64) -> TierOptions {
    TierOptions { dram: bytes, ..TierOptions::default() }
}

fn disk(dir: &Path) -> TierOptions {
    TierOptions { disk: Some((dir.to_owned(), 64 << 20)), ..TierOptions::default() }
}

#[test]
fn later_turns_load_what_the_pool_has_evicted_and_no_bit_changes() {
    let want = conversations(&mut core(&options(PolicyKind::Fcfs, TierOptions::default(), 30)));
    let mut with = core(&options(PolicyKind::LmCache, dram(64 << 20), 30));
    assert_eq!(conversations(&mut with), want);
    let TokenCounts { queried, matched, loaded, stored, .. } = counts(&with);
    // Second and third turns of four conversations, of which the pool holds fewer than two.
    assert!(loaded >= 2 * 4 * 64 && loaded <= matched && matched <= queried, "{loaded} {matched}");
    assert!(stored >= 4 * 5 * CHUNK as u64, "{stored}");
}

#[test]
fn leases_that_end_early_are_written_back_and_loaded_and_no_bit_changes() {
    let want = conversations(&mut core(&options(PolicyKind::Fcfs, TierOptions::default(), 30)));
    for policy in [PolicyKind::Adaptive, PolicyKind::Continuum] {
        assert_eq!(jobs(&mut core(&options(policy, TierOptions::default(), 30))), want);
        let mut with = core(&options(policy, dram(64 << 20), 30));
        assert_eq!(jobs(&mut with), want);
        let TokenCounts { loaded, written_back, .. } = counts(&with);
        if policy == PolicyKind::Adaptive {
            // The pool holds fewer than two of the four.
            assert!(written_back >= 2 * 4 * CHUNK as u64, "{written_back}");
        }
        assert!(loaded >= 2 * 4 * 64, "{policy}: {loaded}");
    }
}

#[test]
fn a_tier_without_room_for_what_is_written_back_makes_the_engine_compute() {
    let want = conversations(&mut core(&options(PolicyKind::Fcfs, TierOptions::default(), 30)));
    let mut small = core(&options(PolicyKind::Adaptive, dram(100_000), 30));
    assert_eq!(jobs(&mut small), want);
    let stats = small.executor().tiers().unwrap().tier_stats();
    assert!(stats.refused > 0 && stats.stored > 0, "{stats:?}");
}

#[test]
fn a_restarted_engine_finds_its_chunks_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(PolicyKind::LmCache, disk(dir.path()), 30);
    let want = answered_and_stored(&options, &prompt(1));
    let mut second = core(&options);
    let got = ask(&mut second, 1, &prompt(1), 0.0);
    run(&mut second);
    assert_eq!(*got.0.lock().unwrap(), *want.0.lock().unwrap());
    assert_eq!(counts(&second).loaded, 128, "four chunks; the rest of the prompt is no whole one");
}

#[test]
fn an_engine_that_is_shut_down_has_written_what_it_had_to_store() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(PolicyKind::LmCache, disk(dir.path()), 30);
    let open = || Engine::open(&tiny(), RuntimeOptions::default(), &options).unwrap();
    let engine = open();
    let stop = StopRules { max_tokens: 20, ignore_eos: true, ..Default::default() };
    let request = EngineRequest::new(prompt(1), SamplingParams::greedy(), stop);
    let want = engine.handle().submit(request.clone()).unwrap().rest().tokens;
    // At once: the store has not even been planned.
    engine.shutdown().unwrap();
    assert_eq!(walk(dir.path()).len(), 5, "files of 169 tokens");
    let mut second = core(&options);
    let got = ask(&mut second, 1, &prompt(1), 0.0);
    run(&mut second);
    assert_eq!(got.0.lock().unwrap().0, want);
    assert_eq!(counts(&second).loaded, 128);
}

#[test]
fn what_leases_hold_when_an_engine_ends_is_found_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = prompt(3);
    for policy in [PolicyKind::Adaptive, PolicyKind::Continuum] {
        let dir = dir.path().join(policy.to_string());
        let options = options(policy, disk(&dir), 40);
        let job = || Some(Job { id: "a".to_owned(), last_step: false });
        let mut first = core(&options);
        let response = ask_as(&mut first, 1, &prompt, 0.0, job());
        while first.has_unfinished() {
            first.step().unwrap();
        }
        assert_eq!(first.flush(std::time::Duration::from_secs(60)).unwrap(), 0);
        assert!(first.scheduler().leases().is_empty());
        drop(first);
        let mut second = core(&options);
        let again = ask_as(&mut second, 1, &prompt, 0.0, job());
        run(&mut second);
        assert!(counts(&second).loaded >= CHUNK as u64, "{policy}: {:?}", counts(&second));
        assert_eq!(*again.0.lock().unwrap(), *response.0.lock().unwrap(), "{policy}");
    }
}

#[test]
fn an_engine_of_another_precision_finds_no_chunks_though_the_cache_has_the_same_dtype() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(PolicyKind::LmCache, disk(dir.path()), 30);
    let answer = |precision: Precision| {
        let mut core = core_in(PrecisionRequest::Exactly(precision), &options);
        ask(&mut core, 1, &prompt(1), 0.0);
        run(&mut core);
        settle(&mut core);
        let TokenCounts { queried, loaded, stored, .. } = counts(&core);
        assert!(queried > 0);
        (loaded, stored)
    };
    let all = answer(Precision::F32);
    assert_eq!(all, (0, 160));
    assert_eq!(answer(Precision::Bf16), all, "nothing is found, and all of it is stored beside");
    assert_eq!(answer(Precision::F32), (128, 0), "the chunks of the first engine");
    assert_eq!(answer(Precision::Bf16), (128, 0), "the chunks of the second engine");
}

#[test]
fn a_prompt_that_is_in_a_tier_to_its_end_computes_its_last_token_block() {
    let options = options(PolicyKind::LmCache, dram(64 << 20), 30);
    let mut core = core(&options);
    let whole: Vec<u32> = prompt(2)[..4 * CHUNK].to_vec();
    let want = ask(&mut core, 1, &whole, 0.0);
    run(&mut core);
    // Others take its blocks.
    (2..6).for_each(|id| _ = ask(&mut core, id, &prompt(10 + id as u32), 0.0));
    run(&mut core);
    let before = counts(&core).loaded;
    let got = ask(&mut core, 9, &whole, 0.0);
    run(&mut core);
    assert_eq!(*got.0.lock().unwrap(), *want.0.lock().unwrap());
    assert_eq!(counts(&core).loaded - before, 4 * CHUNK as u64 - 16);
}

#[test]
fn a_tier_that_evicts_everything_makes_the_engine_compute() {
    let want = conversations(&mut core(&options(PolicyKind::Fcfs, TierOptions::default(), 30)));
    // Room for one chunk or two.
    let mut small = core(&options(PolicyKind::LmCache, dram(100_000), 30));
    assert_eq!(conversations(&mut small), want);
    assert!(counts(&small).stored > 0);
}

#[test]
fn a_damaged_chunk_is_computed_again() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(PolicyKind::LmCache, disk(dir.path()), 30);
    let want = answered_and_stored(&options, &prompt(1));
    let mut files: Vec<_> = walk(dir.path());
    files.sort();
    assert!(files.len() == 5, "{files:?}");
    for file in &files {
        let mut bytes = std::fs::read(file).unwrap();
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
        }
        std::fs::write(file, bytes).unwrap();
    }
    let mut second = core(&options);
    let got = ask(&mut second, 1, &prompt(1), 0.0);
    run(&mut second);
    assert_eq!(*got.0.lock().unwrap(), *want.0.lock().unwrap());
    assert!(second.executor().tiers().unwrap().tier_stats().corrupt >= 1);
}

/// All files below a directory but its lock.
fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(walk(&path)),
            false if path.metadata().unwrap().len() > 1000 => all.push(path),
            false => {}
        }
    }
    all
}
