//! A lane: the replicas of one model.

use std::cmp::Ordering;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use l4_sampler::guide::{CompiledGuide, GuideSpec};
use l5_scheduler::engine::ModelFacts;
use l5_scheduler::{
    EngineError, EngineRequest, Load, ResponseStream, SchedulerConfig, SubmitError,
};

use crate::affinity::{BlockKey, PrefixTable, block_keys};
use crate::failover::{Move, failover_order};
use crate::replica_choice::{ReplicaView, choose_replica, queue_seconds};
use crate::{Replica, ReplicaId};

#[cfg(test)]
mod tests;

/// Name of a lane.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub String);

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a lane cannot be created: it has no replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoReplica(pub LaneId);

impl fmt::Display for NoReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {} has no replica: give it at least one engine", self.0)
    }
}

impl std::error::Error for NoReplica {}

/// The replicas of one model. `M` is what the lane's user keeps about the model: a server keeps its tokenizer and chat
/// template.
///
/// A request goes to the live replica with the least work: fewest estimated seconds, then fewest tokens, then the
/// lowest number. It goes to another one if that has a shorter queue, preempts less, or was given the beginning of the
/// prompt before, and this saves more time than it costs ([`choose_replica`]). With a single replica the loads are not
/// read.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
///
/// use l4_sampler::{SamplingParams, stop::StopRules};
/// use l5_scheduler::{Engine, EngineOptions, EngineRequest};
/// use l6_ensemble::{Lane, LaneId, ReplicaId};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-llama");
/// let options = EngineOptions { max_num_seqs: 4, ..EngineOptions::default() };
/// let engine = Engine::open(path.as_ref(), Default::default(), &options)?;
/// let replica = Arc::new(engine.handle().clone());
/// let lane = Lane::new(LaneId("default".into()), vec![replica], "tiny-llama")?;
///
/// let stop = StopRules { max_tokens: 3, ignore_eos: true, ..StopRules::default() };
/// let request = EngineRequest::new(vec![5, 6, 7], SamplingParams::greedy(), stop);
/// let (replica, mut responses) = lane.submit(vec![request], 1)?;
/// assert_eq!(replica, ReplicaId(0), "the only one");
/// assert_eq!(responses[0].rest().tokens.len(), 3);
/// assert!(lane.ended().is_none(), "the engine still runs");
/// engine.shutdown()?;
/// assert!(lane.ended().is_some(), "all replicas have ended, so the lane has");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Lane<M> {
    /// Name of the lane.
    pub id: LaneId,
    /// The model that all replicas serve.
    pub model: M,
    /// All replicas; at least one.
    replicas: Vec<Arc<dyn Replica>>,
    /// What is known of the replicas, if there are several.
    history: Option<Mutex<History>>,
}

/// What a lane knows of its replicas.
#[derive(Debug)]
struct History {
    /// Prompts that they were given; `None` if they keep no blocks.
    prefixes: Option<PrefixTable>,
    preemptions: Vec<Preemptions>,
}

/// Preemptions of a replica, as its load showed them.
#[derive(Clone, Copy, Debug, Default)]
struct Preemptions {
    count: u64,
    steps: u64,
    /// Preemptions a second, between the last two moments at which they were counted.
    rate: f64,
}

/// Number of steps over which preemptions are counted.
const PREEMPTION_STEPS: u64 = 64;

impl Preemptions {
    /// Counts those since the last time. The time of the steps is that of decode steps of the present width.
    fn rate(&mut self, load: &Load) -> f64 {
        let steps = load.steps.saturating_sub(self.steps);
        let seconds = load.decode_step_seconds(load.running.max(1)).unwrap_or(0.0) * steps as f64;
        if steps >= PREEMPTION_STEPS && seconds > 0.0 {
            let rate = load.preemptions.saturating_sub(self.count) as f64 / seconds;
            *self = Self { count: load.preemptions, steps: load.steps, rate };
        }
        self.rate
    }
}

