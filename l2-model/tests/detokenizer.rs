//! Streaming text: equal to the full decode, whole code points only, work linear in the bytes.

mod tokenizer_support;

use l2_model::tokenizer::Tokenizer;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tokenizer_support::{KINDS, fixture, from_gguf, golden};

/// All pushes and the end, joined; and what each push gave.
fn stream(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> (String, Vec<String>) {
    let mut detokenizer = tokenizer.detokenizer(skip_special);
    let parts: Vec<String> =
        ids.iter().map(|&id| detokenizer.push(id).unwrap().to_owned()).collect();
    (parts.concat() + &detokenizer.finish(), parts)
}

#[test]
fn streaming_gives_the_goldens_for_every_kind() {
    for kind in KINDS {
        let tokenizer = from_gguf(kind);
        let golden = golden(kind);
        for case in golden.cases.iter().chain(&golden.decode_only) {
            let what = format!("the text of the {kind} tokens {:?}, streamed", case.ids);
            assert_eq!(stream(&tokenizer, &case.ids, false).0, case.decoded, "{what}");
            let got = stream(&tokenizer, &case.ids, true).0;
            assert_eq!(got, case.decoded_no_special, "{what}, without special tokens");
        }
    }
}

#[test]
fn a_character_appears_with_its_last_byte_and_not_before() {
    let tokenizer = from_gguf("gpt-2");
    let ids: Vec<u32> = "🦀!".bytes().map(|b| byte_token(&tokenizer, b)).collect();
    let (text, parts) = stream(&tokenizer, &ids, false);
    assert_eq!(parts, ["", "", "", "🦀", "!"], "what each of the five byte tokens gave");
    assert_eq!(text, "🦀!", "the whole text");
}

#[test]
fn a_stream_that_ends_inside_of_a_character_says_so_once() {
    for (kind, bytes, expected) in [
        ("gpt-2", &b"a\xE2\x82"[..], "a\u{FFFD}"),
        ("gpt-2", b"a\xF0\x9F\xA6", "a\u{FFFD}"),
        ("gpt-2", b"\xE2(", "\u{FFFD}("),
        ("llama", b"\xE2\x82", "\u{FFFD}\u{FFFD}"),
        ("llama", b"\xE2\x82\xAC", "€"),
    ] {
        let tokenizer = from_gguf(kind);
        let ids: Vec<u32> = bytes.iter().map(|b| byte_token(&tokenizer, *b)).collect();
        let got = stream(&tokenizer, &ids, false).0;
        assert_eq!(got, expected, "the text of {kind} tokens of the bytes {bytes:02x?}");
    }
}

#[test]
fn text_of_whole_characters_is_never_held_back() {
    let tokenizer = from_gguf("qwen2");
    let ids = tokenizer.encode("plain words, one after the other", false).unwrap();
    let parts = stream(&tokenizer, &ids, false).1;
    assert!(parts.iter().all(|p| !p.is_empty()), "each token gives text at once, got {parts:?}");
}

#[test]
fn one_bad_byte_spoils_a_whole_run_of_fallback_bytes() {
    let tokenizer = from_gguf("llama");
    let byte = |b: u8| tokenizer.token_id(&format!("<0x{b:02X}>")).unwrap();
    let word = tokenizer.token_id("▁the").unwrap();
    let good: Vec<u32> = "é€".bytes().map(byte).chain([word]).collect();
    let (text, parts) = stream(&tokenizer, &good, false);
    assert_eq!(text, "é€ the", "the text of the bytes of é and €, then ▁the");
    assert!(
        parts[..good.len() - 1].iter().all(String::is_empty),
        "what comes next may still spoil the run"
    );
    let bad: Vec<u32> = "é".bytes().map(byte).chain([byte(0xFF), word]).collect();
    let text = stream(&tokenizer, &bad, false).0;
    assert_eq!(text, "\u{FFFD}\u{FFFD}\u{FFFD} the", "the bytes of é and an FF, then ▁the");
}

#[test]
fn sentencepiece_drops_one_leading_space_of_the_text_only() {
    let tokenizer = from_gguf("llama");
    let space = tokenizer.token_id("▁").unwrap();
    let word = tokenizer.token_id("▁the").unwrap();
    let parts = |ids: &[u32]| stream(&tokenizer, ids, false).1;
    assert_eq!(parts(&[word, word]), ["the", " the"], "what the tokens ▁the ▁the gave");
    assert_eq!(parts(&[space, word]), ["", " the"], "what the tokens ▁ ▁the gave");
    // A special token that is skipped does not count as the beginning, one that is shown does.
    let bos = tokenizer.bos().unwrap();
    assert_eq!(stream(&tokenizer, &[bos, word], true).0, "the", "<s> ▁the, <s> left out");
    assert_eq!(stream(&tokenizer, &[bos, word], false).0, "<s> the", "<s> ▁the, <s> shown");
}

#[test]
fn work_is_linear_in_the_bytes_whatever_their_order() {
    const LONGEST: usize = 200_000;
    for (kind, word) in [("gpt-2", "Ġthe"), ("llama", "▁the")] {
        let tokenizer = from_gguf(kind);
        // The worst there is: bytes that never make a character, and bytes that make one only at the very end.
        let two = [0xE2, 0x82].map(|byte| byte_token(&tokenizer, byte));
        let ids: Vec<u32> = two.into_iter().cycle().take(LONGEST).collect();
        let word = tokenizer.token_id(word).unwrap();
        let mut detokenizer = tokenizer.detokenizer(false);
        // A word at the end, so that a run of bytes is over too.
        for &id in ids.iter().chain([&word]) {
            detokenizer.push(id).unwrap();
        }
        let per_byte = detokenizer.work() as f64 / LONGEST as f64;
        assert!(
            per_byte <= 4.0,
            "held bytes that were looked at, for each byte pushed, {LONGEST} {kind} tokens of a byte\n  expected  4 at most\n  got       {per_byte}"
        );
    }
}

#[test]
fn an_error_leaves_the_stream_as_it_was() {
    let tokenizer = from_gguf("gpt-2");
    let ids: Vec<u32> = "é".bytes().map(|b| byte_token(&tokenizer, b)).collect();
    let mut detokenizer = tokenizer.detokenizer(false);
    assert_eq!(detokenizer.push(ids[0]).unwrap(), "", "after the first byte of é");
    assert!(detokenizer.push(u32::MAX).is_err(), "there is no such token");
    assert_eq!(detokenizer.push(ids[1]).unwrap(), "é", "after the second byte of é");
}

/// Cases are remade from their printed input; no file of failures is kept.
fn runner() -> TestRunner {
    TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })
}

