//! An engine that computes nothing: it relays its requests, for example to a server on another machine.
//!
//! ```text
//! EngineHandle --submit, abort, drain--> inbox --> relay's queue --begin, abort--> Relay
//!                                                                                   | tokens
//!                                       ResponseStream <-- outbox <-- RelayOutput <-+
//! ```
//!
//! To its users it is an [`Engine`] as any other: the same handle, validation, streams and load. Instead of a scheduler
//! it has a queue, from which at most `max_num_seqs` requests are relayed at once, in the order of priority and
//! arrival. A [`Relay`] brings tokens only. Their text, stop strings, end tokens and length limits are handled here, by
//! the state machine that also runs behind a model ([`ChoiceState`]).

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use l4_sampler::Sampled;
use l4_sampler::output::{ChoiceEnd, ChoiceSpec, ChoiceState, NewTokens};

use super::handle::{EngineHandle, Shared};
use super::hub::Hub;
use super::inbox::{Inbox, Mail, Occupancy, Submission};
use super::serve::end_all;
use super::{Engine, EngineError, EngineRequest, ModelFacts, StartError, Startup, SubmitError};
use crate::runner::{ChoiceJob, OutputEnd, OutputSink, RelayFailure, TokenDelta};
use crate::{FinishReason, RequestId, Scheduler, SchedulerConfig, StepObserver};

/// Maximum time between two polls of the inbox while requests are relayed. A message ends the wait at once.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Weight of a new measurement in the rates of the load.
const RATE_WEIGHT: f64 = 0.2;

/// Carries requests to where they are computed, and their tokens back.
///
/// Both methods are called on the engine's thread, for which all requests wait: they must not block.
pub trait Relay: Send {
    /// Begins a request: choice `choice` of those with its seed. What comes back goes to `output`, from any thread.
    /// Dropping the output before its end fails the request.
    fn begin(&mut self, id: RequestId, request: &EngineRequest, choice: u32, output: RelayOutput);

    /// Stops a request that has begun. For its client it has ended: what its output still gets is ignored. It may have
    /// ended by itself meanwhile.
    fn abort(&mut self, id: RequestId);
}

impl<R: Relay + ?Sized> Relay for Box<R> {
    fn begin(&mut self, id: RequestId, request: &EngineRequest, choice: u32, output: RelayOutput) {
        (**self).begin(id, request, choice, output);
    }

    fn abort(&mut self, id: RequestId) {
        (**self).abort(id);
    }
}

/// Limits of a relay through which `max_num_seqs` requests of at most `max_model_len` tokens go at once. Its pool has a
/// block for each of them, which stands for memory elsewhere.
pub fn relay_config(max_model_len: usize, max_num_seqs: usize) -> SchedulerConfig {
    let block_size = max_model_len.max(1).checked_next_power_of_two().unwrap_or(1 << 32);
    SchedulerConfig {
        max_num_seqs,
        max_model_len,
        max_num_batched_tokens: max_model_len.max(max_num_seqs),
        enable_prefix_caching: false,
        ..SchedulerConfig::new(max_num_seqs.saturating_add(1), block_size)
    }
}

/// Checks that a request needs nothing that a relay lacks: it brings tokens, and no probabilities.
pub(super) fn check(request: &EngineRequest) -> Result<(), SubmitError> {
    let params = &request.params;
    let refused = [
        (params.logprobs.is_some(), "log probabilities"),
        (request.guide.is_some(), "guides"),
        (request.adapter.is_some(), "adapters"),
        (!params.banned_tokens.is_empty(), "banned tokens"),
        (params.logit_bias.iter().any(|(_, bias)| !bias.is_finite()), "infinite biases"),
    ];
    match refused.into_iter().find(|(has, _)| *has) {
        Some((_, what)) => Err(SubmitError::NotRelayed(what)),
        None => Ok(()),
    }
}

/// What a relayed request took, for the rates of the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RelayedTimes {
    /// From the begin to the first tokens.
    first: Duration,
    prompt: usize,
    /// From the first tokens to the last, and the number of tokens after the first ones.
    rest: (Duration, usize),
}

/// A relayed request that has ended.
#[derive(Clone, Debug)]
pub(super) struct RelayedEnd {
    id: RequestId,
    finish: FinishReason,
    times: Option<RelayedTimes>,
}

/// Receives the tokens of one relayed request. If it is dropped before the end, the request has failed.
pub struct RelayOutput {
    id: RequestId,
    inbox: Arc<Inbox>,
    sink: Box<dyn OutputSink>,
    /// State of the choice. `None`: it has ended, for this reason.
    state: Result<ChoiceState, FinishReason>,
    /// How the relay failed, if it has.
    failure: Option<RelayFailure>,
    vocab: usize,
    prompt: usize,
    began: Instant,
    /// Time of the first tokens, and their number.
    first: Option<(Instant, usize)>,
    last: Instant,
    count: usize,
    /// Memory of [`RelayOutput::push`].
    new: NewTokens,
}

