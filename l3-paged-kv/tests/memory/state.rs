//! Sequences over blocks of one pool: steps, refusals, prefixes, rollbacks, snapshots, against a
//! state that gives every sequence memory of its own.

use crate::judge;
use crate::models::{Model, Step, load, runtime, text};
use l1_tensor::ops::{AttentionParams, AttentionScratch};
use l1_tensor::{DType, Device, Precision, Tensor};
use l2_model::{BatchError, ContiguousState, Decoder, Error, SequenceState};
use l3_paged_kv::trace::{BlockOp, Recorder};
use l3_paged_kv::{PagedOptions, PagedState};

const MAX_LEN: usize = 48;
const SLOTS: usize = 3;

struct Bench<'a> {
    model: Model<'a>,
    state: PagedState,
}

impl<'a> Bench<'a> {
    /// A pool of `num_blocks`, the null block included.
    fn new(decoder: &'a Decoder, num_blocks: usize, block_size: usize) -> Self {
        let options = PagedOptions {
            num_blocks,
            max_step_tokens: 64,
            ..PagedOptions::new(SLOTS, MAX_LEN, block_size, DType::F32)
        };
        Self::with(decoder, options)
    }

    fn with(decoder: &'a Decoder, options: PagedOptions) -> Self {
        let model = Model::new(decoder, &runtime(Precision::F32, 1), 64, MAX_LEN);
        let state = PagedState::new(decoder.config(), options);
        Self { model, state: judge::works("making a state", state) }
    }

    /// A step whose logits are, to the bit, those of the texts fed alone and at once. A part is a
    /// slot, a text, and up to where it is fed.
    #[track_caller]
    fn step(&mut self, what: &str, parts: &[(u32, &[u32], usize)]) {
        let from: Vec<usize> = parts.iter().map(|(slot, ..)| self.state.len(*slot)).collect();
        let fed: Vec<(u32, &[u32])> =
            parts.iter().zip(&from).map(|((slot, t, to), from)| (*slot, &t[*from..*to])).collect();
        let got = self.model.step(&mut self.state, &fed);
        let got = judge::works(format!("a step over blocks, {what}"), got);
        let vocab = self.model.vocab();
        let mut got = got.as_slice();
        for ((slot, text, to), from) in parts.iter().zip(from) {
            let expected = self.model.truth(&text[..*to], self.state.kv().dtype());
            let n = (to - from) * vocab;
            let what = format!("logits of slot {slot} from position {from}, {what}");
            judge::same_bits(&what, &[to - from, vocab], &got[..n], &expected[from * vocab..]);
            got = &got[n..];
            assert_eq!(self.state.len(*slot), *to, "tokens in slot {slot}, {what}");
        }
    }

    /// All that a step which fails must leave as it was.
    fn looks(&self) -> (Vec<usize>, usize, usize) {
        let lens = (0..SLOTS as u32).map(|s| self.state.len(s)).collect();
        (lens, self.state.manager().num_free(), self.state.manager().cache().len())
    }

    #[track_caller]
    fn in_order(&self) {
        self.state.manager().check_invariants().unwrap();
    }
}

fn tiny_llama() -> Decoder {
    load("tiny-llama", &runtime(Precision::F32, 1))
}

#[test]
fn sequences_over_blocks_have_the_bits_of_sequences_in_one_run_of_memory() {
    let decoder = tiny_llama();
    let (a, b, c) = (text(40, 1), text(40, 2), text(40, 3));
    for block_size in [1, 4, 16, 32] {
        let mut bench = Bench::new(&decoder, 3 * 48 / block_size + 4, block_size);
        let what = |s: &str| format!("in blocks of {block_size}, {s}");
        bench.step(&what("a prompt"), &[(1, &a, 7)]);
        bench.step(&what("a decode beside a prompt"), &[(1, &a, 8), (0, &b, 13)]);
        bench.step(&what("another order"), &[(0, &b, 14), (2, &c, 5), (1, &a, 20)]);
        bench.step(&what("one token each"), &[(2, &c, 6), (1, &a, 21), (0, &b, 15)]);
        bench.state.drop_sequence(0);
        bench.step(&what("after slot 0 was dropped"), &[(0, &c, 17), (2, &c, 9)]);
        bench.in_order();
        for slot in 0..SLOTS as u32 {
            bench.state.drop_sequence(slot);
        }
        let free = bench.state.manager().num_free();
        assert_eq!(free, bench.state.kv().num_blocks() - 1, "free blocks when nobody is there");
    }
}

