//! The capacity planner: workloads through the real scheduler, under a simulated clock.

use std::io::Cursor;

use l3_paged_kv::TokenChain;
use l5_scheduler::sim::{
    ArrivalProcess, Goodput, PlanError, Planner, Report, Workload, WorkloadError,
};
use l5_scheduler::{CostModel, KvConnector, Matched, PolicyKind, RequestId, SchedulerConfig};
use proptest::prelude::*;

/// As in `clock.rs`, but what is read costs nothing.
const COST: CostModel = CostModel { per_kv_byte: 0.0, ..super::clock::COST };

fn config() -> SchedulerConfig {
    SchedulerConfig { max_num_seqs: 8, max_num_batched_tokens: 64, ..SchedulerConfig::new(65, 4) }
}

fn try_plan(
    file: &str,
    arrivals: ArrivalProcess,
    config: SchedulerConfig,
    goodput: &str,
) -> Result<Report, PlanError> {
    let goodput = match goodput {
        "" => Goodput::default(),
        some => some.parse().unwrap(),
    };
    let file = Box::new(Cursor::new(file.to_owned()));
    Planner::new(config, COST, goodput)?.run(Workload::read(file, arrivals)?)
}

fn plan(file: &str, arrivals: ArrivalProcess, config: SchedulerConfig, goodput: &str) -> Report {
    try_plan(file, arrivals, config, goodput).unwrap_or_else(|e| panic!("{e}"))
}

/// ```text
///  0     3     4.25            9.5   10.75        20    22
///  A A A A  |a|      a + BBBBBBBB  |b|  (nobody)  | CC |
///              ^ B has come at 3.5
/// ```
const THREE: &str = r#"
{"id":"A","prompt_tokens":4,"output_tokens":3}
{"id":"B","prompt_tokens":8,"output_tokens":2,"arrival":3.5,"deadline":7}

{"id":"C","prompt_tokens":[7,8],"output_tokens":1,"arrival":20,"deadline":3}
"#;

#[test]
fn three_requests_can_be_followed_by_hand() {
    let report = plan(THREE, ArrivalProcess::default(), config(), "ttft:3,itl:5.25");
    let ttft = report.ttft.expect("somebody got a first token");
    assert_eq!([ttft.p50, ttft.max], [3.0, 6.0], "seconds to first tokens: A 3, B 6, C 2");
    let itl = report.itl.expect("somebody got a second one");
    assert_eq!([itl.p50, itl.max], [1.25, 5.25], "seconds between tokens: A 1.25 and 5.25, B 1.25");
    let e2e = report.e2e.expect("somebody got to the end");
    assert_eq!([e2e.p50, e2e.max], [7.25, 9.5], "seconds to last tokens: A 9.5, B 7.25, C 2");
    assert_eq!(report.seconds, 22.0, "from A's arrival to C's end");
    assert_eq!(report.counts.steps, 5, "steps");
    assert_eq!(report.counts.output_tokens, 6, "tokens of answers");
    assert_eq!(report.counts.scheduled_tokens, 4 + 2 + 8 + 1 + 2, "tokens computed");
    assert_eq!(report.output_tokens_per_s, 6.0 / 22.0);
    assert_eq!(report.counts.good, 2, "who had a first token within 3 s and others within 5.25 s");
    assert_eq!(
        (report.counts.deadlines, report.counts.deadlines_met),
        (2, 1),
        "deadlines of B and C"
    );
}

#[test]
fn a_shared_prefix_is_computed_once() {
    let spec = r#"{"requests":10,"input":{"constant":4},"output":{"constant":2},
        "shared_prefix":{"tokens":32}}"#;
    let slowly = ArrivalProcess { rate: Some(0.01), ..ArrivalProcess::default() };
    let report = plan(spec, slowly, config(), "");
    // Of each prompt of 36 tokens but the first, the prefix's 32 are found.
    assert_eq!(
        report.prefix_hit_rate,
        9.0 * 32.0 / 360.0,
        "the part of the prompts that was found"
    );
    assert_eq!(report.counts.scheduled_tokens, 36 + 9 * 4 + 10, "tokens computed");
    let without = SchedulerConfig { enable_prefix_caching: false, ..config() };
    let report = plan(spec, slowly, without, "");
    assert_eq!((report.prefix_hit_rate, report.counts.scheduled_tokens), (0.0, 370));
}

#[test]
fn a_pool_too_small_preempts_and_loses_nothing() {
    let spec = r#"{"requests":40,"input":{"uniform":[4,20]},"output":{"constant":24}}"#;
    let small = SchedulerConfig { num_gpu_blocks: 21, max_model_len: 64, ..config() };
    let report = plan(spec, ArrivalProcess::default(), small, "");
    assert!(report.counts.preemptions > 0, "{report}");
    assert_eq!((report.counts.finished, report.counts.output_tokens), (40, 40 * 24), "{report}");
    assert!(report.kv_usage_max > 0.9 && report.kv_usage_mean <= report.kv_usage_max, "{report}");
}

