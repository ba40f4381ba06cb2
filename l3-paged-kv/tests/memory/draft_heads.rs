//! An EAGLE head's keys and values in blocks: the bits that they give in one run of memory.

use crate::judge;
use crate::models::{fixture, load, runtime};
use l1_tensor::{Precision, Tensor};
use l2_model::draft_head::{EagleHead, EagleWorkspace, Hidden};
use l2_model::{Batch, ContiguousState, SequenceState, WorkspaceSpec};
use l3_paged_kv::{PagedOptions, PagedState};

const TOKENS: [u32; 9] = [7, 3, 9, 9, 1, 20, 4, 31, 2];
/// Rows of a target come first; these are made up.
const CHUNK: usize = 5;

/// Logits of the last row of the chunk, of drafts after it, and of drafts after a rollback.
fn logits(head: &EagleHead, rt: &l1_tensor::Runtime, mut state: impl SequenceState) -> Vec<f32> {
    let spec = WorkspaceSpec { max_tokens: 8, max_rows: 1, max_context: 16 };
    let mut ws = EagleWorkspace::new(rt, head, spec).unwrap();
    let h = head.config().hidden;
    let rows = (0..CHUNK * h).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>();
    let rows = Tensor::from_slice(&rows, &[CHUNK, h]).unwrap();
    let hidden = vec![rows.view(); head.taps().len()];
    let mut out = Vec::new();
    let mut step = |state: &mut dyn SequenceState, tokens: &[u32], hidden: Hidden| {
        let (from, n) = (state.len(0) as i32, tokens.len() as i32);
        let batch = Batch {
            tokens,
            positions: &(from..from + n).collect::<Vec<_>>(),
            cu_seqlens_q: &[0, n],
            state_slots: &[0],
            logit_rows: &[n as u32 - 1],
            ..Batch::default()
        };
        let logits = head.forward(&batch, hidden, state, &mut ws).unwrap();
        out.extend(logits.to_vec_f32().unwrap());
    };
    step(&mut state, &TOKENS[..CHUNK], Hidden::Target(&hidden));
    for len in [CHUNK, CHUNK + 1] {
        state.rollback(0, len).unwrap();
        for token in &TOKENS[CHUNK..] {
            step(&mut state, &[*token], Hidden::Previous);
        }
    }
    out
}

#[test]
fn an_eagle_head_over_blocks_has_the_bits_of_one_run_of_memory() {
    for precision in [Precision::F32, Precision::Bf16] {
        let rt = runtime(precision, 2);
        for (name, target) in [("eagle", "tiny-qwen2"), ("eagle3", "tiny-llama-untied")] {
            let path = fixture("draft-heads").join(name);
            let head = EagleHead::open(&rt, &path, &load(target, &rt)).unwrap();
            let dtype = rt.activation_dtype();
            let state = ContiguousState::new(head.config(), 1, 16, dtype).unwrap();
            let expected = logits(&head, &rt, state);
            for block_size in [1, 4, 16] {
                let options = PagedOptions::new(1, 16, block_size, dtype);
                let state = PagedState::new(head.config(), options).unwrap();
                let got = logits(&head, &rt, state);
                let vocab = head.draft_vocab();
                let what = format!("drafts of {name} in {precision}, blocks of {block_size}");
                judge::same_bits(&what, &[got.len() / vocab, vocab], &got, &expected);
            }
        }
    }
}