#[test]
fn a_step_that_cannot_be_is_refused_and_changes_nothing() {
    let decoder = tiny_llama();
    let mut bench = Bench::new(&decoder, 30, 4);
    let (a, b) = (text(48, 1), text(48, 2));
    bench.step("before any refusal", &[(0, &a, 9), (1, &b, 4)]);
    let before = bench.looks();
    let begin = |bench: &mut Bench, parts: &[(u32, usize, usize)]| {
        let mut step = Step { tokens: vec![], positions: vec![], cu: vec![0], slots: vec![] };
        for (slot, from, to) in parts {
            step.slots.push(*slot);
            step.positions.extend(*from as i32..*to as i32);
            step.tokens.resize(step.positions.len(), 7);
            step.cu.push(step.tokens.len() as i32);
        }
        bench.state.begin(&step.batch())
    };
    for (what, parts) in [
        ("a slot that does not exist", &[(0, 9, 12), (3, 0, 1)][..]),
        ("a slot that takes part twice", &[(0, 9, 12), (0, 12, 13)]),
        ("positions that leave one out", &[(1, 4, 9), (0, 10, 11)]),
        ("positions that come again", &[(0, 8, 10)]),
    ] {
        let refused = begin(&mut bench, parts);
        judge::fails_with!(what, refused, Error::Batch(BatchError::Malformed(_)));
        assert_eq!(bench.looks(), before, "lengths, free and cached blocks after {what}");
    }
    let refused = begin(&mut bench, &[(1, 4, 8), (0, 9, MAX_LEN + 1)]);
    judge::fails_with!(
        "49 tokens in sequences of 48",
        refused,
        Error::Batch(BatchError::TooLong { len: 49, capacity: 48 })
    );
    let refused = begin(&mut bench, &[(1, 4, 40), (2, 0, 40)]);
    judge::fails_with!(
        "76 tokens in steps of 64",
        refused,
        Error::Batch(BatchError::TooManyTokens { tokens: 76, max: 64 })
    );
    assert_eq!(bench.looks(), before, "lengths, free and cached blocks after refusals");
    bench.step("after refusals", &[(0, &a, 20), (1, &b, 21)]);
    bench.in_order();
}

#[test]
fn a_full_pool_refuses_the_whole_step_and_says_what_to_do() {
    let decoder = tiny_llama();
    // Seven blocks for tokens.
    let mut bench = Bench::new(&decoder, 8, 4);
    let (a, b, c) = (text(48, 1), text(48, 2), text(48, 3));
    bench.step("four of seven blocks", &[(0, &a, 16)]);
    bench.state.drop_sequence(0);
    bench.step("three, and four that are cached", &[(1, &b, 12)]);
    let before = bench.looks();
    // Two more for slot 1 are there, but not three more for slot 2.
    let refused = bench.model.step(&mut bench.state, &[(1, &b[12..20]), (2, &c[..9])]);
    let error = judge::fails_with!(
        "a step of five blocks where four are free",
        refused,
        Error::Batch(BatchError::Full(_))
    );
    let said = error.to_string();
    for words in ["5 blocks are needed and 4 are free", "wait for a sequence to end"] {
        assert!(said.contains(words), "`{said}` should say `{words}`");
    }
    assert_eq!(bench.looks(), before, "lengths, free and cached blocks after a full pool");
    bench.in_order();
    bench.step("what does fit", &[(1, &b, 20), (2, &c, 8)]);
    bench.state.drop_sequence(1);
    bench.step("after a sequence ended", &[(2, &c, 28)]);
}

