//! The chapters of the book as documentation, so that their Rust is compiled and run:
//!
//! ```text
//! cargo test -p strata-book --doc
//! ```
//!
//! (`mdbook test` cannot do this: it knows nothing of the crates of a workspace.) What the text
//! says about files, commands and tests is checked by `tests/references/`, which also sees to it
//! that no chapter is missing from the list below.

#![allow(rustdoc::invalid_codeblock_attributes, reason = "`norun` is of our own shell fences")]

macro_rules! chapters {
    ($($name:ident: $file:literal,)*) => {$(
        #[doc = include_str!($file)]
        pub mod $name {}
    )*};
}

chapters! {
    preface: "src/preface.md",
    setup: "src/setup.md",
    how_it_works: "src/how-it-works.md",
    l1_overview: "src/l1-tensors/index.md",
    l1_layouts: "src/l1-tensors/layouts.md",
    l1_ops: "src/l1-tensors/ops.md",
    l1_rope: "src/l1-tensors/rope.md",
    l1_softmax: "src/l1-tensors/softmax.md",
    l1_weights: "src/l1-tensors/weights.md",
    l1_invariance: "src/l1-tensors/invariance.md",
    l1_lanes: "src/l1-tensors/lanes.md",
    l1_pool: "src/l1-tensors/pool.md",
    l1_attention: "src/l1-tensors/attention.md",
    l1_limits: "src/l1-tensors/limits.md",
    l1_tests: "src/l1-tensors/tests.md",
    l1_exercises: "src/l1-tensors/exercises.md",
    l1_sources: "src/l1-tensors/sources.md",
    l2_overview: "src/l2-model/index.md",
    l2_config: "src/l2-model/config.md",
    l2_checkpoints: "src/l2-model/checkpoints.md",
    l2_gguf: "src/l2-model/gguf.md",
    l2_quant: "src/l2-model/quant.md",
    l2_tokenizers: "src/l2-model/tokenizers.md",
    l2_chat: "src/l2-model/chat.md",
    l2_loading: "src/l2-model/loading.md",
    l2_state: "src/l2-model/state.md",
    l2_decoder: "src/l2-model/decoder.md",
    l2_generate: "src/l2-model/generate.md",
    l2_parity: "src/l2-model/parity.md",
    l2_order: "src/l2-model/order.md",
    l2_tests: "src/l2-model/tests.md",
    l2_exercises: "src/l2-model/exercises.md",
    l2_sources: "src/l2-model/sources.md",
    l3_overview: "src/l3-paged-kv/index.md",
    l3_pool: "src/l3-paged-kv/pool.md",
    l3_tables: "src/l3-paged-kv/tables.md",
    l3_hashes: "src/l3-paged-kv/hashes.md",
    l3_prefix_cache: "src/l3-paged-kv/prefix-cache.md",
    l3_steps: "src/l3-paged-kv/steps.md",
    l3_meta: "src/l3-paged-kv/meta.md",
    l3_attention: "src/l3-paged-kv/attention.md",
    l3_state: "src/l3-paged-kv/state.md",
    l3_sizing: "src/l3-paged-kv/sizing.md",
    l3_viewer: "src/l3-paged-kv/viewer.md",
    l3_tests: "src/l3-paged-kv/tests.md",
    l3_exercises: "src/l3-paged-kv/exercises.md",
    l3_sources: "src/l3-paged-kv/sources.md",
    l4_overview: "src/l4-sampler/index.md",
    l4_philox: "src/l4-sampler/philox.md",
    l4_bans: "src/l4-sampler/bans.md",
    l4_penalties: "src/l4-sampler/penalties.md",
    l4_filters: "src/l4-sampler/filters.md",
    l4_draw: "src/l4-sampler/draw.md",
    l4_select: "src/l4-sampler/select.md",
    l4_sampler: "src/l4-sampler/sampler.md",
    l4_logprobs: "src/l4-sampler/logprobs.md",
    l4_stops: "src/l4-sampler/stops.md",
    l4_guides: "src/l4-sampler/guides.md",
    l4_verify: "src/l4-sampler/verify.md",
    l4_generate: "src/l4-sampler/generate.md",
    l4_tests: "src/l4-sampler/tests.md",
    l4_exercises: "src/l4-sampler/exercises.md",
    l4_sources: "src/l4-sampler/sources.md",
    l5_overview: "src/l5-scheduler/index.md",
    l5_requests: "src/l5-scheduler/requests.md",
    l5_queue: "src/l5-scheduler/queue.md",
    l5_budget: "src/l5-scheduler/budget.md",
    l5_admission: "src/l5-scheduler/admission.md",
    l5_resolve: "src/l5-scheduler/resolve.md",
    l5_apply: "src/l5-scheduler/apply.md",
    l5_running: "src/l5-scheduler/running.md",
    l5_preemption: "src/l5-scheduler/preemption.md",
    l5_abandon: "src/l5-scheduler/abandon.md",
    l5_strict: "src/l5-scheduler/strict.md",
    l5_packing: "src/l5-scheduler/packing.md",
    l5_sampling: "src/l5-scheduler/sampling.md",
    l5_loop: "src/l5-scheduler/loop.md",
    l5_simulator: "src/l5-scheduler/simulator.md",
    l5_engine: "src/l5-scheduler/engine.md",
    l5_walk: "src/l5-scheduler/walk.md",
    l5_invariance: "src/l5-scheduler/invariance.md",
    l5_tests: "src/l5-scheduler/tests.md",
    l5_exercises: "src/l5-scheduler/exercises.md",
    l5_sources: "src/l5-scheduler/sources.md",
    glossary: "src/glossary.md",
}
