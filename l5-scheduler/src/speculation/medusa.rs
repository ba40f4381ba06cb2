//! Drafts of Medusa heads: each guesses one position, from the model's last hidden row.

use l1_tensor::ops::gather_rows;
use l1_tensor::{DType, Runtime, Tensor, TensorRef};
use l2_model::draft_head::{MedusaHead, MedusaWorkspace};
use l4_sampler::draft::{DraftRow, DraftSampling, Drafter, Drafts, HiddenSpan};

use super::SpeculationError;
use super::chooser::{Chooser, DraftList};

/// Drafter that runs Medusa heads.
pub(crate) struct MedusaDrafter {
    rt: Runtime,
    heads: MedusaHead,
    ws: MedusaWorkspace,
    /// f32 `[R, H]`: the last hidden row of each request that is drafted for.
    rows: Tensor,
    /// Requests by the caller's slot.
    requests: Vec<Request>,
    /// Requests that are drafted for, and the indices of their last hidden rows.
    live: Vec<u32>,
    sources: Vec<u32>,
    /// The guess of each head for each of them, head after head.
    guesses: DraftList,
    chooser: Chooser,
}

/// A request.
#[derive(Default)]
struct Request {
    /// Number of its tokens; 0: the slot has no request.
    len: usize,
    /// How its drafts are drawn. `None`: they are the likeliest tokens.
    sampling: Option<DraftSampling>,
}

impl MedusaDrafter {
    /// Creates a drafter for at most `seqs` requests in a step.
    ///
    /// # Errors
    /// [`SpeculationError::Head`]: too little memory.
    pub(crate) fn new(
        rt: &Runtime,
        heads: MedusaHead,
        hidden: usize,
        seqs: usize,
    ) -> Result<Self, SpeculationError> {
        let failed = |e: &dyn std::fmt::Display| SpeculationError::Head(e.to_string());
        let ws = MedusaWorkspace::new(rt, &heads, seqs).map_err(|e| failed(&e))?;
        let rows = Tensor::zeros(&[seqs, hidden], DType::F32, rt.device());
        Ok(Self {
            rt: rt.clone(),
            ws,
            rows: rows.map_err(|e| failed(&e))?,
            requests: Vec::new(),
            live: Vec::with_capacity(seqs),
            sources: Vec::with_capacity(seqs),
            guesses: DraftList::default(),
            chooser: Chooser::new(rt, seqs),
            heads,
        })
    }

    fn request(&mut self, slot: u32) -> Option<&mut Request> {
        self.requests.get_mut(slot as usize).filter(|request| request.len > 0)
    }

    /// Runs the heads over the last hidden rows, and takes the guesses of the first `most`.
    fn run(&mut self, hidden: TensorRef<'_>, most: usize) -> l4_sampler::Result<()> {
        let Self { rt, heads, ws, rows, requests, live, sources, guesses, chooser } = self;
        let n = sources.len();
        gather_rows(rt, hidden, &*sources, rows.view_mut().narrow(0, 0, n)?)?;
        heads.forward(rows.view().narrow(0, 0, n)?, ws)?;
        for head in 0..heads.heads().min(most) {
            let asked = live.iter().map(|slot| {
                let Request { len, sampling } = &requests[*slot as usize];
                (sampling.as_ref(), len + head)
            });
            chooser.choose(ws.logits(head)?, asked)?;
            let first = guesses.len();
            guesses.add(n);
            (0..n).for_each(|row| guesses.put(first + row, chooser.row(row)));
        }
        Ok(())
    }
}

impl Drafter for MedusaDrafter {
    fn begin(&mut self, slot: u32, prompt: &[u32], _: Option<&str>, _: usize) {
        let slot = slot as usize;
        if self.requests.len() <= slot {
            self.requests.resize_with(slot + 1, Request::default);
        }
        self.requests[slot] = Request { len: prompt.len(), sampling: None };
    }

    fn set_sampling(&mut self, slot: u32, how: DraftSampling) {
        if let Some(request) = self.request(slot) {
            request.sampling = Some(how);
        }
    }

    fn extend(&mut self, slot: u32, tokens: &[u32]) {
        if let Some(request) = self.request(slot) {
            request.len += tokens.len();
        }
    }

    fn read(&mut self, spans: &[HiddenSpan], hidden: &[TensorRef<'_>]) {
        self.live.clear();
        self.sources.clear();
        self.guesses.clear();
        let mut longest = 0;
        for HiddenSpan { slot, first, rows, most } in spans {
            let len = self.requests.get(*slot as usize).map_or(0, |request| request.len);
            // The row of the last token but one: the token behind it has been sampled from it.
            if *most > 0 && !rows.is_empty() && first + rows.len() + 1 == len {
                longest = longest.max(*most);
                self.live.push(*slot);
                self.sources.push(rows.end as u32 - 1);
            }
        }
        if let Some(hidden) = hidden.first().filter(|_| !self.live.is_empty())
            && let Err(e) = self.run(*hidden, longest)
        {
            tracing::debug!("the draft heads made no drafts: {e}");
            self.live.clear();
        }
    }

    fn propose(&mut self, rows: &[DraftRow], out: &mut Drafts) {
        let mut live = self.live.iter().enumerate().peekable();
        for row in rows {
            if let Some((i, _)) = live.next_if(|(_, slot)| **slot == row.slot) {
                let own = (i..self.guesses.len()).step_by(self.live.len());
                self.guesses.write(own.take(row.most), out);
            }
            out.end_row();
        }
    }

    fn end(&mut self, slot: u32) {
        if let Some(request) = self.request(slot) {
            *request = Request::default();
        }
    }

    fn costs_time(&self) -> bool {
        true
    }
}
