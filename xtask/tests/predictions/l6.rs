//! Layer 6 is asked what `predict l6` asks.

use std::time::Duration;

use l5_scheduler::engine::LoadMeter;
use l5_scheduler::{PolicyKind, RequestId, SchedulerConfig, StepLoad, Time};
use l6_ensemble::admission::{AdmissionRequest, Decision, LaneView, Margins, Refusal, decide};
use l6_ensemble::breaker::{Breaker, BreakerConfig, BreakerState};
use l6_ensemble::calibration::InputDigest;
use l6_ensemble::escalation::{
    Escalation, EscalationConfig, EscalationLevel, LaneSignal, LoadLevels, Thresholds,
};
use l6_ensemble::quote::{InFlight, Quote, QuoteCalibration, RequestSize, Served};
use l6_ensemble::replica_choice::{ReplicaView, choose_replica};
use l6_ensemble::router::{
    Classifier, Finding, Findings, Part, REJECT, RouteInput, Router, RouterConfig, Tripwire,
};
use l6_ensemble::shadow::{ShadowConfig, ShadowLane, ShadowRequest};
use l6_ensemble::slo::{SloOptions, SloWindow};
use serde_json::Value;

use super::{agree, number, numbers};

fn name(answer: &Value) -> String {
    answer.as_str().unwrap().to_owned()
}

fn seconds(ms: usize) -> f64 {
    ms as f64 / 1e3
}

#[test]
fn the_tripwire_that_decides_is_the_routers() {
    agree(("l6", "rule-decides"), 100, name, |facts| {
        let finding = |found: &Value| Finding {
            tripwire: serde_json::from_value::<Tripwire>(found[0].clone()).unwrap(),
            hits: 1.0,
            density: 0.1,
            strength: number(&found[1]) as f32 / 4.0,
            evidence: Vec::new(),
        };
        let findings: Vec<Finding> =
            facts["found"].as_array().unwrap().iter().map(finding).collect();
        let findings = Findings { findings, diff: false };
        let decided = findings.decide(number(&facts["margin"]) as f32 / 4.0, |t| Some(t as usize));
        decided.map_or("none".to_owned(), |finding| finding.tripwire.name().to_owned())
    });
}

/// A classifier that says the same about every text.
struct Fixed(Vec<String>, Vec<f32>);

impl Classifier for Fixed {
    fn classes(&self) -> &[String] {
        &self.0
    }

    fn scores(&self, _: &RouteInput<'_>) -> Vec<f32> {
        self.1.clone()
    }
}

#[test]
fn the_lane_of_the_classifier_is_the_routers() {
    agree(("l6", "route-verdict"), 100, name, |facts| {
        let lanes = ["stl", "memory", "debug"].map(str::to_owned).to_vec();
        let mut percents = numbers(&facts["percents"]);
        percents.push(number(&facts["reject"]));
        let scores = percents.into_iter().map(|p| p as f32 / 100.0).collect();
        let classes = ["stl", "memory", "debug", "algo", REJECT].map(str::to_owned).to_vec();
        let config = RouterConfig {
            min_score: number(&facts["min"]) as f32 / 100.0,
            lanes: [("algo".to_owned(), lanes[number(&facts["home"])].clone())].into(),
            ..RouterConfig::default()
        };
        let router = Router::new(config, Some(Box::new(Fixed(classes, scores))), lanes).unwrap();
        let parts = [Part::user("Please write a function for me.")];
        let route = router.route(&RouteInput { intent: None, parts: &parts });
        route.primary.unwrap_or("rejected".to_owned())
    });
}

#[test]
fn the_replica_that_is_chosen_is_the_layers() {
    agree(("l6", "replica-choice"), 100, number, |facts| {
        let view = |replica: &Value| ReplicaView {
            wait: seconds(number(&replica[0])),
            preemption_rate: number(&replica[1]) as f64 / 10.0,
            cached_tokens: number(&replica[2]),
            prefill_seconds_per_token: seconds(number(&facts["per_token"])),
            closed: false,
        };
        let views: Vec<_> = facts["replicas"].as_array().unwrap().iter().map(view).collect();
        choose_replica(&views).unwrap()
    });
}

