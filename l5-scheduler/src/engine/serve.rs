//! The engine's thread: a loop that polls the inbox and runs a step.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::EngineError;
use super::handle::Shared;
use super::hub::Hub;
use super::inbox::{Mail, Occupancy, Submission};
use super::load::StepTimeFit;
use crate::core::KV_POLL_INTERVAL;
use crate::runner::ChoiceJob;
use crate::{EngineCore, Executor, FinishReason, Scheduler};

/// Maximum number of consecutive failed steps that the engine survives. One may be caused by a request in it.
const MAX_CONSECUTIVE_STEP_FAILURES: u32 = 1;

/// Maximum time for which an engine that was shut down goes on storing keys and values in its
/// [tiers](crate::tiers), and waits until they are written.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs an engine until it ends. Every unfinished request ends with it, and its receiver gets the reason.
pub(super) fn run<E: Executor<Job = ChoiceJob>>(mut core: EngineCore<E>, shared: &Arc<Shared>) {
    let hub = Hub::default();
    core.set_observer(Some(Box::new(hub.clone())));
    // Nothing reads the state that a panic leaves behind: all requests end here.
    let served = catch_unwind(AssertUnwindSafe(|| serve(&mut core, shared, &hub)));
    let why = served.map(|served| match served {
        Ok(()) => EngineError::ShutDown,
        Err(step) => EngineError::Failed(step.to_string()),
    });
    end_all(shared, &hub, why);
}

/// Ends all requests of an engine whose loop has ended, or has panicked.
pub(super) fn end_all(shared: &Shared, hub: &Hub, ended: Result<EngineError, Box<dyn Any + Send>>) {
    let why = ended.unwrap_or_else(|panic| EngineError::Failed(words(panic.as_ref())));
    let rest = shared.inbox.close(why.clone());
    let (finish, error) = match &why {
        EngineError::ShutDown => (FinishReason::Aborted, None),
        _ => (FinishReason::Failed, Some(why.to_string())),
    };
    let waited = rest.submissions.iter().map(|submission| submission.outbox.clone());
    for outbox in hub.close(finish).into_iter().chain(waited) {
        outbox.end_with(finish, error.clone());
    }
    shared.gauge.end();
    match why {
        EngineError::ShutDown => tracing::info!("engine: shut down"),
        why => tracing::error!("engine: {why}"),
    }
}

fn serve<E: Executor<Job = ChoiceJob>>(
    core: &mut EngineCore<E>,
    shared: &Shared,
    hub: &Hub,
) -> Result<(), E::Error> {
    let mut mail = Mail::default();
    let mut step_time = StepTimeFit::default();
    let mut failures = 0;
    loop {
        shared.gauge.publish(core.scheduler());
        let busy = core.has_unfinished();
        // A deadline that no clock has is none.
        let deadline = core.time_to_deadline().and_then(|left| Instant::now().checked_add(left));
        shared.inbox.take(&mut mail, busy, deadline, occupancy(core.scheduler()));
        for observer in mail.observers.drain(..) {
            hub.observe(observer, core.scheduler(), core.is_running());
        }
        mail.submissions.drain(..).for_each(|submission| take_in(core, hub, submission));
        // Nothing is relayed here.
        mail.unserved = None;
        let mut due = core.has_unfinished() || deadline.is_some_and(|at| at <= Instant::now());
        for id in mail.aborts.drain(..) {
            due |= core.abort(id);
        }
        if mail.shut_down {
            hub.live().into_iter().for_each(|id| _ = core.abort(id));
            core.step()?;
            while core.is_running() {
                core.step()?;
            }
            let unwritten = core.flush(FLUSH_TIMEOUT)?;
            if unwritten > 0 {
                tracing::warn!(
                    "engine: {unwritten} chunks of keys and values were not written within {FLUSH_TIMEOUT:?}, and are lost"
                );
            }
            return Ok(());
        }
        if !due {
            continue;
        }
        // The requests that were just taken wait in the scheduler now, and the step may be long.
        shared.gauge.publish(core.scheduler());
        let began = Instant::now();
        let result = match core.step() {
            Ok(result) => result,
            Err(why) if failures < MAX_CONSECUTIVE_STEP_FAILURES => {
                failures += 1;
                tracing::error!("engine: a step failed, and its requests end: {why}");
                core.fail_step(&why);
                continue;
            }
            Err(why) => return Err(why),
        };
        failures = 0;
        if result.scheduled_tokens > 0 {
            // Waiting for the turn says nothing about the work of the step.
            let took = began.elapsed().saturating_sub(result.phases.turn);
            let fitted = step_time.add(&result.load(), took);
            shared.gauge.step(fitted, result.replayed.is_some());
        }
        let nothing_moved = result.scheduled == 0 && result.finished.is_empty();
        if nothing_moved && core.has_unfinished() {
            shared.inbox.wait_timeout(KV_POLL_INTERVAL);
        }
    }
}

fn occupancy(scheduler: &Scheduler) -> Occupancy {
    let seats = if scheduler.is_held_up() { 0 } else { scheduler.free_seats() };
    Occupancy { queued: scheduler.num_waiting(), seats }
}

fn take_in<E: Executor<Job = ChoiceJob>>(
    core: &mut EngineCore<E>,
    hub: &Hub,
    submission: Submission,
) {
    let Submission { id, request, job, outbox, at } = submission;
    let arrival = core.now() + -at.elapsed().as_secs_f64();
    let request = request.scheduled(&job, id, arrival);
    hub.begin(id, outbox.clone());
    // The handle has validated the request, so the scheduler should not reject it.
    if let Err(rejection) = core.add_request(request, job) {
        outbox.end_with(FinishReason::Failed, Some(rejection.to_string()));
    }
}

/// Message of a panic.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
