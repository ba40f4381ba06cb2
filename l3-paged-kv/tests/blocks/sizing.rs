//! How many blocks fit: the published arithmetic, what the memory really takes, and the refusals.

use std::path::{Path, PathBuf};

use l1_tensor::DType;
use l1_tensor::ops::KvCache;
use l2_model::ModelConfig;
use l3_paged_kv::PagedKv;
use l3_paged_kv::sizing::{Budget, Bytes, KvSpec, Memory, Plan, SizingError, parse_bytes};
use proptest::prelude::*;
use serde_json::json;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

fn config(name: &str) -> ModelConfig {
    ModelConfig::from_hf_file(&fixtures().join("configs").join(name)).unwrap()
}

fn llama_8b() -> KvSpec {
    KvSpec::from_config(&config("llama-3.1-8b.json"), DType::BF16, 16).unwrap()
}

/// A model of which only the heads matter.
fn small(layers: usize, kv_heads: usize, head_dim: usize) -> ModelConfig {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": 64, "intermediate_size": 64, "vocab_size": 32,
        "num_hidden_layers": layers, "num_attention_heads": kv_heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "rope_theta": 10000.0, "tie_word_embeddings": true,
    });
    ModelConfig::from_hf_json(&config).unwrap()
}

fn budget(text: &str) -> Budget {
    text.parse().unwrap()
}

#[test]
fn llama_8b_takes_what_everybody_says_it_takes() {
    let spec = llama_8b();
    assert_eq!(spec.bytes_per_token_layer(0), 4096, "bytes of a token in layer 0");
    assert_eq!(spec.bytes_per_token(), 128 << 10, "bytes of a token: 128 KiB");
    assert_eq!(spec.bytes_per_token() * 2048, 256 * MIB, "bytes of 2,048 tokens: 256 MiB");
    assert_eq!(spec.bytes_per_block(), 2 * MIB, "bytes of a block: 2 MiB");
    assert_eq!(spec.attention_layers(), 32, "layers with keys and values");
    assert_eq!(spec.bytes_per_token_layer(32), 0, "bytes in a layer that does not exist");
}

/// 5,402 blocks are 10.5508 GiB, and who reads `10.55 GiB` anywhere means them.
#[test]
fn ten_point_five_five_gib_are_5402_blocks_of_llama_8b() {
    let spec = llama_8b();
    assert_eq!(Bytes(5402 * 2 * MIB).to_string(), "10.55 GiB", "what 5,402 blocks are called");
    assert_eq!(spec.blocks_in(budget("10.55GiB")), 5402, "blocks in 10.55GiB");
    assert_eq!(spec.blocks_in(budget("10.55 GiB")), 5402, "blocks in 10.55 GiB");
    assert_eq!(spec.blocks_in(Budget::exact(5402 * 2 * MIB)), 5402, "blocks in as many bytes");
    assert_eq!(spec.blocks_in(Budget::exact(5402 * 2 * MIB - 1)), 5401, "and in one byte less");
}

