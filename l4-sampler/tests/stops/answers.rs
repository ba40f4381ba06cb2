//! One answer as it comes: tokens in, text out, and at last why it ended.

use std::path::PathBuf;

use l2_model::tokenizer::Tokenizer;
use l4_sampler::ParamError;
use l4_sampler::stop::{AnswerStream, StopReason, StopRules};
use proptest::prelude::*;

use super::naive;
use super::strings::runner;

fn tokenizer(kind: &str) -> Tokenizer {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tokenizers");
    Tokenizer::from_file(fixtures.join(format!("{kind}.tokenizer.json"))).unwrap()
}

fn stop_at(strings: &[&str]) -> StopRules {
    StopRules { strings: strings.iter().map(ToString::to_string).collect(), ..StopRules::default() }
}

/// The token that is just this byte.
fn byte(tokenizer: &Tokenizer, byte: u8) -> u32 {
    let alone = |id: &u32| {
        let name = tokenizer.id_to_token(*id).unwrap_or_default();
        let spelled = name.chars().count() == 1 || name.starts_with("<0x");
        spelled && tokenizer.token_bytes(*id).unwrap() == [byte]
    };
    (0..tokenizer.vocab_size() as u32).find(alone).unwrap()
}

/// One token for each byte: every character is cut at every place.
fn bytes(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    text.bytes().map(|b| byte(tokenizer, b)).collect()
}

/// What each token showed up to the one that ended the answer, and why it ended.
fn run(stream: &mut AnswerStream, ids: &[u32]) -> (Vec<String>, Option<StopReason>) {
    let mut shown = Vec::new();
    for &id in ids {
        let (text, end) = stream.push(id);
        shown.push(text.to_owned());
        if end.is_some() {
            return (shown, end);
        }
    }
    (shown, None)
}

#[test]
fn special_tokens_are_text_only_where_the_rules_say_so() {
    let tokenizer = tokenizer("qwen2");
    let vocab = tokenizer.vocab_size() as u32;
    let special = (0..vocab).find(|&id| tokenizer.is_special(id)).unwrap();
    let name = tokenizer.id_to_token(special).unwrap();
    let word = tokenizer.encode("yes", false).unwrap();
    let tokens = [&word[..], &[special], &word[..]].concat();
    let text = |rules: &StopRules, prompt: Option<&[u32]>| {
        let mut stream = match prompt {
            None => AnswerStream::answering(rules, Some(&tokenizer)).unwrap(),
            Some(prompt) => AnswerStream::continuing(rules, Some(&tokenizer), prompt).unwrap(),
        };
        let mut text: String = tokens.iter().map(|&id| stream.push(id).0.to_owned()).collect();
        let (rest, reason) = stream.end(StopReason::Length);
        text.push_str(rest);
        (text, reason)
    };
    let shown = StopRules { special_tokens: true, ..StopRules::default() };
    for prompt in [None, Some(&[special, word[0]][..])] {
        assert_eq!(text(&StopRules::default(), prompt).0, "yesyes");
        assert_eq!(text(&shown, prompt).0, format!("yes{name}yes"));
    }
    let stops = StopRules { strings: vec![name.clone()], ..shown.clone() };
    assert_eq!(text(&stops, None), ("yes".to_owned(), StopReason::Text(name)));
    // A token that ends the answer is none of its text.
    let ends = StopRules { eos: vec![special], ..shown };
    assert_eq!(text(&ends, None), ("yes".to_owned(), StopReason::Eos(special)));
}

#[test]
fn a_stop_string_is_found_across_tokens() {
    let gpt = tokenizer("gpt-2");
    let rules = stop_at(&["é!"]);
    let mut stream = AnswerStream::answering(&rules, Some(&gpt)).unwrap();
    let (shown, end) = run(&mut stream, &bytes(&gpt, "aé?é!b"));
    assert_eq!(shown, ["a", "", "", "é?", "", "", ""], "what each byte of aé?é! showed, stop é!");
    assert_eq!(end, Some(StopReason::Text("é!".into())), "why the answer ended");
    assert_eq!(stream.tokens(), 7, "tokens of the answer, the one that stopped it included");
    let after = stream.push(byte(&gpt, b'b'));
    assert_eq!(after, ("", Some(StopReason::Text("é!".into()))), "what a push after the end gives");
}

