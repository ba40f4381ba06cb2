//! Text to ids and back, against goldens of the `tokenizers` library (`fixtures/reference/make_tokenizers.py`).

mod tokenizer_support;

use std::fs;

use l2_model::checkpoint::GgufFile;
use l2_model::tokenizer::{GgufVocab, Tokenizer, TokenizerError};
use tokenizer_support::{KINDS, fixture, from_gguf, from_json, golden};

/// Both ways in: the same tokenizer as a GGUF file and as a tokenizer.json.
fn both(kind: &str) -> [(&'static str, Tokenizer); 2] {
    [("gguf", from_gguf(kind)), ("tokenizer.json", from_json(kind))]
}

#[test]
fn ids_equal_the_reference_for_every_kind_from_either_file() {
    for kind in KINDS {
        let golden = golden(kind);
        for (source, tokenizer) in both(kind) {
            assert!(golden.cases.len() >= 60, "{kind}: too few cases to mean much");
            for case in &golden.cases {
                let text = &case.text;
                let ids = tokenizer.encode(text, false).unwrap();
                assert_eq!(ids, case.ids, "ids of {text:?}, {kind} from {source}");
                let ids = tokenizer.encode(text, true).unwrap();
                assert_eq!(
                    ids, case.ids_special,
                    "ids of {text:?} with specials, {kind} from {source}"
                );
            }
        }
    }
}

#[test]
fn decoded_text_equals_the_reference_for_every_kind_from_either_file() {
    for kind in KINDS {
        let golden = golden(kind);
        for (source, tokenizer) in both(kind) {
            for case in golden.cases.iter().chain(&golden.decode_only) {
                let ids = &case.ids;
                let text = tokenizer.decode(ids, false).unwrap();
                assert_eq!(text, case.decoded, "text of {ids:?}, {kind} from {source}");
                let text = tokenizer.decode(ids, true).unwrap();
                assert_eq!(
                    text, case.decoded_no_special,
                    "text of {ids:?} without special tokens, {kind} from {source}"
                );
            }
        }
    }
}

#[test]
fn vocabulary_facts_equal_the_reference() {
    for kind in KINDS {
        let golden = golden(kind);
        for (source, tokenizer) in both(kind) {
            assert_eq!(
                tokenizer.vocab_size(),
                golden.vocab_size,
                "number of tokens of {kind} from {source}"
            );
            for special in &golden.specials {
                let id = tokenizer.token_id(&special.text);
                assert_eq!(id, Some(special.id), "{kind} from {source}");
                assert_eq!(
                    tokenizer.is_special(special.id),
                    special.special,
                    "whether {kind} from {source} takes {} for special",
                    special.text
                );
                assert_eq!(tokenizer.id_to_token(special.id).as_ref(), Some(&special.text));
            }
        }
        let gguf = from_gguf(kind);
        let named = |token: Option<String>| token.and_then(|token| gguf.token_id(&token));
        assert_eq!(gguf.bos(), named(golden.bos_token), "{kind}");
        assert_eq!(gguf.eos(), named(golden.eos_token), "{kind}");
    }
}

#[test]
fn smollm_cuts_every_digit_and_drops_bytes_without_a_token() {
    let tokenizer = from_gguf("smollm");
    let digits = tokenizer.encode("2024", false).unwrap();
    assert_eq!(digits.len(), 4);
    // U+0000 is one of the bytes that have no token there.
    assert!(tokenizer.encode("\0", false).unwrap().is_empty());
    assert_eq!(tokenizer.encode("a\0b", false).unwrap().len(), 2);
}

#[test]
fn token_bytes_are_the_raw_bytes_of_one_token() {
    let bytes_of = |tokenizer: &Tokenizer, token: &str| {
        let id = tokenizer.token_id(token).unwrap_or_else(|| panic!("no token {token}"));
        tokenizer.token_bytes(id).unwrap().to_vec()
    };
    let byte_level = from_gguf("qwen2");
    for (token, bytes) in
        [("Ġ", &b" "[..]), ("Ċ", b"\n"), ("Ã", &[0xC3]), ("<|im_end|>", b"<|im_end|>")]
    {
        assert_eq!(bytes_of(&byte_level, token), bytes, "bytes of the byte-level token {token}");
    }
    let sentencepiece = from_gguf("llama");
    for (token, bytes) in [("<0xE2>", &[0xE2][..]), ("▁", b" "), ("▁the", b" the")] {
        assert_eq!(bytes_of(&sentencepiece, token), bytes, "bytes of the piece {token}");
    }
}

#[test]
fn a_byte_token_is_spelled_with_two_hexadecimal_digits() {
    for (spelling, bytes) in [
        ("<0xe2>", &[0xE2][..]),
        ("<0x+F>", b"<0x+F>"),
        ("<0x-1>", b"<0x-1>"),
        ("<0xF>", b"<0xF>"),
        ("<0x00F>", b"<0x00F>"),
        ("<0xFG>", b"<0xFG>"),
    ] {
        let file = GgufFile::open(&fixture("tokenizers/llama.gguf")).unwrap();
        let mut vocab = GgufVocab::from_metadata(&file).unwrap();
        vocab.tokens.push(spelling.into());
        vocab.token_types.push(1);
        vocab.scores.as_mut().unwrap().push(0.0);
        let id = vocab.tokens.len() as u32 - 1;
        let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
        let got = tokenizer.token_bytes(id).unwrap();
        assert_eq!(got, bytes, "bytes of the piece {spelling}");
    }
}

#[test]
fn without_byte_fallback_a_byte_token_is_text() {
    let text = fs::read_to_string(fixture("tokenizers/llama.tokenizer.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["model"]["byte_fallback"] = false.into();
    let steps = json["decoder"]["decoders"].as_array_mut().unwrap();
    let before = steps.len();
    steps.retain(|step| step["type"] != "ByteFallback");
    assert_eq!(steps.len(), before - 1, "the decoder had this step");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    fs::write(&path, json.to_string()).unwrap();
    let tokenizer = Tokenizer::from_file(&path).unwrap();
    let id = tokenizer.token_id("<0xE2>").unwrap();
    assert_eq!(tokenizer.token_bytes(id).unwrap(), b"<0xE2>");
}

/// Every character of two bytes: all 128 bytes that are not ASCII occur, those of GPT-2's alphabet
/// that do not print (0xAD among them) too.
#[test]
fn every_byte_of_a_character_comes_back_from_its_tokens() {
    for kind in ["gpt-2", "llama-bpe"] {
        let (tokenizer, without) = (from_gguf(kind), golden(kind).bytes_without_token);
        for c in '\u{80}'..='\u{7ff}' {
            let text = c.to_string();
            if text.bytes().any(|b| without.contains(&b)) {
                continue;
            }
            let ids = tokenizer.encode(&text, false).unwrap();
            let bytes: Vec<&[u8]> =
                ids.iter().map(|id| tokenizer.token_bytes(*id).unwrap()).collect();
            let expected = text.as_bytes();
            assert_eq!(bytes.concat(), expected, "bytes of the {kind} tokens of {c:?}");
        }
    }
}

#[test]
fn a_spelling_outside_of_the_alphabet_stands_for_itself() {
    // A character that spells a byte, then some that spell none; and the other way round.
    for spelling in ["Ġ<｜user｜>", "日本", "日Ġ"] {
        let mut vocab = vocab();
        vocab.tokens.push(spelling.into());
        vocab.token_types.push(1);
        let id = vocab.tokens.len() as u32 - 1;
        let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
        let got = tokenizer.token_bytes(id).unwrap();
        assert_eq!(got, spelling.as_bytes(), "bytes of the byte-level token {spelling}");
    }
}

/// A GGUF vocabulary may have entries that nobody uses, and a tokenizer.json ids that it leaves out.
#[test]
fn a_hole_in_the_vocabulary_has_no_bytes_and_moves_no_other_token() {
    let unused = 5;
    let file = GgufFile::open(&fixture("tokenizers/qwen2.gguf")).unwrap();
    let mut vocab = GgufVocab::from_metadata(&file).unwrap();
    let whole = Tokenizer::from_gguf(vocab.clone()).unwrap();
    let hole = vocab.tokens.len() as u32 / 2;
    vocab.tokens.insert(hole as usize, "[PAD]".into());
    vocab.token_types.insert(hole as usize, unused);
    if let Some(scores) = &mut vocab.scores {
        scores.insert(hole as usize, 0.0);
    }
    let moved = |id: u32| id + u32::from(id >= hole);
    let named = [&mut vocab.bos, &mut vocab.eos, &mut vocab.eot, &mut vocab.unk, &mut vocab.pad];
    for id in named {
        *id = id.map(moved);
    }
    let holed = Tokenizer::from_gguf(vocab).unwrap();
    let size = holed.vocab_size();
    assert_eq!(size, whole.vocab_size() + 1, "number of ids, with a hole at id {hole}");
    assert_eq!(holed.token_bytes(hole).ok(), Some(&b""[..]), "the bytes of a hole, id {hole}");
    assert!(!holed.is_special(hole), "a hole is no special token, id {hole}");
    let mut specials_behind = 0;
    for old in 0..whole.vocab_size() as u32 {
        let id = moved(old);
        let what = format!("of id {id} in a vocabulary with a hole at {hole}");
        let (got, expected) = (holed.token_bytes(id).ok(), whole.token_bytes(old).ok());
        assert_eq!(got, expected, "the bytes {what}");
        let (got, expected) = (holed.is_special(id), whole.is_special(old));
        assert_eq!(got, expected, "the flag SPECIAL {what}");
        specials_behind += u32::from(expected && old >= hole);
    }
    assert!(specials_behind > 0, "no flag behind the hole: this vocabulary shows nothing");
}

#[test]
fn the_bytes_of_all_tokens_of_a_text_are_the_text() {
    for kind in KINDS {
        let tokenizer = from_gguf(kind);
        for case in golden(kind).cases {
            let bytes: Vec<u8> = case
                .ids
                .iter()
                .flat_map(|&id| tokenizer.token_bytes(id).unwrap())
                .copied()
                .collect();
            let text = String::from_utf8_lossy(&bytes);
            let text =
                if kind == "llama" { text.strip_prefix(' ').unwrap_or(&text) } else { &text };
            assert_eq!(text, case.decoded, "the bytes of the {kind} tokens of {:?}", case.text);
        }
    }
}

#[test]
fn an_id_out_of_range_is_an_error_that_names_it_and_the_vocabulary() {
    let tokenizer = from_gguf("smollm");
    let size = tokenizer.vocab_size();
    for result in
        [tokenizer.decode(&[1, size as u32], false).err(), tokenizer.token_bytes(u32::MAX).err()]
    {
        let error = result.expect("out of range must not pass");
        assert!(
            matches!(error, TokenizerError::IdOutOfRange { vocab_size, .. } if vocab_size == size)
        );
        assert!(error.to_string().contains(&size.to_string()), "{error}");
    }
    let mut stream = tokenizer.detokenizer(false);
    assert!(
        matches!(stream.push(size as u32), Err(TokenizerError::IdOutOfRange { id, .. }) if id == size as u32)
    );
}

#[test]
fn padding_entries_of_a_gguf_vocabulary_are_ids_without_text() {
    let file = GgufFile::open(&fixture("tiny-gguf/qwen2-q8_0.gguf")).unwrap();
    let tokenizer = Tokenizer::from_gguf(GgufVocab::from_metadata(&file).unwrap()).unwrap();
    assert_eq!(tokenizer.vocab_size(), 335);
    assert_eq!(tokenizer.id_to_token(334), None);
    assert_eq!(tokenizer.decode(&[334], false).unwrap(), "");
    assert_eq!(tokenizer.token_bytes(334).unwrap(), b"");
    assert!(
        tokenizer.encode("[PAD334]", false).unwrap().len() > 1,
        "padding is nothing to write in a prompt"
    );
}

#[test]
fn a_directory_gives_names_and_chat_template_with_the_tokenizer() {
    let dir = |name| Tokenizer::from_hf_dir(fixture(name)).unwrap();
    let smollm = dir("tiny-llama-untied");
    assert_eq!(smollm.bos(), smollm.token_id("<|im_start|>"));
    assert_eq!(smollm.eos(), smollm.token_id("<|im_end|>"));
    assert!(smollm.chat_template().unwrap().contains("<|im_start|>"));
    // tiny-mistral writes bos_token as an object; its post-processor puts one before the text.
    let mistral = dir("tiny-mistral");
    assert_eq!(mistral.bos(), mistral.token_id("<s>"));
    assert_eq!(mistral.prefix(), [mistral.bos().unwrap()]);
    // tiny-qwen3 keeps its template in chat_template.jinja.
    assert!(dir("tiny-qwen3").chat_template().unwrap().contains("<|im_start|>"));
    assert!(dir("tiny-qwen2").prefix().is_empty());
}

#[test]
fn named_templates_and_tokens_added_in_the_config_are_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixture("tokenizers/qwen2.tokenizer.json"), dir.path().join("tokenizer.json"))
        .unwrap();
    let plain = Tokenizer::from_hf_dir(dir.path()).unwrap();
    assert_eq!((plain.bos(), plain.eos(), plain.chat_template()), (None, None, None));
    let next = plain.vocab_size() as u32;

    fs::write(
        dir.path().join("tokenizer_config.json"),
        r#"{
            "bos_token": null,
            "added_tokens_decoder": {"900": {"content": "<late>", "special": false}, "901": {"content": "<later>", "special": true}},
            "chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
        }"#,
    )
    .unwrap();
    fs::write(
        dir.path().join("special_tokens_map.json"),
        r#"{"eos_token": {"content": "<|im_end|>"}}"#,
    )
    .unwrap();
    let tokenizer = Tokenizer::from_hf_dir(dir.path()).unwrap();
    assert_eq!(tokenizer.bos(), None);
    assert_eq!(tokenizer.eos(), tokenizer.token_id("<|im_end|>"));
    assert_eq!(tokenizer.chat_template(), Some("D"));
    assert_eq!(tokenizer.chat_template_named("tool_use"), Some("T"));
    assert_eq!(tokenizer.chat_template_named("nonsense"), None);
    // New tokens are numbered in order after the old ones, whatever ids the config hoped for.
    assert_eq!(tokenizer.encode("<late><later>", false).unwrap(), [next, next + 1]);
    assert_eq!(tokenizer.decode(&[next, next + 1], true).unwrap(), "<late>");

    fs::write(dir.path().join("chat_template.jinja"), "J").unwrap();
    let tokenizer = Tokenizer::from_hf_dir(dir.path()).unwrap();
    assert_eq!(tokenizer.chat_template(), Some("J"), "the file of its own wins");
}

