//! Adapters of requests: whatever runs beside it, is loaded or unloaded, a request has the tokens and log probabilities
//! that it has alone.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use l1_tensor::RuntimeOptions;
use l3_paged_kv::sizing::{Budget, KvSpec};
use l4_sampler::guide::GuideSpec;
use l4_sampler::{LogprobsRequest, SamplingParams, TokenLogprobs};
use l5_scheduler::adapters::{AdapterOptions, RegistryError};
use l5_scheduler::engine::{EngineModel, EngineOptions};
use l5_scheduler::generate::{GenerateError, GenerateRequest, Generator};
use l5_scheduler::llm::StopRules;
use l5_scheduler::speculation::{DraftMethod, SpeculativeConfig, WindowMode};
use l5_scheduler::tiers::TierOptions;
use l5_scheduler::{
    AdapterRegistry, AdapterRejection, ChoiceJob, Engine, EngineCore, EngineRequest, FinishReason,
    Llm, LlmOptions, ModelRunner, OutputEnd, OutputSink, PolicyKind, RequestAdapter, RequestId,
    SubmitError, TokenDelta,
};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

fn model() -> EngineModel {
    let runtime = RuntimeOptions { threads: Some(2), ..RuntimeOptions::default() };
    EngineModel::open(&fixture("tiny-llama"), runtime).unwrap()
}

fn adapter_dir(name: &str) -> PathBuf {
    fixture("adapters").join(format!("tiny-llama-{name}"))
}

fn adapter(model: &EngineModel, name: &str) -> Arc<RequestAdapter> {
    Arc::new(model.adapter(&adapter_dir(name), 8).unwrap())
}

/// Options of a pool of so many blocks of 4 tokens.
fn options(model: &EngineModel, blocks: usize) -> EngineOptions {
    let dtype = model.rt.activation_dtype();
    let spec = KvSpec::from_config(model.decoder.config(), dtype, 4).unwrap();
    EngineOptions {
        block_size: 4,
        kv_memory: Some(Budget::exact(spec.pool_bytes(blocks))),
        max_num_seqs: 8,
        max_num_batched_tokens: 24,
        max_model_len: Some(96),
        max_lora_rank: Some(8),
        ..EngineOptions::default()
    }
}

/// What a request got.
#[derive(Clone, Debug, Default, PartialEq)]
struct Got {
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    end: Option<FinishReason>,
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Got>>);

impl OutputSink for Sink {
    fn push(&mut self, delta: &TokenDelta<'_>) {
        let mut got = self.0.lock().unwrap();
        got.tokens.extend_from_slice(delta.tokens);
        got.logprobs.extend_from_slice(delta.logprobs);
    }

    fn end(&mut self, end: &OutputEnd) {
        self.0.lock().unwrap().end = Some(end.finish);
    }
}

/// What is asked: adapter, prompt, parameters.
#[derive(Clone)]
struct Ask {
    adapter: Option<Arc<RequestAdapter>>,
    prompt: Vec<u32>,
    params: SamplingParams,
}

/// Prompts that begin alike, each with every adapter and with none, greedy and sampled.
fn asks(model: &EngineModel) -> Vec<Ask> {
    let adapters = ["all", "rslora", "gate"].map(|name| Some(adapter(model, name)));
    let adapters: Vec<_> = adapters.into_iter().chain([None]).collect();
    let logprobs = Some(LogprobsRequest { top: 2, ..Default::default() });
    let ask = |i: usize| {
        let temperature = if i.is_multiple_of(3) { 0.0 } else { 0.8 };
        let prompt = (0..9 + 2 * i as u32).map(|t| 3 + t * 7 % 200).collect();
        let params = SamplingParams { temperature, logprobs, ..SamplingParams::default() };
        Ask { adapter: adapters[i % adapters.len()].clone(), prompt, params }
    };
    (0..12).map(ask).collect()
}

