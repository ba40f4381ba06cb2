//! Shadows and spill in a server of this process, whose engines go on only when a test lets them.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use l5_scheduler::trace::{self, EnsembleRecorder, EnsembleRun, Recorded};

use super::*;

/// A recording in memory.
#[derive(Clone, Default)]
struct Recording(Arc<Mutex<Vec<u8>>>);

impl Write for Recording {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Number of steps that an engine may begin. A test that fails opens it, so that the engine ends.
#[derive(Clone)]
struct Gate {
    steps: Arc<AtomicUsize>,
    /// Whether the engine is in a step that it may not begin, and takes no request.
    held: Arc<AtomicBool>,
}

/// No limit.
const OPEN: usize = usize::MAX;

impl Gate {
    /// Waits until a step is allowed.
    fn step(&self) {
        let take = |steps: usize| match steps {
            0 => None,
            OPEN => Some(OPEN),
            steps => Some(steps - 1),
        };
        while self.steps.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_err() {
            self.held.store(true, Ordering::Release);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.held.store(false, Ordering::Release);
    }
}

struct Gates([Gate; 2]);

impl Drop for Gates {
    fn drop(&mut self) {
        self.0.iter().for_each(|gate| gate.steps.store(OPEN, Ordering::Release));
    }
}

/// A server of the specialists `one` and `two`, with tokenizers of their own. Requests of the intent `debug` go to
/// `one`, and have `two` as their second choice. Each lane has two seats, and one place in its queue.
pub(super) struct Pair {
    pub(super) app: App,
    address: SocketAddr,
    server: JoinHandle<Result<(), ServeError>>,
    /// Dropped before the engines, which wait for their steps.
    gates: Gates,
    engines: Vec<Engine>,
    recorder: EnsembleRecorder,
    recording: Recording,
}

impl Pair {
    pub(super) fn new(shadow: &str, policy: PolicyKind) -> Self {
        let file = format!(
            "name = \"pair\"\nmodel = \"t\"\n[shadow]\nfresh_fraction = 0.0\n{shadow}\n\
             [[specialist]]\nname = \"one\"\nclasses = [\"debug\", \"memory\"]\nintents = [\"debug\"]\n\
             [[specialist]]\nname = \"two\"\nclasses = [\"stl\", \"algo\"]\npolicy = \"{policy}\"\n"
        );
        let ensemble = l6_ensemble::EnsembleConfig::parse(&file).unwrap();
        let (metrics, background) = (Metrics::default(), Background::default());
        let options = ServerOptions { port: 0, ..ServerOptions::default() };
        let gate = || Gate { steps: Arc::new(AtomicUsize::new(OPEN)), held: Arc::default() };
        let gates = Gates([gate(), gate()]);
        let (mut engines, mut lanes) = (Vec::new(), Vec::new());
        let recording = Recording::default();
        let recorder = EnsembleRecorder::new(recording.clone(), "pair", &["one", "two"]).unwrap();
        let specialists = [("one", "tiny-llama"), ("two", "tiny-qwen3")];
        for ((name, model), gate) in specialists.into_iter().zip(&gates.0) {
            let config = SchedulerConfig {
                max_num_seqs: 2,
                enable_prefix_caching: false,
                policy,
                ..SchedulerConfig::new(1000, 16)
            };
            let gate = gate.clone();
            let executor = Scripted::new(move || {
                gate.step();
                Ok(())
            });
            let mut core = EngineCore::new(Scheduler::new(config).unwrap(), executor);
            core.set_clock(recorder.began());
            let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
            let tokenizer = Tokenizer::from_hf_dir(fixtures.join(model)).unwrap();
            let (vocab, own) = (tokenizer.vocab_size(), Some(tokenizer.clone()));
            let facts = ModelFacts { vocab, tokenizer: own, stop_tokens: Vec::new() };
            let engine = [Engine::start(core, facts, 1).unwrap()];
            engine[0].handle().observe(recorder.engine(name, 0, model).observer()).unwrap();
            let (metrics, background) = (&metrics, &background);
            lanes
                .push(served_lane(name, &engine, policy, tokenizer, metrics, background, &options));
            engines.extend(engine);
        }
        let counters = metrics.routes(["one", "two"].into_iter());
        let lanes = Lanes::ensemble(Ensemble::new(ensemble, counters).unwrap(), lanes)
            .with_trace(Some(recorder.clone()));
        let (app, address, server) = run(App::new(lanes, options.into(), metrics, background));
        Self { app, address, server, gates, engines, recorder, recording }
    }

