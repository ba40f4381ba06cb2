//! Memory that is really written: what lies in each slot, and what this step will write.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use l3_paged_kv::{BlockId, CopyBlock};

/// What the keys and values of one token depend on, as a number.
pub fn content(prompt_salt: &str, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (prompt_salt, tokens).hash(&mut hasher);
    hasher.finish()
}

/// Tokens that a sequence computes in this step.
#[derive(Debug)]
struct Plan {
    who: usize,
    /// Position in the sequence, slot, what will be there.
    writes: Vec<(usize, usize, u64)>,
}

#[derive(Debug)]
pub struct Memory {
    slots: Vec<Option<u64>>,
    block_size: usize,
    plans: Vec<Plan>,
}

impl Memory {
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        Self { slots: vec![None; num_blocks * block_size], block_size, plans: Vec::new() }
    }

    pub fn plan(&mut self, who: usize, writes: Vec<(usize, usize, u64)>) {
        self.plans.push(Plan { who, writes });
    }

    /// A sequence forgot its tokens from `len` on: they will not be computed.
    pub fn forget(&mut self, who: usize, len: usize) {
        for plan in self.plans.iter_mut().filter(|plan| plan.who == who) {
            plan.writes.retain(|(position, ..)| *position < len);
        }
    }

    /// A sequence ended: what it was to compute will not be.
    pub fn cancel(&mut self, who: usize) {
        self.plans.retain(|plan| plan.who != who);
    }

    pub fn cancel_all(&mut self) {
        self.plans.clear();
    }

    /// The forward pass: everything that is planned is written.
    pub fn run(&mut self) {
        for plan in std::mem::take(&mut self.plans) {
            for (_, slot, content) in plan.writes {
                self.slots[slot] = Some(content);
            }
        }
    }

    pub fn copy(&mut self, copy: CopyBlock) {
        for offset in 0..copy.tokens {
            let (from, to) = (copy.from as usize, copy.to as usize);
            self.slots[to * self.block_size + offset] = self.slots[from * self.block_size + offset];
        }
    }

    /// Whether a slot will hold this when the step has run.
    pub fn will_hold(&self, slot: usize, content: u64) -> bool {
        let mut writes = self.plans.iter().flat_map(|plan| &plan.writes);
        let planned = writes.rfind(|(_, written, _)| *written == slot);
        planned.map(|(.., content)| *content).or(self.slots[slot]) == Some(content)
    }

    pub fn slot(&self, table: &[BlockId], position: usize) -> usize {
        table[position / self.block_size] as usize * self.block_size + position % self.block_size
    }
}
