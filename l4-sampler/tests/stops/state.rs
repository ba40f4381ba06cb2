//! The state machine of one choice: what the sampler is told of it, and what each token does to it.

use std::path::Path;

use l2_model::tokenizer::Tokenizer;
use l4_sampler::guide::{GuideSpec, Guides, MaskAhead};
use l4_sampler::output::{ChoiceSpec, ChoiceState, FinishReason, NewTokens};
use l4_sampler::stop::{StopReason, StopRules};
use l4_sampler::{DrawKey, History, RowError, Sampled, SamplingParams};

const PROMPT: [u32; 5] = [40, 41, 40, 42, 43];
const MAX_MODEL_LEN: usize = 64;

fn tokenizer() -> Tokenizer {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tokenizers");
    Tokenizer::from_file(path.join("smollm.tokenizer.json")).unwrap()
}

fn spec(stop: StopRules) -> ChoiceSpec {
    let params = SamplingParams { repetition_penalty: 1.2, ..SamplingParams::default() };
    ChoiceSpec { params: params.into(), stop, seed: 7, sample: 3, guide: None, continues: false }
}

fn most(max_tokens: usize) -> StopRules {
    StopRules { max_tokens, ..StopRules::default() }
}

/// A choice whose first token is due.
fn begun(spec: ChoiceSpec, tokenizer: &Tokenizer) -> ChoiceState {
    let vocab = tokenizer.vocab_size();
    let mut choice = ChoiceState::new(spec, &PROMPT, Some(tokenizer), vocab, MAX_MODEL_LEN);
    choice.open(&PROMPT, &[], Some(tokenizer));
    choice
}

/// What a step did: tokens, text, and why the choice ended.
type Step = (Vec<u32>, String, Option<FinishReason>);

fn step(choice: &mut ChoiceState, token: u32) -> Step {
    let sampled = Sampled { token: Ok(token), ..Sampled::default() };
    let mut new = NewTokens::default();
    let finish = choice.choose(&[sampled], &[], &mut new);
    (new.tokens, new.text, finish)
}

fn seen(history: &History) -> Vec<(u32, u32, bool)> {
    let mut seen: Vec<_> = history.seen().map(|s| (s.token, s.in_output, s.in_prompt)).collect();
    seen.sort_unstable();
    seen
}

#[test]
fn a_row_is_keyed_by_the_seed_the_choice_and_the_position() {
    let tokenizer = tokenizer();
    let rules = StopRules { eos: vec![2], token_ids: vec![9], ..most(8) };
    let mut choice = begun(spec(rules), &tokenizer);
    for position in [5, 6, 7] {
        let row = choice.row(position).unwrap();
        let key = DrawKey { seed: 7, sample: 3, position: position as u32 };
        assert_eq!(row.key, key, "key of the token at position {position}");
        assert_eq!(row.params.repetition_penalty, 1.2, "the choice's own parameters");
        assert_eq!(row.ends, [2, 9], "tokens that end it");
        assert!(row.mask.is_none(), "a mask without a guide");
        step(&mut choice, 50 + position as u32);
    }
}

#[test]
fn a_history_has_the_prompt_and_every_token_and_nothing_else() {
    let tokenizer = tokenizer();
    let mut choice = begun(spec(most(8)), &tokenizer);
    let mut expected = History::new(&PROMPT, 8);
    assert_eq!(seen(choice.row(5).unwrap().history), seen(&expected), "after the prompt");
    for (i, token) in [50, 41, 50, 60].into_iter().enumerate() {
        step(&mut choice, token);
        expected.push(token);
        let row = choice.row(6 + i).unwrap();
        assert_eq!(seen(row.history), seen(&expected), "after output token {i}");
        assert_eq!(choice.generated(), i + 1, "number of output tokens");
    }
    // Resumed after a preemption: the request was never away for this state.
    choice.open(&PROMPT, &[], Some(&tokenizer));
    assert_eq!(seen(choice.row(9).unwrap().history), seen(&expected), "opened again");
}

