//! Backpressure: which requests are admitted to the queue, which are rejected, and when to retry.

use std::sync::Arc;
use std::time::{Duration, Instant};

use l4_sampler::guide::{CompiledGuide, GuideError, GuideSpec};
use l4_sampler::philox::fresh_seed;
use l5_scheduler::engine::GuideSource;
use l5_scheduler::{EngineRequest, Load, ResponseStream, SubmitError};
use l6_ensemble::admission::RefusalCode;
use l6_ensemble::failover::Move;
use l6_ensemble::quote::RequestSize;
use l6_ensemble::shadow::SHADOW_PRIORITY;
use l6_ensemble::{ReplicaChoice, ReplicaId};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::adapters::{NamedAdapter, Waits};
use super::background::Background;
use super::door::{Door, DoorRequest, Pass, Refused};
use super::error::{ApiError, DoorRefusal};
use super::failover::FailoverPlan;
use super::lanes::ModelLane;
use super::metrics::LaneMetrics;
use super::options::Limits;
use super::refusals::queue_full;

/// Maximum of `Retry-After`, in seconds: OpenAI's clients ignore greater values.
const MAX_RETRY_AFTER: f64 = 120.0;

/// Maximum number of guides that are compiled at once.
const MAX_COMPILING: usize = 2;

/// Maximum number of guides that are compiled or wait for it.
const MAX_WAITING_GUIDES: usize = 32;

/// Maximum time that a request waits for its guide to be compiled, queueing included.
const GUIDE_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of bytes of a guide's source, times the samples that follow it. Each running sample has a parser of
/// its own, of about eight times that size.
const MAX_GUIDE_BYTES: usize = 256 << 10;

/// Maximum number of bytes that the parsers of a request's choices take when they begin.
const MAX_PARSER_BYTES: usize = 32 << 20;

/// Seats for guides that are being compiled.
#[derive(Clone, Debug)]
struct Compiling {
    seats: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Default for Compiling {
    fn default() -> Self {
        Self {
            seats: Arc::new(Semaphore::new(MAX_COMPILING)),
            waiting: Arc::new(Semaphore::new(MAX_WAITING_GUIDES)),
        }
    }
}

/// Seconds of `Retry-After`: between half and all of the time that the current work takes at the pace of the last
/// steps. `chance`, from 0 to 1, spreads the retries: clients with the same value would all return at once.
pub fn retry_after(load: &Load, chance: f64) -> u32 {
    let seconds = (load.seconds.unwrap_or(1.0) * (0.5 + 0.5 * chance)).ceil();
    // NaN is 1.
    if seconds >= 1.0 { seconds.min(MAX_RETRY_AFTER) as u32 } else { 1 }
}

/// Requests that a replica has accepted.
pub struct Submitted {
    /// The replica.
    pub replica: ReplicaId,
    /// Their responses, prompt by prompt.
    pub streams: Vec<ResponseStream>,
    /// What to do if the replica cannot serve them. `None`: it computes them itself.
    pub failover: Option<FailoverPlan>,
}

/// Admission of requests to the queues of a lane. Clones share everything.
#[derive(Clone)]
pub struct Admission {
    lane: Arc<ModelLane>,
    door: Door,
    metrics: Arc<LaneMetrics>,
    background: Background,
    compiling: Compiling,
    /// Maximum number of prompt tokens that wait.
    max_queued_tokens: Option<usize>,
    /// Time from a request's arrival to the end of its response.
    request_timeout: Option<Duration>,
}

impl Admission {
    /// Admission to a lane.
    pub fn new(
        lane: Arc<ModelLane>,
        door: Door,
        metrics: Arc<LaneMetrics>,
        background: Background,
        limits: &Limits,
    ) -> Self {
        let &Limits { queued_tokens: max_queued_tokens, request_timeout, .. } = limits;
        let compiling = Compiling::default();
        Self { lane, door, metrics, background, compiling, max_queued_tokens, request_timeout }
    }

    /// Counters, gauges and histograms.
    pub fn metrics(&self) -> &Arc<LaneMetrics> {
        &self.metrics
    }

    /// Time from a request's arrival to the end of its response.
    pub fn request_timeout(&self) -> Option<Duration> {
        self.request_timeout
    }

