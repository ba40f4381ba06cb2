//! Logits of one sequence that is fed in one step.

// Every test binary uses its own part of this.
#![allow(dead_code)]

use l1_tensor::Runtime;
use l2_model::{Batch, ContiguousState, Decoder, Workspace, WorkspaceSpec};

/// Logits after every token.
pub fn all_logits(rt: &Runtime, decoder: &Decoder, tokens: &[u32]) -> Vec<f32> {
    let rows: Vec<u32> = (0..tokens.len() as u32).collect();
    logits_of(rt, decoder, tokens, &rows)
}

/// Logits after the tokens of these indices, in this order.
pub fn logits_of(rt: &Runtime, decoder: &Decoder, tokens: &[u32], rows: &[u32]) -> Vec<f32> {
    let t = tokens.len();
    let spec = WorkspaceSpec { max_tokens: t, max_rows: t, max_context: t };
    let mut ws = Workspace::new(rt, decoder.config(), spec).unwrap();
    let mut state = ContiguousState::new(decoder.config(), 1, t, rt.activation_dtype()).unwrap();
    let positions: Vec<i32> = (0..t as i32).collect();
    let batch = Batch {
        tokens,
        positions: &positions,
        cu_seqlens_q: &[0, t as i32],
        state_slots: &[0],
        logit_rows: rows,
        ..Batch::default()
    };
    decoder.forward(&batch, &mut state, &mut ws).unwrap().to_vec_f32().unwrap()
}
