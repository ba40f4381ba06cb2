//! How answers end, and that scheduler and model agree on it.

use l4_sampler::stop::{StopReason, StopRules};
use l5_scheduler::{FinishReason, RequestId, SchedulerConfig};

use crate::support::{Ask, MAX_LEN, ask, drawn, prompt, run};
use crate::tiny::tiny;

#[test]
fn an_answer_ends_at_its_own_length_or_the_models() {
    let tiny = tiny("tiny-llama");
    let config = tiny.config(64);
    let mut core = tiny.core(&config);
    let short = ask(&mut core, 0, &Ask::greedy(&prompt(0, 8), 5));
    let long = ask(&mut core, 1, &Ask::greedy(&prompt(1, 80), 1000));
    let one = ask(&mut core, 2, &Ask::greedy(&prompt(2, MAX_LEN - 1), 1000));
    run(&mut core);
    for (ear, tokens) in [(short, 5), (long, MAX_LEN - 80), (one, 1)] {
        let told = ear.told();
        assert_eq!(told.tokens.len(), tokens, "tokens of an answer");
        assert_eq!(told.finish(), Some(FinishReason::Length), "how it ended");
        assert_eq!(told.ends[0].stop, Some(StopReason::Length), "what stopped it");
    }
}

#[test]
fn a_stop_string_ends_an_answer_in_the_midst_of_a_batch() {
    let tiny = tiny("tiny-llama");
    let config = tiny.config(64);
    let plain = Ask::greedy(&prompt(0, 8), 30).with(drawn(0.9)).seeded(11, 0);
    let whole = tiny.solo(&plain, MAX_LEN);
    // A text that comes somewhere in the middle, whatever tokens it is of.
    let text: Vec<char> = whole.text.chars().collect();
    let middle: String = text[text.len() / 2..][..3].iter().collect();
    let stop = StopRules { strings: vec![middle.clone()], max_tokens: 30, ..StopRules::default() };
    let stopped = Ask { stop, ..plain.clone() };
    let alone = tiny.solo(&stopped, MAX_LEN);
    assert!(alone.tokens.len() < 30, "{middle:?} in {:?}", whole.text);
    let mut core = tiny.core(&config);
    let ears = [ask(&mut core, 0, &plain), ask(&mut core, 1, &stopped)];
    run(&mut core);
    let told = ears[1].told();
    assert_eq!(told.tokens, alone.tokens, "tokens up to the one that completes {middle:?}");
    assert_eq!(told.text, alone.text, "text without {middle:?}");
    assert_eq!(told.finish(), Some(FinishReason::Stop), "how it ended");
    assert_eq!(told.ends[0].stop, Some(StopReason::Text(middle)), "what stopped it");
    assert_eq!(ears[0].told().tokens, whole.tokens, "the other one's tokens");
}

#[test]
fn end_tokens_and_stop_tokens_end_an_answer_unless_they_are_ignored() {
    let tiny = tiny("tiny-llama");
    let config = tiny.config(64);
    let plain = Ask::greedy(&prompt(0, 8), 20).with(drawn(1.3)).seeded(2, 0);
    let whole = tiny.solo(&plain, MAX_LEN);
    let token = whole.tokens[9];
    let at = whole.tokens.iter().position(|t| *t == token).unwrap();
    let rules = |change: &dyn Fn(&mut StopRules)| {
        let mut stop = plain.stop.clone();
        change(&mut stop);
        Ask { stop, ..plain.clone() }
    };
    let eos = rules(&|stop| stop.eos = vec![token]);
    let id = rules(&|stop| stop.token_ids = vec![token]);
    let ignored = rules(&|stop| (stop.eos, stop.ignore_eos) = (vec![token], true));
    let mut core = tiny.core(&config);
    let ears = [&eos, &id, &ignored].map(|of| {
        (ask(&mut core, of.stop.eos.len() as u64 + 10 * u64::from(of.stop.ignore_eos), of), of)
    });
    run(&mut core);
    let ends = ears.map(|(ear, of)| {
        let (told, alone) = (ear.told(), tiny.solo(of, MAX_LEN));
        assert_eq!(told.tokens, alone.tokens, "tokens, the last one included");
        assert_eq!(told.text, alone.text, "text");
        (told.tokens.len(), told.ends[0].stop.clone())
    });
    let want = [
        (at + 1, Some(StopReason::Eos(token))),
        (at + 1, Some(StopReason::Token(token))),
        (20, Some(StopReason::Length)),
    ];
    assert_eq!(ends, want, "tokens and reason: an end token, a stop token, an ignored end token");
}

