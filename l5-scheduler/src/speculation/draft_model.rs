//! Drafts of a smaller model, all rows of a step together.
//!
//! ```text
//! feed      what the model has not seen of each request: its prompt once, later the new tokens
//! draft     the likeliest next token of each, or one that is drawn; fed again for the next one, `most` times
//! keep      keys and values of drafts that are sampled afterwards stay, the others are rolled back
//! ```
//!
//! The model has keys and values of its own, in a pool of its own. A request that waits, or that has no drafts for a
//! while, can lose its slot there to another one, and is then fed from its beginning again. An error of the model costs
//! drafts and nothing else.

use std::sync::Arc;

use l1_tensor::Runtime;
use l2_model::{Decoder, SequenceState, Workspace, WorkspaceSpec};
use l3_paged_kv::{PagedOptions, PagedState};
use l4_sampler::draft::{DraftRow, DraftSampling, Drafter, Drafts, MAX_RESERVED_TOKENS};

use super::SpeculationError;
use super::arrays::BatchArrays;
use super::chooser::{Chooser, DraftList, DraftSpan};
use super::sequences::Sequences;

/// Maximum number of tokens of a step of the draft model, unless there are more sequences.
const MAX_STEP_TOKENS: usize = 512;

/// Size of the KV cache of a draft model or head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DraftMemory {
    /// Number of requests that have keys and values at once.
    pub seqs: usize,
    /// Maximum number of tokens of a request.
    pub max_len: usize,
    /// Number of blocks, and tokens of each.
    pub blocks: usize,
    pub block_size: usize,
}

/// Drafter that runs a smaller model.
pub(crate) struct ModelDrafter {
    decoder: Arc<Decoder>,
    ws: Workspace,
    state: PagedState,
    max_len: usize,
    max_step_tokens: usize,
    /// Tokens of each request, by the caller's slot.
    requests: Vec<Option<Request>>,
    sequences: Sequences,
    step: BatchArrays,
    live: Vec<Live>,
    /// Rows whose logits are computed, as indices into the live rows. The memory is reused.
    due: Vec<usize>,
    chooser: Chooser,
    /// Drafts of each row, most of each behind one another.
    lists: DraftList,
}

/// A request.
struct Request {
    tokens: Vec<u32>,
    /// Its sequence in the state.
    seq: Option<u32>,
    /// Tokens whose keys and values are in the sequence.
    fed: Vec<u32>,
    /// How its drafts are drawn. `None`: they are the likeliest tokens.
    sampling: Option<DraftSampling>,
}

/// A row that is being drafted.
#[derive(Clone, Copy)]
struct Live {
    row: usize,
    slot: u32,
    /// Its drafts in the list of all.
    drafts: DraftSpan,
}

impl ModelDrafter {
    /// Creates a drafter with the memory for `memory`.
    ///
    /// # Errors
    /// [`SpeculationError::DraftModel`]: too little memory.
    pub(crate) fn new(
        rt: &Runtime,
        decoder: Arc<Decoder>,
        memory: DraftMemory,
    ) -> Result<Self, SpeculationError> {
        let DraftMemory { seqs, max_len, blocks, block_size } = memory;
        let max_len = max_len.min(decoder.config().max_context);
        let max_step_tokens = MAX_STEP_TOKENS.max(seqs);
        let spec =
            WorkspaceSpec { max_tokens: max_step_tokens, max_rows: seqs, max_context: max_len };
        let failed = |e: &dyn std::fmt::Display| SpeculationError::DraftModel(e.to_string());
        let options = PagedOptions {
            num_blocks: blocks,
            max_step_tokens,
            ..PagedOptions::new(seqs, max_len, block_size, rt.activation_dtype())
        };
        let state = PagedState::new_on(rt.device(), decoder.config(), options);
        Ok(Self {
            ws: Workspace::new(rt, decoder.config(), spec).map_err(|e| failed(&e))?,
            state: state.map_err(|e| failed(&e))?,
            decoder,
            max_len,
            max_step_tokens,
            requests: Vec::new(),
            sequences: Sequences::new(seqs),
            step: BatchArrays::default(),
            live: Vec::with_capacity(seqs),
            due: Vec::with_capacity(seqs),
            chooser: Chooser::new(rt, seqs),
            lists: DraftList::default(),
        })
    }

