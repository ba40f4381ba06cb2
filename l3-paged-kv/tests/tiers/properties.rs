//! Any sequence of operations, against a naive model.

use l3_paged_kv::tier::{DRAM_ENTRY_BYTES, DiskOptions, DiskTier, DramTier, KvTier, TierOutcome};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::support::{Disk, bytes, disk_bytes, get, present, put};

#[derive(Clone, Copy, Debug)]
enum Op {
    Put(u64),
    Get(u64),
    Reopen,
}

const KEYS: u64 = 12;

fn ops(reopen: bool) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (0..KEYS).prop_map(Op::Put),
        8 => (0..KEYS).prop_map(Op::Get),
        u32::from(reopen) => Just(Op::Reopen),
    ];
    prop::collection::vec(op, 1..60)
}

/// Length of chunk `n`.
fn len(n: u64) -> usize {
    (n as usize * 1777 + 13) % 9000
}

/// A list of chunks, the one used last at the end.
struct Naive {
    capacity: u64,
    chunks: Vec<u64>,
    size: fn(u64) -> u64,
}

impl Naive {
    fn bytes(&self) -> u64 {
        self.chunks.iter().map(|n| (self.size)(*n)).sum()
    }

    fn use_it(&mut self, n: u64) -> bool {
        let at = self.chunks.iter().position(|m| *m == n);
        if let Some(at) = at {
            self.chunks.remove(at);
            self.chunks.push(n);
        }
        at.is_some()
    }

    fn put(&mut self, n: u64) -> TierOutcome {
        if self.use_it(n) {
            return TierOutcome::Stored;
        }
        if (self.size)(n) > self.capacity {
            return TierOutcome::Refused;
        }
        self.chunks.push(n);
        while self.bytes() > self.capacity {
            self.chunks.remove(0);
        }
        TierOutcome::Stored
    }

    fn get(&mut self, n: u64) -> TierOutcome {
        if self.use_it(n) { TierOutcome::Hit(bytes(n, len(n))) } else { TierOutcome::Miss }
    }

    fn sorted(&self) -> Vec<u64> {
        let mut all = self.chunks.clone();
        all.sort_unstable();
        all
    }
}

/// Runs an operation on both, and compares outcome, contents and bytes.
fn step(tier: &mut dyn KvTier, naive: &mut Naive, op: Op) -> Result<(), TestCaseError> {
    match op {
        Op::Put(n) => prop_assert_eq!(put(tier, n, len(n)), naive.put(n), "{:?}", op),
        Op::Get(n) => prop_assert_eq!(get(tier, n), naive.get(n), "{:?}", op),
        Op::Reopen => {}
    }
    prop_assert_eq!(present(tier, KEYS), naive.sorted(), "chunks after {:?}", op);
    let stats = tier.stats();
    prop_assert_eq!((stats.chunks, stats.bytes), (naive.chunks.len(), naive.bytes()));
    prop_assert!(stats.bytes <= naive.capacity);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_tier_in_memory_is_a_list_in_the_order_of_use(
        capacity in 0u64..40_000,
        ops in ops(false),
    ) {
        let size = |n| len(n) as u64 + DRAM_ENTRY_BYTES;
        let mut naive = Naive { capacity, chunks: Vec::new(), size };
        let mut tier = DramTier::new(capacity);
        for op in ops {
            step(&mut tier, &mut naive, op)?;
        }
    }

    /// The directory never has more bytes than the capacity, at any moment, and all chunks survive a restart.
    #[test]
    fn the_tier_of_files_is_a_list_in_the_order_of_use(
        capacity in 0u64..60_000,
        ops in ops(true),
    ) {
        let size = |n| (len(n) as u64 + 88).next_multiple_of(4096);
        let mut naive = Naive { capacity, chunks: Vec::new(), size };
        let (dir, disk) = (TempDir::new().unwrap(), Disk::default());
        let open = || DiskTier::over(disk.files(dir.path()), DiskOptions::new(capacity)).unwrap();
        let mut tier = open();
        for op in ops {
            if let Op::Reopen = op {
                tier.close();
                tier = open();
                // The order of use is that of the file system's times now, which may be the same for several.
                prop_assert_eq!(present(&mut tier, KEYS), naive.sorted(), "after a restart");
                naive.chunks.clear();
                for n in 0..KEYS {
                    if get(&mut tier, n) != TierOutcome::Miss {
                        naive.chunks.push(n);
                    }
                }
            }
            step(&mut tier, &mut naive, op)?;
        }
        tier.close();
        prop_assert_eq!(disk_bytes(dir.path()), naive.bytes());
        let most = disk.set(|f| f.most_bytes);
        prop_assert!(most <= capacity, "{} bytes on a disk of {}", most, capacity);
    }
}