/// The replica that a request is offered to first.
#[derive(Clone, Debug, Default)]
pub struct ReplicaChoice {
    /// Its number.
    pub replica: ReplicaId,
    /// Its load.
    pub load: Load,
    /// Blocks of the prompt.
    prompt: Vec<BlockKey>,
}

impl<M> Lane<M> {
    /// Creates a lane. All replicas serve the same model with the same limits.
    ///
    /// # Errors
    /// [`NoReplica`].
    pub fn new(id: LaneId, replicas: Vec<Arc<dyn Replica>>, model: M) -> Result<Self, NoReplica> {
        let Some(first) = replicas.first() else { return Err(NoReplica(id)) };
        let (count, config) = (replicas.len(), first.config());
        let table = || PrefixTable::new(config.block_size, count, config.capacity());
        let history = (count > 1).then(|| {
            let prefixes = config.enable_prefix_caching.then(table);
            Mutex::new(History { prefixes, preemptions: vec![Preemptions::default(); count] })
        });
        Ok(Self { id, model, replicas, history })
    }

    /// The replicas with their numbers.
    pub fn replicas(&self) -> impl Iterator<Item = (ReplicaId, &Arc<dyn Replica>)> {
        (0..).map(ReplicaId).zip(&self.replicas)
    }

    /// The replicas in the order in which a request is offered to them, with their loads.
    fn by_load(&self) -> Vec<(ReplicaId, Load, &Arc<dyn Replica>)> {
        let mut loads: Vec<_> = self
            .replicas()
            .map(|(id, replica)| (replica.ended().is_some(), replica.load(), id, replica))
            .collect();
        loads.sort_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| less_work(&a.1, &b.1)).then_with(|| a.2.cmp(&b.2))
        });
        loads.into_iter().map(|(_, load, id, replica)| (id, load, replica)).collect()
    }

    /// The replica that a request is offered to first, and its load.
    pub fn least_busy(&self) -> (ReplicaId, Load) {
        if let [only] = self.replicas.as_slice() {
            return (ReplicaId(0), only.load());
        }
        let first = self.by_load().into_iter().next();
        // There is at least one replica.
        first.map_or_else(Default::default, |(id, load, _)| (id, load))
    }

    fn history(&self) -> Option<MutexGuard<'_, History>> {
        Some(self.history.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Chooses the replica that requests are offered to first, by the prompt of the first of them.
    pub fn choose(&self, requests: &[EngineRequest]) -> ReplicaChoice {
        let Some(mut history) = self.history() else {
            let (replica, load) = self.least_busy();
            return ReplicaChoice { replica, load, prompt: Vec::new() };
        };
        let History { prefixes, preemptions } = &mut *history;
        let prompt = prefixes.as_ref().zip(requests.first()).map(|(table, request)| {
            block_keys(table.block_size(), &request.prompt, request.cache_salt.as_deref())
        });
        let prompt = prompt.unwrap_or_default();
        let cached = prefixes.as_ref().map(|table| table.cached_tokens(&prompt));
        // Of equals the first is chosen: the one with the least work.
        let order = self.by_load();
        let views: Vec<ReplicaView> = order
            .iter()
            .map(|(id, load, replica)| {
                let at = id.0 as usize;
                let cached = cached.as_ref().and_then(|all| all.get(at)).copied();
                ReplicaView {
                    wait: queue_seconds(load, replica.config().seats()),
                    preemption_rate: preemptions.get_mut(at).map_or(0.0, |own| own.rate(load)),
                    cached_tokens: cached.unwrap_or(0),
                    prefill_seconds_per_token: load.prefill_seconds_per_token.unwrap_or(0.0),
                    closed: replica.room_for(requests.len().max(1)).is_err(),
                }
            })
            .collect();
        // If all are closed, the one with the least work says why.
        let chosen = order.get(choose_replica(&views).unwrap_or_default());
        // There is at least one replica.
        let (replica, load) = chosen.map_or_else(Default::default, |(id, load, _)| (*id, *load));
        ReplicaChoice { replica, load, prompt }
    }

    /// Submits requests, `samples` of each, to one replica, all or none. Returns the replica that accepted them. If the
    /// queue of the chosen replica is full, or it relays and cannot relay these requests, the next one is asked.
    ///
    /// # Errors
    /// Why the first replica that was asked rejected them.
    pub fn submit(
        &self,
        requests: Vec<EngineRequest>,
        samples: u32,
    ) -> Result<(ReplicaId, Vec<ResponseStream>), SubmitError> {
        let choice = self.choose(&requests);
        self.submit_to(&choice, requests, samples)
    }

    /// Submits requests as [`Lane::submit`] does, first to the replica of an earlier choice.
    ///
    /// # Errors
    /// As [`Lane::submit`].
    pub fn submit_to(
        &self,
        choice: &ReplicaChoice,
        requests: Vec<EngineRequest>,
        samples: u32,
    ) -> Result<(ReplicaId, Vec<ResponseStream>), SubmitError> {
        if let [only] = self.replicas.as_slice() {
            return only.submit(requests, samples).map(|answers| (ReplicaId(0), answers));
        }
        let mut order = self.by_load();
        // Stable: the others stay in the order of their work.
        order.sort_by_key(|(id, ..)| *id != choice.replica);
        let (id, answers) = submit_in_order(order, &requests, samples)?;
        if let Some(table) = self.history().as_mut().and_then(|own| own.prefixes.as_mut()) {
            table.given(id.0 as usize, &choice.prompt);
        }
        Ok((id, answers))
    }

    /// Checks requests without submitting them: all replicas have the same limits.
    ///
    /// # Errors
    /// As [`Replica::check`], of the first request that is invalid.
    pub fn check(&self, requests: &[EngineRequest]) -> Result<(), SubmitError> {
        let first = self.replicas.first();
        let mut checks = first.into_iter().flat_map(|own| requests.iter().map(|of| own.check(of)));
        checks.find(Result::is_err).unwrap_or(Ok(()))
    }

    /// Whether a replica of the lane relays its requests.
    pub fn relays(&self) -> bool {
        self.replicas.iter().any(|replica| replica.relays())
    }

    /// Whether this replica relays its requests, so that one can fail there and be served by another replica.
    pub fn relays_of(&self, replica: ReplicaId) -> bool {
        self.replicas.get(replica.0 as usize).is_some_and(|replica| replica.relays())
    }

    /// Submits a request again that the replica `failed` could not serve. Returns the replica that accepted it.
    ///
    /// # Errors
    /// Why the first replica that was asked rejected it. [`SubmitError::Draining`] if there is none to ask.
    pub fn fail_over(
        &self,
        failed: ReplicaId,
        may: Move,
        request: EngineRequest,
    ) -> Result<(ReplicaId, Vec<ResponseStream>), SubmitError> {
        let by_load = self.by_load();
        let ended = by_load.iter().map(|(id, _, replica)| (*id, replica.ended().is_some()));
        let order = failover_order(failed, may, ended).into_iter();
        let found = |id| by_load.iter().find(|(own, ..)| *own == id).cloned();
        submit_in_order(order.filter_map(found).collect(), &[request], 1)
    }

    /// Returns whether a replica has room for `requests` more at this moment.
    ///
    /// # Errors
    /// Why the least busy replica has none.
    pub fn room_for(&self, requests: usize) -> Result<(), SubmitError> {
        let mut first = None;
        for (_, _, replica) in self.by_load() {
            match replica.room_for(requests) {
                Ok(()) => return Ok(()),
                Err(why) => first = first.or(Some(why)),
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Load of all replicas together. The seconds and the rates are those of the least busy live replica: what a new
    /// request would meet. The slack is the least of all.
    pub fn load(&self) -> Load {
        let mut sum = Load::default();
        for replica in &self.replicas {
            let Load {
                running,
                waiting,
                queued_tokens,
                pending_output_tokens,
                prefill_seconds_per_token,
                verify_seconds_per_token,
                decode_time,
                seconds,
                preemptions,
                slack,
                steps,
                replayed,
            } = replica.load();
            sum.running += running;
            sum.waiting += waiting;
            sum.queued_tokens += queued_tokens;
            sum.pending_output_tokens += pending_output_tokens;
            sum.preemptions += preemptions;
            sum.slack = sum.slack.into_iter().chain(slack).reduce(f64::min);
            sum.steps += steps;
            sum.replayed += replayed;
            let less = |seconds: f64| sum.seconds.is_none_or(|least| seconds < least);
            if replica.ended().is_none() && seconds.is_some_and(less) {
                sum.seconds = seconds;
                sum.prefill_seconds_per_token = prefill_seconds_per_token;
                sum.verify_seconds_per_token = verify_seconds_per_token;
                sum.decode_time = decode_time;
            }
        }
        sum
    }

    /// Limits of each replica's scheduler.
    pub fn config(&self) -> &SchedulerConfig {
        self.replicas[0].config()
    }

    /// Facts about the model.
    pub fn facts(&self) -> &ModelFacts {
        self.replicas[0].model()
    }

    /// Compiles a guide, which serves every replica, on the calling thread.
    ///
    /// # Errors
    /// As [`Replica::compile_guide`].
    pub fn compile_guide(
        &self,
        spec: &GuideSpec,
        scope: &str,
    ) -> Result<CompiledGuide, SubmitError> {
        self.replicas[0].compile_guide(spec, scope)
    }

    /// Returns a guide that was compiled before and is still cached.
    pub fn compiled_guide(&self, spec: &GuideSpec, scope: &str) -> Option<CompiledGuide> {
        self.replicas[0].compiled_guide(spec, scope)
    }

    /// Why the lane has failed: all its replicas have ended. `None` while one lives.
    pub fn ended(&self) -> Option<EngineError> {
        let mut why = None;
        for replica in &self.replicas {
            why = Some(replica.ended()?);
        }
        why
    }
}

impl<M: fmt::Debug> fmt::Debug for Lane<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, model, replicas, .. } = self;
        let replicas = replicas.len();
        f.debug_struct("Lane")
            .field("id", id)
            .field("model", model)
            .field("replicas", &replicas)
            .finish_non_exhaustive()
    }
}

