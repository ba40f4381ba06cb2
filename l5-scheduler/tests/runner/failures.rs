//! What goes wrong for one, and what goes wrong for all.

use l4_sampler::guide::{GuideError, GuideSpec};
use l4_sampler::stop::StopRules;
use l4_sampler::{ParamError, SamplingParams};
use l5_scheduler::{
    EngineCore, ExecuteError, Executor, FinishReason, ModelRunner, Request, RequestId, Scheduler,
    SchedulerConfig,
};

use crate::support::{Ask, Ear, MAX_LEN, ask, drawn, prompt, run};
use crate::tiny::tiny;

#[test]
fn a_job_that_cannot_be_meant_is_refused_by_name() {
    let tiny = tiny("tiny-llama");
    let runner = tiny.runner(&tiny.config(16));
    let refused = |ask: Ask| runner.check(&ask.job(Ear::default())).unwrap_err().to_string();
    let plain = Ask::greedy(&prompt(0, 5), 4);
    let hot = refused(plain.clone().with(drawn(-1.0)));
    assert!(hot.contains("temperature"), "{hot}");
    let foreign = refused(Ask { prompt: vec![1, 1_000_000], ..plain.clone() });
    assert!(foreign.contains("token id 1000000"), "{foreign}");
    runner.check(&plain.job(Ear::default())).unwrap();
}

#[test]
fn a_job_that_was_not_checked_fails_alone() {
    let tiny = tiny("tiny-llama");
    let config = tiny.config(64);
    let mut core = tiny.core(&config);
    let plain = Ask::greedy(&prompt(0, 9), 6);
    let foreign = Ask { prompt: vec![1, 1_000_000, 2], ..plain.clone() };
    let none = SamplingParams { allowed_tokens: Some(vec![]), ..SamplingParams::default() };
    let empty = StopRules { strings: vec![String::new()], ..plain.stop.clone() };
    let bad = [
        (foreign, "token id 1000000 is out of range"),
        (plain.clone().with(drawn(f32::NAN)), "temperature must be"),
        (plain.clone().with(none), "allowed_tokens is empty"),
        (Ask { stop: empty, ..plain.clone() }, "a stop string is empty"),
    ];
    let ears: Vec<_> = bad.iter().zip(1..).map(|((of, _), id)| ask(&mut core, id, of)).collect();
    // It begins with blocks that were computed for those.
    let stays = ask(&mut core, 0, &plain);
    run(&mut core);
    for (ear, (_, why)) in ears.iter().zip(&bad) {
        let told = ear.told();
        assert_eq!(told.finish(), Some(FinishReason::Failed), "how it ended ({why})");
        let error = told.ends[0].error.clone().unwrap_or_default();
        assert!(error.contains(why), "expected {why:?} in {error:?}");
        assert_eq!(told.tokens.len(), 0, "tokens of an answer that failed");
    }
    assert_eq!(stays.told().tokens, tiny.solo(&plain, MAX_LEN).tokens, "the other one's tokens");
}

#[test]
fn stop_strings_without_a_tokenizer_are_refused() {
    let tiny = tiny("tiny-llama");
    let config = tiny.config(64);
    let (decoder, dtype) = (tiny.decoder.clone(), tiny.rt.activation_dtype());
    let runner = ModelRunner::new(decoder, None, &tiny.rt, &config, dtype).unwrap();
    let stop = StopRules { strings: vec!["x".into()], max_tokens: 9, ..StopRules::default() };
    let asked = Ask { stop, ..Ask::greedy(&prompt(0, 5), 9) };
    let refused = runner.check(&asked.job(Ear::default())).unwrap_err();
    assert_eq!(refused.to_string(), ParamError::StopWithoutText.to_string());
    let mut core = EngineCore::new(Scheduler::new(config).unwrap(), runner);
    let failed = ask(&mut core, 0, &asked);
    let plain = Ask::greedy(&prompt(1, 5), 9);
    let without_text = ask(&mut core, 1, &plain);
    run(&mut core);
    assert_eq!(failed.told().finish(), Some(FinishReason::Failed), "how it ended");
    let told = without_text.told();
    assert_eq!(told.tokens, tiny.solo(&plain, MAX_LEN).tokens, "tokens need no tokenizer");
    assert_eq!(told.text, "", "text does");
}

#[test]
fn a_context_longer_than_the_models_is_refused() {
    let tiny = tiny("tiny-llama");
    let longest = tiny.decoder.config().max_context;
    let config = SchedulerConfig { max_model_len: longest + 1, ..tiny.config(16) };
    let (decoder, dtype) = (tiny.decoder.clone(), tiny.rt.activation_dtype());
    let made = ModelRunner::new(decoder, None, &tiny.rt, &config, dtype);
    let why = made.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(why.contains(&format!("max_model_len must be at most {longest}")), "{why:?}");
}

