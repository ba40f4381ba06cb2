//! Counting what was said.

use std::collections::HashMap;

use l4_sampler::History;
use l4_sampler::processors::penalties::penalize;
use proptest::prelude::*;

use crate::counting::allocations;
use crate::given::{OUT, logits, odd_row, plain_row};
use crate::goldens::cases;
use crate::judge::{judge, same_bits, within};

fn penalized(before: &[f32], history: &History, penalties: [f32; 3]) -> Vec<f32> {
    let mut row = before.to_vec();
    let [repetition, presence, frequency] = penalties;
    penalize(&mut row, history, repetition, presence, frequency);
    row
}

fn history_of(prompt: &[u32], answer: &[u32]) -> History {
    let mut history = History::new(prompt, answer.len());
    for token in answer {
        history.push(*token);
    }
    history
}

/// What a history says, as a map: token to (in the prompt, times in the answer), without what was taken back.
fn entries(history: &History) -> HashMap<u32, (bool, u32)> {
    let mut all = HashMap::new();
    for seen in history.seen().filter(|s| s.in_prompt || s.in_output > 0) {
        let before = all.insert(seen.token, (seen.in_prompt, seen.in_output));
        assert_eq!(before, None, "token {} is reported once", seen.token);
    }
    all
}

/// Goldens of transformers (see `goldens.rs`), one rounding apart at most.
#[test]
fn repetition_is_that_of_transformers() {
    for case in cases("repetition") {
        let penalty = case.number("penalty", 1.0);
        for (i, (what, before, want)) in case.rows().enumerate() {
            let got = penalized(before, &case.history(i), [penalty, 0.0, 0.0]);
            judge(
                format!("repetition penalty {penalty}, {what}"),
                "logits",
                &got,
                want,
                within(1.2e-7, 0.0),
            );
        }
    }
}

/// The formula of OpenAI's API in f64; ours takes two differences in f32.
#[test]
fn presence_and_frequency_are_subtracted() {
    for case in cases("presence_frequency") {
        let (presence, frequency) = (case.number("presence", 0.0), case.number("frequency", 0.0));
        for (i, (what, before, want)) in case.rows().enumerate() {
            let got = penalized(before, &case.history(i), [1.0, presence, frequency]);
            let what = format!("presence {presence}, frequency {frequency}, {what}");
            judge(what, "logits", &got, want, within(2.4e-7, 2.4e-7));
        }
    }
}

#[test]
fn a_repeated_token_gets_less_likely_whatever_its_sign() {
    let before = [2.0, -2.0, 0.0, -0.0, 2.0, -2.0];
    let got = penalized(&before, &history_of(&[0, 1, 2, 3], &[]), [2.0, 0.0, 0.0]);
    judge(
        "repetition penalty 2",
        "logits",
        &got,
        &[1.0, -4.0, 0.0, 0.0, 2.0, -2.0],
        within(0.0, 0.0),
    );
}

/// Each of these rows is one of a batch; in a padded matrix all but the longest would end in zeros.
#[test]
fn only_tokens_that_were_seen_are_penalized() {
    let before = [3.0, 3.0, 3.0, 3.0];
    for (prompt, answer, want) in [
        (&[1, 2][..], &[2][..], [3.0, 1.5, 0.25, 3.0]),
        (&[], &[3], [3.0, 3.0, 3.0, 0.25]),
        (&[], &[], [3.0; 4]),
        (&[1], &[], [3.0, 1.5, 3.0, 3.0]),
    ] {
        let got = penalized(&before, &history_of(prompt, answer), [2.0, 1.0, 0.25]);
        let what = format!("prompt {prompt:?}, answer {answer:?}");
        judge(what, "logits", &got, &want, within(0.0, 0.0));
    }
}

