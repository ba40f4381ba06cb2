//! Logits and tokens: those of transformers, and those of the CPU.

use l1_tensor::Precision;
use l2_model::compare::{compare, default_tolerance};
use l2_model::{Decoder, GenerateOptions, ModelFiles, Session, Tap, generate};

use crate::judge;
use crate::models::{Bench, MODELS, device, fixture, golden, golden_path, host, load};

#[test]
fn f32_logits_on_a_device_are_within_2e_3_of_transformers_at_every_position() {
    let rt = device(Precision::F32, false);
    for name in MODELS {
        let golden = golden(name);
        let decoder = load(name, &rt);
        let got = Bench::new(&rt, &decoder).step(&[(0, &golden.tokens)]).unwrap();
        let dims = [golden.tokens.len(), decoder.config().vocab];
        let what = format!("logits of {name} on a device in f32");
        judge::close(&what, &dims, &got, &golden.logits, 2e-3);
    }
}

#[test]
fn every_greedy_token_chosen_on_a_device_is_that_of_transformers() {
    let rt = device(Precision::F32, false);
    for name in ["tiny-llama", "tiny-mistral", "tiny-qwen3"] {
        let golden = golden(name);
        let decoder = load(name, &rt);
        let n = golden.greedy.len().min(8);
        let mut session = Session::new(&decoder, &rt, golden.tokens.len() + n).unwrap();
        let options = GenerateOptions { max_tokens: n, ..Default::default() };
        let got = generate::generate(&mut session, &golden.tokens, &options, |_| true);
        let got = judge::works(format!("generating with {name} on a device"), got);
        let what = format!("the greedy continuation of {name} on a device in f32");
        judge::same_tokens(&what, &got.tokens, &golden.greedy[..n]);
    }
}

/// Every tap, so the first place that is wrong is named; and taps are read back from the device.
#[test]
fn every_tap_on_a_device_agrees_with_transformers() {
    let rt = device(Precision::F32, false);
    for name in ["tiny-llama", "tiny-qwen2"] {
        let decoder = load(name, &rt);
        let tolerance = default_tolerance(Precision::F32);
        let report = compare(&rt, &decoder, &golden_path(name), tolerance).unwrap();
        assert!(report.first_wrong().is_none(), "{name}: {report}");
        assert_eq!(report.taps.len(), Tap::all(decoder.config().layers.len()).len(), "{name}");
    }
}

/// Both are fed the same tokens, those of transformers, so one that is chosen otherwise does not make all
/// behind it incomparable.
#[test]
fn bf16_on_a_device_is_as_near_to_transformers_as_on_a_cpu() {
    let (device, host) = (device(Precision::Bf16, false), host(Precision::Bf16));
    let allowed = default_tolerance(Precision::Bf16);
    for name in MODELS {
        let golden = golden(name);
        let size = golden.logits.iter().fold(1.0f32, |m, x| m.max(x.abs()));
        let on = |rt| Bench::new(rt, &load(name, rt)).step(&[(0, &golden.tokens)]).unwrap();
        let (got, cpu) = (on(&device), on(&host));
        let dims = [golden.tokens.len(), got.len() / golden.tokens.len()];
        let what = format!("logits of {name} in bf16 on a device, against transformers");
        judge::close(&what, &dims, &got, &golden.logits, allowed * size);
        let what = format!("logits of {name} in bf16 on a device, against the CPU");
        judge::close(&what, &dims, &got, &cpu, allowed * size);
    }
}

#[test]
fn a_random_model_is_the_same_one_on_every_device() {
    let (device, host) = (device(Precision::F32, false), host(Precision::F32));
    for name in ["tiny-llama-untied", "tiny-qwen2"] {
        let config = ModelFiles::open(&fixture(name)).unwrap().config().clone();
        let logits = |rt, seed| {
            let decoder = Decoder::random(rt, config.clone(), seed).unwrap();
            Bench::new(rt, &decoder).step(&[(0, &[3, 1, 4, 1, 5])]).unwrap()
        };
        let (got, expected) = (logits(&device, 7), logits(&host, 7));
        let dims = [5, config.vocab];
        let what = format!("logits of a random {name} on a device, against the CPU");
        judge::close(&what, &dims, &got, &expected, 1e-4);
        let size = expected.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        assert!((0.05..10.0).contains(&size), "{name}: the largest logit is {size}");
        assert_ne!(logits(&host, 8), expected, "{name}: another seed is another model");
    }
}