#[test]
fn eight_bits_take_half_and_a_byte_of_scale_for_each_head() {
    let config = config("llama-3.1-8b.json");
    let of = |dtype| KvSpec::from_config(&config, dtype, 16).unwrap().bytes_per_token_layer(0);
    assert_eq!(of(DType::F32), 8192, "bytes of a token and layer in f32");
    assert_eq!(of(DType::F8E4M3), 2048 + 16, "bytes of a token and layer in fp8");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Not a formula against a formula: against the memory.
    #[test]
    fn what_is_planned_is_what_the_memory_takes(
        layers in 1..4usize,
        kv_heads in 1..5usize,
        head_dim in prop::sample::select(vec![2usize, 16, 18, 64, 80, 128]),
        block_size in prop::sample::select(vec![1usize, 2, 4, 8, 16, 32, 256]),
        num_blocks in 2..40usize,
        dtype in prop::sample::select(vec![DType::F32, DType::BF16, DType::F8E4M3]),
    ) {
        let config = small(layers, kv_heads, head_dim);
        let spec = KvSpec::from_config(&config, dtype, block_size).unwrap();
        let cache = KvCache::new(num_blocks, block_size, kv_heads, head_dim, dtype).unwrap();
        let block = spec.bytes_per_token_layer(0) * block_size as u64;
        prop_assert_eq!(block, cache.block_bytes() as u64, "a block in one layer");
        prop_assert_eq!(spec.pool_bytes(num_blocks), (layers * cache.bytes()) as u64, "all layers");
        let memory = PagedKv::new(&config, num_blocks, block_size, dtype).unwrap();
        prop_assert_eq!(spec.pool_bytes(num_blocks), memory.bytes() as u64, "the paged memory");
    }

    #[test]
    fn a_plan_uses_what_there_is_and_not_more(
        head_dim in prop::sample::select(vec![16usize, 18, 64]),
        block_size in prop::sample::select(vec![1usize, 4, 8, 16, 64]),
        bytes in 0..4_000_000u64,
        max_model_len in 1..3000usize,
    ) {
        let spec = KvSpec::from_config(&small(2, 1, head_dim), DType::BF16, block_size).unwrap();
        match Plan::new(&spec, Budget::exact(bytes), max_model_len) {
            Ok(plan) => {
                let blocks = plan.num_blocks();
                prop_assert!(plan.bytes().0 <= bytes, "{} of {bytes}", plan.bytes().0);
                // One tile of tokens more would be too much.
                let more = blocks + (16 / block_size).max(1);
                prop_assert!(spec.pool_bytes(more) > bytes, "{more} blocks fit as well");
                prop_assert_eq!(plan.tokens(), (blocks - 1) * block_size, "tokens");
                prop_assert!(plan.sequences() >= 1.0, "{} sequences", plan.sequences());
            }
            // With what is missing it works, with one byte less it does not.
            Err(SizingError::ContextDoesNotFit { missing, longest, needed, .. }) => {
                let with = |extra| Plan::new(&spec, Budget::exact(bytes + extra), max_model_len);
                prop_assert!(with(missing.0).is_ok(), "with the missing {missing:?}");
                prop_assert!(with(missing.0 - 1).is_err(), "with one byte less than {missing:?}");
                prop_assert_eq!(needed.0, bytes + missing.0, "needed");
                let shorter = |len| Plan::new(&spec, Budget::exact(bytes), len);
                prop_assert!(shorter(longest).is_ok(), "the longest, {longest}");
                prop_assert!(shorter(longest + 1).is_err(), "one longer than {longest}");
            }
            Err(SizingError::TooFewBlocks { missing, needed }) => {
                prop_assert!(spec.blocks_in(Budget::exact(bytes)) < 2);
                prop_assert!(spec.blocks_in(Budget::exact(bytes + missing.0)) >= 2);
                prop_assert!(spec.blocks_in(Budget::exact(bytes + missing.0 - 1)) < 2);
                prop_assert_eq!(needed.0, bytes + missing.0, "needed");
            }
            Err(e) => prop_assert!(false, "{e}"),
        }
    }
}

/// A card of 24 GiB with Llama-3.1-8B in bf16.
fn card() -> Memory {
    Memory {
        total: Bytes(24 * GIB),
        utilisation: 0.9,
        weights: Bytes(16_060_522_496),
        peak_activation: Bytes(1228 * MIB),
        margin: Bytes(512 * MIB),
    }
}

#[test]
fn memory_for_keys_and_values_is_what_the_rest_leaves() {
    let left = card().for_kv().unwrap();
    // 24 GiB x 0.9 is 23,192,823,398.4.
    let want = 23_192_823_398 - 16_060_522_496 - (1228 + 512) * MIB;
    assert_eq!(left, Bytes(want), "24 GiB x 0.9 - weights - activations - margin");
    let plan = Plan::new(&llama_8b(), card(), 8192).unwrap();
    assert_eq!(plan.num_blocks() as u64, want / (2 * MIB), "blocks of 2 MiB in it");
}

#[test]
fn a_plan_reads_as_arithmetic() {
    let plan = Plan::new(&llama_8b(), card(), 8192).unwrap();
    let want = "\
memory                       24 GiB
  x 90% that may be used  21.60 GiB
  - weights               14.96 GiB
  - activations, at most   1.20 GiB
  - margin                  512 MiB
for keys and values        4.94 GiB
one token in one layer       4096 B  2 x 8 KV heads x 128 x 2 B
  x 32 layers: one token    128 KiB
  x 16 tokens: one block      2 MiB
blocks                        2,530  4.94 GiB; block 0 is never handed out
tokens                       40,464  2,529 blocks x 16
sequences of 8,192             4.93  at once, at full length";
    assert_eq!(plan.to_string(), want, "the plan in words");
}

