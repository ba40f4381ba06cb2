//! Recordings of several engines and a router: one file, and what is read of it.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};

use l5_scheduler::trace::{
    self, EnsembleRecorder, EnsembleRun, Recorded, RefusedEvent, RouteEvent, ShadowEvent,
    TraceError, TracedShape,
};
use l5_scheduler::{Compose, EngineCore, Scheduler, SchedulerConfig, Time};
use serde_json::Value;

use crate::world::{File, Sayer, World, request, small, steps};

const LANES: [&str; 2] = ["one", "two"];

fn engine(recorder: &EnsembleRecorder, lane: &str, replica: u32) -> EngineCore<Sayer> {
    let scheduler = Scheduler::new(small()).unwrap();
    let mut core = EngineCore::new(scheduler, Sayer { fails: Vec::new() });
    core.set_observer(Some(recorder.engine(lane, replica, "sayer").observer()));
    core
}

fn run_to_end(core: &mut EngineCore<Sayer>, mut now: f64) {
    while core.has_unfinished() {
        core.step_at(Time(now)).unwrap();
        now += 1e-3;
    }
}

fn read(text: &str, most: usize) -> EnsembleRun {
    match trace::open(text.as_bytes()).unwrap() {
        Recorded::Ensemble(reader) => EnsembleRun::read(reader, most).unwrap(),
        Recorded::Engine(_) => panic!("it is of one engine"),
    }
}

fn route(number: u64, lane: &str, replica: u32) -> RouteEvent {
    RouteEvent {
        route: number,
        lane: Some(lane.into()),
        replica: Some(replica),
        requests: vec![0],
        arrived_us: 10.0 * number as f64,
        decided_us: 10.0 * number as f64 + 5.0,
        admitted_us: Some(1000.0),
        by: "classifier".into(),
        score: Some(0.25),
        ..RouteEvent::default()
    }
}

/// Three engines, of which two have a request of the same id, a refused request, one for an engine that is not
/// recorded, and a shadow.
fn recorded() -> String {
    let file = File::default();
    let recorder = EnsembleRecorder::new(file.clone(), "pair", &LANES).unwrap();
    // In another order than that of the lanes.
    let mut second = engine(&recorder, "two", 0);
    let mut replica = engine(&recorder, "one", 1);
    let _first = engine(&recorder, "one", 0);
    second.add_request(request(0, 8, 3, 0.001), ()).unwrap();
    replica.add_request(request(0, 5, 2, 0.001), ()).unwrap();
    second.add_request(request(1, 5, 2, 0.001), ()).unwrap();
    run_to_end(&mut second, 0.001);
    run_to_end(&mut replica, 0.0015);
    let numbers: Vec<u64> = (0..4).map(|_| recorder.next_route()).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    recorder.route(RouteEvent {
        refused: vec![refusal("one")],
        by: "spill".into(),
        ..route(1, "two", 0)
    });
    recorder.route(route(0, "one", 1));
    recorder.route(route(3, "two", 1));
    recorder.route(RouteEvent {
        replica: None,
        requests: Vec::new(),
        admitted_us: None,
        refused: vec![refusal("one"), refusal("two")],
        ..route(2, "two", 0)
    });
    recorder.shadow(ShadowEvent {
        route: 0,
        lane: "two".into(),
        replica: 0,
        request: 1,
        at_us: 1000.0,
        reason: "low_score".into(),
    });
    recorder.finish().unwrap();
    assert!(recorder.finish().is_err(), "it is finished");
    file.text()
}

fn refusal(lane: &str) -> RefusedEvent {
    RefusedEvent { lane: Some(lane.into()), at_us: 500.0, code: "would_harm".into(), quote: None }
}

#[test]
fn every_line_of_an_engine_names_its_lane_and_replica() {
    let text = recorded();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        lines[0],
        serde_json::json!({"strata_trace": 2, "ensemble": "pair", "lanes": LANES})
    );
    let of = |event: &str| lines.iter().filter(|line| line["event"] == event).collect::<Vec<_>>();
    assert_eq!(of("engine").len(), 3);
    for event in ["arrived", "step", "first_token", "ended"] {
        let named = of(event);
        assert!(!named.is_empty(), "{event}");
        for line in named {
            assert!(line["lane"].is_string() && line["replica"].is_u64(), "{line}");
        }
    }
}

#[test]
fn engines_come_as_in_the_file_of_the_ensemble_and_routes_find_their_requests() {
    let run = read(&recorded(), usize::MAX);
    let engines: Vec<_> =
        run.engines.iter().map(|own| (own.lane.as_str(), own.replica, own.recorded)).collect();
    let expected = [("one", 0, true), ("one", 1, true), ("two", 0, true), ("two", 1, false)];
    assert_eq!(engines, expected);
    assert_eq!(run.engines[2].run.header.policy, "fcfs");
    let numbers: Vec<u64> = run.routes.iter().map(|route| route.event.route).collect();
    assert_eq!(numbers, [0, 1, 2, 3], "in the order of their arrival");
    let prompts = |route: usize| {
        let lane = |at: &trace::RequestAt| run.engines[at.engine].run.lanes[at.request].prompt;
        run.routes[route].requests.iter().map(lane).collect::<Vec<_>>()
    };
    assert_eq!(prompts(0), [5]);
    assert_eq!(prompts(1), [8]);
    assert_eq!(prompts(2), [0; 0], "it was refused");
    assert_eq!(prompts(3), [0], "its engine was not recorded");
    let (shadow, at) = run.routes[0].shadow.as_ref().unwrap();
    assert_eq!((shadow.reason.as_str(), at.engine, at.request), ("low_score", 2, 1));
    assert_eq!(run.bounds().0, 0, "the run begins with the first arrival at the server");
}