fn add(core: &mut EngineCore<ModelRunner>, id: u64, ask: &Ask) -> Sink {
    let sink = Sink::default();
    let stop = StopRules { max_tokens: 24, ignore_eos: true, ..StopRules::default() };
    let job = ChoiceJob::new(ask.prompt.clone(), ask.params.clone(), stop, Box::new(sink.clone()));
    let job = ChoiceJob { seed: id, adapter: ask.adapter.as_deref().cloned(), ..job };
    core.add_request(job.request(RequestId(id), core.now()), job).unwrap();
    sink
}

fn run(core: &mut EngineCore<ModelRunner>) {
    for _ in 0..5_000 {
        if !core.has_unfinished() {
            return;
        }
        core.step().unwrap();
    }
    panic!("a run without end: {:?}", core.scheduler());
}

/// What each request gets in an engine that runs nothing else and caches nothing.
fn alone(model: &EngineModel, asks: &[Ask]) -> Vec<Got> {
    let options = EngineOptions { enable_prefix_caching: false, ..options(model, 200) };
    let mut core = model.clone().core(&options).unwrap().0;
    let one = |(id, ask): (usize, &Ask)| {
        let sink = add(&mut core, id as u64, ask);
        run(&mut core);
        sink.0.lock().unwrap().clone()
    };
    asks.iter().enumerate().map(one).collect()
}

/// Runs a mix over a pool that is too small for it, and compares.
fn mixed(
    model: &EngineModel,
    options: &EngineOptions,
    set_up: impl FnOnce(&mut EngineCore<ModelRunner>),
) -> EngineCore<ModelRunner> {
    let asks = asks(model);
    let want = alone(model, &asks);
    let differ = |a: usize, b: usize| assert_ne!(want[a].tokens, want[b].tokens, "{a} and {b}");
    // The outputs of adapters differ, or the test would show nothing.
    [(0, 1), (1, 2), (2, 3), (0, 3)].into_iter().for_each(|(a, b)| differ(a, b));
    let mut core = model.clone().core(options).unwrap().0;
    set_up(&mut core);
    let mut sinks = Vec::new();
    for (id, ask) in asks.iter().enumerate() {
        sinks.push(add(&mut core, id as u64, ask));
        core.step().unwrap();
    }
    assert_eq!(core.executor().adapters_in_use(), 3);
    // Aborted requests give their adapters back, too.
    let leaver = add(&mut core, 100, &asks[0]);
    core.step().unwrap();
    core.abort(RequestId(100));
    run(&mut core);
    assert_eq!(leaver.0.lock().unwrap().end, Some(FinishReason::Aborted));
    for (id, (sink, want)) in sinks.iter().zip(&want).enumerate() {
        assert_eq!(*sink.0.lock().unwrap(), *want, "request {id}, in the mix and alone");
    }
    assert_eq!(core.executor().adapters_in_use(), 0, "adapters at the end");
    let scheduler = core.scheduler();
    assert_eq!(scheduler.blocks().num_free(), scheduler.config().capacity(), "free blocks");
    core
}

#[test]
fn requests_with_adapters_have_the_tokens_and_log_probabilities_that_they_have_alone() {
    let model = model();
    let core = mixed(&model, &options(&model, 40), |_| {});
    let stats = core.scheduler().stats();
    assert!(stats.preemptions > 0, "{stats:?}");
    assert!(stats.cached_tokens > 0, "{stats:?}");
}

#[test]
fn steps_that_other_steps_are_padded_to_are_not_padded_for_adapters() {
    let model = model();
    mixed(&model, &options(&model, 200), |core| {
        let limits = core.scheduler().config().clone();
        let (decoder, tokenizer) = (model.decoder.clone(), model.tokenizer.clone());
        let dtype = model.rt.activation_dtype();
        let runner = ModelRunner::new(decoder, tokenizer, &model.rt, &limits, dtype).unwrap();
        let runner = runner.with_adapters(Some(8)).unwrap().with_decode_widths(vec![4, 8]);
        *core.executor_mut() = runner;
    });
}