    /// Takes all seats for compiling guides, so that a test can see requests wait for one.
    #[cfg(test)]
    pub(super) fn occupy_compiling(&self) -> tokio::sync::OwnedSemaphorePermit {
        let seats = self.compiling.seats.clone();
        seats.try_acquire_many_owned(MAX_COMPILING as u32).expect("no guide is being compiled")
    }

    /// Checks that the queue has room for `requests` more, before their prompts are tokenized.
    ///
    /// # Errors
    /// As [`Admission::submit`].
    pub fn room_for(&self, requests: usize) -> Result<(), ApiError> {
        self.lane.room_for(requests).map_err(|why| self.refused(requests, why))
    }

    /// Submits requests to the lane, `samples` of each, all or none. Returns which replica took them, and what to do if
    /// it cannot serve them. A guide is compiled first, in the background. Then, and only if they are valid, requests
    /// with an adapter wait for it: that counts as time in the queue.
    ///
    /// # Errors
    /// [`ApiError`]: 400 for what is invalid or can never fit, 429 with `Retry-After` when the queue is full, 503 while
    /// draining, 500 without an engine; and those of [`NamedAdapter::obtain`].
    pub async fn submit(
        &self,
        mut requests: Vec<EngineRequest>,
        samples: u32,
        adapter: Option<&NamedAdapter>,
        arrived: Instant,
    ) -> Result<Submitted, ApiError> {
        let choices = requests.len().saturating_mul(samples as usize);
        let tokens: usize = requests.iter().map(|request| request.prompt.len()).sum();
        let own = Waits { requests: choices, tokens: tokens.saturating_mul(samples as usize) };
        // Those that wait for an adapter are on their way to the queue.
        let waiting = adapter.map_or(Waits::NONE, NamedAdapter::waiting);
        self.queue_has_room(own, waiting)?;
        // All prompts of a request have the same guide.
        let spec = requests.iter().find_map(|request| match &request.guide {
            Some(GuideSource::Spec(spec)) => Some(spec.clone()),
            _ => None,
        });
        if let Some(spec) = spec {
            let scope = requests.first().and_then(|request| request.cache_salt.clone());
            let guide = self.compile(spec, scope.unwrap_or_default(), choices).await?;
            for request in &mut requests {
                request.guide = Some(guide.clone());
            }
        }
        if let Some(adapter) = adapter {
            self.lane.check(&requests).map_err(|why| self.refused(choices, why))?;
            let over = self.request_timeout.map(|within| arrived + within);
            let due = requests.iter().filter_map(|request| request.deadline).min();
            let due = due.map(|within| arrived + within);
            let until = [over, due].into_iter().flatten().min();
            let (adapter, waited) = match adapter.obtain(own, until).await {
                Ok(obtained) => obtained,
                Err(why) if due.is_some_and(|due| due <= Instant::now()) => {
                    // The door refuses what has no time left. It does not know where the time went.
                    let choice = self.lane.choose(&requests);
                    let late = self.pass(&choice, &mut requests, arrived).err();
                    return Err(late.map_or(why, ApiError::late_for_adapter));
                }
                Err(why) => return Err(why),
            };
            for request in &mut requests {
                (request.adapter, request.waited) = (Some(adapter.clone()), waited);
            }
            // Others were submitted meanwhile.
            self.queue_has_room(own, Waits::NONE)?;
        }
        let choice = self.lane.choose(&requests);
        let pass = self.pass(&choice, &mut requests, arrived)?;
        let kept = self.lane.relays().then(|| requests.clone());
        let submitted = self.door.submit(&pass, || self.lane.submit_to(&choice, requests, samples));
        let (replica, streams) = submitted.map_err(|why| self.refused(choices, why))?;
        self.metrics.slo().decided(true);
        let plan = |kept| FailoverPlan::new(self.clone(), &pass, replica, kept, samples);
        let failover = kept.filter(|_| self.lane.relays_of(replica)).map(plan);
        Ok(Submitted { replica, streams, failover })
    }

    /// Submits a request again that the replica `failed` could not serve. `None`: no replica accepts it.
    pub fn fail_over(
        &self,
        failed: ReplicaId,
        may: Move,
        pass: &Pass,
        request: EngineRequest,
    ) -> Option<(ReplicaId, ResponseStream)> {
        let submitted = self.door.submit(pass, || self.lane.fail_over(failed, may, request));
        // The client gets the failure that the first replica reported.
        let (replica, streams) = submitted.ok()?;
        tracing::info!(
            target: crate::LOG,
            "{}: a request that replica {failed} could not serve goes to replica {replica}",
            self.lane.id
        );
        Some((replica, streams.into_iter().next()?))
    }

