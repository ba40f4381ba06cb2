//! One promise: a sequence's logits are the same bits whatever happens around it. Alone, in any
//! batch, in any chunks, over blocks of any size or one run of memory, on any number of threads, after
//! a preemption, behind a prefix that another sequence computed.

use crate::judge;
use crate::models::{Model, load, runtime, text};
use l1_tensor::{DType, Precision};
use l2_model::{Decoder, Error, SequenceState};
use l3_paged_kv::{PagedOptions, PagedState};
use proptest::prelude::*;

const SLOTS: usize = 4;
const LEN: usize = 40;

/// What happens next.
#[derive(Clone, Debug)]
enum Event {
    /// These slots are fed so many tokens each.
    Step(Vec<(u32, usize)>),
    /// A sequence loses its blocks; it comes back later, from what is cached.
    Preempt(u32),
    /// A sequence takes tokens back.
    Rollback(u32, usize),
    /// A sequence is set aside and put into another slot, which is empty.
    Move(u32, u32),
}

/// Texts: the second begins as the first, the third as the second, the fourth is its own.
fn texts() -> Vec<Vec<u32>> {
    let first = text(LEN, 1);
    let second = [&first[..19], &text(LEN - 19, 2)].concat();
    let third = [&second[..33], &text(LEN - 33, 3)].concat();
    vec![first, second, third, text(LEN, 4)]
}

/// Sequences in slots of one state, each somewhere in its text.
struct Run<'a> {
    model: Model<'a>,
    state: PagedState,
    texts: &'a [Vec<u32>],
    truths: &'a [Vec<f32>],
    /// Which text each slot holds.
    holds: [usize; SLOTS],
    what: String,
}

impl Run<'_> {
    fn happen(&mut self, event: &Event) {
        match event {
            Event::Step(parts) => self.step(parts),
            Event::Preempt(slot) => self.state.drop_sequence(*slot),
            Event::Rollback(slot, by) => {
                let len = self.state.len(*slot);
                let result = self.state.rollback(*slot, len.saturating_sub(*by));
                self.or_full(result);
            }
            Event::Move(from, to) => {
                if self.state.len(*to) > 0 || self.state.len(*from) == 0 {
                    return;
                }
                let snapshot = self.state.snapshot(*from).unwrap();
                self.state.drop_sequence(*from);
                let result = self.state.restore(*to, &snapshot);
                if self.or_full(result) {
                    self.holds.swap(*from as usize, *to as usize);
                }
            }
        }
        self.state.manager().check_invariants().unwrap();
    }

    /// The pool is small; that it is full is no fault.
    fn or_full(&self, result: Result<(), Error>) -> bool {
        match result {
            Err(Error::Batch(l2_model::BatchError::Full(_))) => false,
            other => {
                judge::works(&self.what, other);
                true
            }
        }
    }

    fn step(&mut self, parts: &[(u32, usize)]) {
        let mut fed: Vec<(u32, &[u32])> = Vec::new();
        for (slot, n) in parts {
            if fed.iter().any(|(other, _)| other == slot) {
                continue;
            }
            let text = &self.texts[self.holds[*slot as usize]];
            if self.state.len(*slot) == 0 {
                self.state.resume(*slot, text);
            }
            let from = self.state.len(*slot);
            fed.push((*slot, &text[from..LEN.min(from + n)]));
        }
        let starts: Vec<usize> = fed.iter().map(|(slot, _)| self.state.len(*slot)).collect();
        let got = match self.model.step(&mut self.state, &fed) {
            Err(Error::Batch(l2_model::BatchError::Full(_))) => return,
            got => judge::works(&self.what, got),
        };
        let vocab = self.model.vocab();
        let mut got = got.as_slice();
        for ((slot, part), from) in fed.iter().zip(starts) {
            let truth = &self.truths[self.holds[*slot as usize]];
            let want = &truth[from * vocab..][..part.len() * vocab];
            let what = format!("logits from position {from}, {}", self.what);
            judge::same_bits(&what, &[part.len(), vocab], &got[..want.len()], want);
            got = &got[want.len()..];
        }
    }
}

