//! EAGLE-1 and EAGLE-3: every tap, the drafts, and the whole way from the target's tokens.

use l1_tensor::Precision;
use l1_tensor::safetensors::SafetensorsFile;
use l2_model::draft_head::{DraftHead, EagleHead, EagleKind, Hidden};
use l2_model::{SequenceState, Tap};

use crate::judge;
use crate::support::{
    CHUNK, Drafting, EAGLES, Stored, cut, eagle, fixtures, golden, head_dir, ids,
    rows_of_transformers, runtime, target, target_step, with_config, with_tensors,
};

/// Rounding alone stays below this, for a tap whose largest element is 1: as for the decoder's taps.
const ALLOWED: f32 = 1e-4;
/// For logits, whatever their size: as for the tiny models'.
const ALLOWED_LOGITS: f32 = 2e-3;

fn taps(kind: EagleKind) -> Vec<Tap> {
    let mut taps = vec![Tap::Fused, Tap::Attn(0), Tap::Mlp(0), Tap::Residual(0)];
    taps.extend((kind == EagleKind::Eagle3).then_some(Tap::FinalNorm));
    taps
}

/// A chunk of the target's rows, then drafts one by one, each from the head's own row before it.
#[test]
fn every_tap_of_an_eagle_head_agrees_with_torch_in_a_chunk_and_in_drafts() {
    let rt = runtime(Precision::F32, 2);
    for (name, target_name) in EAGLES {
        let head = eagle(&rt, name, target_name);
        let (golden, taps) = (golden(&head_dir(name)), taps(head.kind()));
        let tokens = ids(&golden, "tokens");
        let rows = rows_of_transformers(&head, target_name);
        let mut drafting = Drafting::new(&rt, &head);
        let mut got: Vec<Vec<f32>> = vec![Vec::new(); taps.len()];
        let mut logits = Vec::new();
        for from in [0].into_iter().chain(CHUNK..tokens.len()) {
            let hidden = cut(&rows, 0, CHUNK);
            logits.extend(match from {
                0 => drafting.feed(&tokens[..CHUNK], Hidden::Target(&hidden), &taps),
                CHUNK => {
                    let last = drafting.ws.tapped(Tap::Residual(0)).unwrap();
                    let row = last.narrow(0, CHUNK - 1, 1).unwrap().to_vec_f32().unwrap();
                    let row = l1_tensor::Tensor::from_slice(&row, &[1, row.len()]).unwrap();
                    drafting.feed(&tokens[from..=from], Hidden::Head(row.view()), &taps)
                }
                _ => drafting.feed(&tokens[from..=from], Hidden::Previous, &taps),
            });
            for (got, tap) in got.iter_mut().zip(&taps) {
                got.extend(drafting.ws.tapped(*tap).unwrap().to_vec_f32().unwrap());
            }
        }
        for (got, tap) in got.iter().zip(&taps) {
            let expected = golden.tensor(&tap.to_string()).unwrap();
            let (dims, expected) = (expected.dims().to_vec(), expected.to_vec_f32().unwrap());
            let size = expected.iter().fold(1.0f32, |m, x| m.max(x.abs()));
            judge::close(&format!("{tap} of {name} in f32"), &dims, got, &expected, ALLOWED * size);
        }
        let expected = golden.tensor("logits").unwrap();
        let what = format!("logits of {name} in f32");
        let values = expected.to_vec_f32().unwrap();
        judge::close(&what, expected.dims(), &logits, &values, ALLOWED_LOGITS);
    }
}

/// The tokens of a golden's drafts are the likeliest of the row before, in the target's numbers.
#[test]
fn the_likeliest_drafts_are_torchs_under_the_targets_numbers() {
    let rt = runtime(Precision::F32, 1);
    for (name, target_name) in EAGLES {
        let head = eagle(&rt, name, target_name);
        let tokens = ids(&golden(&head_dir(name)), "tokens");
        let rows = rows_of_transformers(&head, target_name);
        let mut drafting = Drafting::new(&rt, &head);
        let hidden = cut(&rows, 0, CHUNK - 1);
        drafting.feed(&tokens[..CHUNK - 1], Hidden::Target(&hidden), &[]);
        let last = cut(&rows, CHUNK - 1, 1);
        let mut hidden = Hidden::Target(&last);
        let mut drafts = Vec::new();
        for _ in CHUNK..tokens.len() {
            let token = drafts.last().copied().unwrap_or(tokens[CHUNK - 1]);
            let logits = drafting.feed(&[token], hidden, &[]);
            let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
            drafts.push(head.target_id(best as u32).unwrap());
            hidden = Hidden::Previous;
        }
        judge::same_tokens(&format!("drafts of {name} in f32"), &drafts, &tokens[CHUNK..]);
        assert_eq!(drafting.state.len(0), tokens.len() - 1, "{name}: pairs in the head's KV cache");
    }
}

#[test]
fn a_head_over_its_targets_own_rows_has_torchs_logits() {
    let rt = runtime(Precision::F32, 2);
    for (name, target_name) in EAGLES {
        let decoder = target(&rt, target_name);
        let DraftHead::Eagle(head) = DraftHead::open(&rt, &head_dir(name), &decoder).unwrap()
        else {
            panic!("{name} is an EAGLE head");
        };
        let prompt = ids(&golden(&fixtures().join(target_name)), "tokens");
        let ws = target_step(&rt, &decoder, &prompt, head.taps());
        let golden = golden(&head_dir(name));
        let tokens = ids(&golden, "tokens");
        let hidden = head.hidden_of(&ws).unwrap();
        let mut drafting = Drafting::new(&rt, &head);
        let got = drafting.feed(&tokens[..CHUNK], Hidden::Target(&hidden), &[]);
        let dims = [CHUNK, head.draft_vocab()];
        let expected = golden.tensor("logits").unwrap().to_vec_f32().unwrap();
        let what = format!("logits of {name} over {target_name} in f32");
        judge::close(&what, &dims, &got, &expected[..got.len()], ALLOWED_LOGITS);
    }
}

