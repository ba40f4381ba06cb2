//! Copies between the pool and a host memory, under the virtual clock.

use std::collections::VecDeque;

use l3_paged_kv::BlockHash;

use super::host_memory::{HostMemory, HostMemoryReport, Store};
use crate::{CostModel, RequestId, Scheduler, StepOp, StepPlan, Time};

/// A load under way.
#[derive(Debug)]
struct Load {
    id: RequestId,
    /// Tokens of the request that are in the pool when the load is done.
    tokens: usize,
    hashes: Vec<BlockHash>,
}

/// Copies of blocks to and from the pool. Each direction has a link of its own.
#[derive(Debug)]
pub(super) struct Transfers {
    bytes_per_token: f64,
    block_size: usize,
    loads: Link<Load>,
    stores: Link<Store>,
    memory: Option<HostMemory>,
    /// Number of loads and of stores that have begun.
    pub(super) begun: (u64, u64),
}

impl Transfers {
    /// Copies of blocks of `block_size` tokens.
    pub(super) fn new(cost: &CostModel, block_size: usize) -> Self {
        let bandwidth = cost.load_bytes_per_second.unwrap_or(f64::INFINITY);
        Self {
            bytes_per_token: cost.kv_bytes_per_token,
            block_size,
            loads: Link::new(bandwidth),
            stores: Link::new(bandwidth),
            memory: None,
            begun: (0, 0),
        }
    }

    /// Stores blocks in a memory of so many bytes. Returns the memory.
    pub(super) fn store_in_memory(&mut self, bytes: u64) -> HostMemory {
        let blocks = bytes as f64 / self.block_bytes();
        let memory = HostMemory::new(blocks as usize);
        self.memory.insert(memory).clone()
    }

    fn block_bytes(&self) -> f64 {
        self.bytes_per_token * self.block_size as f64
    }

    /// Begins the copies that a step asks for.
    pub(super) fn begin(&mut self, step: &StepPlan) {
        let now = step.now;
        for op in &step.ops {
            match op {
                StepOp::Load { id, from, to, hashes, .. } => {
                    let bytes = (to - from) as f64 * self.bytes_per_token;
                    self.begun.0 += 1;
                    let load = Load { id: *id, tokens: *to, hashes: hashes.clone() };
                    self.loads.begin(now, bytes, load);
                }
                StepOp::Store { lease, hashes, .. } => {
                    let new = self.memory.as_ref().map_or(hashes.len(), |m| m.missing(hashes));
                    let bytes = new as f64 * self.block_bytes();
                    self.begun.1 += 1;
                    self.stores.begin(now, bytes, Store::of_lease(*lease, hashes));
                }
                StepOp::WriteBack { hashes, keep_until, .. } => {
                    let new = self.memory.as_ref().map_or(hashes.len(), |m| m.missing(hashes));
                    let bytes = new as f64 * self.block_bytes();
                    self.begun.1 += 1;
                    self.stores.begin(now, bytes, Store::write_back(hashes, *keep_until));
                }
            }
        }
    }

    /// Reports the copies that are done by `now`.
    pub(super) fn deliver(&mut self, scheduler: &mut Scheduler, now: Time) {
        if let Some(memory) = &self.memory {
            memory.set_time(now);
        }
        while let Some(Load { id, tokens, hashes }) = self.loads.take_done(now) {
            if let Some(memory) = &self.memory {
                memory.loaded(&hashes);
            }
            scheduler.kv_arrived(id, tokens);
        }
        while let Some(Store { lease, hashes, keep_until }) = self.stores.take_done(now) {
            if let Some(memory) = &self.memory {
                memory.store(&hashes, keep_until);
            }
            if let Some(lease) = lease {
                scheduler.kv_stored(lease);
            }
        }
    }

    /// Time at which the next copy is done.
    pub(super) fn next_done(&self) -> Option<Time> {
        [self.loads.next_done(), self.stores.next_done()].into_iter().flatten().min()
    }

    pub(super) fn report(&self) -> Option<HostMemoryReport> {
        Some(self.memory.as_ref()?.report(self.loads.bytes, self.stores.bytes))
    }
}

/// A link on which one copy follows the other.
#[derive(Debug)]
struct Link<T> {
    /// Bytes a second; infinite if copies take no time.
    bandwidth: f64,
    /// Time at which the copies that have begun are done.
    free: Time,
    /// Copies that have begun, with the time at which each is done.
    under_way: VecDeque<(Time, T)>,
    /// Bytes of all copies.
    bytes: f64,
}

impl<T> Link<T> {
    fn new(bandwidth: f64) -> Self {
        Self { bandwidth, free: Time::ZERO, under_way: VecDeque::new(), bytes: 0.0 }
    }

    /// Begins a copy at `now`, or when the copies before it are done.
    fn begin(&mut self, now: Time, bytes: f64, what: T) {
        self.free = self.free.max(now) + bytes / self.bandwidth;
        self.bytes += bytes;
        self.under_way.push_back((self.free, what));
    }

    /// Takes the next copy that is done by `now`.
    fn take_done(&mut self, now: Time) -> Option<T> {
        let (done, _) = self.under_way.front()?;
        if *done > now {
            return None;
        }
        self.under_way.pop_front().map(|(_, what)| what)
    }

    /// Time at which the next copy is done.
    fn next_done(&self) -> Option<Time> {
        self.under_way.front().map(|(done, _)| *done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_a_link_one_after_the_other() {
        let mut link = Link::new(10.0);
        link.begin(Time(1.0), 20.0, 'a');
        link.begin(Time(2.0), 5.0, 'b');
        assert_eq!(link.next_done(), Some(Time(3.0)));
        assert_eq!(link.take_done(Time(2.9)), None);
        assert_eq!([link.take_done(Time(3.0)), link.take_done(Time(3.0))], [Some('a'), None]);
        assert_eq!(link.next_done(), Some(Time(3.5)), "b begins when a is done");
        assert_eq!(link.take_done(Time(9.0)), Some('b'));
        link.begin(Time(9.0), 10.0, 'c');
        assert_eq!((link.next_done(), link.bytes), (Some(Time(10.0)), 35.0));
    }

    #[test]
    fn without_a_limit_copies_take_no_time() {
        let mut link = Link::new(f64::INFINITY);
        link.begin(Time(1.0), 1e12, ());
        assert_eq!(link.take_done(Time(1.0)), Some(()));
    }
}
