//! Drafts of Medusa heads: each guesses one position, from the model's last hidden row.

use l1_tensor::ops::gather_rows;
use l1_tensor::{DType, Runtime, Tensor, TensorRef};
use l2_model::draft_head::{MedusaHead, MedusaWorkspace};
use l4_sampler::draft::{DraftRow, Drafter, Drafts, HiddenSpan};

use super::SpeculationError;
use super::greedy::likeliest;

/// Drafter that runs Medusa heads.
pub(crate) struct MedusaDrafter {
    rt: Runtime,
    heads: MedusaHead,
    ws: MedusaWorkspace,
    /// f32 `[R, H]`: the last hidden row of each request that is drafted for.
    rows: Tensor,
    /// Number of tokens of each request, by the caller's slot; 0 for none.
    lens: Vec<usize>,
    /// Requests that are drafted for, and the indices of their last hidden rows.
    live: Vec<u32>,
    sources: Vec<u32>,
    /// The guess of each head for each of them, head after head.
    guesses: Vec<(u32, u8)>,
    chosen: Vec<u32>,
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
            lens: Vec::new(),
            live: Vec::with_capacity(seqs),
            sources: Vec::with_capacity(seqs),
            guesses: Vec::with_capacity(seqs * heads.heads()),
            chosen: Vec::with_capacity(seqs),
            heads,
        })
    }

    /// Runs the heads over the last hidden rows.
    fn run(&mut self, hidden: TensorRef<'_>) -> l2_model::Result<()> {
        let Self { rt, heads, ws, rows, sources, guesses, chosen, .. } = self;
        let n = sources.len();
        gather_rows(rt, hidden, &*sources, rows.view_mut().narrow(0, 0, n)?)?;
        heads.forward(rows.view().narrow(0, 0, n)?, ws)?;
        for head in 0..heads.heads() {
            likeliest(rt, ws.logits(head)?, chosen, |_, token, class| {
                guesses.push((token, class))
            })?;
        }
        Ok(())
    }
}

impl Drafter for MedusaDrafter {
    fn begin(&mut self, slot: u32, prompt: &[u32], _: Option<&str>, _: usize) {
        let slot = slot as usize;
        if self.lens.len() <= slot {
            self.lens.resize(slot + 1, 0);
        }
        self.lens[slot] = prompt.len();
    }

    fn extend(&mut self, slot: u32, tokens: &[u32]) {
        if let Some(len) = self.lens.get_mut(slot as usize).filter(|len| **len > 0) {
            *len += tokens.len();
        }
    }

    fn read(&mut self, spans: &[HiddenSpan], hidden: &[TensorRef<'_>]) {
        self.live.clear();
        self.sources.clear();
        self.guesses.clear();
        for HiddenSpan { slot, first, rows, most } in spans {
            let len = self.lens.get(*slot as usize).copied().unwrap_or(0);
            // The row of the last token but one: the token behind it has been sampled from it.
            if *most > 0 && !rows.is_empty() && first + rows.len() + 1 == len {
                self.live.push(*slot);
                self.sources.push(rows.end as u32 - 1);
            }
        }
        if let Some(hidden) = hidden.first().filter(|_| !self.live.is_empty())
            && let Err(e) = self.run(*hidden)
        {
            tracing::debug!("the draft heads made no drafts: {e}");
            self.live.clear();
        }
    }

    fn propose(&mut self, rows: &[DraftRow], out: &mut Drafts) {
        let mut live = self.live.iter().enumerate().peekable();
        for row in rows {
            if let Some((i, _)) = live.next_if(|(_, slot)| **slot == row.slot) {
                let own = self.guesses.iter().skip(i).step_by(self.live.len());
                own.take(row.most).for_each(|(token, class)| out.push(*token, *class));
            }
            out.end_row();
        }
    }

    fn end(&mut self, slot: u32) {
        if let Some(len) = self.lens.get_mut(slot as usize) {
            *len = 0;
        }
    }

    fn costs_time(&self) -> bool {
        true
    }
}
