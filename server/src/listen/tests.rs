//! A server in this process, around an engine that fails after a given number of steps.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use l2_model::tokenizer::Tokenizer;
use l5_scheduler::engine::ModelFacts;
use l5_scheduler::{
    BySeat, Caps, ChoiceJob, Engine, EngineCore, ExecuteError, Executor, FinishReason, OutputEnd,
    PolicyKind, RequestId, Scheduler, SchedulerConfig, StepHandle, StepOutput, StepView,
    TokenDelta,
};
use l6_ensemble::{Lane, LaneId, Replica, ReplicaId};
use tokio::sync::oneshot;

mod observed;
mod shadows;
mod traces;

use super::*;
use crate::background::Background;
use crate::door::Door;
use crate::ensemble::Ensemble;
use crate::metrics::{Metrics, SharedSlo};
use crate::{LaneDefaults, Lanes, Limits, ServedLane, ServedModel, ServerOptions};
use l4_sampler::output::{ReasoningFormat, ToolFormat};

/// Maximum time that a test waits.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Generates token 5 for every row of each step that `begin_step` lets pass.
struct Scripted {
    jobs: BySeat<ChoiceJob>,
    begin_step: Box<dyn FnMut() -> Result<(), ExecuteError> + Send>,
}

impl Scripted {
    fn new(begin_step: impl FnMut() -> Result<(), ExecuteError> + Send + 'static) -> Self {
        Self { jobs: BySeat::default(), begin_step: Box::new(begin_step) }
    }

    /// An executor that fails after a number of steps.
    fn fails_after(mut steps: usize, panics: bool) -> Self {
        Self::new(move || {
            if steps == 0 {
                assert!(!panics, "test panic");
                return Err(ExecuteError::Malformed("test failure".into()));
            }
            steps -= 1;
            Ok(())
        })
    }
}

impl Executor for Scripted {
    type Job = ChoiceJob;
    type Error = ExecuteError;

    fn caps(&self) -> Caps {
        Caps { max_tokens: usize::MAX, max_seqs: usize::MAX, ..Caps::default() }
    }

    fn begin(&mut self, id: RequestId, job: ChoiceJob) {
        self.jobs.insert(id, job);
    }

    fn collect(
        &mut self,
        _: StepHandle,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), ExecuteError> {
        (self.begin_step)()?;
        for (number, row) in step.rows().enumerate().filter(|(_, row)| row.row.samples) {
            let job = self.jobs.seated(row.row.seat, row.row.id).unwrap();
            job.sink.push(&TokenDelta { tokens: &[5], text: "five ", logprobs: &[] });
            out.push(number, &[5], None);
        }
        Ok(())
    }

    fn end(&mut self, id: RequestId, finish: FinishReason) {
        // A sink that is dropped without an end reports a failure.
        let Some(mut job) = self.jobs.remove(id) else { return };
        if finish == FinishReason::Length {
            job.sink.end(&OutputEnd::of(finish));
        }
    }
}

/// A server that fails in a step, the address it listens on, and how it ended.
fn server(
    steps: usize,
    panics: bool,
    limits: Limits,
) -> (Engine, SocketAddr, JoinHandle<Result<(), ServeError>>) {
    let (engine, _, address, server) = serving(steps, panics, limits);
    (engine, address, server)
}

/// The same, and the parts of the server.
fn serving(
    steps: usize,
    panics: bool,
    limits: Limits,
) -> (Engine, App, SocketAddr, JoinHandle<Result<(), ServeError>>) {
    let (mut engines, app, address, server) = serving_lane(&[steps], panics, limits);
    (engines.remove(0), app, address, server)
}