    /// Lets requests pass the door, if what is promised to them and to those in flight can be kept. Their deadlines
    /// count from `arrived`.
    fn pass(
        &self,
        choice: &ReplicaChoice,
        requests: &mut [EngineRequest],
        arrived: Instant,
    ) -> Result<Pass, ApiError> {
        let now = Instant::now();
        let (mut size, mut priority, mut within) = (RequestSize::default(), 0, None);
        for request in requests.iter_mut() {
            size.prompt_tokens = size.prompt_tokens.max(request.prompt.len());
            size.max_tokens = size.max_tokens.max(request.stop.max_tokens);
            priority = request.priority;
            let left = |within| (arrived + within).saturating_duration_since(now);
            request.deadline = request.deadline.map(left);
            within = request.deadline;
        }
        let (replica, load) = (choice.replica, choice.load);
        let deadline = within.map(|left| now + left);
        let request = DoorRequest { size, priority, deadline, jitter: chance() };
        match self.door.decide(replica, (load, self.lane.config()), request) {
            Ok(Ok(pass)) => Ok(pass),
            Ok(Err(Refused { refusal, message, limit })) => {
                let (code, is_load) = (refusal.code, refusal.is_load());
                let door = DoorRefusal { code, limit, is_load, quote: Some(refusal.quote) };
                Err(ApiError::refused(door, message, refusal.retry_after))
            }
            // The engine says the same, in the words of its validation.
            Err(_) => Ok(Pass::default()),
        }
    }

    /// Submits a shadow: at the lowest priority, without a deadline and without a promise. The door knows of it, and
    /// decides nothing.
    ///
    /// # Errors
    /// Why the engine rejected it.
    pub fn submit_shadow(
        &self,
        request: EngineRequest,
    ) -> Result<(ReplicaId, ResponseStream), SubmitError> {
        let size = RequestSize {
            prompt_tokens: request.prompt.len(),
            max_tokens: request.stop.max_tokens,
            ..RequestSize::default()
        };
        let (priority, deadline) = (SHADOW_PRIORITY, None);
        let request = EngineRequest { priority, deadline, job: None, ..request };
        let pass = self.door.pass_shadow(size);
        let (replica, streams) = self.door.submit(&pass, || self.lane.submit(vec![request], 1))?;
        // One request has one stream.
        let stream = streams.into_iter().next().ok_or(SubmitError::Draining)?;
        Ok((replica, stream))
    }

    /// The door of the lane.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Compiles a guide for `choices` choices, unless it is cached.
    async fn compile(
        &self,
        spec: Arc<GuideSpec>,
        scope: String,
        choices: usize,
    ) -> Result<GuideSource, ApiError> {
        // Each holds its schema while it waits.
        let Ok(_waits) = self.compiling.waiting.clone().try_acquire_owned() else {
            return Err(self.busy(
                None,
                "Too many guides are waiting to be compiled. Please retry later.".to_owned(),
            ));
        };
        let known = self.background.run(0, {
            let (lane, spec, scope) = (self.lane.clone(), spec.clone(), scope.clone());
            move || {
                // What passes is small, also while it waits.
                spec.check()?;
                Ok((spec.source_bytes(), lane.compiled_guide(&spec, &scope)))
            }
        });
        let known: Result<_, GuideError> = known.await?;
        let (bytes, known) = known.map_err(|why| self.refused(choices, why.into()))?;
        if choices > 1 && bytes.saturating_mul(choices) > MAX_GUIDE_BYTES {
            let message = format!(
                "`n`: {choices} choices with a guide of {bytes} bytes exceed the maximum of {MAX_GUIDE_BYTES} bytes, \
                 guide times choices. Reduce `n`, or send several requests."
            );
            return Err(ApiError::param("n", message).with_code("guide_too_large"));
        }
        if let Some(guide) = known {
            return within_memory(guide, choices);
        }
        let lane = self.lane.clone();
        let compiled =
            Background::seated(&self.compiling.seats, move || lane.compile_guide(&spec, &scope));
        match timeout(GUIDE_TIMEOUT, compiled).await {
            Ok(compiled) => {
                let guide = compiled?.map_err(|why| self.refused(choices, why))?;
                within_memory(guide, choices)
            }
            Err(_) => {
                let message = "The guide was not compiled in time, because of those of other requests. Please retry \
                    later.";
                Err(self.busy(None, message.to_owned()))
            }
        }
    }