/// Begin a step, attend with what is no number in every layer, and leave it there.
fn begin_and_fail(bench: &mut Bench, parts: &[(u32, &[u32])]) {
    let step = Step::of(&bench.state, parts);
    bench.state.begin(&step.batch()).unwrap();
    let t = step.tokens.len();
    let layers: Vec<_> = bench.model.decoder.config().attention_layers().collect();
    let layers = layers.iter().map(|(i, a)| (*i, (*a).clone())).collect::<Vec<_>>();
    for (layer, a) in layers {
        let nan = |heads: usize| {
            Tensor::from_slice(&vec![f32::NAN; t * heads * a.head_dim], &[t, heads, a.head_dim])
                .unwrap()
        };
        let (q, kv) = (nan(a.q_heads), nan(a.kv_heads));
        let mut out = Tensor::zeros(&[t, a.q_heads * a.head_dim], DType::F32, Device::Cpu).unwrap();
        let rt = &bench.model.rt;
        let mut scratch = AttentionScratch::new(rt, t, MAX_LEN, a.q_heads, a.head_dim).unwrap();
        let params = AttentionParams { scale: 1.0, window: None };
        let batch = step.batch();
        let (q, k, v) = (q.view(), kv.view(), kv.view());
        let (scratch, out) = (&mut scratch, out.view_mut());
        bench.state.attend(rt, layer, &batch, q, k, v, params, scratch, out).unwrap();
    }
}

#[test]
fn a_step_that_was_never_committed_is_undone_by_what_comes_next() {
    let decoder = tiny_llama();
    let (a, b) = (text(40, 1), text(40, 2));
    for block_size in [1, 4, 16, 32] {
        let mut bench = Bench::new(&decoder, 3 * 48 / block_size + 4, block_size);
        let what = |s: &str| format!("in blocks of {block_size}, {s}");
        bench.step(&what("a prompt"), &[(0, &a, 6)]);
        let before = bench.looks();
        begin_and_fail(&mut bench, &[(0, &a[6..23]), (1, &b[..33])]);
        assert_eq!((bench.state.len(0), bench.state.len(1)), (6, 0), "lengths before a commit");
        bench.state.rollback(0, 6).unwrap();
        assert_eq!(bench.looks(), before, "{}", what("after a rollback to where it was"));
        begin_and_fail(&mut bench, &[(1, &a[..20]), (0, &b[6..22])]);
        // Nothing of what was never computed can be found.
        assert_eq!(bench.state.resume(2, &a), 6 / block_size * block_size, "cached tokens of `a`");
        bench.state.drop_sequence(2);
        assert_eq!(bench.looks().1, before.1, "free blocks, {}", what("after a resume"));
        begin_and_fail(&mut bench, &[(0, &b[6..12])]);
        bench.step(&what("after steps that failed"), &[(1, &b, 5), (0, &a, 7)]);
        bench.step(&what("and on"), &[(0, &a, 30), (1, &b, 6)]);
        bench.in_order();
    }
}

#[test]
fn a_prompt_begins_with_what_others_have_left_in_the_cache() {
    let decoder = tiny_llama();
    let a = text(30, 1);
    let same = [&a[..20], &text(12, 9)].concat();
    let mut bench = Bench::new(&decoder, 30, 4);
    bench.step("the first of its kind", &[(0, &a, 29)]);
    // All but the last token may come from the cache, in full blocks.
    for (tokens, cached) in
        [(&a[..29], 28), (&a[..28], 24), (&a[..5], 4), (&a[..4], 0), (&a[..0], 0)]
    {
        let got = bench.state.resume(1, tokens);
        assert_eq!(got, cached, "cached tokens of a prompt of {}, blocks of 4", tokens.len());
        assert_eq!(bench.state.len(1), cached, "tokens of the slot that was resumed");
        bench.state.drop_sequence(1);
    }
    assert_eq!(bench.state.resume(1, &same), 20, "cached tokens where texts part at 20");
    let shared = bench.state.manager().num_free();
    assert_eq!(shared, 29 - 8, "free blocks: five blocks are two sequences'");
    bench.step("behind a cached prefix, beside its owner", &[(1, &same, 32), (0, &a, 30)]);
    assert_eq!(bench.state.resume(1, &a), 0, "a slot that is not empty is not resumed");
    assert_eq!(bench.state.resume(7, &a), 0, "a slot that does not exist is not resumed");
    bench.state.drop_sequence(0);
    bench.state.drop_sequence(1);
    // Preempted and back: its own blocks are still there.
    assert_eq!(bench.state.resume(2, &a), 28, "cached tokens after their owner is gone");
    bench.step("behind a prefix whose owner is gone", &[(2, &a, 30)]);
    bench.in_order();
}

