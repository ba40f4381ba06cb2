//! Drafts of an EAGLE head: one layer that reads the model's hidden rows and its own drafts.
//!
//! ```text
//! read      the hidden rows of the step and the tokens behind them, all requests together; the likeliest next token of
//!           each request that is asked for drafts, or one that is drawn
//! propose   that token and the head's own output row give the next draft, and so on
//! ```
//!
//! The head has a KV cache of its own. It holds a *run* of each request: rows of consecutive positions that the head has
//! read, at positions that count from the first of them. A run need not begin with the request. Tokens that the engine
//! found in its prefix cache have no hidden rows, and neither have those that were computed while no drafts paid; a run
//! begins behind them. Attention depends on distances, so a shorter run makes worse drafts, and never wrong tokens.

use l1_tensor::ops::gather_rows;
use l1_tensor::{DType, Runtime, Tensor, TensorRef};
use l2_model::draft_head::{EagleHead, EagleWorkspace, Hidden};
use l2_model::{SequenceState, WorkspaceSpec};
use l3_paged_kv::{PagedOptions, PagedState};
use l4_sampler::draft::{
    DraftRow, DraftSampling, Drafter, Drafts, HiddenSpan, MAX_RESERVED_TOKENS,
};

use super::arrays::BatchArrays;
use super::chooser::{Chooser, DraftList, DraftSpan};
use super::sequences::Sequences;
use super::{DraftMemory, SpeculationError};

/// Maximum number of places of the model that a head reads.
const MAX_TAPS: usize = 3;

/// Drafter that runs an EAGLE-1 or EAGLE-3 head.
pub(crate) struct EagleDrafter {
    rt: Runtime,
    head: EagleHead,
    ws: EagleWorkspace,
    state: PagedState,
    max_len: usize,
    sequences: Sequences,
    /// Requests by the caller's slot.
    requests: Vec<Option<Request>>,
    /// f32 `[T, H]` for each place: hidden rows that are not consecutive in the step.
    gathered: Vec<Tensor>,
    /// f32 `[R, H]`: the head's own rows of the requests that go on.
    carried: Tensor,
    step: BatchArrays,
    /// For each token of the step, the index of its hidden row. The memory is reused.
    sources: Vec<u32>,
    live: Vec<Live>,
    /// Drafts of each live row, `most` of each behind one another.
    lists: DraftList,
    chooser: Chooser,
}

/// A request.
struct Request {
    tokens: Vec<u32>,
    run: Option<Run>,
    /// How its drafts are drawn. `None`: they are the likeliest tokens.
    sampling: Option<DraftSampling>,
}

/// What the head has read of a request.
#[derive(Clone, Copy, Debug)]
struct Run {
    seq: u32,
    /// Position of its first row.
    base: usize,
    /// Number of rows that belong to the output, and of all that are stored: those of drafts are behind them.
    len: usize,
    stored: usize,
}

/// A request that is drafted for.
#[derive(Clone, Copy, Debug)]
struct Live {
    slot: u32,
    seq: u32,
    /// Position of its next row in the run.
    at: usize,
    /// Index of its row among the logits of the head's last step.
    row: usize,
    /// Its drafts in the list of all.
    drafts: DraftSpan,
}

/// The rows of `rows`, `[N, H]`, at these indices: a part of them, or a copy in `gathered`.
fn rows_at<'a>(
    rt: &Runtime,
    rows: TensorRef<'a>,
    sources: &[u32],
    gathered: &'a mut Tensor,
) -> l2_model::Result<TensorRef<'a>> {
    let n = sources.len();
    let first = sources.first().map_or(0, |first| *first as usize);
    if sources.iter().enumerate().all(|(i, source)| *source as usize == first + i) {
        return Ok(rows.narrow(0, first, n)?);
    }
    gather_rows(rt, rows, sources, gathered.view_mut().narrow(0, 0, n)?)?;
    Ok(gathered.view().narrow(0, 0, n)?)
}

impl EagleDrafter {
    /// Creates a drafter for steps of at most `max_tokens` tokens.
    ///
    /// # Errors
    /// [`SpeculationError::Head`]: too little memory.
    pub(crate) fn new(
        rt: &Runtime,
        head: EagleHead,
        memory: DraftMemory,
        max_tokens: usize,
    ) -> Result<Self, SpeculationError> {
        Self::allocate(rt, head, memory, max_tokens)
            .map_err(|e| SpeculationError::Head(e.to_string()))
    }

