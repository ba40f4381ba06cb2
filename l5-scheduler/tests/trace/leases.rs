//! Leases, and loads and stores, in a recording and on timelines.

use l5_scheduler::trace::{self, Event, KvEvent, TransferKind};
use l5_scheduler::{Job, PolicyKind, Request, Scheduler, SchedulerConfig};
use serde_json::Value;

use crate::world::{World, events, request, run_of, small};

fn step_of(id: u64, prompt: u32, job: &str, last_step: bool, arrival: f64) -> Request {
    let job = Some(Job { id: job.into(), last_step });
    Request { job, ..request(id, prompt, 2, arrival) }
}

/// Two jobs of two steps each: the first one's second step begins otherwise, so both of its leases are held at once.
fn jobs() -> String {
    let config = SchedulerConfig { policy: PolicyKind::Adaptive, ..small() };
    let mut world = World::of(Scheduler::new(config).unwrap());
    for request in [step_of(0, 9, "a", false, 0.0), step_of(1, 5, "b", false, 0.0)] {
        world.core.add_request(request, ()).unwrap();
    }
    (0..6).for_each(|_| world.step());
    world.core.add_request(step_of(2, 4, "a", false, 0.006), ()).unwrap();
    (0..4).for_each(|_| world.step());
    world.core.add_request(step_of(3, 4, "a", true, 0.01), ()).unwrap();
    (0..4).for_each(|_| world.step());
    world.finish().0
}

fn kv_events(text: &str) -> Vec<KvEvent> {
    let steps = events(text).into_iter().filter_map(|event| match event {
        Event::Step(step) => Some(step.kv_events),
        _ => None,
    });
    steps.flatten().collect()
}

#[test]
fn a_lease_is_recorded_with_its_job_from_its_beginning_to_its_end() {
    let text = jobs();
    let (mut begun, mut ended) = (Vec::new(), Vec::new());
    for event in kv_events(&text) {
        match event {
            KvEvent::Leased { lease, id, blocks, job, at_us, .. } => {
                assert!(at_us > 0.0);
                begun.push((lease, id, blocks, job.unwrap()));
            }
            KvEvent::LeaseEnded { lease, why, at_us } => {
                assert!(at_us > 0.0);
                ended.push((lease, why));
            }
            other => panic!("{other:?}"),
        }
    }
    // 10, 6 and 5 tokens are computed: full blocks of four.
    let begun: Vec<_> = begun.iter().map(|(_, id, blocks, job)| (*id, *blocks, &**job)).collect();
    assert_eq!(begun.len(), 3);
    for want in [(0, 2, "a"), (1, 1, "b"), (2, 1, "a")] {
        assert!(begun.contains(&want), "{want:?} in {begun:?}");
    }
    let why: Vec<_> = ended.iter().map(|(_, why)| &**why).collect();
    assert_eq!(why, ["job_over", "job_over"], "both of a; b waits for its next step");
    let arrived = events(&text).into_iter().filter_map(|event| match event {
        Event::Arrived { job, .. } => Some(job.unwrap()),
        _ => None,
    });
    assert_eq!(arrived.collect::<Vec<_>>(), ["a", "b", "a", "a"]);
}

#[test]
fn each_lease_is_a_span_of_its_job() {
    let run = run_of(&jobs());
    assert_eq!(run.holds.len(), 3);
    for hold in &run.holds {
        assert!(hold.start < hold.end && hold.from <= hold.to, "{hold:?}");
        let lane = &run.lanes[hold.lane];
        assert!(lane.end.as_ref().unwrap().at <= hold.start + 1_000_000, "{hold:?}");
        assert_eq!(hold.job, lane.job);
    }
    let open: Vec<_> = run.holds.iter().filter(|hold| hold.why.is_none()).collect();
    assert_eq!((open.len(), open[0].end), (1, run.bounds().1), "it holds to the end of the run");
    let spans = || run.holds.iter().map(|hold| (hold.job.as_deref(), hold.start, hold.end));
    let (rows, names) = trace::rows(spans());
    // Those of a overlap.
    assert_eq!(names.iter().filter(|name| *name == "a").count(), 2);
    for (i, (name, start, end)) in spans().enumerate() {
        assert_eq!(Some(names[rows[i]].as_str()), name);
        for (j, (_, other, until)) in
            spans().enumerate().filter(|(j, _)| rows[*j] == rows[i] && *j != i)
        {
            assert!(end <= other || until <= start, "spans {i} and {j} of one row");
        }
    }
}

const HEADER: &str = r#"{"strata_trace":1,"policy":"lmcache","config":{"block_size":4,"num_gpu_blocks":9,"max_num_seqs":4,"max_num_batched_tokens":12,"long_prefill_token_threshold":0,"enable_chunked_prefill":true,"enable_prefix_caching":true,"max_model_len":32,"watermark":0.0}}"#;

