//! The tool that an output calls reaches the lease of its blocks.

use std::sync::{Arc, Mutex};

use l4_sampler::guide::GuideSpec;
use l4_sampler::output::{CallFormat, ToolChoice, ToolDefinition, ToolFormat, ToolParser};
use l4_sampler::{LogprobsOf, SamplingParams};
use l5_scheduler::engine::ModelFacts;
use l5_scheduler::{
    Engine, EngineCore, EngineRequest, Job, Lease, ModelRunner, Note, PolicyContext, Request,
    RequestView, Retain, Retention, Scheduler, SchedulerConfig, StepObserver, StepResult, StepView,
};

use crate::support::{Ask, Ear, prompt, rated, run};
use crate::tiny::{Tiny, tiny};

/// Keeps the blocks of every step of a job.
struct Keeps;

impl Retention for Keeps {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        _: Option<&Note>,
        _: &PolicyContext<'_>,
    ) -> Retain {
        if finished.job().is_some() { Retain::Keep } else { Retain::Free }
    }
}

fn core(tiny: &Tiny) -> EngineCore<ModelRunner> {
    let limits = SchedulerConfig { max_model_len: 256, ..tiny.config(200) };
    let scheduler = Scheduler::new(limits.clone()).unwrap().with_retention(Box::new(Keeps));
    EngineCore::new(scheduler, tiny.runner(&limits))
}

/// A request whose output is this text.
fn writing(tiny: &Tiny, start: &[u32], text: &str) -> Ask {
    Ask::greedy(start, 230).guided(tiny, &GuideSpec::Choice(vec![text.to_owned()]))
}

/// Adds a step of a job.
fn add(
    core: &mut EngineCore<ModelRunner>,
    id: u64,
    job: Option<&str>,
    ask: &Ask,
    calls: Option<CallFormat>,
) -> Ear {
    let ear = Ear::default();
    let mut choice = ask.job(ear.clone());
    choice.calls = calls.map(Arc::new);
    let job = job.map(|id| Job { id: id.to_owned(), last_step: false });
    let request = Request { job, ..ask.request(id, &choice) };
    core.add_request(request, choice).unwrap();
    ear
}

fn tools(core: &EngineCore<ModelRunner>) -> Vec<(u64, Option<String>)> {
    let of = |lease: &Lease| (lease.request.0, lease.tool.clone());
    let mut all: Vec<_> = core.scheduler().leases().iter().map(of).collect();
    all.sort();
    all
}

const CALL: &str = r#"<tool_call>{"name": "search", "arguments": {"q": 7}}</tool_call>"#;
const BLOCK: &str = "Look.\n```bash\ncd src && ls -la\n```";