    /// Size of its KV cache, in bytes.
    pub(crate) fn kv_bytes(&self) -> usize {
        self.state.kv().bytes()
    }

    fn request(&mut self, slot: u32) -> Option<&mut Request> {
        self.requests.get_mut(slot as usize)?.as_mut()
    }

    /// Empties a sequence, and takes it away from its request.
    fn evict(&mut self, seq: u32) {
        self.state.drop_sequence(seq);
        let owner = self.sequences.release(seq);
        self.forget(owner);
    }

    fn forget(&mut self, owner: Option<u32>) {
        if let Some(request) = owner.and_then(|owner| self.request(owner)) {
            request.seq = None;
            request.fed.clear();
        }
    }

    /// Gives a request a sequence, and rolls the sequence back to what it has in common with the request's tokens. At
    /// least one token is left to feed. Returns whether it has one.
    fn prepare(&mut self, slot: u32) -> bool {
        let Some(seq) = self.request(slot).map(|request| request.seq) else { return false };
        let seq = match seq {
            Some(seq) => seq,
            None => {
                let Some((seq, lost)) = self.sequences.claim(slot) else { return false };
                self.state.drop_sequence(seq);
                self.forget(lost);
                seq
            }
        };
        self.sequences.touch(seq);
        let Self { state, requests, .. } = self;
        let Some(request) = requests[slot as usize].as_mut() else { return false };
        request.seq = Some(seq);
        if request.fed.is_empty() {
            let resumed = state.resume(seq, &request.tokens);
            request.fed.extend_from_slice(&request.tokens[..resumed]);
        }
        let common = request.fed.iter().zip(&request.tokens).take_while(|(a, b)| a == b).count();
        let keep = common.min(request.tokens.len().saturating_sub(1));
        if keep < request.fed.len() {
            request.fed.truncate(keep);
            if state.rollback(seq, keep).is_err() {
                self.evict(seq);
                return false;
            }
        }
        !self.requests[slot as usize].as_ref().is_none_or(|request| request.tokens.is_empty())
    }

    /// Packs what is due of the live rows, as far as a step has room. `drafts`: the last drafts are fed, too.
    fn pack(&mut self) {
        let Self { step, live, due, requests, lists, max_step_tokens, .. } = self;
        step.clear();
        due.clear();
        for (i, row) in live.iter().enumerate() {
            let list = row.drafts.indices().map(|i| lists.token(i));
            let Some(request) = requests[row.slot as usize].as_ref() else { continue };
            let Some(seq) = request.seq else { continue };
            let (from, end) = (request.fed.len(), request.tokens.len() + row.drafts.len);
            let room = *max_step_tokens - step.num_tokens();
            let len = (end - from).min(room);
            if len == 0 || row.drafts.is_full() {
                continue;
            }
            let all = request.tokens.iter().copied().chain(list);
            let whole = from + len == end;
            step.add(seq, from, all.skip(from).take(len), whole);
            if whole {
                due.push(i);
            }
        }
    }

    /// Runs the packed step, and appends a token of each row that is due to its drafts.
    fn run(&mut self) -> l4_sampler::Result<()> {
        let Self { step, live, due, requests, sequences, lists, state, .. } = self;
        self.decoder.forward(&step.batch(), state, &mut self.ws)?;
        for (seq, tokens) in step.sequences() {
            let owner = sequences.owner(seq);
            if let Some(request) = owner.and_then(|slot| requests[slot as usize].as_mut()) {
                request.fed.extend_from_slice(tokens);
            }
        }
        if due.is_empty() {
            return Ok(());
        }
        let logits = self.ws.logits(due.len())?;
        let asked = due.iter().filter_map(|i| {
            let request = requests[live[*i].slot as usize].as_ref()?;
            Some((request.sampling.as_ref(), request.tokens.len() + live[*i].drafts.len))
        });
        self.chooser.choose(logits, asked)?;
        for (i, row) in due.iter().enumerate() {
            lists.append(&mut live[*row].drafts, self.chooser.row(i));
        }
        Ok(())
    }

