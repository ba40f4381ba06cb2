//! Shadows: duplicates of requests on their second choice, off the request path.
//!
//! ```text
//! primary admitted -> dispatch: a permit, a task
//!                       task:  primary complete? -> room? -> render, tokenize -> submit -> compare, verdict
//! ```
//!
//! A shadow never delays a client's request:
//!
//! * It is submitted when its primary is complete, so that the two never compete for the machine that lanes share. A
//!   primary that does not complete (its client has gone) has no shadow: there is nothing to compare.
//! * Its priority is the lowest one, and in a lane with `strict-priority` any client's request takes its seat and its
//!   blocks. Other policies take nothing from a running request; there, a shadow begins only while the lane is idle, and
//!   is aborted as soon as a client's request waits.
//! * It begins only while a seat of its lane is free, and is aborted after [`ShadowConfig::max_wait`] without output.
//! * Their number is bounded, and so is the memory that each takes.
//! * When the server drains, all are aborted.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use l5_scheduler::trace::ShadowEvent;
use l5_scheduler::{EngineRequest, FinishReason, OutputChunk, PolicyKind, RequestId};
use l6_ensemble::ReplicaId;
use l6_ensemble::shadow::{ShadowConfig, ShadowReason};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use super::dispatch::{Dispatched, ShadowGrant};
use super::error::ApiError;
use super::lanes::{Lanes, ServedLane};
use super::lifecycle::{Count, Counted};
use super::observed::{Completed, Observed, PrimaryResponse};

/// Interval at which the queue of the lane is looked at while a shadow runs that cannot be preempted.
const CLIENTS_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum time for shadows to end when the server drains.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Why the server dispatches no shadow although the library has a reason for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDispatched {
    /// Too many are in flight.
    Limit,
    /// The request is too large to be kept for one, or its prompt is token ids, which mean another text in another lane.
    Unsuitable,
    /// The server drains.
    Draining,
}

impl NotDispatched {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::Limit, Self::Unsuitable, Self::Draining];

    /// Name of the reason, in labels of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Unsuitable => "unsuitable",
            Self::Draining => "draining",
        }
    }
}

/// How a shadow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowEnd {
    /// Its response is complete.
    Completed,
    /// The primary did not complete.
    Primary,
    /// The lane had no room, or rejected the request.
    Refused,
    /// It had no output for too long.
    Waited,
    /// A client's request waited.
    Clients,
    /// The server drains.
    Stopped,
    /// The engine failed or aborted it.
    Failed,
}

impl ShadowEnd {
    /// All ends.
    pub const ALL: [Self; 7] = [
        Self::Completed,
        Self::Primary,
        Self::Refused,
        Self::Waited,
        Self::Clients,
        Self::Stopped,
        Self::Failed,
    ];

    /// Name of the end, in labels of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Primary => "primary",
            Self::Refused => "refused",
            Self::Waited => "waited",
            Self::Clients => "clients",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// The shadows of a server: how many may be in flight, and whether the server drains.
#[derive(Debug)]
pub struct Shadows {
    permits: Arc<Semaphore>,
    stop: watch::Sender<bool>,
    tasks: Count,
}

/// Leave to dispatch one shadow.
#[derive(Debug)]
pub struct ShadowPermit {
    _permit: OwnedSemaphorePermit,
    _counted: Counted,
    stopped: watch::Receiver<bool>,
}

impl Shadows {
    /// None yet, and at most so many at once.
    pub fn new(max_in_flight: usize) -> Self {
        let permits = Arc::new(Semaphore::new(max_in_flight.min(Semaphore::MAX_PERMITS)));
        Self { permits, stop: watch::Sender::new(false), tasks: Count::default() }
    }

    /// Leave to dispatch another shadow.
    ///
    /// # Errors
    /// [`NotDispatched::Limit`], [`NotDispatched::Draining`].
    pub fn permit(&self) -> Result<ShadowPermit, NotDispatched> {
        if *self.stop.borrow() {
            return Err(NotDispatched::Draining);
        }
        let permit = self.permits.clone().try_acquire_owned().map_err(|_| NotDispatched::Limit)?;
        Ok(ShadowPermit {
            _permit: permit,
            _counted: self.tasks.enter(),
            stopped: self.stop.subscribe(),
        })
    }

    /// Number of shadows in flight.
    pub fn in_flight(&self) -> usize {
        self.tasks.now()
    }

    /// Aborts all shadows, and allows no others.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        let _ = timeout(STOP_TIMEOUT, self.tasks.none()).await;
    }
}

/// Observes the primary of an admitted request, and dispatches its shadow if it has one: `prepare` renders and tokenizes
/// the request for the shadow's lane. `None` if nothing is learned from the response.
pub fn observe<F>(
    lanes: &Lanes,
    dispatched: &Dispatched,
    checked: Option<&str>,
    shadow: Option<(ShadowGrant, F)>,
) -> Option<PrimaryResponse>
where
    F: Future<Output = Result<EngineRequest, ApiError>> + Send + 'static,
{
    let (lane, record) = (dispatched.routed.lane, dispatched.record(lanes));
    let shadow_lane = shadow.as_ref().map(|(grant, _)| grant.lane);
    let observed = Observed::begin(lanes, lane, shadow_lane, record, checked)?;
    let done = shadow.map(|(ShadowGrant { lane, reason, permit, route }, prepare)| {
        let (done, primary) = oneshot::channel();
        let (lanes, observed) = (lanes.clone(), observed.clone());
        ShadowTask { lanes, lane, reason, permit, route, primary, prepare, observed }.spawn();
        done
    });
    Some(observed.primary(done))
}

