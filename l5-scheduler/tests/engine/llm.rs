//! The whole of it with a model: `Llm`, and what comes out of it beside what the naive loop gives.

use std::path::{Path, PathBuf};

use l1_tensor::{Runtime, RuntimeOptions};
use l2_model::ModelFiles;
use l4_sampler::guide::Guides;
use l4_sampler::stop::StopRules;
use l4_sampler::{LogprobsRequest, SamplingParams};
use l5_scheduler::engine::{EngineModel, GuideSource};
use l5_scheduler::llm::{GuideSpec, LlmError};
use l5_scheduler::{EngineOptions, EngineRequest, FinishReason, Llm, LlmOptions, SubmitError};

use crate::naive::{Naive, NaiveChoice};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama")
}

fn llm() -> Llm {
    let runtime = RuntimeOptions { threads: Some(1), ..RuntimeOptions::default() };
    let engine = EngineOptions { max_num_seqs: 8, ..EngineOptions::default() };
    Llm::new(LlmOptions { runtime, engine, ..tiny().into() }).unwrap()
}

/// The same choices by the naive loop, one at a time.
fn alone(requests: &[EngineRequest], n: usize) -> Vec<Vec<NaiveChoice>> {
    let rt = Runtime::new(RuntimeOptions { threads: Some(1), ..Default::default() }).unwrap();
    let files = ModelFiles::open(&tiny()).unwrap();
    let (decoder, tokenizer) = files.decoder_and_tokenizer(&rt);
    let (decoder, tokenizer) = (decoder.unwrap(), tokenizer.unwrap());
    let guides = Guides::new(&tokenizer, decoder.config().vocab, files.stop_tokens()).unwrap();
    let run = |request: &EngineRequest| -> Vec<NaiveChoice> {
        let stop = StopRules { eos: files.stop_tokens().to_vec(), ..request.stop.clone() };
        let guide = request.guide.as_ref().map(|source| match source {
            GuideSource::Spec(spec) => guides.compile(spec, "").unwrap(),
            GuideSource::Compiled(guide) => guide.clone(),
        });
        let naive = |sample| Naive {
            rt: &rt,
            decoder: &decoder,
            tokenizer: Some(&tokenizer),
            max_len: 128,
            prompt: &request.prompt,
            params: &request.params,
            stop: &stop,
            guide: guide.as_ref(),
            seed: request.seed,
            sample,
            continues: request.continues,
        };
        (0..n as u32).map(|sample| naive(sample).run()).collect()
    };
    requests.iter().map(run).collect()
}

fn sampled() -> SamplingParams {
    SamplingParams { temperature: 0.9, top_p: 0.95, ..SamplingParams::default() }
}

/// Requests of all kinds.
fn requests() -> Vec<EngineRequest> {
    let request = |i: u32, params: SamplingParams| {
        let prompt: Vec<u32> = (0..3 + 7 * i).map(|t| 3 + (t * 13 + i) % 250).collect();
        let stop = StopRules { max_tokens: 20 + i as usize, ..StopRules::default() };
        EngineRequest {
            seed: i.into(),
            continues: true,
            ..EngineRequest::new(prompt, params, stop)
        }
    };
    let mut all: Vec<_> = (0..4).map(|i| request(i, SamplingParams::greedy())).collect();
    all.extend((4..8).map(|i| request(i, sampled())));
    let logprobs = Some(LogprobsRequest { top: 2, ..Default::default() });
    all.push(request(3, SamplingParams { logprobs, ..sampled() }));
    all.push(request(2, SamplingParams { repetition_penalty: 1.3, ..sampled() }));
    let guide = GuideSpec::Choice(vec!["yes".into(), "no".into(), "perhaps".into()]);
    let guide = Some(guide.into());
    all.push(EngineRequest { guide, ..request(1, sampled()) });
    let mut stopped = request(0, sampled());
    stopped.stop.strings = vec!["e".into()];
    all.push(stopped);
    all
}

#[test]
fn many_together_are_answered_as_each_would_be_alone() {
    let requests = requests();
    let outputs = llm().run(requests.clone()).unwrap();
    assert_eq!(outputs.len(), requests.len());
    for (i, (got, want)) in outputs.iter().zip(alone(&requests, 1)).enumerate() {
        let want = &want[0];
        assert_eq!(got.tokens, want.tokens, "tokens of request {i}");
        assert_eq!(got.text, want.text, "text of request {i}");
        assert_eq!(got.logprobs, want.logprobs, "log probabilities of request {i}");
        assert_eq!(got.finish_reason.as_str(), want.reason.as_str(), "end of request {i}");
        assert_eq!(
            got.prompt[..],
            requests[i].prompt[..],
            "answers are in the order of the prompts"
        );
    }
}

#[test]
fn several_answers_share_their_prompt_and_are_samples_of_one_seed() {
    let llm = llm();
    let request = EngineRequest {
        prompt: (0..40).map(|t| 3 + t * 5 % 200).collect(),
        params: sampled().into(),
        stop: StopRules { max_tokens: 12, ..StopRules::default() },
        seed: 5,
        continues: true,
        ..EngineRequest::default()
    };
    let answers = llm.handle().submit_n(request.clone(), 4).unwrap();
    let want = alone(&[request], 4).remove(0);
    for (i, (mut answer, want)) in answers.into_iter().zip(want).enumerate() {
        assert_eq!(answer.rest().tokens, want.tokens, "sample {i}");
        // The first computes the prompt. Its two full blocks are the others' in the same step.
        assert_eq!(answer.times().cached, if i == 0 { 0 } else { 32 }, "of sample {i}");
    }
}

