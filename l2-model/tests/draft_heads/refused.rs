//! Heads that do not fit, and damaged files: an error that says what to do, never a panic.

use std::path::Path;

use l1_tensor::{Precision, Tensor};
use l2_model::checkpoint::{CheckpointError, SafetensorsError};
use l2_model::draft_head::{DraftHead, DraftHeadError, EagleHead, Hidden, MedusaHead};
use l2_model::{Batch, BatchError, Decoder, Error, SequenceState};
use proptest::prelude::*;
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::judge::{self, fails_with};
use crate::support::{
    Drafting, EAGLES, cut, eagle, fixtures, head_dir, rows_of_transformers, runtime, target,
    weights, with_config, with_tensors,
};

fn open(dir: &Path, target_name: &str) -> Result<DraftHead, Error> {
    let rt = runtime(Precision::F32, 1);
    DraftHead::open(&rt, dir, &target(&rt, target_name))
}

#[test]
fn a_head_of_another_model_is_refused() {
    fails_with!(
        "a head for 108 hidden elements over a model of 80",
        open(&head_dir("eagle"), "tiny-llama-untied"),
        Error::DraftHead(DraftHeadError::OtherTarget {
            what: "hidden_size",
            head: 108,
            target: 80
        })
    );
    let dir = with_config("eagle", |config| config["vocab_size"] = 350.into());
    fails_with!(
        "a head for 350 tokens over a model of 351",
        open(dir.path(), "tiny-qwen2"),
        Error::DraftHead(DraftHeadError::OtherTarget {
            what: "vocab_size",
            head: 350,
            target: 351
        })
    );
    fails_with!(
        "Medusa for 40 hidden elements over a model of 48",
        open(&head_dir("medusa"), "tiny-llama-yarn"),
        Error::DraftHead(DraftHeadError::OtherTarget { what: "hidden_size", head: 40, target: 48 })
    );
}

#[test]
fn a_directory_without_a_config_and_blocks_that_are_not_stored_are_refused() {
    let empty = tempfile::tempdir().unwrap();
    fails_with!(
        "an empty directory",
        open(empty.path(), "tiny-qwen2"),
        Error::DraftHead(DraftHeadError::NoConfig { .. })
    );
    let dir = with_config("medusa", |config| config["medusa_num_layers"] = 2.into());
    fails_with!(
        "heads of one block as heads of two",
        open(dir.path(), "tiny-llama-linear"),
        Error::DraftHead(DraftHeadError::Unsupported { key: "medusa_num_layers", .. })
    );
}

#[test]
fn a_model_is_no_head() {
    let rt = runtime(Precision::F32, 1);
    let (path, decoder) = (fixtures().join("tiny-llama"), target(&rt, "tiny-llama"));
    fails_with!(
        "a model's directory as a head's",
        DraftHead::open(&rt, &path, &decoder),
        Error::DraftHead(DraftHeadError::NotAHead { .. })
    );
    let dir = with_config("eagle", |config| config["medusa_num_heads"] = 2.into());
    fails_with!(
        "an EAGLE head with a Medusa config",
        open(dir.path(), "tiny-qwen2"),
        Error::DraftHead(DraftHeadError::NotAHead { .. })
    );
    fails_with!(
        "a directory without a config",
        open(&fixtures().join("draft-heads"), "tiny-qwen2"),
        Error::DraftHead(DraftHeadError::NoConfig { .. })
    );
}

/// A key that changes the maths must not be ignored.
#[test]
fn variants_that_are_not_supported_are_refused_by_their_key() {
    for (name, key, value) in [
        ("eagle3", "num_hidden_layers", json!(2)),
        ("eagle3", "norm_before_fc", json!(true)),
        ("eagle3", "add_para_norm", json!(true)),
        ("eagle3", "parallel_drafting", json!(true)),
        ("eagle3", "logit_scale", json!(0.5)),
        ("eagle3", "eagle_config", json!({ "use_aux_hidden_state": false })),
        ("eagle", "norm_before_residual", json!(true)),
        ("eagle", "draft_vocab_size", json!(100)),
    ] {
        let dir = with_config(name, |config| config[key] = value);
        let target_name = if name == "eagle" { EAGLES[0].1 } else { EAGLES[1].1 };
        let error = fails_with!(
            format!("{name} with {key}"),
            open(dir.path(), target_name),
            Error::DraftHead(DraftHeadError::Unsupported { .. })
        );
        assert!(key == "eagle_config" || error.to_string().contains(key), "{error}");
    }
}

