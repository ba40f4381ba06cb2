//! What the lanes of a warp do together: shuffles, votes, tensor-core products, against scalar loops.

mod common;

use std::sync::Arc;

use half::bf16;
use kernels::{Args, Buffer, Gpu, Launch, Pod};

const WARP: &str = r#"
#include "types.cuh"
#include "reduce.cuh"
#include "ptx.cuh"

// out[k * threads + i]: what thread i got from the k-th of these.
extern "C" __global__ void shuffles(const int* x, int* out) {
    const int i = threadIdx.x, n = blockDim.x;
    const int mine = x[i];
    out[0 * n + i] = __shfl_sync(ALL_LANES, mine, 5);
    out[1 * n + i] = __shfl_sync(ALL_LANES, mine, i % 3, 8);
    out[2 * n + i] = __shfl_xor_sync(ALL_LANES, mine, 6);
    out[3 * n + i] = __shfl_up_sync(ALL_LANES, mine, 3);
    out[4 * n + i] = __shfl_up_sync(ALL_LANES, mine, 1, 4);
    out[5 * n + i] = __shfl_down_sync(ALL_LANES, mine, 3);
    out[6 * n + i] = __shfl_down_sync(ALL_LANES, mine, 2, 16);
    out[7 * n + i] = static_cast<int>(__ballot_sync(ALL_LANES, mine % 2));
    out[8 * n + i] = __any_sync(ALL_LANES, mine == 7);
    out[9 * n + i] = __all_sync(ALL_LANES, mine < 1000);
    out[10 * n + i] = static_cast<int>(__shfl_xor_sync(ALL_LANES, static_cast<i64>(mine) << 33, 1) >> 33);
    out[11 * n + i] = static_cast<int>(__shfl_xor_sync(ALL_LANES, static_cast<float>(mine), 16));
    out[12 * n + i] = __syncthreads_count(mine % 3 == 0);
    out[13 * n + i] = __syncthreads_or(mine == 11);
    out[14 * n + i] = __syncthreads_and(mine != 11);
    out[15 * n + i] = __reduce_max_sync(ALL_LANES, mine);
}

// The two halves of a warp go their own ways, and meet again.
extern "C" __global__ void halves(int* out) {
    const int lane = threadIdx.x;
    int sum = lane;
    if (lane < 16) {
        for (int bit = 8; bit > 0; bit /= 2) {
            sum += __shfl_xor_sync(0x0000ffffu, sum, bit);
        }
    } else {
        for (int bit = 8; bit > 0; bit /= 2) {
            sum += 2 * __shfl_xor_sync(0xffff0000u, sum, bit);
        }
    }
    __syncwarp();
    out[lane] = sum + __shfl_xor_sync(ALL_LANES, sum, 16);
}

// d = a b + c of one tile: a is 16 x 16, b 16 x 8 (given column by column), c and d 16 x 8.
extern "C" __global__ void product(const bf16* a, const bf16* b, const float* c, float* d) {
    __shared__ STRATA_ALIGNED(16) bf16 tile[16 * 16];
    const int lane = threadIdx.x, group = lane / 4, pair = lane % 4;
    for (int i = lane; i < 256; i += WARP) {
        tile[i] = a[i];
    }
    __syncwarp();
    // Matrix 0 is the upper left one, 1 the lower left, 2 the upper right, 3 the lower right.
    u32 left[4];
    ldmatrix_x4(left, &tile[(lane % 16) * 16 + lane / 16 * 8]);
    const u32* words = reinterpret_cast<const u32*>(b + group * 16);
    const u32 right[2] = {words[pair], words[pair + 4]};
    float sums[4];
    for (int i = 0; i < 4; ++i) {
        sums[i] = c[(group + i / 2 * 8) * 8 + 2 * pair + i % 2];
    }
    mma_bf16(sums, left, right);
    for (int i = 0; i < 4; ++i) {
        d[(group + i / 2 * 8) * 8 + 2 * pair + i % 2] = sums[i];
    }
}

// out[8 j + k] of matrix i = the elements that its lanes hold after the load.
extern "C" __global__ void matrices(const u16* x, unsigned* out, int transposed) {
    __shared__ STRATA_ALIGNED(16) u16 tile[4 * 64];
    for (int i = threadIdx.x; i < 256; i += WARP) {
        tile[i] = x[i];
    }
    __syncwarp();
    u32 words[4];
    if (transposed) {
        ldmatrix_x4_transposed(words, tile + 8 * threadIdx.x);
    } else {
        ldmatrix_x4(words, tile + 8 * threadIdx.x);
    }
    for (int i = 0; i < 4; ++i) {
        out[32 * i + threadIdx.x] = words[i];
    }
}

extern "C" __global__ void counted(int* total, float* sum, unsigned* most, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(total, 1);
        atomicAdd(sum, 0.5f);
        atomicMax(most, static_cast<u32>(i * 7 % 101));
        atomicCAS(total + 1, 0, 9);
    }
}
"#;

fn gpu() -> Arc<Gpu> {
    let gpu = common::emulated();
    gpu.load_text("warp", WARP).unwrap();
    gpu
}

/// Run one block under every order and give what is in the last of the buffers.
fn run<T: Pod>(
    name: &'static str,
    threads: usize,
    inputs: &[&Buffer],
    out: usize,
    last: &[usize],
) -> Vec<T> {
    let gpu = gpu();
    let mut values = Vec::new();
    common::under_every_order(|| {
        let mut buffer = Buffer::zeroed(&gpu, out * size_of::<T>()).unwrap();
        let args = inputs.iter().fold(Args::new(), |args, input| args.view(input.view()));
        let args = args.view_mut(&buffer.view_mut());
        let args = last.iter().fold(args, |args, value| args.int(*value));
        // SAFETY: the kernels above, each with its own arguments and as much room as it writes.
        unsafe { Launch::new("warp", name, 1, threads).enqueue(&gpu, args) }.unwrap();
        values = buffer.to_vec().unwrap();
        common::bytes(&values)
    });
    values
}