#[test]
fn bf16_stays_near_f32() {
    let rt = runtime(Precision::Bf16, 2);
    for (name, target_name) in EAGLES {
        let head = eagle(&rt, name, target_name);
        let golden = golden(&head_dir(name));
        let rows = rows_of_transformers(&head, target_name);
        let mut drafting = Drafting::new(&rt, &head);
        let hidden = cut(&rows, 0, CHUNK);
        let got = drafting.feed(&ids(&golden, "tokens")[..CHUNK], Hidden::Target(&hidden), &[]);
        let expected = golden.tensor("logits").unwrap().to_vec_f32().unwrap();
        let size = expected.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let errors = got.iter().zip(&expected).map(|(g, e)| (g - e).abs());
        let mean = errors.sum::<f32>() / got.len() as f32;
        assert!(mean <= 0.01 * size, "{name} in bf16: mean error {mean}, at most {}", 0.01 * size);
    }
}

#[test]
fn a_stream_that_begins_with_the_normed_row_is_torchs() {
    let rt = runtime(Precision::F32, 1);
    let (name, target_name) = EAGLES[1];
    let dir = with_config(name, |config| config["norm_before_residual"] = true.into());
    let head = EagleHead::open(&rt, dir.path(), &target(&rt, target_name)).unwrap();
    let golden = golden(&head_dir(name));
    let rows = rows_of_transformers(&head, target_name);
    let hidden = cut(&rows, 0, CHUNK);
    let tokens = &ids(&golden, "tokens")[..CHUNK];
    let got = Drafting::new(&rt, &head).feed(tokens, Hidden::Target(&hidden), &[]);
    let expected = golden.tensor("norm_before_residual.logits").unwrap();
    let values = expected.to_vec_f32().unwrap();
    let what = "logits of eagle3 with norm_before_residual, in f32";
    judge::close(what, expected.dims(), &got, &values, ALLOWED_LOGITS);
}

/// Logits over the chunk of a head in a directory.
fn chunk_logits(dir: &std::path::Path, target_name: &str) -> (EagleHead, Vec<f32>) {
    let rt = runtime(Precision::F32, 1);
    let head = EagleHead::open(&rt, dir, &target(&rt, target_name)).unwrap();
    let rows = rows_of_transformers(&head, target_name);
    let hidden = cut(&rows, 0, CHUNK);
    let tokens: Vec<u32> = (0..CHUNK as u32).collect();
    let logits = Drafting::new(&rt, &head).feed(&tokens, Hidden::Target(&hidden), &[]);
    (head, logits)
}

/// The target's own embedding and output projection, stored with the head, change nothing; others do.
#[test]
fn a_head_uses_the_embedding_and_the_output_projection_that_it_stores() {
    let embedding = |scale: f32| -> Stored {
        let file = SafetensorsFile::open(fixtures().join("tiny-qwen2/model.safetensors")).unwrap();
        let tensor = file.tensor("model.embed_tokens.weight").unwrap();
        let values = tensor.to_vec_f32().unwrap();
        let bytes = values.iter().flat_map(|x| (x * scale).to_le_bytes()).collect();
        let dtype = safetensors::Dtype::F32;
        (String::new(), (dtype, tensor.dims().to_vec(), bytes))
    };
    let (shared, expected) = chunk_logits(&head_dir("eagle"), "tiny-qwen2");
    for name in ["embed_tokens.weight", "lm_head.weight"] {
        for (scale, same) in [(1.0, true), (2.0, false)] {
            let dir = with_tensors("eagle", |all| all.push((name.into(), embedding(scale).1)));
            let (head, logits) = chunk_logits(dir.path(), "tiny-qwen2");
            assert_eq!(logits == expected, same, "{name} times {scale}");
            assert!(head.weight_bytes() > shared.weight_bytes(), "{name} is the head's own");
        }
    }
}

#[test]
fn layers_0_is_another_name_of_the_midlayer() {
    let (_, expected) = chunk_logits(&head_dir("eagle3"), "tiny-llama-untied");
    let dir = with_tensors("eagle3", |all| {
        all.iter_mut().for_each(|(name, _)| *name = name.replace("midlayer.", "layers.0."));
    });
    let (head, logits) = chunk_logits(dir.path(), "tiny-llama-untied");
    assert_eq!(head.kind(), EagleKind::Eagle3);
    judge::same_bits("eagle3 under other names", &[CHUNK, 100], &logits, &expected);
}

/// A config names layers by the rows that enter them.
#[test]
fn taps_are_where_the_config_says() {
    let rt = runtime(Precision::F32, 1);
    let third = eagle(&rt, "eagle3", "tiny-llama-untied");
    assert_eq!(third.taps(), [Tap::Embed, Tap::Residual(0), Tap::Residual(2)]);
    assert_eq!((third.draft_vocab(), third.config().vocab), (100, 333));
    let first = eagle(&rt, "eagle", "tiny-qwen2");
    assert_eq!(first.taps(), [Tap::FinalNorm]);
    assert_eq!((first.draft_vocab(), first.target_ids()), (351, None));
    assert_eq!((first.target_id(350), first.target_id(351)), (Some(350), None));
    assert_eq!(third.target_id(100), None);
}
