//! A server in this process, around an engine that fails when it is told to: no real one does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use l2_model::tokenizer::Tokenizer;
use l5_scheduler::engine::ModelFacts;
use l5_scheduler::{
    AnswerJob, Caps, Engine, EngineCore, ExecuteError, Executor, FinishReason, News, RequestId,
    Scheduler, SchedulerConfig, StepOutput, StepView,
};
use tokio::sync::oneshot;

use super::*;
use crate::server::chat::reasoning::ReasoningFormat;
use crate::server::chat::tools::ToolFormat;
use crate::server::metrics::Metrics;
use crate::server::{Limits, ServedModel, ServerOptions};

/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers everything with token 5, until it has done so a number of times.
struct Fails {
    jobs: Vec<Option<AnswerJob>>,
    steps: usize,
    panics: bool,
}

impl Executor for Fails {
    type Job = AnswerJob;

    fn caps(&self) -> Caps {
        Caps { max_tokens: usize::MAX, max_seqs: usize::MAX, ..Caps::default() }
    }

    fn begin(&mut self, place: u32, _: RequestId, job: AnswerJob) {
        let place = place as usize;
        self.jobs.resize_with(self.jobs.len().max(place + 1), || None);
        self.jobs[place] = Some(job);
    }

    fn execute(&mut self, step: &StepView<'_>, out: &mut StepOutput) -> Result<(), ExecuteError> {
        if self.steps == 0 {
            assert!(!self.panics, "a wheel came off");
            return Err(ExecuteError::Malformed("a cable came loose".into()));
        }
        self.steps -= 1;
        for (number, row) in step.rows().enumerate().filter(|(_, row)| row.row.samples) {
            let job = self.jobs[row.row.place as usize].as_mut().unwrap();
            job.sink.push(&News { tokens: &[5], text: "five ", logprobs: &[] });
            out.push(number, &[5], None);
        }
        Ok(())
    }

    fn end(&mut self, place: u32, _: RequestId, _: FinishReason) {
        // Its sink tells who waits that nothing more comes.
        self.jobs[place as usize] = None;
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

/// The same, and what its requests see.
fn serving(
    steps: usize,
    panics: bool,
    limits: Limits,
) -> (Engine, Arc<App>, SocketAddr, JoinHandle<Result<(), ServeError>>) {
    let config = SchedulerConfig { enable_prefix_caching: false, ..SchedulerConfig::new(1000, 16) };
    let max_model_len = config.max_model_len;
    let executor = Fails { jobs: Vec::new(), steps, panics };
    let core = EngineCore::new(Scheduler::new(config).unwrap(), executor);
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
    let tokenizer = Tokenizer::from_hf_dir(directory).unwrap();
    let facts =
        ModelFacts { vocab: 384, tokenizer: Some(tokenizer.clone()), stop_tokens: Vec::new() };
    let engine = Engine::start(core, facts, 16).unwrap();
    let app = App {
        engine: engine.handle().clone(),
        model: ServedModel {
            names: vec!["tiny".into()],
            alias: None,
            root: "tiny".into(),
            tokenizer,
            template: None,
            developer: false,
            roles: Default::default(),
            tools: ToolFormat::None,
            reasoning: ReasoningFormat::None,
            defaults: Default::default(),
            max_model_len,
            created: 0,
        },
        options: ServerOptions { port: 0, limits, ..ServerOptions::default() },
        longest_token: Default::default(),
        background: Default::default(),
        compiling: Default::default(),
        parsed: Default::default(),
        metrics: Metrics::new(engine.handle(), "tiny", "auto").unwrap(),
        life: Default::default(),
    };
    let (tell, address) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::bind(app).await.unwrap();
            let Ok(()) = tell.send((server.app().clone(), server.address().unwrap())) else {
                return Ok(());
            };
            server.run().await
        })
    });
    let (app, address) = address.blocking_recv().unwrap();
    (engine, app, address, thread)
}

