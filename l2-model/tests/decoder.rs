//! The decoder's own behaviour: branches, batches that cannot be, state, and the tool that names
//! the first wrong layer.

mod checkpoint_support;
mod judge;

use checkpoint_support::{damaged, fixture};
use l1_tensor::{
    DType, Device, DeviceRequest, Precision, PrecisionRequest, Runtime, RuntimeOptions,
};
use l2_model::compare::compare;
use l2_model::{
    Batch, BatchError, BranchMode, ContiguousState, Decoder, Error, ModelConfig, ModelFiles, Norm,
    Op, SequenceState, Session, Tap, Workspace, WorkspaceSpec,
};

fn runtime() -> Runtime {
    Runtime::new(RuntimeOptions {
        device: DeviceRequest::Exactly(Device::Cpu),
        precision: PrecisionRequest::Exactly(Precision::F32),
        threads: Some(1),
        ..Default::default()
    })
    .unwrap()
}

/// A tiny model whose config was changed after it was read.
fn changed(name: &str, change: impl FnOnce(&mut ModelConfig)) -> Decoder {
    let files = ModelFiles::open(&fixture(name)).unwrap();
    let mut config = files.config().clone();
    change(&mut config);
    Decoder::load(&runtime(), files.checkpoint(), config).unwrap()
}

const TOKENS: [u32; 7] = [5, 17, 100, 3, 64, 200, 9];

fn tapped(decoder: &Decoder, taps: &[Tap]) -> Vec<Vec<f32>> {
    let rt = runtime();
    let spec = WorkspaceSpec { max_tokens: 8, max_rows: 8, max_context: 8 };
    let mut ws = Workspace::new(&rt, decoder.config(), spec).unwrap();
    let mut state = ContiguousState::new(decoder.config(), 1, 8, DType::F32).unwrap();
    let batch = Batch {
        tokens: &TOKENS,
        positions: &[0, 1, 2, 3, 4, 5, 6],
        cu_seqlens_q: &[0, 7],
        state_slots: &[0],
        logit_rows: &[6],
        taps,
        ..Batch::default()
    };
    decoder.forward(&batch, &mut state, &mut ws).unwrap();
    taps.iter().map(|tap| ws.tapped(*tap).unwrap().to_vec_f32().unwrap()).collect()
}

#[test]
fn a_parallel_branch_reads_the_stream_as_the_layer_found_it() {
    let taps = [Tap::Embed, Tap::Attn(0), Tap::Mlp(0), Tap::Residual(0)];
    let usual = tapped(&changed("tiny-llama", |_| {}), &taps);
    let swapped = |mode| {
        changed("tiny-llama", |config| {
            config.layers[0].branches.swap(0, 1);
            config.layers[0].branches[1].mode = mode;
        })
    };
    // Attention second but parallel: it sees the embedding, as it does when it comes first.
    let parallel = tapped(&swapped(BranchMode::Parallel), &taps);
    let dims = [TOKENS.len(), usual[1].len() / TOKENS.len()];
    let what = "layers.0.attn of tiny-llama, parallel and second, against its place as the first";
    judge::same_bits(what, &dims, &parallel[1], &usual[1]);
    let sequential = tapped(&swapped(BranchMode::Sequential), &taps);
    assert_ne!(sequential[1], usual[1], "attention after the MLP reads another stream");
    let sum: Vec<f32> = (0..dims.iter().product())
        .map(|i| parallel[0][i] + parallel[2][i] + parallel[1][i])
        .collect();
    let what = "layers.0.residual of tiny-llama, against embed + mlp + attn";
    judge::same_bits(what, &dims, &parallel[3], &sum);
}

#[test]
fn a_scaled_branch_is_multiplied_before_it_joins_the_stream() {
    let taps = [Tap::Embed, Tap::Attn(0), Tap::Mlp(0), Tap::Residual(0)];
    let halved = changed("tiny-llama", |c| c.layers[0].branches[0].scale = 0.5);
    let t = tapped(&halved, &taps);
    let sum: Vec<f32> = (0..t[0].len()).map(|i| t[0][i] + 0.5 * t[1][i] + t[2][i]).collect();
    let dims = [TOKENS.len(), sum.len() / TOKENS.len()];
    let what = "layers.0.residual of tiny-llama, against embed + attn / 2 + mlp";
    judge::same_bits(what, &dims, &t[3], &sum);
}

#[test]
fn looking_at_a_tap_changes_no_bit() {
    let decoder = changed("tiny-qwen3", |_| {});
    let alone = tapped(&decoder, &[Tap::Logits]);
    let all = tapped(&decoder, &Tap::all(decoder.config().layers.len()));
    let what = "logits of tiny-qwen3 with every tap, against those with none";
    judge::same_bits(what, &[1, alone[0].len()], all.last().unwrap(), &alone[0]);
}

