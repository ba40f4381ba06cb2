//! Where keys and values are kept: `--state`, `--block-size`, `--kv-dtype`, `--kv-memory`, `--trace-blocks`.

use serde_json::Value;

use crate::golden::{Golden, tiny_models};
use crate::strata::{arg, comma, fixture, ids, keys, strata};

/// `strata generate --json` on tiny-llama with options as one types them.
fn generate(options: &str) -> Value {
    let model = fixture("tiny-llama");
    let args =
        ["generate", "-m", &model, "--json", "--ignore-eos", "--tokens", "5,17,100,3,64,200,9"];
    strata(args.into_iter().chain(options.split_whitespace())).json()
}

#[track_caller]
fn refused(options: &str, code: i32, words: &[&str]) -> String {
    let model = fixture("tiny-llama");
    let args = ["generate", "-m", &model, "--ignore-eos", "--tokens", "5,17,100,3,64,200,9"];
    let ran = strata(args.into_iter().chain(options.split_whitespace()));
    assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{ran:?}");
    assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{ran:?}");
    for word in words {
        assert!(ran.stderr.contains(word), "`{word}` in {}", ran.stderr);
    }
    ran.stderr
}

#[test]
fn every_tiny_model_gives_the_same_tokens_over_either_state() {
    for (model, golden) in tiny_models() {
        let golden = Golden::open(&golden);
        let prompt = comma(&golden.ids("tokens"));
        for options in ["--state contiguous", "--block-size 1", "--state paged --block-size 256"] {
            let args = ["generate", "-m", &model, "--tokens", &prompt, "-n", "48", "--json"];
            let rest = "--ignore-eos --precision f32".split(' ').chain(options.split(' '));
            let answer = strata(args.into_iter().chain(rest)).json();
            assert_eq!(ids(&answer["tokens"]), golden.ids("greedy"), "{model} {options}");
        }
    }
}

