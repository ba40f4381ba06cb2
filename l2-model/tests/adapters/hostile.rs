//! Adapters that cannot be used: an error names what is wrong, and nothing panics.

use std::path::Path;

use l1_tensor::{Precision, Runtime};
use l2_model::adapter::{AdapterError, LoraAdapter};
use l2_model::checkpoint::CheckpointError;
use l2_model::{Decoder, Error};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};

use super::runtime::runtime;
use super::{RANK, fixtures, judge, load};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// A stored tensor: name, shape, values as f32.
type Stored = (String, Vec<usize>, Vec<f32>);

/// Config and tensors of `tiny-llama-rslora`, to be changed.
struct Files {
    config: Value,
    tensors: Vec<Stored>,
}

impl Files {
    fn new() -> Self {
        let dir = fixtures().join("adapters/tiny-llama-rslora");
        let config = serde_json::from_slice(&std::fs::read(dir.join(CONFIG)).unwrap()).unwrap();
        let bytes = std::fs::read(dir.join(WEIGHTS)).unwrap();
        let stored = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = |(name, view): (String, TensorView<'_>)| {
            let (numbers, _) = view.data().as_chunks::<4>();
            let values = numbers.iter().map(|b| f32::from_le_bytes(*b)).collect();
            (name, view.shape().to_vec(), values)
        };
        Self { config, tensors: stored.tensors().into_iter().map(tensor).collect() }
    }

    fn named(&mut self, part: &str) -> &mut Stored {
        self.tensors.iter_mut().find(|t| t.0.contains(part)).unwrap()
    }

    fn write(&self, dir: &Path) {
        self.write_as(Dtype::F32, dir);
    }

    /// Writes the bytes of all tensors as numbers of this type.
    fn write_as(&self, dtype: Dtype, dir: &Path) {
        let per_number = size_of::<f32>() * 8 / dtype.bitsize();
        std::fs::write(dir.join(CONFIG), self.config.to_string()).unwrap();
        let bytes: Vec<_> = self
            .tensors
            .iter()
            .map(|(name, shape, values)| {
                let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                (name.clone(), shape.clone(), bytes)
            })
            .collect();
        let views = bytes.iter().map(|(name, shape, bytes)| {
            let mut shape = shape.clone();
            *shape.last_mut().unwrap() *= per_number;
            (name.clone(), TensorView::new(dtype, shape, bytes).unwrap())
        });
        let file = safetensors::serialize(views, None).unwrap();
        std::fs::write(dir.join(WEIGHTS), file).unwrap();
    }

    fn open(&self, rt: &Runtime, decoder: &Decoder) -> l2_model::Result<LoraAdapter> {
        let dir = tempfile::tempdir().unwrap();
        self.write(dir.path());
        LoraAdapter::open(rt, dir.path(), decoder.config(), RANK)
    }
}

fn llama() -> (Runtime, Decoder) {
    let rt = runtime(Precision::F32, 1);
    let decoder = load("tiny-llama", &rt);
    (rt, decoder)
}

#[test]
fn matrices_of_a_type_that_is_not_read_are_refused_with_what_to_do_with_an_adapter() {
    let (rt, decoder) = llama();
    for dtype in [Dtype::I32, Dtype::U8, Dtype::F8_E4M3, Dtype::I16, Dtype::BOOL] {
        let dir = tempfile::tempdir().unwrap();
        Files::new().write_as(dtype, dir.path());
        let opened = LoraAdapter::open(&rt, dir.path(), decoder.config(), RANK);
        let why = opened.unwrap_err();
        let named = |of: &str| of == dtype.to_string();
        assert!(
            matches!(&why, Error::Adapter(AdapterError::Type { dtype, .. }) if named(dtype)),
            "{dtype}: {why}"
        );
        let text = why.to_string();
        assert!(text.contains("PEFT") && !text.contains("unquantised"), "{text}");
    }
}

