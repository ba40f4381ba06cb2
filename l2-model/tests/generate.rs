//! When an answer ends, and what a session keeps from one to the next.

mod judge;

use std::path::Path;

use l1_tensor::{Precision, PrecisionRequest, Runtime, RuntimeOptions};
use l2_model::{
    Decoder, Error, FinishReason, GenerateOptions, Generation, ModelFiles, Session, generate,
};

const PROMPT: [u32; 6] = [5, 17, 100, 3, 64, 200];
const ROOM: usize = 40;

struct Bench {
    rt: Runtime,
    decoder: Decoder,
}

impl Bench {
    fn new() -> Self {
        let rt = Runtime::new(RuntimeOptions {
            precision: PrecisionRequest::Exactly(Precision::F32),
            threads: Some(1),
            ..Default::default()
        })
        .unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
        let decoder = ModelFiles::open(&path).unwrap().decoder(&rt).unwrap();
        Self { rt, decoder }
    }

    fn session(&self) -> Session<'_> {
        Session::new(&self.decoder, &self.rt, ROOM).unwrap()
    }

    /// The answer when nothing stops it before `n` tokens, the largest logit after each feed.
    fn free(&self, n: usize) -> Vec<u32> {
        let mut session = self.session();
        let first = judge::works("feeding a prompt to tiny-llama", session.feed(&PROMPT));
        let mut logits = first.to_vec_f32().unwrap();
        let mut out = Vec::new();
        loop {
            let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
            out.push(best as u32);
            if out.len() == n {
                return out;
            }
            logits = session.feed(&[best as u32]).unwrap().to_vec_f32().unwrap();
        }
    }
}

/// An answer that must come.
#[track_caller]
fn answer(
    session: &mut Session,
    prompt: &[u32],
    options: &GenerateOptions,
    on_token: impl FnMut(u32) -> bool,
) -> Generation {
    let got = generate::generate(session, prompt, options, on_token);
    judge::works(format!("an answer of tiny-llama to {prompt:?}"), got)
}

/// Up to and with the first token that is one of `stops`.
fn until(tokens: &[u32], stops: &[u32]) -> Vec<u32> {
    let end = tokens.iter().position(|t| stops.contains(t)).expect("one of them occurs");
    tokens[..=end].to_vec()
}

#[test]
fn an_answer_ends_with_any_of_the_stop_tokens() {
    let bench = Bench::new();
    let free = bench.free(12);
    let absent = (0..).find(|id| !free.contains(id)).unwrap();
    for i in [0, 3, 7] {
        for stops in [&[free[i]][..], &[absent, free[i]], &[free[i], absent]] {
            let options =
                GenerateOptions { max_tokens: 12, stop_tokens: stops, ..Default::default() };
            let mut session = bench.session();
            let got = answer(&mut session, &PROMPT, &options, |_| true);
            let what =
                format!("the answer of tiny-llama, {free:?} if it is free, with stop tokens");
            assert_eq!(got.tokens, until(&free, stops), "{what} {stops:?}");
            assert_eq!(got.finish_reason, FinishReason::Stop, "why it ended, {stops:?}");
        }
    }
}

#[test]
fn stop_tokens_are_passed_over_when_asked_to() {
    let bench = Bench::new();
    let free = bench.free(9);
    let options =
        GenerateOptions { max_tokens: 9, stop_tokens: &[free[2], free[4]], ignore_eos: true };
    let got = answer(&mut bench.session(), &PROMPT, &options, |_| true);
    assert_eq!(got.tokens, free, "the answer that ignores its stop tokens");
    assert_eq!(got.finish_reason, FinishReason::Length);
}

#[test]
fn an_answer_has_no_more_tokens_than_asked_for_or_than_there_is_room_for() {
    let bench = Bench::new();
    let room = ROOM - PROMPT.len();
    let free = bench.free(room);
    for (max_tokens, expected) in [(0, 0), (1, 1), (5, 5), (room, room), (10 * room, room)] {
        let options = GenerateOptions { max_tokens, ..Default::default() };
        let mut seen = Vec::new();
        let mut session = bench.session();
        let receive = |token| {
            seen.push(token);
            true
        };
        let got = answer(&mut session, &PROMPT, &options, receive);
        assert_eq!(got.tokens, free[..expected], "at most {max_tokens} tokens, room for {room}");
        assert_eq!(got.finish_reason, FinishReason::Length, "at most {max_tokens} tokens");
        assert_eq!(seen, got.tokens, "what the receiver saw");
        let fed = PROMPT.len() + expected.saturating_sub(1);
        assert_eq!(session.tokens().len(), fed, "nobody wants what follows the last token");
    }
    let full = GenerateOptions { max_tokens: 1, ..Default::default() };
    let refused = generate::generate(&mut bench.session(), &[1; ROOM], &full, |_| true);
    assert!(matches!(refused, Err(Error::PromptTooLong { tokens: ROOM, context: ROOM })));
    let refused = generate::generate(&mut bench.session(), &[], &full, |_| true);
    assert!(matches!(refused, Err(Error::EmptyPrompt)));
}

#[test]
fn a_receiver_that_has_enough_ends_the_answer() {
    let bench = Bench::new();
    let free = bench.free(8);
    let options = GenerateOptions { max_tokens: 8, ..Default::default() };
    let mut left = 3;
    let enough = |_| {
        left -= 1;
        left > 0
    };
    let got = answer(&mut bench.session(), &PROMPT, &options, enough);
    assert_eq!(got.tokens, free[..3], "the answer of a receiver that wants three tokens");
    assert_eq!(got.finish_reason, FinishReason::Stop);
}

#[test]
fn a_prompt_that_shares_its_beginning_gives_the_same_answer() {
    let bench = Bench::new();
    let options = GenerateOptions { max_tokens: 6, ..Default::default() };
    let fresh = |prompt: &[u32]| answer(&mut bench.session(), prompt, &options, |_| true).tokens;
    let mut session = bench.session();
    let longer = [&PROMPT[..], &[9, 8]].concat();
    let other = [&PROMPT[..4], &[300, 2, 1]].concat();
    // Longer, the same again, shorter, and another end.
    for prompt in [&PROMPT[..], &longer, &longer, &PROMPT[..3], &other, &PROMPT] {
        let got = answer(&mut session, prompt, &options, |_| true).tokens;
        assert_eq!(got, fresh(prompt), "the answer to {prompt:?} in a session that was used");
        assert!(session.tokens().starts_with(prompt), "the session holds the prompt");
    }
}
