//! The tokenizer as guides see it: forced texts, special tokens, rows without a token.

use l4_sampler::guide::{GuideSpec, Guides};

use crate::support::{allowed, choice, llama, push, regex, schema, tokenizer, worlds};

const ARTICLE: &str = r#"{"type":"object","properties":{"name":{"type":"string"},"likes":{"type":"integer"}},
    "required":["name","likes"],"additionalProperties":false}"#;

#[test]
fn a_forced_text_is_the_tokens_the_tokenizer_writes() {
    for world in worlds() {
        let mut guide = world.guide(&schema(ARTICLE));
        let forced = guide.forced();
        let text = world.text(&forced);
        assert!(!forced.is_empty() && r#"{"name":""#.starts_with(&text), "forced `{text}`");
        // Behind a line break a text is cut as it is in the middle of a chat.
        let whole = world.tokenizer.encode(&format!("\n{text}"), false).unwrap();
        let own = (0..whole.len()).map(|i| &whole[i..]).find(|t| world.text(t) == text);
        assert_eq!(
            Some(&forced[..]),
            own,
            "forced tokens for `{text}` (left) and the tokenizer's own, {}",
            world.name
        );
    }
}

#[test]
fn forced_tokens_are_what_the_mask_allows_one_after_another() {
    for world in worlds() {
        let spec = schema(
            r#"{"type":"object","properties":{"temperature":{"const":"unknown"}},
            "required":["temperature"],"additionalProperties":false}"#,
        );
        let mut guide = world.guide(&spec);
        let mut tokens = Vec::new();
        while !guide.is_finished() {
            let forced = guide.forced();
            assert!(!forced.is_empty(), "forced tokens behind {tokens:?}, {}", world.name);
            for token in forced {
                let only = allowed(&mut guide, world.vocab);
                assert_eq!(only, [token], "allowed where a token is forced, {}", world.name);
                guide.advance(token).unwrap();
                tokens.push(token);
            }
        }
        assert_eq!(world.text(&tokens), r#"{"temperature":"unknown"}"#, "text of {}", world.name);
        assert_eq!(guide.forced(), [0_u32; 0], "forced tokens behind the end, {}", world.name);
    }
}

#[test]
fn a_text_that_spells_a_special_token_stays_text() {
    for world in worlds() {
        for special in
            (0..world.tokenizer.vocab_size() as u32).filter(|&id| world.tokenizer.is_special(id))
        {
            let name = String::from_utf8(world.bytes(special).to_vec()).unwrap();
            let spec = choice(&[&format!("say {name} now")]);
            let mut guide = world.guide(&spec);
            let mut tokens = Vec::new();
            while !guide.is_finished() {
                let forced = guide.forced();
                let next = forced.first().copied();
                let next = next.unwrap_or_else(|| allowed(&mut guide, world.vocab)[0]);
                guide.advance(next).unwrap();
                tokens.push(next);
            }
            assert!(
                tokens.iter().all(|&t| !world.tokenizer.is_special(t)),
                "`{name}` came as a special token of {}",
                world.name
            );
            assert_eq!(world.text(&tokens), format!("say {name} now"), "text of {}", world.name);
        }
    }
}

#[test]
fn special_tokens_and_rows_without_a_token_are_never_allowed() {
    for world in worlds() {
        // Anything at all, and the inside of a string.
        for (spec, text) in [(regex("(?s:.)*"), "x"), (GuideSpec::Json, "\"in a string, ")] {
            let mut guide = world.guide(&spec);
            push(world, &mut guide, text);
            let complete = guide.is_complete();
            let tokens = allowed(&mut guide, world.vocab);
            assert!(tokens.len() > 300, "{} tokens are allowed in {}", tokens.len(), world.name);
            for id in 0..world.vocab as u32 {
                let special =
                    id as usize >= world.tokenizer.vocab_size() || world.tokenizer.is_special(id);
                let end = world.ends.contains(&id);
                if special && !(end && complete) {
                    assert!(!tokens.contains(&id), "token {id} of {} is allowed", world.name);
                    assert!(guide.advance(id).is_err(), "token {id} of {} is taken", world.name);
                }
            }
        }
    }
}

#[test]
fn an_end_token_that_looks_like_text_is_no_text() {
    let tokenizer = tokenizer("llama-bpe");
    let end = tokenizer.token_id("e").unwrap();
    let guides = Guides::new(&tokenizer, tokenizer.vocab_size(), &[end]).unwrap();
    let mut guide = guides.guide(&regex("[a-z]*x")).unwrap();
    let vocab = tokenizer.vocab_size();
    assert!(!allowed(&mut guide, vocab).contains(&end), "an end where nothing was said yet");
    guide.advance(tokenizer.token_id("x").unwrap()).unwrap();
    assert!(allowed(&mut guide, vocab).contains(&end), "an end where the answer is complete");
}

#[test]
fn a_guide_writes_what_it_was_given_to_write() {
    let texts = [
        r#"{"name":"J. R. Müller","likes":-12}"#,
        r#"{"name":"  two  spaces\n\tand 東京 \"quoted\" 🙂","likes":0}"#,
        r#"{"name":"","likes":1234567}"#,
    ];
    for world in worlds() {
        for text in texts {
            let mut guide = world.guide(&schema(ARTICLE));
            let (tokens, done) = push(world, &mut guide, text);
            assert_eq!(&text[..done], text, "what {} could write", world.name);
            assert!(guide.is_finished(), "`{text}` is a whole answer over {}", world.name);
            let decoded = world.tokenizer.decode(&tokens, true).unwrap();
            assert_eq!(decoded, text, "the decoded answer of {}", world.name);
        }
    }
}

#[test]
fn guides_do_not_depend_on_how_many_rows_pad_the_embedding() {
    let world = llama();
    let words = world.tokenizer.vocab_size();
    for vocab in [words, words + 1, words.next_multiple_of(32), words + 1000] {
        let guides = Guides::new(&world.tokenizer, vocab, &world.ends).unwrap();
        let mut guide = guides.guide(&schema(ARTICLE)).unwrap();
        let mut usual = world.guide(&schema(ARTICLE));
        let (tokens, _) = push(world, &mut usual, r#"{"name":"ab"#);
        for token in tokens {
            guide.advance(token).unwrap();
        }
        let (got, want) = (allowed(&mut guide, vocab), allowed(&mut usual, world.vocab));
        assert_eq!(got, want, "allowed tokens with {vocab} rows (left) and {}", world.vocab);
    }
}
