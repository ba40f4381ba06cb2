//! What the policy and the retention are told, and the context in which they are asked.

use serde::Serialize;

use super::Scheduler;
use super::prefill_time::PrefillTime;
use super::service::ServiceFloor;
use crate::requests::Requests;
use crate::{
    Caps, FinishReason, Lease, LeaseEnd, LeaseId, Policy, PolicyContext, PolicyEvent, Retention,
};

/// The state in which a policy or a retention is asked. A macro and no method: it borrows single fields, so the policy and
/// the retention can be borrowed mutably beside it.
macro_rules! policy_context {
    ($scheduler:expr) => {
        $crate::PolicyContext {
            now: $scheduler.now,
            config: &$scheduler.config,
            leases: &$scheduler.leases,
            num_free: $scheduler.blocks.num_free(),
            num_running: $scheduler.running.len(),
            cost: $scheduler.cost.as_ref(),
            prefill_seconds_per_token: $scheduler.prefill.seconds_per_token,
            second_memory: $scheduler.second_memory,
            promoted: $scheduler.service.promoted(),
        }
    };
}
pub(super) use policy_context;

/// A [`PolicyEvent`] by keys.
pub(super) enum Happened<'a> {
    Arrived(u32),
    Preempted(u32),
    Finished(u32, FinishReason),
    Leased(LeaseId),
    LeaseEnded(&'a Lease, LeaseEnd),
}

/// Counts of leases since the scheduler was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeaseStats {
    /// Leases that were made.
    pub made: u64,
    /// Leases that have ended, for whatever reason.
    pub ended: u64,
    /// Those of them that ended because their blocks were needed: for a waiting or a running request, or because leases
    /// held too many.
    pub stolen: u64,
}

impl LeaseStats {
    fn count(&mut self, happened: &Happened<'_>) {
        use LeaseEnd::{Displaced, ForRunning, ForWaiting};
        match happened {
            Happened::Leased(_) => self.made += 1,
            Happened::LeaseEnded(_, why) => {
                self.ended += 1;
                self.stolen += u64::from(matches!(why, ForWaiting | ForRunning | Displaced));
            }
            Happened::Arrived(_) | Happened::Preempted(_) | Happened::Finished(..) => {}
        }
    }
}

impl Scheduler {
    /// Replaces the policy.
    #[must_use]
    pub fn with_policy(mut self, policy: Box<dyn Policy>) -> Self {
        self.service = ServiceFloor::new(policy.service_floor());
        self.policy = policy;
        self
    }

    /// Replaces the retention. The default one leaves no leases.
    #[must_use]
    pub fn with_retention(mut self, retention: Box<dyn Retention>) -> Self {
        self.retention = retention;
        self
    }

    /// Sets what the executor of the steps can do: whether it can store blocks (not, unless this says so), and its cost
    /// model. [`EngineCore::new`](crate::EngineCore::new) calls it.
    pub fn set_caps(&mut self, caps: &Caps) {
        self.cost = caps.cost;
        self.can_store = caps.can_store;
        self.prefill = PrefillTime::of(caps.cost.as_ref());
    }

    /// State in which the policy is asked.
    pub(super) fn context(&self) -> PolicyContext<'_> {
        policy_context!(self)
    }

    /// Number of leases that were made and that ended since the scheduler was created.
    pub fn lease_stats(&self) -> LeaseStats {
        self.lease_stats
    }

    /// Tells the policy and the retention what happened.
    pub(super) fn tell(&mut self, happened: &Happened<'_>) {
        self.lease_stats.count(happened);
        self.kv_log.happened(self.now, happened, &self.leases);
        let Some(event) = event(happened, &self.requests, &self.leases) else { return };
        let context = policy_context!(self);
        self.policy.observe(&event, &context);
        self.retention.observe(&event, &context);
    }
}

fn event<'a>(
    happened: &Happened<'a>,
    requests: &'a Requests,
    leases: &'a crate::lease::Leases,
) -> Option<PolicyEvent<'a>> {
    Some(match *happened {
        Happened::Arrived(key) => PolicyEvent::Arrived(requests.at(key).view()),
        Happened::Preempted(key) => PolicyEvent::Preempted(requests.at(key).view()),
        Happened::Finished(key, why) => PolicyEvent::Finished(requests.at(key).view(), why),
        Happened::Leased(lease) => PolicyEvent::Leased(leases.get(lease)?),
        Happened::LeaseEnded(lease, why) => PolicyEvent::LeaseEnded(lease, why),
    })
}
