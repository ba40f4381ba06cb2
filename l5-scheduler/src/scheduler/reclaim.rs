//! Leases that end because blocks are needed: for a waiting request that does not fit, or for a running one that grows.
//!
//! The retention names leases one by one. [`Gone`] predicts what would be free without them, so that no lease ends in
//! vain. While a request waits at the head of the queue this must not cost a look at all leases in each step. The
//! number of blocks that leases hold is known, so a request that needs more is refused at once; and where all leases did
//! not suffice, that is remembered until blocks are freed or a lease begins or ends. (Where the retention refused to name
//! further leases, it is asked again in the next step, because its answer may depend on the time.)

use std::collections::HashSet;

use l3_paged_kv::{BlockId, PrefixHit};

use super::Scheduler;
use super::room::Gone;
use crate::{LeaseEnd, LeaseId, RequestId, Status};

/// Leases that the retention has named for one request.
#[derive(Debug, Default)]
struct Naming {
    named: Vec<LeaseId>,
    seen: HashSet<LeaseId>,
    /// Whether the retention has refused to name a further one.
    refused: bool,
    /// Position in the order of expiry, from which leases end for a request that would wait for ever.
    next: Option<LeaseId>,
}

/// Leases that were considered for a request.
struct Choice {
    /// Those of them that end: each frees a block.
    leases: Vec<LeaseId>,
    /// Whether they free enough.
    enough: bool,
    /// Whether all leases that can be ended were named. What did not suffice then will not suffice later either, unless
    /// blocks are freed or the leases change.
    all: bool,
}

/// A waiting request for which all leases together were not enough.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    id: RequestId,
    /// [`Scheduler::frees`] at that time.
    frees: u64,
    needed: usize,
    free: usize,
    /// Blocks of its cache hit.
    hit: Vec<BlockId>,
}

impl Stuck {
    fn holds(&self, now: &Self) -> bool {
        self.id == now.id
            && self.frees == now.frees
            && self.needed <= now.needed
            && self.free >= now.free
            && self.hit == now.hit
    }
}

impl Scheduler {
    /// Ends leases for a waiting request until `needed` blocks are free; ends none if that is not enough. Blocks of
    /// `hit` count as needed as soon as they are free. Returns whether the blocks are free.
    pub(super) fn free_up(&mut self, key: u32, needed: usize, hit: &PrefixHit) -> bool {
        // Drafts are not cut in vain: a request that would not fit without them leaves them alone.
        let most = self.blocks.num_free() + self.leases.blocks();
        if needed > self.blocks.num_free() && needed <= most + self.num_draft_blocks() {
            self.release_draft_blocks();
        }
        let free = self.blocks.num_free();
        if needed <= free {
            return true;
        }
        if !self.may_free_up(key, needed, hit) {
            return false;
        }
        let now = self.stuck_now(key, needed, hit);
        let choice = self.choose_leases(key, |gone| {
            needed + gone.freed_of(&self.blocks, hit) <= free + gone.freed()
        });
        if choice.enough {
            self.end_all(&choice.leases, LeaseEnd::ForWaiting);
        } else if choice.all {
            self.stuck[queue_of(self.requests.at(key).status)] = Some(now);
        }
        choice.enough
    }

    /// Whether `needed` blocks are free, or it is not known that the end of all leases would leave fewer. Blocks of
    /// drafts are not counted.
    pub(super) fn may_free_up(&self, key: u32, needed: usize, hit: &PrefixHit) -> bool {
        let free = self.blocks.num_free();
        needed <= free
            || (self.leases_can_free(needed - free, hit)
                && self.barren != Some(self.frees)
                && !self.is_stuck(key, &self.stuck_now(key, needed, hit)))
    }

    /// Whether leases hold so many blocks, beside those of a hit. Leases may share them with running requests, so this
    /// is no more than a bound.
    pub(super) fn leases_can_free(&self, blocks: usize, hit: &PrefixHit) -> bool {
        let held = self.leases.blocks();
        blocks <= held
            && blocks + hit.blocks.iter().filter(|block| self.leases.holds(**block)).count() <= held
    }

    /// Leases that end for a running request: as few of those that are named as free a block. Empty if none does.
    pub(super) fn leases_for_growth(&mut self, needy: u32) -> Vec<LeaseId> {
        if self.leases.num_endable() == 0 || self.barren == Some(self.frees) {
            return Vec::new();
        }
        let choice = self.choose_leases(needy, |gone| gone.freed() > 0);
        if !choice.enough && choice.all {
            self.barren = Some(self.frees);
        }
        choice.leases
    }

