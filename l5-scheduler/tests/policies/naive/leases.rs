//! Leases: blocks of finished requests that are held for no running request, and which of them end.

use std::collections::HashSet;

use l5_scheduler::Retain;

use super::queue::JobName;
use super::{Naive, NaiveRequest};
use crate::learning::{Learning, Names};

/// Blocks that are held for no running request.
#[derive(Clone, Debug)]
pub(super) struct NaiveLease {
    number: u64,
    request: u64,
    pub(super) job: Option<JobName>,
    adapter: Option<String>,
    tokens: Vec<u32>,
    table: Vec<usize>,
    until: Option<f64>,
    pub(super) storing: bool,
}

impl Naive {
    /// Number of blocks that leases hold.
    pub(super) fn num_leased(&self) -> usize {
        let blocks: HashSet<usize> =
            self.leases.iter().flat_map(|lease| lease.table.iter().copied()).collect();
        blocks.len()
    }

    /// Leases that can be ended, the soonest first.
    pub(super) fn soonest(&self) -> Vec<u64> {
        let mut leases: Vec<_> = self.leases.iter().filter(|lease| !lease.storing).collect();
        leases.sort_by(|a, b| {
            let end = |lease: &NaiveLease| lease.until.unwrap_or(f64::INFINITY);
            end(a).total_cmp(&end(b)).then(a.number.cmp(&b.number))
        });
        leases.iter().map(|lease| lease.number).collect()
    }

    /// Leases that end for a request that waits, or for one that runs, in this order.
    pub(super) fn named(&self, waits: bool) -> Vec<u64> {
        if let Some(granted) = &self.granted {
            return granted.clone();
        }
        let soonest = self.soonest();
        let mut named = match self.names {
            None => return Vec::new(),
            Some(Names::ForRunning) if waits => Vec::new(),
            Some(Names::Nothing) => Vec::new(),
            Some(Names::One) => soonest.iter().take(1).copied().collect(),
            Some(Names::Newest) => {
                let mut all = soonest.clone();
                all.sort_unstable_by(|a, b| b.cmp(a));
                all
            }
            Some(Names::Soonest | Names::ForRunning) => soonest.clone(),
        };
        let loading = self.waiting.iter().any(NaiveRequest::is_loading);
        // A request that needs blocks to grow runs itself.
        let others = self.running.len() - usize::from(!waits);
        if others == 0 && !loading {
            // It would wait for ever, or preempt itself and be admitted again, for ever.
            let others = soonest.into_iter().filter(|lease| !named.contains(lease));
            named.extend(others.collect::<Vec<_>>());
        }
        named
    }

    /// Ends leases whose time has come, unless a step of their job waits.
    pub(super) fn end_expired_leases(&mut self) {
        let waits = |job: &Option<JobName>| {
            self.waiting.iter().any(|request| request.job == *job && !request.aborted)
        };
        let due = |number: &u64| {
            let lease = self.leases.iter().find(|lease| lease.number == *number).unwrap();
            lease.until.is_some_and(|until| until <= self.now) && !waits(&lease.job)
        };
        let due: Vec<u64> = self.soonest().into_iter().filter(due).collect();
        due.into_iter().for_each(|lease| self.end_lease(lease));
    }

    /// Blocks that would be free without these leases.
    fn free_without(&self, leases: &[u64]) -> Vec<usize> {
        let gone = || self.leases.iter().filter(|lease| leases.contains(&lease.number));
        let mut blocks: Vec<usize> = gone().flat_map(|lease| lease.table.clone()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let held = |block: &usize| gone().filter(|lease| lease.table.contains(block)).count();
        blocks.retain(|block| self.users[*block] == held(block));
        blocks
    }

    pub(super) fn end_lease(&mut self, number: u64) {
        let at = self.leases.iter().position(|lease| lease.number == number).unwrap();
        let lease = self.leases.remove(at);
        self.release(lease.table);
        self.sort();
    }

    /// Ends leases in their order until it is enough, if it ever is. Only those end that free a block.
    pub(super) fn end_leases(&mut self, waits: bool, enough: impl Fn(&[usize]) -> bool) -> bool {
        let named = self.named(waits);
        let all = (1..=named.len()).map(|n| &named[..n]);
        let Some(ending) = all.into_iter().find(|leases| enough(&self.free_without(leases))) else {
            return false;
        };
        let freed = self.free_without(ending);
        for number in ending {
            let lease = self.leases.iter().find(|lease| lease.number == *number).unwrap();
            if lease.table.iter().any(|block| freed.contains(block)) {
                self.end_lease(*number);
                self.losses += 1;
            }
        }
        true
    }

    /// A request has finished: its blocks are held by a lease, or free.
    pub(super) fn finish(&mut self, mut request: NaiveRequest) {
        let retain = match (&request.job, self.names) {
            (Some(_), Some(_)) if !request.last_step => {
                Learning::decision(request.id, self.losses, self.now)
            }
            _ => Retain::Free,
        };
        let mine = |lease: &&NaiveLease| lease.job == request.job && lease.job.is_some();
        let before = self.leases.iter().filter(mine).filter(|lease| !lease.storing);
        let begins = |lease: &NaiveLease| {
            lease.adapter == request.adapter && request.tokens.starts_with(&lease.tokens)
        };
        let outlived = before.filter(|lease| request.last_step || begins(lease));
        let outlived: Vec<u64> = outlived.map(|lease| lease.number).collect();
        let size = self.config.block_size;
        let full = request.computed / size;
        let (until, storing) = match retain {
            Retain::LeaseUntil(until) => (Some(until.seconds()), false),
            _ => (None, retain == Retain::Offload),
        };
        if retain != Retain::Free && full > 0 && self.config.enable_prefix_caching {
            // Blocks that accepted drafts have filled can be found from here on.
            self.register(&mut request, full * size);
            let rest = request.table.split_off(full);
            self.release(rest);
            let (number, job) = (self.next_lease, request.job.clone());
            let adapter = request.adapter.clone();
            let tokens = request.tokens[..full * size].to_vec();
            let table = std::mem::take(&mut request.table);
            self.next_lease += 1;
            let request = request.id;
            self.leases.push(NaiveLease {
                number,
                request,
                job,
                adapter,
                tokens,
                table,
                until,
                storing,
            });
        }
        outlived.into_iter().for_each(|lease| self.end_lease(lease));
        let of_job =
            self.leases.iter().filter(|lease| lease.job == request.job && lease.job.is_some());
        if of_job.clone().count() > 8
            && let Some(oldest) = of_job.clone().find(|lease| !lease.storing)
        {
            self.end_lease(oldest.number);
        }
        self.give_back(&mut request);
        self.sort();
    }

    /// The blocks of a lease have been stored.
    pub fn stored(&mut self, number: u64) {
        self.end_lease(number);
    }

    /// Requests whose blocks are held by leases.
    pub fn leased(&self) -> Vec<u64> {
        let mut leases: Vec<u64> = self.leases.iter().map(|lease| lease.request).collect();
        leases.sort_unstable();
        leases
    }
}
