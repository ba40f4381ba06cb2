//! The blocks of the pool: which are free, which contents can be hit, and how many a request needs.

use super::{Naive, NaiveRequest};

/// Contents of a block: adapter, tenant, and all tokens up to its end.
pub(super) type Known = (Option<String>, Option<String>, Vec<u32>);

impl Naive {
    pub(super) fn blocks(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.config.block_size)
    }

    /// Slots for drafts are wanted beyond a request's tokens, as far as there can be any.
    pub(super) fn with_drafts(&self, tokens: usize) -> usize {
        let pool = (self.config.num_gpu_blocks - 1) * self.config.block_size;
        let most = self.config.max_model_len.min(pool);
        (tokens + self.config.num_lookahead_tokens).min(most).max(tokens)
    }

    fn is_cached(&self, block: usize) -> bool {
        self.cached.iter().any(|(_, cached)| *cached == block)
    }

    /// Blocks with the first tokens of a request, but never all tokens.
    pub(super) fn lookup(&self, request: &NaiveRequest) -> Vec<usize> {
        let NaiveRequest { tokens, adapter, tenant, .. } = request;
        let size = self.config.block_size;
        let most = if self.config.enable_prefix_caching { (tokens.len() - 1) / size } else { 0 };
        let find = |n: usize| {
            let same = |(of, from, known): &Known| {
                of == adapter && from == tenant && known[..] == tokens[..n * size]
            };
            let found = self.cached.iter().find(|(known, _)| same(known));
            found.map(|(_, block)| *block)
        };
        (1..=most).map_while(find).collect()
    }

    pub(super) fn take(&mut self) -> usize {
        let block = self.free.remove(0);
        self.cached.retain(|(_, cached)| *cached != block);
        self.users[block] = 1;
        block
    }

    /// Begins a request's table with the blocks of its hit.
    pub(super) fn share(&mut self, request: &mut NaiveRequest, hit: Vec<usize>) {
        for block in &hit {
            self.free.retain(|free| free != block);
            self.users[*block] += 1;
        }
        (request.hashed, request.table) = (hit.len(), hit);
    }

    /// Appends blocks to a request's table until it has so many.
    pub(super) fn grow(&mut self, request: &mut NaiveRequest, blocks: usize) {
        while request.table.len() < blocks {
            let block = self.take();
            request.table.push(block);
        }
    }

    /// Blocks that are full after `len` tokens can be hit. Returns the new ones.
    pub(super) fn register(&mut self, request: &mut NaiveRequest, len: usize) -> Vec<usize> {
        if !self.config.enable_prefix_caching {
            return Vec::new();
        }
        let size = self.config.block_size;
        let mut new = Vec::new();
        while (request.hashed + 1) * size <= len {
            let block = request.table[request.hashed];
            request.hashed += 1;
            let known = request.tokens[..request.hashed * size].to_vec();
            let known = (request.adapter.clone(), request.tenant.clone(), known);
            self.cached.push((known, block));
            new.push(block);
        }
        new
    }

    /// Frees the blocks of a request.
    pub(super) fn give_back(&mut self, request: &mut NaiveRequest) {
        let table = std::mem::take(&mut request.table);
        (request.computed, request.hashed, request.loaded) = (0, 0, 0);
        request.drafts.clear();
        self.release(table);
    }

    pub(super) fn release(&mut self, table: Vec<usize>) {
        let mut unknown = Vec::new();
        for block in table.into_iter().rev() {
            self.users[block] -= 1;
            match (self.users[block], self.is_cached(block)) {
                (0, true) => self.free.push(block),
                (0, false) => unknown.push(block),
                _ => {}
            }
        }
        unknown.extend(std::mem::take(&mut self.free));
        self.free = unknown;
    }

    /// Number of blocks that a running request needs without drafts.
    fn without_drafts(&self, request: &NaiveRequest) -> usize {
        let row = self.rows.iter().find(|row| row.id == request.id);
        let tokens = self.with_drafts(request.computed + row.map_or(0, |row| row.len));
        self.blocks(tokens.max(request.loaded))
    }

    /// Number of blocks that no request needs without drafts.
    pub(super) fn num_draft_blocks(&self) -> usize {
        if self.config.num_speculative_tokens == 0 {
            return 0;
        }
        let only = |own: &NaiveRequest| own.table.len().saturating_sub(self.without_drafts(own));
        self.running.iter().map(only).sum()
    }

    /// Takes back the blocks that no request needs without drafts.
    pub(super) fn take_back_draft_blocks(&mut self) {
        if self.config.num_speculative_tokens == 0 {
            return;
        }
        let order: Vec<u64> = self.rows.iter().map(|row| row.id).collect();
        let idle = self.running.iter().map(|request| request.id).filter(|id| !order.contains(id));
        let order: Vec<u64> = order.iter().copied().chain(idle).collect();
        let needs: Vec<usize> = self.running.iter().map(|own| self.without_drafts(own)).collect();
        for id in order {
            let i = self.running.iter().position(|request| request.id == id).unwrap();
            if self.running[i].table.len() > needs[i] {
                let back = self.running[i].table.split_off(needs[i]);
                back.iter().for_each(|block| self.users[*block] -= 1);
                self.free.splice(0..0, back.into_iter().rev());
            }
            let slots = self.running[i].table.len() * self.config.block_size;
            if let Some(row) = self.rows.iter_mut().find(|row| row.id == id) {
                // Their tokens of the step are lost.
                row.drafts = row.drafts.min(slots - row.computed - row.len);
            }
        }
    }
}