fn check(
    name: &str,
    decoder: &Decoder,
    precision: Precision,
    dtype: DType,
    (block_size, num_blocks, threads): (usize, usize, usize),
    events: &[Event],
) {
    let texts = texts();
    // Alone, at once, in one run of memory, on one thread.
    let mut alone = Model::new(decoder, &runtime(precision, 1), LEN, LEN);
    let truths: Vec<Vec<f32>> = texts.iter().map(|t| alone.truth(t, dtype)).collect();
    let options = PagedOptions { num_blocks, ..PagedOptions::new(SLOTS, LEN, block_size, dtype) };
    let rt = runtime(precision, threads);
    let mut run = Run {
        model: Model::new(decoder, &rt, SLOTS * LEN, LEN),
        state: PagedState::new(decoder.config(), options).unwrap(),
        texts: &texts,
        truths: &truths,
        holds: [0, 1, 2, 3],
        what: format!(
            "{name} in {precision}, KV in {dtype}, {num_blocks} blocks of {block_size}, {threads} threads"
        ),
    };
    for event in events {
        run.happen(event);
    }
    for slot in 0..SLOTS as u32 {
        run.state.drop_sequence(slot);
    }
    let free = run.state.manager().num_free();
    assert_eq!(free, num_blocks - 1, "free blocks when nobody is there");
}

const KINDS: [(Precision, DType); 4] = [
    (Precision::F32, DType::F32),
    (Precision::Bf16, DType::BF16),
    (Precision::Bf16, DType::F8E4M3),
    (Precision::F32, DType::BF16),
];

/// One story, told on purpose: chunks, a batch, a prefix of another, a preemption, another slot.
#[test]
fn logits_have_the_same_bits_whatever_happens_around_a_sequence() {
    use Event::*;
    let story = [
        Step(vec![(0, 7)]),
        Step(vec![(3, 1), (0, 15)]),
        Step(vec![(1, 3), (0, 1), (3, 16)]),
        Preempt(0),
        Step(vec![(2, 40), (1, 1)]),
        Rollback(2, 11),
        Step(vec![(0, 2), (2, 4), (3, 1)]),
        Preempt(1),
        Move(0, 1),
        Step(vec![(1, 9), (2, 3)]),
        Step(vec![(1, 1), (2, 1), (3, 1)]),
        Preempt(2),
        Step(vec![(2, 40), (3, 20)]),
    ];
    for name in ["tiny-llama", "tiny-mistral", "tiny-qwen3"] {
        let decoder = load(name, &runtime(Precision::F32, 1));
        for (precision, dtype) in KINDS {
            for (block_size, threads) in [(1, 1), (8, 3), (16, 2), (256, 1)] {
                let num_blocks = SLOTS * LEN.div_ceil(block_size) + 2;
                let pool = (block_size, num_blocks, threads);
                check(name, &decoder, precision, dtype, pool, &story);
            }
        }
    }
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let slot = 0..SLOTS as u32;
    let tokens = prop_oneof![Just(1usize), 1..20usize];
    let step = prop::collection::vec((slot.clone(), tokens), 1..4);
    prop::collection::vec(
        prop_oneof![
            8 => step.prop_map(Event::Step),
            2 => slot.clone().prop_map(Event::Preempt),
            1 => (slot.clone(), 1..20usize).prop_map(|(s, by)| Event::Rollback(s, by)),
            1 => (slot.clone(), slot).prop_map(|(a, b)| Event::Move(a, b)),
        ],
        1..16,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any story, in pools that are large enough and in pools that are not.
    #[test]
    fn no_story_changes_a_bit(
        name in prop::sample::select(vec!["tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"]),
        (precision, dtype) in prop::sample::select(KINDS.to_vec()),
        block_size in prop::sample::select(vec![1usize, 2, 8, 16, 32, 256]),
        roomy in any::<bool>(),
        threads in 1..4usize,
        events in events(),
    ) {
        let decoder = load(name, &runtime(precision, 1));
        let each = LEN.div_ceil(block_size);
        let num_blocks = if roomy { SLOTS * each + 2 } else { 2 * each + 1 };
        check(name, &decoder, precision, dtype, (block_size, num_blocks, threads), &events);
    }
}