/// Send this, and read until the server closes.
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
fn a_failed_engine_is_told_to_everybody_and_ends_the_server() {
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
            // One step that fails may be the fault of who was in it; the next one is the engine's.
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
fn a_head_that_does_not_come_in_time_is_not_waited_for() {
    let limits = Limits { head_timeout: Duration::from_millis(50), ..Limits::default() };
    let (engine, address, server) = server(0, false, limits);
    let began = Instant::now();
    for half in ["", "GET /health HTT", "GET /health HTTP/1.1\r\nX-Slow: "] {
        let told = ask(address, half);
        assert!(!told.starts_with("HTTP/1.1 200"), "{told}");
    }
    // Without one, hyper's own limit of 30 seconds would hold.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(ask(address, HEALTH).starts_with("HTTP/1.1 200"));
    engine.shutdown().unwrap();
    assert!(server.join().unwrap().is_err(), "an engine that is no more cannot be served");
}

#[test]
fn a_body_that_does_not_come_in_time_is_told_so() {
    let limits = Limits { body_timeout: Duration::from_millis(50), ..Limits::default() };
    let (engine, address, server) = server(0, false, limits);
    let request = completion(false);
    let told = ask(address, &request[..request.len() - 5]);
    assert!(told.starts_with("HTTP/1.1 408") && told.contains("body_timeout"), "{told}");
    engine.shutdown().unwrap();
    assert!(server.join().unwrap().is_err());
}

#[test]
fn a_connection_above_the_limit_takes_the_place_of_the_one_that_sends_nothing_for_longest() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let (engine, address, server) = server(0, false, limits);
    let kept = HEALTH.replace("Connection: close\r\n", "");
    let open = || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
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
    assert!(asks(&mut three), "a third one is served while two that send nothing hold all places");
    let mut four = open();
    assert!(asks(&mut four));
    // Of the first three, one has its place still.
    let mut first = [one, two, three];
    let left = first.iter_mut().filter_map(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        stream.read(&mut [0]).err()
    });
    assert_eq!(left.count(), 1, "two were closed");
    engine.shutdown().unwrap();
    assert!(server.join().unwrap().is_err());
}

/// Begins a step and does not end it before it may.
struct Stuck {
    began: std::sync::mpsc::Sender<()>,
    may_end: std::sync::mpsc::Receiver<()>,
}

impl Executor for Stuck {
    type Job = AnswerJob;

    fn caps(&self) -> Caps {
        Caps { max_tokens: usize::MAX, max_seqs: usize::MAX, ..Caps::default() }
    }

    fn begin(&mut self, _: u32, _: RequestId, _: AnswerJob) {}

    fn execute(&mut self, _: &StepView<'_>, _: &mut StepOutput) -> Result<(), ExecuteError> {
        let _ = self.began.send(());
        let _ = self.may_end.recv();
        Err(ExecuteError::Malformed("it was stuck".into()))
    }

    fn end(&mut self, _: u32, _: RequestId, _: FinishReason) {}
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
    let _answer = engine.handle().submit(request).unwrap();
    begins.recv().unwrap();
    let stuck = shut_down_within(engine, Duration::from_millis(50));
    assert!(matches!(stuck, Err(ServeError::Stuck(_))), "{stuck:?}");
    drop(ends);
}

#[test]
fn a_guide_is_not_compiled_for_a_client_that_has_gone() {
    let (engine, app, address, server) = serving(0, false, Limits::default());
    // Others are being compiled.
    let seats = app.compiling.seats.clone().try_acquire_many_owned(2).unwrap();
    let body = r#"{"prompt": [1, 2, 3], "guided_regex": "[a-z]{5}"}"#;
    let head = completion(false);
    let head = head.split("\r\n\r\n").next().unwrap();
    let length = head.lines().find(|line| line.starts_with("Content-Length")).unwrap();
    let head = head.replace(length, &format!("Content-Length: {}", body.len()));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    while app.life.requests().now() == 0 {
        std::thread::yield_now();
    }
    drop(stream);
    while app.life.requests().now() > 0 {
        std::thread::yield_now();
    }
    drop(seats);
    // Who stays has it compiled, and nothing was compiled before.
    let answer = ask(address, &format!("{head}\r\n\r\n{body}"));
    assert!(answer.starts_with("HTTP/1.1 500"), "the engine fails, and not the guide: {answer}");
    assert_eq!(engine.handle().guide_stats().compilations, 1);
    engine.shutdown().unwrap();
    assert!(server.join().unwrap().is_err());
}
