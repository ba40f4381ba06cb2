//! The arrays of a forward pass, against the same worked out token by token.

use l3_paged_kv::{BlockTable, ForwardMeta, KvError};
use proptest::prelude::*;

fn table(block_size: usize, blocks: &[u32]) -> BlockTable {
    BlockTable::from_blocks(block_size, blocks)
}

/// Three prompts of 5, 7 and 3 tokens in blocks of 4, handed out in order; then a token each.
#[test]
fn three_prompts_and_the_decode_step_after_them() {
    let mut meta = ForwardMeta::new(16, 4, 3, 4);
    let tables = [table(4, &[1, 2]), table(4, &[3, 4]), table(4, &[5])];
    for (table, prompt) in tables.iter().zip([5, 7, 3]) {
        meta.push(table, 0, prompt).unwrap();
    }
    let what = "of prompts of 5, 7 and 3 tokens in blocks [1, 2], [3, 4] and [5] of 4";
    assert_eq!(meta.cu_seqlens_q(), [0, 5, 12, 15], "cu_seqlens_q {what}");
    assert_eq!(meta.seq_lens_kv(), [5, 7, 3], "seq_lens_kv {what}");
    let positions = [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2];
    assert_eq!(meta.positions(), positions, "positions {what}");
    let slots: Vec<i64> = (4..=8).chain(12..=18).chain(20..=22).collect();
    assert_eq!(meta.slot_mapping(), slots, "slot_mapping {what}");
    let rows = [1, 2, -1, 3, 4, -1, 5, -1, -1];
    assert_eq!(meta.block_table(), rows, "block_table {what}");

    meta.clear();
    for (table, computed) in tables.iter().zip([5, 7, 3]) {
        meta.push(table, computed, 1).unwrap();
    }
    let what = "of the decode step after the prompts of 5, 7 and 3 tokens";
    assert_eq!(meta.cu_seqlens_q(), [0, 1, 2, 3], "cu_seqlens_q {what}");
    assert_eq!(meta.seq_lens_kv(), [6, 8, 4], "seq_lens_kv {what}");
    assert_eq!(meta.positions(), [5, 7, 3], "positions {what}");
    assert_eq!(meta.slot_mapping(), [9, 19, 23], "slot_mapping {what}");
    assert_eq!(meta.block_table(), rows, "block_table {what}");
}

#[test]
fn what_a_longer_step_left_behind_is_no_block() {
    let mut meta = ForwardMeta::new(32, 3, 6, 2);
    let long = table(2, &[9, 8, 7, 6, 5]);
    for _ in 0..3 {
        meta.push(&long, 0, 10).unwrap();
    }
    meta.clear();
    meta.push(&table(2, &[4]), 0, 2).unwrap();
    meta.push(&table(2, &[3, 2, 1]), 5, 1).unwrap();
    let what = "where a row of five blocks was in the step before";
    assert_eq!(meta.block_table_row(0), [4, -1, -1, -1, -1, -1], "the row of one block {what}");
    assert_eq!(meta.block_table_row(1), [3, 2, 1, -1, -1, -1], "the row of three blocks {what}");
    meta.pad_to(3).unwrap();
    assert_eq!(meta.block_table_row(2), [-1; 6], "the row of padding {what}");
    // And a row that grows again, over what was cleaned.
    meta.clear();
    meta.push(&table(2, &[1, 2, 3]), 0, 6).unwrap();
    assert_eq!(meta.block_table_row(0), [1, 2, 3, -1, -1, -1], "a row that grew again");
}

