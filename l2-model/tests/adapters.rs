//! LoRA adapters against transformers with PEFT: the adapters of `fixtures/adapters/`, whose weights are exact in bf16.
//! Goldens are made by `fixtures/reference/make_adapters.py`.

#[path = "adapters/batches.rs"]
mod batches;
#[path = "support/golden.rs"]
mod golden;
#[path = "adapters/hostile.rs"]
mod hostile;
mod judge;
#[path = "../../l1-tensor/tests/support/runtime.rs"]
mod runtime;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use golden::Golden;
use l1_tensor::{Precision, Runtime};
use l2_model::adapter::{LoraAdapter, Projection};
use l2_model::{
    Batch, ContiguousState, Decoder, ModelFiles, SequenceState, Workspace, WorkspaceSpec,
};
use runtime::runtime;

/// Largest rank of the fixtures.
const RANK: usize = 16;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

/// Directory and tiny model of every adapter.
fn adapters() -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(fixtures().join("adapters")).unwrap() {
        let path = entry.unwrap().path();
        let config = std::fs::read_to_string(path.join("adapter_config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_str(&config).unwrap();
        all.push((path, config["base_model_name_or_path"].as_str().unwrap().to_string()));
    }
    all.sort();
    assert!(all.len() >= 6, "only {} adapters found", all.len());
    all
}

fn load(model: &str, rt: &Runtime) -> Decoder {
    ModelFiles::open(&fixtures().join(model)).unwrap().decoder(rt).unwrap()
}

fn open(path: &Path, decoder: &Decoder, rt: &Runtime) -> Arc<LoraAdapter> {
    let adapter = LoraAdapter::open(rt, path, decoder.config(), RANK);
    Arc::new(judge::works(path.display(), adapter))
}

/// A sequence of a step: its slot, its tokens, and the index of its adapter.
type Sequence<'a> = (u32, &'a [u32], i32);

/// A decoder with state and workspace, and the adapters that sequences name by index.
struct Bench<'a> {
    decoder: &'a Decoder,
    state: ContiguousState,
    ws: Workspace,
}

impl<'a> Bench<'a> {
    fn new(rt: &Runtime, decoder: &'a Decoder, adapters: &[Arc<LoraAdapter>]) -> Self {
        let spec = WorkspaceSpec { max_tokens: 600, max_rows: 600, max_context: 600 };
        let mut ws = Workspace::new(rt, decoder.config(), spec).unwrap();
        ws.allow_adapters(RANK).unwrap();
        for (index, adapter) in adapters.iter().enumerate() {
            ws.set_adapter(index, Some(adapter.clone())).unwrap();
        }
        let state = ContiguousState::new(decoder.config(), 8, 600, rt.activation_dtype());
        Self { decoder, state: state.unwrap(), ws }
    }

    /// Logits of all tokens of a step.
    fn step(&mut self, sequences: &[Sequence<'_>]) -> Vec<f32> {
        let tokens: Vec<u32> = sequences.iter().flat_map(|s| s.1).copied().collect();
        let mut cu = vec![0];
        let mut positions = Vec::new();
        for (slot, tokens, _) in sequences {
            let from = self.state.len(*slot) as i32;
            positions.extend(from..from + tokens.len() as i32);
            cu.push(cu.last().unwrap() + tokens.len() as i32);
        }
        let slots: Vec<u32> = sequences.iter().map(|s| s.0).collect();
        let adapters: Vec<i32> = sequences.iter().map(|s| s.2).collect();
        let rows: Vec<u32> = (0..tokens.len() as u32).collect();
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            cu_seqlens_q: &cu,
            state_slots: &slots,
            adapters: if adapters.iter().all(|a| *a < 0) { &[] } else { &adapters },
            logit_rows: &rows,
            ..Batch::default()
        };
        let logits = self.decoder.forward(&batch, &mut self.state, &mut self.ws);
        logits.unwrap().to_vec_f32().unwrap()
    }
}

fn golden(adapter: &Path) -> Golden {
    Golden::open(&adapter.join("golden.safetensors"))
}

