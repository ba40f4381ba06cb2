//! Few queries per sequence, split over the keys.

use std::thread;

use kernels::{Float, Graph};

use crate::case::{Case, Prepared, Seq, batch};
use crate::common::{bytes, gpu, under_every_order};

fn decode(kv_lens: &[usize]) -> Vec<Seq> {
    batch(&kv_lens.iter().map(|&kv_len| (1, kv_len)).collect::<Vec<_>>())
}

#[test]
fn every_head_size_and_group_gives_softmax() {
    let gpu = gpu().unwrap();
    for (dim, group, kv_heads) in
        [(64, 1, 2), (80, 2, 1), (96, 3, 1), (128, 4, 2), (64, 8, 1), (64, 20, 1)]
    {
        let case = Case::new(group, kv_heads, dim, Float::Bf16);
        assert!(case.tensor_cores());
        case.check(&gpu, &decode(&[300, 0, 17, 150]));
    }
}

#[test]
fn every_length_around_a_tile_a_round_and_a_split_is_right() {
    let gpu = gpu().unwrap();
    let case = Case::new(2, 1, 64, Float::Bf16);
    let lens =
        [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 384, 385, 513];
    case.check(&gpu, &decode(&lens));
    // Without a longer one beside it each has fewer parts, the short ones a single one.
    for len in lens {
        case.check(&gpu, &decode(&[len]));
    }
}

#[test]
fn a_token_and_its_drafts_see_each_the_keys_before_it() {
    let gpu = gpu().unwrap();
    // Rows of a block are queries times heads of a group: 2 to 48 of them here, in up to three blocks.
    for (group, queries) in [(1, 2), (4, 4), (4, 5), (3, 11), (3, 16), (20, 2)] {
        let case = Case::new(group, 2, 64, Float::Bf16);
        let lens =
            [(queries, 300), (1, 300), (queries, queries), (2, 129), (0, 0), (queries - 1, 64)];
        case.check(&gpu, &batch(&lens));
        // One sequence alone has more parts, and its drafts may lie on both sides of an end of one.
        for kv_len in [queries, 128 + queries / 2, 257, 385] {
            case.check(&gpu, &batch(&[(queries, kv_len)]));
        }
    }
}

#[test]
fn a_window_moves_on_from_draft_to_draft() {
    let gpu = gpu().unwrap();
    for window in [1, 3, 100, 130] {
        let case = Case { window: Some(window), ..Case::new(2, 1, 64, Float::Bf16) };
        case.check(&gpu, &batch(&[(5, 330), (5, 5), (3, 131), (1, 200)]));
        case.check(&gpu, &batch(&[(7, 513)]));
    }
}

#[test]
fn a_grid_for_more_drafts_changes_nothing() {
    // A captured step of a token and five drafts: some sequences have fewer, some rows are padding.
    let gpu = gpu().unwrap();
    let bounds =
        Case { max_q_len: Some(6), max_kv_len: Some(4096), ..Case::new(4, 2, 128, Float::Bf16) };
    bounds.check(&gpu, &batch(&[(6, 200), (1, 300), (3, 77), (1, 0), (6, 0)]));
}

#[test]
fn drafts_beside_a_prompt_are_attended_too() {
    let gpu = gpu().unwrap();
    let case = Case::new(4, 1, 64, Float::Bf16);
    case.check(&gpu, &batch(&[(5, 300), (40, 90), (1, 200), (16, 16), (17, 400)]));
}

#[test]
fn blocks_may_have_any_size() {
    let gpu = gpu().unwrap();
    for block_size in [1, 8, 24, 32, 300] {
        let case = Case { block_size, ..Case::new(1, 1, 64, Float::Bf16) };
        case.check(&gpu, &decode(&[300, 65]));
    }
}

#[test]
fn a_window_leaves_the_last_keys_wherever_it_begins_in_a_tile() {
    let gpu = gpu().unwrap();
    for window in [1, 8, 100, 150, 200] {
        let case = Case { window: Some(window), ..Case::new(2, 1, 64, Float::Bf16) };
        case.check(&gpu, &decode(&[330, 64, 7, 203]));
    }
}

#[test]
fn a_grid_for_longer_and_more_sequences_changes_nothing_but_the_splits() {
    // What a captured step does: bounds of its capacity, padded rows behind the last sequence.
    let gpu = gpu().unwrap();
    let case = Case { max_kv_len: Some(4096), ..Case::new(2, 2, 64, Float::Bf16) };
    case.check(&gpu, &decode(&[200, 1, 0, 0, 0]));
}

#[test]
fn scores_of_any_size_neither_overflow_nor_vanish() {
    let gpu = gpu().unwrap();
    for sharpness in [1e-6, 300.0] {
        let case = Case { sharpness, ..Case::new(1, 1, 64, Float::Bf16) };
        case.check(&gpu, &decode(&[300, 64]));
    }
}

#[test]
fn the_output_may_be_bf16() {
    let gpu = gpu().unwrap();
    let case = Case { out: Float::Bf16, ..Case::new(4, 1, 64, Float::Bf16) };
    case.check(&gpu, &decode(&[300, 5, 0]));
}

#[test]
fn a_nan_among_the_keys_is_not_hidden() {
    let gpu = gpu().unwrap();
    let case = Case { sharpness: f32::NAN, ..Case::new(2, 1, 64, Float::Bf16) };
    assert!(case.attend(&gpu, &decode(&[300, 5])).iter().all(|x| x.is_nan()));
}

#[test]
fn no_order_of_threads_changes_a_bit() {
    let gpu = gpu().unwrap();
    let case = Case::new(2, 1, 64, Float::Bf16);
    let batch = decode(&[300, 40]);
    under_every_order(|| bytes(&case.attend(&gpu, &batch)));
}

#[test]
fn a_captured_launch_is_right_at_lengths_that_came_later() {
    let gpu = gpu().unwrap();
    let case = Case { max_kv_len: Some(500), ..Case::new(2, 1, 64, Float::Bf16) };
    let mut step = Prepared::new(&case, &gpu, &decode(&[500, 500, 500]));
    let mut placed = step.place(case.heads() * case.dim).unwrap();
    step.enqueue(step.queries(), &mut placed).unwrap();
    let mut graph = Graph::capture(&gpu, || step.enqueue(step.queries(), &mut placed)).unwrap();
    for lens in [[1, 129, 500], [300, 64, 65], [7, 0, 0]] {
        // The next step: other queries and lengths, in the same places.
        let next = Prepared::new(&case, &gpu, &decode(&lens));
        step.q.view_mut().copy_within_device(&gpu, next.q.view()).unwrap();
        placed.lens.view_mut().cast().copy_from(&gpu, &next.lens).unwrap();
        // SAFETY: everything that was captured is alive.
        unsafe { graph.replay() }.unwrap();
        case.compare(&placed.rows(&step).unwrap(), &decode(&lens));
    }
}

#[test]
fn threads_that_share_a_device_do_not_merge_each_others_splits() {
    let gpu = gpu().unwrap();
    let case = Case::new(1, 1, 64, Float::Bf16);
    thread::scope(|scope| {
        for len in [300, 330] {
            let (gpu, case) = (&gpu, &case);
            scope.spawn(move || (0..10).for_each(|_| case.check(gpu, &decode(&[len]))));
        }
    });
}