    /// Ends leases. Returns whether there was any.
    pub(super) fn end_all(&mut self, leases: &[LeaseId], why: LeaseEnd) -> bool {
        let mut ended = false;
        for lease in leases {
            ended |= self.end_lease(*lease, why);
        }
        ended
    }

    /// Adds leases that are named for a request to a prediction, until it is `enough`.
    fn choose_leases(&self, key: u32, enough: impl Fn(&Gone) -> bool) -> Choice {
        let (mut gone, mut naming) = (Gone::default(), Naming::default());
        let mut fits = false;
        while let Some(lease) = self.name_lease(key, &mut naming) {
            if let Some(lease) = self.leases.get(lease) {
                gone.add(&self.blocks, lease.seq);
            }
            fits = enough(&gone);
            if fits {
                break;
            }
        }
        let all = naming.named.len() == self.leases.num_endable();
        let mut leases = if fits { naming.named } else { Vec::new() };
        leases.retain(|lease| {
            self.leases.get(*lease).is_some_and(|lease| gone.frees_any(&self.blocks, lease.seq))
        });
        Choice { leases, enough: fits, all }
    }

    /// Prediction without the leases that would end for a waiting request, and whether those are all that can be ended.
    /// From here on these are the leases that end for it, until `granted` is cleared.
    pub(super) fn without_leases(&mut self, key: u32) -> (Gone, bool) {
        self.granted.clear();
        let (mut gone, mut naming) = (Gone::default(), Naming::default());
        while let Some(lease) = self.name_lease(key, &mut naming) {
            if let Some(lease) = self.leases.get(lease) {
                gone.add(&self.blocks, lease.seq);
            }
        }
        self.granted = naming.named;
        (gone, self.granted.len() == self.leases.num_endable())
    }

    /// The next lease that ends for a request.
    fn name_lease(&self, key: u32, naming: &mut Naming) -> Option<LeaseId> {
        let lease = match &self.granted[..] {
            [] => self.ask_for_lease(key, naming)?,
            granted => *granted.get(naming.named.len())?,
        };
        naming.named.push(lease);
        naming.seen.insert(lease);
        Some(lease)
    }

    /// Asks the retention for a further lease. If it refuses though no other request runs or loads, leases end in the
    /// order of expiry: a waiting request would wait for ever, and a running one would preempt itself and be admitted
    /// again, for ever.
    fn ask_for_lease(&self, key: u32, naming: &mut Naming) -> Option<LeaseId> {
        let Naming { named, seen, refused, next } = naming;
        if named.len() == self.leases.num_endable() {
            return None;
        }
        if !*refused {
            let needy = self.requests.at(key).view();
            let lease = self.retention.lease_for(&needy, named, &self.context());
            let lease = lease.and_then(|lease| self.leases.get(lease));
            let lease = lease.filter(|lease| lease.can_end() && !seen.contains(&lease.id));
            if let Some(lease) = lease {
                return Some(lease.id);
            }
            *refused = true;
        }
        let runs = self.running.iter().any(|other| *other != key) || self.ahead.has_lingering();
        if runs || self.loading.len() > 0 {
            return None;
        }
        loop {
            let lease = self.leases.next_to_expire(*next)?.id;
            *next = Some(lease);
            if !seen.contains(&lease) {
                return Some(lease);
            }
        }
    }

    /// Forgets that a request was stuck, because it leaves: another request can have its id.
    pub(super) fn forget_stuck(&mut self, key: u32) {
        let id = self.requests.at(key).id;
        let heads = self.stuck.iter_mut().chain([&mut self.stuck_for_good]);
        for stuck in heads.filter(|stuck| stuck.as_ref().is_some_and(|stuck| stuck.id == id)) {
            *stuck = None;
        }
    }

    /// What decides whether a waiting request is stuck.
    pub(super) fn stuck_now(&self, key: u32, needed: usize, hit: &PrefixHit) -> Stuck {
        let (id, free) = (self.requests.at(key).id, self.blocks.num_free());
        Stuck { id, frees: self.frees, needed, free, hit: hit.blocks.clone() }
    }

    /// Whether it is known that all leases together are not enough for a waiting request.
    fn is_stuck(&self, key: u32, now: &Stuck) -> bool {
        let before = &self.stuck[queue_of(self.requests.at(key).status)];
        before.as_ref().is_some_and(|before| before.holds(now))
    }

    /// Whether it is known that all leases and all requests that it may preempt are not enough for a waiting request.
    pub(super) fn is_stuck_for_good(&self, now: &Stuck) -> bool {
        self.stuck_for_good.as_ref().is_some_and(|before| before.holds(now))
    }
}

/// Each of the two queues has a head.
fn queue_of(status: Status) -> usize {
    usize::from(status == Status::WaitingForKv)
}