#[test]
fn drafts_change_no_token_of_an_adapter() {
    let model = model();
    let config = SpeculativeConfig {
        window: WindowMode::Fixed,
        ..SpeculativeConfig::new(DraftMethod::Ngram, 3)
    };
    let options = EngineOptions { speculative: Some(config), ..options(&model, 200) };
    let core = mixed(&model, &options, |_| {});
    assert!(core.scheduler().stats().draft_tokens > 0, "{:?}", core.scheduler().stats());
}

#[test]
fn blocks_of_an_adapter_are_hit_by_the_same_weights_only() {
    let model = model();
    let registry = AdapterRegistry::new(&model, AdapterOptions::default());
    let ask = |adapter: Option<RequestAdapter>| Ask {
        adapter: adapter.map(Arc::new),
        prompt: (0..40).map(|t| 3 + t * 7 % 200).collect(),
        params: SamplingParams::greedy(),
    };
    let mut core = model.clone().core(&options(&model, 200)).unwrap().0;
    let mut id = 0;
    let mut cached = |ask: &Ask| {
        let before = core.scheduler().stats().cached_tokens;
        let sink = add(&mut core, id, ask);
        id += 1;
        run(&mut core);
        let got = sink.0.lock().unwrap().tokens.clone();
        assert_eq!(got, alone(&model, std::slice::from_ref(ask))[0].tokens);
        core.scheduler().stats().cached_tokens - before
    };
    assert_eq!(cached(&ask(None)), 0);
    let first = ask(Some(registry.load("a", &adapter_dir("all"), false).unwrap()));
    assert_eq!(cached(&first), 0, "blocks of the base model");
    assert_eq!(cached(&first), 36, "its own blocks");
    let second = ask(Some(registry.load("a", &adapter_dir("rslora"), true).unwrap()));
    assert_eq!(cached(&second), 0, "blocks of the old weights of the same name");
    assert_eq!(cached(&second), 36, "blocks of the new weights");
    let again = ask(Some(registry.load("a", &adapter_dir("all"), true).unwrap()));
    assert_eq!(cached(&again), 36, "the first weights, which were loaded again");
    let renamed = ask(Some(registry.load("b", &adapter_dir("all"), false).unwrap()));
    assert_eq!(cached(&renamed), 0, "blocks of another name");
}

#[test]
fn chunks_in_a_tier_are_loaded_for_the_same_weights_only() {
    let model = model();
    let (policy, tiers) =
        (PolicyKind::LmCache, TierOptions { dram: 64 << 20, ..Default::default() });
    let tiers = TierOptions { chunk_tokens: 16, ..tiers };
    let options = EngineOptions { policy, tiers, ..options(&model, 200) };
    let mut core = model.clone().core(&options).unwrap().0;
    let ask = |name: &str| {
        let weights = adapter(&model, name).weights.clone();
        let adapter = Some(Arc::new(RequestAdapter { name: "a".to_owned(), weights }));
        let prompt = (0..40).map(|t| 3 + t * 7 % 200).collect();
        Ask { adapter, prompt, params: SamplingParams::greedy() }
    };
    let mut id = 0;
    let mut loaded = |ask: &Ask| {
        let before = core.executor().tiers().unwrap().token_counts().loaded;
        // The pool forgets all blocks: only the tier has them.
        core.scheduler_mut().reset_prefix_cache(false).unwrap();
        let sink = add(&mut core, id, ask);
        id += 1;
        while core.has_unfinished() || core.time_to_deadline().is_some() {
            core.step().unwrap();
        }
        let got = sink.0.lock().unwrap().tokens.clone();
        assert_eq!(got, alone(&model, std::slice::from_ref(ask))[0].tokens);
        core.executor().tiers().unwrap().token_counts().loaded - before
    };
    let (first, second) = (ask("all"), ask("rslora"));
    assert_eq!(loaded(&first), 0);
    assert_eq!(loaded(&first), 32, "its own chunks");
    assert_eq!(loaded(&second), 0, "chunks of other weights of the same name");
    assert_eq!(loaded(&second), 32);
}

fn request(adapter: Option<RequestAdapter>) -> EngineRequest {
    let stop = StopRules { max_tokens: 12, ignore_eos: true, ..StopRules::default() };
    let prompt: Vec<u32> = (0..20).map(|t| 3 + t * 5 % 200).collect();
    let request = EngineRequest::new(prompt, SamplingParams::default(), stop);
    EngineRequest { adapter, seed: 7, ..request }
}

