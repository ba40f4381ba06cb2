//! What a scheduler says of itself.

use l3_paged_kv::BlockManager;
use l3_paged_kv::trace::BlockObserver;

use super::{Scheduler, SchedulerStats};
use crate::composer::{Composer, Mixed};
use crate::lease::Leases;
use crate::{RequestId, RequestView, SchedulerConfig, StepPlan, StepView};

impl Scheduler {
    /// Whether any request is unfinished, has an end that [`Scheduler::take_ended`] has not returned, or blocks are to
    /// be stored. It is false while blocks are being stored: what is left is for the executor to do, and its
    /// [`KvCompletion::Stored`](crate::KvCompletion) frees them.
    /// [`EngineCore::time_to_deadline`](crate::EngineCore::time_to_deadline) says
    /// when to look.
    pub fn has_unfinished(&self) -> bool {
        self.requests.len() > 0
            || !self.ended.is_empty()
            || self.leases.has_to_store()
            || self.ahead.has_lingering()
    }

    /// Number of requests that can be admitted before all seats are taken.
    pub(crate) fn free_seats(&self) -> usize {
        self.config.seats().saturating_sub(self.running.len() + self.ahead.num_lingering())
    }

    /// Number of jobs of which the scheduler knows when they began: those with unfinished requests, and a bounded
    /// number of others.
    pub fn num_jobs(&self) -> usize {
        self.requests.num_jobs()
    }

    /// Number of running requests.
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Number of waiting requests.
    pub fn num_waiting(&self) -> usize {
        self.waiting.len() + self.loading.len() + self.arrived.len()
    }

    /// Running requests, in the order of admission.
    pub fn running(&self) -> impl ExactSizeIterator<Item = RequestView<'_>> {
        self.running.iter().map(|key| self.requests.at(*key).view())
    }

    /// Waiting requests, in the order of the queue.
    pub fn waiting(&self) -> impl Iterator<Item = RequestView<'_>> {
        let holding = self.arrived.keys().chain(self.loading.keys());
        let keys = holding.chain(self.waiting.keys());
        keys.map(|key| self.requests.at(key).view())
    }

    /// An unfinished request.
    pub fn request(&self, id: RequestId) -> Option<RequestView<'_>> {
        Some(self.requests.at(self.requests.find(id)?).view())
    }

    /// The planned step as its executor sees it: the newest one, if two are open.
    pub fn view(&self) -> StepView<'_> {
        self.view_of(&self.step)
    }

    /// The step whose result is due next, as its executor sees it. It is another one than [`Scheduler::view`] only while
    /// a step is [planned ahead](Scheduler::plan_ahead).
    pub fn due(&self) -> StepView<'_> {
        self.view_of(self.due_step())
    }

    fn view_of<'a>(&'a self, step: &'a StepPlan) -> StepView<'a> {
        let Self { requests, seats, blocks, .. } = self;
        StepView { step, requests, seats, blocks }
    }

    /// Whether a step is planned and neither applied nor abandoned.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// The configuration.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Name of the policy.
    pub fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    /// Name of the composer.
    pub fn composer_name(&self) -> &'static str {
        self.composer.as_ref().map_or_else(|| Mixed::default().name(), |own| own.name())
    }

    /// Reports everything that happens to blocks to an observer.
    ///
    /// # Errors
    /// [`KvError::BadConfig`](l3_paged_kv::KvError) if a request has used the pool already.
    pub fn set_block_observer(
        &mut self,
        observer: Option<Box<dyn BlockObserver>>,
    ) -> l3_paged_kv::Result<()> {
        self.blocks.set_observer(observer)
    }

    /// The block manager.
    pub fn blocks(&self) -> &BlockManager {
        &self.blocks
    }

    /// Leases: blocks that are held for no running request.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Counters since the scheduler was created.
    pub fn stats(&self) -> SchedulerStats {
        self.stats
    }
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler")
            .field("policy", &self.policy.name())
            .field("running", &self.running.len())
            .field("waiting", &self.num_waiting())
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}
