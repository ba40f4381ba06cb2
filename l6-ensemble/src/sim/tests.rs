//! Small seeded simulations, and what must hold of every one.

use proptest::prelude::*;

use super::*;
use crate::quote::Accuracy;

/// Lanes that share a device, with a stream for each: rate, output lengths, deadlines.
fn workload(lanes: usize, requests: u64, seed: u64, stream: &str) -> SimWorkload {
    let mut text = format!("requests = {requests}\nseed = {seed}\nspill_below = 0.3\n");
    for lane in 0..lanes {
        text += &format!(
            "[[lane]]\nname = \"lane{lane}\"\nmax_num_seqs = 8\nnum_gpu_blocks = 513\n\
             [[stream]]\nname = \"stream{lane}\"\ninput = {{ uniform = [20, 100] }}\n{stream}\n\
             lanes = [[\"lane{lane}\", 0.8], [\"lane0\", 0.2]]\nsecond = \"lane{}\"\n",
            (lane + 1) % lanes
        );
    }
    SimWorkload::from_toml(&text).expect("a valid workload")
}

fn run(workload: SimWorkload) -> SimReport {
    EnsembleSim::new(workload).expect("a valid workload").run().expect("a run")
}

/// Each offered request has exactly one fate.
fn check_sums(report: &SimReport, requests: u64) {
    let sum = |of: fn(&LaneReport) -> u64| report.lanes.iter().map(of).sum::<u64>();
    assert_eq!(sum(|lane| lane.offered), requests);
    assert_eq!(sum(|lane| lane.spilled_in), sum(|lane| lane.spilled_out));
    for lane in &report.lanes {
        let own = lane.admitted - lane.spilled_in;
        let fates = own + lane.refused_total() + lane.spilled_out + lane.too_long;
        assert_eq!(lane.offered, fates, "{lane:?}");
        assert_eq!(lane.admitted, lane.finished + lane.cut_short, "{lane:?}");
        assert!(lane.deadlines_met <= lane.deadlines);
    }
}

/// Of all lanes together.
fn all(report: &SimReport, of: fn(&LaneReport) -> Accuracy) -> (u64, u64) {
    let add = |(wrong, count), lane| (wrong + of(lane).wrong, count + of(lane).count);
    report.lanes.iter().fold((0, 0), add)
}

/// Five times what the machine can serve, from the first second on, and deadlines of which some are far.
const OVERLOAD: &str =
    "rate = 80.0\noutput = { uniform = [10, 80] }\ndeadline = { uniform = [3.0, 20.0] }";

/// The same with deadlines that are near, so that a short run reaches a steady state.
const STEADY: &str =
    "rate = 80.0\noutput = { uniform = [10, 80] }\ndeadline = { uniform = [1.0, 5.0] }";

#[test]
fn at_overload_what_is_admitted_is_in_time() {
    for lanes in [1, 3] {
        let report = run(workload(lanes, 1500, 7, OVERLOAD));
        check_sums(&report, 1500);
        for lane in &report.lanes {
            assert!(lane.refused_total() > lane.admitted, "overload: {lane:?}");
            assert!(lane.admitted > 30, "the lane serves requests: {lane:?}");
            let goodput = lane.goodput().expect("all requests have deadlines");
            assert!(goodput >= 0.95, "{}: {goodput}", lane.name);
        }
    }
}

/// Of all codes together.
fn refused(report: &SimReport, of: fn(&QuoteReport) -> Accuracy) -> (u64, u64) {
    let add = |(wrong, count), quotes| (wrong + of(quotes).wrong, count + of(quotes).count);
    report.refused_quotes.values().fold((0, 0), add)
}

#[test]
fn what_is_promised_to_refused_requests_is_what_would_have_happened() {
    let report = EnsembleSim::new(workload(1, 1000, 3, STEADY)).unwrap().probe(60).unwrap();
    let (first_token, done) =
        (refused(&report, |own| own.first_token), refused(&report, |own| own.done));
    assert_eq!(done.1, 60, "{:?}", report.refused_quotes);
    assert!(
        done.0 * 20 <= done.1 && first_token.0 * 20 <= first_token.1,
        "{first_token:?}, {done:?}"
    );
}