#[test]
fn batches_that_cannot_be_are_refused_and_change_nothing() {
    let rt = runtime();
    let decoder = changed("tiny-llama", |_| {});
    let spec = WorkspaceSpec { max_tokens: 4, max_rows: 1, max_context: 6 };
    let mut ws = Workspace::new(&rt, decoder.config(), spec).unwrap();
    let mut state = ContiguousState::new(decoder.config(), 2, 6, DType::F32).unwrap();
    let good = Batch {
        tokens: &[1, 2],
        positions: &[0, 1],
        cu_seqlens_q: &[0, 2],
        state_slots: &[0],
        logit_rows: &[1],
        ..Batch::default()
    };
    let mut refused = |batch: Batch, state: &mut ContiguousState| {
        let error = decoder.forward(&batch, state, &mut ws).err();
        error.unwrap_or_else(|| panic!("{batch:?} ran")).to_string()
    };
    let vocab = decoder.config().vocab as u32;
    for (batch, word) in [
        (Batch { tokens: &[1, vocab], ..good }, "out of range"),
        (Batch { positions: &[0], ..good }, "positions"),
        (Batch { positions: &[1, 2], ..good }, "position"),
        (Batch { positions: &[-1, 0], ..good }, "position -1"),
        (Batch { cu_seqlens_q: &[0, 3], ..good }, "cu_seqlens_q"),
        (Batch { cu_seqlens_q: &[0], ..good }, "offsets"),
        (Batch { cu_seqlens_q: &[0, -1], ..good }, "cu_seqlens_q"),
        (Batch { state_slots: &[2], ..good }, "state slot 2"),
        (Batch { logit_rows: &[2], ..good }, "logit row 2"),
        (Batch { logit_rows: &[0, 1], ..good }, "2 rows"),
        (Batch { adapters: &[0], ..good }, "adapters"),
        (
            Batch {
                tokens: &[1, 2],
                positions: &[0, 0],
                cu_seqlens_q: &[0, 1, 2],
                state_slots: &[1, 1],
                ..good
            },
            "twice",
        ),
        (
            Batch { tokens: &[1; 5], positions: &[0, 1, 2, 3, 4], cu_seqlens_q: &[0, 5], ..good },
            "split the step",
        ),
    ] {
        let message = refused(batch, &mut state);
        assert!(message.contains(word), "`{message}` should speak of `{word}`");
        assert_eq!((state.len(0), state.len(1)), (0, 0));
    }
}

#[test]
fn a_session_is_as_before_after_a_feed_that_fails() {
    let rt = runtime();
    let decoder = changed("tiny-llama", |_| {});
    let mut session = Session::new(&decoder, &rt, 10).unwrap();
    assert!(matches!(session.feed(&[]), Err(Error::EmptyPrompt)));
    let before = judge::works("feeding seven tokens", session.feed(&TOKENS));
    let before = before.to_vec_f32().unwrap();
    assert!(matches!(session.feed(&[1; 4]), Err(Error::PromptTooLong { tokens: 11, .. })));
    let bad = session.feed(&[1, 9999]).err().unwrap();
    assert!(matches!(bad, Error::Batch(BatchError::TokenOutOfRange { id: 9999, .. })), "{bad}");
    assert_eq!(session.tokens(), TOKENS, "the tokens of the session after a feed that failed");
    session.rollback(6).unwrap();
    let after = session.feed(&TOKENS[6..]).unwrap().to_vec_f32().unwrap();
    let what = "logits of tiny-llama in f32, the last token fed again after a feed that failed";
    judge::same_bits(what, &[1, before.len()], &after, &before);
    assert!(session.rollback(8).is_err(), "there are only seven tokens");
}

#[test]
fn state_bytes_are_those_of_the_tiles_in_use() {
    let rt = runtime();
    let decoder = changed("tiny-llama", |_| {});
    let mut session = Session::new(&decoder, &rt, 40).unwrap();
    assert_eq!(session.state_bytes(), 0);
    session.feed(&[1; 17]).unwrap();
    // 3 layers, keys and values, 2 KV heads of 16, two tiles of 16 tokens, 4 bytes.
    assert_eq!(session.state_bytes(), 3 * 2 * 2 * 16 * 32 * 4);
}

