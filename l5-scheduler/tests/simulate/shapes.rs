//! Shapes of steps in the simulator: what could be replayed, and scenarios with a composer.

use std::io::Cursor;

use l5_scheduler::composer::{Composer, Composition, Demand, StepShape};
use l5_scheduler::sim::{ArrivalProcess, Goodput, Planner, Report, Scenario, Workload, replay};
use l5_scheduler::{Compose, CostModel, SchedulerConfig};

/// Every step takes a second, whatever its rows.
const SECOND: CostModel = CostModel {
    base: 1.0,
    per_prefill_token: 0.0,
    per_decode_token: 0.0,
    per_verify_token: None,
    per_kv_byte: 0.0,
    kv_bytes_per_token: 0.0,
    load_bytes_per_second: None,
};

fn plan(file: &str, rate: Option<f64>, compose: Compose, widths: &[usize]) -> Report {
    let config = SchedulerConfig { compose, ..SchedulerConfig::new(4097, 16) };
    let workload = Box::new(Cursor::new(file.to_owned()));
    let arrivals = ArrivalProcess { rate, seed: 3, ..ArrivalProcess::default() };
    let planner = Planner::new(config, SECOND, Goodput::default()).unwrap();
    let workload = Workload::read(workload, arrivals).unwrap();
    planner.with_decode_widths(widths).run(workload).unwrap()
}

#[test]
fn a_step_is_replayable_if_all_rows_decode_and_a_width_holds_them() {
    // Steps: A's prompt; A; A and B's prompt; A and B; B.
    let two = r#"
{"prompt_tokens":4,"output_tokens":4}
{"prompt_tokens":8,"output_tokens":3,"arrival":1.5}
"#;
    for (widths, replayable) in [(&[2, 1][..], 3), (&[1], 2), (&[], 0)] {
        let steps = plan(two, None, Compose::Mixed, widths).replay.unwrap().steps;
        assert_eq!((steps.replayable, steps.executed), (replayable, 5), "widths {widths:?}");
    }
    let usual = Planner::new(SchedulerConfig::new(9, 16), SECOND, Goodput::default()).unwrap();
    let workload = Workload::read(Box::new(two.as_bytes()), ArrivalProcess::default()).unwrap();
    assert_eq!(usual.run(workload).unwrap().replay, None, "if it is not asked for");
}

/// Computes prompts before anything decodes.
struct PromptsFirst;

impl Composer for PromptsFirst {
    fn name(&self) -> &'static str {
        "prompts-first"
    }

    fn begin<'a>(&self, demand: &Demand<'a>) -> Composition<'a> {
        let prompts = demand.prefilling().next().is_some() || demand.head().is_some();
        let shape = if prompts { StepShape::Prefill { chunk: 0 } } else { StepShape::DecodeOnly };
        Composition { shape, ..Composition::default() }
    }
}

#[test]
fn a_plan_can_have_a_composer_that_is_not_built_in() {
    // Steps: A's prompt; A; B's prompt; A and B; A and B. Mixed, A decodes beside B's prompt.
    let two = r#"
{"prompt_tokens":4,"output_tokens":4}
{"prompt_tokens":8,"output_tokens":3,"arrival":1.5}
"#;
    let planner = Planner::new(SchedulerConfig::new(9, 16), SECOND, Goodput::default()).unwrap();
    let planner = planner.with_composer(Box::new(PromptsFirst)).with_decode_widths(&[2]);
    let workload = Workload::read(Box::new(two.as_bytes()), ArrivalProcess::default()).unwrap();
    let report = planner.run(workload).unwrap();
    let steps = report.replay.as_ref().unwrap().steps;
    assert_eq!((steps.replayable, steps.executed), (3, 5), "{report}");
    assert_eq!((report.compose.as_str(), report.ttft.unwrap().max), ("prompts-first", 1.5));
    let last = report.itl.unwrap().max;
    assert_eq!(last, 2.0, "A waits while B's prompt is computed");
}

/// With two arrivals a step on the average, a step is without one with probability e^-2.
#[test]
fn two_arrivals_a_step_leave_an_eighth_to_replay_and_stable_shapes_leave_nearly_all() {
    let load = r#"{"requests":4000,"input":{"constant":8},"output":{"constant":64}}"#;
    let rate = |compose| plan(load, Some(2.0), compose, &[256]).replay.unwrap().rate;
    let mixed = rate(Compose::Mixed);
    assert!((mixed - (-2.0f64).exp()).abs() < 0.03, "mixed: {mixed}");
    for most in [4, 16] {
        let share = most as f64 / (most + 1) as f64;
        let stable = rate(Compose::Stable { max_decode_steps: most, chunk: 0 });
        assert!((stable - share).abs() < 0.03, "at most {most} steps that decode: {stable}");
    }
}

#[test]
fn a_scenario_can_have_a_composer_and_turns() {
    let scenario = |config: &str| {
        let json = format!(
            r#"{{"config": {{"block_size": 4, "num_gpu_blocks": 33 {config}}}, "requests": [
                {{"id": "a", "prompt_token_ids": [1, 2, 3], "max_tokens": 4,
                  "output_token_ids": [5, 5, 5, 5], "lora": ["x", "x"]}},
                {{"id": "b", "arrival_step": 1, "prompt_token_ids": [7, 8], "max_tokens": 2,
                  "output_token_ids": [6, 6], "lora": ["y", "y"]}}]}}"#
        );
        let scenario = Scenario::from_json(&json).unwrap();
        let trace = replay(&scenario).unwrap();
        let steps = trace.steps.iter().map(|step| {
            let rows: Vec<_> = step.scheduled.iter().map(|(id, n)| format!("{id}{n}")).collect();
            rows.join("+")
        });
        steps.filter(|step| !step.is_empty()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(scenario(""), "a3 a1+b2 a1+b1 a1");
    assert_eq!(scenario(r#", "compose": "mixed""#), "a3 a1+b2 a1+b1 a1");
    let stable = r#", "compose": {"stable": {"max_decode_steps": 2}}"#;
    assert_eq!(scenario(stable), "a3 a1 a1 b2 a1+b1");
    assert_eq!(scenario(r#", "adapter_turn": 1"#), "a3 b2 a1 b1 a1 a1");
}

#[test]
fn a_cadence_of_no_steps_is_refused() {
    let json = r#"{"config": {"block_size": 4, "num_gpu_blocks": 9, "compose": {"stable": {"max_decode_steps": 0}}}}"#;
    let refused = Scenario::from_json(json).unwrap_err().to_string();
    assert_eq!(refused, "config: max_decode_steps must be at least 1, got 0");
}