#[test]
fn wrong_quotes_are_counted_as_the_calibration_counts_them() {
    agree(("l6", "quotes-wrong"), 100, number, |facts| {
        let mut calibration = QuoteCalibration::new(60.0);
        let ms = |n: usize| Duration::from_millis(n as u64);
        for quoted in facts["quotes"].as_array().unwrap() {
            let quoted = numbers(quoted);
            let [first, per_token, expected, came, ended] = quoted[..] else { panic!() };
            let (first_token, per_token) = (ms(first), ms(per_token));
            let quote = Quote { first_token, per_token, measured: true, ..Quote::default() };
            let quote = Quote { done: quote.done_after(expected), ..quote };
            let served = Served { first_token, done: ms(ended), output_tokens: came };
            calibration.record(&quote, &served, Time::ZERO);
        }
        calibration.report(Time::ZERO).done.wrong as usize
    });
}

/// Decides about a request with a prompt of one token, at a replica whose steps take `step` ms for each row. One
/// request decodes, if it has steps before it.
fn at_the_door(
    (seats, step, ahead): (usize, usize, usize),
    (tokens, left, jitter): (usize, usize, usize),
    change: impl Fn(&mut LaneView<'_>, &mut AdmissionRequest),
) -> Decision {
    let policy = PolicyKind::StrictPriority;
    let config = SchedulerConfig { policy, max_num_seqs: seats, ..SchedulerConfig::new(513, 16) };
    let mut meter = LoadMeter::default();
    let decode = StepLoad { decode_tokens: 1, ..StepLoad::default() };
    let prefill = StepLoad { prefill_tokens: 1, ..StepLoad::default() };
    // A door promises nothing before it has seen some steps.
    for work in [decode, prefill].iter().cycle().take(16) {
        meter.step(work, Duration::from_millis(step as u64));
    }
    let request = |max_tokens: usize| {
        let expected_output_tokens = Some(max_tokens as f64);
        let size =
            RequestSize { prompt_tokens: 1, max_tokens, expected_output_tokens, cached_tokens: 0 };
        AdmissionRequest { size, ..AdmissionRequest::default() }
    };
    let (mut in_flight, mut load) = (InFlight::new(policy), meter.load());
    if ahead > 0 {
        in_flight.admit(RequestId(1), request(ahead + 1).admitted(&Quote::default()), Time::ZERO);
        in_flight.output(RequestId(1), 1, Time::ZERO);
        load.running = 1;
    }
    let mut lane = LaneView {
        load,
        config: &config,
        in_flight: &in_flight,
        max_num_waiting: 1000,
        priority_floor: None,
        neighbours: &[],
        margins: Margins::default(),
    };
    let deadline = Some(Time(seconds(left)));
    let mut asked = AdmissionRequest { deadline, jitter: jitter as f64 / 100.0, ..request(tokens) };
    change(&mut lane, &mut asked);
    decide(&asked, &lane).unwrap()
}

#[test]
fn the_code_of_a_refusal_is_the_doors() {
    agree(("l6", "door-code"), 100, name, |facts| {
        let lane = (number(&facts["seats"]), 10, 0);
        // The prompt and each token but the first take a step.
        let asked = (number(&facts["tokens"]) + 1, number(&facts["left"]), 0);
        let decision = at_the_door(lane, asked, |lane, asked| {
            lane.load.running = number(&facts["running"]);
            lane.load.waiting = number(&facts["waiting"]);
            lane.max_num_waiting = number(&facts["room"]);
            lane.priority_floor = facts["floor"].as_i64();
            asked.priority = number(&facts["priority"]) as i64;
        });
        match decision {
            Decision::Admit { .. } => "admitted".to_owned(),
            Decision::Refuse(Refusal { code, .. }) => code.name().to_owned(),
        }
    });
}

#[test]
fn the_retry_of_a_refusal_is_the_doors() {
    agree(("l6", "retry-after"), 100, number, |facts| {
        let lane = (1, number(&facts["step"]), number(&facts["ahead"]));
        let asked = ["tokens", "left", "jitter"].map(|name| number(&facts[name]));
        let no_margin =
            |lane: &mut LaneView<'_>, _: &mut AdmissionRequest| lane.margins.deadline = 0.0;
        match at_the_door(lane, asked.into(), no_margin) {
            Decision::Refuse(refusal) => refusal.retry_after as usize,
            admitted => panic!("{admitted:?}"),
        }
    });
}

#[test]
fn percentiles_are_the_windows() {
    agree(("l6", "latency-percentile"), 100, number, |facts| {
        let (times, counts) = (numbers(&facts["times"]), numbers(&facts["counts"]));
        let mut window = SloWindow::new(SloOptions::default());
        for (time, count) in times.iter().zip(counts) {
            (0..count).for_each(|_| window.first_token(Time(1.0), seconds(*time), 0.0));
        }
        let all = window.ttft(Time(1.0));
        let got = match number(&facts["percent"]) {
            50 => all.p50,
            95 => all.p95,
            _ => all.p99,
        };
        // A bucket is within 2.5% of its times.
        let near = |time: &&usize| got.is_some_and(|got| (got / **time as f64 - 1.0).abs() < 0.03);
        times.iter().find(near).copied().unwrap()
    });
}

#[test]
fn the_state_of_a_breaker_is_the_breakers() {
    agree(("l6", "breaker-state"), 200, name, |facts| {
        let dwell = number(&facts["dwell"]) as u64;
        let config = BreakerConfig {
            trip_below: 0.6,
            reset_above: 0.8,
            min_samples: 10,
            window: Duration::from_secs(1_000_000),
            dwell: Duration::from_secs(dwell),
            probation: Duration::from_secs(2 * dwell),
        };
        let mut breaker = Breaker::new(config);
        // Ten verdicts in one moment make one transition; the last of them makes it.
        let mut now = 0.0;
        let transitions: &[bool] = match facts["state"].as_str().unwrap() {
            "open" => &[false],
            "probation" => &[false, true],
            _ => &[false, true, true],
        };
        for pass in transitions {
            now += 10.0 * dwell as f64;
            (0..10).for_each(|_| breaker.observe(*pass, Time(now)));
        }
        let (count, passed) = (number(&facts["count"]), number(&facts["passed"]));
        for i in 0..count {
            let at = now + if i + 1 < count { 0.0 } else { number(&facts["since"]) as f64 };
            breaker.observe(i < passed, Time(at));
        }
        let state = match breaker.state() {
            BreakerState::Closed => "closed",
            BreakerState::Open { .. } => "open",
            BreakerState::Probation { .. } => "probation",
        };
        state.to_owned()
    });
}

#[test]
fn the_level_of_escalation_is_the_layers() {
    agree(("l6", "escalation-level"), 100, number, |facts| {
        let dwell = |name: &str| Duration::from_secs(number(&facts[name]) as u64);
        let mut escalation = Escalation::new(EscalationConfig {
            queue_seconds: LoadLevels { up: 5.0, down: 1.0 },
            dwell_up: dwell("dwell_up"),
            dwell_down: dwell("dwell_down"),
            levels: vec![EscalationLevel::default(); 4],
            ..EscalationConfig::default()
        });
        for (i, load) in numbers(&facts["loads"]).into_iter().enumerate() {
            let busiest = LaneSignal { queue_seconds: load as f64, ..LaneSignal::default() };
            escalation.observe(Time(10.0 * i as f64), &[LaneSignal::default(), busiest]);
        }
        escalation.level()
    });
}

#[test]
fn the_reason_of_a_shadow_is_the_layers() {
    agree(("l6", "shadow-reason"), 200, name, |facts| {
        let yes = |name: &str| facts[name].as_bool().unwrap();
        let request = ShadowRequest {
            score: number(&facts["score"]) as f32 / 20.0,
            shadow_below: number(&facts["below"]) as f32 / 20.0,
            high_stakes: yes("high_stakes"),
            tools: yes("tools"),
            n: number(&facts["n"]) as u32,
            ..ShadowRequest::new(InputDigest::new(b"salt", ["text"]))
        };
        let role = match yes("demoted") {
            true => l6_ensemble::breaker::Role::ShadowOnly,
            false => l6_ensemble::breaker::Role::Primary,
        };
        let second = ShadowLane {
            role,
            fresh: yes("fresh"),
            queue_seconds: number(&facts["wait"]) as f64,
            up: yes("up"),
        };
        let escalation =
            Thresholds { shadow_scale: number(&facts["scale"]) as f32, ..Thresholds::default() };
        let config =
            ShadowConfig { fresh_fraction: 1.0, demoted_fraction: 1.0, ..ShadowConfig::default() };
        let first = ShadowLane::default();
        let decision =
            l6_ensemble::shadow::decide(&request, &first, Some(&second), &escalation, &config);
        let decision = serde_json::to_value(decision).unwrap();
        let reason = decision.as_object().unwrap().values().next().unwrap();
        reason.as_str().unwrap().to_owned()
    });
}
