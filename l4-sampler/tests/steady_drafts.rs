//! A steady step of a drafter allocates nothing: counted, with an allocator that counts.

#[path = "../../l1-tensor/tests/support/counting.rs"]
mod counting;

use counting::fewest_allocations;
use l4_sampler::draft::{DraftRow, Drafter, Drafts, NgramDrafter, SuffixDrafter, SuffixOptions};

const REQUESTS: u32 = 8;
const ROUNDS: usize = 5;
const STEPS: usize = 100;

/// Allocations of a hundred steps, in which every request gets a draft and two tokens.
fn allocations(drafter: &mut dyn Drafter) -> usize {
    let prompt: Vec<u32> = (0..300).map(|i| i * i % 17).collect();
    for slot in 0..REQUESTS {
        drafter.begin(slot, &prompt, Some("tenant"), (ROUNDS + 1) * STEPS * 2);
    }
    let rows: Vec<DraftRow> = (0..REQUESTS).map(|slot| DraftRow { slot, most: 5 }).collect();
    let mut drafts = Drafts::with_capacity(rows.len(), 5 * rows.len());
    let (mut i, mut drafted) = (0, 0);
    let mut steps = || {
        for _ in 0..STEPS {
            drafts.clear();
            drafter.propose(&rows, &mut drafts);
            drafted += (0..rows.len()).map(|row| drafts.row(row).0.len()).sum::<usize>();
            for slot in 0..REQUESTS {
                i += 1;
                drafter.extend(slot, &[i * i % 19, (i + slot) % 23]);
            }
        }
    };
    steps();
    let made = fewest_allocations(ROUNDS, steps);
    assert!(drafted > STEPS, "{drafted} tokens drafted");
    made
}

#[test]
fn a_steady_step_of_the_ngram_drafter_allocates_nothing() {
    assert_eq!(allocations(&mut NgramDrafter::new(1, 4).unwrap()), 0);
}

#[test]
fn a_steady_step_of_the_suffix_drafter_allocates_nothing_while_its_ring_goes_round() {
    let options = SuffixOptions { max_cached_tokens: 1000, ..SuffixOptions::default() };
    assert_eq!(allocations(&mut SuffixDrafter::new(options)), 0);
}