#[test]
fn quotes_of_admitted_requests_are_right_although_others_overtake_them() {
    for stream in [STEADY, OVERLOAD] {
        let report = run(workload(1, 1500, 3, stream));
        let first_token = all(&report, |lane| lane.quotes.first_token);
        let done = all(&report, |lane| lane.quotes.done);
        for (wrong, count) in [first_token, done] {
            assert!(count > 200 && wrong * 20 <= count, "{first_token:?}, {done:?}");
        }
    }
}

/// Eight lanes of which one has more traffic than the others, at five times what the machine can serve.
#[test]
fn eight_lanes_at_overload_know_what_they_promise() {
    let stream =
        "rate = 10.0\noutput = { uniform = [10, 80] }\ndeadline = { uniform = [3.0, 20.0] }";
    let report = run(workload(8, 6000, 3, stream));
    check_sums(&report, 6000);
    for of in [|lane: &LaneReport| lane.quotes.first_token, |lane: &LaneReport| lane.quotes.done] {
        let (wrong, count) = all(&report, of);
        assert!(count > 500 && wrong * 20 <= count, "{wrong} of {count}");
    }
}

/// Each lane has a fifth of what it can serve alone, and together they have more than the machine.
#[test]
fn lanes_that_share_a_machine_know_of_one_another() {
    let stream =
        "rate = 3.0\noutput = { uniform = [10, 80] }\ndeadline = { uniform = [3.0, 20.0] }";
    let report = run(workload(5, 2000, 3, stream));
    for of in [|lane: &LaneReport| lane.quotes.first_token, |lane: &LaneReport| lane.quotes.done] {
        let (wrong, count) = all(&report, of);
        assert!(count > 500 && wrong * 20 <= count, "{wrong} of {count}");
    }
}

#[test]
fn requests_without_a_deadline_are_served_as_promised_beside_those_with_one() {
    let report = run(workload(3, 1500, 3, &format!("{OVERLOAD}\ndeadline_fraction = 0.7")));
    let without: u64 = report.lanes.iter().map(|lane| lane.finished - lane.deadlines).sum();
    assert!(without > 100, "{report:?}");
    let (wrong, count) = all(&report, |lane| lane.quotes.first_token);
    assert!(wrong * 6 <= count, "{wrong} of {count}");
}

#[test]
fn from_the_first_request_on_what_is_admitted_is_in_time() {
    let report = run(workload(
        8,
        100,
        7,
        "rate = 10.0\noutput = { uniform = [10, 80] }\ndeadline = { uniform = [1.0, 5.0] }",
    ));
    let sum = |of: fn(&LaneReport) -> u64| report.lanes.iter().map(of).sum::<u64>();
    let (met, deadlines) = (sum(|lane| lane.deadlines_met), sum(|lane| lane.deadlines));
    assert!(deadlines > 10 && met * 20 >= deadlines * 19, "{met} of {deadlines}");
}

#[test]
fn a_lane_with_a_device_of_its_own_does_not_wait_for_others() {
    let light = "rate = 2.0\noutput = { uniform = [10, 80] }";
    let mut shared = workload(3, 300, 1, light);
    shared.lanes[1].own_device = true;
    let alone = run(shared.clone());
    shared.lanes[1].own_device = false;
    let together = run(shared);
    let ttft = |report: &SimReport| report.lanes[1].ttft.percentiles().unwrap().p95;
    assert!(ttft(&alone) < ttft(&together), "{} and {}", ttft(&alone), ttft(&together));
}

#[test]
fn a_router_of_ones_own_decides_the_lanes() {
    let workload = workload(2, 50, 1, OVERLOAD);
    let route = Routed { first: 1, second: None, score: 1.0, spill_below: 0.0 };
    let mut router = |_: &Offered| Some(route);
    let report = EnsembleSim::new(workload).unwrap().run_with(&mut router).unwrap();
    assert_eq!(report.lanes.iter().map(|lane| lane.offered).collect::<Vec<_>>(), [0, 50]);
}