#[test]
fn an_adapter_that_an_engine_does_not_take_is_refused_before_it_runs() {
    let model = model();
    let all = adapter(&model, "all");
    let refusal = |options: &EngineOptions, adapter: &RequestAdapter| {
        let engine = Engine::new(model.clone(), options).unwrap();
        let submitted = engine.handle().submit(request(Some(adapter.clone())));
        match submitted.unwrap_err() {
            SubmitError::Adapter(why) => why,
            other => panic!("{other}"),
        }
    };
    let off = EngineOptions { max_lora_rank: None, ..options(&model, 100) };
    let why = refusal(&off, &all);
    assert!(matches!(why, AdapterRejection::Off { .. }), "{why:?}");
    assert!(why.to_string().contains("--enable-lora"), "{why}");
    let low = EngineOptions { max_lora_rank: Some(2), ..options(&model, 100) };
    let why = refusal(&low, &all);
    assert_eq!(why, AdapterRejection::Rank { name: "tiny-llama-all".into(), rank: 4, max: 2 });
    let other = EngineModel::open(&fixture("tiny-mistral"), RuntimeOptions::default()).unwrap();
    let foreign = other.adapter(&fixture("adapters/tiny-mistral-up"), 64).unwrap();
    let why = refusal(&options(&model, 100), &foreign);
    assert_eq!(why, AdapterRejection::OtherModel { name: "tiny-mistral-up".into() });

    let mut generator = Generator::open(model.clone(), &off).unwrap();
    let run = generator.run(&request(Some((*all).clone())).into(), |_, _| true);
    let why = run.unwrap_err();
    assert!(matches!(why, GenerateError::Refused(SubmitError::Adapter(_))), "{why}");
}

#[test]
fn a_job_with_an_adapter_that_does_not_fit_fails_and_leaves_no_block_behind() {
    let model = model();
    let low = EngineOptions { max_lora_rank: Some(2), ..options(&model, 100) };
    let mut core = model.clone().core(&low).unwrap().0;
    let all = asks(&model).remove(0);
    let sink = add(&mut core, 1, &all);
    let why = core.step().unwrap_err();
    assert!(why.to_string().contains("check_adapter"), "{why}");
    core.fail_step(&why);
    run(&mut core);
    assert_eq!(sink.0.lock().unwrap().end, Some(FinishReason::Failed));
    let sink = add(&mut core, 2, &Ask { adapter: None, ..all });
    run(&mut core);
    assert_eq!(sink.0.lock().unwrap().end, Some(FinishReason::Length));
    assert_eq!(core.scheduler().stats().cached_tokens, 0);
}

#[test]
fn engine_generator_and_llm_give_an_adapter_the_same_choices() {
    let model = model();
    let all = adapter(&model, "all");
    let guide = Some(GuideSpec::Choice(vec!["yes".into(), "no".into(), "perhaps".into()]).into());
    for request in
        [request(Some((*all).clone())), EngineRequest { guide, ..request(Some((*all).clone())) }]
    {
        let options = options(&model, 100);
        let engine = Engine::new(model.clone(), &options).unwrap();
        let streams = engine.handle().submit_n(request.clone(), 3).unwrap();
        let engine: Vec<_> = streams.into_iter().map(|mut stream| stream.rest().tokens).collect();
        let mut generator = Generator::open(model.clone(), &options).unwrap();
        let three = GenerateRequest { n: 3, ..request.clone().into() };
        let generated = generator.run(&three, |_, _| true).unwrap();
        let generated: Vec<_> = generated.choices.into_iter().map(|own| own.tokens).collect();
        assert_eq!(engine, generated);
        let llm = Llm::over(Engine::new(model.clone(), &options).unwrap());
        assert_eq!(llm.run(vec![request]).unwrap()[0].tokens, engine[0]);
    }
    let outputs = |adapter| {
        let options = LlmOptions { adapter, ..LlmOptions::from(fixture("tiny-llama")) };
        let llm = Llm::new(options).unwrap().seed(3).max_tokens(12);
        llm.generate(["Once upon a time"], &SamplingParams::greedy()).unwrap().remove(0).tokens
    };
    assert_ne!(outputs(None), outputs(Some(adapter_dir("all"))));
}

