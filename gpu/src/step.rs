//! Steps of a model without a scheduler: the benchmark decides what a step contains.

use std::sync::Arc;

use anyhow::{Result, ensure};
use kernels::Graph;
use l1_tensor::Runtime;
use l2_model::{Batch, Decoder, SequenceState, Workspace, WorkspaceSpec};
use l3_paged_kv::{BlockTable, ForwardMeta, PagedKv, StepState};

/// Maximum sizes of steps and sequences.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Maximum number of sequences.
    pub sequences: usize,
    /// Maximum number of tokens of a sequence.
    pub context: usize,
    /// Maximum number of tokens of a step.
    pub tokens: usize,
    /// Maximum number of rows of logits of a step.
    pub rows: usize,
    /// Number of tokens of a block.
    pub block_size: usize,
}

/// A model with memory for some sequences, each with its own blocks. Keys that were never computed are zeros; the
/// duration of a step does not depend on their values.
pub struct Steps {
    /// Captured step. First, because fields are dropped in their order, and the graph holds addresses of the others.
    graph: Option<Graph>,
    decoder: Arc<Decoder>,
    ws: Workspace,
    kv: PagedKv,
    meta: ForwardMeta,
    tables: Vec<BlockTable>,
    tokens: Vec<u32>,
    slots: Vec<u32>,
    logit_rows: Vec<u32>,
    /// Whether launches are sized for the capacity instead of this step's lengths.
    fixed: bool,
}

impl Steps {
    /// Allocates memory for steps of a model.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(rt: &Runtime, decoder: &Arc<Decoder>, capacity: Capacity) -> Result<Self> {
        let Capacity { sequences, context, tokens, rows, block_size } = capacity;
        let each = context.div_ceil(block_size);
        let spec = WorkspaceSpec { max_tokens: tokens, max_rows: rows, max_context: context };
        let config = decoder.config();
        let blocks = each * sequences + 1;
        let dtype = rt.activation_dtype();
        // Neighbours in a table are not neighbours in memory. Block 0 stays empty, as in a pool.
        let table = |s: usize| {
            let blocks: Vec<u32> = (0..each).map(|i| (1 + i * sequences + s) as u32).collect();
            BlockTable::from_blocks(block_size, &blocks)
        };
        Ok(Self {
            graph: None,
            decoder: Arc::clone(decoder),
            ws: Workspace::new(rt, config, spec)?,
            kv: PagedKv::new_on(rt.device(), config, blocks, block_size, dtype)?,
            meta: ForwardMeta::new(tokens, sequences, each, block_size),
            tables: (0..sequences).map(table).collect(),
            tokens: Vec::with_capacity(tokens),
            slots: Vec::with_capacity(sequences),
            logit_rows: Vec::with_capacity(rows),
            fixed: false,
        })
    }

    /// Sets the next step: for each of its sequences the index, the number of computed tokens, and the new tokens.
    /// `all`: whether logits are computed for every token; if not, only for the last of each sequence.
    ///
    /// # Errors
    /// The step exceeds the maximum sizes.
    pub fn set(&mut self, parts: &[(usize, usize, &[u32])], all: bool) -> Result<()> {
        self.meta.clear();
        self.tokens.clear();
        self.slots.clear();
        self.logit_rows.clear();
        for (sequence, computed, tokens) in parts {
            let table = self.tables.get(*sequence);
            let Some(table) = table else { anyhow::bail!("there is no sequence {sequence}") };
            self.meta.push(table, *computed, tokens.len())?;
            let first = self.tokens.len();
            self.tokens.extend_from_slice(tokens);
            self.slots.push(*sequence as u32);
            let end = self.tokens.len();
            let wanted = if all { first..end } else { end.saturating_sub(1)..end };
            self.logit_rows.extend(wanted.map(|row| row as u32));
        }
        Ok(())
    }

    /// Pads the step to as many sequences as it has tokens, as an engine does before it replays a step with drafts.
    ///
    /// # Errors
    /// The step exceeds the maximum sizes.
    pub fn pad_sequences(&mut self) -> Result<()> {
        let width = self.tokens.len();
        self.meta.pad_to_width(width)?;
        let missing = width - self.slots.len();
        // Seats of no sequence.
        self.slots.extend((width as u32..).take(missing));
        Ok(())
    }

    /// Enqueues the step, launch by launch. Does not wait.
    ///
    /// # Errors
    /// Errors of the decoder.
    pub fn eager(&mut self) -> Result<()> {
        self.fixed = false;
        self.with(true, |decoder, batch, state, ws| {
            decoder.run(batch, state, ws)?;
            decoder.finish(batch, state, ws).map(drop)
        })
    }

    /// Copies the step's arrays to the device.
    ///
    /// # Errors
    /// Errors of the decoder.
    pub fn stage(&mut self) -> Result<()> {
        self.with(true, |_, _, _, _| Ok(()))
    }

    /// Captures this step, after it was run once. Later steps of the same shape can then be replayed.
    ///
    /// # Errors
    /// Errors of the decoder or the device; a CPU cannot capture.
    pub fn capture(&mut self) -> Result<()> {
        let gpu = self.ws.runtime().gpu().cloned();
        let Some(gpu) = gpu else { anyhow::bail!("a CPU records nothing") };
        self.fixed = true;
        self.graph = None;
        self.with(true, |decoder, batch, state, ws| decoder.run(batch, state, ws))?;
        gpu.synchronize()?;
        let mut graph = None;
        self.with(false, |decoder, batch, state, ws| {
            graph = Some(Graph::capture(&gpu, || decoder.run(batch, state, ws))?);
            Ok(())
        })?;
        self.graph = graph;
        Ok(())
    }

    /// Enqueues the captured step, with the arrays that were staged last. Does not wait.
    ///
    /// # Errors
    /// No step was captured; errors of the driver.
    pub fn replay(&mut self) -> Result<()> {
        let Some(graph) = &mut self.graph else { anyhow::bail!("nothing was recorded") };
        // SAFETY: the workspace, the cache and the weights are this value's, and outlive the graph.
        Ok(unsafe { graph.replay() }?)
    }

    /// Returns the requested rows of logits of the last step. Waits for the device.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn logits(&self) -> Result<Vec<f32>> {
        Ok(self.ws.logits(self.logit_rows.len())?.to_vec_f32()?)
    }

    /// Runs the step that was set, and returns its logits.
    ///
    /// # Errors
    /// Errors of the decoder.
    pub fn run(&mut self, parts: &[(usize, usize, &[u32])], all: bool) -> Result<Vec<f32>> {
        self.set(parts, all)?;
        self.eager()?;
        let logits = self.logits()?;
        ensure!(logits.iter().all(|x| x.is_finite()), "a logit is not a finite number");
        Ok(logits)
    }

    fn with(
        &mut self,
        stage: bool,
        work: impl FnOnce(
            &Decoder,
            &Batch<'_>,
            &mut dyn SequenceState,
            &mut Workspace,
        ) -> l2_model::Result<()>,
    ) -> Result<()> {
        let Self { decoder, ws, kv, meta, tokens, slots, logit_rows, fixed, .. } = self;
        let batch = Batch {
            tokens,
            positions: meta.positions(),
            cu_seqlens_q: meta.cu_seqlens_q(),
            state_slots: slots,
            logit_rows,
            ..Batch::default()
        };
        let mut state = StepState { kv, meta, captured: *fixed };
        if stage {
            decoder.stage(&batch, &mut state, ws)?;
        }
        Ok(work(decoder, &batch, &mut state, ws)?)
    }
}