#[test]
fn the_text_of_all_steps_is_the_text_of_the_tokens() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("Rivers: Rhône, Główna, 長江.", false).unwrap();
    let mut choice = begun(spec(most(ids.len())), &tokenizer);
    let mut shown = String::new();
    for (i, id) in ids.iter().enumerate() {
        let (tokens, text, finish) = step(&mut choice, *id);
        assert_eq!(tokens, [*id]);
        shown.push_str(&text);
        let last = (i + 1 == ids.len()).then_some(FinishReason::Length);
        assert_eq!(finish, last, "after token {i} of {}", ids.len());
    }
    assert_eq!(shown, "Rivers: Rhône, Główna, 長江.");
}

#[test]
fn an_end_token_counts_before_the_length() {
    let tokenizer = tokenizer();
    let rules = StopRules { eos: vec![2], ..most(2) };
    let mut choice = begun(spec(rules), &tokenizer);
    assert_eq!(step(&mut choice, 50).2, None);
    assert_eq!(step(&mut choice, 2).2, Some(FinishReason::Stop), "an end token as the last one");
    let end = choice.close(FinishReason::Stop, &mut String::new());
    assert_eq!(end.stop, Some(StopReason::Eos(2)));
}

#[test]
fn the_end_of_the_context_is_a_length_too() {
    let tokenizer = tokenizer();
    let vocab = tokenizer.vocab_size();
    let spec = spec(most(100));
    let mut choice = ChoiceState::new(spec, &PROMPT, Some(&tokenizer), vocab, PROMPT.len() + 2);
    choice.open(&PROMPT, &[], Some(&tokenizer));
    assert_eq!(step(&mut choice, 50).2, None);
    assert_eq!(step(&mut choice, 51).2, Some(FinishReason::Length), "sequence of 7 of 7 tokens");
}

#[test]
fn text_that_was_held_back_is_shown_with_the_last_token() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("This is the end", false).unwrap();
    let rules = StopRules { strings: vec![" end of".into()], ..most(ids.len()) };
    let mut choice = begun(spec(rules), &tokenizer);
    let steps: Vec<Step> = ids.iter().map(|id| step(&mut choice, *id)).collect();
    let (_, text, finish) = steps.last().unwrap();
    assert_eq!((text.as_str(), *finish), (" end", Some(FinishReason::Length)), "the last step");
    let all: String = steps.iter().map(|(_, text, _)| text.as_str()).collect();
    assert_eq!(all, "This is the end");
}

#[test]
fn a_guide_is_not_asked_about_a_token_that_ended_the_text() {
    let tokenizer = tokenizer();
    let guides = Guides::new(&tokenizer, tokenizer.vocab_size(), &[2]).unwrap();
    let ids = tokenizer.encode("zebra", false).unwrap();
    let compiled = guides.compile(&GuideSpec::Choice(vec!["yes".into(), "no".into()]), "");
    let rules = StopRules { token_ids: vec![ids[0]], ..most(9) };
    let mut choice = begun(ChoiceSpec { guide: compiled.ok(), ..spec(rules) }, &tokenizer);
    let finish = step(&mut choice, ids[0]).2;
    assert_eq!(finish, Some(FinishReason::Stop), "a stop token that the guide does not allow");
    let end = choice.close(FinishReason::Stop, &mut String::new());
    assert_eq!(end.error, None);
}

#[test]
fn a_guide_that_the_last_token_completes_is_why_it_ends() {
    let tokenizer = tokenizer();
    let vocab = tokenizer.vocab_size();
    let guides = Guides::new(&tokenizer, vocab, &[2]).unwrap();
    let ahead = MaskAhead::default();
    let len = |text: &str| tokenizer.encode(text, false).unwrap().len();
    for (text, max_tokens, reason) in [
        ("yes", len("yes"), StopReason::Guide),
        ("yes", len("yes") + 5, StopReason::Guide),
        ("no thanks", len("no thanks") - 1, StopReason::Length),
    ] {
        let compiled = guides.compile(&GuideSpec::Choice(vec![text.into(), "zebra".into()]), "");
        let spec = ChoiceSpec { guide: compiled.ok(), ..spec(most(max_tokens)) };
        let mut choice = begun(spec, &tokenizer);
        let pending = choice.start_mask(&[], &ahead).expect("a guide's mask");
        choice.finish_mask(pending);
        let ids = tokenizer.encode(text, false).unwrap();
        let mask = choice.row(5).unwrap().mask.expect("the mask of a guided row");
        assert!(mask.allows(ids[0]) && !mask.allows(50), "what {text:?} may begin with");
        // What the guide leaves no choice about follows the first token unsampled.
        let (tokens, shown, finish) = step(&mut choice, ids[0]);
        assert_eq!(tokens, ids[..tokens.len()], "tokens of {text:?}");
        assert!(text.starts_with(&shown) && finish.is_some(), "{shown:?} of {text:?}");
        let end = choice.close(finish.unwrap(), &mut String::new());
        assert_eq!(end.stop, Some(reason), "why {text:?} ended, of at most {max_tokens} tokens");
    }
}

