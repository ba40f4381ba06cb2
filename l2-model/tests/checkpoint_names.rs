//! Tensor names, llama.cpp's row permutation, and the check of a checkpoint's tensor set.

mod checkpoint_support;
mod judge;

use checkpoint_support::{fixture, tiny_ggufs};
use l2_model::checkpoint::names::{
    MisShaped, check_tensors, rows_are_permuted, to_gguf, to_hf, unpermute_rows,
};
use l2_model::checkpoint::{Checkpoint, GgufFile, StoredType};

#[test]
fn names_translate_both_ways() {
    for (hf, gguf) in [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("lm_head.weight", "output.weight"),
        ("model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"),
        ("model.layers.7.self_attn.q_proj.weight", "blk.7.attn_q.weight"),
        ("model.layers.7.self_attn.k_proj.bias", "blk.7.attn_k.bias"),
        ("model.layers.10.self_attn.v_proj.weight", "blk.10.attn_v.weight"),
        ("model.layers.10.self_attn.o_proj.weight", "blk.10.attn_output.weight"),
        ("model.layers.2.self_attn.q_norm.weight", "blk.2.attn_q_norm.weight"),
        ("model.layers.2.self_attn.k_norm.weight", "blk.2.attn_k_norm.weight"),
        ("model.layers.31.post_attention_layernorm.weight", "blk.31.ffn_norm.weight"),
        ("model.layers.31.mlp.gate_proj.weight", "blk.31.ffn_gate.weight"),
        ("model.layers.31.mlp.up_proj.weight", "blk.31.ffn_up.weight"),
        ("model.layers.31.mlp.down_proj.bias", "blk.31.ffn_down.bias"),
    ] {
        assert_eq!(to_gguf(hf).as_deref(), Some(gguf), "the GGUF name of {hf}");
        assert_eq!(to_hf(gguf).as_deref(), Some(hf), "the Hugging Face name of {gguf}");
    }
}

#[test]
fn names_outside_the_table_have_no_translation() {
    for name in [
        "",
        "weight",
        "rope_freqs.weight",
        "blk.0.attn_q",
        "blk.0.attn_q.scale",
        "blk.00.attn_q.weight",
        "blk.-1.attn_q.weight",
        "blk..attn_q.weight",
        "blk.0.attn_rot_embd.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.+1.mlp.up_proj.weight",
        "model.layers.0.mlp.up_proj.weight.weight",
    ] {
        assert_eq!(to_gguf(name), None, "{name}");
        assert_eq!(to_hf(name), None, "{name}");
    }
}

#[test]
fn every_tensor_of_the_tiny_ggufs_has_a_hugging_face_name() {
    for path in tiny_ggufs() {
        for tensor in judge::works(path.display(), GgufFile::open(&path)).tensors() {
            if tensor.name != "rope_freqs.weight" {
                let hf = to_hf(tensor.name).expect(tensor.name);
                assert_eq!(to_gguf(&hf).as_deref(), Some(tensor.name));
            }
        }
    }
}

/// llama.cpp's converter, row by row: `reshape(heads, 2, half).swapaxes(1, 2)`.
fn permute(rows: &[usize], head_dim: usize, n_heads: usize) -> Vec<usize> {
    let half = head_dim / 2;
    let mut out = vec![usize::MAX; rows.len()];
    for head in 0..n_heads {
        for h in 0..2 {
            for i in 0..half {
                out[head * head_dim + 2 * i + h] = rows[head * head_dim + h * half + i];
            }
        }
    }
    out
}

#[test]
fn unpermuting_undoes_what_the_converter_did() {
    assert_eq!(unpermute_rows(4, 2), [0, 2, 1, 3, 4, 6, 5, 7], "two heads of 4");
    assert_eq!(unpermute_rows(8, 1), [0, 2, 4, 6, 1, 3, 5, 7], "one head of 8");
    for (head_dim, n_heads) in [(2, 1), (4, 3), (16, 4), (64, 9), (128, 8), (6, 5)] {
        let original: Vec<usize> = (0..head_dim * n_heads).collect();
        let stored = permute(&original, head_dim, n_heads);
        let map = unpermute_rows(head_dim, n_heads);
        let restored: Vec<usize> = map.iter().map(|r| stored[*r]).collect();
        assert_eq!(restored, original, "rows of {n_heads} heads of {head_dim}, there and back");
    }
}

#[test]
fn impossible_head_sizes_give_no_map() {
    assert!(unpermute_rows(3, 2).is_empty());
    assert!(unpermute_rows(0, 2).is_empty());
    assert!(unpermute_rows(1 << 40, 1 << 40).is_empty());
}

