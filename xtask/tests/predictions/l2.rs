//! The second layer answers its own questions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use l1_tensor::ops::KvCache;
use l1_tensor::{DType, Runtime, RuntimeOptions};
use l2_model::adapter::LoraAdapter;
use l2_model::checkpoint::names::unpermute_rows;
use l2_model::checkpoint::quant::dequantize;
use l2_model::checkpoint::{Checkpoint, CheckpointError, GgufFile, StoredType};
use l2_model::tokenizer::Tokenizer;
use l2_model::{Batch, Decoder, Error, ModelConfig, ModelFiles, Session};
use serde_json::{Value, json};

use super::{agree, number, numbers, questions};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

fn runtime() -> Runtime {
    Runtime::new(RuntimeOptions::default()).unwrap()
}

/// The config that a question's sizes stand for, with one layer and tied unless it says.
pub fn config(facts: &Value) -> ModelConfig {
    let or = |key: &str, default: Value| match &facts[key] {
        Value::Null => default,
        given => given.clone(),
    };
    let (heads, d) = (or("q_heads", json!(2)), or("head_dim", json!(8)));
    let json = json!({
        "model_type": or("family", json!("llama")),
        "hidden_size": or("hidden", json!(number(&heads) * number(&d))),
        "num_attention_heads": heads,
        "num_key_value_heads": or("kv_heads", json!(1)),
        "head_dim": d,
        "intermediate_size": or("intermediate", json!(32)),
        "num_hidden_layers": or("layers", json!(1)),
        "vocab_size": or("vocab", json!(100)),
        "max_position_embeddings": 512,
        "tie_word_embeddings": or("tied", json!(true)),
    });
    ModelConfig::from_hf_json(&json).unwrap()
}

/// Every tensor that the loader asks for, with its size: what it misses in a checkpoint that has
/// next to nothing.
fn asked_for(rt: &Runtime, config: ModelConfig) -> BTreeMap<String, usize> {
    let dir = tempfile::tempdir().unwrap();
    let header = br#"{"other": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend([0; 4]);
    std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let error = match Decoder::load(rt, &checkpoint, config) {
        Err(Error::Checkpoint(CheckpointError::Tensors(error))) => error,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("loaded from nothing"),
    };
    error.missing.into_iter().map(|(name, shape)| (name, shape.iter().product())).collect()
}

#[test]
fn layers_have_the_weights_that_the_loader_asks_for() {
    let rt = runtime();
    agree(("l2", "layer-weights"), 100, number, |facts| {
        let all = asked_for(&rt, config(facts));
        all.iter().filter(|(name, _)| name.starts_with("model.layers.0.")).map(|(_, n)| n).sum()
    });
}

#[test]
fn models_have_the_weights_that_the_loader_asks_for() {
    let rt = runtime();
    agree(("l2", "model-weights"), 100, number, |facts| {
        asked_for(&rt, config(facts)).values().sum()
    });
}

#[test]
fn the_tensor_said_to_be_missing_is_the_one_the_loader_misses() {
    let rt = runtime();
    let name = |v: &Value| v.as_str().unwrap().to_string();
    agree(
        ("l2", "missing-tensor"),
        100,
        |answer| vec![name(answer)],
        |facts| {
            let listed: Vec<String> =
                facts["listed"].as_array().unwrap().iter().map(name).collect();
            let all = asked_for(&rt, config(facts));
            assert!(listed.iter().all(|name| all.contains_key(name)), "{listed:?}");
            all.into_keys().filter(|name| !listed.contains(name)).collect()
        },
    );
}

#[test]
fn a_token_needs_the_bytes_that_the_config_counts() {
    agree(("l2", "kv-bytes"), 100, number, |facts| {
        config(facts).kv_bytes_per_token(number(&facts["element"]))
    });
}

#[test]
fn a_sequence_takes_whole_tiles_of_the_cache() {
    agree(("l2", "sequence-bytes"), 100, number, |facts| {
        let [layers, heads, d, len] =
            ["layers", "kv_heads", "head_dim", "len"].map(|key| number(&facts[key]));
        let cache = KvCache::new(1, len.next_multiple_of(16), heads, d, DType::BF16).unwrap();
        layers * cache.block_bytes()
    });
}

#[test]
fn as_many_layers_slide_as_the_config_parser_says() {
    agree(("l2", "sliding-layers"), 200, number, |facts| {
        let mut json = json!({
            "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
            "intermediate_size": 32, "vocab_size": 100, "max_position_embeddings": 8192,
        });
        let all = json.as_object_mut().unwrap();
        all.extend(facts["config"].as_object().unwrap().clone());
        let config = ModelConfig::from_hf_json(&json).unwrap();
        config.attention_layers().filter(|(_, a)| a.window.is_some()).count()
    });
}

