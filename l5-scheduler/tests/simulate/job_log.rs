//! The record of each job and turn of a simulation.

use l5_scheduler::sim::{AgentJobs, Goodput, JobLog, Planner, Report, TurnRecord};
use l5_scheduler::{CostModel, PolicyKind, SchedulerConfig};

use super::agents::{SPEC, THREE_TURNS, TWO_JOBS, config, jobs, one_line, planner, run};

fn job_log(report: &Report) -> JobLog {
    report.job_log.clone().expect("a record of the jobs")
}

#[test]
fn jobs_and_turns_can_be_recorded() {
    let report = run(config(), jobs(&one_line(THREE_TURNS)).with_records());
    let log = job_log(&report);
    let turn = |[arrival, first_token, finish]: [f64; 3], hit_tokens, computed_tokens| TurnRecord {
        arrival,
        first_token,
        finish,
        hit_tokens,
        loaded_tokens: 0,
        computed_tokens,
    };
    let turns = [
        turn([2.0, 7.0, 8.25], 0, 8),
        turn([11.25, 15.25, 15.25], 8, 6),
        turn([15.75, 18.75, 20.0], 12, 4),
    ];
    assert_eq!((log.jobs.len(), log.jobs[0].job.as_str()), (1, "a"));
    assert_eq!((log.jobs[0].arrival, log.jobs[0].finish), (2.0, Some(20.0)));
    assert_eq!(log.jobs[0].turns, turns);
    assert_eq!([log.mean, log.p90, log.p99], [Some(18.0); 3]);
    assert_eq!((log.leases.made, log.loads, log.stores), (0, 0, 0), "fcfs leaves no leases");

    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["jobs"][0]["turns"][1]["computed_tokens"], 6);
    assert_eq!([&json["mean"], &json["p99"], &json["leases"]["stolen"]], [18.0, 18.0, 0.0]);
    let silent = run(config(), jobs(&one_line(THREE_TURNS)));
    assert!(serde_json::to_value(&silent).unwrap().get("jobs").is_none());
}

#[test]
fn tokens_that_are_computed_again_are_in_the_record() {
    // 16 blocks of 4 are too few for both, and nothing is found again in the cache.
    let small = SchedulerConfig {
        num_gpu_blocks: 10,
        max_model_len: 36,
        enable_prefix_caching: false,
        ..config()
    };
    let report = run(small, jobs(TWO_JOBS.trim()).with_records());
    let turns: Vec<TurnRecord> =
        job_log(&report).jobs.iter().flat_map(|j| j.turns.clone()).collect();
    assert!(report.counts.preemptions > 0, "{report}");
    let computed: usize = turns.iter().map(|turn| turn.computed_tokens).sum();
    let outputs = report.counts.output_tokens - turns.len() as u64;
    assert_eq!(computed as u64 + outputs, report.counts.scheduled_tokens);
    assert!(computed as u64 > report.counts.prompt_tokens, "{turns:?}");
}

/// All calls are of one tool, which takes 0.1 s or 12 s: the command says which.
#[test]
fn context_serve_computes_less_than_continuum_where_commands_tell_calls_apart() {
    let file = include_str!("../../../fixtures/schedules/workloads/bash.json");
    let cost = CostModel::SMOLLM2_TWO_CORES;
    let computed = |policy: PolicyKind, seed: u64| -> usize {
        let config = SchedulerConfig { policy, ..SchedulerConfig::new(401, 16) };
        let jobs = AgentJobs::read(Box::new(file.as_bytes()), None, None, Some(seed)).unwrap();
        let planner = Planner::new(config, cost, Goodput::default()).unwrap();
        let log = job_log(&planner.run(jobs.with_records()).unwrap());
        assert!(log.jobs.iter().all(|job| job.finish.is_some()));
        log.jobs.iter().flat_map(|job| &job.turns).map(|turn| turn.computed_tokens).sum()
    };
    let of_all = |policy| (1..=5).map(|seed| computed(policy, seed)).sum::<usize>();
    let [fcfs, continuum, context_serve] =
        [PolicyKind::Fcfs, PolicyKind::Continuum, PolicyKind::ContextServe].map(of_all);
    assert!(context_serve < continuum && continuum < fcfs, "{context_serve} {continuum} {fcfs}");
    assert_eq!(computed(PolicyKind::ContextServe, 1), computed(PolicyKind::ContextServe, 1));
}

#[test]
fn each_policy_for_agents_saves_prompts_when_the_pool_is_small() {
    let spec = SPEC.replace("\"rate\":0.05", "\"rate\":0.2");
    let run = |policy: PolicyKind, memory: u64| {
        let config = SchedulerConfig { policy, num_gpu_blocks: 33, ..config() };
        let planner = planner(config);
        let planner = if memory > 0 { planner.with_host_memory(memory) } else { planner };
        let jobs = jobs(&spec).with_records();
        job_log(&planner.run(jobs).unwrap_or_else(|e| panic!("{policy}: {e}")))
    };
    let computed = |log: &JobLog| -> usize {
        assert_eq!(log.jobs.len(), 60);
        assert!(log.jobs.iter().all(|job| job.finish.is_some()));
        log.jobs.iter().flat_map(|job| &job.turns).map(|turn| turn.computed_tokens).sum()
    };
    let (fcfs, continuum) = (run(PolicyKind::Fcfs, 0), run(PolicyKind::Continuum, 0));
    let context_serve = run(PolicyKind::ContextServe, 0);
    let (lmcache, adaptive) = (run(PolicyKind::LmCache, 1 << 30), run(PolicyKind::Adaptive, 0));
    for (name, log) in [
        ("continuum", &continuum),
        ("context-serve", &context_serve),
        ("lmcache", &lmcache),
        ("adaptive", &adaptive),
    ] {
        assert!(
            computed(log) < computed(&fcfs),
            "{name}: {} of {}",
            computed(log),
            computed(&fcfs)
        );
    }
    assert!(context_serve.leases.made > 0, "after `ls`");
    assert!(continuum.leases.made > 0 && adaptive.leases.stolen > 0);
    assert!(lmcache.stores > 0 && lmcache.loads > 0);
    assert_eq!(adaptive.leases.made, adaptive.leases.ended, "nothing is left");
}