/// A server whose lane has a replica for each of these numbers of steps, after which it fails.
fn serving_lane(
    steps: &[usize],
    panics: bool,
    limits: Limits,
) -> (Vec<Engine>, App, SocketAddr, JoinHandle<Result<(), ServeError>>) {
    let (metrics, background) = (Metrics::default(), Background::default());
    let options = ServerOptions { port: 0, limits, ..ServerOptions::default() };
    let (engines, served) = lane("tiny", steps, panics, &metrics, &background, &options);
    let app = App::new(Lanes::single(served), options.into(), metrics, background);
    let (app, address, thread) = run(app);
    (engines, app, address, thread)
}

/// A lane with a replica for each of these numbers of steps, after which it fails.
fn lane(
    name: &str,
    steps: &[usize],
    panics: bool,
    metrics: &Metrics,
    background: &Background,
    options: &ServerOptions,
) -> (Vec<Engine>, ServedLane) {
    let config = SchedulerConfig { enable_prefix_caching: false, ..SchedulerConfig::new(1000, 16) };
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
    let tokenizer = Tokenizer::from_hf_dir(directory).unwrap();
    let engine = |steps: &usize| {
        let executor = Scripted::fails_after(*steps, panics);
        let core = EngineCore::new(Scheduler::new(config.clone()).unwrap(), executor);
        let tokenizer = Some(tokenizer.clone());
        let facts = ModelFacts { vocab: 384, tokenizer, stop_tokens: Vec::new() };
        Engine::start(core, facts, 16).unwrap()
    };
    let engines: Vec<Engine> = steps.iter().map(engine).collect();
    let served =
        served_lane(name, &engines, config.policy, tokenizer, metrics, background, options);
    (engines, served)
}

/// A lane of engines that are there.
fn served_lane(
    name: &str,
    engines: &[Engine],
    policy: PolicyKind,
    tokenizer: Tokenizer,
    metrics: &Metrics,
    background: &Background,
    options: &ServerOptions,
) -> ServedLane {
    let model = ServedModel {
        names: vec![name.into()],
        alias: None,
        root: "tiny".into(),
        tokenizer,
        template: None,
        developer: false,
        roles: Default::default(),
        tools: ToolFormat::None,
        reasoning: ReasoningFormat::None,
        defaults: Default::default(),
        max_model_len: engines[0].handle().config().max_model_len,
        created: 0,
    };
    let replica = |engine: &Engine| Arc::new(engine.handle().clone()) as Arc<dyn Replica>;
    let replicas = engines.iter().map(replica).collect();
    let lane = Lane::new(LaneId(name.into()), replicas, model.into()).unwrap();
    let numbered = (0..).map(ReplicaId).zip(engines.iter().map(Engine::handle));
    let slo = SharedSlo::new(Default::default(), Default::default());
    let own = metrics.lane(numbered, name, "auto", slo).unwrap();
    let door = Door::new(engines.iter().map(Engine::handle), policy, 16);
    ServedLane::new(lane, LaneDefaults::default(), door, own, background, options)
}

/// Runs a server on a thread.
fn run(app: App) -> (App, SocketAddr, JoinHandle<Result<(), ServeError>>) {
    let (report, address) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::bind(app).await.unwrap();
            let Ok(()) = report.send((server.app().clone(), server.address().unwrap())) else {
                return Ok(());
            };
            server.run().await
        })
    });
    let (app, address) = address.blocking_recv().unwrap();
    (app, address, thread)
}

/// Sends a request and reads until the server closes the connection.
fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    String::from_utf8(response).unwrap()
}