#[test]
fn tensors_begin_where_the_gguf_reader_finds_them() {
    agree(("l2", "gguf-offset"), 100, number, |facts| {
        let sizes = numbers(&facts["sizes"]);
        let names: Vec<&str> =
            facts["names"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
        let file = gguf(number(&facts["head"]), &names, &sizes);
        let parsed = GgufFile::parse(&file).unwrap();
        let tensor = parsed.tensor(names[number(&facts["asked"])]).unwrap();
        tensor.bytes.as_ptr() as usize - file.as_ptr() as usize
    });
}

/// A GGUF file whose header, metadata and infos take `head` bytes: a string fills up.
fn gguf(head: usize, names: &[&str], sizes: &[usize]) -> Vec<u8> {
    let string = |file: &mut Vec<u8>, text: &str| {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text.as_bytes());
    };
    let build = |fill: usize| {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend((sizes.len() as u64).to_le_bytes());
        file.extend(1u64.to_le_bytes());
        string(&mut file, "fill");
        file.extend(8u32.to_le_bytes()); // a string
        string(&mut file, &"x".repeat(fill));
        let mut offset = 0u64;
        for (name, n) in names.iter().zip(sizes) {
            string(&mut file, name);
            file.extend(1u32.to_le_bytes());
            file.extend((*n as u64).to_le_bytes());
            file.extend(0u32.to_le_bytes()); // F32
            file.extend(offset.to_le_bytes());
            offset = (offset + 4 * *n as u64).next_multiple_of(32);
        }
        (file, offset as usize)
    };
    let (mut file, data) = build(head - build(0).0.len());
    assert_eq!(file.len(), head);
    file.resize(head.next_multiple_of(32) + data, 0);
    file
}

#[test]
fn rows_lie_where_the_loader_looks_for_them() {
    agree(("l2", "unpermute-row"), 200, number, |facts| {
        let map = unpermute_rows(number(&facts["head_dim"]), number(&facts["heads"]));
        map[number(&facts["row"])]
    });
}

fn stored_type(name: &Value) -> StoredType {
    *StoredType::ALL.iter().find(|ty| Some(ty.name()) == name.as_str()).unwrap()
}

#[test]
fn weights_are_what_blocks_expand_to() {
    agree(
        ("l2", "quant-weight"),
        200,
        |answer| answer.as_f64().unwrap() as f32,
        |facts| {
            let block: Vec<u8> = numbers(&facts["block"]).iter().map(|b| *b as u8).collect();
            let mut weights = [0.0; 32];
            dequantize(stored_type(&facts["format"]), &block, &mut weights).unwrap();
            weights[number(&facts["i"])]
        },
    );
}

#[test]
fn matrices_take_the_bytes_that_their_type_says() {
    agree(("l2", "stored-bytes"), 100, number, |facts| {
        let weights = number(&facts["n"]) * number(&facts["k"]);
        stored_type(&facts["format"]).bytes_for(weights).unwrap()
    });
}

#[test]
fn a_stream_holds_back_what_the_question_says() {
    let file = fixtures().join("tokenizers/gpt-2.tokenizer.json");
    let tokenizer = Tokenizer::from_file(file).unwrap();
    // Any bytes can be made of tokens of one byte.
    let id_of = |byte: u8| {
        let ids = 0..tokenizer.vocab_size() as u32;
        ids.into_iter().find(|id| tokenizer.token_bytes(*id).is_ok_and(|b| b == [byte])).unwrap()
    };
    agree(("l2", "held-bytes"), 60, numbers, |facts| {
        let mut stream = tokenizer.detokenizer(false);
        let mut waiting = 0;
        let mut held = Vec::new();
        for token in facts["tokens"].as_array().unwrap() {
            for byte in numbers(token) {
                waiting += 1;
                waiting -= stream.push(id_of(byte as u8)).unwrap().len();
            }
            held.push(waiting);
        }
        held
    });
}

#[test]
fn prompts_become_as_many_ids_as_the_tokenizer_makes() {
    let open = |name: &str| Tokenizer::from_hf_dir(fixtures().join(name)).unwrap();
    let (with, without) = (open("tiny-llama"), open("tiny-qwen2"));
    assert_eq!((with.prefix().len(), without.prefix().len()), (1, 0), "which has a BOS rule");
    agree(("l2", "bos-ids"), 100, number, |facts| {
        let adds = facts["adds"] == true;
        let tokenizer = if adds { &with } else { &without };
        // The question's <s> is any special token.
        let special = (0..tokenizer.vocab_size() as u32).find(|id| tokenizer.is_special(*id));
        let special = tokenizer.id_to_token(special.unwrap()).unwrap();
        let (text, asked) = ("a few words", facts["asked"] == true);
        let written = if facts["written"] == true { special } else { String::new() };
        let prompt = format!("{written}{text}");
        let plain = tokenizer.encode(text, false).unwrap().len();
        let more = tokenizer.encode(&prompt, asked).unwrap().len() - plain;
        number(&facts["words"]) + more + facts["held"].as_u64().unwrap_or(0) as usize
    });
}

