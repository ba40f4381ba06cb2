//! From positions to slots.

use l3_paged_kv::BlockTable;
use proptest::prelude::*;

#[test]
fn a_table_has_room_for_whole_blocks() {
    let table = BlockTable::from_blocks(4, &[7, 2]);
    assert_eq!(table.capacity(), 8, "tokens that fit two blocks of four");
    assert_eq!(table.missing(8), 0, "blocks missing for 8 tokens");
    assert_eq!(table.missing(9), 1, "blocks missing for 9 tokens");
    assert_eq!(table.missing(16), 2, "blocks missing for 16 tokens");
    assert_eq!(table.missing(3), 0, "blocks missing for fewer tokens than there is room for");
}

#[test]
fn an_empty_table_needs_a_block_for_the_first_token() {
    let table = BlockTable::with_capacity(16, 8);
    assert_eq!((table.capacity(), table.missing(0), table.missing(1)), (0, 0, 1));
    assert_eq!(table.slot(0), None, "the slot of a token without a block");
}

#[test]
fn a_slot_is_block_times_size_plus_offset() {
    let table = BlockTable::from_blocks(4, &[7, 2]);
    let slots: Vec<_> = (0..9).map(|position| table.slot(position)).collect();
    let expected = [28, 29, 30, 31, 8, 9, 10, 11].map(Some);
    assert_eq!(slots[..8], expected, "slots of positions 0..8 in blocks 7 and 2");
    assert_eq!(slots[8], None, "the slot of position 8, which has no block");
}

#[test]
fn three_prompts_of_five_seven_and_three_tokens_lie_where_the_chapter_says() {
    let slots = |blocks: &[u32], tokens: usize| -> Vec<i64> {
        let table = BlockTable::from_blocks(4, blocks);
        (0..tokens).map(|position| table.slot(position).unwrap()).collect()
    };
    assert_eq!(slots(&[1, 2], 5), [4, 5, 6, 7, 8], "five tokens in blocks 1, 2");
    assert_eq!(slots(&[3, 4], 7), [12, 13, 14, 15, 16, 17, 18], "seven tokens in blocks 3, 4");
    assert_eq!(slots(&[5], 3), [20, 21, 22], "three tokens in block 5");
}

#[test]
fn slots_of_the_largest_pool_do_not_overflow() {
    let table = BlockTable::from_blocks(256, &[i32::MAX as u32]);
    assert_eq!(
        table.slot(255),
        Some(i64::from(i32::MAX) * 256 + 255),
        "the last slot there can be"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_two_tokens_share_a_slot(shift in 0u32..5, count in 1usize..20) {
        let size = 1usize << shift;
        let blocks: Vec<u32> = (1..=count as u32).rev().collect();
        let table = BlockTable::from_blocks(size, &blocks);
        let mut slots: Vec<i64> = (0..table.capacity()).map(|p| table.slot(p).unwrap()).collect();
        prop_assert_eq!(table.slot(table.capacity()), None);
        slots.sort_unstable();
        let all: Vec<i64> = (size as i64..((count + 1) * size) as i64).collect();
        prop_assert_eq!(slots, all, "each slot of the {} blocks once", count);
    }
}