#[test]
fn without_prefix_caching_nothing_is_found_again() {
    let decoder = tiny_llama();
    let options =
        PagedOptions { prefix_caching: false, ..PagedOptions::new(SLOTS, MAX_LEN, 4, DType::F32) };
    let mut bench = Bench::with(&decoder, options);
    let a = text(30, 1);
    bench.step("a prompt", &[(0, &a, 30)]);
    assert_eq!(bench.state.resume(1, &a), 0, "cached tokens without a cache");
    assert_eq!(bench.state.manager().cache().len(), 0, "blocks with a hash");
}

#[test]
fn a_sequence_that_is_cut_back_leaves_the_blocks_of_others_alone() {
    let decoder = tiny_llama();
    let a = text(40, 1);
    for block_size in [1, 4, 16] {
        for len in [0, 1, 6, 16, 17, 29, 33] {
            let mut bench = Bench::new(&decoder, 5 * 48 / block_size + 4, block_size);
            let what = |s: &str| format!("in blocks of {block_size}, cut back to {len}, {s}");
            let other = [&a[..len], &text(40, 5)].concat();
            bench.step(&what("at first"), &[(0, &a, 33)]);
            let found = bench.state.resume(1, &a);
            assert_eq!(found, 33 / block_size * block_size, "tokens in blocks that two share");
            bench.step(&what("a second one"), &[(1, &a, 34)]);
            bench.state.rollback(0, len).unwrap();
            assert_eq!(bench.state.len(0), len, "tokens of the sequence that was cut back");
            bench.in_order();
            bench.step(&what("another end"), &[(0, &other, len + 7), (1, &a, 37)]);
            bench.step(&what("and on"), &[(1, &a, 38), (0, &other, len + 8)]);
            let found = bench.state.resume(2, &a[..33]);
            assert_eq!(found, 32 / block_size * block_size, "tokens that can still be found");
            bench.step(&what("a third one"), &[(2, &a, 33)]);
        }
    }
}

#[test]
fn what_was_cut_off_is_forgotten_even_if_it_was_no_number() {
    let decoder = tiny_llama();
    let a = text(40, 1);
    for block_size in [4, 16, 32] {
        let mut bench = Bench::new(&decoder, 3 * 48 / block_size + 4, block_size);
        let what = |s: &str| format!("in blocks of {block_size}, {s}");
        bench.step(&what("a prompt"), &[(0, &a, 5)]);
        // Two tokens that overflowed, in a block that stays when they are taken back.
        let overflow = [(0, &a[5..7])];
        let step = Step::of(&bench.state, &overflow);
        begin_and_fail(&mut bench, &overflow);
        bench.state.commit(&step.batch());
        bench.state.rollback(0, 5).unwrap();
        // The next token takes the place of the first; that of the second is only behind it.
        bench.step(&what("after a cut"), &[(0, &a, 6)]);
        bench.step(&what("and on"), &[(0, &a, 20)]);
        bench.in_order();
    }
}