/// Repetition looks at prompt and answer and does not count; presence does not count either; frequency does.
#[test]
fn what_counts_how_often() {
    let before = [8.0; 4];
    let history = history_of(&[0, 0, 0, 1], &[1, 2, 2, 2]);
    let table = [
        ("repetition 2", [2.0, 0.0, 0.0], [4.0, 4.0, 4.0, 8.0]),
        ("presence 1", [1.0, 1.0, 0.0], [8.0, 7.0, 7.0, 8.0]),
        ("frequency 1", [1.0, 0.0, 1.0], [8.0, 7.0, 5.0, 8.0]),
        ("all three", [2.0, 1.0, 0.5], [4.0, 2.5, 1.5, 8.0]),
        ("rewards", [0.5, -1.0, -0.5], [16.0, 17.5, 18.5, 8.0]),
    ];
    for (what, penalties, want) in table {
        judge(what, "logits", &penalized(&before, &history, penalties), &want, within(0.0, 0.0));
    }
}

#[test]
fn penalties_that_are_off_leave_every_bit() {
    let odd = odd_row();
    let all: Vec<u32> = (0..odd.len() as u32).collect();
    let everything = history_of(&all, &all);
    same_bits("penalties off", &penalized(&odd, &everything, [1.0, 0.0, 0.0]), &odd);
    let nothing = History::new(&[], 0);
    same_bits("nothing was seen", &penalized(&odd, &nothing, [2.0, 1.0, 1.0]), &odd);
    let beyond = history_of(&[1000], &[u32::MAX]);
    same_bits(
        "tokens that the row does not have",
        &penalized(&odd, &beyond, [2.0, 1.0, 1.0]),
        &odd,
    );
}

/// One penalty must not disturb what another one, being off, leaves alone.
#[test]
fn each_penalty_alone_is_the_others_at_rest() {
    let plain = plain_row();
    let history = history_of(&[3, 4, 5], &[5, 6, 6]);
    for (what, penalties, touched) in [
        ("repetition", [1.2, 0.0, 0.0], &[3, 4, 5, 6][..]),
        ("presence", [1.0, 0.5, 0.0], &[5, 6]),
        ("frequency", [1.0, 0.0, 0.5], &[5, 6]),
    ] {
        let got = penalized(&plain, &history, penalties);
        let changed: Vec<usize> =
            (0..plain.len()).filter(|i| got[*i].to_bits() != plain[*i].to_bits()).collect();
        assert_eq!(changed, touched, "tokens that {what} changes");
        assert!(changed.iter().all(|i| got[*i] < plain[*i]), "{what} makes less likely");
    }
}

#[test]
fn a_removed_token_stays_removed() {
    let got = penalized(&[OUT, 1.0], &history_of(&[0], &[0]), [0.5, -2.0, -2.0]);
    assert_eq!(got[0], OUT, "a banned token with rewards");
}

#[test]
fn a_history_counts_the_answer_and_marks_the_prompt() {
    let mut history = History::new(&[7, 7, 9], 8);
    assert_eq!(history.generated(), 0, "tokens of an answer that has not begun");
    for token in [9, 4, 4] {
        history.push(token);
    }
    assert_eq!(history.generated(), 3, "tokens of the answer");
    let want = HashMap::from([(7, (true, 0)), (9, (true, 1)), (4, (false, 2))]);
    assert_eq!(entries(&history), want);
}

#[test]
fn a_token_taken_back_was_never_there() {
    let mut history = history_of(&[1], &[1, 2]);
    let before = entries(&history);
    for token in [2, 3, 1] {
        history.push(token);
    }
    for token in [1, 3, 2] {
        history.pop(token);
    }
    assert_eq!(entries(&history), before, "after three tokens came and went");
    assert_eq!(history.generated(), 2, "tokens of the answer");
    history.pop(77);
    assert_eq!(entries(&history), before, "after a token was popped that nobody pushed");
    history.pop(2);
    history.pop(1);
    history.pop(1);
    assert_eq!(entries(&history), HashMap::from([(1, (true, 0))]), "the prompt's token stays");
    assert_eq!(history.generated(), 0, "tokens of an answer taken back whole");
}