#[test]
fn a_snapshot_of_another_model_is_refused() {
    let llama = changed("tiny-llama", |_| {});
    let qwen = changed("tiny-qwen3", |_| {});
    let from = ContiguousState::new(llama.config(), 1, 16, DType::F32).unwrap();
    let mut to = ContiguousState::new(qwen.config(), 1, 16, DType::F32).unwrap();
    let snapshot = from.snapshot(0).unwrap();
    assert!(to.restore(0, &snapshot).is_err(), "other heads");
    let mut narrow = ContiguousState::new(llama.config(), 1, 16, DType::BF16).unwrap();
    assert!(narrow.restore(0, &snapshot).is_err(), "another dtype");
    assert!(from.snapshot(1).is_err(), "no such slot");
    assert!(narrow.rollback(0, 1).is_err(), "nothing to roll back to");
    narrow.drop_sequence(7);
}

/// Break a model in one place and see whether the report names it.
#[test]
fn the_first_wrong_layer_is_named_with_a_likely_cause() {
    let report = |name: &str, change: &dyn Fn(&mut ModelConfig)| {
        let golden = fixture(name).join("golden.safetensors");
        compare(&runtime(), &changed(name, change), &golden, 2e-3).unwrap()
    };
    let right = report("tiny-llama", &|_| {});
    assert!(right.first_wrong().is_none(), "{right}");

    let eps = report("tiny-llama", &|c| c.layers[1].branches[0].norm = Norm::Rms { eps: 0.5 });
    let wrong = eps.first_wrong().unwrap();
    let (tap, first) = (wrong.tap, wrong.first_token);
    assert_eq!(
        (tap, first),
        (Tap::Attn(1), Some(0)),
        "tap and token where an eps of layer 1 shows"
    );
    assert!(eps.to_string().contains("norm before attention"), "{eps}");

    let rope = report("tiny-llama", &|c| c.rope.theta = 500.0);
    let wrong = rope.first_wrong().unwrap();
    assert_eq!(wrong.tap, Tap::Attn(0), "the tap where a wrong rope theta shows");
    assert!(wrong.first_token.unwrap() > 0, "position 0 turns nothing");
    assert!(rope.to_string().contains("rope"), "{rope}");

    let window = report("tiny-mistral", &|c| {
        for layer in &mut c.layers {
            if let Op::Attention(a) = &mut layer.branches[0].op {
                a.window = Some(9);
            }
        }
    });
    let first = window.first_wrong().unwrap().first_token;
    assert_eq!(first, Some(8), "the first token that a window of 9 in place of 8 changes");
    assert!(window.to_string().contains("sliding window"), "{window}");

    let tied = report("tiny-llama-untied", &|c| c.tied_embeddings = true);
    let tap = tied.first_wrong().unwrap().tap;
    assert_eq!(tap, Tap::Logits, "the tap where a head tied by mistake shows");
    assert!(tied.to_string().contains("tied"), "{tied}");
}

#[test]
fn a_golden_of_another_model_is_a_typed_error() {
    let decoder = changed("tiny-llama", |_| {});
    for golden in ["tiny-qwen3/golden.safetensors", "ops.safetensors", "tiny-llama/config.json"] {
        let error = compare(&runtime(), &decoder, &fixture(golden), 1e-3).err().unwrap();
        assert!(!error.to_string().is_empty() && !error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn tensors_that_do_not_fit_the_config_are_all_listed_at_once() {
    let files = ModelFiles::open(&fixture("tiny-llama")).unwrap();
    let mut config = files.config().clone();
    config.hidden += 1;
    config.layers.pop();
    let error = Decoder::load(&runtime(), files.checkpoint(), config).err().unwrap().to_string();
    for name in
        ["model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight", "model.layers.2."]
    {
        assert!(error.contains(name), "{error}");
    }
}

/// Small tensors are checked when they are read; a matrix is not, since that would be a pass over all weights.
#[test]
fn a_norm_or_bias_that_is_not_finite_is_refused_and_named() {
    let rt = runtime();
    for (model, name, element, bits) in [
        ("tiny-llama", "model.norm.weight", 95, 0x7fc0u16),
        ("tiny-llama", "model.layers.1.input_layernorm.weight", 0, 0x7f80),
        ("tiny-qwen2", "model.layers.0.self_attn.k_proj.bias", 2, 0x7fc0),
        ("tiny-qwen2", "model.layers.1.self_attn.v_proj.bias", 1, 0xff80),
        ("tiny-qwen3", "model.layers.0.self_attn.q_norm.weight", 5, 0x7fc0),
    ] {
        let dir = tempfile::tempdir().unwrap();
        damaged(model, dir.path(), name, 2 * element, &bits.to_le_bytes());
        let got = ModelFiles::open(dir.path()).unwrap().decoder(&rt).map(drop);
        let what = format!("{name} of {model}, damaged");
        let error = judge::fails_with!(
            what,
            got,
            Error::NotFinite { tensor, at, .. } if tensor == name && *at == [element]
        );
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("fetch the model again"), "{text}");
    }
}