#[test]
fn variants_of_lora_that_are_not_supported_are_refused_by_key() {
    let (rt, decoder) = llama();
    Files::new().open(&rt, &decoder).unwrap();
    for (key, value) in [
        ("peft_type", json!("IA3")),
        ("peft_type", json!(null)),
        ("use_dora", json!(true)),
        ("lora_bias", json!(true)),
        ("bias", json!("all")),
        ("bias", json!(true)),
        ("fan_in_fan_out", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("trainable_token_indices", json!([1, 2])),
        ("target_parameters", json!(["experts.gate_up_proj"])),
        ("target_modules", json!(["q_proj", "lm_head"])),
        ("target_modules", json!(["model.embed_tokens"])),
        ("layer_replication", json!([[0, 2], [1, 3]])),
        ("alora_invocation_tokens", json!([5])),
        ("use_qalora", json!(true)),
        ("use_bdlora", json!({"nblocks": 2})),
        ("arrow_config", json!({"top_k": 3})),
        ("velora_config", json!({"rank": 1})),
        ("kasa_config", json!({"beta": 1e-4})),
        ("monteclora_config", json!({"num_samples": 4})),
        ("megatron_config", json!({"tp": 2})),
        ("ensure_weight_tying", json!(true)),
        ("use_something_of_the_future", json!(true)),
        ("something_config", json!({"a": 1})),
        ("init_lora_weights", json!("pissa_niter_16")),
        ("init_lora_weights", json!("olora")),
        ("init_lora_weights", json!("corda")),
        ("init_lora_weights", json!("lora_ga")),
        ("init_lora_weights", json!("loftq")),
        ("r", json!(0)),
        ("r", json!(-4)),
        ("r", json!("eight")),
        ("lora_alpha", json!("a lot")),
        ("use_rslora", json!(1)),
        ("rank_pattern", json!([3])),
        ("rank_pattern.q_proj", json!({"q_proj": 0})),
        ("rank_pattern.q_proj", json!({"q_proj": 2.5})),
        ("rank_pattern.q(_proj", json!({"q(_proj": 2})),
        // Python reads these three in another way.
        ("rank_pattern.q_proj)|(v_proj", json!({"q_proj)|(v_proj": 2})),
        ("rank_pattern.\\w++_proj", json!({"\\w++_proj": 2})),
        ("rank_pattern.[a-z&&q]_proj", json!({"[a-z&&q]_proj": 2})),
        // Compiled, this has some megabytes.
        ("rank_pattern.\\w{999}q_proj", json!({"\\w{999}q_proj": 2})),
        ("alpha_pattern.q_proj", json!({"q_proj": "x"})),
    ] {
        let mut files = Files::new();
        let field = key.split('.').next().unwrap();
        files.config[field] = value.clone();
        let what = format!("{key} = {value}");
        let error = judge::refused(&what, "Unsupported", files.open(&rt, &decoder));
        let Error::Adapter(AdapterError::Unsupported { key: named, .. }) = &error else {
            panic!("{what}: {error:?}")
        };
        assert_eq!(named, key, "{what}: {error}");
    }
    // Values that change nothing.
    for (key, value) in [
        ("use_dora", json!(null)),
        ("bias", json!("none")),
        ("modules_to_save", json!([])),
        ("init_lora_weights", json!("gaussian")),
        ("use_something_of_the_future", json!(false)),
        ("something_config", json!({})),
        ("loftq_config", json!({"loftq_bits": 4})),
        ("a_trainers_note", json!(true)),
        ("peft_type", json!("LORA")),
    ] {
        let mut files = Files::new();
        files.config[key] = value.clone();
        judge::works(format!("{key} = {value}"), files.open(&rt, &decoder));
    }
}

#[test]
fn numbers_that_are_not_finite_are_refused_by_tensor_and_row() {
    let (rt, decoder) = llama();
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        let mut files = Files::new();
        let (name, shape, values) = files.named("layers.1.self_attn.v_proj.lora_B");
        values[2 * shape[1] + 1] = value;
        let name = name.clone();
        let error = judge::refused(value, "NotFinite", files.open(&rt, &decoder));
        let right = matches!(&error, Error::Adapter(AdapterError::NotFinite { tensor, row: 2, .. })
            if *tensor == name);
        assert!(right, "{value}: {error:?}");
    }
}

