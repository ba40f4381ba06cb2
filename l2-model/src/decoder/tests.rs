//! Parts of the decoder, alone, on the rows that the reference fed to the same part.
//!
//! A golden holds the residual stream before and after every layer. So a layer can be tested while
//! the one before it does not exist yet: put the golden's rows into the workspace, run, compare.

use std::path::{Path, PathBuf};

use l1_tensor::safetensors::SafetensorsFile;
use l1_tensor::{DType, Device, DeviceRequest, Precision, PrecisionRequest, RuntimeOptions};

use super::*;
use crate::{ContiguousState, ModelFiles, judge};

/// Rounding alone stays a tenth of this below the largest element of a tap.
const ALLOWED: f32 = 1e-4;

/// Every family, and a quantised file.
const MODELS: [&str; 8] = [
    "tiny-llama",
    "tiny-llama-linear",
    "tiny-llama-yarn",
    "tiny-mistral",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-gguf/llama-q4_0.gguf",
    "tiny-gguf/llama3-f16.gguf",
];

fn runtime() -> Runtime {
    Runtime::new(RuntimeOptions {
        device: DeviceRequest::Exactly(Device::Cpu),
        precision: PrecisionRequest::Exactly(Precision::F32),
        threads: Some(1),
        ..Default::default()
    })
    .unwrap()
}

/// A model, its golden, and all a step needs.
struct Bench {
    name: &'static str,
    rt: Runtime,
    decoder: Decoder,
    golden: SafetensorsFile,
    positions: Vec<i32>,
    tokens: Vec<u32>,
    rows: Vec<u32>,
    ws: Workspace,
    state: ContiguousState,
}

impl Bench {
    fn new(name: &'static str) -> Self {
        let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name);
        let golden = if path.is_dir() {
            path.join("golden.safetensors")
        } else {
            path.with_extension("golden.safetensors")
        };
        let rt = runtime();
        let decoder = ModelFiles::open(&path).unwrap().decoder(&rt).unwrap();
        let golden = SafetensorsFile::open(golden).unwrap();
        let t = golden.tensor("tokens").unwrap().dims()[0];
        let spec = WorkspaceSpec { max_tokens: t, max_rows: t, max_context: t };
        let ws = Workspace::new(&rt, decoder.config(), spec).unwrap();
        let state = ContiguousState::new(decoder.config(), 1, t, DType::F32).unwrap();
        Self {
            name,
            rt,
            decoder,
            golden,
            positions: (0..t as i32).collect(),
            // The ids do not matter where rows are given.
            tokens: vec![0; t],
            rows: vec![t as u32 - 1],
            ws,
            state,
        }
    }

    fn layers(&self) -> usize {
        self.decoder.layers.len()
    }

    /// The golden's residual stream as layer `i` finds it.
    fn before(&self, i: usize) -> Tensor {
        let tap = if i == 0 { Tap::Embed } else { Tap::Residual(i - 1) };
        self.golden.tensor(&tap.to_string()).unwrap()
    }

    /// Runs `f` in a step of the golden's length, with the angles of its positions computed.
    fn step(
        &mut self,
        taps: &[Tap],
        f: impl FnOnce(&Decoder, &Runtime, &Batch, &mut ContiguousState, &mut Workspace),
    ) {
        let t = self.tokens.len();
        self.state.drop_sequence(0);
        let batch = Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            cu_seqlens_q: &[0, t as i32],
            state_slots: &[0],
            logit_rows: &self.rows,
            taps,
            ..Batch::default()
        };
        self.state.begin(&batch).unwrap();
        let (cos, sin) = (self.ws.cos.view_mut(), self.ws.sin.view_mut());
        self.decoder.rope.angles(&self.rt, &self.positions, cos, sin).unwrap();
        self.ws.prepare_taps(taps, t, 1).unwrap();
        f(&self.decoder, &self.rt, &batch, &mut self.state, &mut self.ws);
    }

    /// Compares rows with the golden's at a tap.
    fn judge(&self, tap: Tap, how: &str, got: TensorRef) {
        let expected = self.golden.tensor(&tap.to_string()).unwrap();
        let dims = expected.dims().to_vec();
        let expected = expected.to_vec_f32().unwrap();
        let size = expected.iter().fold(1.0f32, |m, x| m.max(x.abs()));
        let what = format!("{tap} of {} in f32{how}", self.name);
        judge::close(&what, &dims, &got.to_vec_f32().unwrap(), &expected, ALLOWED * size);
    }
}

#[test]
fn attention_of_the_goldens_own_rows_is_the_goldens() {
    for name in MODELS {
        let mut bench = Bench::new(name);
        for i in 0..bench.layers() {
            let x = bench.before(i);
            bench.step(&[], |decoder, rt, batch, state, ws| {
                let branch = &decoder.layers[i].branches[0];
                let OpWeights::Attention(a) = &branch.op else { panic!("attention comes first") };
                branch.norm.apply(rt, x.view(), ws.normed.view_mut()).unwrap();
                Decoder::attention(rt, i, a, batch, state, ws).unwrap();
                // From here on it is the layer's work: the output projection.
                let width = a.config.q_heads * a.config.head_dim;
                let attended = ws.attended.view().narrow(1, 0, width).unwrap();
                let out = ws.branch.view_mut();
                linear(rt, attended, &a.o, view(&a.o_bias), Epilogue::Store, out).unwrap();
            });
            bench.judge(Tap::Attn(i), "", bench.ws.branch.view());
        }
    }
}

#[test]
fn a_layer_fed_with_the_goldens_rows_gives_the_goldens_next() {
    for name in MODELS {
        let mut bench = Bench::new(name);
        for i in 0..bench.layers() {
            let x = bench.before(i);
            for taps in [&[Tap::Attn(i), Tap::Mlp(i)][..], &[]] {
                bench.step(taps, |decoder, rt, batch, state, ws| {
                    ops::convert(rt, x.view(), ws.residual.view_mut()).unwrap();
                    decoder.layer(rt, i, &decoder.layers[i], batch, state, ws).unwrap();
                });
                for tap in taps {
                    bench.judge(*tap, "", bench.ws.tapped(*tap).unwrap());
                }
                let how = if taps.is_empty() { ", without a tap inside of the layer" } else { "" };
                bench.judge(Tap::Residual(i), how, bench.ws.residual.view());
            }
        }
    }
}