#[test]
fn texts_are_answered_in_their_order() {
    let (report, reported) = std::sync::mpsc::channel();
    let report = std::sync::Mutex::new(report);
    let llm = llm().max_tokens(6).seed(1);
    let llm = llm.on_progress(move |done, all| report.lock().unwrap().send((done, all)).unwrap());
    let prompts = ["Once upon a time", "Hello", "Once upon a time"];
    let outputs = llm.generate(prompts, &sampled()).unwrap();
    let progress: Vec<_> = reported.try_iter().collect();
    assert_eq!(progress, [(1, 3), (2, 3), (3, 3)], "progress, after each prompt");
    assert_eq!(
        outputs[0],
        l5_scheduler::llm::Output { cached: outputs[0].cached, ..outputs[2].clone() }
    );
    assert_ne!(outputs[0].prompt, outputs[1].prompt);
    assert!(outputs.iter().all(|output| output.tokens.len() <= 6 && output.seed == 1));
    let tokens: Vec<_> = outputs.iter().map(|output| output.prompt.clone()).collect();
    let again = llm.generate(&tokens, &sampled()).unwrap();
    assert_eq!(again[1].tokens, outputs[1].tokens, "a prompt may be given as tokens");
    assert_eq!(llm.generate(Vec::<&str>::new(), &sampled()).unwrap(), []);
}

#[test]
fn a_prompt_that_cannot_be_meant_is_named_before_anything_runs() {
    let llm = llm();
    let refused = llm.generate(["Hello", ""], &sampled()).unwrap_err();
    assert!(matches!(refused, LlmError::Text { at: 1, .. }), "{refused}");
    let hot = SamplingParams { temperature: f32::NAN, ..SamplingParams::default() };
    let refused = llm.generate(["Hello"], &hot).unwrap_err();
    let LlmError::Prompt { at: 0, why: SubmitError::Params(_) } = refused else {
        panic!("{refused}")
    };
    let guide = Some(GuideSpec::Regex("(".into()).into());
    let broken = EngineRequest { guide, ..requests().remove(0) };
    let refused = llm.run(vec![requests().remove(0), broken]).unwrap_err();
    let LlmError::Prompt { at: 1, why: SubmitError::Guide(_) } = refused else {
        panic!("{refused}")
    };
}

#[test]
fn an_engine_tells_how_it_came_to_be() {
    let llm = llm();
    let names: Vec<_> = llm.startup().steps.iter().map(|step| step.name).collect();
    assert_eq!(names, ["device", "runner", "weights", "kv", "pool", "capture"]);
    let told = llm.startup().to_string();
    assert!(told.lines().count() > 6 && told.contains("blocks"), "{told}");
}

#[test]
fn limits_that_cannot_be_are_told_at_the_start() {
    let start = |engine: EngineOptions| {
        let options = LlmOptions { engine, ..tiny().into() };
        Llm::new(options).map(drop).unwrap_err().to_string()
    };
    let off = EngineOptions::default;
    let few = start(EngineOptions { max_num_batched_tokens: 8, ..off() });
    assert!(few.contains("max_num_batched_tokens"), "{few}");
    let long = start(EngineOptions { max_model_len: Some(1 << 20), ..off() });
    assert!(long.contains("max_model_len must be at most"), "{long}");
    let small = start(EngineOptions { kv_memory: Some("1KiB".parse().unwrap()), ..off() });
    assert!(small.contains("missing"), "{small}");
    let huge = start(EngineOptions { kv_memory: Some("1000TiB".parse().unwrap()), ..off() });
    assert!(huge.contains("kv_memory must be at most") && huge.contains("1000 TiB"), "{huge}");
    let share = start(EngineOptions { memory_utilization: Some(1.5), ..off() });
    assert!(share.contains("utilisation"), "{share}");
}

#[test]
fn a_share_of_the_memory_is_enough_for_a_tiny_model() {
    let engine = EngineOptions {
        memory_utilization: Some(0.25),
        max_num_seqs: 2,
        max_num_batched_tokens: 64,
        max_model_len: Some(64),
        ..EngineOptions::default()
    };
    let planned = EngineModel::open(&tiny(), RuntimeOptions::default());
    // The pool itself would be as large as a real one: only its plan is looked at.
    let memory = planned.unwrap().plan(&engine).unwrap().to_string();
    assert!(memory.contains("- weights") && memory.contains("activations"), "{memory}");
}

/// Two engines of one model and name have one namespace; the architecture alone would be that of every llama.
#[test]
fn the_namespace_of_blocks_has_a_name_and_the_models_digest() {
    let open = || EngineModel::open(&tiny(), RuntimeOptions::default()).unwrap();
    let digest = ModelFiles::open(&tiny()).unwrap().digest();
    let options = |namespace: Option<&str>| EngineOptions {
        namespace: namespace.map(str::to_owned),
        max_model_len: Some(64),
        ..EngineOptions::default()
    };
    let namespace = |namespace| {
        let (core, _) = open().core(&options(namespace)).unwrap();
        core.scheduler().blocks().config().namespace.clone()
    };
    assert_eq!(namespace(None), digest.namespace("llama"));
    assert_eq!(namespace(Some("coder")), digest.namespace("coder"));
    let without = EngineModel { digest: None, ..open() };
    assert_eq!(without.namespace(&options(None)), "llama", "weights of no checkpoint");
}

#[test]
fn answers_end_where_the_rules_say() {
    let llm = llm().stop(StopRules { max_tokens: 3, ignore_eos: true, ..StopRules::default() });
    let output = llm.generate(["Hello"], &SamplingParams::greedy()).unwrap().remove(0);
    assert_eq!((output.tokens.len(), output.finish_reason), (3, FinishReason::Length));
    assert_eq!(output.error, None);
}