#[test]
fn sequences_of_several_tokens_are_padded_to_the_shape_of_one_token_each() {
    let mut meta = ForwardMeta::new(8, 8, 3, 4);
    meta.push(&table(4, &[1, 2]), 4, 3).unwrap();
    meta.push(&table(4, &[3]), 1, 1).unwrap();
    meta.pad_to_width(6).unwrap();
    assert_eq!((meta.tokens(), meta.sequences()), (6, 6), "tokens and sequences");
    assert_eq!(meta.cu_seqlens_q(), [0, 3, 4, 5, 6, 6, 6], "two rows of padding, two of nothing");
    assert_eq!(meta.seq_lens_kv(), [7, 2, 0, 0, 0, 0], "keys");
    assert_eq!(meta.slot_mapping()[4..], [-1, -1], "slots of padding");
    assert_eq!(meta.block_table()[2 * 3..], [-1; 12], "blocks of padding and of nothing");
    assert!(meta.pad_to_width(9).is_err(), "wider than the arrays");
    assert_eq!((meta.tokens(), meta.sequences()), (6, 6), "as before the error");
}

#[test]
fn blocks_that_are_reserved_for_later_are_left_out() {
    let mut meta = ForwardMeta::new(8, 1, 4, 4);
    meta.push(&table(4, &[7, 3, 5]), 4, 1).unwrap();
    assert_eq!(meta.block_table_row(0), [7, 3, -1, -1], "blocks that hold the first 5 tokens");
    assert_eq!(meta.slot_mapping(), [12], "the slot of token 4: the first place of block 3");
}

#[test]
fn a_row_of_padding_stores_nothing_and_sees_nothing() {
    let mut meta = ForwardMeta::new(8, 4, 2, 4);
    meta.push(&table(4, &[6]), 1, 2).unwrap();
    meta.pad_to(4).unwrap();
    let what = "of two tokens and three rows of padding";
    assert_eq!(meta.positions(), [1, 2, 0, 0, 0], "positions {what}");
    assert_eq!(meta.slot_mapping(), [25, 26, -1, -1, -1], "slot_mapping {what}");
    assert_eq!(meta.cu_seqlens_q(), [0, 2, 3, 4, 5], "cu_seqlens_q {what}");
    assert_eq!(meta.seq_lens_kv(), [3, 0, 0, 0], "seq_lens_kv {what}");
    assert_eq!(meta.block_table(), [6, -1, -1, -1, -1, -1, -1, -1], "block_table {what}");
    assert_eq!(meta.sequences(), 4);
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut meta = ForwardMeta::new(6, 2, 2, 4);
    meta.push(&table(4, &[1]), 0, 3).unwrap();
    let before = format!("{meta:?}");
    let refused = |what: &str, word: &str, result: Result<(), KvError>| {
        let said = match result {
            Err(KvError::Malformed(said)) => said,
            other => panic!("{what}\n  expected  KvError::Malformed\n  got       {other:?}"),
        };
        assert!(said.contains(word), "{what}: `{said}` should speak of `{word}`");
    };
    refused("more tokens than a step", "a step holds 6", meta.push(&table(4, &[2]), 0, 4));
    refused("fewer blocks than tokens", "reserve first", meta.push(&table(4, &[2]), 3, 2));
    refused("another block size", "blocks of 2 tokens", meta.push(&table(2, &[2]), 0, 1));
    let long = table(4, &[2, 3, 4]);
    refused("more blocks than a row", "end at 8", meta.push(&long, 8, 1));
    refused("more rows of padding than a step", "a step holds 2", meta.pad_to(3));
    refused("a length beyond any", "end at 8", meta.push(&long, usize::MAX, 1));
    assert_eq!(format!("{meta:?}"), before, "the step after pushes that were refused");
    meta.push(&table(4, &[2]), 0, 3).unwrap();
    refused("a third of two sequences", "a step holds 2", meta.push(&table(4, &[2]), 0, 0));
}

/// A sequence of a drawn step: its blocks, the tokens it has, the tokens it gets.
#[derive(Clone, Debug)]
struct Part {
    blocks: Vec<u32>,
    computed: usize,
    q_len: usize,
}

#[derive(Clone, Debug)]
struct Step {
    parts: Vec<Part>,
    pads: usize,
}

const MAX_BLOCKS: usize = 9;
const MAX_SEQS: usize = 6;