#[test]
fn a_factor_that_is_not_finite_is_refused() {
    let (rt, decoder) = llama();
    for alpha in [json!(1e39), json!(-1e300)] {
        let mut files = Files::new();
        files.config["lora_alpha"] = alpha;
        let refused = files.open(&rt, &decoder);
        judge::fails_with!("alpha", refused, Error::Adapter(AdapterError::Scale { .. }));
    }
    // JSON has no NaN; Python writes one, and it must not become the default.
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new();
    files.write(dir.path());
    let text = files.config.to_string().replace("\"lora_alpha\":12", "\"lora_alpha\":NaN");
    assert!(text.contains("NaN"));
    std::fs::write(dir.path().join(CONFIG), text).unwrap();
    let refused = LoraAdapter::open(&rt, dir.path(), decoder.config(), RANK);
    judge::fails_with!("NaN", refused, Error::Adapter(AdapterError::File { .. }));
}

#[test]
fn the_first_expression_of_a_pattern_that_matches_counts() {
    let (rt, decoder) = llama();
    // In this order `q_proj` gives layer 0 the rank 5, and its stored matrix has rank 3.
    let mut files = Files::new();
    files.config["rank_pattern"] =
        json!({ "down_proj": 2, "q_proj": 5, "layers\\.0\\.self_attn\\.q_proj": 3 });
    judge::fails_with!(
        "the general expression first",
        files.open(&rt, &decoder),
        Error::Adapter(AdapterError::Shape { rank: 5, .. })
    );
    files.config["rank_pattern"] =
        json!({ "layers\\.0\\.self_attn\\.q_proj": 3, "q_proj": 5, "down_proj": 2 });
    judge::works("the special expression first", files.open(&rt, &decoder));
    // Not the end of a name, and not from behind a dot.
    for key in ["self_attn", "_proj", "proj"] {
        let mut files = Files::new();
        files.config["alpha_pattern"] = json!({ key: 1e39 });
        judge::works(key, files.open(&rt, &decoder));
    }
}

#[test]
fn rank_and_alpha_are_8_where_the_config_has_none() {
    let (rt, decoder) = llama();
    let mut files = Files::new();
    files
        .config
        .as_object_mut()
        .unwrap()
        .retain(|key, _| !["r", "lora_alpha"].contains(&key.as_str()));
    let without = judge::works("no r, no lora_alpha", files.open(&rt, &decoder));
    // v_proj has the rank of `r`, which is 8.
    assert_eq!(without.rank(), 8);
    files.config["r"] = json!(9);
    judge::fails_with!(
        "r is 9",
        files.open(&rt, &decoder),
        Error::Adapter(AdapterError::Shape { rank: 9, .. })
    );
}

/// The prefix cache tells adapters apart by it.
#[test]
fn the_digest_covers_every_number_name_and_key() {
    let (rt, decoder) = llama();
    let digest = |files: &Files| *files.open(&rt, &decoder).unwrap().digest();
    let original = digest(&Files::new());
    assert_eq!(digest(&Files::new()), original);
    let mut number = Files::new();
    let last = number.named("layers.2.self_attn.v_proj.lora_B").2.last_mut().unwrap();
    *last += 0.25;
    let mut names = Files::new();
    for tensor in &mut names.tensors {
        let (v0, v1) = ("layers.0.self_attn.v_proj", "layers.1.self_attn.v_proj");
        tensor.0 = match tensor.0.contains(v0) {
            true => tensor.0.replace(v0, v1),
            false => tensor.0.replace(v1, v0),
        };
    }
    let mut config = Files::new();
    config.config["lora_alpha"] = json!(13);
    for (what, files) in [("a number", number), ("two names", names), ("a key", config)] {
        assert_ne!(digest(&files), original, "{what} changed, and the digest did not");
    }
}