#[test]
fn a_spec_that_is_invalid_and_a_row_without_a_token_fail_with_an_error() {
    let tokenizer = tokenizer();
    let bad = SamplingParams { temperature: -1.0, ..SamplingParams::default() };
    let mut choice = begun(ChoiceSpec { params: bad.into(), ..spec(most(4)) }, &tokenizer);
    assert!(choice.has_failed() && choice.row(5).is_some(), "its row is sampled all the same");
    assert_eq!(step(&mut choice, 50), (vec![], String::new(), Some(FinishReason::Failed)));
    let end = choice.close(FinishReason::Failed, &mut String::new());
    assert!(end.error.unwrap().contains("temperature"));

    let mut choice = begun(spec(most(4)), &tokenizer);
    let nothing = Sampled { token: Err(RowError::NothingLeft), ..Sampled::default() };
    let finish = choice.choose(&[nothing], &[], &mut NewTokens::default());
    assert_eq!(finish, Some(FinishReason::Failed));
}

#[test]
fn text_that_was_held_back_is_given_with_the_end_unless_the_request_was_aborted() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("no end", false).unwrap();
    for (finish, rest) in [(FinishReason::KvExhausted, " end"), (FinishReason::Aborted, "")] {
        let rules = StopRules { strings: vec![" end of".into()], ..most(9) };
        let mut choice = begun(spec(rules), &tokenizer);
        let shown: String = ids.iter().map(|id| step(&mut choice, *id).1).collect();
        assert_eq!(shown, "no", "what could become a stop string waits");
        let mut text = String::new();
        choice.close(finish, &mut text);
        assert_eq!(text, rest, "text with the end of a request that is {finish}");
    }
}

/// Opens a step with these drafts, and gives the choice these sampled tokens. Returns its tokens, and why it ended.
fn verify(
    choice: &mut ChoiceState,
    drafts: &[u32],
    sampled: &[u32],
) -> (Vec<u32>, Option<FinishReason>) {
    choice.open(&PROMPT, drafts, None);
    let ids = sampled.iter().map(|id| Sampled { token: Ok(*id), ..Sampled::default() });
    let mut new = NewTokens::default();
    let finish = choice.choose(&ids.collect::<Vec<_>>(), drafts, &mut new);
    assert_eq!(new.rows, (0..new.tokens.len()).collect::<Vec<_>>(), "rows that were read");
    (new.tokens, finish)
}

#[test]
fn tokens_are_taken_up_to_the_first_that_is_not_the_draft() {
    let tokenizer = tokenizer();
    let sampled = [60, 61, 62, 63];
    for (drafts, taken) in [
        ([60, 61, 62], &sampled[..]),
        ([60, 61, 99], &[60, 61, 62]),
        ([60, 99, 62], &[60, 61]),
        ([99, 61, 62], &[60]),
    ] {
        let mut choice = begun(spec(most(9)), &tokenizer);
        let (tokens, finish) = verify(&mut choice, &drafts, &sampled);
        assert_eq!((tokens.as_slice(), finish), (taken, None), "drafts {drafts:?}");
        assert_eq!(choice.generated(), taken.len(), "drafts {drafts:?}");
    }
}

#[test]
fn nothing_is_taken_behind_the_token_that_ends_the_output_though_it_was_drafted() {
    let tokenizer = tokenizer();
    let stop = StopRules { token_ids: vec![61], ..most(9) };
    let mut choice = begun(spec(stop), &tokenizer);
    let verified = verify(&mut choice, &[60, 61, 62], &[60, 61, 62, 63]);
    assert_eq!(verified, (vec![60, 61], Some(FinishReason::Stop)), "a stop token");
    let mut choice = begun(spec(most(2)), &tokenizer);
    let verified = verify(&mut choice, &[60, 61, 62], &[60, 61, 62, 63]);
    assert_eq!(verified, (vec![60, 61], Some(FinishReason::Length)), "at most two tokens");
}