#[test]
fn an_eagle_3_head_that_names_no_layers_needs_a_deep_target() {
    let remove = |config: &mut Value| {
        config.as_object_mut().unwrap().remove("eagle_aux_hidden_state_layer_ids");
    };
    let dir = with_config("eagle3", remove);
    let error = fails_with!(
        "no aux layers over a model of three",
        open(dir.path(), "tiny-llama-untied"),
        Error::DraftHead(DraftHeadError::AuxLayers { .. })
    );
    assert!(error.to_string().contains("state the layers"), "{error}");
}

#[test]
fn missing_and_unexpected_tensors_are_all_named_in_one_error() {
    for (name, target_name, gone) in [
        ("eagle", "tiny-qwen2", "layers.0.mlp.up_proj.weight"),
        ("eagle", "tiny-qwen2", "layers.0.self_attn.k_proj.bias"),
        ("eagle3", "tiny-llama-untied", "midlayer.input_layernorm.weight"),
        ("eagle3", "tiny-llama-untied", "lm_head.weight"),
        ("eagle3", "tiny-llama-untied", "norm.weight"),
        ("medusa", "tiny-llama-linear", "1.0.linear.bias"),
    ] {
        let dir = with_tensors(name, |all| {
            all.retain(|(name, _)| name != gone);
            all.push(("layers.7.odd".into(), (Dtype::F32, vec![1], vec![0; 4])));
        });
        let error = fails_with!(
            format!("{name} without {gone}"),
            open(dir.path(), target_name),
            Error::Checkpoint(CheckpointError::Tensors(e))
                if e.missing.len() == 1 && e.missing[0].0 == gone && e.extra.len() == 1
        );
        assert!(error.to_string().contains(gone), "{error}");
    }
}

/// `d2t` holds offsets. Absolute ids, the usual mistake, lead out of the vocabulary or to tokens that `t2d` does not
/// mark.
#[test]
fn tables_that_lead_astray_are_refused() {
    let edit_d2t = |edit: &dyn Fn(usize, i64) -> i64| {
        with_tensors("eagle3", |all| {
            let (_, (_, _, data)) = all.iter_mut().find(|(name, _)| name == "d2t").unwrap();
            for (i, bytes) in data.chunks_exact_mut(8).enumerate() {
                let offset = i64::from_le_bytes(bytes.try_into().unwrap());
                bytes.copy_from_slice(&edit(i, offset).to_le_bytes());
            }
        })
    };
    let without = |gone: &'static str| with_tensors("eagle3", |all| all.retain(|(n, _)| n != gone));
    let resized = |name: &'static str, dtype: Dtype, n: usize| {
        with_tensors("eagle3", |all| {
            let (_, stored) = all.iter_mut().find(|(n, _)| n == name).unwrap();
            *stored = (dtype, vec![n], vec![0; n * dtype.bitsize() / 8]);
        })
    };
    for (what, dir, table) in [
        ("absolute ids", edit_d2t(&|i, offset| offset + i as i64), "d2t"),
        ("one step further", edit_d2t(&|i, offset| offset + i64::from(i == 40)), "t2d"),
        ("below 0", edit_d2t(&|i, offset| if i == 0 { -1 } else { offset }), "d2t"),
        ("the largest number", edit_d2t(&|i, o| if i == 9 { i64::MAX } else { o }), "d2t"),
        ("no d2t", without("d2t"), "d2t"),
        ("99 offsets", resized("d2t", Dtype::I64, 99), "d2t"),
        ("marks of fewer tokens", resized("t2d", Dtype::BOOL, 300), "t2d"),
        ("no marks", resized("t2d", Dtype::BOOL, 333), "t2d"),
    ] {
        fails_with!(
            format!("tables with {what}"),
            open(dir.path(), "tiny-llama-untied"),
            Error::DraftHead(DraftHeadError::Table { name, .. }) if *name == table
        );
    }
    fails_with!(
        "offsets in F32",
        open(resized("d2t", Dtype::F32, 100).path(), "tiny-llama-untied"),
        Error::Checkpoint(CheckpointError::Safetensors {
            reason: SafetensorsError::NotIntegers { .. },
            ..
        })
    );
    open(without("t2d").path(), "tiny-llama-untied").map(|_| ()).unwrap();
    open(resized("d2t", Dtype::I32, 100).path(), "tiny-llama-untied").map(|_| ()).unwrap_err();
}