#[test]
fn a_refused_request_spills_to_the_second_choice() {
    let lane =
        |name| format!("[[lane]]\nname = \"{name}\"\nmax_num_seqs = 4\nnum_gpu_blocks = 257\n");
    let text = format!(
        "requests = 200\nseed = 4\nspill_below = 0.5\n{}{}[[stream]]\nname = \"s\"\nrate = 40.0\n\
         input = {{ uniform = [20, 80] }}\noutput = {{ uniform = [10, 40] }}\ndeadline = {{ constant = 3.0 }}\n\
         lanes = [[\"debug\", 1.0]]\nsecond = \"build\"\n",
        lane("debug"),
        lane("build")
    );
    let report = run(SimWorkload::from_toml(&text).unwrap());
    check_sums(&report, 200);
    assert!(report.lanes[1].spilled_in > 0, "{report}");
}

const ENSEMBLE: &str = r#"
    model = "any"
    kv_memory = "512MiB"
    fallback = "stl"
    specialist = [
        { name = "stl", max_num_seqs = 8, max_num_batched_tokens = 128 },
        { name = "debug", max_num_seqs = 4, max_num_batched_tokens = 128, replicas = 2, intents = ["debug"] },
    ]
    escalation = { dwell_up = "2s", levels = [{ spill_raise = 0.3 }, { spill_raise = 0.3, priority_floor = 0 }] }
"#;

fn ensemble(streams: &str, requests: u64) -> SimReport {
    let config = crate::EnsembleConfig::parse(ENSEMBLE).expect("a valid file");
    let text = format!("requests = {requests}\n{streams}");
    let workload = EnsembleWorkload::from_toml(&text).expect("a valid workload");
    EnsembleSim::of_ensemble(&config, &workload).expect("a valid ensemble").run().expect("a run")
}

const STREAM: &str =
    "[[stream]]\nname = \"s\"\ninput = { uniform = [20, 100] }\noutput = { uniform = [10, 80] }\n";

#[test]
fn texts_and_intents_are_routed_as_the_server_routes_them() {
    let report = ensemble(
        &format!(
            "{STREAM}rate = 1.0\nintent = \"debug\"\n{STREAM}rate = 1.0\ntexts = [\"\"\"==7==ERROR: \
             AddressSanitizer: heap-use-after-free on address 0x602000000010\n    #0 0x4f in main a.cpp:5\"\"\"]\n\
             {STREAM}rate = 1.0\nlanes = [[\"stl\", 1.0]]\n"
        ),
        300,
    );
    let [stl, debug, second] = report.lanes.as_slice() else { panic!("{report:?}") };
    assert_eq!((&*debug.name, &*second.name), ("debug", "debug/1"), "a lane for each replica");
    assert_eq!(stl.offered + debug.offered + second.offered, 300);
    assert!(debug.offered + second.offered > 150 && stl.offered > 60, "{report}");
    assert!(second.offered > 10, "both replicas have requests");
    assert_eq!(report.unrouted, 0);
}

#[test]
fn overload_escalates_to_a_priority_floor() {
    let priorities = "priorities = [[0, 0.5], [1, 0.5]]\ndeadline = { constant = 5.0 }\n";
    let busy = ensemble(&format!("{STREAM}rate = 60.0\nintent = \"debug\"\n{priorities}"), 1500);
    let floor = |report: &SimReport| -> u64 {
        report.lanes.iter().map(|lane| lane.refused["priority_floor"]).sum()
    };
    assert_eq!(busy.escalation.map(|own| own.highest), Some(2), "{busy}");
    assert!(floor(&busy) > 100, "{busy}");
    let calm = ensemble(&format!("{STREAM}rate = 1.0\nintent = \"debug\"\n{priorities}"), 200);
    assert_eq!((calm.escalation.map(|own| own.highest), floor(&calm)), (Some(0), 0));
}