#[test]
fn a_missing_tokenizer_says_which_file_was_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_hf_dir(dir.path()).unwrap_err();
    assert!(matches!(&error, TokenizerError::Missing { path } if path.ends_with("tokenizer.json")));
    assert!(
        error.to_string().contains(&dir.path().join("tokenizer.json").display().to_string()),
        "{error}"
    );
}

fn refused(json: &str) -> TokenizerError {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    fs::write(&path, json).unwrap();
    Tokenizer::from_file(&path).expect_err(json)
}

#[test]
fn a_broken_tokenizer_json_is_a_typed_error_never_a_panic() {
    let whole = fs::read_to_string(fixture("tokenizers/llama.tokenizer.json")).unwrap();
    for cut in (0..whole.len()).step_by(whole.len() / 97).filter(|&cut| whole.is_char_boundary(cut))
    {
        assert!(matches!(refused(&whole[..cut]), TokenizerError::Json { .. }));
    }
    let bpe =
        r#""model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}"#;
    let decoder = r#""decoder": {"type": "ByteLevel"}"#;
    assert!(matches!(
        refused(r#"{"model": {"type": "Unigram", "vocab": []}}"#),
        TokenizerError::Unsupported { part: "model", .. }
    ));
    assert!(matches!(
        refused(&format!("{{{bpe}}}")),
        TokenizerError::Unsupported { part: "decoder", .. }
    ));
    let ctc = format!(r#"{{{bpe}, "decoder": {{"type": "CTC"}}}}"#);
    assert!(
        matches!(refused(&ctc), TokenizerError::Unsupported { part: "decoder", found, .. } if found == "CTC")
    );
    let charsmap = format!(
        r#"{{{bpe}, {decoder}, "normalizer": {{"type": "Precompiled", "precompiled_charsmap": "x"}}}}"#
    );
    assert!(matches!(refused(&charsmap), TokenizerError::Unsupported { part: "normalizer", .. }));
    let bert = format!(r#"{{{bpe}, {decoder}, "post_processor": {{"type": "BertProcessing"}}}}"#);
    assert!(matches!(refused(&bert), TokenizerError::Unsupported { part: "post_processor", .. }));
    // The library would slice out of bounds here, and index a missing key there.
    let long = bpe.replace(r#"["a", "b"]"#, r#"["ab", "ab"]"#);
    assert!(matches!(refused(&format!("{{{long}, {decoder}}}")), TokenizerError::Invalid(_)));
    let undefined = r#""post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}], "special_tokens": {}}"#;
    assert!(matches!(
        refused(&format!("{{{bpe}, {decoder}, {undefined}}}")),
        TokenizerError::Invalid(_)
    ));
    let beyond = undefined.replace("{}", r#"{"<s>": {"ids": [77]}}"#);
    assert!(matches!(
        refused(&format!("{{{bpe}, {decoder}, {beyond}}}")),
        TokenizerError::IdOutOfRange { id: 77, .. }
    ));
    let sparse = bpe.replace("\"ab\": 2", "\"ab\": 4000000000");
    assert!(matches!(refused(&format!("{{{sparse}, {decoder}}}")), TokenizerError::Invalid(_)));
}

#[test]
fn a_merge_written_as_one_string_is_read_too() {
    let text = fs::read_to_string(fixture("tokenizers/qwen2.tokenizer.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    for merge in json["model"]["merges"].as_array_mut().unwrap() {
        *merge = format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()).into();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    fs::write(&path, json.to_string()).unwrap();
    let old = Tokenizer::from_file(&path).unwrap();
    for case in golden("qwen2").cases {
        assert_eq!(old.encode(&case.text, false).unwrap(), case.ids, "{:?}", case.text);
    }
}

/// The smollm fixture's vocabulary, to be spoiled.
fn vocab() -> GgufVocab {
    GgufVocab::from_metadata(&GgufFile::open(&fixture("tokenizers/smollm.gguf")).unwrap()).unwrap()
}

#[test]
fn an_unknown_pre_tokenizer_or_model_is_named_with_the_supported_ones() {
    let error = Tokenizer::from_gguf(GgufVocab { pre: "tekken".into(), ..vocab() })
        .unwrap_err()
        .to_string();
    for word in ["tokenizer.ggml.pre", "tekken", "smollm", "llama-bpe", "qwen2", "default"] {
        assert!(error.contains(word), "{error}");
    }
    let error =
        Tokenizer::from_gguf(GgufVocab { model: "t5".into(), ..vocab() }).unwrap_err().to_string();
    for word in ["tokenizer.ggml.model", "t5", "gpt2", "llama"] {
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn aliases_of_llama_3_mean_the_same() {
    let file = GgufFile::open(&fixture("tokenizers/llama-bpe.gguf")).unwrap();
    let vocab = GgufVocab::from_metadata(&file).unwrap();
    let text = "It's 12345\r\n  fine";
    let ids = from_gguf("llama-bpe").encode(text, true).unwrap();
    for alias in ["llama3", "llama-v3"] {
        let tokenizer =
            Tokenizer::from_gguf(GgufVocab { pre: alias.into(), ..vocab.clone() }).unwrap();
        assert_eq!(tokenizer.encode(text, true).unwrap(), ids);
    }
}

#[test]
fn contradictions_in_gguf_metadata_are_typed_errors() {
    let bad = [
        GgufVocab { tokens: vec![], ..vocab() },
        GgufVocab { token_types: vec![1; 3], ..vocab() },
        GgufVocab { scores: Some(vec![0.0; 3]), ..vocab() },
        GgufVocab { bos: Some(1_000_000), ..vocab() },
        GgufVocab { eot: Some(u32::MAX), ..vocab() },
        GgufVocab { merges: vec![], ..vocab() },
        GgufVocab { merges: vec!["alone".into()], ..vocab() },
        GgufVocab { merges: vec![String::new()], ..vocab() },
        GgufVocab { merges: vec!["no such".into()], ..vocab() },
        GgufVocab { merges: vec![format!("{0} {0}", "Ġthe".repeat(40))], ..vocab() },
    ];
    for vocab in bad {
        assert!(
            matches!(Tokenizer::from_gguf(vocab.clone()), Err(TokenizerError::Invalid(_))),
            "{vocab:.200?}"
        );
    }
}

#[test]
fn bos_and_eos_follow_the_flags_of_the_file() {
    let with = |add_bos, add_eos| {
        let tokenizer = Tokenizer::from_gguf(GgufVocab { add_bos, add_eos, ..vocab() }).unwrap();
        tokenizer.encode("", true).unwrap()
    };
    let (bos, eos) = (vocab().bos.unwrap(), vocab().eos.unwrap());
    assert!(with(None, None).is_empty(), "byte-level vocabularies add nothing unless told");
    assert_eq!(with(Some(true), None), [bos]);
    assert_eq!(with(Some(true), Some(true)), [bos, eos]);
    assert_eq!(with(Some(false), Some(true)), [eos]);
}

#[test]
fn without_a_prefix_space_nothing_is_put_before_the_text() {
    let file = GgufFile::open(&fixture("tokenizers/llama.gguf")).unwrap();
    let vocab =
        GgufVocab { add_space_prefix: Some(false), ..GgufVocab::from_metadata(&file).unwrap() };
    let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
    for text in ["the", " the", "  the end"] {
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    }
    assert_ne!(
        tokenizer.encode("the", false).unwrap(),
        from_gguf("llama").encode("the", false).unwrap()
    );
}

/// A tokenizer of either file, written as tokenizer.json and read again.
#[test]
fn a_written_tokenizer_json_has_the_ids_and_the_text_of_the_reference() {
    for kind in KINDS {
        let golden = golden(kind);
        for (source, tokenizer) in both(kind) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("tokenizer.json");
            fs::write(&path, tokenizer.to_json().unwrap()).unwrap();
            let again = Tokenizer::from_file(&path).unwrap();
            let what = format!("{kind} from {source}, written and read");
            assert_eq!(again.vocab_size(), tokenizer.vocab_size(), "number of ids of {what}");
            for case in golden.cases.iter().chain(&golden.decode_only) {
                let (ids, text) = (&case.ids, &case.text);
                assert_eq!(again.decode(ids, false).unwrap(), case.decoded, "{ids:?}, {what}");
                let without = again.decode(ids, true).unwrap();
                assert_eq!(without, case.decoded_no_special, "{ids:?}, {what}");
                if golden.decode_only.iter().any(|only| std::ptr::eq(only, case)) {
                    continue;
                }
                assert_eq!(&again.encode(text, false).unwrap(), ids, "{text:?}, {what}");
                let special = again.encode(text, true).unwrap();
                assert_eq!(special, case.ids_special, "{text:?} with specials, {what}");
            }
        }
    }
}
