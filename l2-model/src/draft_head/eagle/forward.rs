//! One step of an [`EagleHead`]. The layer is the decoder's code; here are its input, its ends and the order.

use l1_tensor::ops::{Epilogue, convert, embedding, gather_rows, linear};
use l1_tensor::{Runtime, Tensor, TensorMut, TensorRef};

use super::{EagleHead, EagleKind, EagleWorkspace, Hidden, InputNorms};
use crate::decoder::workspace::{first, first_mut, record};
use crate::decoder::{Decoder, stage, view};
use crate::draft_head::DraftHeadError;
use crate::{Batch, Result, SequenceState, Tap, Workspace};

/// The head's only layer.
const LAYER: usize = 0;

impl EagleHead {
    /// Runs one step and returns the logits of `batch.logit_rows`: f32 `[R, V_d]`, in the workspace, on the device it
    /// was made for. [`EagleHead::target_id`] translates their indices.
    ///
    /// Row `i` of the batch is a token of the *target's* vocabulary and the hidden row of the token before it, at that
    /// one's position. `state` holds the head's own keys and values, made for [`EagleHead::config`]. As with
    /// [`Decoder::forward`], sequences take part with one token or many, tokens become part of their sequences when the
    /// step succeeds, and the bits of a row do not depend on what else is in the batch.
    ///
    /// # Errors
    /// [`DraftHeadError::Hidden`] and [`DraftHeadError::Previous`] for hidden rows that do not fit;
    /// [`BatchError`](crate::BatchError) as [`Decoder::forward`]; whatever the ops report.
    pub fn forward<'w>(
        &self,
        batch: &Batch,
        hidden: Hidden<'_>,
        state: &mut dyn SequenceState,
        ws: &'w mut EagleWorkspace,
    ) -> Result<TensorRef<'w>> {
        self.check(batch, hidden, ws)?;
        stage(&self.config, batch, state, &mut ws.step)?;
        // A step that fails leaves no rows that another could continue.
        ws.rows = 0;
        self.run(batch, hidden, state, ws)?;
        state.commit(batch);
        ws.rows = batch.logit_rows.len();
        ws.logits()
    }

    /// Whether the hidden rows are one for each token, as wide as the head reads them.
    fn check(&self, batch: &Batch, hidden: Hidden, ws: &EagleWorkspace) -> Result<()> {
        let (tokens, h) = (batch.tokens.len(), self.config.hidden);
        let given = match hidden {
            Hidden::Target(rows) => rows,
            Hidden::Head(ref rows) => std::slice::from_ref(rows),
            Hidden::Previous if ws.rows == tokens => return Ok(()),
            Hidden::Previous => {
                return Err(DraftHeadError::Previous { tokens, rows: ws.rows }.into());
            }
        };
        let count = if matches!(hidden, Hidden::Target(_)) { self.taps.len() } else { 1 };
        if given.len() == count && given.iter().all(|rows| rows.dims() == [tokens, h]) {
            return Ok(());
        }
        let shapes = given.iter().map(|rows| format!("{:?}", rows.dims()));
        Err(DraftHeadError::Hidden {
            expected: format!("{count} of [{tokens}, {h}]"),
            got: format!("{}: {}", given.len(), shapes.collect::<Vec<_>>().join(", ")),
        }
        .into())
    }

    fn run(
        &self,
        batch: &Batch,
        hidden: Hidden,
        state: &mut dyn SequenceState,
        ws: &mut EagleWorkspace,
    ) -> Result<()> {
        let (t, r) = (batch.tokens.len(), batch.logit_rows.len());
        let rt = ws.step.rt.clone();
        match self.kind {
            EagleKind::Eagle1 => self.fuse_token_and_row(&rt, batch, hidden, ws)?,
            EagleKind::Eagle3 => self.fuse_rows(&rt, t, hidden, ws)?,
        }
        record(&mut ws.step.taps, &rt, Tap::Fused, first(&ws.step.residual, t)?)?;
        let (cos, sin) = (first_mut(&mut ws.step.cos, t)?, first_mut(&mut ws.step.sin, t)?);
        self.rope.angles(&rt, ws.step.staged.positions(batch)?, cos, sin)?;

        self.attend(&rt, batch, state, ws)?;
        let ws = &mut ws.step;
        self.mlp_norm.apply(&rt, first(&ws.residual, t)?, first_mut(&mut ws.normed, t)?)?;
        Decoder::branch(&rt, LAYER, &self.mlp, 1.0, batch, state, ws)?;
        record(&mut ws.taps, &rt, Tap::Residual(LAYER), first(&ws.residual, t)?)?;

        if let Some(norm) = self.final_norm.as_ref().filter(|_| ws.wants(Tap::FinalNorm)) {
            norm.apply(&rt, first(&ws.residual, t)?, first_mut(&mut ws.branch, t)?)?;
            record(&mut ws.taps, &rt, Tap::FinalNorm, first(&ws.branch, t)?)?;
        }
        let rows = first_mut(&mut ws.rows, r)?;
        gather_rows(&rt, first(&ws.residual, t)?, ws.staged.logit_rows(batch)?, rows)?;
        let (rows, normed) = (first(&ws.rows, r)?, first_mut(&mut ws.normed_rows, r)?);
        match &self.final_norm {
            Some(norm) => norm.apply(&rt, rows, normed)?,
            None => convert(&rt, rows, normed)?,
        }
        let logits = first_mut(&mut ws.logits, r)?;
        linear(&rt, first(&ws.normed_rows, r)?, &self.lm_head, None, Epilogue::Store, logits)?;
        record(&mut ws.taps, &rt, Tap::Logits, first(&ws.logits, r)?)
    }

    /// EAGLE-1: `residual = fc [embedding, hidden] + bias`.
    fn fuse_token_and_row(
        &self,
        rt: &Runtime,
        batch: &Batch,
        hidden: Hidden,
        ws: &mut EagleWorkspace,
    ) -> Result<()> {
        let (t, h) = (batch.tokens.len(), self.config.hidden);
        let EagleWorkspace { step, fc_input, .. } = ws;
        let tokens = step.staged.tokens(batch)?;
        embedding(rt, &self.embedding, tokens, first_mut(&mut step.residual, t)?)?;
        let rows = match hidden {
            Hidden::Target([rows, ..]) => *rows,
            Hidden::Head(rows) => rows,
            Hidden::Target([]) | Hidden::Previous => first(&step.rows, t)?,
        };
        convert(rt, first(&step.residual, t)?, columns(fc_input, t, 0, h)?)?;
        convert(rt, rows, columns(fc_input, t, h, h)?)?;
        self.fc(rt, t, ws)
    }

    /// EAGLE-3: `residual = fc [h1, h2, h3]` of the target's rows, or the head's own rows as they are.
    fn fuse_rows(
        &self,
        rt: &Runtime,
        t: usize,
        hidden: Hidden,
        ws: &mut EagleWorkspace,
    ) -> Result<()> {
        let (h, Workspace { rows: previous, residual, .. }) = (self.config.hidden, &mut ws.step);
        match hidden {
            Hidden::Target(all) => {
                for (i, rows) in all.iter().enumerate() {
                    convert(rt, *rows, columns(&mut ws.fc_input, t, i * h, h)?)?;
                }
                self.fc(rt, t, ws)
            }
            Hidden::Head(rows) => Ok(convert(rt, rows, first_mut(residual, t)?)?),
            Hidden::Previous => Ok(convert(rt, first(previous, t)?, first_mut(residual, t)?)?),
        }
    }

    fn fc(&self, rt: &Runtime, t: usize, ws: &mut EagleWorkspace) -> Result<()> {
        let (x, out) = (first(&ws.fc_input, t)?, first_mut(&mut ws.step.residual, t)?);
        Ok(linear(rt, x, &self.fc, view(&self.fc_bias), Epilogue::Store, out)?)
    }

    /// Adds attention to the stream. Its input is the stream itself, or both normed halves.
    fn attend(
        &self,
        rt: &Runtime,
        batch: &Batch,
        state: &mut dyn SequenceState,
        ws: &mut EagleWorkspace,
    ) -> Result<()> {
        let t = batch.tokens.len();
        let (Some(norms), Some(wide)) = (&self.input_norms, &mut ws.wide) else {
            let ws = &mut ws.step;
            convert(rt, first(&ws.residual, t)?, first_mut(&mut ws.normed, t)?)?;
            return Decoder::branch(rt, LAYER, &self.attention, 1.0, batch, state, ws);
        };
        // The branch reads `normed`, which is as wide as the stream: lend it the wide rows for this call.
        std::mem::swap(&mut ws.step.normed, wide);
        let added = self.norm_halves(rt, norms, batch, &mut ws.step).and_then(|()| {
            Decoder::branch(rt, LAYER, &self.attention, 1.0, batch, state, &mut ws.step)
        });
        std::mem::swap(&mut ws.step.normed, wide);
        added
    }

    /// EAGLE-3: `normed = [norm(embedding), norm(residual)]`.
    fn norm_halves(
        &self,
        rt: &Runtime,
        norms: &InputNorms,
        batch: &Batch,
        ws: &mut Workspace,
    ) -> Result<()> {
        let (t, h) = (batch.tokens.len(), self.config.hidden);
        let tokens = ws.staged.tokens(batch)?;
        embedding(rt, &self.embedding, tokens, first_mut(&mut ws.branch, t)?)?;
        let row = columns(&mut ws.normed, t, 0, h)?;
        norms.embedding.apply(rt, first(&ws.branch, t)?, row)?;
        if norms.before_residual {
            norms.hidden.apply(rt, first(&ws.residual, t)?, first_mut(&mut ws.branch, t)?)?;
            convert(rt, first(&ws.branch, t)?, first_mut(&mut ws.residual, t)?)?;
            let row = columns(&mut ws.normed, t, h, h)?;
            return Ok(convert(rt, first(&ws.residual, t)?, row)?);
        }
        let row = columns(&mut ws.normed, t, h, h)?;
        norms.hidden.apply(rt, first(&ws.residual, t)?, row)
    }
}

/// Columns `from..from + n` of the first `t` rows of a buffer, to write.
fn columns(buffer: &mut Tensor, t: usize, from: usize, n: usize) -> Result<TensorMut<'_>> {
    Ok(first_mut(buffer, t)?.narrow(1, from, n)?)
}