#[test]
fn rows_asked_for_are_the_last_of_sequences_in_a_batch_that_is_right() {
    agree(("l2", "logit-rows"), 200, numbers, |facts| {
        let cu: Vec<i32> = numbers(&facts["cu_seqlens_q"]).iter().map(|n| *n as i32).collect();
        let rows: Vec<u32> = numbers(&facts["rows"]).iter().map(|n| *n as u32).collect();
        let n = *cu.last().unwrap() as usize;
        let positions: Vec<i32> = cu.windows(2).flat_map(|w| 0..w[1] - w[0]).collect();
        let slots: Vec<u32> = (0..cu.len() as u32 - 1).collect();
        let batch = Batch {
            tokens: &vec![1; n],
            positions: &positions,
            cu_seqlens_q: &cu,
            state_slots: &slots,
            logit_rows: &rows,
            ..Batch::default()
        };
        batch.check(100).unwrap();
        // Behind a last row a new sequence begins, at position 0, or the batch ends.
        let last = |row: usize| positions.get(row + 1).is_none_or(|p| *p == 0);
        let rows = rows.iter().map(|r| *r as usize);
        rows.filter(|row| last(*row)).collect()
    });
}

#[test]
fn a_session_continues_at_the_position_said() {
    let rt = runtime();
    let decoder = ModelFiles::open(&fixtures().join("tiny-llama")).unwrap().decoder(&rt).unwrap();
    agree(("l2", "next-position"), 25, number, |facts| {
        let mut session = Session::new(&decoder, &rt, 64).unwrap();
        for event in facts["events"].as_array().unwrap() {
            if let Some(n) = event["feed"].as_u64() {
                session.feed(&vec![7; n as usize]).unwrap();
            } else if let Some(n) = event["fail"].as_u64() {
                // No model has such a token.
                assert!(session.feed(&vec![u32::MAX; n as usize]).is_err());
            } else {
                session.rollback(number(&event["rollback"])).unwrap();
            }
        }
        session.tokens().len()
    });
}

#[test]
fn an_adapter_has_as_many_numbers_as_said() {
    let rt = runtime();
    agree(("l2", "lora-parameters"), 12, number, |facts| {
        let config = config(facts);
        let [q, kv] =
            ["q_heads", "kv_heads"].map(|key| number(&facts[key]) * number(&facts["head_dim"]));
        let (h, inner) = (config.hidden, number(&facts["intermediate"]));
        let rank = number(&facts["rank"]);
        let mut tensors = BTreeMap::new();
        for module in facts["modules"].as_str().unwrap().split(" and ") {
            let (parent, n, k) = match module {
                "q_proj" => ("self_attn", q, h),
                "k_proj" | "v_proj" => ("self_attn", kv, h),
                "o_proj" => ("self_attn", h, q),
                "up_proj" => ("mlp", inner, h),
                "down_proj" => ("mlp", h, inner),
                other => panic!("{other}"),
            };
            for layer in 0..config.layers.len() {
                let p = format!("base_model.model.model.layers.{layer}.{parent}.{module}");
                tensors.insert(format!("{p}.lora_A.weight"), [rank, k]);
                tensors.insert(format!("{p}.lora_B.weight"), [n, rank]);
            }
        }
        let dir = tempfile::tempdir().unwrap();
        write_bf16_zeros(&dir.path().join("adapter_model.safetensors"), &tensors);
        let peft = json!({ "peft_type": "LORA", "r": rank, "lora_alpha": rank });
        std::fs::write(dir.path().join("adapter_config.json"), peft.to_string()).unwrap();
        LoraAdapter::open(&rt, dir.path(), &config, rank).unwrap().parameters()
    });
}

/// A safetensors file of these shapes.
fn write_bf16_zeros(path: &Path, tensors: &BTreeMap<String, [usize; 2]>) {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let begin = end;
        end += 2 * shape[0] * shape[1];
        let entry = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [begin, end] });
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + end, 0);
    std::fs::write(path, file).unwrap();
}

#[test]
fn every_question_of_this_layer_states_its_sizes() {
    for question in questions("l2", "kv-bytes", 20) {
        let text = question["text"].as_str().unwrap();
        for key in ["layers", "q_heads", "kv_heads", "head_dim"] {
            let size = number(&question["facts"][key]);
            assert!(text.contains(&format!("{size}")), "{key} is not in: {text}");
        }
    }
}