#[test]
fn json_tells_the_state_its_dtype_and_what_it_takes() {
    let paged = generate("-n 20 --precision f32")["kv"].clone();
    let fields =
        ["state", "dtype", "block_size", "num_blocks", "bytes", "bytes_per_token", "cached_tokens"];
    assert_eq!(keys(&paged), fields);
    assert_eq!((&paged["state"], &paged["dtype"]), (&"paged".into(), &"f32".into()));
    assert_eq!(paged["block_size"], 16);
    // 27 tokens are two blocks; beside them the null block, and one to spare.
    assert_eq!(paged["num_blocks"], 4);
    // 3 layers, keys and values, 2 KV heads of 16, 4 bytes.
    assert_eq!(paged["bytes_per_token"], 3 * 2 * 2 * 16 * 4);
    assert_eq!(paged["bytes"], 768 * 4 * 16);
    assert_eq!(paged["cached_tokens"], 0);

    let contiguous = generate("-n 20 --state contiguous --precision bf16")["kv"].clone();
    assert_eq!(keys(&contiguous), fields);
    assert_eq!(
        (&contiguous["state"], &contiguous["dtype"]),
        (&"contiguous".into(), &"bf16".into())
    );
    assert_eq!(
        (&contiguous["block_size"], &contiguous["num_blocks"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(contiguous["bytes"], 384 * 32);

    for (options, dtype, bytes) in [
        ("--kv-dtype fp8", "fp8", 192 + 3 * 2 * 2),
        ("--kv-dtype bf16 --precision f32", "bf16", 384),
        ("--kv-dtype f32 --precision bf16 --state contiguous", "f32", 768),
        ("--kv-dtype fp8 --state contiguous", "fp8", 192 + 3 * 2 * 2),
        ("--precision f32 --kv-dtype auto", "f32", 768),
    ] {
        let kv = generate(&format!("-n 3 {options}"))["kv"].clone();
        assert_eq!(kv["dtype"], dtype, "{options}");
        assert_eq!(kv["bytes_per_token"], bytes, "{options}");
    }
}

#[test]
fn the_pool_is_as_large_as_the_memory_it_is_given() {
    // 768 bytes a token, 16 tokens a block.
    for (memory, blocks) in [("36KiB", 3), ("1MiB", 85), ("48K", 4), ("50000", 4)] {
        let kv = generate(&format!("-n 20 --precision f32 --kv-memory {memory}"))["kv"].clone();
        assert_eq!(kv["num_blocks"], blocks, "{memory}");
        assert_eq!(kv["bytes"], blocks * 768 * 16, "{memory}");
    }
    generate("-n 20 --precision f32 --state contiguous --kv-memory 24KiB");
}

#[test]
fn a_cache_that_does_not_fit_is_rejected_with_the_missing_bytes() {
    // 27 tokens need two blocks of 12 KiB beside the null block.
    let options = "-n 20 --precision f32 --kv-memory 30KiB";
    let words =
        ["7 prompt tokens", "20 output tokens", "768 B", "36 KiB", "30 KiB", "6144 B are missing"];
    refused(options, 1, &words);
    let contiguous = "-n 20 --precision f32 --state contiguous --kv-memory 20KiB";
    refused(contiguous, 1, &["24 KiB", "20 KiB", "4096 B are missing"]);
    // A request has at most the tokens of the context, so it needs memory for no more.
    generate("-n 1000000 --precision f32 --kv-memory 396KiB");
    refused("-n 1000000 --precision f32 --kv-memory 395KiB", 1, &["512 tokens"]);
}

#[test]
fn invalid_options() {
    for (options, word) in [
        ("--block-size 0", "power of two"),
        ("--block-size 24", "power of two"),
        ("--block-size x", "--block-size"),
        ("--block-size 99999999999", "power of two"),
        ("--state scattered", "use contiguous or paged"),
        ("--kv-dtype int8", "use auto, bf16, f32 or fp8"),
        ("--kv-memory lots", "is not a size"),
        ("--kv-memory=-1", "is not a size"),
        ("--state contiguous --trace-blocks x", "--state paged"),
    ] {
        refused(options, 2, &[word]);
    }
    refused("--trace-blocks /no/such/directory/run.jsonl", 1, &["cannot write", "run.jsonl"]);
}

#[test]
fn verbose_shows_the_arithmetic() {
    let model = fixture("tiny-llama");
    let args = "--tokens 1,2,3 -n 13 --precision f32 --verbose".split(' ');
    let said = strata(["generate", "-m", &model].into_iter().chain(args)).stderr;
    for words in ["paged, 3 blocks of 16 tokens in f32", "2 x 2 KV heads x 16 x 4 B", "12 KiB"] {
        assert!(said.contains(words), "`{words}` in {said}");
    }
    assert!(!said.contains("as given"), "--kv-memory was not given: {said}");
    let args = "--tokens 1,2,3 -n 13 --precision f32 --verbose --kv-memory 1MiB".split(' ');
    let said = strata(["generate", "-m", &model].into_iter().chain(args)).stderr;
    assert!(said.contains("1 MiB") && said.contains("as given"), "{said}");
}

#[test]
fn a_recorded_run_can_be_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let (file, page) = (arg(dir.path().join("run.jsonl")), arg(dir.path().join("run.html")));
    let plain = generate("-n 20 --block-size 4");
    let recorded = generate(&format!("-n 20 --block-size 4 --trace-blocks {file}"));
    assert_eq!(recorded["tokens"], plain["tokens"], "watching changes nothing");
    let text = std::fs::read_to_string(&file).unwrap();
    let ops: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((&ops[0]["strata_block_trace"], &ops[0]["block_size"]), (&1.into(), &4.into()));
    let count = |kind: &str| ops.iter().filter(|op| op["op"] == kind).count();
    // The prompt, and nineteen tokens after it: the last one is not computed.
    assert_eq!(count("wrote"), 20, "steps that wrote");
    // 26 tokens in blocks of 4: six full ones.
    assert_eq!((count("hashed"), count("append")), (6, 7), "full blocks, and blocks");
    assert_eq!(count("sequence_ends"), 1, "sequences that ended");
    let shown = strata(["trace", "blocks", &file, "--out", &page]);
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("<html"), "a page");
}

#[test]
fn a_conversation_fits_the_memory_it_is_given() {
    let model = fixture("tiny-qwen2");
    let chat = |options: &str| {
        let args = ["chat", "-m", &model, "-n", "4"].into_iter().chain(options.split_whitespace());
        crate::strata::strata_reading(b"Hi\nAgain\n/reset\nHi\n", args)
    };
    let paged = chat("");
    assert_eq!(paged.code, 0, "{paged:?}");
    for options in ["--state contiguous", "--block-size 1", "--kv-memory 1MiB --block-size 4"] {
        assert_eq!(chat(options).text(), paged.text(), "{options}");
    }
    let small = chat("--kv-memory 100");
    assert_eq!(small.code, 1, "{small:?}");
    assert!(small.stderr.contains("missing"), "{small:?}");
}