#[test]
fn a_given_budget_and_layers_of_two_shapes_read_as_arithmetic() {
    let mut config = small(3, 2, 18);
    let other = small(1, 4, 32).layers.remove(0);
    config.layers.push(other);
    let spec = KvSpec::from_config(&config, DType::F8E4M3, 8).unwrap();
    let plan = Plan::new(&spec, budget("1MiB"), 100).unwrap();
    let want = "\
for keys and values       1 MiB  as given
one token in one layer    132 B  2 x 2 KV heads x 32 x 1 B, 18 padded to 32, and 2 x 2 B of scales
  x 3 layers              396 B
one token in one layer    264 B  2 x 4 KV heads x 32 x 1 B, and 2 x 4 B of scales
  x 1 layer               264 B
one token                 660 B  all of these
  x 8 tokens: one block  5280 B
blocks                      198  1020.94 KiB; block 0 is never handed out
tokens                    1,576  197 blocks x 8
sequences of 100          15.15  at once, at full length";
    assert_eq!(plan.to_string(), want, "the plan in words");
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_what_is_missing() {
    let memory = Memory { total: Bytes(16 * GIB), ..card() };
    let error = Plan::new(&llama_8b(), memory, 8192).unwrap_err();
    // 16 GiB x 0.9 is 15,461,882,265.6.
    let missing = Bytes(16_060_522_496 + (1228 + 512) * MIB - 15_461_882_265);
    assert!(
        matches!(error, SizingError::ModelDoesNotFit { missing: m, .. } if m == missing),
        "missing {missing:?}: {error:?}"
    );
    let want = "the model does not fit: 14.40 GiB may be used, and weights (14.96 GiB), activations (1.20 GiB) \
                and margin (512 MiB) take 2.26 GiB more than that";
    assert!(error.to_string().starts_with(want), "{error}");
    // And with so much more it fits, if only just: there is no block yet.
    let memory = Memory { total: Bytes(24 * GIB), ..card() };
    let exactly =
        Memory { weights: Bytes(memory.weights.0 + memory.for_kv().unwrap().0), ..memory };
    assert_eq!(exactly.for_kv().unwrap(), Bytes(0), "what is left when all is taken");
    let error = Plan::new(&llama_8b(), exactly, 8192).unwrap_err();
    assert!(matches!(error, SizingError::TooFewBlocks { .. }), "{error:?}");
}

#[test]
fn a_context_that_does_not_fit_is_refused_with_what_is_missing_and_what_would_fit() {
    let error = Plan::new(&llama_8b(), budget("10.55GiB"), 131_072).unwrap_err();
    // 131,072 tokens are 8,192 blocks, and the null block; 5,401 of 16 tokens hold 86,416.
    let want = "a sequence of max_model_len = 131072 tokens does not fit: keys and values of one take 16.00 GiB, \
                there is room for 10.55 GiB, so 5.45 GiB are missing; lower max_model_len to 86416 or less";
    assert!(error.to_string().starts_with(want), "{error}");
    let plan = Plan::new(&llama_8b(), budget("10.55GiB"), 86_416).unwrap();
    assert_eq!((plan.tokens(), plan.sequences()), (86_416, 1.0), "tokens and sequences at 86,416");
}

#[test]
fn a_pool_of_nothing_but_the_null_block_is_refused() {
    for given in ["0", "2MiB", "3MiB"] {
        let error = Plan::new(&llama_8b(), budget(given), 1).unwrap_err();
        assert!(matches!(error, SizingError::TooFewBlocks { .. }), "{given}: {error:?}");
        assert!(error.to_string().starts_with("a pool has at least two blocks"), "{error}");
    }
    let plan = Plan::new(&llama_8b(), budget("4MiB"), 16).unwrap();
    assert_eq!((plan.num_blocks(), plan.tokens()), (2, 16), "blocks and tokens of 4 MiB");
}

#[test]
fn parameters_that_mean_nothing_are_refused() {
    let config = config("llama-3.1-8b.json");
    for block_size in [0, 3, 24] {
        let error = KvSpec::from_config(&config, DType::BF16, block_size).unwrap_err();
        assert_eq!(error, SizingError::BadBlockSize(block_size), "block size {block_size}");
    }
    let error = KvSpec::from_config(&config, DType::F16, 16).unwrap_err();
    assert_eq!(error, SizingError::BadDType(DType::F16), "keys in f16");
    for utilisation in [0.0, -0.1, 1.01, f64::NAN, f64::INFINITY] {
        let error = Memory { utilisation, ..card() }.for_kv().unwrap_err();
        assert!(error.to_string().contains("a share of the memory"), "{utilisation}: {error}");
    }
    let error = Plan::new(&llama_8b(), budget("1GiB"), 0).unwrap_err();
    assert_eq!(error, SizingError::NoContext, "sequences of no tokens");
    let mut without = config.clone();
    without.layers.clear();
    let error = KvSpec::from_config(&without, DType::BF16, 16).unwrap_err();
    assert_eq!(error, SizingError::NoAttention, "a model without attention");
}

#[test]
fn sizes_are_read_in_the_units_people_write() {
    let cases: [(&str, u64); 24] = [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("4096 b", 4096),
        ("1KiB", 1024),
        ("1kib", 1024),
        ("1KB", 1000),
        ("1kb", 1000),
        ("1K", 1024),
        ("1k", 1000),
        ("512MiB", 512 << 20),
        ("512 MiB", 512 << 20),
        ("2gb", 2_000_000_000),
        ("2GB", 2_000_000_000),
        ("2GiB", 2 << 30),
        ("1G", 1 << 30),
        ("1g", 1_000_000_000),
        ("1TiB", 1 << 40),
        (" 3 T ", 3 << 40),
        ("1.5GiB", 3 << 29),
        (".5KiB", 512),
        ("2.GiB", 2 << 30),
        ("10.55GiB", 11_327_976_243),
        ("0.0000000001GB", 0),
    ];
    for (text, want) in cases {
        assert_eq!(parse_bytes(text), Ok(Bytes(want)), "`{text}` in bytes");
    }
}

#[test]
fn what_is_no_size_is_refused_with_what_would_be() {
    let cases = [
        ("", "does not begin with a number"),
        ("GiB", "does not begin with a number"),
        (".", "does not begin with a number"),
        ("-1GiB", "no such unit"),
        ("1,5GiB", "no such unit"),
        ("1e9", "no such unit"),
        ("12 parsecs", "no such unit"),
        ("1Gi", "no such unit"),
        ("1iB", "no such unit"),
        ("1BB", "no such unit"),
        ("1 ẞ", "no such unit"),
        ("1.2.3GiB", "one decimal point"),
        ("0.0000000000001TiB", "at most 12 decimals"),
        ("16777216TiB", "larger than any memory"),
        ("99999999999999999999999999999999999999999999", "larger than any memory"),
    ];
    for (text, why) in cases {
        let error = text.parse::<Budget>().expect_err(text).to_string();
        assert!(error.contains(why), "`{text}`: {error}");
        assert!(error.contains("such as 10.55GiB, 512MiB or 2GB"), "`{text}`: {error}");
    }
}

#[test]
fn sizes_are_displayed_with_two_decimals_unless_they_are_whole() {
    let cases = [
        (0, "0 B"),
        (4096, "4096 B"),
        (10_239, "10239 B"),
        (10_240, "10 KiB"),
        (128 << 10, "128 KiB"),
        (MIB - 1, "1.00 MiB"),
        (2 * MIB, "2 MiB"),
        (GIB - 6 * 1024, "1023.99 MiB"),
        (GIB - 1024, "1.00 GiB"),
        (5402 * 2 * MIB, "10.55 GiB"),
        (u64::MAX, "16777216.00 TiB"),
    ];
    for (bytes, want) in cases {
        assert_eq!(Bytes(bytes).to_string(), want, "{bytes} bytes");
    }
    assert_eq!(
        format!("{:>10}|{:<10}|", Bytes(0), Bytes(2 * MIB)),
        "       0 B|2 MiB     |",
        "padded"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_displayed_reads_back_to_within_its_last_decimal(bytes in 0..1u64 << 50) {
        let shown = Bytes(bytes).to_string();
        let read = parse_bytes(&shown).unwrap().0;
        let unit = shown.split(' ').next_back().and_then(|u| parse_bytes(&format!("1{u}")).ok());
        prop_assert!(read.abs_diff(bytes) <= unit.unwrap().0 / 200 + 1, "{bytes}, {shown}, {read}");
    }

    /// Rounding up takes less than half a block more than was said, and less than the decimals leave
    /// open. Without decimals it takes nothing.
    #[test]
    fn only_a_rounded_size_is_rounded_to_a_block(
        whole in 0..2000u64,
        decimals in 0..100u64,
        piece in 1..20_000_000u64,
    ) {
        let exact = budget(&format!("{whole}MiB"));
        prop_assert_eq!(exact.pieces_of(piece), whole * MIB / piece, "a whole number of MiB");

        let rounded = budget(&format!("{whole}.{decimals:02}MiB"));
        let (bytes, blocks) = (rounded.bytes().0, rounded.pieces_of(piece));
        prop_assert!(blocks >= bytes / piece, "never fewer than fit");
        let over = (blocks * piece).saturating_sub(bytes);
        prop_assert!(over <= piece / 2 && over <= MIB / 200, "{over} bytes over {bytes}");
        let left = bytes.saturating_sub(blocks * piece);
        prop_assert!(left < piece, "{left} bytes left, a block is {piece}");
        if piece / 2 < MIB / 200 {
            prop_assert!(left <= piece / 2 + 1, "{left} of {piece}: the nearest is one more");
        }
    }
}
