//! The engine's thread: a look into the inbox, a step, and so on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::EngineError;
use super::handle::Shared;
use super::hub::Hub;
use super::inbox::{Mail, Occupancy, Submission};
use crate::runner::AnswerJob;
use crate::{EngineCore, ExecuteError, Executor, FinishReason, Request, Scheduler};

/// How long to wait when everybody waits for keys and values from elsewhere, whose arrival nobody puts into the inbox.
const A_MOMENT: Duration = Duration::from_millis(1);

/// Failed steps in a row that an engine outlives. One may be the fault of who was in it.
const MOST_FAILURES: u32 = 1;

/// The whole life of an engine. Whatever ends it, everybody is told.
pub(super) fn run<E: Executor<Job = AnswerJob>>(mut core: EngineCore<E>, shared: &Arc<Shared>) {
    let hub = Hub::default();
    core.set_observer(Some(Box::new(hub.clone())));
    // What a panic leaves behind is looked at by nobody: all requests end here.
    let served = catch_unwind(AssertUnwindSafe(|| serve(&mut core, shared, &hub)));
    let why = match served {
        Ok(Ok(())) => EngineError::ShutDown,
        Ok(Err(step)) => EngineError::Failed(step.to_string()),
        Err(panic) => EngineError::Failed(words(panic.as_ref())),
    };
    let rest = shared.inbox.close(why.clone());
    let (finish, error) = match &why {
        EngineError::ShutDown => (FinishReason::Aborted, None),
        EngineError::Failed(_) => (FinishReason::Failed, Some(why.to_string())),
    };
    let waited = rest.submissions.iter().map(|submission| submission.outbox.clone());
    for outbox in hub.close(finish).into_iter().chain(waited) {
        outbox.end_with(finish, error.clone());
    }
    shared.gauge.set(0, 0);
    match why {
        EngineError::ShutDown => tracing::info!("engine: shut down"),
        EngineError::Failed(why) => tracing::error!("engine: failed: {why}"),
    }
}

fn serve<E: Executor<Job = AnswerJob>>(
    core: &mut EngineCore<E>,
    shared: &Shared,
    hub: &Hub,
) -> Result<(), ExecuteError> {
    let mut mail = Mail::default();
    let mut failures = 0;
    loop {
        shared.inbox.take(&mut mail, core.has_unfinished(), occupancy(core.scheduler()));
        mail.observers.drain(..).for_each(|observer| hub.observe(observer, core.scheduler()));
        mail.submissions.drain(..).for_each(|submission| take_in(core, hub, submission));
        let mut due = core.has_unfinished();
        for id in mail.aborts.drain(..) {
            due |= core.abort(id);
        }
        if mail.shut_down {
            hub.live().into_iter().for_each(|id| _ = core.abort(id));
            core.step()?;
            return Ok(());
        }
        if !due {
            continue;
        }
        let began = Instant::now();
        let result = match core.step() {
            Ok(result) => result,
            Err(why) if failures < MOST_FAILURES => {
                failures += 1;
                tracing::error!("engine: a step failed, and who was in it ends: {why}");
                core.fail_step(&why);
                continue;
            }
            Err(why) => return Err(why),
        };
        failures = 0;
        let replayed = result.replayed.is_some();
        shared.gauge.step(result.scheduled_tokens, began.elapsed(), replayed);
        let nothing_moved = result.scheduled == 0 && result.finished.is_empty();
        let scheduler = core.scheduler();
        shared.gauge.set(scheduler.num_running(), scheduler.num_waiting());
        if nothing_moved && core.has_unfinished() {
            shared.inbox.doze(A_MOMENT);
        }
    }
}

fn occupancy(scheduler: &Scheduler) -> Occupancy {
    let free = scheduler.config().seats().saturating_sub(scheduler.num_running());
    let seats = if scheduler.is_held_up() { 0 } else { free };
    Occupancy { queued: scheduler.num_waiting(), seats }
}

fn take_in<E: Executor<Job = AnswerJob>>(
    core: &mut EngineCore<E>,
    hub: &Hub,
    submission: Submission,
) {
    let Submission { id, job, terms, outbox, at } = submission;
    let arrival = core.now() + -at.elapsed().as_secs_f64();
    let request = Request {
        priority: terms.priority,
        deadline: terms.deadline.map(|within| arrival + within.as_secs_f64()),
        adapter: terms.adapter,
        cache_salt: terms.cache_salt,
        job: terms.job,
        ..job.request(id, arrival)
    };
    hub.begin(id, outbox.clone());
    // The handle has asked the same before: what it lets pass is not rejected here.
    if let Err(rejection) = core.add_request(request, job) {
        outbox.end_with(FinishReason::Failed, Some(rejection.to_string()));
    }
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without words").to_owned()
}