/// A copy of an adapter's files, which can be changed.
fn copy(of: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(adapter_dir(of).join(file), dir.path().join(file)).unwrap();
    }
    dir
}

fn registry(model: &EngineModel, max_cpu_loras: usize) -> AdapterRegistry {
    let reserved_names = vec!["tiny".to_owned()];
    let options = AdapterOptions { max_cpu_loras, reserved_names, ..AdapterOptions::default() };
    AdapterRegistry::new(model, options)
}

#[test]
fn adapters_in_memory_are_bounded_and_the_one_unused_for_longest_is_evicted() {
    let model = model();
    let registry = registry(&model, 2);
    let resident = || -> Vec<_> {
        let resident = registry.list().into_iter().filter(|info| info.resident);
        resident.map(|info| info.name).collect()
    };
    drop(registry.load("a", &adapter_dir("all"), false).unwrap());
    drop(registry.load("b", &adapter_dir("rslora"), false).unwrap());
    drop(registry.get("a").unwrap());
    drop(registry.load("c", &adapter_dir("gate"), false).unwrap());
    assert_eq!(resident(), ["a", "c"], "b was used least recently");
    assert_eq!(registry.list().len(), 3, "an evicted adapter can still be used");
    assert!(registry.get_resident("b").unwrap().is_none());
    let b = registry.get("b").unwrap();
    assert_eq!(b.weights.digest_hex(), registry.info("b").unwrap().digest);
    assert_eq!(resident(), ["b", "c"]);
    let c = registry.get("c").unwrap();
    let full = registry.get("a").unwrap_err();
    assert!(matches!(full, RegistryError::Full { max: 2 }), "{full}");
    let full = registry.load("d", &adapter_dir("all"), false).unwrap_err();
    assert!(matches!(full, RegistryError::Full { max: 2 }), "{full}");
    // Weights that lost their name count until their last request ends.
    registry.unload("b").unwrap();
    assert!(matches!(registry.get("a").unwrap_err(), RegistryError::Full { .. }));
    assert_eq!(registry.num_resident(), 2);
    drop(b);
    assert_eq!(registry.num_resident(), 1);
    assert_eq!(registry.get("a").unwrap().name, "a");
    drop(c);
}

#[test]
fn names_that_are_taken_unknown_or_impossible_are_refused() {
    let model = model();
    let registry = registry(&model, 4);
    let load = |name: &str| registry.load(name, &adapter_dir("all"), false).map(drop);
    for name in ["", "tiny", "a\nb", &"x".repeat(257)] {
        let why = load(name).unwrap_err();
        assert!(matches!(why, RegistryError::Name { .. }), "{name}: {why}");
    }
    load("../a").unwrap();
    assert!(matches!(load("../a").unwrap_err(), RegistryError::AlreadyLoaded { .. }));
    for why in [registry.unload("b").unwrap_err(), registry.get("b").unwrap_err()] {
        assert!(matches!(why, RegistryError::NotFound { .. }), "{why}");
    }
    registry.unload("../a").unwrap();
    assert!(!registry.contains("../a"));
    assert_eq!(registry.num_resident(), 0);
}