/// The token that is just this byte.
fn byte_token(tokenizer: &Tokenizer, byte: u8) -> u32 {
    let alone = |id: &u32| {
        let name = tokenizer.id_to_token(*id).unwrap_or_default();
        let spelled = name.chars().count() == 1 || name.starts_with("<0x");
        spelled && tokenizer.token_bytes(*id).unwrap() == [byte]
    };
    (0..tokenizer.vocab_size() as u32)
        .find(alone)
        .unwrap_or_else(|| panic!("no token for {byte:#x}"))
}

/// The library's own decoder, an implementation that shares nothing with ours.
fn reference(kind: &str) -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_file(fixture(&format!("tokenizers/{kind}.tokenizer.json"))).unwrap()
}

/// Ids with many single bytes among them: random ids alone would rarely meet inside a character.
fn ids_of(tokenizer: &Tokenizer) -> impl Strategy<Value = Vec<u32>> + use<> {
    let short = |id: &u32| tokenizer.token_bytes(*id).is_ok_and(|bytes| bytes.len() == 1);
    let all: Vec<u32> = (0..tokenizer.vocab_size() as u32).collect();
    let bytes: Vec<u32> = all.iter().copied().filter(short).collect();
    let one = prop_oneof![2 => prop::sample::select(bytes), 1 => prop::sample::select(all)];
    prop::collection::vec(one, 0..40)
}

#[test]
fn any_ids_stream_to_what_the_library_decodes() {
    for kind in KINDS {
        let (tokenizer, reference) = (from_gguf(kind), reference(kind));
        let mut runner = runner();
        runner
            .run(&(ids_of(&tokenizer), any::<bool>()), |(ids, skip_special)| {
                let expected = reference.decode(&ids, skip_special).unwrap();
                prop_assert_eq!(&tokenizer.decode(&ids, skip_special).unwrap(), &expected);
                prop_assert_eq!(stream(&tokenizer, &ids, skip_special).0, expected);
                Ok(())
            })
            .unwrap_or_else(|e| panic!("{kind}: {e}"));
    }
}

#[test]
fn characters_cut_anywhere_stream_whole() {
    for kind in ["gpt-2", "llama", "qwen2"] {
        let tokenizer = from_gguf(kind);
        let mut runner = runner();
        runner
            .run(&"\\PC{0,12}", |text| {
                // One token per byte: every character is cut at every place.
                let ids: Vec<u32> = text.bytes().map(|b| byte_token(&tokenizer, b)).collect();
                let (streamed, parts) = stream(&tokenizer, &ids, false);
                let expected =
                    if kind == "llama" { text.strip_prefix(' ').unwrap_or(&text) } else { &text };
                prop_assert_eq!(streamed.as_str(), expected);
                let broken = |text: &str| text.contains('\u{FFFD}');
                prop_assert!(broken(&text) || !parts.iter().any(|part| broken(part)));
                Ok(())
            })
            .unwrap_or_else(|e| panic!("{kind}: {e}"));
    }
}