#[test]
fn ranks_and_shapes_must_be_those_of_config_and_model() {
    let (rt, decoder) = llama();
    let mut files = Files::new();
    files.config["r"] = json!(7);
    judge::fails_with!(
        "another rank in the config",
        files.open(&rt, &decoder),
        Error::Adapter(AdapterError::Shape { rank: 7, .. })
    );
    let qwen = load("tiny-qwen3", &rt);
    judge::fails_with!(
        "an adapter of another model",
        Files::new().open(&rt, &qwen),
        Error::Adapter(AdapterError::Shape { .. } | AdapterError::Tensor { .. })
    );
    let dir = fixtures().join("adapters/tiny-llama-rslora");
    judge::fails_with!(
        "a rank above the maximum",
        LoraAdapter::open(&rt, &dir, decoder.config(), 7),
        Error::Adapter(AdapterError::RankTooLarge { rank: 8, max: 7, .. })
    );
    let one = LoraAdapter::open(&rt, &dir, decoder.config(), 1);
    let why = judge::refused("a maximum of 1", "RankTooLarge", one).to_string();
    assert!(why.contains("to at least 8"), "the largest of all ranks: {why}");
    let mut files = Files::new();
    let transposed = files.named("layers.0.self_attn.q_proj.lora_A");
    transposed.1.reverse();
    judge::fails_with!(
        "a transposed matrix",
        files.open(&rt, &decoder),
        Error::Adapter(AdapterError::Shape { .. })
    );
    let mut files = Files::new();
    let flat = files.named("layers.0.self_attn.q_proj.lora_A");
    flat.1 = vec![flat.2.len()];
    judge::fails_with!(
        "a matrix without columns",
        files.open(&rt, &decoder),
        Error::Adapter(AdapterError::Shape { .. })
    );
}

#[test]
fn a_tensor_whose_module_the_config_does_not_list_is_refused() {
    let (rt, decoder) = llama();
    let mut files = Files::new();
    for (targets, lists_v) in [
        (json!(["down_proj", "q_proj"]), false),
        (json!(["down_proj", "q_proj", "_proj"]), false),
        (json!(["down_proj", "q_proj", "self_attn.v_proj"]), true),
        (json!("all-linear"), true),
    ] {
        files.config["target_modules"] = targets.clone();
        match files.open(&rt, &decoder) {
            Ok(_) => assert!(lists_v, "{targets}"),
            Err(why) => {
                let Error::Adapter(AdapterError::Tensor { tensor, why }) = why else {
                    panic!("{targets}: {why}")
                };
                assert!(!lists_v && tensor.contains("v_proj"), "{targets}: {tensor}");
                assert!(why.contains("target_modules"), "{why}");
            }
        }
    }
}

#[test]
fn incomplete_adapters_name_what_is_missing() {
    let (rt, decoder) = llama();
    let missing = |files: &Files| match files.open(&rt, &decoder) {
        Err(Error::Adapter(AdapterError::Missing { missing })) => missing,
        other => panic!("{:?}", other.map(|_| ())),
    };
    for side in ["lora_A", "lora_B"] {
        let mut files = Files::new();
        let name = files.named(&format!("layers.1.mlp.down_proj.{side}")).0.clone();
        files.tensors.retain(|t| t.0 != name);
        assert_eq!(missing(&files), name);
    }
    let mut files = Files::new();
    files.tensors.retain(|t| !t.0.contains("layers.2.mlp.down_proj"));
    assert_eq!(missing(&files), "model.layers.2.mlp.down_proj.lora_A.weight");
    // A config that leaves out layers says nothing of single ones, and a projection must be somewhere.
    files.config["layers_to_transform"] = json!([0, 1]);
    judge::works("two of three layers", files.open(&rt, &decoder));
    files.tensors.retain(|t| !t.0.contains("down_proj"));
    assert_eq!(missing(&files), "model.layers.0.mlp.down_proj.lora_A.weight");
    for nothing in [json!([]), json!(""), json!(["foo"])] {
        files.config["exclude_modules"] = nothing;
        assert_eq!(missing(&files), "model.layers.0.mlp.down_proj.lora_A.weight");
    }
    files.config["exclude_modules"] = json!(["down_proj"]);
    judge::works("down_proj excluded", files.open(&rt, &decoder));
    // A whole name in the list.
    let mut files = Files::new();
    let targets = json!(["down_proj", "q_proj", "v_proj", "model.layers.1.mlp.up_proj"]);
    files.config["target_modules"] = targets;
    assert_eq!(missing(&files), "model.layers.1.mlp.up_proj.lora_A.weight");
    let mut files = Files::new();
    files.tensors.clear();
    missing(&files);
}