#[test]
fn who_can_never_fit_is_told_and_holds_up_nobody() {
    let list = "{\"prompt_tokens\":600,\"output_tokens\":1}\n{\"prompt_tokens\":8,\"output_tokens\":300}\n\
                {\"prompt_tokens\":8,\"output_tokens\":2}";
    let long = SchedulerConfig { max_model_len: 4096, ..config() };
    let report = plan(list, ArrivalProcess::default(), long, "e2e:1000");
    let c = report.counts;
    assert_eq!((c.requests, c.rejected, c.cut_short, c.finished, c.good), (3, 1, 1, 1, 1));
}

/// One seat, two long answers, and somebody urgent who comes during the first.
#[test]
fn the_urgent_wait_less_under_priority_and_least_under_strict_priority() {
    let in_time = |policy, deadline: u32| {
        let long = r#"{"prompt_tokens":4,"output_tokens":40,"priority":5}"#;
        let list = format!(
            "{long}\n{long}\n{{\"prompt_tokens\":4,\"output_tokens\":2,\"arrival\":1,\"deadline\":{deadline}}}"
        );
        let config = SchedulerConfig { policy, max_num_seqs: 1, ..config() };
        let report = plan(&list, ArrivalProcess::default(), config, "");
        assert_eq!(report.counts.finished, 3, "{policy}: {report}");
        report.counts.deadlines_met == 1
    };
    // A long answer takes 3 + 39 * 1.25 = 51.75 s, the short one 4.25 s.
    let policies = [PolicyKind::Fcfs, PolicyKind::Priority, PolicyKind::StrictPriority];
    let within = |deadline| policies.map(|policy| in_time(policy, deadline));
    assert_eq!(within(110), [true, true, true], "fcfs, priority, strict-priority: in 110 s");
    assert_eq!(within(60), [false, true, true], "fcfs: behind both; priority: behind the first");
    assert_eq!(within(7), [false, false, true], "strict-priority: at the end of the step");
}

#[test]
fn the_same_seed_gives_the_same_plan_and_another_one_another() {
    let spec =
        r#"{"requests":50,"input":{"exponential":20},"output":{"choice":[[2,0.5],[9,0.5]]}}"#;
    let with = |seed| {
        let arrivals = ArrivalProcess { rate: Some(2.0), seed, ..ArrivalProcess::default() };
        plan(spec, arrivals, config(), "").to_string()
    };
    assert_eq!(with(1), with(1));
    assert_ne!(with(1), with(2));
}

#[test]
fn arrivals_by_chance_come_at_their_rate() {
    let spec = r#"{"requests":20000,"input":{"constant":1},"output":{"constant":1}}"#;
    let spec = Box::new(Cursor::new(spec));
    let arrivals = ArrivalProcess { rate: Some(4.0), ..ArrivalProcess::default() };
    let times: Vec<f64> = Workload::read(spec, arrivals)
        .unwrap()
        .map(|request| request.unwrap().arrival.seconds())
        .collect();
    let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    assert!((mean - 0.25).abs() < 0.01, "the mean gap at 4 a second is {mean}");
    // An exponential distribution's standard deviation is its mean.
    assert!(
        (variance.sqrt() - 0.25).abs() < 0.01,
        "and its standard deviation {}",
        variance.sqrt()
    );
    assert!(gaps.iter().all(|gap| *gap >= 0.0), "in order");
}

#[test]
fn a_bad_workload_says_where() {
    let told = |file: &str| match try_plan(file, ArrivalProcess::default(), config(), "") {
        Err(PlanError::Workload(e)) => e.to_string(),
        other => panic!("{file}: {other:?}"),
    };
    let cases = [
        ("", "empty"),
        ("{\"prompt_tokens\":1,\"output_tokens\":1}\n{\"prompt_tokens\":", "line 2"),
        ("{\"prompt_tokens\":1,\"output_tokens\":0}", "line 1: output_tokens must be at least 1"),
        (
            "{\"prompt_tokens\":\"x\",\"output_tokens\":1}",
            "prompt_tokens must be a number of tokens",
        ),
        ("{\"prompt_tokens\":1,\"output_tokens\":1,\"priotiry\":1}", "priotiry"),
        (
            "{\"prompt_tokens\":1,\"output_tokens\":1,\"arrival\":-1}",
            "arrival must be a number of seconds",
        ),
        (
            "{\"prompt_tokens\":1,\"output_tokens\":1,\"arrival\":2}\n\n\
             {\"prompt_tokens\":1,\"output_tokens\":1,\"arrival\":1}",
            "line 3: arrival 1 is before the previous one, 2",
        ),
        (
            "{\"requests\":3,\"input\":{\"uniform\":[5,2]},\"output\":{\"constant\":1}}",
            "input: uniform must be [least, most]",
        ),
        ("{\"requests\":3,\"input\":{\"gauss\":5},\"output\":{\"constant\":1}}", "gauss"),
        ("{\"requests\":3,\n\"input\":{\"constant\":5}}", "output"),
        (
            "{\"requests\":3,\"input\":{\"constant\":99999999999},\"output\":{\"constant\":1}}",
            "at most",
        ),
        (
            "{\"requests\":3,\"input\":{\"constant\":5},\"output\":{\"constant\":1},\"priorities\":[[0,-1]]}",
            "priorities: each weight",
        ),
    ];
    for (file, want) in cases {
        let got = told(file);
        assert!(got.contains(want), "{file}: told `{got}`, which does not say `{want}`");
    }
    let rate = ArrivalProcess { rate: Some(0.0), ..ArrivalProcess::default() };
    let refused = Workload::read(Box::new(Cursor::new(THREE)), rate);
    assert!(matches!(refused.err(), Some(WorkloadError::Rate(_))), "a rate of 0");
}