#[test]
fn a_cut_that_needs_a_block_where_none_is_free_is_refused() {
    let decoder = tiny_llama();
    let mut bench = Bench::new(&decoder, 5, 8);
    let (a, b) = (text(40, 1), text(40, 2));
    bench.step("all four blocks", &[(0, &a, 16), (1, &b, 16)]);
    let before = bench.looks();
    // The last block of slot 0 is cached: it may not be written to, and there is no other.
    let refused = bench.state.rollback(0, 17);
    judge::fails_with!("back to 17 of 16", refused, Error::Batch(BatchError::Malformed(_)));
    assert_eq!(bench.state.resume(2, &a[..16]), 8, "cached tokens of the first sixteen");
    let refused = bench.state.rollback(0, 12);
    judge::fails_with!("a cut without a block", refused, Error::Batch(BatchError::Full(_)));
    bench.state.drop_sequence(2);
    assert_eq!(bench.looks(), before, "lengths, free and cached blocks after the refusal");
    // At the end of a block nothing has to be copied.
    bench.state.rollback(0, 8).unwrap();
    bench.step("in the room that was made", &[(0, &a, 9)]);
    bench.in_order();
}

#[test]
fn a_snapshot_comes_back_in_any_slot() {
    let decoder = tiny_llama();
    let (a, b) = (text(40, 1), text(40, 2));
    for (block_size, dtype) in [(1, DType::F32), (4, DType::BF16), (16, DType::F8E4M3)] {
        let options = PagedOptions::new(SLOTS, MAX_LEN, block_size, dtype);
        let mut bench = Bench::with(&decoder, options);
        let what = |s: &str| format!("in blocks of {block_size} in {dtype}, {s}");
        bench.step(&what("at first"), &[(0, &a, 21), (1, &b, 9)]);
        let snapshot = bench.state.snapshot(0).unwrap();
        assert_eq!(snapshot.len, 21);
        bench.step(&what("and on"), &[(0, &a, 30)]);
        bench.state.drop_sequence(0);
        bench.state.restore(1, &snapshot).unwrap();
        bench.state.restore(2, &snapshot).unwrap();
        bench.step(&what("restored twice"), &[(1, &a, 22), (2, &a, 33)]);
        bench.state.restore(2, &snapshot).unwrap();
        bench.step(&what("restored over itself"), &[(2, &a, 25)]);
        bench.in_order();
        // In another pool too, where what came back can be found by others.
        let mut other = Bench::with(&decoder, PagedOptions::new(SLOTS, MAX_LEN, block_size, dtype));
        other.state.restore(1, &snapshot).unwrap();
        assert_eq!(other.state.resume(0, &a), 21 / block_size * block_size, "cached tokens");
        other.step(&what("in another pool"), &[(0, &a, 23), (1, &a, 22)]);
        // And of nothing.
        let nothing = bench.state.snapshot(0).unwrap();
        bench.state.restore(1, &nothing).unwrap();
        assert_eq!(bench.state.len(1), 0, "tokens of a slot that went back to nothing");
        bench.step(&what("after nothing"), &[(1, &b, 5)]);
    }
}

