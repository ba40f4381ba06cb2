//! LoRA adapters on a device: the logits of PEFT, and a batch that mixes them.

use std::sync::Arc;

use l1_tensor::{Precision, Runtime};
use l2_model::adapter::LoraAdapter;
use l2_model::{Batch, Decoder};

use crate::judge;
use crate::models::{Bench, Step, device, fixture, golden, load};

const RANK: usize = 16;

fn bench<'a>(rt: &Runtime, decoder: &'a Decoder, names: &[&str]) -> Bench<'a> {
    let mut bench = Bench::new(rt, decoder);
    bench.ws.allow_adapters(RANK).unwrap();
    for (index, name) in names.iter().enumerate() {
        let dir = fixture("adapters").join(name);
        let adapter = LoraAdapter::open(rt, &dir, decoder.config(), RANK).unwrap();
        bench.ws.set_adapter(index, Some(Arc::new(adapter))).unwrap();
    }
    bench
}

fn step(bench: &mut Bench<'_>, parts: &[(u32, &[u32])], adapters: &[i32]) -> Vec<f32> {
    let step = Step::of(&bench.state, parts);
    let batch = Batch { adapters, ..step.batch() };
    let Bench { decoder, state, ws } = bench;
    decoder.forward(&batch, state, ws).unwrap().to_vec_f32().unwrap()
}

#[test]
fn logits_of_adapters_on_a_device_are_within_2e_3_of_peft() {
    let rt = device(Precision::F32, false);
    for (name, model) in [
        ("tiny-llama-all", "tiny-llama"),
        ("tiny-llama-rslora", "tiny-llama"),
        ("tiny-qwen2-attention", "tiny-qwen2"),
        ("tiny-mistral-up", "tiny-mistral"),
    ] {
        let decoder = load(model, &rt);
        let golden = golden(&format!("adapters/{name}"));
        let mut bench = bench(&rt, &decoder, &[name]);
        let got = step(&mut bench, &[(0, &golden.tokens)], &[0]);
        let dims = [golden.tokens.len(), decoder.config().vocab];
        let what = format!("logits of {name} on a device in f32");
        judge::close(&what, &dims, &got, &golden.logits, 2e-3);
    }
}

#[test]
fn sequences_of_other_adapters_on_a_device_change_no_bit_in_invariant_mode() {
    let rt = device(Precision::Bf16, true);
    let decoder = load("tiny-llama", &rt);
    let (names, vocab) = (["tiny-llama-all", "tiny-llama-gate"], decoder.config().vocab);
    let parts: [(u32, &[u32]); 3] = [(0, &[384, 5, 6]), (1, &[384, 7]), (2, &[9])];
    let adapters = [1, -1, 0];
    let together = step(&mut bench(&rt, &decoder, &names), &parts, &adapters);
    let mut row = 0;
    for ((slot, tokens), adapter) in parts.into_iter().zip(adapters) {
        let alone = step(&mut bench(&rt, &decoder, &names), &[(slot, tokens)], &[adapter]);
        let got = &together[row * vocab..(row + tokens.len()) * vocab];
        judge::same_bits(&format!("slot {slot}"), &[tokens.len(), vocab], got, &alone);
        row += tokens.len();
    }
}