    /// Allows a lane so many steps from here on.
    pub(super) fn allow(&self, lane: usize, steps: usize) {
        self.gates.0[lane].steps.store(steps, Ordering::Release);
    }

    /// Response to a request with these fields, as text.
    pub(super) fn ask(&self, more: &str) -> String {
        ask(self.address, &request(more))
    }

    /// Sends a request, whose response is not read.
    pub(super) fn send(&self, more: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(request(more).as_bytes()).unwrap();
        stream
    }

    /// Holds a lane in a step and fills its queue, which stays full: an engine takes nothing from its inbox in a step.
    pub(super) fn fill(&self, lane: usize, specialist: &str) -> Vec<TcpStream> {
        self.allow(lane, 0);
        let mut clients = Vec::new();
        let lanes = self.app.lanes.now();
        let engine = &lanes[lane].lane;
        while engine.room_for(1).is_ok() {
            clients.push(self.send(&format!(r#", "specialist": "{specialist}""#)));
            let held = || self.gates.0[lane].held.load(Ordering::Acquire);
            wait(|| held() && engine.load().waiting == clients.len());
        }
        clients
    }

    /// The response to a request that asks for a shadow.
    pub(super) fn shadowed(&self) -> String {
        let response = self.ask(r#", "high_stakes": true"#);
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(response.contains("x-strata-specialist: one"), "{response}");
        response
    }

    /// Changes lane `one`.
    pub(super) fn patch(&self, patch: &str) {
        let lanes = self.app.lanes.now();
        let ensemble = lanes.router().unwrap();
        ensemble.patch(0, &serde_json::from_str(patch).unwrap(), "test").unwrap();
    }

    /// Value of the counter with these parts.
    fn count(&self, parts: &[&str]) -> u64 {
        let text = self.app.metrics.render(&self.app.lanes.now(), &self.app.lifecycle);
        let mut lines = text.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
        let line = lines.next().unwrap_or_else(|| panic!("no {parts:?}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64
    }

    /// Number of shadows of `two` that ended so.
    pub(super) fn ended(&self, end: &str) -> u64 {
        let label = format!("end=\"{end}\"");
        self.count(&["strata:shadows_ended_total{", "specialist=\"two\"", &label])
    }

    /// Blocks in use in a lane.
    fn blocks(&self, lane: usize) -> usize {
        self.app.metrics.state(&self.app.lanes.now()[lane], &self.app.lifecycle).kv.used
    }

    /// Number of requests of a lane that have not ended.
    fn in_flight(&self, lane: usize) -> usize {
        self.app.lanes.now()[lane].generation.admission.door().in_flight()
    }

    fn running(&self, lane: usize) -> usize {
        self.app.lanes.now()[lane].lane.load().running
    }

    /// Ends the server. Returns what it recorded.
    pub(super) fn end(self) -> EnsembleRun {
        drop(self.gates);
        self.engines.into_iter().for_each(|engine| drop(engine.shutdown()));
        assert!(self.server.join().unwrap().is_err(), "the engines have ended");
        self.recorder.finish().unwrap();
        let text = self.recording.0.lock().unwrap();
        assert!(!String::from_utf8_lossy(&text).contains("int main"), "no text of requests");
        match trace::open(text.as_slice()).unwrap() {
            Recorded::Ensemble(reader) => EnsembleRun::read(reader, usize::MAX).unwrap(),
            Recorded::Engine(_) => panic!("it is of one engine"),
        }
    }
}

fn request(more: &str) -> String {
    let body = format!(r#"{{"prompt": "int main", "max_tokens": 5, "intent": "debug"{more}}}"#);
    let head = completion(false);
    let (head, _) = head.split_once("Content-Length").unwrap();
    format!("{head}Content-Length: {}\r\n\r\n{body}", body.len())
}

pub(super) fn wait(until: impl Fn() -> bool) {
    let began = Instant::now();
    while !until() {
        assert!(began.elapsed() < TIMEOUT, "it did not happen in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_drain_aborts_shadows_and_leaves_no_block_in_use() {
    let pair = Pair::new("", PolicyKind::StrictPriority);
    pair.allow(1, 0);
    let response = pair.shadowed();
    assert!(response.contains("x-strata-shadow: two"), "{response}");
    wait(|| pair.in_flight(1) == 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_report, mut ended) = oneshot::channel();
    runtime.block_on(drain(&pair.app, &mut ended));
    assert_eq!(pair.ended("stopped"), 1);
    let lanes = pair.app.lanes.now();
    let shadows = lanes.router().unwrap().shadows();
    assert_eq!(shadows.in_flight(), 0);
    assert!(shadows.permit().is_err(), "no other begins");
    // The engine learns of it when its step ends.
    pair.allow(1, OPEN);
    wait(|| pair.in_flight(1) == 0);
    wait(|| pair.running(1) == 0 && pair.blocks(1) == 0);
    pair.end();
}

#[test]
fn shadows_are_limited() {
    let pair = Pair::new("max_in_flight = 1\nmax_wait = \"1h\"", PolicyKind::StrictPriority);
    pair.allow(1, 0);
    assert!(pair.shadowed().contains("x-strata-shadow: two"));
    assert!(!pair.shadowed().contains("x-strata-shadow"));
    assert_eq!(pair.count(&["strata:shadows_skipped_total{", "reason=\"limit\""]), 1);
    pair.allow(1, OPEN);
    wait(|| pair.ended("completed") == 1);
    wait(|| pair.app.lanes.now().router().unwrap().shadows().in_flight() == 0);
    assert!(pair.shadowed().contains("x-strata-shadow: two"));
    pair.end();
}

#[test]
fn a_shadow_without_output_is_aborted_and_its_blocks_are_free() {
    let pair = Pair::new("max_wait = \"10ms\"", PolicyKind::StrictPriority);
    pair.allow(1, 0);
    assert!(pair.shadowed().contains("x-strata-shadow: two"));
    wait(|| pair.ended("waited") == 1);
    pair.allow(1, OPEN);
    wait(|| pair.in_flight(1) == 0);
    wait(|| pair.running(1) == 0 && pair.blocks(1) == 0);
    pair.end();
}

#[test]
fn a_shadow_begins_beside_clients_only_where_they_would_take_its_place() {
    for (policy, beside) in [
        (PolicyKind::StrictPriority, true),
        (PolicyKind::Priority, false),
        (PolicyKind::Fcfs, false),
    ] {
        let pair = Pair::new("", policy);
        pair.allow(1, 1);
        let client = pair.send(r#", "specialist": "two""#);
        wait(|| pair.running(1) == 1);
        assert!(pair.shadowed().contains("x-strata-shadow: two"));
        match beside {
            true => wait(|| pair.in_flight(1) == 2),
            false => wait(|| pair.ended("refused") == 1),
        }
        pair.allow(1, OPEN);
        wait(|| pair.ended("completed") == u64::from(beside));
        drop(client);
        wait(|| pair.in_flight(1) == 0);
        pair.shadowed();
        let all = 1 + u64::from(beside);
        wait(|| pair.ended("completed") == all);
        pair.end();
    }
}

#[test]
fn without_preemption_a_shadow_is_aborted_when_a_client_waits() {
    let pair = Pair::new("", PolicyKind::Fcfs);
    pair.allow(1, 1);
    pair.shadowed();
    wait(|| pair.running(1) == 1);
    let client = pair.send(r#", "specialist": "two""#);
    wait(|| pair.ended("clients") == 1);
    pair.allow(1, OPEN);
    let mut response = String::new();
    (&client).read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    pair.end();
}

#[test]
fn a_primary_that_does_not_complete_has_no_shadow() {
    let pair = Pair::new("", PolicyKind::StrictPriority);
    pair.allow(0, 0);
    let client = pair.send(r#", "high_stakes": true"#);
    wait(|| pair.app.lanes.now().router().unwrap().shadows().in_flight() == 1);
    drop(client);
    wait(|| pair.ended("primary") == 1);
    assert_eq!(pair.app.lanes.now()[1].lane.load().steps, 0);
    pair.end();
}

#[test]
fn a_full_queue_sends_requests_of_unsure_routes_to_the_second_choice() {
    let pair = Pair::new("", PolicyKind::StrictPriority);
    let clients = pair.fill(0, "one");
    pair.patch(r#"{"spill_below": 0.0, "shadow_below": 1.0}"#);
    let refused = pair.ask("");
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("queue_full"), "{refused}");
    let routes = |name: &str, by: &str| {
        let labels = [format!("model_name=\"{name}\""), format!("by=\"{by}\"")];
        pair.count(&["strata:routes_total{", &labels[0], &labels[1]])
    };
    let refusals = |name: &str| {
        let label = format!("model_name=\"{name}\"");
        let code = pair.count(&["strata:refusals_total{", &label, "queue_full"]);
        let limit =
            pair.count(&["vllm:admission_rejections_total{", &label, "max_num_queued_reqs"]);
        assert_eq!(code, limit, "{name}");
        code
    };
    assert_eq!((routes("one", "declared_intent"), refusals("one")), (1, 1));
    pair.patch(r#"{"spill_below": 1.0}"#);
    let spilled = pair.ask("");
    assert!(spilled.starts_with("HTTP/1.1 200"), "{spilled}");
    for part in [
        "x-strata-specialist: two",
        "x-strata-model: two",
        "x-strata-route: spill of one, which refused it (queue_full); the client declared",
        r#""model":"two""#,
    ] {
        assert!(spilled.contains(part), "no {part} in {spilled}");
    }
    assert!(!spilled.contains("x-strata-shadow"), "the first choice is loaded: {spilled}");
    // One specialist counts it, as one route and no refusal.
    assert_eq!((routes("two", "spill"), routes("one", "declared_intent")), (1, 1));
    assert_eq!((refusals("one"), refusals("two")), (1, 0));
    // The prompt was tokenized for the lane that served it.
    let tokens = |response: &str| {
        let (_, rest) = response.split_once("\"prompt_tokens\":").unwrap();
        rest.split([',', '}']).next().unwrap().to_owned()
    };
    let named = pair.ask(r#", "specialist": "two""#);
    assert_eq!(tokens(&spilled), tokens(&named));
    // A client that names its specialist does not spill.
    let refused = pair.ask(r#", "specialist": "one""#);
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    // A demoted lane is no second choice.
    let lanes = pair.app.lanes.now();
    let ensemble = lanes.router().unwrap();
    ensemble.patch(1, &serde_json::from_str(r#"{"breaker": "open"}"#).unwrap(), "test").unwrap();
    assert!(pair.ask("").starts_with("HTTP/1.1 429"));
    ensemble.patch(1, &serde_json::from_str(r#"{"breaker": null}"#).unwrap(), "test").unwrap();
    // If the second choice refuses as well, the client gets the refusal of the first, which counts once.
    let others = pair.fill(1, "two");
    let before = refusals("one");
    assert!(pair.ask("").starts_with("HTTP/1.1 429"));
    assert_eq!((refusals("one"), refusals("two")), (before + 1, 0));
    // A floor holds wherever the request goes.
    (0..2).for_each(|lane| pair.allow(lane, OPEN));
    wait(|| (0..2).all(|lane| pair.in_flight(lane) == 0));
    pair.patch(r#"{"priority_floor": 0}"#);
    let refused = pair.ask(r#", "priority": 5"#);
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    assert!(refused.contains(r#""code":"priority_floor""#), "{refused}");
    drop((clients, others));
    pair.end();
}
