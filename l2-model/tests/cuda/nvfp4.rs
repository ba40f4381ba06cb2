//! Models in NVFP4 on a device, packed and expanded. `parity.rs` compares them with transformers and with the CPU.

use l1_tensor::cuda::Graph;
use l1_tensor::{Precision, Runtime, WeightStorage};
use l2_model::{Decoder, ModelFiles, Result};

use crate::judge;
use crate::models::{Bench, Step, device_with, fixture, golden, load};

const MODELS: [&str; 2] = ["tiny-llama-nvfp4", "tiny-qwen3-modelopt-nvfp4"];

/// What `work` makes of a model in both storages.
fn both<T>(
    name: &str,
    precision: Precision,
    batch_invariant: bool,
    work: impl Fn(&Runtime, &Decoder) -> T,
) -> [T; 2] {
    [WeightStorage::Packed, WeightStorage::Bf16].map(|weights| {
        let rt = device_with(precision, batch_invariant, weights);
        work(&rt, &load(name, &rt))
    })
}

/// A prompt of many rows, whose weights are expanded in scratch memory, and steps of a few.
fn logits(rt: &Runtime, decoder: &Decoder) -> Vec<f32> {
    let mut bench = Bench::new(rt, decoder);
    let prompt: Vec<u32> = (1..24).collect();
    let mut all = bench.step(&[(0, &prompt)]).unwrap();
    all.extend(bench.step(&[(0, &[7]), (2, &[64, 200, 9])]).unwrap());
    all.extend(bench.step(&[(2, &[5])]).unwrap());
    all
}

#[test]
fn logits_of_packed_weights_on_a_device_have_the_bits_of_expanded_ones() {
    for name in MODELS {
        for precision in [Precision::Bf16, Precision::F32] {
            for batch_invariant in [false, true] {
                let [packed, expanded] = both(name, precision, batch_invariant, logits);
                let what = format!("logits of {name} in {precision} on a device");
                judge::same_bits(&what, &[packed.len()], &packed, &expanded);
            }
        }
    }
}

#[test]
fn packed_weights_in_f32_on_a_device_give_the_logits_of_transformers() {
    for name in MODELS {
        let rt = device_with(Precision::F32, false, WeightStorage::Packed);
        let (decoder, golden) = (load(name, &rt), golden(name));
        let got = Bench::new(&rt, &decoder).step(&[(0, &golden.tokens)]).unwrap();
        let dims = [golden.tokens.len(), decoder.config().vocab];
        let what = format!("logits of {name}, packed, on a device in f32");
        judge::close(&what, &dims, &got, &golden.logits, 2e-3);
    }
}

#[test]
fn packed_weights_take_less_of_a_device_and_are_reported_as_what_they_are() {
    for name in MODELS {
        let size = |_: &Runtime, decoder: &Decoder| decoder.weight_bytes();
        let [packed, expanded] = both(name, Precision::Bf16, false, size);
        assert!(packed * 10 < expanded * 8, "{name}: {packed} and {expanded} bytes");
        let formats = |_: &Runtime, decoder: &Decoder| decoder.weight_storage();
        let [packed, expanded] = both(name, Precision::Bf16, false, formats);
        assert!(packed.contains("NVFP4"), "{name}: {packed}");
        assert_eq!(expanded, "bf16", "{name}");
    }
}

/// The logits of two decode steps, the second one replayed from a recording of the first.
fn replayed(rt: &Runtime, decoder: &Decoder) -> Vec<f32> {
    let mut bench = Bench::new(rt, decoder);
    bench.step(&[(0, &[5, 17, 100])]).unwrap();
    let step = Step::of(&bench.state, &[(0, &[3])]);
    let Bench { decoder, state, ws } = &mut bench;
    decoder.stage(&step.batch(), state, ws).unwrap();
    decoder.run(&step.batch(), state, ws).unwrap();
    let batch = step.batch();
    let recorded: Result<Graph> =
        Graph::capture(rt.gpu().unwrap(), || decoder.run(&batch, state, ws));
    let mut graph = judge::works("recording a decode step", recorded);
    decoder.finish(&batch, state, ws).unwrap();
    let next = Step::of(state, &[(0, &[9])]);
    decoder.stage(&next.batch(), state, ws).unwrap();
    // SAFETY: workspace, state and weights are those of the recording.
    unsafe { graph.replay() }.unwrap();
    decoder.finish(&next.batch(), state, ws).unwrap().to_vec_f32().unwrap()
}

#[test]
fn a_recorded_step_over_packed_weights_has_the_bits_of_one_over_expanded_ones() {
    for name in MODELS {
        for precision in [Precision::Bf16, Precision::F32] {
            let [packed, expanded] = both(name, precision, false, replayed);
            let what = format!("logits of {name} in {precision}, replayed");
            judge::same_bits(&what, &[packed.len()], &packed, &expanded);
        }
    }
}

#[test]
fn a_scale_that_is_not_a_number_is_refused_on_a_device_and_the_weight_is_named() {
    let weight = "model.layers.1.self_attn.k_proj.weight";
    for name in MODELS {
        let dir = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(fixture(name)).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
        }
        let path = dir.path().join("model.safetensors");
        let mut file = std::fs::read(&path).unwrap();
        let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let parsed: serde_json::Value = serde_json::from_slice(&file[8..8 + header]).unwrap();
        let offsets = &parsed[format!("{weight}_scale")]["data_offsets"];
        file[8 + header + offsets[0].as_u64().unwrap() as usize] = 0x7f;
        std::fs::write(&path, file).unwrap();
        let files = ModelFiles::open(dir.path()).unwrap();
        let rt = device_with(Precision::Bf16, false, WeightStorage::Packed);
        judge::refused("a NaN scale", weight, files.decoder(&rt).map(|_| ()));
    }
}
