//! A steady decode step allocates nothing: counted, with an allocator that counts.

#[path = "../../l1-tensor/tests/support/counting.rs"]
mod counting;
#[path = "../../l1-tensor/tests/support/runtime.rs"]
mod runtime;

use std::path::Path;
use std::sync::Arc;

use counting::fewest_allocations;
use l1_tensor::{Precision, Runtime, Tensor};
use l2_model::adapter::LoraAdapter;
use l2_model::draft_head::{DraftHead, EagleWorkspace, Hidden, MedusaWorkspace};
use l2_model::{
    Batch, ContiguousState, Decoder, ModelFiles, SequenceState, Session, Workspace, WorkspaceSpec,
};
use runtime::runtime;

fn decoder(rt: &Runtime, name: &str) -> Decoder {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name);
    ModelFiles::open(&path).unwrap().decoder(rt).unwrap()
}

#[test]
fn a_steady_decode_step_allocates_nothing() {
    for (name, precision, threads) in [
        ("tiny-llama", Precision::F32, 1),
        ("tiny-llama", Precision::Bf16, 2),
        ("tiny-mistral", Precision::Bf16, 1),
        ("tiny-qwen2", Precision::F32, 2),
        ("tiny-qwen3", Precision::Bf16, 2),
    ] {
        let rt = runtime(precision, threads);
        let decoder = decoder(&rt, name);
        let mut session = Session::new(&decoder, &rt, 64).unwrap();
        session.feed(&[1, 2, 3]).unwrap();
        session.feed(&[4]).unwrap();
        let made = fewest_allocations(5, || {
            session.rollback(4).unwrap();
            for token in 5..40 {
                session.feed(&[token]).unwrap();
            }
        });
        assert_eq!(made, 0, "{name}, {precision}, {threads} threads");
    }
}

/// Two adapters and none in one step, one of them of gate and up.
#[test]
fn a_steady_step_with_adapters_allocates_nothing() {
    for (precision, threads) in [(Precision::F32, 1), (Precision::Bf16, 2)] {
        let rt = runtime(precision, threads);
        let decoder = decoder(&rt, "tiny-llama");
        let spec = WorkspaceSpec { max_tokens: 3, max_rows: 3, max_context: 64 };
        let mut ws = Workspace::new(&rt, decoder.config(), spec).unwrap();
        ws.allow_adapters(8).unwrap();
        for (index, name) in ["tiny-llama-all", "tiny-llama-rslora"].into_iter().enumerate() {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/adapters").join(name);
            let adapter = LoraAdapter::open(&rt, &dir, decoder.config(), 8).unwrap();
            ws.set_adapter(index, Some(Arc::new(adapter))).unwrap();
        }
        let dtype = rt.activation_dtype();
        let mut state = ContiguousState::new(decoder.config(), 3, 64, dtype).unwrap();
        let made = fewest_allocations(5, || {
            (0..3).for_each(|slot| state.drop_sequence(slot));
            for at in 0..20 {
                let batch = Batch {
                    tokens: &[1, 2, 3],
                    positions: &[at; 3],
                    cu_seqlens_q: &[0, 1, 2, 3],
                    state_slots: &[0, 1, 2],
                    adapters: &[0, -1, 1],
                    logit_rows: &[0, 1, 2],
                    ..Batch::default()
                };
                decoder.forward(&batch, &mut state, &mut ws).unwrap();
            }
        });
        assert_eq!(made, 0, "{precision}, {threads} threads");
    }
}

/// Rows of the target at first, then drafts from the head's own rows; and Medusa, all rows at once.
#[test]
fn a_steady_draft_step_allocates_nothing() {
    for (name, target, precision, threads) in [
        ("eagle", "tiny-qwen2", Precision::F32, 1),
        ("eagle3", "tiny-llama-untied", Precision::Bf16, 2),
        ("medusa", "tiny-llama-linear", Precision::Bf16, 2),
    ] {
        let rt = runtime(precision, threads);
        let target = decoder(&rt, target);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/draft-heads").join(name);
        let rows = vec![0.1f32; 2 * target.config().hidden];
        let rows = Tensor::from_slice(&rows, &[2, target.config().hidden]).unwrap();
        let made = match DraftHead::open(&rt, &path, &target).unwrap() {
            DraftHead::Eagle(head) => {
                let spec = WorkspaceSpec { max_tokens: 2, max_rows: 2, max_context: 16 };
                let mut ws = EagleWorkspace::new(&rt, &head, spec).unwrap();
                let dtype = rt.activation_dtype();
                let mut state = ContiguousState::new(head.config(), 1, 16, dtype).unwrap();
                let hidden = [rows.view(); 3];
                let hidden = &hidden[..head.taps().len()];
                fewest_allocations(5, || {
                    state.drop_sequence(0);
                    let chunk = Batch {
                        tokens: &[5, 6],
                        positions: &[0, 1],
                        cu_seqlens_q: &[0, 2],
                        state_slots: &[0],
                        logit_rows: &[1],
                        ..Batch::default()
                    };
                    head.forward(&chunk, Hidden::Target(hidden), &mut state, &mut ws).unwrap();
                    for i in 2..12 {
                        let draft = Batch {
                            tokens: &[i],
                            positions: &[i as i32],
                            cu_seqlens_q: &[0, 1],
                            logit_rows: &[0],
                            ..chunk
                        };
                        head.forward(&draft, Hidden::Previous, &mut state, &mut ws).unwrap();
                    }
                })
            }
            DraftHead::Medusa(medusa) => {
                let mut ws = MedusaWorkspace::new(&rt, &medusa, 2).unwrap();
                fewest_allocations(5, || medusa.forward(rows.view(), &mut ws).unwrap())
            }
        };
        assert_eq!(made, 0, "{name}, {precision}, {threads} threads");
    }
}
