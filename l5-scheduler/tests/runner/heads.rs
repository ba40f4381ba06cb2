//! Draft heads as drafters: the hidden rows that they read, and outputs that they do not change.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use l1_tensor::{Precision, TensorRef};
use l2_model::{Batch, ContiguousState, Tap, Workspace, WorkspaceSpec};
use l4_sampler::draft::{DraftRow, Drafter, Drafts, HiddenSpan};
use l5_scheduler::SchedulerConfig;
use l5_scheduler::engine::{EngineModel, EngineOptions};
use l5_scheduler::speculation::{DraftMethod, SpeculativeConfig, WindowMode};

use crate::drafts::{Kind, Knowing, run_drafted, various};
use crate::equality::{Alone, alone, asks, crowded, mixed_with};
use crate::runtime::runtime;
use crate::support::MAX_LEN;
use crate::tiny::{Tiny, tiny};

/// Text of a request, prompt and output, and its hidden rows, `[T, H]` at each tap.
type Text = (Vec<u32>, Vec<Vec<Vec<f32>>>);

/// Hidden rows of a request that the model reads alone, at once.
fn text_alone(tiny: &Tiny, alone: &Alone, taps: &[Tap]) -> Text {
    let text = [&alone.ask.prompt[..], &alone.tokens].concat();
    let (config, n) = (tiny.decoder.config(), text.len());
    let spec = WorkspaceSpec { max_tokens: n, max_rows: 1, max_context: n };
    let mut ws = Workspace::new(&tiny.rt, config, spec).unwrap();
    let mut state = ContiguousState::new(config, 1, n, tiny.rt.activation_dtype()).unwrap();
    let batch = Batch {
        tokens: &text,
        positions: &(0..n as i32).collect::<Vec<_>>(),
        cu_seqlens_q: &[0, n as i32],
        state_slots: &[0],
        logit_rows: &[0],
        taps,
        ..Batch::default()
    };
    tiny.decoder.forward(&batch, &mut state, &mut ws).unwrap();
    let rows = |tap: &Tap| {
        let all = ws.tapped(*tap).unwrap().to_vec_f32().unwrap();
        all.chunks(config.hidden).map(<[f32]>::to_vec).collect()
    };
    let rows = taps.iter().map(rows).collect();
    (text, rows)
}

/// Proposes as another drafter, and compares all hidden rows with those of the request alone.
struct Reading {
    inner: Box<Knowing>,
    texts: Vec<Text>,
    slots: HashMap<u32, Vec<u32>>,
    compared: Arc<AtomicUsize>,
}

impl Drafter for Reading {
    fn begin(&mut self, slot: u32, prompt: &[u32], tenant: Option<&str>, max_new: usize) {
        self.slots.insert(slot, prompt.to_vec());
        self.inner.begin(slot, prompt, tenant, max_new);
    }

    fn extend(&mut self, slot: u32, tokens: &[u32]) {
        self.slots.get_mut(&slot).unwrap().extend_from_slice(tokens);
        self.inner.extend(slot, tokens);
    }