    /// Forgets the keys and values of all requests but the live rows. Returns whether there were any.
    fn forget_idle(&mut self) -> bool {
        let mut any = false;
        while let Some(seq) = self.sequences.idle() {
            self.evict(seq);
            any = true;
        }
        any
    }

    /// Forgets the keys and values of all live rows, after an error that leaves them unknown.
    fn forget_live(&mut self) {
        for i in 0..self.live.len() {
            let seq = self.request(self.live[i].slot).and_then(|request| request.seq);
            if let Some(seq) = seq {
                self.evict(seq);
            }
        }
    }
}

impl Drafter for ModelDrafter {
    fn begin(&mut self, slot: u32, prompt: &[u32], _: Option<&str>, max_new: usize) {
        self.end(slot);
        let index = slot as usize;
        if self.requests.len() <= index {
            self.requests.resize_with(index + 1, || None);
        }
        let room = (prompt.len() + max_new.min(MAX_RESERVED_TOKENS)).min(self.max_len);
        let mut tokens = Vec::with_capacity(room.max(prompt.len()));
        tokens.extend_from_slice(prompt);
        self.requests[index] =
            Some(Request { tokens, seq: None, fed: Vec::with_capacity(room), sampling: None });
    }

    fn set_sampling(&mut self, slot: u32, how: DraftSampling) {
        if let Some(request) = self.request(slot) {
            request.sampling = Some(how);
        }
    }

    fn extend(&mut self, slot: u32, tokens: &[u32]) {
        if let Some(request) = self.request(slot) {
            request.tokens.extend_from_slice(tokens);
        }
    }

    fn propose(&mut self, rows: &[DraftRow], out: &mut Drafts) {
        self.sequences.tick();
        self.live.clear();
        let mut start = 0;
        for (row, DraftRow { slot, most }) in rows.iter().enumerate() {
            let len = self.request(*slot).map_or(0, |request| request.tokens.len());
            // The last draft is not fed.
            let most = (*most).min((self.max_len + 1).saturating_sub(len));
            if most > 0 && self.prepare(*slot) {
                let drafts = DraftSpan { start, most, len: 0 };
                self.live.push(Live { row, slot: *slot, drafts });
                start += most;
            }
        }
        self.lists.clear();
        self.lists.add(start);
        loop {
            self.pack();
            if self.step.num_tokens() == 0 {
                break;
            }
            if let Err(e) = self.run() {
                // Mostly there are too few blocks, and requests that are not drafted for have some.
                if self.forget_idle() {
                    continue;
                }
                tracing::debug!("the draft model made no drafts: {e}");
                self.forget_live();
                break;
            }
        }
        let mut live = self.live.iter().peekable();
        for row in 0..rows.len() {
            if let Some(one) = live.next_if(|one| one.row == row) {
                self.lists.write(one.drafts.indices(), out);
            }
            out.end_row();
        }
    }

    fn end(&mut self, slot: u32) {
        let seq = self.request(slot).and_then(|request| request.seq);
        if let Some(seq) = seq {
            self.evict(seq);
        }
        if let Some(request) = self.requests.get_mut(slot as usize) {
            *request = None;
        }
    }

    fn num_unread(&self, slot: u32) -> usize {
        let request = self.requests.get(slot as usize).and_then(Option::as_ref);
        request.map_or(0, |request| request.tokens.len().saturating_sub(request.fed.len()))
    }

    fn costs_time(&self) -> bool {
        true
    }
}
