//! Building a step allocates nothing: counted, with an allocator that counts.

#[path = "../../l1-tensor/tests/support/counting.rs"]
mod counting;

use counting::fewest_allocations;
use l3_paged_kv::{BlockTable, ForwardMeta};

#[test]
fn building_a_step_allocates_nothing() {
    let mut meta = ForwardMeta::new(600, 9, 64, 16);
    let blocks: Vec<u32> = (1..65).rev().collect();
    let table = BlockTable::from_blocks(16, &blocks);
    let made = fewest_allocations(5, || {
        for computed in [1000, 17, 0] {
            meta.clear();
            meta.push(&table, 0, 500).unwrap();
            for s in 0..6 {
                meta.push(&table, computed + s, 1).unwrap();
            }
            meta.pad_to(9).unwrap();
        }
    });
    assert_eq!(made, 0, "allocations of three steps of nine sequences");
}