#[test]
fn an_end_token_ends_the_answer_and_is_not_text() {
    let gpt = tokenizer("gpt-2");
    let [a, b, c] = [b'a', b'b', b'c'].map(|one| byte(&gpt, one));
    let with = |change: fn(&mut StopRules)| {
        let mut rules = StopRules { eos: vec![b], token_ids: vec![c], ..stop_at(&["ax"]) };
        change(&mut rules);
        let mut stream = AnswerStream::answering(&rules, Some(&gpt)).unwrap();
        let (shown, end) = run(&mut stream, &[a, b, a, c, a]);
        (shown.concat(), end)
    };
    let got = with(|_| ());
    assert_eq!(got, ("a".into(), Some(StopReason::Eos(b))), "abaca with eos b and stop token c");
    let got = with(|rules| rules.ignore_eos = true);
    assert_eq!(got, ("aba".into(), Some(StopReason::Token(c))), "abaca, ignoring eos");
    let got = with(|rules| rules.include_stop_str = true);
    assert_eq!(got, ("a".into(), Some(StopReason::Eos(b))), "abaca, with include_stop_str");
    let got = with(|rules| (rules.ignore_eos, rules.include_stop_str) = (true, true));
    assert_eq!(
        got,
        ("abac".into(), Some(StopReason::Token(c))),
        "abaca, with include_stop_str, ignoring eos"
    );
}

#[test]
fn text_that_was_held_back_is_shown_when_the_answer_ends_otherwise() {
    let gpt = tokenizer("gpt-2");
    let rules = StopRules { max_tokens: 3, ..stop_at(&["abcd"]) };
    let start = AnswerStream::answering(&rules, Some(&gpt)).unwrap();
    let got = run(&mut start.clone(), &bytes(&gpt, "abcd"));
    let want = (vec!["".into(), "".into(), "abc".into()], Some(StopReason::Length));
    assert_eq!(got, want, "abcd with at most 3 tokens, stop abcd");
    for reason in [StopReason::Guide, StopReason::Receiver, StopReason::Length] {
        let mut stream = start.clone();
        assert_eq!(run(&mut stream, &bytes(&gpt, "ab")).0.concat(), "", "what ab shows");
        assert_eq!(stream.held(), "ab", "what is held back");
        assert_eq!(stream.end(reason.clone()), ("ab", reason.clone()), "the end of ab");
        assert_eq!(stream.end(StopReason::Guide), ("", reason), "the end, asked for once more");
    }
}

#[test]
fn what_the_end_completes_may_be_a_stop_string() {
    // A run of byte tokens is no text before it ends: one bad byte would spoil it.
    let llama = tokenizer("llama");
    let rules = StopRules { max_tokens: 3, ..stop_at(&["é"]) };
    let mut stream = AnswerStream::answering(&rules, Some(&llama)).unwrap();
    let (shown, end) = run(&mut stream, &bytes(&llama, "aé"));
    assert_eq!(shown.concat(), "a", "what the bytes of aé show, at most 3 tokens, stop é");
    assert_eq!(end, Some(StopReason::Text("é".into())), "why the answer ended");
    // Half a character becomes a replacement.
    let gpt = tokenizer("gpt-2");
    let mut stream = AnswerStream::answering(&stop_at(&["x\u{FFFD}"]), Some(&gpt)).unwrap();
    run(&mut stream, &bytes(&gpt, "axé")[..3]);
    let end = stream.end(StopReason::Guide);
    assert_eq!(end, ("", StopReason::Text("x\u{FFFD}".into())), "the end of ax and half an é");
}

#[test]
fn an_answer_of_no_tokens_has_ended_before_it_began() {
    let rules = StopRules { max_tokens: 0, ..StopRules::default() };
    let stream = AnswerStream::answering(&rules, None).unwrap();
    assert_eq!(stream.ended(), Some(&StopReason::Length), "why it ended");
}

#[test]
fn an_answer_that_continues_a_prompt_shows_only_what_is_new() {
    // Half an é in the prompt, the other half in the answer: the é is new. And no string is found in the prompt.
    let gpt = tokenizer("gpt-2");
    let ids = bytes(&gpt, "xxéxx");
    let mut stream = AnswerStream::continuing(&stop_at(&["xx"]), Some(&gpt), &ids[..3]).unwrap();
    let (shown, end) = run(&mut stream, &ids[3..]);
    assert_eq!(shown, ["é", "", ""], "what each byte behind xx and half an é showed, stop xx");
    assert_eq!(end, Some(StopReason::Text("xx".into())), "why the answer ended");
    // The answer's own first space is kept.
    let llama = tokenizer("llama");
    let word = llama.token_id("▁the").unwrap();
    let mut continuing =
        AnswerStream::continuing(&StopRules::default(), Some(&llama), &[word]).unwrap();
    assert_eq!(continuing.push(word), (" the", None), "▁the behind the prompt ▁the");
    let mut answering = AnswerStream::answering(&StopRules::default(), Some(&llama)).unwrap();
    assert_eq!(answering.push(word), ("the", None), "▁the alone");
}