impl RelayOutput {
    fn new(id: RequestId, job: ChoiceJob, shared: &Shared) -> Self {
        let ChoiceJob { prompt, params, stop, seed, sample, guide, continues, sink, .. } = job;
        let ModelFacts { vocab, tokenizer, .. } = shared.validator.facts();
        let spec = ChoiceSpec { params, stop, seed, sample, guide, continues };
        let longest = shared.validator.config().max_model_len;
        let mut state = ChoiceState::new(spec, &prompt, tokenizer.as_ref(), *vocab, longest);
        state.open(&prompt, &[], tokenizer.as_ref());
        let now = Instant::now();
        Self {
            id,
            inbox: shared.inbox.clone(),
            sink,
            state: Ok(state),
            failure: None,
            vocab: *vocab,
            prompt: prompt.len(),
            began: now,
            first: None,
            last: now,
            count: 0,
            new: NewTokens::default(),
        }
    }

    /// Number of output tokens so far.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no output tokens.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds output tokens. Returns why the request has ended, if it has: by an end token, a stop string, its length, or
    /// a token that the model does not have. Further tokens are ignored, so the relay need not wait for them.
    pub fn push(&mut self, tokens: &[u32]) -> Option<FinishReason> {
        let state = match &mut self.state {
            Ok(state) => state,
            Err(finish) => return Some(*finish),
        };
        self.new.clear();
        let mut finish = None;
        for &id in tokens {
            if id as usize >= self.vocab {
                let vocab = self.vocab;
                state.fail(format!(
                    "token id {id} came back, and the model has {vocab} tokens: relay to the same model"
                ));
                self.failure = Some(RelayFailure::Final);
                finish = Some(FinishReason::Failed);
                break;
            }
            let sampled = Sampled { token: Ok(id), ..Sampled::default() };
            finish = state.choose(&[sampled], &[], &mut self.new);
            if finish.is_some() {
                break;
            }
        }
        let NewTokens { tokens, text, .. } = &self.new;
        if !tokens.is_empty() {
            self.count += tokens.len();
            self.last = Instant::now();
            self.first.get_or_insert((self.last, self.count));
            self.sink.push(&TokenDelta { tokens, text, logprobs: &[] });
        }
        if let Some(finish) = finish {
            self.close(finish);
        }
        finish
    }

    /// Ends the request for a reason that its tokens do not show. Does nothing if it has ended.
    pub fn end(mut self, finish: FinishReason) {
        self.close(finish);
    }

    /// Fails the request. Does nothing if it has ended. Once there are output tokens, every failure is
    /// [`RelayFailure::Final`].
    pub fn fail(mut self, failure: RelayFailure, error: impl ToString) {
        self.failure = Some(if self.is_empty() { failure } else { RelayFailure::Final });
        self.fail_with(error);
    }

    fn fail_with(&mut self, error: impl ToString) {
        if let Ok(state) = &mut self.state {
            state.fail(error);
            self.close(FinishReason::Failed);
        }
    }

    fn close(&mut self, finish: FinishReason) {
        let state = match std::mem::replace(&mut self.state, Err(finish)) {
            Ok(state) => state,
            Err(before) => {
                self.state = Err(before);
                return;
            }
        };
        self.new.clear();
        let ChoiceEnd { stop, error, .. } = state.close(finish, &mut self.new.text);
        if !self.new.text.is_empty() {
            self.sink.push(&TokenDelta { text: &self.new.text, ..TokenDelta::default() });
        }
        let relay_failure = self.failure.filter(|_| finish == FinishReason::Failed);
        self.sink.end(&OutputEnd { stop, error, relay_failure, ..OutputEnd::of(finish) });
        let times = self.first.map(|(first, count)| RelayedTimes {
            first: first - self.began,
            prompt: self.prompt,
            rest: (self.last - first, self.count - count),
        });
        let end = RelayedEnd { id: self.id, finish, times };
        // An engine that has ended has ended its requests.
        let _ = self.inbox.tell(|mail| mail.relayed.push(end));
    }
}

impl Drop for RelayOutput {
    fn drop(&mut self) {
        self.fail_with("the relay dropped the request without a finish reason");
    }
}

impl std::fmt::Debug for RelayOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayOutput")
            .field("id", &self.id)
            .field("tokens", &self.count)
            .finish_non_exhaustive()
    }
}

/// Mean times of the relayed requests, of which newer ones count more.
#[derive(Debug, Default)]
struct Rates {
    per_prompt_token: Option<f64>,
    per_output_token: Option<f64>,
}