/// A draft of eight tokens at every step, most of which are refused: entries must not pile up.
#[test]
fn refused_drafts_leave_nothing_behind() {
    let mut history = History::new(&[0], 1000);
    for step in 0..1000u32 {
        let draft: Vec<u32> = (0..8).map(|i| 1000 + step * 8 + i).collect();
        draft.iter().for_each(|t| history.push(*t));
        draft.iter().rev().for_each(|t| history.pop(*t));
        history.push(step % 10);
    }
    assert_eq!(history.seen().count(), 10, "tokens seen");
    assert_eq!(history.generated(), 1000, "tokens of the answer");
    assert!(entries(&history).iter().all(|(token, seen)| *seen == (*token == 0, 100)));
}

/// Room is asked for once; after that tokens come and go in the memory that there is, drafts included.
#[test]
fn no_answer_within_its_length_asks_for_memory() {
    let prompt: Vec<u32> = (0..50).collect();
    for (max_new, draft) in [(8, 8), (300, 8), (300, 0), (1, 1)] {
        let mut history = History::new(&prompt, max_new);
        let mut token = 1000;
        let asked = allocations(|| {
            for step in 0..max_new {
                // A draft of tokens never seen before, as long as the answer still may be, and all refused.
                let refused = token..token + draft.min(max_new - step) as u32;
                refused.clone().for_each(|token| history.push(token));
                refused.clone().rev().for_each(|token| history.pop(token));
                history.push(refused.end);
                token = refused.end + 1;
            }
        });
        assert_eq!(asked, 0, "allocations for {max_new} tokens with drafts of {draft}");
        assert_eq!(history.seen().len(), prompt.len() + max_new, "tokens seen");
    }
}

#[derive(Clone, Debug)]
enum Move {
    Push(u32),
    /// Take back the last token that is still there.
    Pop,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![3 => (0u32..12).prop_map(Move::Push), 2 => Just(Move::Pop)];
    prop::collection::vec(one, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Against two lists and a count of what is in them.
    #[test]
    fn a_history_is_a_prompt_and_an_answer(
        prompt in prop::collection::vec(0u32..12, 0..10),
        moves in moves(),
    ) {
        let mut history = History::new(&prompt, 4);
        let mut answer = Vec::new();
        for step in moves {
            match step {
                Move::Push(token) => {
                    history.push(token);
                    answer.push(token);
                }
                Move::Pop => {
                    if let Some(token) = answer.pop() {
                        history.pop(token);
                    }
                }
            }
            let mut want = HashMap::new();
            for token in &prompt {
                want.entry(*token).or_insert((true, 0));
            }
            for token in &answer {
                want.entry(*token).or_insert((false, 0)).1 += 1;
            }
            assert_eq!(entries(&history), want, "prompt {prompt:?}, answer {answer:?}");
            assert_eq!(history.generated(), answer.len(), "tokens of the answer");
        }
    }

    /// Against the definition, token by token over the whole vocabulary.
    #[test]
    fn penalties_are_their_definition(
        before in logits(),
        prompt in prop::collection::vec(0u32..90, 0..20),
        answer in prop::collection::vec(0u32..90, 0..20),
        repetition in 0.5f32..2.0,
        presence in -2.0f32..2.0,
        frequency in -2.0f32..2.0,
    ) {
        let want: Vec<f64> = (0u32..).zip(&before).map(|(id, x)| {
            let mut x = f64::from(*x);
            if prompt.contains(&id) || answer.contains(&id) {
                x *= if x < 0.0 { f64::from(repetition) } else { 1.0 / f64::from(repetition) };
            }
            let count = answer.iter().filter(|t| **t == id).count() as f64;
            x - f64::from(presence) * count.min(1.0) - f64::from(frequency) * count
        }).collect();
        let got: Vec<f64> = penalized(&before, &history_of(&prompt, &answer), [repetition, presence, frequency])
            .into_iter()
            .map(f64::from)
            .collect();
        let what = format!("repetition {repetition}, presence {presence}, frequency {frequency}");
        judge(what, "logits", &got, &want, within(3e-7, 1e-5));
    }
}