    /// Converts a rejection by the engine.
    fn refused(&self, choices: usize, why: SubmitError) -> ApiError {
        match why {
            // To retry would never help.
            SubmitError::Full { most, .. } if choices > most => {
                let message = format!(
                    "`n`: {choices} choices exceed the maximum of {most} requests, running and waiting, of this \
                     server. Reduce `n` or the number of prompts."
                );
                ApiError::param("n", message)
            }
            SubmitError::Full { waiting, .. } => {
                self.busy(Some("max_num_queued_reqs"), queue_full(waiting))
            }
            why => why.into(),
        }
    }

    /// Checks that the queue has room for these requests, behind those that wait to enter it.
    fn queue_has_room(&self, own: Waits, before: Waits) -> Result<(), ApiError> {
        let all = own.requests.saturating_add(before.requests);
        self.lane.room_for(all).map_err(|why| self.refused(own.requests, why))?;
        self.max_queued_tokens
            .map_or(Ok(()), |most| self.room_for_tokens(own.tokens, before.tokens, most))
    }

    /// Checks that the queue has room for so many prompt tokens.
    fn room_for_tokens(&self, tokens: usize, before: usize, most: usize) -> Result<(), ApiError> {
        if tokens > most {
            let message = format!(
                "The prompts have {tokens} tokens, counted once for each choice, but at most {most} may wait on this \
                 server. Please reduce the length or the number of the prompts."
            );
            return Err(ApiError::invalid(message).with_code("prompt_too_long"));
        }
        let waiting = self.lane.load().queued_tokens.saturating_add(before);
        if waiting.saturating_add(tokens) <= most {
            return Ok(());
        }
        let message = format!(
            "The queue is full: {waiting} prompt tokens are waiting, and {tokens} more would exceed the limit of \
             {most}. Please retry later."
        );
        Err(self.busy(Some("max_num_queued_tokens"), message))
    }

    /// Error of a rejection for load. `limit`: the limit of the queue that was reached, if it was one.
    fn busy(&self, limit: Option<&'static str>, message: String) -> ApiError {
        let seconds = retry_after(&self.lane.load(), chance());
        let code = RefusalCode::QueueFull;
        let refusal = DoorRefusal { code, limit, is_load: true, quote: None };
        ApiError::refused(refusal, message, seconds)
    }
}

/// Checks that the parsers of a guide, one for each choice, fit into the memory for them.
fn within_memory(guide: CompiledGuide, choices: usize) -> Result<GuideSource, ApiError> {
    let bytes = guide.lexer_bytes();
    if choices <= 1 || bytes.saturating_mul(choices) <= MAX_PARSER_BYTES {
        return Ok(GuideSource::Compiled(guide));
    }
    let message = format!(
        "`n`: {choices} choices need too much memory with this guide, whose parser takes {} KiB for each. Reduce `n`, \
         or simplify the guide.",
        bytes >> 10
    );
    Err(ApiError::param("n", message).with_code("guide_too_large"))
}

/// Random number from 0 to 1.
fn chance() -> f64 {
    // Seeds have 53 bits.
    fresh_seed() as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_a_full_queue_get_different_retry_times() {
        let chances: Vec<f64> = (0..1000).map(|_| chance()).collect();
        assert!(chances.iter().all(|chance| (0.0..=1.0).contains(chance)));
        let mean = chances.iter().sum::<f64>() / 1000.0;
        assert!((0.4..0.6).contains(&mean), "{mean}");
    }

    #[test]
    fn retry_after_is_within_the_bounds_that_clients_accept() {
        let after = |seconds, chance| retry_after(&Load { seconds, ..Load::default() }, chance);
        assert_eq!(after(None, 1.0), 1);
        assert_eq!(after(Some(0.01), 0.0), 1);
        assert_eq!((after(Some(10.0), 0.0), after(Some(10.0), 1.0)), (5, 10));
        assert_eq!(after(Some(1e9), 0.5), 120);
        assert_eq!((after(Some(f64::NAN), 0.5), after(Some(f64::INFINITY), 0.5)), (1, 120));
    }
}