/// A step with these events, and 100 us long.
fn step(number: u64, kv_events: &str, abandoned: bool) -> String {
    format!(
        r#"{{"event":"step","step":{number},"at_us":{},"rows":[],"running":0,"waiting":1,"preempted":[],"finished":[],"kv":{{"total":8,"free":8,"findable":0,"leased":0}},"kv_events":[{kv_events}],"phases_us":{{"plan":100,"pack":0,"forward":0,"sample":0,"apply":0}},"abandoned":{abandoned}}}"#,
        number * 1000
    )
}

/// A load that is begun twice, because its first step failed, and of which a part arrives; and a store.
fn transfers() -> String {
    let arrived = r#"{"event":"arrived","id":7,"at_us":0,"prompt":20,"max_tokens":1,"priority":0}"#;
    let load = r#"{"load":{"id":7,"from":4,"to":16}}"#;
    [
        HEADER.to_owned(),
        arrived.to_owned(),
        step(0, &format!(r#"{load},{{"write_back":{{"blocks":2}}}}"#), true),
        step(1, load, false),
        step(2, "", false),
        step(3, r#"{"loaded":{"id":7,"at_us":2500,"tokens":12}},{"leased":{"lease":0,"id":7,"at_us":3050,"blocks":4}}"#, false),
        step(4, r#"{"store":{"lease":0,"blocks":4}},{"write_back":{"blocks":2}},{"write_back":{"blocks":3}}"#, false),
        step(5, r#"{"lease_ended":{"lease":0,"at_us":4800,"why":"stored"}}"#, false),
    ]
    .join("\n")
}

#[test]
fn loads_and_stores_are_spans_from_the_step_that_counts_to_their_end() {
    let run = run_of(&transfers());
    let [load, store] = &run.transfers[..] else { panic!("{:?}", run.transfers) };
    assert_eq!(
        (load.kind, load.lane, load.tokens, load.arrived),
        (TransferKind::Load, 0, 12, Some(8))
    );
    assert_eq!((load.start, load.end, load.from, load.to), (1_000_000, 2_500_000, 1, 3));
    assert_eq!((store.kind, store.tokens, store.arrived), (TransferKind::Store, 16, None));
    assert_eq!((store.start, store.end), (4_000_000, 4_800_000));
    assert_eq!(run.write_backs, [(4, 5)], "and none of the step that failed");
    let hold = &run.holds[0];
    assert_eq!((hold.start, hold.end, hold.why.as_deref()), (3_050_000, 4_800_000, Some("stored")));
    assert_eq!(hold.job, None);
}

#[test]
fn a_recording_of_before_has_none_of_them() {
    let without = transfers()
        .lines()
        .filter(|line| !line.contains("kv_events\":[{"))
        .collect::<Vec<_>>()
        .join("\n");
    let without = without.replace(r#""kv_events":[],"#, "");
    let run = run_of(&without);
    assert_eq!((run.steps.len(), run.holds.len(), run.transfers.len()), (1, 0, 0));
    assert_eq!(run.lanes[0].job, None);
    // And a run without leases is recorded as before.
    let plain = crate::world::crowded().finish().0;
    assert!(!plain.contains("kv_events") && !plain.contains("\"job\""), "{plain}");
}

#[test]
fn the_export_has_leases_by_job_and_transfers_where_they_belong() {
    let export = |text: &str| {
        let mut json = Vec::new();
        trace::write_chrome(&run_of(text), &mut json).unwrap();
        let file: Value = serde_json::from_slice(&json).unwrap();
        file["traceEvents"].as_array().unwrap().clone()
    };
    let all = export(&jobs());
    let leases: Vec<_> = all.iter().filter(|event| event["cat"] == "lease").collect();
    assert_eq!(leases.len(), 3);
    assert!(leases.iter().all(|event| event["pid"] == 3), "{leases:?}");
    let threads = all.iter().filter(|event| event["name"] == "thread_name" && event["pid"] == 3);
    let threads: Vec<_> = threads.map(|event| event["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(threads.len(), 3);
    assert!(threads.contains(&"job a") && threads.contains(&"job b"), "{threads:?}");
    let all = export(&transfers());
    let of = |name: &str| all.iter().find(|event| event["name"] == name).unwrap();
    let (load, store) = (of("load"), of("store"));
    assert_eq!(
        (&load["pid"], &load["dur"], &load["args"]["arrived"]),
        (&2.into(), &1500.0.into(), &8.into())
    );
    assert_eq!(
        (&store["pid"], &store["tid"], &store["args"]["tokens"]),
        (&3.into(), &1.into(), &16.into())
    );
}
