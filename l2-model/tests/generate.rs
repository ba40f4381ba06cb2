//! When an answer ends, and what a session keeps from one to the next.

mod judge;

use std::path::Path;

use l1_tensor::ops::{AttentionParams, AttentionScratch};
use l1_tensor::{
    DType, Device, DeviceRequest, Precision, PrecisionRequest, Runtime, RuntimeOptions, TensorMut,
    TensorRef,
};
use l2_model::{
    Batch, ContiguousState, Decoder, Error, FinishReason, GenerateOptions, Generation, ModelFiles,
    Result, SequenceState, Session, Snapshot, Workspace, WorkspaceSpec, generate,
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
            device: DeviceRequest::Exactly(Device::Cpu),
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
            let (mut session, mut seen) = (bench.session(), Vec::new());
            let receive = |token| {
                seen.push(token);
                true
            };
            let got = answer(&mut session, &PROMPT, &options, receive);
            let what =
                format!("the answer of tiny-llama, {free:?} if it is free, with stop tokens");
            assert_eq!(got.tokens, until(&free, stops), "{what} {stops:?}");
            assert_eq!(seen, got.tokens, "what the receiver saw, with stop tokens {stops:?}");
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

/// A state that has kept the beginning of an earlier text.
struct Keeping {
    state: ContiguousState,
    kept: (Vec<u32>, Snapshot),
}

impl SequenceState for Keeping {
    fn resume(&mut self, slot: u32, tokens: &[u32]) -> usize {
        let (kept, snapshot) = &self.kept;
        if kept.len() >= tokens.len() || !tokens.starts_with(kept) {
            return 0;
        }
        self.state.restore(slot, snapshot).unwrap();
        kept.len()
    }

    fn begin(&mut self, batch: &Batch) -> Result<()> {
        self.state.begin(batch)
    }

    fn attend(
        &mut self,
        rt: &Runtime,
        layer: usize,
        batch: &Batch,
        q: TensorRef,
        k: TensorRef,
        v: TensorRef,
        params: AttentionParams,
        scratch: &mut AttentionScratch,
        out: TensorMut,
    ) -> Result<()> {
        self.state.attend(rt, layer, batch, q, k, v, params, scratch, out)
    }

    fn commit(&mut self, batch: &Batch) {
        self.state.commit(batch);
    }

    fn len(&self, slot: u32) -> usize {
        self.state.len(slot)
    }

    fn snapshot(&self, slot: u32) -> Result<Snapshot> {
        self.state.snapshot(slot)
    }

    fn restore(&mut self, slot: u32, snapshot: &Snapshot) -> Result<()> {
        self.state.restore(slot, snapshot)
    }

    fn rollback(&mut self, slot: u32, len: usize) -> Result<()> {
        self.state.rollback(slot, len)
    }

    fn drop_sequence(&mut self, slot: u32) {
        self.state.drop_sequence(slot);
    }

    fn bytes(&self, slot: u32) -> usize {
        self.state.bytes(slot)
    }
}

#[test]
fn a_prompt_whose_beginning_the_state_has_kept_is_not_computed_again() {
    let bench = Bench::new();
    let config = bench.decoder.config();
    let new = || ContiguousState::new(config, 1, ROOM, DType::F32).unwrap();
    let kept = PROMPT[..4].to_vec();
    let snapshot = {
        let mut state = new();
        let spec = WorkspaceSpec { max_tokens: 4, max_rows: 1, max_context: ROOM };
        let mut ws = Workspace::new(&bench.rt, config, spec).unwrap();
        let batch = Batch {
            tokens: &kept,
            positions: &[0, 1, 2, 3],
            cu_seqlens_q: &[0, 4],
            state_slots: &[0],
            ..Batch::default()
        };
        bench.decoder.forward(&batch, &mut state, &mut ws).unwrap();
        state.snapshot(0).unwrap()
    };
    let state = Keeping { state: new(), kept: (kept, snapshot) };
    let mut session =
        Session::with_state(&bench.decoder, &bench.rt, Box::new(state), ROOM).unwrap();
    assert_eq!((session.max_len(), session.resumed()), (ROOM, 0), "a session that was fed nothing");
    let options = GenerateOptions { max_tokens: 9, ..Default::default() };
    let got = answer(&mut session, &PROMPT, &options, |_| true).tokens;
    assert_eq!(got, bench.free(9), "the answer behind a beginning that was kept");
    assert_eq!(session.resumed(), 4, "tokens that were not computed");
    assert!(session.tokens().starts_with(&PROMPT), "the session holds the whole prompt");
    // The session's own tokens come first; a text of another beginning has nothing.
    let other = [&PROMPT[..2], &[300, 2, 1]].concat();
    answer(&mut session, &other, &options, |_| true);
    assert_eq!(session.resumed(), 2, "kept tokens that the two texts share");
    // A feed that fails leaves nothing behind, not even what was kept.
    session.rollback(0).unwrap();
    assert!(session.feed(&[&PROMPT[..5], &[9999]].concat()).is_err());
    assert_eq!((session.tokens().len(), session.resumed()), (0, 0), "after a feed that failed");
}