    fn read(&mut self, spans: &[HiddenSpan], hidden: &[TensorRef<'_>]) {
        for HiddenSpan { slot, first, rows, .. } in spans {
            let so_far = &self.slots[slot];
            assert!(first + rows.len() < so_far.len(), "the token behind a row is known");
            let (_, alone) = self.texts.iter().find(|(text, _)| text.starts_with(so_far)).unwrap();
            for (alone, hidden) in alone.iter().zip(hidden) {
                let hidden = hidden.rows::<f32>("hidden rows").unwrap();
                for (at, row) in rows.clone().enumerate() {
                    assert_eq!(alone[first + at], hidden.row(row), "slot {slot}, {}", first + at);
                    self.compared.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    fn propose(&mut self, rows: &[DraftRow], out: &mut Drafts) {
        self.inner.propose(rows, out);
    }

    fn end(&mut self, slot: u32) {
        self.slots.remove(&slot);
        self.inner.end(slot);
    }
}

#[test]
fn the_hidden_rows_of_a_step_are_those_of_each_request_alone() {
    let tiny = tiny("tiny-llama");
    let alone: Vec<_> = asks(&tiny).into_iter().map(|ask| alone(&tiny, ask)).collect();
    let taps = [Tap::Residual(0), Tap::FinalNorm];
    let texts: Vec<_> = alone.iter().map(|one| text_alone(&tiny, one, &taps)).collect();
    for kind in [Kind::Right, Kind::Often] {
        let compared = Arc::new(AtomicUsize::new(0));
        let reading = Reading {
            inner: Knowing::new(kind, &alone),
            texts: texts.clone(),
            slots: HashMap::new(),
            compared: compared.clone(),
        };
        let (config, arrivals) = crowded(&tiny);
        let config = SchedulerConfig { num_speculative_tokens: 3, ..config };
        let seen = mixed_with(&tiny, &alone, config, &arrivals, |runner| {
            let runner = runner.with_drafter(Box::new(reading), 3, WindowMode::Fixed);
            runner.with_hidden_rows(taps.to_vec())
        });
        assert!(seen.preemptions > 0 && seen.accepted > 0, "{kind:?}: {seen:?}");
        let tokens: usize = alone.iter().map(|one| one.tokens.len()).sum();
        let compared = compared.load(Ordering::Relaxed);
        assert!(compared > taps.len() * tokens, "{kind:?}: {compared} rows of {tokens} tokens");
    }
}

/// Heads of the fixtures: method, directory, target, number of drafts, and bytes of a pool for little more than one
/// request.
const HEADS: [(DraftMethod, &str, &str, usize, u64); 4] = [
    (DraftMethod::Eagle, "eagle", "tiny-qwen2", 4, 90_000),
    (DraftMethod::Eagle3, "eagle3", "tiny-llama-untied", 4, 180_000),
    (DraftMethod::Medusa, "medusa", "tiny-llama-linear", 3, 32_000),
    (DraftMethod::Medusa, "medusa-two-blocks", "tiny-llama-linear", 1, 32_000),
];

fn fixture(name: &str) -> String {
    format!("{}/../fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn headed(method: DraftMethod, head: &str, drafts: usize, window: WindowMode) -> EngineOptions {
    let config = SpeculativeConfig::new(method, drafts);
    let model = Some(fixture(&format!("draft-heads/{head}")));
    EngineOptions {
        speculative: Some(SpeculativeConfig { model, window, ..config }),
        max_model_len: Some(MAX_LEN),
        max_num_seqs: 3,
        max_num_batched_tokens: 32,
        block_size: 4,
        ..EngineOptions::default()
    }
}

#[test]
fn drafts_of_a_head_change_no_output() {
    for (method, head, target, drafts, pool) in HEADS {
        for window in [WindowMode::Fixed, WindowMode::Adaptive] {
            let options = headed(method, head, drafts, window);
            let stats = run_drafted(target, &options, &various());
            assert!(stats.draft_tokens > 0, "{head}, {window:?}: {stats:?}");
        }
        let options = EngineOptions {
            kv_memory: Some(l3_paged_kv::sizing::Budget::exact(pool)),
            ..headed(method, head, drafts, WindowMode::Fixed)
        };
        let stats = run_drafted(target, &options, &various());
        assert!(stats.draft_tokens > 0 && stats.preemptions > 0, "{head}: {stats:?}");
    }
}

#[test]
fn a_head_that_does_not_fit_is_an_error_that_says_what_to_do() {
    let error = |target: &str, options: EngineOptions| {
        let model =
            EngineModel::open_on(fixture(target).as_ref(), &runtime(Precision::F32, 1)).unwrap();
        model.core(&options).map(|_| ()).unwrap_err().to_string()
    };
    let fixed = |method, head, drafts| headed(method, head, drafts, WindowMode::Fixed);
    for (target, options, parts) in [
        (
            "tiny-llama-untied",
            fixed(DraftMethod::Eagle, "eagle3", 3),
            &["is of method eagle3", "set method to eagle3"][..],
        ),
        (
            "tiny-llama-linear",
            fixed(DraftMethod::Medusa, "medusa", 4),
            &["has a head for each of 3 drafts", "num_speculative_tokens to at most 3, got 4"],
        ),
        ("tiny-llama-linear", fixed(DraftMethod::Eagle, "eagle", 3), &["hidden_size"]),
        (
            "tiny-llama-linear",
            fixed(DraftMethod::Eagle, "no-such-head", 3),
            &["cannot use `model` of the speculative config", "no-such-head"],
        ),
    ] {
        let error = error(target, options);
        parts.iter().for_each(|part| assert!(error.contains(part), "{part}: {error}"));
    }
}