impl Rates {
    /// Adds a request. Returns the seconds of a prompt token and of an output token: before there is a response of
    /// several tokens, every token costs the same.
    fn add(&mut self, times: &RelayedTimes) -> (f64, f64) {
        let mean = |old: &mut Option<f64>, new: f64| {
            *old.insert(old.map_or(new, |old| old + RATE_WEIGHT * (new - old)))
        };
        let RelayedTimes { first, prompt, rest: (took, tokens) } = *times;
        let per_prompt = first.as_secs_f64() / prompt.max(1) as f64;
        let per_prompt = mean(&mut self.per_prompt_token, per_prompt);
        if tokens > 0 {
            mean(&mut self.per_output_token, took.as_secs_f64() / tokens as f64);
        }
        (per_prompt, self.per_output_token.unwrap_or(per_prompt))
    }
}

/// Where an unfinished request is.
enum Place {
    /// In the queue, under this priority.
    Waiting(i64),
    Relayed,
}

/// State of the engine's thread.
struct Queue {
    /// By priority and arrival: ids are given in the order of submission.
    waiting: BTreeMap<(i64, RequestId), Submission>,
    live: HashMap<RequestId, Place>,
    relayed: usize,
    rates: Rates,
    hub: Hub,
}

impl Queue {
    fn take_in(&mut self, submission: Submission) {
        let (id, priority) = (submission.id, submission.request.request().priority);
        self.hub.begin(id, submission.outbox.clone());
        self.live.insert(id, Place::Waiting(priority));
        self.waiting.insert((priority, id), submission);
    }

    /// Relays requests while there are seats.
    fn relay(&mut self, relay: &mut dyn Relay, shared: &Shared) {
        while self.relayed < shared.validator.config().seats()
            && let Some(((_, id), Submission { request, job, outbox, .. })) =
                self.waiting.pop_first()
        {
            self.live.insert(id, Place::Relayed);
            self.relayed += 1;
            // What the relay has runs, for those who read the load.
            shared.gauge.publish_counts(self.relayed, self.waiting.len());
            outbox.admitted(0, 0);
            let choice = job.sample;
            let output = RelayOutput::new(id, job, shared);
            relay.begin(id, request.request(), choice, output);
        }
    }

    /// A relayed request has ended by itself, or was dropped after it was aborted.
    fn ended(&mut self, end: &RelayedEnd, shared: &Shared) {
        if let Some(times) = &end.times {
            let (prefill, decode) = self.rates.add(times);
            shared.gauge.relayed(prefill, decode);
        }
        if self.live.remove(&end.id).is_some() {
            self.relayed -= 1;
            self.hub.lost(&[(end.id, end.finish)]);
        }
    }

    fn abort(&mut self, id: RequestId, relay: &mut dyn Relay) {
        let Some(place) = self.live.remove(&id) else { return };
        // The response ends before its parts are dropped, which would be a failure.
        self.hub.lost(&[(id, FinishReason::Aborted)]);
        match place {
            Place::Waiting(priority) => drop(self.waiting.remove(&(priority, id))),
            Place::Relayed => {
                self.relayed -= 1;
                relay.abort(id);
            }
        }
    }

    /// Fails the requests that wait: their server serves nothing, and another replica may.
    fn fail_waiting(&mut self, why: &str) {
        for ((_, id), Submission { outbox, .. }) in std::mem::take(&mut self.waiting) {
            self.live.remove(&id);
            let (finish, error) = (FinishReason::Failed, Some(why.to_owned()));
            let relay_failure = Some(RelayFailure::Unserved);
            outbox.end(&OutputEnd { error, relay_failure, ..OutputEnd::of(finish) });
            self.hub.lost(&[(id, finish)]);
        }
    }

    fn occupancy(&self, shared: &Shared) -> Occupancy {
        let seats = shared.validator.config().seats().saturating_sub(self.relayed);
        Occupancy { queued: self.waiting.len(), seats }
    }
}

/// Runs a relay until its engine is shut down or the relay panics. `scheduler` is idle: observers want to see one.
fn run(mut relay: Box<dyn Relay>, shared: &Shared, scheduler: &Scheduler) {
    let hub = Hub::default();
    let (waiting, live, rates) = (BTreeMap::new(), HashMap::new(), Rates::default());
    let mut queue = Queue { waiting, live, relayed: 0, rates, hub: hub.clone() };
    // After a panic, relay and queue are only dropped, and not before all requests have ended with the reason.
    let serve = AssertUnwindSafe(|| serve(&mut *relay, shared, scheduler, &mut queue));
    end_all(shared, &hub, catch_unwind(serve).map(|()| EngineError::ShutDown));
}