#[test]
fn a_snapshot_that_does_not_belong_or_fit_is_refused_and_changes_nothing() {
    let decoder = tiny_llama();
    let a = text(40, 1);
    let options = |block_size, dtype| PagedOptions::new(SLOTS, MAX_LEN, block_size, dtype);
    let mut from = Bench::with(&decoder, options(4, DType::F32));
    from.step("a sequence", &[(0, &a, 30)]);
    let snapshot = from.state.snapshot(0).unwrap();

    let contiguous = ContiguousState::new(decoder.config(), 1, 40, DType::F32).unwrap();
    let other_kind = contiguous.snapshot(0).unwrap();
    let refused = from.state.restore(0, &other_kind);
    judge::fails_with!("of another kind", refused, Error::Batch(BatchError::Malformed(_)));

    let namespace = "another specialist".to_string();
    for (what, options) in [
        ("of other blocks", options(8, DType::F32)),
        ("of another dtype", options(4, DType::BF16)),
        ("of another specialist", PagedOptions { namespace, ..options(4, DType::F32) }),
    ] {
        let mut to = Bench::with(&decoder, options);
        let refused = to.state.restore(0, &snapshot);
        judge::fails_with!(what, refused, Error::Batch(BatchError::Malformed(_)));
        assert_eq!(to.state.len(0), 0, "tokens of the slot, {what}");
    }
    let short = PagedOptions { max_len: 29, ..options(4, DType::F32) };
    let refused = Bench::with(&decoder, short).state.restore(0, &snapshot);
    judge::fails_with!("30 tokens in 29", refused, Error::Batch(BatchError::TooLong { .. }));
    let qwen = load("tiny-qwen3", &runtime(Precision::F32, 1));
    let refused = Bench::with(&qwen, options(4, DType::F32)).state.restore(0, &snapshot);
    judge::fails_with!("of another model", refused, Error::Batch(BatchError::Malformed(_)));
    judge::refused("a slot that is not there", "an error", from.state.snapshot(3));
    judge::refused("a slot that is not there", "an error", from.state.restore(3, &snapshot));

    // Eight blocks are needed; five are free and two more are the slot's own.
    let small = PagedOptions { num_blocks: 10, ..options(4, DType::F32) };
    let mut to = Bench::with(&decoder, small);
    to.step("others", &[(0, &text(8, 7), 8), (1, &text(8, 8), 8)]);
    let before = to.looks();
    let refused = to.state.restore(0, &snapshot);
    judge::fails_with!("no room", refused, Error::Batch(BatchError::Full(_)));
    assert_eq!(to.looks(), before, "lengths, free and cached blocks after the refusal");
    to.state.drop_sequence(1);
    to.state.restore(0, &snapshot).unwrap();
    to.step("in the room that was made", &[(0, &a, 31)]);
}

#[test]
fn bytes_are_those_of_the_blocks_in_the_table() {
    let decoder = tiny_llama();
    let mut bench = Bench::new(&decoder, 20, 8);
    assert_eq!(bench.state.bytes(0), 0);
    bench.step("17 tokens", &[(0, &text(17, 1), 17)]);
    // 3 layers, keys and values, 2 KV heads of 16, three blocks of 8 tokens, 4 bytes.
    assert_eq!(bench.state.bytes(0), 3 * 2 * 2 * 16 * 24 * 4, "bytes of three blocks");
    assert_eq!(bench.state.bytes(9), 0, "bytes of a slot that is not there");
}

/// A run that is recorded can be followed: no line contradicts those before it.
#[test]
fn a_recorder_sees_tokens_go_to_their_slots() {
    let decoder = tiny_llama();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut bench = Bench::new(&decoder, 30, 4);
    let recorder = Recorder::create(file.path()).unwrap();
    bench.state.set_observer(Some(Box::new(recorder))).unwrap();
    let (a, b) = (text(30, 1), text(30, 2));
    bench.step("a prompt", &[(0, &a, 11)]);
    bench.step("two", &[(0, &a, 12), (1, &b, 5)]);
    begin_and_fail(&mut bench, &[(1, &b[5..20])]);
    bench.state.rollback(0, 6).unwrap();
    bench.step("on", &[(0, &a, 7)]);
    bench.state.drop_sequence(0);
    bench.state.drop_sequence(1);
    bench.state.take_observer().unwrap().finish().unwrap();
    let text = std::fs::read_to_string(file.path()).unwrap();
    let ops: Vec<BlockOp> =
        text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    let wrote: Vec<(usize, usize)> = ops
        .iter()
        .filter_map(|op| match op {
            BlockOp::Wrote { from, to, .. } => Some((*from, *to)),
            _ => None,
        })
        .collect();
    assert_eq!(wrote, [(0, 11), (11, 12), (0, 5), (6, 7)], "tokens that went to slots");
    let copied = ops.iter().any(|op| matches!(op, BlockOp::Copied { tokens: 2, .. }));
    assert!(copied, "two tokens of a cached block were copied");
    let mut reader = l3_paged_kv::trace::read(text.as_bytes()).unwrap();
    let mut frames = 0;
    while judge::works("reading the recording", reader.next_frame()).is_some() {
        frames += 1;
    }
    assert!(frames > 10, "only {frames} frames");
}