#[test]
fn the_row_behind_a_draft_has_its_own_random_number_and_a_history_with_the_draft() {
    let tokenizer = tokenizer();
    let mut choice = begun(spec(most(9)), &tokenizer);
    step(&mut choice, 50);
    let drafts = [60, 41, 60];
    choice.open(&PROMPT, &drafts, None);
    for (after, row) in choice.rows(6, 3).enumerate() {
        let row = row.unwrap();
        let key = DrawKey { seed: 7, sample: 3, position: 6 + after as u32 };
        assert_eq!(row.key, key, "key behind {after} drafts");
        let mut history = History::new(&PROMPT, 9);
        [50].iter().chain(&drafts[..after]).for_each(|id| history.push(*id));
        assert_eq!(seen(row.history), seen(&history), "history behind {after} drafts");
        assert_eq!(row.history.generated(), 1 + after, "output tokens behind {after} drafts");
    }
    // The drafts are not part of the output before they are sampled.
    assert_eq!(choice.generated(), 1);
}

#[test]
fn tokens_that_the_guide_forces_are_accepted_as_drafts_like_sampled_ones() {
    let tokenizer = tokenizer();
    let guides = Guides::new(&tokenizer, tokenizer.vocab_size(), &[2]).unwrap();
    let ahead = MaskAhead::default();
    let said = tokenizer.encode("yes and then more", false).unwrap();
    let compiled =
        guides.compile(&GuideSpec::Choice(vec!["yes and then more".into(), "zebra".into()]), "");
    let params = SamplingParams::default().into();
    let guided = ChoiceSpec { params, guide: compiled.ok(), ..spec(most(40)) };
    let mut choice = begun(guided, &tokenizer);
    choice.open(&PROMPT, &said[..2], None);
    let pending = choice.start_mask(&said[..2], &ahead).expect("a guide's masks");
    choice.finish_mask(pending);
    let masked = choice.rows(5, 2).map(|row| row.unwrap().mask.is_some());
    assert_eq!(masked.collect::<Vec<_>>(), [true; 3], "rows under a mask");
    let rows = [said[0], 77, 77].map(|id| Sampled { token: Ok(id), ..Sampled::default() });
    let mut new = NewTokens::default();
    let finish = choice.choose(&rows, &said[..2], &mut new);
    assert_eq!(new.tokens, said, "the sampled beginning, and all that follows from it");
    assert_eq!(
        (new.rows.as_slice(), finish),
        (&[0][..], Some(FinishReason::Stop)),
        "rows that were read"
    );
}

#[test]
fn nothing_is_taken_behind_a_draft_that_the_guide_does_not_allow() {
    let tokenizer = tokenizer();
    let guides = Guides::new(&tokenizer, tokenizer.vocab_size(), &[2]).unwrap();
    let ahead = MaskAhead::default();
    let compiled = guides.compile(&GuideSpec::Regex("[a-z ]*[.]".into()), "");
    let params = SamplingParams::default().into();
    let mut choice =
        begun(ChoiceSpec { params, guide: compiled.ok(), ..spec(most(9)) }, &tokenizer);
    let word = tokenizer.encode("word", false).unwrap()[0];
    let digit = tokenizer.encode("7", false).unwrap()[0];
    let drafts = [word, digit, word];
    choice.open(&PROMPT, &drafts, None);
    let pending = choice.start_mask(&drafts, &ahead).expect("a guide's masks");
    choice.finish_mask(pending);
    let masked = choice.rows(5, 3).map(|row| row.unwrap().mask.is_some());
    assert_eq!(masked.collect::<Vec<_>>(), [true, true, false, false], "rows under a mask");
    // The sampler would not choose the digit; rows behind it mean nothing.
    let rows = [word, word, word, word].map(|id| Sampled { token: Ok(id), ..Sampled::default() });
    let mut new = NewTokens::default();
    assert_eq!(choice.choose(&rows, &drafts, &mut new), None);
    assert_eq!((new.tokens, new.rows), (vec![word, word], vec![0, 1]));
}
