//! Leases of an engine that has nothing else to do.

use l5_scheduler::{
    EngineRequest, Job, Note, PolicyContext, RequestView, Retain, Retention, Scheduler,
    SchedulerConfig,
};

use crate::fake::{engine_of, request};

/// Keeps the blocks of each step of a job for a moment.
struct Brief;

impl Retention for Brief {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        _: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        let seconds = if finished.num_tokens() > 20 { 0.05 } else { 3600.0 };
        if finished.job().is_some() {
            Retain::LeaseUntil(context.now + seconds)
        } else {
            Retain::Free
        }
    }
}

#[test]
fn an_engine_without_requests_ends_a_lease_when_its_time_has_come() {
    let scheduler = Scheduler::new(SchedulerConfig::new(65, 4)).unwrap();
    let (engine, control) = engine_of(scheduler.with_retention(Box::new(Brief)), 9);
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

/// Stores the blocks of each step of a job.
struct Stores;

impl Retention for Stores {
    fn retain(&mut self, _: &RequestView<'_>, _: Option<&Note>, _: &PolicyContext<'_>) -> Retain {
        Retain::Offload
    }
}

#[test]
fn an_engine_without_requests_frees_blocks_when_they_are_stored() {
    let scheduler = Scheduler::new(SchedulerConfig::new(65, 4)).unwrap();
    let (engine, control) = engine_of(scheduler.with_retention(Box::new(Stores)), 9);
    engine.handle().submit(request(&[1; 12], 1)).unwrap().rest();
    // No request is sent from here on. 3 blocks are held until the executor says that they are stored.
    control.wait_for_free_blocks(&[61, 64]);
    engine.handle().drain().unwrap();
}