#[test]
fn an_answer_that_outgrows_the_pool_keeps_what_it_said() {
    let tiny = tiny("tiny-llama");
    // Six blocks of 4 to hand out: 24 tokens are stored, the 25th is chosen and not stored.
    let config = tiny.config(7);
    let mut core = tiny.core(&config);
    let asked = Ask::greedy(&prompt(0, 10), 60).with(drawn(0.8)).seeded(1, 0);
    let ear = ask(&mut core, 0, &asked);
    run(&mut core);
    let (told, alone) = (ear.told(), tiny.solo(&asked, MAX_LEN));
    assert_eq!(told.finish(), Some(FinishReason::KvExhausted), "how it ended");
    assert_eq!(told.tokens.len(), 24 - 10 + 1, "tokens that it had by then");
    assert_eq!(
        told.tokens,
        alone.tokens[..told.tokens.len()],
        "they are those of the answer alone"
    );
    assert!(alone.text.starts_with(&told.text), "{:?} begins with {:?}", alone.text, told.text);
}

#[test]
fn text_that_waited_for_a_stop_string_is_told_when_the_pool_ends_the_answer() {
    let tiny = tiny("tiny-llama");
    let config = tiny.config(7);
    let asked = Ask::greedy(&prompt(0, 10), 60).with(drawn(0.8)).seeded(1, 0);
    let exhausted = |asked: &Ask| {
        let mut core = tiny.core(&config);
        let ear = ask(&mut core, 0, asked);
        run(&mut core);
        ear.told()
    };
    let plain = exhausted(&asked);
    // All of the text could be the beginning of this, which never comes.
    let stop = StopRules { strings: vec![format!("{}#!#", plain.text)], ..asked.stop.clone() };
    let held = exhausted(&Ask { stop, ..asked.clone() });
    assert!(!plain.text.is_empty(), "there is text");
    assert_eq!(held.text, plain.text, "text that was held back until the end");
}

#[test]
fn nobody_is_told_anything_after_an_abort() {
    let tiny = tiny("tiny-llama");
    let config = tiny.config(64);
    let mut core = tiny.core(&config);
    let ear = ask(&mut core, 0, &Ask::greedy(&prompt(0, 8), 50));
    let other = Ask::greedy(&prompt(1, 8), 20);
    let stays = ask(&mut core, 1, &other);
    for _ in 0..5 {
        core.step().unwrap();
    }
    assert!(core.abort(RequestId(0)), "there was such a request");
    let had = ear.told().tokens;
    let finished = core.step().unwrap().finished.clone();
    assert_eq!(finished, [(RequestId(0), FinishReason::Aborted)], "what the next step tells");
    run(&mut core);
    let told = ear.told();
    assert_eq!(told.tokens, had, "tokens of an aborted answer");
    assert_eq!(told.finish(), Some(FinishReason::Aborted), "how it ended");
    assert_eq!(stays.told().tokens, tiny.solo(&other, MAX_LEN).tokens, "the other one's tokens");
}

#[test]
fn an_answer_of_no_tokens_has_none() {
    let tiny = tiny("tiny-llama");
    let mut core = tiny.core(&tiny.config(64));
    let ear = ask(&mut core, 0, &Ask::greedy(&prompt(0, 8), 0));
    run(&mut core);
    let told = ear.told();
    assert_eq!((told.tokens.len(), told.text.as_str()), (0, ""), "tokens and text");
    assert_eq!(told.finish(), Some(FinishReason::Length), "how it ended");
}

#[test]
fn a_step_computes_exactly_the_tokens_that_were_scheduled() {
    let tiny = tiny("tiny-llama");
    let config = SchedulerConfig { enable_prefix_caching: false, ..tiny.config(200) };
    let mut core = tiny.core(&config);
    for i in 0..5 {
        ask(&mut core, i, &Ask::greedy(&prompt(i as u32, 9), 12));
    }
    let mut steps = Vec::new();
    while core.has_unfinished() {
        let result = core.step().unwrap();
        steps.push((result.scheduled, result.scheduled_tokens));
    }
    // Five prompts at once, then a token for each, the last of which is chosen and not fed.
    let mut want = vec![(5, 5 * 9)];
    want.extend([(5, 5); 11]);
    assert_eq!(steps, want, "requests and tokens of each step");
}
