//! The three tiles of gemm.cu, each asked for by name: `linear` chooses by the size of the device.

use kernels::Float::{Bf16, F32};
use kernels::{Args, Launch, Mat};

use crate::common;
use crate::problem::{Problem, assert_close};

/// Name, tokens and rows of a tile, threads, bytes of shared memory.
const TILES: [(&str, usize, usize, usize, usize); 3] = [
    ("gemm_narrow", 16, 32, 64, 36 << 10),
    ("gemm_medium", 64, 64, 128, 32 << 10),
    ("gemm_large", 128, 128, 256, 64 << 10),
];

fn by_tile(
    problem: &Problem,
    (name, tokens, rows, threads, shared): (&'static str, usize, usize, usize, usize),
    vector: bool,
) -> Vec<f32> {
    let blocks = problem.tokens.div_ceil(tokens) * problem.rows.div_ceil(rows);
    problem.with_memory(problem.rows, F32, |out| {
        let launch = Launch::new("gemm", name, blocks, threads).shared(shared);
        let operand = |args: Args, m: Mat<'_>| args.ptr(m.ptr).long(m.stride).int(m.rows);
        let args = operand(operand(Args::new(), problem.x()), problem.weight());
        let args = args.int(problem.width).int(usize::from(vector));
        let args = args.ptr(out.ptr).long(out.stride).int(0).int(0).float(1.0).ptr(0);
        // SAFETY: the kernel's arguments; it stays within the three matrices.
        unsafe { launch.enqueue(&problem.gpu, args) }.unwrap();
    })
}

#[test]
fn every_tile_gives_the_same_bits() {
    let gpu = common::gpu().unwrap();
    // More than one tile of the largest kind down and across; more steps than stages, and fewer.
    for (shape, vector) in [([130, 150, 200], true), ([140, 10, 37], false), ([3, 130, 16], true)] {
        let problem = Problem::new(&gpu, Bf16, shape, 21);
        let [narrow, medium, large] = TILES.map(|tile| by_tile(&problem, tile, vector));
        assert_close(&problem, &narrow, |product, _| product, F32);
        assert!(narrow == medium && medium == large, "{shape:?}");
    }
}

#[test]
fn more_tiles_than_a_band_are_each_done_once() {
    let gpu = common::gpu().unwrap();
    // 11 narrow tiles down: a band of 8 and one of 3.
    let problem = Problem::new(&gpu, Bf16, [11 * 16 - 1, 70, 16], 22);
    let y = by_tile(&problem, TILES[0], true);
    assert_close(&problem, &y, |product, _| product, F32);
}

#[test]
fn reading_16_bytes_at_a_time_changes_no_bit() {
    let gpu = common::gpu().unwrap();
    let problem = Problem::new(&gpu, Bf16, [20, 40, 72], 23);
    for tile in TILES {
        assert_eq!(by_tile(&problem, tile, true), by_tile(&problem, tile, false), "{}", tile.0);
    }
}

#[test]
fn the_order_of_threads_changes_no_bit_of_the_largest_tile() {
    let gpu = common::gpu().unwrap();
    let problem = Problem::new(&gpu, Bf16, [40, 33, 168], 24);
    common::under_every_order(|| common::bytes(&by_tile(&problem, TILES[2], true)));
}
