//! Memory of activations, measured in the largest step.

use l2_model::{Batch, ContiguousState, Decoder, Workspace, WorkspaceSpec};

use super::Bytes;
use l1_tensor::Runtime;

/// Measures the peak size of activations, in bytes, in steps of a given size: runs one such step with
/// arbitrary tokens over a temporary state.
///
/// All activations are in a [`Workspace`], so the result is its size after the step, including buffers that grew during
/// the step. On a GPU the scratch memory between two kernels of one op is added, which stays allocated until the
/// process ends. With a `max_lora_rank`, the buffers of adapters of that rank are part of the workspace; their weights
/// are not counted, since they come and go.
///
/// # Errors
/// Errors of the step, above all too little memory.
pub fn peak_activation(
    decoder: &Decoder,
    rt: &Runtime,
    spec: WorkspaceSpec,
    max_lora_rank: Option<usize>,
) -> l2_model::Result<Bytes> {
    let config = decoder.config();
    let mut workspace = Workspace::new(rt, config, spec)?;
    if let Some(rank) = max_lora_rank {
        workspace.allow_adapters(rank)?;
    }
    // As many sequences as it takes for none to be longer than the context.
    let longest = spec.max_context.min(config.max_context).max(1);
    let tokens = vec![0; spec.max_tokens];
    let positions: Vec<i32> = (0..spec.max_tokens).map(|t| (t % longest) as i32).collect();
    let begins = (0..spec.max_tokens).step_by(longest);
    let cu_seqlens_q: Vec<i32> =
        begins.chain([spec.max_tokens]).map(|token| token as i32).collect();
    let state_slots: Vec<u32> = (0..cu_seqlens_q.len() as u32 - 1).collect();
    let rows = spec.max_rows.min(spec.max_tokens);
    let logit_rows: Vec<u32> = (0..rows as u32).collect();
    let batch = Batch {
        tokens: &tokens,
        positions: &positions,
        cu_seqlens_q: &cu_seqlens_q,
        state_slots: &state_slots,
        logit_rows: &logit_rows,
        ..Batch::default()
    };
    let len = longest.min(spec.max_tokens);
    let dtype = rt.activation_dtype();
    let slots = state_slots.len();
    let mut state = ContiguousState::new_on(rt.device(), config, slots, len, dtype)?;
    decoder.forward(&batch, &mut state, &mut workspace)?;
    let between = rt.gpu().map_or(0, |gpu| gpu.scratch_bytes());
    Ok(Bytes((workspace.bytes() + between) as u64))
}
