//! What the manager should do, said as plainly as possible.

use l3_paged_kv::{BlockId, CopyBlock};

/// What a full block holds: everything up to its end, and whose it is.
pub type Key = (&'static str, Vec<u32>);

#[derive(Clone, Debug)]
pub struct Seq {
    pub name: usize,
    pub salt: &'static str,
    pub table: Vec<BlockId>,
    hit: usize,
    /// Blocks with a hash.
    hashed: usize,
    /// As it was before this step, if it takes part.
    before: Option<Before>,
}

#[derive(Clone, Copy, Debug)]
struct Before {
    admitted: bool,
    blocks: usize,
    hashed: usize,
}

#[derive(Debug)]
pub struct Naive {
    pub size: usize,
    caching: bool,
    /// Next to be handed out first.
    pub free: Vec<BlockId>,
    pub users: Vec<u32>,
    /// In the order of registration.
    pub cached: Vec<(Key, BlockId)>,
    /// In no order.
    pub seqs: Vec<Seq>,
    /// Names of the sequences in this step, in the order in which they entered it.
    step: Vec<usize>,
}

impl Naive {
    pub fn new(num_blocks: usize, size: usize, caching: bool) -> Self {
        Self {
            size,
            caching,
            free: (1..num_blocks as BlockId).collect(),
            users: vec![0; num_blocks],
            cached: Vec::new(),
            seqs: Vec::new(),
            step: Vec::new(),
        }
    }

    pub fn seq(&self, name: usize) -> &Seq {
        self.seqs.iter().find(|seq| seq.name == name).unwrap()
    }

    fn seq_mut(&mut self, name: usize) -> &mut Seq {
        self.seqs.iter_mut().find(|seq| seq.name == name).unwrap()
    }

    fn is_cached(&self, block: BlockId) -> bool {
        self.cached.iter().any(|(_, cached)| *cached == block)
    }

    pub fn lookup(&self, salt: &'static str, tokens: &[u32]) -> Vec<BlockId> {
        let most = tokens.len().saturating_sub(1) / self.size;
        let find = |n: usize| {
            let key = (salt, tokens[..n * self.size].to_vec());
            self.cached.iter().find(|(cached, _)| *cached == key).map(|(_, block)| *block)
        };
        (1..=most).map_while(find).collect()
    }

    pub fn blocks_to_admit(&self, hit: &[BlockId], len: usize) -> usize {
        let new = len.div_ceil(self.size).max(hit.len()) - hit.len();
        new + hit.iter().filter(|block| self.free.contains(block)).count()
    }

    fn enter(&mut self, name: usize, admitted: bool) {
        if !self.step.contains(&name) {
            self.step.push(name);
            let seq = self.seq_mut(name);
            let blocks = if admitted { 0 } else { seq.table.len() };
            seq.before = Some(Before { admitted, blocks, hashed: seq.hashed });
        }
    }

    fn take(&mut self) -> BlockId {
        let block = self.free.remove(0);
        self.users[block as usize] = 1;
        self.cached.retain(|(_, cached)| *cached != block);
        block
    }

    pub fn admit(&mut self, name: usize, salt: &'static str, hit: &[BlockId], len: usize) {
        for block in hit {
            self.free.retain(|free| free != block);
            self.users[*block as usize] += 1;
        }
        let (table, hit) = (hit.to_vec(), hit.len());
        self.seqs.push(Seq { name, salt, table, hit, hashed: hit, before: None });
        self.enter(name, true);
        self.grow(name, len);
    }

    pub fn missing(&self, name: usize, len: usize) -> usize {
        let have = self.seq(name).table.len();
        len.div_ceil(self.size).max(have) - have
    }

    pub fn grow(&mut self, name: usize, len: usize) {
        for _ in 0..self.missing(name, len) {
            self.enter(name, false);
            let block = self.take();
            self.seq_mut(name).table.push(block);
        }
    }

    pub fn register(&mut self, name: usize, tokens: &[u32], len: usize) {
        let full = len.min(tokens.len()) / self.size;
        for index in self.seq(name).hashed..full {
            if !self.caching {
                return;
            }
            self.enter(name, false);
            let holds = tokens[..(index + 1) * self.size].to_vec();
            let seq = self.seq_mut(name);
            seq.hashed = index + 1;
            let (salt, block) = (seq.salt, seq.table[index]);
            self.cached.push(((salt, holds), block));
        }
    }

    /// Blocks in the order of a table go back, as vLLM does it: tail first, in two groups.
    fn give_back(&mut self, blocks: &[BlockId]) {
        let (mut worthless, mut cached) = (Vec::new(), Vec::new());
        for &block in blocks.iter().rev() {
            self.users[block as usize] -= 1;
            if self.users[block as usize] == 0 {
                if self.is_cached(block) { cached.push(block) } else { worthless.push(block) }
            }
        }
        self.free.splice(0..0, worthless);
        self.free.extend(cached);
    }

    fn pending(&self, name: usize) -> Vec<BlockId> {
        let seq = self.seq(name);
        let from = seq.before.map_or(seq.hashed, |before| before.hashed);
        seq.table[from..seq.hashed.max(from)].to_vec()
    }

    fn withdraw(&mut self, name: usize) {
        let pending = self.pending(name);
        self.cached.retain(|(_, block)| !pending.contains(block));
        let seq = self.seq_mut(name);
        seq.hashed = seq.hashed.min(seq.before.map_or(seq.hashed, |before| before.hashed));
    }

    /// Free a sequence; who goes with it.
    pub fn free(&mut self, name: usize) -> Vec<usize> {
        let mut gone = vec![name];
        let mut next = 0;
        while next < gone.len() {
            for block in self.pending(gone[next]) {
                for other in self.step.clone() {
                    let seq = self.seq(other);
                    let admitted = seq.before.is_some_and(|before| before.admitted);
                    let relies = admitted && seq.table[..seq.hit].contains(&block);
                    if relies && !gone.contains(&other) {
                        gone.push(other);
                    }
                }
            }
            self.withdraw(gone[next]);
            next += 1;
        }
        for name in &gone {
            let table = self.seq(*name).table.clone();
            self.give_back(&table);
            self.seqs.retain(|seq| seq.name != *name);
            self.step.retain(|member| member != name);
        }
        gone[1..].to_vec()
    }

    /// Whether a rollback would take what the open step promised to others.
    pub fn promised(&self, name: usize, len: usize) -> bool {
        let (seq, whole) = (self.seq(name), len / self.size);
        if len >= seq.table.len() * self.size {
            return false;
        }
        let admitted = seq.before.is_some_and(|before| before.admitted);
        (!self.pending(name).is_empty() && seq.hashed > whole) || (admitted && seq.hit > whole)
    }

    /// `Err`: no block is free for the copy.
    pub fn roll_back(&mut self, name: usize, len: usize) -> Result<Option<CopyBlock>, ()> {
        let seq = self.seq(name).clone();
        if len >= seq.table.len() * self.size {
            return Ok(None);
        }
        let (whole, left) = (len / self.size, len % self.size);
        let keep = len.div_ceil(self.size);
        let visible = |block: BlockId| self.users[block as usize] > 1 || self.is_cached(block);
        let old = (left > 0 && visible(seq.table[whole])).then(|| seq.table[whole]);
        let freed = seq.table[keep..].iter().filter(|b| self.users[**b as usize] == 1).count();
        if old.is_some() && self.free.len() + freed == 0 {
            return Err(());
        }
        if old.is_some() {
            self.enter(name, false);
        }
        self.give_back(&seq.table[keep..]);
        let mut table = seq.table[..keep].to_vec();
        let copy = old.map(|from| {
            let to = self.take();
            self.give_back(&[from]);
            table[whole] = to;
            CopyBlock { from, to, tokens: left }
        });
        let seq = self.seq_mut(name);
        seq.table = table;
        seq.hashed = seq.hashed.min(whole);
        seq.hit = seq.hit.min(whole);
        if let Some(before) = &mut seq.before {
            before.hashed = before.hashed.min(whole);
            before.blocks = before.blocks.min(keep);
        }
        Ok(copy)
    }

    pub fn commit(&mut self) {
        self.step.clear();
        self.seqs.iter_mut().for_each(|seq| seq.before = None);
    }

    /// Abandon the step; who is gone.
    pub fn abandon(&mut self) -> Vec<usize> {
        for name in self.step.clone() {
            self.withdraw(name);
        }
        let mut gone = Vec::new();
        for name in std::mem::take(&mut self.step).into_iter().rev() {
            let Some(before) = self.seq_mut(name).before.take() else { continue };
            while self.seq(name).table.len() > before.blocks {
                let Some(block) = self.seq_mut(name).table.pop() else { break };
                self.users[block as usize] -= 1;
                if self.users[block as usize] > 0 {
                    continue;
                }
                let end = if self.is_cached(block) { self.free.len() } else { 0 };
                self.free.insert(end, block);
            }
            if before.admitted {
                gone.insert(0, name);
                self.seqs.retain(|seq| seq.name != name);
            }
        }
        gone
    }
}