    fn allocate(
        rt: &Runtime,
        head: EagleHead,
        memory: DraftMemory,
        max_tokens: usize,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let DraftMemory { seqs, max_len, blocks, block_size } = memory;
        let (max_len, hidden) = (max_len.min(head.config().max_context), head.config().hidden);
        let max_tokens = max_tokens.max(seqs);
        let spec = WorkspaceSpec { max_tokens, max_rows: seqs, max_context: max_len };
        let options = PagedOptions {
            num_blocks: blocks,
            max_step_tokens: max_tokens,
            // A row depends on hidden rows, and blocks are found by tokens.
            prefix_caching: false,
            ..PagedOptions::new(seqs, max_len, block_size, rt.activation_dtype())
        };
        let rows = |n: usize| Tensor::zeros(&[n, hidden], DType::F32, rt.device());
        Ok(Self {
            ws: EagleWorkspace::new(rt, &head, spec)?,
            state: PagedState::new_on(rt.device(), head.config(), options)?,
            gathered: head.taps().iter().map(|_| rows(max_tokens)).collect::<Result<_, _>>()?,
            carried: rows(seqs)?,
            rt: rt.clone(),
            head,
            max_len,
            sequences: Sequences::new(seqs),
            requests: Vec::new(),
            step: BatchArrays::with_capacity(max_tokens, seqs),
            sources: Vec::with_capacity(max_tokens),
            live: Vec::with_capacity(seqs),
            lists: DraftList::default(),
            chooser: Chooser::new(rt, seqs),
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
        if let Some(request) = owner.and_then(|owner| self.request(owner)) {
            request.run = None;
        }
    }

    /// Makes the rows from position `first` on the next ones of a request's run: rolls its run back to them, or begins a
    /// new one there.
    fn continue_at(&mut self, slot: u32, first: usize) -> Option<Run> {
        let run = self.request(slot)?.run;
        if let Some(run) = run
            && (run.base..=run.base + run.len).contains(&first)
        {
            let len = first - run.base;
            if len < run.stored && self.state.rollback(run.seq, len).is_err() {
                self.evict(run.seq);
                return None;
            }
            self.sequences.touch(run.seq);
            return Some(Run { len, stored: len, ..run });
        }
        if let Some(run) = run {
            self.evict(run.seq);
        }
        let (seq, lost) = self.sequences.claim(slot)?;
        self.state.drop_sequence(seq);
        if let Some(request) = lost.and_then(|lost| self.request(lost)) {
            request.run = None;
        }
        Some(Run { seq, base: first, len: 0, stored: 0 })
    }

    /// Adds a request's rows to the step.
    fn enter(&mut self, span: &HiddenSpan) {
        let HiddenSpan { slot, first, ref rows, most } = *span;
        let Some(request) = self.request(slot) else { return };
        // The row of a token is read with the token behind it.
        let last = request.tokens.len().saturating_sub(1);
        let end = (first + rows.len()).min(last);
        if end <= first {
            return;
        }
        let Some(mut run) = self.continue_at(slot, first) else { return };
        let (n, at) = (end - first, first - run.base);
        let Self { step, sources, requests, live, lists, max_len, .. } = self;
        let Some(request) = requests[slot as usize].as_mut() else { return };
        sources.extend((rows.start..rows.start + n).map(|row| row as u32));
        run.len = at + n;
        run.stored = run.len;
        request.run = Some(run);
        // The last draft is not fed.
        let most = most.min((*max_len + 1).saturating_sub(run.len));
        let drafts = most > 0 && end == last;
        step.add(run.seq, at, request.tokens[first + 1..=end].iter().copied(), drafts);
        if drafts {
            let (row, drafts) = (live.len(), DraftSpan { start: lists.len(), most, len: 0 });
            live.push(Live { slot, seq: run.seq, at: run.len, row, drafts });
            lists.add(most);
        }
    }

    /// Runs the head over the step's rows.
    fn run(&mut self, hidden: &[TensorRef<'_>]) -> l4_sampler::Result<()> {
        let Self { rt, head, ws, state, gathered, step, sources, .. } = self;
        let [first, ..] = hidden else { return Ok(()) };
        let mut rows = [*first; MAX_TAPS];
        let all = rows.iter_mut().zip(hidden).zip(gathered);
        for ((rows, hidden), gathered) in all {
            *rows = rows_at(rt, *hidden, sources, gathered)?;
        }
        let rows = Hidden::Target(&rows[..hidden.len().min(MAX_TAPS)]);
        head.forward(&step.batch(), rows, state, ws)?;
        self.choose()
    }

    /// Runs the head over the last drafts of all rows that want another one. Returns whether there were any.
    fn extend_drafts(&mut self) -> l4_sampler::Result<bool> {
        let Self { rt, head, ws, state, requests, carried, step, sources, live, .. } = self;
        let (lists, max_len) = (&self.lists, self.max_len);
        step.clear();
        sources.clear();
        for live in live.iter_mut() {
            let row = std::mem::replace(&mut live.row, usize::MAX);
            let Some(last) = live.drafts.indices().next_back() else { continue };
            if live.drafts.is_full() || row == usize::MAX || live.at >= max_len {
                continue;
            }
            live.row = step.num_tokens();
            step.add(live.seq, live.at, [lists.token(last)], true);
            sources.push(row as u32);
            live.at += 1;
            if let Some(run) = requests[live.slot as usize].as_mut().and_then(|r| r.run.as_mut()) {
                run.stored = live.at;
            }
        }
        if step.num_tokens() == 0 {
            return Ok(false);
        }
        let rows = ws.hidden()?;
        let hidden = if sources.len() == rows.dims()[0] {
            Hidden::Previous
        } else {
            let n = sources.len();
            gather_rows(rt, rows, &*sources, carried.view_mut().narrow(0, 0, n)?)?;
            Hidden::Head(carried.view().narrow(0, 0, n)?)
        };
        head.forward(&step.batch(), hidden, state, ws)?;
        self.choose()?;
        Ok(true)
    }

    /// Appends a token of each row of logits to the drafts of its request.
    fn choose(&mut self) -> l4_sampler::Result<()> {
        let Self { head, ws, live, lists, chooser, requests, step, .. } = self;
        if !step.wants_logits() {
            return Ok(());
        }
        let due = live.iter().filter(|live| live.row != usize::MAX);
        let asked = due.filter_map(|live| {
            let request = requests[live.slot as usize].as_ref()?;
            Some((request.sampling.as_ref(), request.tokens.len() + live.drafts.len))
        });
        chooser.choose(ws.logits()?, asked)?;
        let due = live.iter_mut().filter(|live| live.row != usize::MAX);
        for (i, live) in due.enumerate() {
            let chosen = chooser.row(i);
            // `d2t` names a token of the model for each of the head's. A drawn draft without a name would be dropped
            // because of what it is, which would change the distribution.
            if head.target_ids().is_some() {
                chosen.rename(|id| head.target_id(id));
            }
            lists.append(&mut live.drafts, chosen);
        }
        Ok(())
    }

    /// Forgets the runs of all requests of this step, after an error that leaves them unknown.
    fn forget_step(&mut self, e: &l4_sampler::Error) {
        tracing::debug!("the draft head made no drafts: {e}");
        for i in 0..self.step.seqs().len() {
            self.evict(self.step.seqs()[i]);
        }
        self.live.clear();
    }
}

impl Drafter for EagleDrafter {
    fn begin(&mut self, slot: u32, prompt: &[u32], _: Option<&str>, max_new: usize) {
        self.end(slot);
        let index = slot as usize;
        if self.requests.len() <= index {
            self.requests.resize_with(index + 1, || None);
        }
        let room = prompt.len() + max_new.min(MAX_RESERVED_TOKENS);
        let mut tokens = Vec::with_capacity(room);
        tokens.extend_from_slice(prompt);
        self.requests[index] = Some(Request { tokens, run: None, sampling: None });
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

    fn read(&mut self, spans: &[HiddenSpan], hidden: &[TensorRef<'_>]) {
        self.sequences.tick();
        self.live.clear();
        self.lists.clear();
        self.step.clear();
        self.sources.clear();
        spans.iter().for_each(|span| self.enter(span));
        if self.step.num_tokens() == 0 {
            return;
        }
        // Too few free blocks: requests that do not run now have some.
        while let Err(e) = self.run(hidden) {
            match self.sequences.idle() {
                Some(seq) => self.evict(seq),
                None => return self.forget_step(&e),
            }
        }
    }

    fn propose(&mut self, rows: &[DraftRow], out: &mut Drafts) {
        loop {
            match self.extend_drafts() {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    self.forget_step(&e);
                    break;
                }
            }
        }
        let mut live = self.live.iter().peekable();
        for row in rows {
            if let Some(one) = live.next_if(|one| one.slot == row.slot) {
                self.lists.write(one.drafts.indices().take(row.most), out);
            }
            out.end_row();
        }
    }

    fn end(&mut self, slot: u32) {
        let run = self.request(slot).and_then(|request| request.run);
        if let Some(run) = run {
            self.evict(run.seq);
        }
        if let Some(request) = self.requests.get_mut(slot as usize) {
            *request = None;
        }
    }

    fn costs_time(&self) -> bool {
        true
    }
}