#[test]
fn only_queries_and_keys_of_llama_are_permuted() {
    for name in ["model.layers.0.self_attn.q_proj.weight", "model.layers.9.self_attn.k_proj.bias"] {
        assert!(rows_are_permuted("llama", name));
        assert!(!rows_are_permuted("qwen2", name));
        assert!(!rows_are_permuted("qwen3", name));
    }
    for name in [
        "model.layers.0.self_attn.v_proj.weight",
        "model.layers.0.self_attn.q_norm.weight",
        "model.norm.weight",
    ] {
        assert!(!rows_are_permuted("llama", name));
    }
}

#[test]
fn permutation_is_asked_of_the_checkpoint() {
    let q = "model.layers.0.self_attn.q_proj.weight";
    let open = |name| Checkpoint::open(&fixture(name)).unwrap();
    assert!(open("tiny-gguf/llama-f16.gguf").rows_are_permuted(q));
    assert!(!open("tiny-gguf/qwen2-q8_0.gguf").rows_are_permuted(q));
    assert!(!open("tiny-llama").rows_are_permuted(q));
}

fn named(tensors: &[(&str, &[usize])]) -> Vec<(String, Vec<usize>)> {
    tensors.iter().map(|(n, s)| (n.to_string(), s.to_vec())).collect()
}

#[test]
fn one_error_lists_all_that_is_missing_unexpected_or_mis_shaped() {
    let expected = named(&[("a", &[2, 3]), ("b", &[4]), ("c", &[5]), ("d", &[6, 7])]);
    let found: [(&str, &[usize]); 5] =
        [("a", &[2, 3]), ("d", &[7, 6]), ("x", &[1]), ("c", &[5, 1]), ("y", &[])];
    let error = check_tensors(&expected, found).unwrap_err();
    assert_eq!(error.missing, named(&[("b", &[4])]), "what is missing");
    assert_eq!(error.extra, named(&[("x", &[1]), ("y", &[])]), "what was not expected");
    let mis = |name: &str, expected: &[usize], found: &[usize]| MisShaped {
        name: name.into(),
        expected: expected.into(),
        found: found.into(),
    };
    let expected = [mis("d", &[6, 7], &[7, 6]), mis("c", &[5], &[5, 1])];
    assert_eq!(error.mis_shaped, expected, "what has another shape");
    let text = error.to_string();
    for part in ["1 missing: b [4]", "2 unexpected: x [1], y []", "d is [7, 6], expected [6, 7]"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(text.lines().count(), 1);
}

#[test]
fn computed_buffers_and_a_second_copy_of_a_tied_head_are_tolerated() {
    let expected = named(&[("model.embed_tokens.weight", &[3, 2])]);
    let found: [(&str, &[usize]); 4] = [
        ("model.embed_tokens.weight", &[3, 2]),
        ("lm_head.weight", &[3, 2]),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", &[8]),
        ("rope_freqs.weight", &[8]),
    ];
    let what = "a tied head written twice, a rotary buffer and a table of rope factors";
    judge::works(what, check_tensors(&expected, found));
}

#[test]
fn a_missing_head_hints_at_tied_embeddings() {
    let error = check_tensors(&named(&[("lm_head.weight", &[3, 2])]), []).unwrap_err();
    assert!(error.to_string().contains("tie_word_embeddings"), "{error}");
}

#[test]
fn a_checkpoint_of_either_container_answers_to_hugging_face_names() {
    let gguf = Checkpoint::open(&fixture("tiny-gguf/llama-q4_1.gguf")).unwrap();
    let embed = gguf.get("model.embed_tokens.weight").unwrap();
    assert_eq!((embed.name, embed.ty), ("token_embd.weight", StoredType::Q8_0));
    assert_eq!(embed.shape, [331, 64], "rows and columns of the embedding of llama-q4_1.gguf");
    assert_eq!(gguf.get("token_embd.weight"), Some(embed));
    assert!(gguf.get("model.layers.2.mlp.up_proj.weight").is_none());
    assert!(gguf.tensor_names().contains(&"model.layers.1.mlp.down_proj.weight".into()));

    let dir = Checkpoint::open(&fixture("tiny-llama")).unwrap();
    let embed = dir.get("model.embed_tokens.weight").unwrap();
    assert_eq!((embed.shape, embed.ty), (&[389, 96][..], StoredType::BF16));
    for checkpoint in [gguf, dir] {
        let all = checkpoint.tensors();
        let shapes: Vec<_> = all.iter().map(|(n, t)| (n.clone(), t.shape.to_vec())).collect();
        checkpoint.check(&shapes).unwrap();
        assert_eq!(checkpoint.check(&shapes[1..]).unwrap_err().extra.len(), 1);
    }
}
