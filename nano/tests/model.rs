//! The forward pass, against what transformers computes.

use std::path::Path;

use l2_model::ModelFiles;
use nano::model::Model;
use nano::toy::Toy;
use nano::{KvMemory, load};
use safetensors::SafeTensors;
use serde_json::Value;

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

/// Logits behind each token of a sequence.
fn logits(model: &Model, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut kv = model.kv_memory(tokens.len());
    let slots: Vec<usize> = (0..tokens.len()).collect();
    let each = tokens.iter().enumerate();
    each.map(|(i, token)| model.forward(*token, &slots[..=i], &mut kv)).collect()
}

fn close(got: &[f32], want: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: number of elements");
    let largest = want.iter().fold(0f32, |max, x| max.max(x.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let off = (got - want).abs();
        assert!(off <= tolerance * largest, "{what}: element {i} is {got}, not {want}");
    }
}

#[test]
fn the_logits_of_the_tiny_model_are_those_of_transformers() {
    let toy = Toy::load();
    let golden: serde_json::Map<String, Value> =
        serde_json::from_str(include_str!("../one-token/golden.json")).unwrap();
    for (sentence, golden) in &golden {
        let got = logits(&toy.model, &toy.encode(sentence).unwrap());
        for (position, (got, want)) in
            got.iter().zip(golden["logits"].as_array().unwrap()).enumerate()
        {
            let want: Vec<f32> =
                want.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
            close(got, &want, 1e-4, &format!("`{sentence}`, position {position}"));
        }
    }
}

#[test]
fn the_logits_of_a_llama_are_those_of_transformers() {
    let files = ModelFiles::open(&fixture("tiny-llama-untied")).unwrap();
    let model = load::load(&files).unwrap();
    let golden = std::fs::read(fixture("tiny-llama-untied/golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&golden).unwrap();
    let tokens = golden.tensor("tokens").unwrap();
    let tokens: Vec<u32> =
        tokens.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect();
    let want = golden.tensor("logits").unwrap();
    let want: Vec<f32> =
        want.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let got = logits(&model, &tokens);
    for (position, (got, want)) in got.iter().zip(want.chunks_exact(got[0].len())).enumerate() {
        close(got, want, 1e-4, &format!("position {position}"));
    }
}

#[test]
fn the_attention_branch_stores_the_key_and_the_value_at_the_slot_of_its_token() {
    let toy = Toy::load();
    let tokens = toy.encode("the cat sat").unwrap();
    let run = |slots: &[usize]| {
        let mut kv = toy.model.kv_memory(8);
        let mut last = Vec::new();
        for (i, token) in tokens.iter().enumerate() {
            last = toy.model.forward(*token, &slots[..=i], &mut kv);
        }
        (kv, last)
    };
    let ((ordered, want), (anywhere, got)) = (run(&[0, 1, 2]), run(&[6, 1, 4]));
    assert_eq!(got, want, "the place of a slot changes nothing");
    let rows = |kv: &KvMemory, slots: &[usize]| -> Vec<Vec<f32>> {
        (0..2)
            .flat_map(|layer| {
                let (keys, values) = kv.load(layer, slots);
                keys.into_iter().chain(values).map(<[f32]>::to_vec).collect::<Vec<_>>()
            })
            .collect()
    };
    assert_eq!(rows(&anywhere, &[6, 1, 4]), rows(&ordered, &[0, 1, 2]));
    assert!(rows(&anywhere, &[0, 2, 3, 5, 7]).concat().iter().all(|x| *x == 0.0));
}

#[test]
fn keys_are_rotated_and_values_are_not() {
    let toy = Toy::load();
    let (model, kv) = (&toy.model, toy.model.kv_memory(4));
    let mut kv = kv;
    let x = [1.0, -0.5, 0.25, 2.0];
    for position in 0..3 {
        let slots: Vec<usize> = (0..=position).collect();
        model.attention(0, &x, &slots, &mut kv);
    }
    let (keys, values) = kv.load(0, &[0, 1, 2]);
    assert!(values[0] == values[1] && values[1] == values[2], "{values:?}");
    assert!(keys[0] != keys[1] && keys[1] != keys[2], "{keys:?}");
    let length = |k: &[f32]| k.iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!((length(keys[0]) - length(keys[2])).abs() < 1e-5, "a rotation keeps the length");
}

#[test]
fn the_mlp_branch_norms_its_input_and_gates_it() {
    let mut model = Toy::load().model;
    let layer = &mut model.layers[0];
    let matrix = |rows: usize, data: &[f32]| nano::Matrix {
        rows,
        cols: data.len() / rows,
        data: data.to_vec(),
    };
    (model.eps, layer.mlp_norm) = (0.0, vec![1.0, 1.0]);
    (layer.gate, layer.up) = (matrix(1, &[100.0, 0.0]), matrix(1, &[0.0, 1.0]));
    layer.down = matrix(2, &[1.0, 2.0]);
    // The normed row is 3 and 4, divided by the root of 12.5. The gate is so large that silu leaves it as it is.
    close(&model.mlp(0, &[3.0, 4.0]), &[100.0 * 12.0 / 12.5, 200.0 * 12.0 / 12.5], 1e-5, "mlp");
}

#[test]
fn a_branch_of_zeros_adds_nothing_and_the_norms_are_those_of_the_layer() {
    let mut toy = Toy::load();
    for layer in &mut toy.model.layers {
        layer.o.data.fill(0.0);
        layer.down.data.fill(0.0);
    }
    let mut kv = toy.model.kv_memory(1);
    let got = toy.model.forward(3, &[0], &mut kv);
    let embedding = toy.model.embedding.row(3);
    let normed = nano::ops::rms_norm(embedding, &toy.model.norm, toy.model.eps);
    assert_eq!(got, toy.model.lm_head.times(&normed), "the embedding goes straight to the logits");
}
