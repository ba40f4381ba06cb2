//! Leases of an engine that has nothing else to do.

use l5_scheduler::lease::Leases;
use l5_scheduler::policy::Fcfs;
use l5_scheduler::{
    EngineRequest, Job, Policy, Rank, RequestView, Retain, Scheduler, SchedulerConfig, Time, Victim,
};

use crate::fake::{engine_of, request};

/// Keeps the blocks of each step of a job for a moment.
struct Brief(Fcfs);

impl Policy for Brief {
    fn name(&self) -> &'static str {
        "brief"
    }

    fn order(&self, request: &RequestView<'_>) -> Rank {
        self.0.order(request)
    }

    fn victim(
        &self,
        needy: &RequestView<'_>,
        running: &mut dyn Iterator<Item = RequestView<'_>>,
        leases: &Leases,
    ) -> Option<Victim> {
        self.0.victim(needy, running, leases)
    }

    fn retain(&self, finished: &RequestView<'_>, now: Time) -> Retain {
        let seconds = if finished.num_tokens() > 20 { 0.05 } else { 3600.0 };
        if finished.job().is_some() { Retain::LeaseUntil(now + seconds) } else { Retain::Free }
    }
}

#[test]
fn an_engine_without_requests_ends_a_lease_when_its_time_has_come() {
    let scheduler = Scheduler::new(SchedulerConfig::new(65, 4)).unwrap();
    let (engine, control) = engine_of(scheduler.with_policy(Box::new(Brief(Fcfs))), 9);
    let step_of = |job: &str, prompt: &[u32]| EngineRequest {
        job: Some(Job { id: job.to_owned(), last_step: false }),
        ..request(prompt, 1)
    };
    engine.handle().submit(step_of("long", &[1; 12])).unwrap().rest();
    engine.handle().submit(step_of("brief", &[2; 24])).unwrap().rest();
    // Nobody sends anything from here on: 3 and 6 blocks are kept, and the 6 come back.
    control.wait_for_free_blocks(&[61, 55, 61]);
    assert_eq!(control.steps().len(), 2, "steps that the model was asked to run");
    engine.handle().drain().unwrap();
}