#[test]
fn a_step_that_is_planned_without_a_job_is_an_error_and_not_a_panic() {
    let tiny = tiny("tiny-llama");
    let config = tiny.config(64);
    let mut runner = tiny.runner(&config);
    let mut scheduler = Scheduler::new(config).unwrap();
    let asked = Ask::greedy(&prompt(0, 5), 9);
    let request = asked.request(7, &asked.job(Ear::default()));
    scheduler.add_request(request).unwrap();
    scheduler.plan(l5_scheduler::Time(0.0));
    let mut out = l5_scheduler::StepOutput::default();
    let ran = runner.execute(&scheduler.view(), &mut out);
    assert!(matches!(ran, Err(ExecuteError::Malformed(_))), "{ran:?}");
    assert_eq!(out.rows().count(), 0, "rows that came out");
}

/// Its job says one prompt and its request another, with a token that the model does not have: nothing that anybody checks.
fn culprit(core: &mut EngineCore<ModelRunner>, id: u64) -> Ear {
    let ear = Ear::default();
    let asked = Ask::greedy(&prompt(3, 5), 9);
    let job = asked.job(ear.clone());
    let request = Request { prompt: vec![1, 1_000_000], ..asked.request(id, &job) };
    core.add_request(request, job).unwrap();
    ear
}

#[test]
fn a_step_that_the_model_refuses_has_told_nobody_anything() {
    let tiny = tiny("tiny-llama");
    let config = tiny.config(64);
    let mut core = tiny.core(&config);
    let spec = GuideSpec::Regex("(yes|no), (I am|we are) (sure|not sure)".into());
    let guided = Ask::greedy(&prompt(0, 9), 30).guided(&tiny, &spec);
    let drawn = Ask::greedy(&prompt(1, 6), 12).with(drawn(0.9)).seeded(3, 0);
    let ears = [ask(&mut core, 0, &guided), ask(&mut core, 1, &drawn)];
    core.step().unwrap();
    let had = [0, 1].map(|i: usize| ears[i].told());
    culprit(&mut core, 2);
    for _ in 0..3 {
        let error = core.step().unwrap_err().to_string();
        assert!(error.contains("token id 1000000"), "{error}");
        assert_eq!([0, 1].map(|i: usize| ears[i].told()), had, "what the others were told");
    }
    core.abort(RequestId(2));
    run(&mut core);
    for (ear, of) in ears.iter().zip([&guided, &drawn]) {
        let (told, alone) = (ear.told(), tiny.solo(of, MAX_LEN));
        assert_eq!(
            (told.tokens, told.text),
            (alone.tokens, alone.text),
            "tokens and text, and alone"
        );
    }
}

#[test]
fn whoever_is_ended_with_a_broken_step_is_told_why() {
    let tiny = tiny("tiny-llama");
    let mut core = tiny.core(&tiny.config(64));
    let ears = [culprit(&mut core, 0), ask(&mut core, 1, &Ask::greedy(&prompt(0, 9), 6))];
    let error = core.step().unwrap_err();
    core.fail_step(&error);
    assert!(!core.has_unfinished(), "nobody is left");
    for ear in ears {
        let told = ear.told();
        assert_eq!(told.finish(), Some(FinishReason::Failed), "how it ended");
        assert_eq!(told.ends[0].error, Some(error.to_string()), "what it was told");
    }
}

#[test]
fn of_guides_that_take_too_much_memory_together_the_largest_give_up() {
    let tiny = tiny("tiny-llama");
    let config = tiny.config(64);
    // A lexer has a state for each remainder.
    let large = serde_json::json!({"type": "integer", "multipleOf": 9973, "maximum": 99_730});
    let large = GuideSpec::JsonSchema(large);
    let small = GuideSpec::Choice(vec!["yes".into(), "no".into()]);
    let asks = [&large, &small].map(|spec| Ask::greedy(&prompt(0, 9), 30).guided(&tiny, spec));
    for (memory, gives_up) in [(usize::MAX, false), (0, true)] {
        let runner = tiny.runner(&config).with_guide_memory(memory);
        let mut core = EngineCore::new(Scheduler::new(config.clone()).unwrap(), runner);
        let ears = [ask(&mut core, 0, &asks[0]), ask(&mut core, 1, &asks[1])];
        run(&mut core);
        let ends = ears.map(|ear| ear.told().ends.remove(0));
        assert_eq!(ends[1].finish, FinishReason::Stop, "a small one goes on: {:?}", ends[1]);
        assert_eq!(ends[0].finish == FinishReason::Failed, gives_up, "{:?}", ends[0]);
        let why = ends[0].error.as_deref().unwrap_or_default();
        assert_eq!(why.starts_with(GuideError::GAVE_UP), gives_up, "{why}");
    }
}