#[test]
fn stop_strings_without_a_tokenizer_are_refused_and_token_rules_are_not() {
    let refused = AnswerStream::answering(&stop_at(&["a"]), None).err();
    assert_eq!(refused, Some(ParamError::StopWithoutText), "a stop string, no tokenizer");
    let rules = StopRules { token_ids: vec![3], max_tokens: 9, ..StopRules::default() };
    let mut stream = AnswerStream::answering(&rules, None).unwrap();
    assert_eq!(stream.push(1), ("", None), "token 1 without a tokenizer");
    assert_eq!(stream.push(3), ("", Some(StopReason::Token(3))), "stop token 3, no tokenizer");
}

#[test]
fn a_stop_string_counts_from_the_first_token_beyond_the_least() {
    let gpt = tokenizer("gpt-2");
    // axxbxx: the first xx ends with token 3, the second with token 6.
    for (min_tokens, text, stops) in
        [(0, "a", true), (2, "a", true), (3, "axxb", true), (5, "axxb", true), (6, "axxbxx", false)]
    {
        let rules = StopRules { min_tokens, ..stop_at(&["xx"]) };
        let mut stream = AnswerStream::answering(&rules, Some(&gpt)).unwrap();
        let (shown, end) = run(&mut stream, &bytes(&gpt, "axxbxx"));
        let shown = shown.concat() + stream.end(StopReason::Receiver).0;
        let got = (shown.as_str(), end.is_some());
        assert_eq!(
            got,
            (text, stops),
            "axxbxx, stop xx, min_tokens {min_tokens}: text, and whether it stopped"
        );
    }
}

/// Ids of one kind with which strings can be met: the single bytes of a few characters, and a few words.
fn ids_of(tokenizer: &Tokenizer) -> Vec<u32> {
    let characters = "ab é🦀".bytes().map(|b| byte(tokenizer, b));
    let spelled: Vec<u32> = ["ab", "ba", " a", "aé b", "bb", " the"]
        .iter()
        .flat_map(|text| tokenizer.encode(text, false).unwrap())
        .collect();
    characters.chain(spelled).collect()
}

#[test]
fn any_tokens_show_what_their_whole_text_says() {
    for kind in ["gpt-2", "llama", "qwen2"] {
        let tokenizer = tokenizer(kind);
        let ids = prop::collection::vec(prop::sample::select(ids_of(&tokenizer)), 0..16);
        let stop = prop::collection::vec(
            prop::sample::select(vec!["a", "b", " ", "é", "🦀", "the"]),
            1..4,
        )
        .prop_map(|parts| parts.concat());
        let case = (ids, prop::collection::vec(stop, 0..4), any::<bool>());
        runner(1000)
            .run(&case, |(ids, strings, include_stop_str)| {
                let rules = StopRules { strings, include_stop_str, ..StopRules::default() };
                let whole = tokenizer.decode(&ids, true).unwrap();
                let (want, number) = naive::cut(&whole, 0, &rules.strings, include_stop_str);
                let mut stream = AnswerStream::answering(&rules, Some(&tokenizer)).unwrap();
                let mut certain_text = tokenizer.detokenizer(true);
                let (mut came, mut shown) = (String::new(), String::new());
                for &id in &ids {
                    came += certain_text.push(id).unwrap();
                    shown += stream.push(id).0;
                    let what = format!("{kind}: shown of {came:?}, {rules:?}");
                    prop_assert!(
                        want.starts_with(&shown),
                        "{what}: {shown:?}, in the end {want:?}"
                    );
                    let certain = naive::certain(&came, Some(0), &rules.strings, include_stop_str);
                    prop_assert_eq!(&shown, certain, "{}", what);
                }
                let (rest, reason) = stream.end(StopReason::Receiver);
                shown += rest;
                prop_assert_eq!(
                    &shown,
                    want,
                    "{}: all that is shown of {:?}, {:?}",
                    kind,
                    &whole,
                    &rules
                );
                let expected = match number {
                    Some(number) => StopReason::Text(rules.strings[number].clone()),
                    None => StopReason::Receiver,
                };
                prop_assert_eq!(reason, expected, "{}: why {:?} ended, {:?}", kind, &whole, &rules);
                Ok(())
            })
            .unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn the_same_text_is_cut_at_the_same_place_however_it_is_spelled() {
    let gpt = tokenizer("gpt-2");
    let rules = stop_at(&["the end"]);
    let text = "So this is the ending, the end of it, and the end";
    for ids in [bytes(&gpt, text), gpt.encode(text, false).unwrap()] {
        let mut stream = AnswerStream::answering(&rules, Some(&gpt)).unwrap();
        let (shown, end) = run(&mut stream, &ids);
        let what = format!("{text:?} in {} tokens", ids.len());
        assert_eq!(shown.concat(), "So this is ", "{what}, stop \"the end\"");
        assert_eq!(end, Some(StopReason::Text("the end".into())), "why {what} ended");
    }
}
