// What the matmuls of few tokens share (gemv.cu, gemv_nvfp4.cu): how a block divides its work, and what
// becomes of its sums. How weights get into registers is what they differ in.
//
// A block has 8 warps and owns 16 rows of w. A warp takes 128 columns in 1024, in four pieces of 32. The
// warps' sums are added in shared memory, first to last.
//
// `Weights` is one storage of w:
//
//     int rows;
//     multiply<TILES>(x, rows_of_block, partial)   the sums of the block's 16 rows with 8 TILES tokens,
//                                                  by `deposit`
#pragma once

#include "linear.cuh"
#include "ptx.cuh"

constexpr int WARPS = 8;
constexpr int ROWS = 16;   // of w, for a block
constexpr int PIECE = 32;  // columns that a warp's 16-byte loads of bf16 cover at once
constexpr int AHEAD = 4;   // pieces of a warp, one behind the other
constexpr int ROUND = WARPS * AHEAD * PIECE;  // columns of all warps

// The activations.
struct Tokens {
    const bf16* x;
    i64 stride;
    int count;
    int width;
    bool vector;  // they can be read 16 bytes at a time

    // Row t; the first one where there is no such row: its sums are nobody's, and no other sum sees it. So
    // the loop asks nothing.
    __device__ inline const bf16* row(int t) const {
        return x + (t < count ? t : 0) * stride;
    }
};

// Row i of a block's 16 is row `first + i` of w for the lower eight, `second + i - 8` for the upper: behind
// each other in a plain product; a gate and its up when they are folded.
struct BlockRows {
    int first, second;
    int end_first, end_second;

    // The rows of w of this lane; another one where there is none, as above.
    __device__ inline int lower(int group) const {
        return first + group < end_first ? first + group : 0;
    }

    __device__ inline int upper(int group) const {
        return second + group < end_second ? second + group : 0;
    }
};

// Sums of warps: partial[warp][token][row].
template <int TILES>
using Partial = float (*)[8 * TILES][ROWS];

// What this warp has summed up; then that of all warps is there.
template <int TILES>
__device__ inline void deposit(const float (&sum)[TILES][4], Partial<TILES> partial) {
    const int warp = threadIdx.x / WARP;
    const int group = threadIdx.x % WARP / 4;
    const int pair = threadIdx.x % 4;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        const int t = 8 * tile + 2 * pair;
        partial[warp][t][group] = sum[tile][0];
        partial[warp][t + 1][group] = sum[tile][1];
        partial[warp][t][group + 8] = sum[tile][2];
        partial[warp][t + 1][group + 8] = sum[tile][3];
    }
    __syncthreads();
}

template <int TILES>
__device__ inline float total(Partial<TILES> partial, int t, int row) {
    float y = partial[0][t][row];
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) {
        y += partial[warp][t][row];
    }
    return y;
}

template <int TILES, class Weights>
__device__ inline void plain(const Tokens& x, const Weights& w, const Output& out) {
    __shared__ float partial[WARPS][8 * TILES][ROWS];
    const int first = blockIdx.x * ROWS;
    w.template multiply<TILES>(x, BlockRows{first, first + 8, w.rows, w.rows}, partial);
    const int row = threadIdx.x % ROWS;
    const int t = threadIdx.x / ROWS;
    if (t < x.count && first + row < w.rows) {
        out.store(t, first + row, out.of(first + row, total<TILES>(partial, t, row)));
    }
}

// What a gate becomes; the numbers are those of the launcher (as in gated.cu).
__device__ inline float activated(float x, int activation) {
    if (activation == 0) {
        return x / (1.0f + expf(-x));  // SiLU
    }
    if (activation == 1) {  // GELU, by tanh
        return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    }
    return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));  // GELU
}

// The same for weights of which the first half of the rows are gates and the second half ups:
// out[t, i] = activation(gate_i) up_i. A block owns 8 gates and their ups, so nothing goes to memory
// in between.
template <int TILES, class Weights>
__device__ inline void gated(const Tokens& x, const Weights& w, const float* bias, int activation,
                             const Output& out) {
    __shared__ float partial[WARPS][8 * TILES][ROWS];
    const int half = w.rows / 2;
    const int first = blockIdx.x * (ROWS / 2);
    w.template multiply<TILES>(x, BlockRows{first, half + first, half, w.rows}, partial);
    const int row = threadIdx.x % (ROWS / 2);
    const int t = threadIdx.x / (ROWS / 2);
    const int i = first + row;
    if (t < x.count && i < half) {
        float gate = out.of(i, total<TILES>(partial, t, row));
        float up = out.of(half + i, total<TILES>(partial, t, row + ROWS / 2));
        if (bias != nullptr) {
            gate += bias[i];
            up += bias[half + i];
        }
        out.store(t, i, activated(gate, activation) * up);
    }
}