#[test]
fn a_long_run_of_an_ensemble_is_read_as_far_as_is_wanted() {
    let all = read(&recorded(), usize::MAX);
    let steps =
        |run: &EnsembleRun| run.engines.iter().map(|own| own.run.steps.len()).sum::<usize>();
    assert!(steps(&all) > 3 && all.left_out == 0);
    let some = read(&recorded(), 3);
    assert_eq!((steps(&some), some.left_out), (3, steps(&all) - 3));
}

#[test]
fn a_recording_of_an_ensemble_is_not_read_as_one_of_an_engine() {
    let error = trace::read(recorded().as_bytes()).unwrap_err();
    assert!(matches!(error, TraceError::Ensemble), "{error}");
    let cut = recorded();
    let Recorded::Ensemble(reader) = trace::open(&cut.as_bytes()[..cut.len() - 9]).unwrap() else {
        panic!("it is of one engine")
    };
    let error = EnsembleRun::read(reader, usize::MAX).unwrap_err();
    assert!(matches!(error, TraceError::CutShort { .. }), "{error}");
}

#[test]
fn chromes_events_have_a_process_for_each_engine_and_arrows_from_the_router() {
    let run = read(&recorded(), usize::MAX);
    let mut json = Vec::new();
    trace::write_ensemble_chrome(&run, &mut json).unwrap();
    let file: Value = serde_json::from_slice(&json).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let processes: Vec<&str> = events
        .iter()
        .filter(|event| event["name"] == "process_name")
        .filter_map(|event| event["args"]["name"].as_str())
        .collect();
    let expected = [
        "router: pair",
        "one, replica 0: sayer fcfs",
        "one, replica 1: sayer fcfs",
        "two, replica 0: sayer fcfs",
        "two, replica 1: another server",
    ];
    assert_eq!(processes, expected);
    let moments: Vec<f64> = events.iter().map(|event| event["ts"].as_f64().unwrap()).collect();
    assert!(moments.is_sorted(), "{moments:?}");
    let ids = |kind: &str| {
        let of = events.iter().filter(|event| event["ph"] == kind);
        let mut ids: Vec<u64> = of.filter_map(|event| event["id"].as_u64()).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(ids("s"), [0, 1, 2], "two requests and a shadow");
    assert_eq!(ids("f"), ids("s"));
    // Requests that were with the router at once have threads of their own.
    let routes = events.iter().filter(|event| event["cat"] == "route" && event["ph"] == "X");
    let threads: std::collections::BTreeSet<u64> =
        routes.map(|event| event["tid"].as_u64().unwrap()).collect();
    assert_eq!(threads.len(), 4);
}

/// A file that takes nothing before it is told to.
struct Slow(Receiver<()>, File);

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // An error: the gate is open for good.
        let _ = self.0.recv();
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn slow(max_bytes: usize) -> (EnsembleRecorder, Sender<()>, File) {
    let ((gate, opened), file) = (channel(), File::default());
    let writer = Slow(opened, file.clone());
    let recorder = EnsembleRecorder::with_queue(writer, "pair", &LANES, max_bytes).unwrap();
    (recorder, gate, file)
}

#[test]
fn a_file_that_does_not_keep_up_costs_lines_which_are_counted_and_no_engine_waits() {
    let (recorder, gate, file) = slow(2000);
    let mut core = engine(&recorder, "one", 0);
    for id in 0..4 {
        core.add_request(request(id, 3, 4, 0.0), ()).unwrap();
    }
    // With a writer that stands still this ends only if nothing waits for it.
    run_to_end(&mut core, 0.0);
    for number in 0..8 {
        recorder.route(route(number, "one", 0));
    }
    drop(gate);
    recorder.finish().unwrap();
    let run = read(&file.text(), usize::MAX);
    assert!(run.dropped > 8, "{} lines were dropped", run.dropped);
    assert!(file.text().len() < 2500);
    assert_eq!(run.engines.len(), 1, "what was recorded first is there");
}

#[test]
fn the_first_error_of_the_file_is_returned_at_the_end() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let recorder = EnsembleRecorder::new(Full, "pair", &LANES).unwrap();
    let mut core = engine(&recorder, "one", 0);
    core.add_request(request(0, 3, 4, 0.0), ()).unwrap();
    run_to_end(&mut core, 0.0);
    assert_eq!(recorder.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
}

#[test]
fn shapes_are_recorded_where_the_composer_is_not_the_default() {
    let shapes = |compose: Compose| {
        let mut world = World::new(SchedulerConfig { compose, ..small() });
        world.core.add_request(request(0, 4, 8, 0.0), ()).unwrap();
        world.step();
        // A prompt comes while another request decodes.
        world.core.add_request(request(1, 8, 2, 0.0), ()).unwrap();
        let (text, _) = world.finish();
        (text.contains("shape"), steps(&text).iter().map(|step| step.shape).collect::<Vec<_>>())
    };
    let (written, mixed) = shapes(Compose::Mixed);
    assert!(!written && mixed.iter().all(Option::is_none), "{mixed:?}");
    let (_, stable) = shapes(Compose::Stable { max_decode_steps: 2, chunk: 6 });
    let expected = [TracedShape::Mixed, TracedShape::DecodeOnly, TracedShape::Prefill { chunk: 6 }];
    for shape in expected {
        assert!(stable.contains(&Some(shape)), "{shape:?} in {stable:?}");
    }
    assert!(stable.iter().all(Option::is_some), "{stable:?}");
}