fn completion(stream: bool) -> String {
    let body = format!(r#"{{"prompt": [1, 2, 3], "max_tokens": 400, "stream": {stream}}}"#);
    format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

const HEALTH: &str = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[test]
fn a_failed_engine_fails_all_requests_and_ends_the_server() {
    for panics in [false, true] {
        let (_engine, address, server) = server(50, panics, Limits::default());
        assert!(ask(address, HEALTH).starts_with("HTTP/1.1 200"));
        // A stream has begun: its error is an event.
        let stream = std::thread::spawn(move || ask(address, &completion(true)));
        let whole = ask(address, &completion(false));
        assert!(whole.starts_with("HTTP/1.1 500") && whole.contains("engine_failed"), "{whole}");
        let stream = stream.join().unwrap();
        assert!(stream.contains("engine_failed"), "{stream}");
        if !panics {
            // One failed step may be the fault of a request in it; the next failure is the engine's.
            let again = ask(address, &completion(false));
            assert!(again.starts_with("HTTP/1.1 500"), "{again}");
        }
        while !ask(address, HEALTH).starts_with("HTTP/1.1 503") {}
        let refused = ask(address, &completion(false));
        assert!(refused.starts_with("HTTP/1.1 500") && refused.contains("connection: close"));
        let why = server.join().unwrap().unwrap_err();
        assert!(matches!(why, ServeError::Engine(EngineError::Failed(_))), "{why}");
    }
}

#[test]
fn a_replica_that_fails_is_counted_by_its_number_and_the_lane_goes_on() {
    let (engines, app, address, server) = serving_lane(&[0, 1_000_000], true, Limits::default());
    let scrape = || ask(address, &HEALTH.replace("/health", "/metrics"));
    let ended = |text: &str, engine: u32, reason: &str| {
        let labels = [format!("engine=\"{engine}\""), format!("finished_reason=\"{reason}\"")];
        let family = text.lines().filter(|line| line.starts_with("vllm:request_success_total{"));
        let mut own = family.filter(|line| labels.iter().all(|label| line.contains(label)));
        let value = own.next().and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        value.unwrap_or_else(|| panic!("no {reason} of engine {engine} in {text}"))
    };
    let before = scrape();
    for family in
        ["vllm:num_requests_running{", "vllm:kv_cache_usage_perc{", "vllm:cache_config_info{"]
    {
        let series = before.lines().filter(|line| line.starts_with(family));
        assert_eq!(series.count(), 2, "{family}");
    }
    // Both are idle: the first one takes it.
    let failed = ask(address, &completion(false));
    assert!(failed.starts_with("HTTP/1.1 500") && failed.contains("engine_failed"), "{failed}");
    while app.lanes.now().first().lane.replicas().all(|(_, replica)| replica.ended().is_none()) {
        std::thread::yield_now();
    }
    let served = ask(address, &completion(false));
    assert!(served.starts_with("HTTP/1.1 200"), "{served}");
    assert!(served.contains("x-strata-replica: 1"), "{served}");
    assert!(ask(address, HEALTH).starts_with("HTTP/1.1 200"), "one replica lives");
    // A client has its response before the step that ended it is counted.
    let finished = || app.metrics.state(app.lanes.now().first(), &app.lifecycle).requests.finished;
    while finished() < 2 {
        std::thread::yield_now();
    }
    let text = scrape();
    assert_eq!((ended(&text, 0, "error"), ended(&text, 0, "length")), (1, 0));
    assert_eq!((ended(&text, 1, "error"), ended(&text, 1, "length")), (0, 1));
    let state = app.metrics.state(app.lanes.now().first(), &app.lifecycle);
    assert_eq!((state.requests.finished, state.tokens.generated), (2, 400));
    for engine in engines {
        let _ = engine.shutdown();
    }
    while !ask(address, HEALTH).starts_with("HTTP/1.1 503") {}
    assert!(server.join().unwrap().is_err(), "the lane has failed");
}

#[test]
fn while_a_specialist_is_down_its_fallback_serves_and_the_others_go_on() {
    let file = "name = \"pair\"\nmodel = \"t\"\n[router]\nclassifier = \"off\"\n\
                [[specialist]]\nname = \"one\"\nintents = [\"debug\"]\nfallback = \"two\"\n\
                [[specialist]]\nname = \"two\"\n";
    let config = l6_ensemble::EnsembleConfig::parse(file).unwrap();
    let (metrics, background) = (Metrics::default(), Background::default());
    let options = ServerOptions { port: 0, ..ServerOptions::default() };
    let lane = |name, steps| lane(name, &[steps], true, &metrics, &background, &options);
    let ((mut engines, one), (others, two)) = (lane("one", 0), lane("two", 1_000_000));
    engines.extend(others);
    let ensemble = Ensemble::new(config, metrics.routes(["one", "two"].into_iter())).unwrap();
    let lanes = Lanes::ensemble(ensemble, vec![one, two]);
    let (app, address, server) = run(App::new(lanes, options.into(), metrics, background));
    let debug = |more: &str| {
        let body = format!(r#"{{"prompt": [1, 2, 3], "max_tokens": 5, "intent": "debug"{more}}}"#);
        let head = completion(false);
        let (head, _) = head.split_once("Content-Length").unwrap();
        ask(address, &format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()))
    };
    let failed = debug("");
    assert!(failed.starts_with("HTTP/1.1 500") && failed.contains("engine_failed"), "{failed}");
    while app.lanes.now()[0].lane.ended().is_none() {
        std::thread::yield_now();
    }
    for more in ["", r#", "specialist": "one""#, r#", "model": "one""#] {
        let served = debug(more);
        assert!(served.starts_with("HTTP/1.1 200"), "{served}");
        assert!(served.contains("x-strata-specialist: two"), "{served}");
        assert!(served.contains("fallback of one, which is down"), "{served}");
    }
    assert!(ask(address, HEALTH).starts_with("HTTP/1.1 200"), "a specialist lives");
    let lanes = ask(address, &HEALTH.replace("/health", "/strata/lanes"));
    assert!(lanes.contains(r#""lane":"one","engines":0"#), "{lanes}");
    for engine in engines {
        let _ = engine.shutdown();
    }
    while !ask(address, HEALTH).starts_with("HTTP/1.1 503") {}
    assert!(server.join().unwrap().is_err(), "all specialists have failed");
}

#[test]
fn a_head_that_does_not_arrive_in_time_closes_the_connection() {
    let limits = Limits { head_timeout: Duration::from_millis(50), ..Limits::default() };
    let (engine, address, server) = server(0, false, limits);
    let began = Instant::now();
    for half in ["", "GET /health HTT", "GET /health HTTP/1.1\r\nX-Slow: "] {
        let response = ask(address, half);
        assert!(!response.starts_with("HTTP/1.1 200"), "{response}");
    }
    // Without one, hyper's own limit of 30 seconds would hold.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(ask(address, HEALTH).starts_with("HTTP/1.1 200"));
    engine.shutdown().unwrap();
    assert!(server.join().unwrap().is_err(), "a server ends when its engine has ended");
}

#[test]
fn a_body_that_does_not_arrive_in_time_is_an_error() {
    let limits = Limits { body_timeout: Duration::from_millis(50), ..Limits::default() };
    let (engine, address, server) = server(0, false, limits);
    let request = completion(false);
    let response = ask(address, &request[..request.len() - 5]);
    assert!(
        response.starts_with("HTTP/1.1 408") && response.contains("body_timeout"),
        "{response}"
    );
    engine.shutdown().unwrap();
    assert!(server.join().unwrap().is_err());
}

#[test]
fn a_connection_above_the_limit_closes_the_one_that_has_been_idle_longest() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let (engine, address, server) = server(0, false, limits);
    let kept = HEALTH.replace("Connection: close\r\n", "");
    let open = || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    };
    // The end of a head, and of a response without a body.
    let asks = |stream: &mut TcpStream| {
        let mut response = Vec::new();
        stream.write_all(kept.as_bytes()).unwrap();
        while !response.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match stream.read(&mut byte) {
                Ok(1) => response.push(byte[0]),
                _ => return false,
            }
        }
        response.starts_with(b"HTTP/1.1 200")
    };
    let mut one = open();
    assert!(asks(&mut one));
    // The first has had its response, and the second sends half a body.
    let mut two = open();
    let request = completion(false);
    two.write_all(&request.as_bytes()[..request.len() - 5]).unwrap();
    let mut three = open();
    assert!(asks(&mut three), "a third one is served while two idle ones are at the limit");
    let mut four = open();
    assert!(asks(&mut four));
    // Of the first three, one is still open: reading from it waits. One that is closed ends, or is reset where the
    // server had not read all of its bytes.
    let mut first = [one, two, three];
    let left = first.iter_mut().filter(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let ended = (&**stream).read(&mut [0]);
        ended.is_err_and(|e| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    });
    assert_eq!(left.count(), 1, "two were closed");
    engine.shutdown().unwrap();
    assert!(server.join().unwrap().is_err());
}

/// Begins a step, and ends it only when the test allows it.
struct Stuck {
    began: std::sync::mpsc::Sender<()>,
    may_end: std::sync::mpsc::Receiver<()>,
}

impl Executor for Stuck {
    type Job = ChoiceJob;
    type Error = ExecuteError;

    fn caps(&self) -> Caps {
        Caps { max_tokens: usize::MAX, max_seqs: usize::MAX, ..Caps::default() }
    }

    fn begin(&mut self, _: RequestId, _: ChoiceJob) {}

    fn collect(
        &mut self,
        _: StepHandle,
        _: &StepView<'_>,
        _: &mut StepOutput,
    ) -> Result<(), ExecuteError> {
        let _ = self.began.send(());
        let _ = self.may_end.recv();
        Err(ExecuteError::Malformed("the step was stuck".into()))
    }

    fn end(&mut self, _: RequestId, _: FinishReason) {}
}

#[test]
fn a_step_that_never_ends_does_not_keep_the_process_from_ending() {
    let (began, begins) = std::sync::mpsc::channel();
    let (ends, may_end) = std::sync::mpsc::channel();
    let config = SchedulerConfig { enable_prefix_caching: false, ..SchedulerConfig::new(100, 16) };
    let core = EngineCore::new(Scheduler::new(config).unwrap(), Stuck { began, may_end });
    let facts = ModelFacts { vocab: 384, ..ModelFacts::default() };
    let engine = Engine::start(core, facts, 16).unwrap();
    let request = l5_scheduler::EngineRequest { prompt: [1, 2].into(), ..Default::default() };
    let _response = engine.handle().submit(request).unwrap();
    begins.recv().unwrap();
    let stuck = shut_down_within(vec![engine], Duration::from_millis(50));
    assert!(matches!(stuck, Err(ServeError::Stuck(_))), "{stuck:?}");
    drop(ends);
}

#[test]
fn a_guide_is_not_compiled_for_a_client_that_has_gone() {
    let (engine, app, address, server) = serving(0, false, Limits::default());
    // Others are being compiled.
    let seats = app.lanes.now().first().generation.admission.occupy_compiling();
    let body = r#"{"prompt": [1, 2, 3], "guided_regex": "[a-z]{5}"}"#;
    let head = completion(false);
    let head = head.split("\r\n\r\n").next().unwrap();
    let length = head.lines().find(|line| line.starts_with("Content-Length")).unwrap();
    let head = head.replace(length, &format!("Content-Length: {}", body.len()));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    while app.lifecycle.requests().now() == 0 {
        std::thread::yield_now();
    }
    drop(stream);
    while app.lifecycle.requests().now() > 0 {
        std::thread::yield_now();
    }
    drop(seats);
    // A client that stays has its guide compiled, and nothing was compiled before.
    let response = ask(address, &format!("{head}\r\n\r\n{body}"));
    assert!(
        response.starts_with("HTTP/1.1 500"),
        "the engine fails, and not the guide: {response}"
    );
    assert_eq!(engine.handle().guide_stats().compilations, 1);
    engine.shutdown().unwrap();
    assert!(server.join().unwrap().is_err());
}