#[test]
fn tensors_of_other_parts_are_refused() {
    let (rt, decoder) = llama();
    for (old, new) in [
        ("layers.1.", "layers.3."),
        ("layers.1.", "layers.99999999999999999999."),
        ("model.layers.1.self_attn.q_proj", "lm_head"),
        ("self_attn.q_proj", "self_attn.qkv_proj"),
        ("lora_A.weight", "lora_magnitude_vector"),
        // The same module a second time, by its other name.
        (
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A",
            "base_model.model.layers.1.self_attn.q_proj.lora_A",
        ),
    ] {
        let mut files = Files::new();
        let tensor = files.named(old);
        tensor.0 = tensor.0.replace(old, new);
        judge::fails_with!(
            format!("{old} called {new}"),
            files.open(&rt, &decoder),
            Error::Adapter(AdapterError::Tensor { .. })
        );
    }
}

/// A file of one terabyte takes no memory and no time: its length alone is an error. (It is sparse.)
#[test]
fn a_file_that_is_larger_than_an_adapter_can_be_is_not_read() {
    let (rt, decoder) = llama();
    let dir = tempfile::tempdir().unwrap();
    Files::new().write(dir.path());
    let file = std::fs::OpenOptions::new().write(true).open(dir.path().join(WEIGHTS)).unwrap();
    file.set_len(1 << 40).unwrap();
    let refused = LoraAdapter::open(&rt, dir.path(), decoder.config(), RANK);
    let large = |e: &Error| matches!(e, Error::Checkpoint(CheckpointError::TooLarge { .. }));
    judge::fails_with!("a large file", refused, e if large(e));
}

#[test]
fn directories_without_an_adapter_say_what_belongs_there() {
    let (rt, decoder) = llama();
    let open = |dir: &Path| LoraAdapter::open(&rt, dir, decoder.config(), RANK);
    let dir = tempfile::tempdir().unwrap();
    let no_config = |e: &Error| matches!(e, Error::Adapter(AdapterError::NoConfig { .. }));
    let no_directory = |e: &Error| matches!(e, Error::Adapter(AdapterError::NoDirectory { .. }));
    judge::fails_with!("nothing", open(&dir.path().join("absent")), e if no_directory(e));
    judge::fails_with!("an empty directory", open(dir.path()), e if no_config(e));
    let file = |e: &Error| matches!(e, Error::Adapter(AdapterError::NotADirectory { .. }));
    std::fs::write(dir.path().join("a_file"), "").unwrap();
    judge::fails_with!("a file", open(&dir.path().join("a_file")), e if file(e));
    judge::fails_with!("a model", open(&fixtures().join("tiny-llama")), e if no_config(e));
    std::fs::write(dir.path().join(CONFIG), Files::new().config.to_string()).unwrap();
    std::fs::write(dir.path().join("adapter_model.bin"), "pickle").unwrap();
    let only_bin = |e: &Error| matches!(e, Error::Adapter(AdapterError::NoWeights { .. }));
    judge::fails_with!("a .bin", open(dir.path()), e if only_bin(e));
    for text in ["", "[]", "null", "{", "{\"r\": NaN}", "\u{0}"] {
        std::fs::write(dir.path().join(CONFIG), text).unwrap();
        judge::refused(text, "any error", open(dir.path()));
    }
    std::fs::write(dir.path().join(CONFIG), " ".repeat(2 << 20)).unwrap();
    let large = |e: &Error| matches!(e, Error::Adapter(AdapterError::File { .. }));
    judge::fails_with!("a large config", open(dir.path()), e if large(e));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A file that was cut or changed anywhere gives an error, or an adapter; never a panic.
    #[test]
    fn damaged_files_do_not_panic(cut in 0usize..40_000, at in 0usize..3000, byte: u8, weights: bool) {
        let (rt, decoder) = llama();
        let dir = tempfile::tempdir().unwrap();
        Files::new().write(dir.path());
        let path = dir.path().join(if weights { WEIGHTS } else { CONFIG });
        let mut bytes = std::fs::read(&path).unwrap();
        let at = at % bytes.len();
        bytes[at] = byte;
        std::fs::write(&path, &bytes).unwrap();
        let _ = LoraAdapter::open(&rt, dir.path(), decoder.config(), RANK);
        bytes.truncate(cut % bytes.len());
        std::fs::write(&path, &bytes).unwrap();
        prop_assert!(LoraAdapter::open(&rt, dir.path(), decoder.config(), RANK).is_err());
    }
}