#[test]
fn the_lease_of_a_step_has_the_tool_that_its_output_calls() {
    let tiny = tiny("tiny-qwen3");
    let mut core = core(&tiny);
    let outputs = [
        (CALL, Some("search")),
        (BLOCK, Some("ls")),
        ("<think>```bash\nrm x\n```</think>Hm.\n```sh\ncat f", Some("cat")),
        (r#"{"name": "now", "parameters": {"zone": "UTC"}}"#, Some("now")),
        ("That is all.", None),
    ];
    let mut ears = Vec::new();
    for (id, (text, _)) in (0..).zip(outputs) {
        let ask = writing(&tiny, &prompt(id as u32, 9), text);
        ears.push(add(&mut core, id, Some(&format!("job {id}")), &ask, None));
    }
    // A request that is no step of a job has no lease, and the engine does not look for its tool.
    add(&mut core, 9, None, &writing(&tiny, &prompt(9, 9), CALL), None);
    run(&mut core);
    for (ear, (text, _)) in ears.iter().zip(outputs) {
        assert_eq!(ear.told().text, text);
    }
    let expected = (0..).zip(outputs).map(|(id, (_, tool))| (id, tool.map(str::to_owned)));
    assert_eq!(tools(&core), expected.collect::<Vec<_>>());
}

/// Keeps no blocks, and what the runner noted.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<Note>>>);

impl Retention for Notes {
    fn retain(
        &mut self,
        _: &RequestView<'_>,
        note: Option<&Note>,
        _: &PolicyContext<'_>,
    ) -> Retain {
        self.0.lock().unwrap().extend(note.cloned());
        Retain::Free
    }
}

#[test]
fn the_command_of_a_call_is_noted_too() {
    let tiny = tiny("tiny-qwen3");
    let limits = SchedulerConfig { max_model_len: 256, ..tiny.config(200) };
    let notes = Notes::default();
    let scheduler = Scheduler::new(limits.clone()).unwrap().with_retention(Box::new(notes.clone()));
    let mut core = EngineCore::new(scheduler, tiny.runner(&limits));
    let run_call =
        r#"<tool_call>{"name": "run", "arguments": {"command": "make -j2 all"}}</tool_call>"#;
    for (id, text) in (0..).zip([BLOCK, run_call, CALL]) {
        add(&mut core, id, Some("a"), &writing(&tiny, &prompt(id as u32, 9), text), None);
        run(&mut core);
    }
    let note = |tool: &str, command: Option<&str>| Note {
        tool: Some(tool.to_owned()),
        command: command.map(str::to_owned),
    };
    let expected = [
        note("ls", Some("cd src && ls -la")),
        note("run", Some("make -j2 all")),
        note("search", None),
    ];
    assert_eq!(*notes.0.lock().unwrap(), expected);
}

#[test]
fn an_output_that_is_cut_off_has_the_tool_that_it_had_begun_to_call() {
    let tiny = tiny("tiny-qwen3");
    let mut core = core(&tiny);
    let ask = writing(&tiny, &prompt(1, 9), BLOCK);
    let tokens = tiny.tokenizer.encode("Look.\n```bash\ncd src && ls -", false).unwrap().len();
    let mut cut = ask.clone();
    cut.stop.max_tokens = tokens;
    let ear = add(&mut core, 1, Some("a"), &cut, None);
    run(&mut core);
    assert!(BLOCK.starts_with(&ear.told().text) && ear.told().text.len() < BLOCK.len());
    assert_eq!(tools(&core), [(1, Some("ls".to_owned()))]);
}

#[test]
fn reasoning_that_the_prompt_has_opened_is_left_out() {
    let tiny = tiny("tiny-qwen3");
    let mut core = core(&tiny);
    let start = tiny.tokenizer.encode("Hello.<think>\n", false).unwrap();
    let text = "```bash\nrm x\n```\n</think>\n```bash\nls\n```";
    add(&mut core, 1, Some("a"), &writing(&tiny, &start, text), None);
    run(&mut core);
    assert_eq!(tools(&core), [(1, Some("ls".to_owned()))]);
}

#[test]
fn a_preempted_step_is_read_from_its_first_token() {
    let tiny = tiny("tiny-qwen3");
    // Too few blocks for two outputs: one is preempted after it has written a part of its call.
    let limits = SchedulerConfig { max_model_len: 120, ..tiny.config(31) };
    let scheduler = Scheduler::new(limits.clone()).unwrap().with_retention(Box::new(Keeps));
    let mut core = EngineCore::new(scheduler, tiny.runner(&limits));
    // Sampled, not forced: each step writes a token.
    for id in 0..2 {
        let ask = writing(&tiny, &prompt(id as u32, 50), CALL);
        let ask = ask.with(rated(SamplingParams::greedy(), LogprobsOf::Raw));
        add(&mut core, id, Some(&format!("job {id}")), &ask, None);
    }
    run(&mut core);
    assert!(core.scheduler().stats().preemptions > 0, "one was preempted");
    let named = tools(&core);
    assert!(named.iter().all(|(_, tool)| tool.as_deref() == Some("search")), "{named:?}");
    assert!(!named.is_empty());
}

/// Tools of the leases after every step.
#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Vec<Option<String>>>>);

impl StepObserver for Watch {
    fn planned(&mut self, _: &StepView<'_>, _: &Scheduler) {}

    fn applied(&mut self, _: &StepResult, scheduler: &Scheduler) {
        let all = scheduler.leases().iter().map(|lease| lease.tool.clone());
        *self.0.lock().unwrap() = all.collect();
    }
}

#[test]
fn a_request_to_an_engine_says_how_its_output_calls() {
    let tiny = tiny("tiny-qwen3");
    let facts = ModelFacts {
        vocab: tiny.vocab(),
        tokenizer: Some(tiny.tokenizer.clone()),
        stop_tokens: tiny.ends.clone(),
    };
    let engine = Engine::start(core(&tiny), facts, 9).unwrap();
    let watch = Watch::default();
    engine.handle().observe(Box::new(watch.clone())).unwrap();
    // The output is the arguments of the function that the request names: only its own parser knows which.
    let weather = [ToolDefinition { name: "get_weather", parameters: None }];
    let named = ToolChoice::Named("get_weather".to_owned());
    let parser = ToolParser::new(ToolFormat::None, &weather, &named);
    let Ask { prompt, params, stop, .. } = Ask::greedy(&prompt(3, 9), 60);
    let request = EngineRequest {
        guide: Some(GuideSpec::Choice(vec!["{\"city\": \"Ulm\"}".to_owned()]).into()),
        job: Some(Job { id: "a".to_owned(), last_step: false }),
        calls: Some(Arc::new(CallFormat { reasoning: None, tools: Some(parser) })),
        ..EngineRequest::new(prompt, params, stop)
    };
    engine.handle().submit(request).unwrap().rest();
    engine.handle().drain().unwrap();
    assert_eq!(*watch.0.lock().unwrap(), [Some("get_weather".to_owned())]);
}