/// The arrays of a step worked out one token at a time, in memory of its own.
#[derive(Debug, Default, PartialEq)]
struct Naive {
    positions: Vec<i32>,
    slots: Vec<i64>,
    cu: Vec<i32>,
    kv: Vec<i32>,
    table: Vec<Vec<i32>>,
}

impl Naive {
    fn of(step: &Step, block_size: usize) -> Self {
        let mut naive = Self { cu: vec![0], ..Self::default() };
        for part in &step.parts {
            let tokens: Vec<usize> = (0..part.computed + part.q_len).collect();
            for position in &tokens[part.computed..] {
                let (block, offset) = (part.blocks[position / block_size], position % block_size);
                naive.positions.push(*position as i32);
                naive.slots.push((block as usize * block_size + offset) as i64);
            }
            let mut row = vec![-1; MAX_BLOCKS];
            for position in &tokens {
                row[position / block_size] = part.blocks[position / block_size] as i32;
            }
            naive.cu.push(naive.positions.len() as i32);
            naive.kv.push(tokens.len() as i32);
            naive.table.push(row);
        }
        for _ in 0..step.pads {
            naive.positions.push(0);
            naive.slots.push(-1);
            naive.cu.push(naive.positions.len() as i32);
            naive.kv.push(0);
            naive.table.push(vec![-1; MAX_BLOCKS]);
        }
        naive
    }

    fn read(meta: &ForwardMeta) -> Self {
        Self {
            positions: meta.positions().to_vec(),
            slots: meta.slot_mapping().to_vec(),
            cu: meta.cu_seqlens_q().to_vec(),
            kv: meta.seq_lens_kv().to_vec(),
            table: meta.block_table().chunks(MAX_BLOCKS).map(<[i32]>::to_vec).collect(),
        }
    }
}

fn steps() -> impl Strategy<Value = (usize, Vec<Step>)> {
    let part = |block_size: usize| {
        (prop::collection::vec(1..5000u32, 0..=MAX_BLOCKS), any::<(u16, u16)>()).prop_map(
            move |(blocks, (a, b))| {
                let kv_len = a as usize % (blocks.len() * block_size + 1);
                let q_len = (b as usize % (kv_len + 1)).min(40);
                Part { blocks, computed: kv_len - q_len, q_len }
            },
        )
    };
    let step = move |block_size| {
        (prop::collection::vec(part(block_size), 0..=MAX_SEQS), 0..3usize)
            .prop_map(|(parts, pads)| Step { pads: pads.min(MAX_SEQS - parts.len()), parts })
    };
    (0..9u32).prop_flat_map(move |log| {
        let block_size = 1 << log;
        (Just(block_size), prop::collection::vec(step(block_size), 1..6))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    /// One set of arrays through several steps: each says what arrays made for it alone would say,
    /// at the addresses of the first.
    #[test]
    fn any_mix_of_sequences_reads_as_worked_out_token_by_token((block_size, steps) in steps()) {
        let mut meta = ForwardMeta::new(40 * MAX_SEQS, MAX_SEQS, MAX_BLOCKS, block_size);
        let addresses = |m: &ForwardMeta| {
            (m.positions().as_ptr(), m.slot_mapping().as_ptr(), m.cu_seqlens_q().as_ptr(),
             m.seq_lens_kv().as_ptr(), m.block_table().as_ptr())
        };
        let at = addresses(&meta);
        for step in &steps {
            meta.clear();
            for part in &step.parts {
                let table = BlockTable::from_blocks(block_size, &part.blocks);
                meta.push(&table, part.computed, part.q_len).unwrap();
            }
            meta.pad_to(step.parts.len() + step.pads).unwrap();
            let expected = Naive::of(step, block_size);
            prop_assert_eq!(Naive::read(&meta), expected, "the arrays of {:?}, blocks of {}", step, block_size);
            prop_assert_eq!(addresses(&meta), at, "addresses of the arrays");
        }
    }
}