/// Never knows.
struct Silent;

impl KvConnector for Silent {
    fn matched_tokens(&mut self, _: RequestId, _: &TokenChain, _: usize) -> Matched {
        Matched::AskAgain
    }
}

#[test]
fn a_memory_that_never_answers_delays_a_request_by_a_tenth_of_a_second() {
    let spec = r#"{"requests":1,"input":{"constant":20},"output":{"constant":1}}"#;
    let workload = Workload::read(Box::new(spec.as_bytes()), ArrivalProcess::default()).unwrap();
    let planner = Planner::new(config(), COST, Goodput::default()).unwrap();
    let report = planner.with_kv_connector(Box::new(Silent)).run(workload).unwrap();
    let ttft = report.ttft.unwrap().max - COST.base - 20.0 * COST.per_prefill_token;
    assert!((0.099..0.11).contains(&ttft), "waited for {ttft} s");
}

#[test]
fn drafts_yield_the_tokens_that_their_acceptance_promises() {
    // Alone, with an output so long that its end does not matter: each row has 4 drafts.
    let spec = r#"{"requests":1,"input":{"constant":4},"output":{"constant":20000}}"#;
    for rate in [0.0f64, 0.5, 0.8, 1.0] {
        let config = SchedulerConfig {
            num_gpu_blocks: 20_000,
            max_model_len: 30_000,
            num_speculative_tokens: 4,
            ..config()
        };
        let workload = Workload::read(Box::new(spec.as_bytes()), ArrivalProcess::default());
        let planner = Planner::new(config, COST, Goodput::default()).unwrap();
        let report = planner.with_acceptance_rate(rate).run(workload.unwrap()).unwrap();
        assert_eq!(report.counts.output_tokens, 20_000);
        let promised: f64 = (0..=4).map(|n| rate.powi(n)).sum();
        let got = report.speculation.unwrap().tokens_per_row;
        assert!((got / promised - 1.0).abs() < 0.02, "{got} tokens a row at {rate}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_gets_its_tokens_and_time_goes_forward(
        requests in 1u64..60,
        input in 1usize..40,
        output in 1usize..30,
        rate in prop::sample::select(vec![0.05, 1.0, f64::INFINITY]),
        blocks in 20usize..64,
        policy in prop::sample::select(PolicyKind::ALL.to_vec()),
        seed in any::<u64>(),
    ) {
        let spec = format!(
            r#"{{"requests":{requests},"input":{{"uniform":[1,{input}]}},"output":{{"constant":{output}}},
                "priorities":[[0,1],[1,1],[2,1]]}}"#
        );
        let config = SchedulerConfig { policy, num_gpu_blocks: blocks, max_model_len: 76, ..config() };
        let arrivals = ArrivalProcess { rate: Some(rate), seed, ..ArrivalProcess::default() };
        let report = plan(&spec, arrivals, config, "");
        let c = report.counts;
        prop_assert_eq!((c.requests, c.finished), (requests, requests), "{}", report);
        prop_assert_eq!(c.output_tokens, requests * output as u64, "tokens of answers");
        prop_assert!(c.scheduled_tokens >= c.output_tokens, "{}", report);
        let (ttft, e2e) = (report.ttft.unwrap(), report.e2e.unwrap());
        for latency in [ttft, e2e].into_iter().chain(report.itl) {
            let all = [latency.p50, latency.p95, latency.p99, latency.max];
            prop_assert!(all.is_sorted() && latency.p50 >= COST.base, "{all:?}");
        }
        prop_assert!(e2e.max >= ttft.max && report.seconds >= e2e.max, "{}", report);
        prop_assert_eq!(report.itl.is_some(), output > 1, "gaps between tokens");
    }
}