#[test]
fn hidden_rows_that_do_not_fit_the_tokens_are_refused_and_nothing_is_fed() {
    let rt = runtime(Precision::F32, 1);
    for (name, target_name) in EAGLES {
        let head = eagle(&rt, name, target_name);
        let rows = rows_of_transformers(&head, target_name);
        let mut drafting = Drafting::new(&rt, &head);
        let two = Batch {
            tokens: &[1, 2],
            positions: &[0, 1],
            cu_seqlens_q: &[0, 2],
            state_slots: &[0],
            logit_rows: &[1],
            ..Batch::default()
        };
        let Drafting { state, ws, .. } = &mut drafting;
        let (one, right) = (cut(&rows, 0, 1), cut(&rows, 0, 2));
        let narrow = Tensor::from_slice(&[0.0f32; 20], &[2, 10]).unwrap();
        for hidden in [
            Hidden::Target(&one),
            Hidden::Target(&[]),
            Hidden::Target(&[right[0]; 4]),
            Hidden::Head(narrow.view()),
        ] {
            let result = head.forward(&two, hidden, state, ws);
            fails_with!(name, result, Error::DraftHead(DraftHeadError::Hidden { .. }));
        }
        let previous = head.forward(&two, Hidden::Previous, state, ws);
        fails_with!(
            format!("{name}: a step that continues nothing"),
            previous,
            Error::DraftHead(DraftHeadError::Previous { tokens: 2, rows: 0 })
        );
        let foreign = Batch { tokens: &[1, 400], ..two };
        fails_with!(
            format!("{name}: a token that the target does not have"),
            head.forward(&foreign, Hidden::Target(&right), state, ws),
            Error::Batch(BatchError::TokenOutOfRange { id: 400, .. })
        );
        assert_eq!(state.len(0), 0, "{name}: tokens in the KV cache");
        head.forward(&two, Hidden::Target(&right), state, ws).unwrap();
        // One logit row, two tokens.
        let next = Batch { positions: &[2, 3], ..two };
        fails_with!(
            format!("{name}: two tokens after one row"),
            head.forward(&next, Hidden::Previous, state, ws),
            Error::DraftHead(DraftHeadError::Previous { tokens: 2, rows: 1 })
        );
    }
}

/// A target's step without the head's taps has no rows for it.
#[test]
fn a_target_that_kept_no_rows_is_named() {
    let rt = runtime(Precision::F32, 1);
    let (name, target_name) = EAGLES[1];
    let head = eagle(&rt, name, target_name);
    let decoder = target(&rt, target_name);
    let ws = crate::support::target_step(&rt, &decoder, &[1, 2], &[]);
    fails_with!(
        "rows of a step without taps",
        head.hidden_of(&ws),
        Error::DraftHead(DraftHeadError::NoTap { .. })
    );
}

/// A head in a file whose bytes are these: an error, or a head that is as good as the bytes.
fn survives(rt: &l1_tensor::Runtime, decoder: &Decoder, dir: &Path, bytes: &[u8]) {
    std::fs::write(weights(dir), bytes).unwrap();
    if let Err(error) = DraftHead::open(rt, dir, decoder) {
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let rt = runtime(Precision::F32, 1);
    for (name, target_name) in [EAGLES[0], EAGLES[1], ("medusa-two-blocks", "tiny-llama-linear")] {
        let (dir, decoder) = (crate::support::copy_of(name), target(&rt, target_name));
        let bytes = std::fs::read(weights(dir.path())).unwrap();
        for part in 0..40 {
            std::fs::write(weights(dir.path()), &bytes[..bytes.len() * part / 40]).unwrap();
            let opened = match name {
                "medusa-two-blocks" => MedusaHead::open(&rt, dir.path(), &decoder).map(|_| ()),
                _ => EagleHead::open(&rt, dir.path(), &decoder).map(|_| ()),
            };
            judge::refused(format!("{part}/40 of {name}"), "an error of the file", opened);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 8,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Bytes of the header and of the tables are changed; so are numbers of the config.
    #[test]
    fn damaged_heads_do_not_panic(
        flips in prop::collection::vec((0.0..1.0f64, 1..=255u8), 1..4),
        key in prop::sample::select(vec![
            "hidden_size", "vocab_size", "draft_vocab_size", "num_attention_heads", "head_dim",
            "num_key_value_heads", "intermediate_size", "rope_theta", "target_hidden_size",
        ]),
        value in prop_oneof![
            Just(json!(0)), Just(json!(-1)), Just(json!(u64::MAX)), Just(json!(1u64 << 40)), Just(json!("x")),
            Just(json!([])), Just(json!(0.5)), (1..400u32).prop_map(|n| json!(n)),
        ],
    ) {
        let rt = runtime(Precision::F32, 1);
        let (name, target_name) = EAGLES[1];
        let decoder = target(&rt, target_name);
        let dir = with_config(name, |config| config[key] = value);
        let original = std::fs::read(weights(dir.path())).unwrap();
        survives(&rt, &decoder, dir.path(), &original);
        let dir = crate::support::copy_of(name);
        // The tables come first in the file, after a header of about 2 KB.
        let front = original.len().min(4096) as f64;
        let mut bytes = original;
        for (at, mask) in flips {
            bytes[(at * front) as usize] ^= mask;
        }
        survives(&rt, &decoder, dir.path(), &bytes);
    }
}