/// A shadow to run.
struct ShadowTask<F> {
    lanes: Lanes,
    /// Lane of the shadow.
    lane: usize,
    reason: ShadowReason,
    permit: ShadowPermit,
    /// Number of the request in the recording of the ensemble.
    route: Option<u64>,
    /// Sent when the primary is complete, and dropped when it ends otherwise.
    primary: oneshot::Receiver<()>,
    /// Renders and tokenizes the request for the lane.
    prepare: F,
    observed: Observed,
}

impl<F> ShadowTask<F>
where
    F: Future<Output = Result<EngineRequest, ApiError>> + Send + 'static,
{
    /// Runs the shadow in the background.
    fn spawn(self) {
        tokio::spawn(async move {
            let Self { lanes, lane, reason, mut permit, route, primary, prepare, observed } = self;
            let end = tokio::select! {
                biased;
                // The sender lives as long as the ensemble does.
                _ = permit.stopped.wait_for(|stopped| *stopped) => ShadowEnd::Stopped,
                end = run(&lanes, lane, (reason, route), primary, prepare, &observed) => end,
            };
            if let Some(ensemble) = lanes.router() {
                ensemble.counters().shadows().ended(lane, end);
            }
        });
    }
}

async fn run(
    lanes: &Lanes,
    lane: usize,
    (reason, route): (ShadowReason, Option<u64>),
    primary: oneshot::Receiver<()>,
    prepare: impl Future<Output = Result<EngineRequest, ApiError>>,
    observed: &Observed,
) -> ShadowEnd {
    let Some(ensemble) = lanes.router() else { return ShadowEnd::Refused };
    let (served, config) = (&lanes[lane], &ensemble.config().shadow);
    if primary.await.is_err() {
        return ShadowEnd::Primary;
    }
    let policy = ensemble.config().specialists[lane].policy;
    if !has_room(served, policy) {
        return ShadowEnd::Refused;
    }
    let Ok(request) = prepare.await else { return ShadowEnd::Refused };
    let strict = policy == PolicyKind::StrictPriority;
    let begun = |replica: ReplicaId, id: RequestId| {
        let Some((recorder, route)) = lanes.trace().zip(route) else { return };
        recorder.shadow(ShadowEvent {
            route,
            lane: served.model().name().to_owned(),
            replica: replica.0,
            request: id.0,
            at_us: recorder.us(std::time::Instant::now()),
            reason: reason.name().to_owned(),
        });
    };
    tokio::select! {
        end = generate(served, request, config, reason, begun, observed) => end,
        () = clients_wait(served), if !strict => ShadowEnd::Clients,
    }
}

/// Whether a shadow may begin: it would not wait, and a client's request would take its place or finds another one.
fn has_room(served: &ServedLane, policy: PolicyKind) -> bool {
    let (_, load) = served.lane.least_busy();
    let seats = if policy == PolicyKind::StrictPriority { served.lane.config().seats() } else { 1 };
    load.waiting == 0 && load.running < seats
}

/// Ends when a request waits in the lane.
async fn clients_wait(served: &ServedLane) {
    loop {
        sleep(CLIENTS_INTERVAL).await;
        let load = served.lane.load();
        // The shadow itself runs at once in an idle lane.
        if load.waiting > 0 && load.running > 0 {
            return;
        }
    }
}

/// Generates the response of a shadow; `begun` is told which request it is. Dropped, it aborts the request.
async fn generate(
    served: &ServedLane,
    request: EngineRequest,
    config: &ShadowConfig,
    reason: ShadowReason,
    begun: impl FnOnce(ReplicaId, RequestId),
    observed: &Observed,
) -> ShadowEnd {
    let submitted = Instant::now();
    let Ok((replica, mut stream)) = served.generation.admission.submit_shadow(request) else {
        return ShadowEnd::Refused;
    };
    begun(replica, stream.id());
    let mut response = Completed::default();
    loop {
        let next = std::future::poll_fn(|cx| stream.poll_recv(cx));
        let Ok(chunk) = timeout(config.max_wait, next).await else { return ShadowEnd::Waited };
        let Some(OutputChunk { tokens, text, end, .. }) = chunk else { return ShadowEnd::Failed };
        response.output_tokens += tokens.len() as u64;
        response.push(&text);
        if !tokens.is_empty() {
            response.first.get_or_insert(submitted.elapsed());
        }
        let Some(end) = end else { continue };
        response.total = Some(submitted.elapsed());
        response.stopped = end.finish == FinishReason::Stop;
        if !matches!(end.finish, FinishReason::Stop | FinishReason::Length) {
            return ShadowEnd::Failed;
        }
        observed.shadow(reason, response);
        return ShadowEnd::Completed;
    }
}

/// Maximum number of bytes of a request that is kept for a shadow, or for its second choice.
pub const MAX_KEPT_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn shadows_are_bounded_and_end_when_the_server_drains() {
        let shadows = Shadows::new(2);
        let (one, two) = (shadows.permit().unwrap(), shadows.permit().unwrap());
        assert_eq!(shadows.permit().unwrap_err(), NotDispatched::Limit);
        drop(one);
        let mut three = shadows.permit().unwrap();
        assert_eq!(shadows.in_flight(), 2);
        drop(two);
        let waits = async move {
            three.stopped.wait_for(|stopped| *stopped).await.unwrap();
            drop(three);
        };
        tokio::join!(shadows.stop(), waits);
        assert_eq!(shadows.in_flight(), 0);
        assert_eq!(shadows.permit().unwrap_err(), NotDispatched::Draining);
    }
}