fn argmax(row: &[f32]) -> u32 {
    let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a)));
    best.unwrap() as u32
}

#[test]
fn f32_logits_are_within_2e_3_of_peft_at_every_position() {
    let rt = runtime(Precision::F32, 2);
    for (path, model) in adapters() {
        let (decoder, golden) = (load(&model, &rt), golden(&path));
        let adapter = open(&path, &decoder, &rt);
        let mut bench = Bench::new(&rt, &decoder, &[adapter]);
        let got = bench.step(&[(0, &golden.tokens, 0)]);
        let dims = [golden.tokens.len(), decoder.config().vocab];
        let what = format!("logits of {} in f32", path.display());
        judge::close(&what, &dims, &got, &golden.logits, 2e-3);
    }
}

#[test]
fn every_greedy_token_is_that_of_peft() {
    let rt = runtime(Precision::F32, 2);
    for (path, model) in adapters() {
        let (decoder, golden) = (load(&model, &rt), golden(&path));
        let adapter = open(&path, &decoder, &rt);
        let mut bench = Bench::new(&rt, &decoder, &[adapter]);
        let vocab = decoder.config().vocab;
        let (mut fed, mut got) = (golden.tokens.clone(), Vec::new());
        for _ in 0..golden.greedy.len() {
            let logits = bench.step(&[(0, &fed, 0)]);
            got.push(argmax(&logits[logits.len() - vocab..]));
            fed = vec![*got.last().unwrap()];
        }
        judge::same_tokens(&path.display().to_string(), &got, &golden.greedy);
    }
}

/// bf16 rounds activations, and with them the side terms' inputs: near, and not equal.
#[test]
fn bf16_logits_stay_near_those_of_f32() {
    let rt = runtime(Precision::Bf16, 2);
    for (path, model) in adapters() {
        let (decoder, golden) = (load(&model, &rt), golden(&path));
        let adapter = open(&path, &decoder, &rt);
        let got = Bench::new(&rt, &decoder, &[adapter]).step(&[(0, &golden.tokens, 0)]);
        let errors = got.iter().zip(&golden.logits).map(|(g, e)| (g - e).abs());
        let mean = errors.sum::<f32>() / got.len() as f32;
        assert!(mean < 0.03, "{}: mean difference of logits {mean}", path.display());
    }
}

#[test]
fn an_adapter_tells_its_rank_projections_size_and_digest() {
    let rt = runtime(Precision::F32, 1);
    let of = |name: &str, model: &str| {
        let decoder = load(model, &rt);
        let adapter = open(&fixtures().join("adapters").join(name), &decoder, &rt);
        (adapter, decoder)
    };
    let (all, llama) = of("tiny-llama-all", "tiny-llama");
    assert_eq!((all.rank(), all.projections()), (4, Projection::ALL.to_vec()));
    let config = llama.config();
    // Each side term has (K + N) r numbers; the attention of tiny-llama is as wide as its stream.
    let l2_model::Op::Mlp(mlp) = &config.layers[0].branches[1].op else { panic!("no MLP") };
    let l2_model::Op::Attention(a) = &config.layers[0].branches[0].op else {
        panic!("no attention")
    };
    let (h, q, kv) = (config.hidden, a.q_heads * a.head_dim, a.kv_heads * a.head_dim);
    let layer = 2 * (h + q) + 2 * (h + kv) + 3 * (h + mlp.intermediate);
    assert_eq!(all.parameters(), config.layers.len() * layer * 4);
    assert!(all.bytes() >= 2 * all.parameters());
    let (rslora, _) = of("tiny-llama-rslora", "tiny-llama");
    use Projection::{Down, Q, V};
    assert_eq!((rslora.rank(), rslora.projections()), (8, vec![Q, V, Down]));
    assert_ne!(all.digest(), rslora.digest());
    assert_eq!(all.digest(), of("tiny-llama-all", "tiny-llama").0.digest());
    assert_eq!(all.digest_hex().len(), 64);
    assert!(all.fits(config) && !all.fits(load("tiny-qwen3", &rt).config()));
}