#[test]
fn shuffles_and_votes_are_those_of_a_scalar_loop() {
    let n = 64usize;
    let x: Vec<i32> = (0..64).map(|i| (i * 37 + 11) % 50).collect();
    let input = Buffer::from_slice(&gpu(), &x).unwrap();
    let got: Vec<i32> = run("shuffles", n, &[&input], 16 * n, &[]);
    for i in 0..n {
        let (warp, lane) = (i / 32 * 32, i % 32);
        let of = |lane: usize| x[warp + lane];
        let in_warp = &x[warp..warp + 32];
        let ballot = in_warp.iter().enumerate().fold(0u32, |b, (l, x)| b | ((x % 2) as u32) << l);
        let expected = [
            of(5),
            of(lane / 8 * 8 + i % 3),
            of(lane ^ 6),
            of(if lane >= 3 { lane - 3 } else { lane }),
            of(if lane % 4 >= 1 { lane - 1 } else { lane }),
            of(if lane + 3 < 32 { lane + 3 } else { lane }),
            of(if lane % 16 + 2 < 16 { lane + 2 } else { lane }),
            ballot as i32,
            i32::from(in_warp.contains(&7)),
            1,
            of(lane ^ 1),
            of(lane ^ 16),
            x.iter().filter(|x| *x % 3 == 0).count() as i32,
            i32::from(x.contains(&11)),
            i32::from(!x.contains(&11)),
            *in_warp.iter().max().unwrap(),
        ];
        let got: Vec<i32> = (0..16).map(|k| got[k * n + i]).collect();
        assert_eq!(got, expected, "thread {i}");
    }
}

#[test]
fn parts_of_a_warp_may_go_their_own_ways() {
    let got: Vec<i32> = run("halves", 32, &[], 32, &[]);
    let lower: i32 = (0..16).sum();
    let upper: Vec<i32> = (16..32)
        .map(|lane: i32| (16..32).map(|o: i32| o << (lane ^ o).count_ones()).sum())
        .collect();
    for lane in 0..32 {
        assert_eq!(got[lane], lower + upper[lane % 16], "lane {lane}");
    }
}

#[test]
fn a_tile_is_the_product_of_its_rows_and_columns() {
    let gpu = gpu();
    // Small integers and halves: every product and sum is exact, in any order.
    let a: Vec<f32> = (0..256).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
    let b: Vec<f32> = (0..128).map(|i| ((i * 5) % 11) as f32 * 0.5 - 2.0).collect();
    let c: Vec<f32> = (0..128).map(|i| i as f32).collect();
    let narrow =
        |x: &[f32]| -> Vec<u16> { x.iter().map(|x| bf16::from_f32(*x).to_bits()).collect() };
    let a_there = Buffer::from_slice(&gpu, &narrow(&a)).unwrap();
    let b_there = Buffer::from_slice(&gpu, &narrow(&b)).unwrap();
    let c_there = Buffer::from_slice(&gpu, &c).unwrap();
    let got: Vec<f32> = run("product", 32, &[&a_there, &b_there, &c_there], 128, &[]);
    for row in 0..16 {
        for column in 0..8 {
            let sum: f32 = (0..16).map(|k| a[row * 16 + k] * b[column * 16 + k]).sum();
            assert_eq!(got[row * 8 + column], sum + c[row * 8 + column], "({row}, {column})");
        }
    }
}

#[test]
fn a_load_of_matrices_gives_each_lane_its_two_elements() {
    let x: Vec<u16> = (0..256).map(|i| i as u16 + 1).collect();
    let input = Buffer::from_slice(&gpu(), &x).unwrap();
    for transposed in [false, true] {
        let got: Vec<u32> = run("matrices", 32, &[&input], 128, &[usize::from(transposed)]);
        for matrix in 0..4 {
            for lane in 0..32 {
                let element = |row: usize, column: usize| {
                    let at = if transposed { column * 8 + row } else { row * 8 + column };
                    u32::from(x[64 * matrix + at])
                };
                let (row, column) = (lane / 4, lane % 4 * 2);
                let expected = element(row, column) | element(row, column + 1) << 16;
                assert_eq!(got[32 * matrix + lane], expected, "{matrix} {lane} {transposed}");
            }
        }
    }
}

#[test]
fn atomics_lose_nothing_however_many_blocks_run_at_once() {
    let gpu = gpu();
    let (blocks, n) = (400, 100_000);
    let mut total = Buffer::from_slice(&gpu, &[0i32, 0]).unwrap();
    let mut sum = Buffer::zeroed(&gpu, 4).unwrap();
    let mut most = Buffer::zeroed(&gpu, 4).unwrap();
    let args = Args::new().view_mut(&total.view_mut()).view_mut(&sum.view_mut());
    let args = args.view_mut(&most.view_mut()).int(n);
    // SAFETY: the kernel's arguments and what it writes.
    unsafe { Launch::new("warp", "counted", blocks, 256).enqueue(&gpu, args) }.unwrap();
    assert_eq!(total.to_vec::<i32>().unwrap(), [n as i32, 9]);
    assert_eq!(sum.to_vec::<f32>().unwrap(), [n as f32 / 2.0]);
    assert_eq!(most.to_vec::<u32>().unwrap(), [100]);
}