fn serve(relay: &mut dyn Relay, shared: &Shared, scheduler: &Scheduler, queue: &mut Queue) {
    let mut mail = Mail::default();
    loop {
        queue.relay(relay, shared);
        shared.gauge.publish_counts(queue.relayed, queue.waiting.len());
        let busy = !queue.live.is_empty();
        if busy {
            shared.inbox.wait_timeout(POLL_INTERVAL);
        }
        shared.inbox.take(&mut mail, busy, None, queue.occupancy(shared));
        for observer in mail.observers.drain(..) {
            queue.hub.observe(observer, scheduler, false);
        }
        mail.submissions.drain(..).for_each(|submission| queue.take_in(submission));
        mail.relayed.drain(..).for_each(|end| queue.ended(&end, shared));
        mail.aborts.drain(..).for_each(|id| queue.abort(id, relay));
        if let Some(why) = mail.unserved.take() {
            queue.fail_waiting(&why);
        }
        if mail.shut_down {
            queue.hub.live().into_iter().for_each(|id| queue.abort(id, relay));
            return;
        }
    }
}

impl Engine {
    /// Starts an engine that relays its requests. `config` has the limits, see [`relay_config`]; `max_num_waiting`
    /// requests may wait. Without a tokenizer in `facts`, outputs have no text.
    ///
    /// The load has the time to first token for each prompt token as the rate of prompts, and the time for each output
    /// token as the duration of a step. Its steps are the responses that these were measured by. Observers of steps see
    /// no steps, and are told of the ends of requests as [`lost`](StepObserver::lost).
    ///
    /// # Errors
    /// [`StartError::Config`], [`StartError::Thread`].
    ///
    /// ```
    /// use l5_scheduler::engine::{ModelFacts, Relay, RelayOutput, relay_config};
    /// use l5_scheduler::llm::{SamplingParams, StopRules};
    /// use l5_scheduler::{Engine, EngineRequest, FinishReason, RequestId};
    ///
    /// /// Sends the prompt back.
    /// struct Echo;
    ///
    /// impl Relay for Echo {
    ///     fn begin(&mut self, _: RequestId, request: &EngineRequest, _: u32, mut output: RelayOutput) {
    ///         if output.push(&request.prompt).is_none() {
    ///             output.end(FinishReason::Stop);
    ///         }
    ///     }
    ///
    ///     fn abort(&mut self, _: RequestId) {}
    /// }
    ///
    /// let facts = ModelFacts { vocab: 100, ..ModelFacts::default() };
    /// let engine = Engine::start_relay(Echo, relay_config(64, 4), facts, 16)?;
    /// let stop = StopRules { max_tokens: 2, ..StopRules::default() };
    /// let request = EngineRequest::new(vec![5, 6, 7], SamplingParams::greedy(), stop);
    /// assert_eq!(engine.handle().submit(request)?.rest().tokens, [5, 6], "max_tokens counts here");
    /// engine.shutdown()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start_relay(
        relay: impl Relay + 'static,
        config: SchedulerConfig,
        facts: ModelFacts,
        max_num_waiting: usize,
    ) -> Result<Self, StartError> {
        let scheduler = Scheduler::new(config.clone())?;
        let shared = Arc::new(Shared::new(config, facts, max_num_waiting).relaying());
        let handle = EngineHandle { shared: shared.clone() };
        let relay: Box<dyn Relay> = Box::new(relay);
        let thread = std::thread::Builder::new().name("strata-relay".into());
        let thread = thread.spawn(move || run(relay, &shared, &scheduler));
        let thread = Some(thread.map_err(StartError::Thread)?);
        Ok(Self { handle, thread, startup: Startup::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(first: u64, prompt: usize, rest: u64, tokens: usize) -> RelayedTimes {
        let ms = Duration::from_millis;
        RelayedTimes { first: ms(first), prompt, rest: (ms(rest), tokens) }
    }

    #[test]
    fn rates_follow_the_responses_and_a_response_of_one_token_says_nothing_about_the_next() {
        let mut rates = Rates::default();
        assert_eq!(rates.add(&times(100, 10, 0, 0)), (0.01, 0.01));
        assert_eq!(rates.add(&times(100, 10, 80, 4)), (0.01, 0.02));
        let (prompt, output) = rates.add(&times(200, 10, 240, 4));
        assert!((prompt - 0.012).abs() < 1e-12 && (output - 0.028).abs() < 1e-12);
        assert_eq!(rates.add(&times(120, 10, 0, 0)).1, output);
    }

    #[test]
    fn the_limits_of_a_relay_fit_every_request_that_they_allow() {
        for (len, seats) in [(1, 1), (2, 1), (100, 7), (4096, 256), (131_072, 16)] {
            let config = relay_config(len, seats);
            assert_eq!(config.validate(), Ok(()), "{len} {seats}");
            assert!(config.capacity() >= seats * config.blocks(len), "{len} {seats}");
        }
    }
}