#[test]
fn errors_of_an_ensemble_workload_say_what_to_do() {
    let config = crate::EnsembleConfig::parse(ENSEMBLE).expect("a valid file");
    for (streams, said) in [
        (format!("{STREAM}rate = 1.0\n"), "has no route"),
        (format!("{STREAM}rate = 1.0\nintent = \"sing\"\n"), "the intent `sing` is unknown"),
        (format!("{STREAM}rate = 1.0\nlanes = [[\"python\", 1.0]]\n"), "the lane `python`"),
        (format!("[lane.python]\n{STREAM}rate = 1.0\nintent = \"debug\"\n"), "no specialist"),
    ] {
        let workload = EnsembleWorkload::from_toml(&format!("requests = 1\n{streams}")).unwrap();
        let error = EnsembleSim::of_ensemble(&config, &workload).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
}

#[test]
fn one_seed_gives_one_report() {
    let json = |seed| serde_json::to_string(&run(workload(3, 300, seed, OVERLOAD))).unwrap();
    assert_eq!(json(1), json(1));
    assert_ne!(json(1), json(2));
}

#[test]
fn invalid_workloads_are_errors_that_say_what_to_do() {
    let good = "requests = 1\n[[lane]]\nname = \"a\"\nmax_num_seqs = 2\nnum_gpu_blocks = 9\n\
                [[stream]]\nname = \"s\"\nrate = 1.0\ninput = { constant = 5 }\noutput = { constant = 5 }\n\
                lanes = [[\"a\", 1.0]]\n";
    assert!(SimWorkload::from_toml(good).is_ok());
    for (from, to, said) in [
        ("rate = 1.0", "rate = 0.0", "rate must be a number of requests a second above 0"),
        ("[[\"a\", 1.0]]", "[[\"b\", 1.0]]", "lane `b`, which is no [[lane]]"),
        ("[[\"a\", 1.0]]", "[[\"a\", 0.0]]", "at least one above 0"),
        ("rate = 1.0", "rate = 1.0\nintent = \"debug\"", "need an ensemble"),
        ("max_num_seqs = 2", "max_num_seqs = 0", "max_num_seqs must be at least 1"),
        ("max_num_seqs = 2", "max_num_seqs = 2\npolicy = \"lottery\"", "`lottery`"),
        ("rate = 1.0", "rate = 1.0\nspeed = 2", "speed"),
        ("rate = 1.0", "rate = 1.0\nmax_tokens = 0", "max_tokens must be at least 1"),
        (
            "[[stream]]",
            "[[lane]]\nname = \"a\"\nmax_num_seqs = 2\nnum_gpu_blocks = 9\n[[stream]]",
            "two lanes",
        ),
    ] {
        let error = SimWorkload::from_toml(&good.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(said), "{to}: {error}");
    }
    let zero = good.replace("{ constant = 5 }\noutput", "{ constant = 0 }\noutput");
    let sim = EnsembleSim::new(SimWorkload::from_toml(&zero).unwrap()).unwrap();
    let error = sim.run().unwrap_err().to_string();
    assert!(error.contains("stream `s`") && error.contains("input"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Deadlines, priorities, tight pools, unknown lengths, floors and short queues, and each policy.
    #[test]
    fn every_offered_request_ends_exactly_once(
        seed in any::<u64>(),
        lanes in 1_usize..4,
        rate in 1.0_f64..60.0,
        (blocks, waiting, step_tokens) in (12_usize..200, 0_usize..20, 8_usize..200),
        deadline in prop::option::of(0.5_f64..10.0),
        (known, floor, policy) in (any::<bool>(), prop::option::of(0_i64..3), 0_usize..3),
    ) {
        let mut stream = format!("rate = {rate}\noutput = {{ uniform = [1, 60] }}\n");
        stream += "priorities = [[0, 0.5], [1, 0.3], [2, 0.2]]\ndeadline_fraction = 0.7\n";
        if let Some(deadline) = deadline {
            stream += &format!("deadline = {{ uniform = [0.1, {deadline}] }}\n");
        }
        if !known {
            stream += "max_tokens = 60\n";
        }
        let mut workload = workload(lanes, 150, seed, &stream);
        for lane in &mut workload.lanes {
            (lane.num_gpu_blocks, lane.max_num_waiting) = (blocks, waiting);
            (lane.max_num_batched_tokens, lane.priority_floor) = (step_tokens, floor);
            lane.policy = l5_scheduler::PolicyKind::ALL[policy];
        }
        check_sums(&run(workload), 150);
    }
}