/// Compares the work of two replicas: seconds (unknown before the first step, which counts as 0), then tokens.
fn less_work(a: &Load, b: &Load) -> Ordering {
    // exercise l6.lane
    let seconds = |load: &Load| load.seconds.unwrap_or(0.0);
    let tokens = |load: &Load| load.queued_tokens.saturating_add(load.pending_output_tokens);
    seconds(a).total_cmp(&seconds(b)).then_with(|| tokens(a).cmp(&tokens(b)))
    // end of exercise
}

/// Offers requests to one replica after the other, until one accepts them.
fn submit_in_order(
    order: Vec<(ReplicaId, Load, &Arc<dyn Replica>)>,
    requests: &[EngineRequest],
    samples: u32,
) -> Result<(ReplicaId, Vec<ResponseStream>), SubmitError> {
    // exercise l6.lane
    let mut refused = None;
    for (id, _, replica) in order {
        match replica.submit(requests.to_vec(), samples) {
            Ok(answers) => return Ok((id, answers)),
            Err(why) if is_busy(&why) => refused = refused.or(Some(why)),
            Err(why) => return Err(why),
        }
    }
    // There is at least one replica, and each rejected the requests.
    Err(refused.unwrap_or(SubmitError::Draining))
    // end of exercise
}

/// Whether another replica may accept what this one rejected.
fn is_busy(why: &SubmitError) -> bool {
    matches!(
        why,
        SubmitError::Full { .. }
            | SubmitError::Draining
            | SubmitError::Stopped(_)
            // It relays, and a replica of this process does not.
            | SubmitError::NotRelayed(_)
    )
}
