//! The free list against the plainest thing that does the same: a vector.

use l3_paged_kv::{BlockId, FreeList};
use proptest::prelude::*;

fn order(list: &FreeList) -> Vec<BlockId> {
    list.iter().collect()
}

#[test]
fn blocks_come_out_in_order_and_never_the_null_block() {
    let mut list = FreeList::new(5);
    assert_eq!(order(&list), [1, 2, 3, 4], "a new list of five blocks");
    let popped: Vec<_> = std::iter::from_fn(|| list.pop_front()).collect();
    assert_eq!(popped, [1, 2, 3, 4], "what comes out, first to last");
    assert_eq!((list.len(), list.is_empty(), list.pop_front()), (0, true, None), "then nothing");
}

#[test]
fn a_block_pushed_to_the_front_is_next_and_one_pushed_to_the_back_is_last() {
    let mut list = FreeList::new(6);
    for _ in 0..3 {
        list.pop_front();
    }
    list.push_back(2);
    list.push_front(1);
    assert_eq!(order(&list), [1, 4, 5, 2], "1 in front, 2 behind");
    assert_eq!(list.pop_front(), Some(1), "next out");
}

#[test]
fn a_block_leaves_from_anywhere() {
    let mut list = FreeList::new(6);
    for (block, left) in [(3, vec![1, 2, 4, 5]), (1, vec![2, 4, 5]), (5, vec![2, 4])] {
        list.remove(block);
        assert_eq!(order(&list), left, "after {block} left from the middle, front or back");
        assert!(!list.contains(block), "block {block} is not there any more");
    }
    assert_eq!(list.len(), 2, "how many are left");
}

#[test]
fn an_emptied_list_fills_again() {
    let mut list = FreeList::new(4);
    for block in [2, 3, 1] {
        list.remove(block);
    }
    assert_eq!(order(&list), [0; 0], "after all left");
    list.push_back(3);
    list.push_front(2);
    list.push_back(1);
    assert_eq!(order(&list), [2, 3, 1], "filled again");
}

#[test]
fn nobody_but_its_blocks_is_in_the_list() {
    let list = FreeList::new(3);
    assert_eq!(
        [0, 1, 2, 3, 77].map(|block| list.contains(block)),
        [false, true, true, false, false]
    );
    assert_eq!(FreeList::new(1).len(), 0, "a pool of the null block alone");
}

#[test]
fn a_million_blocks_cost_no_more_a_piece() {
    // Would take minutes if any of the four walked the list.
    let mut list = FreeList::new(1_000_000);
    for round in 0..3 {
        for block in (1..1_000_000).step_by(3) {
            list.remove(block);
        }
        for block in (1..1_000_000).step_by(3) {
            if (block + round) % 2 == 0 { list.push_front(block) } else { list.push_back(block) }
        }
    }
    assert_eq!(list.len(), 999_999, "all of them, still");
}

/// A call of the list. A failure prints these.
#[derive(Clone, Debug)]
enum Op {
    PopFront,
    PushFront(BlockId),
    PushBack(BlockId),
    Remove(BlockId),
}

fn op() -> impl Strategy<Value = Op> {
    let block = || 1..9u32;
    prop_oneof![
        Just(Op::PopFront),
        block().prop_map(Op::PushFront),
        block().prop_map(Op::PushBack),
        block().prop_map(Op::Remove),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_is_a_queue_like_any_other(ops in prop::collection::vec(op(), 0..60)) {
        let mut list = FreeList::new(9);
        let mut plain: Vec<BlockId> = (1..9).collect();
        for op in ops {
            let place = |block| plain.iter().position(|b| *b == block);
            match op {
                Op::PopFront => {
                    let first = (!plain.is_empty()).then(|| plain.remove(0));
                    prop_assert_eq!(list.pop_front(), first, "the first");
                }
                Op::PushFront(block) if place(block).is_none() => {
                    list.push_front(block);
                    plain.insert(0, block);
                }
                Op::PushBack(block) if place(block).is_none() => {
                    list.push_back(block);
                    plain.push(block);
                }
                Op::Remove(block) => {
                    let Some(place) = place(block) else { continue };
                    list.remove(block);
                    plain.remove(place);
                }
                // A block is in the list once.
                Op::PushFront(_) | Op::PushBack(_) => continue,
            }
            prop_assert_eq!(order(&list), plain.clone(), "the order");
            prop_assert_eq!(list.len(), plain.len(), "the length");
            for block in 1..9 {
                prop_assert_eq!(list.contains(block), plain.contains(&block), "block {}", block);
            }
        }
    }
}