#[test]
fn a_load_that_fails_leaves_the_adapter_that_was_there() {
    let model = model();
    let registry = registry(&model, 1);
    let dir = copy("all");
    let before = registry.load("a", dir.path(), false).unwrap();
    let digest = before.weights.digest_hex();
    drop(before);
    let weights = dir.path().join("adapter_model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() - 1]).unwrap();
    for path in [dir.path(), Path::new("/no/such/adapter"), &fixture("tiny-llama")] {
        let why = registry.load("a", path, true).unwrap_err();
        assert!(matches!(why, RegistryError::Load { .. }), "{why}");
        let why = registry.load("b", path, false).unwrap_err();
        assert!(!matches!(why, RegistryError::AlreadyLoaded { .. }), "{why}");
    }
    assert_eq!(registry.list().len(), 1);
    let info = registry.info("a").unwrap();
    assert_eq!((info.digest, info.resident), (digest, true), "nothing was evicted for them");
}

#[test]
fn an_evicted_adapter_whose_files_changed_is_not_used_before_it_is_loaded_again() {
    let model = model();
    let registry = registry(&model, 1);
    let dir = copy("all");
    drop(registry.load("a", dir.path(), false).unwrap());
    drop(registry.load("b", &adapter_dir("gate"), false).unwrap());
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(adapter_dir("rslora").join(file), dir.path().join(file)).unwrap();
    }
    let why = registry.get("a").unwrap_err();
    assert!(matches!(why, RegistryError::Changed { .. }), "{why}");
    assert!(why.to_string().contains("load it again"), "{why}");
    drop(registry.load("a", dir.path(), true).unwrap());
    drop(registry.get("a").unwrap());
}

#[test]
fn of_loads_of_one_name_at_once_one_wins() {
    let model = model();
    let registry = registry(&model, 4);
    let won = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| match registry.load("a", &adapter_dir("all"), false) {
                Ok(_) => _ = won.fetch_add(1, Ordering::Relaxed),
                Err(RegistryError::AlreadyLoaded { .. }) => {}
                Err(why) => panic!("{why}"),
            });
        }
    });
    assert_eq!(won.load(Ordering::Relaxed), 1);
    assert_eq!(registry.num_resident(), 1);
}

#[test]
fn loads_and_unloads_under_load_lose_no_request() {
    let model = model();
    let registry = registry(&model, 3);
    let dirs = ["all", "rslora"].map(adapter_dir);
    let engine = Engine::new(model.clone(), &options(&model, 60)).unwrap();
    // Tokens of each adapter, and of none.
    let tokens = |adapter: Option<RequestAdapter>| {
        engine.handle().submit(request(adapter)).unwrap().rest().tokens
    };
    let weights = dirs.clone().map(|dir| model.adapter(&dir, 8).unwrap());
    let want = weights.clone().map(|own| (*own.weights.digest(), tokens(Some(own))));
    let (done, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let operators: Vec<_> = (0..2)
            .map(|at| {
                let (registry, dirs) = (&registry, &dirs);
                scope.spawn(move || {
                    for i in 0..40 {
                        let name = ["a", "b"][(i + at) % 2];
                        match i % 3 {
                            0 => _ = registry.unload(name),
                            in_place => _ = registry.load(name, &dirs[i % 2], in_place == 1),
                        }
                    }
                })
            })
            .collect();
        for client in 0..3 {
            let (registry, done, served, want) = (&registry, &done, &served, &want);
            let handle = engine.handle();
            scope.spawn(move || {
                let mut turn = client;
                while !done.load(Ordering::Relaxed) {
                    turn += 1;
                    let adapter = match registry.get(["a", "b"][turn % 2]) {
                        Ok(adapter) => adapter,
                        Err(RegistryError::NotFound { .. } | RegistryError::Full { .. }) => {
                            continue;
                        }
                        Err(why) => panic!("{why}"),
                    };
                    let digest = *adapter.weights.digest();
                    let stream = handle.submit(request(Some(adapter)));
                    let rest = stream.unwrap().rest();
                    let end = rest.end.map(|end| end.finish);
                    assert_eq!(end, Some(FinishReason::Length));
                    let (_, own) = want.iter().find(|(own, _)| *own == digest).unwrap();
                    assert_eq!(rest.tokens, *own, "tokens of the weights that it began with");
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        operators.into_iter().for_each(|operator| operator.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    assert!(served.load(Ordering::Relaxed) > 0, "requests were served meanwhile");
    engine.shutdown().unwrap();
    drop(weights);
    for info in registry.list() {
        registry.unload(&info.name).unwrap();
    }
    assert_eq!(registry.num_resident(), 0, "weights that nothing uses");
}
