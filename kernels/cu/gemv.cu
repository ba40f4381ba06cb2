// Matmuls of few tokens: y[t, n] = sum over k of x[t, k] w[n, k], for t < 16.
//
// A decode step multiplies every weight of the model by a handful of vectors. Each weight is read once
// from memory and used `tokens` times, so up to some hundred tokens the time is that of the reading:
// 2 N K bytes, whatever else happens. What a kernel must do is keep enough reads on their way. An H200
// delivers 4.8 TB/s after some 0.7 us, so about 3.4 MB must be under way at any time: 26 KB for each of
// its 132 multiprocessors.
//
// That leaves little time for arithmetic: ten weights a clock for each multiprocessor. Sixteen tokens
// times ten would be 160 multiplications and as many conversions of bf16 a clock, more than the 128
// lanes can do. So the tensor cores do them, though most of what they compute for one token alone is
// thrown away: the instruction multiplies 16 x 16 by 16 x 8, and here the weights are the large operand
// (16 rows n), the tokens the small one (8 columns, or twice 8).
//
// The instruction wants word `pair` of a row's 8 words in lane 4 group + pair. A sum does not care in
// which order its terms come, as long as both operands agree; so a lane reads 16 bytes in one go, the
// elements 8 pair to 8 pair + 7 of 32, and hands words 0 and 1 to a first instruction and words 2 and 3
// to a second:
//
//     lane's 16 bytes of w      word 0    word 1   | word 2    word 3
//     instruction                  first           |    second
//     its columns, supposedly   2 pair,+1  +8,+9   | 2 pair,+1  +8,+9
//
// A block has 8 warps and owns 16 rows of w. A warp takes 128 columns in 1024 (256 bytes of each of its
// rows: four loads for each lane and row). The loads of the next 1024 columns are sent off piece by piece
// as the pieces of these are used, so 8 x 16 bytes a lane are under way all the time, and the first of
// them before the kernel that makes x has ended (wait_for_previous). The 8 warps' sums are added in
// shared memory, first to last. So the order of a sum depends on K alone: the same bits for any number of
// tokens up to 16.
//
// x is read from the first-level cache: `tokens` rows are small and every block wants them, while the
// weights go past it (load_once).
#include "linear.cuh"
#include "ptx.cuh"
#include "reduce.cuh"

constexpr int WARPS = 8;
constexpr int ROWS = 16;   // of w, for a block
constexpr int PIECE = 32;  // columns that a warp's 16-byte loads cover at once
constexpr int AHEAD = 4;   // pieces that are read before the first is used

struct Product {
    const bf16* x;
    i64 x_stride;
    int tokens;
    const bf16* w;
    i64 w_stride;
    int rows;
    int width;
    bool vector;
};

// The sums of a block's 16 rows with 8 TILES tokens: partial[warp][token][row]. Row i of the 16 is row
// `first + i` of w for the lower eight, `second + i - 8` for the upper: behind each other in a plain
// product; a gate and its up when they are folded below.
template <int TILES, bool VECTOR>
__device__ inline void sums_of(const Product& p, int first, int second, int end_first, int end_second,
                               float (*partial)[8 * TILES][ROWS]) {
    const int lane = threadIdx.x % WARP;
    const int warp = threadIdx.x / WARP;
    const int group = lane / 4;
    const int pair = lane % 4;
    // Where there is no such row or token another one is read: its sums are nobody's, and no other sum
    // sees it. So the loop asks nothing.
    const int n[2] = {first + group, second + group};
    const bf16* row[2] = {p.w + (n[0] < end_first ? n[0] : 0) * p.w_stride,
                          p.w + (n[1] < end_second ? n[1] : 0) * p.w_stride};
    const bf16* token[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        const int t = 8 * tile + group;
        token[tile] = p.x + (t < p.tokens ? t : 0) * p.x_stride;
    }

    constexpr int ROUND = WARPS * AHEAD * PIECE;
    const int begin = warp * AHEAD * PIECE;
    uint4 a[AHEAD][2];
    uint4 b[AHEAD][TILES];
    // Piece i of the round at k0, zeros beyond the end of a row.
    const auto load_weights = [&](int i, int k0) {
        const int k = k0 + i * PIECE + 8 * pair;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            a[i][r] = VECTOR ? load_once(reinterpret_cast<const uint4*>(row[r] + k), k < p.width)
                             : eight(row[r], k, p.width, false);
        }
    };
    const auto load_inputs = [&](int i, int k0) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            b[i][tile] = eight(token[tile], k0 + i * PIECE + 8 * pair, p.width, VECTOR);
        }
    };
    if (VECTOR) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            load_weights(i, begin);
        }
    }
    // The weights were there before; x is what the kernel before this one writes.
    wait_for_previous();
    // With more tokens there are no registers left to read theirs ahead.
    constexpr bool INPUTS_AHEAD = VECTOR && TILES == 1;
    if (INPUTS_AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            load_inputs(i, begin);
        }
    }
    float sum[TILES][4] = {};
    for (int k0 = begin; k0 < p.width; k0 += ROUND) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (!VECTOR) {
                load_weights(i, k0);
            }
            if (!INPUTS_AHEAD) {
                load_inputs(i, k0);
            }
            const u32 left[4] = {a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y};
            const u32 right[4] = {a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w};
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const u32 upper[2] = {b[i][tile].x, b[i][tile].y};
                const u32 lower[2] = {b[i][tile].z, b[i][tile].w};
                mma_bf16(sum[tile], left, upper);
                mma_bf16(sum[tile], right, lower);
            }
            // A piece that was used makes room for that of the next round.
            if (VECTOR) {
                load_weights(i, k0 + ROUND);
            }
            if (INPUTS_AHEAD) {
                load_inputs(i, k0 + ROUND);
            }
        }
    }
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
__device__ inline void multiply(const Product& p, int first, int second, int end_first, int end_second,
                                float (*partial)[8 * TILES][ROWS]) {
    if (p.vector) {
        sums_of<TILES, true>(p, first, second, end_first, end_second, partial);
    } else {
        sums_of<TILES, false>(p, first, second, end_first, end_second, partial);
    }
}

template <int TILES>
__device__ inline float total(float (*partial)[8 * TILES][ROWS], int t, int row) {
    float y = partial[0][t][row];
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) {
        y += partial[warp][t][row];
    }
    return y;
}

template <int TILES>
__device__ inline void plain(const Product& p, const Output& out) {
    __shared__ float partial[WARPS][8 * TILES][ROWS];
    const int first = blockIdx.x * ROWS;
    multiply<TILES>(p, first, first + 8, p.rows, p.rows, partial);
    const int row = threadIdx.x % ROWS;
    const int t = threadIdx.x / ROWS;
    if (t < p.tokens && first + row < p.rows) {
        out.store(t, first + row, total<TILES>(partial, t, row));
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
template <int TILES>
__device__ inline void gated(const Product& p, const float* bias, int activation, const Output& out) {
    __shared__ float partial[WARPS][8 * TILES][ROWS];
    const int half = p.rows / 2;
    const int first = blockIdx.x * (ROWS / 2);
    multiply<TILES>(p, first, half + first, half, p.rows, partial);
    const int row = threadIdx.x % (ROWS / 2);
    const int t = threadIdx.x / (ROWS / 2);
    const int i = first + row;
    if (t < p.tokens && i < half) {
        float gate = total<TILES>(partial, t, row);
        float up = total<TILES>(partial, t, row + ROWS / 2);
        if (bias != nullptr) {
            gate += bias[i];
            up += bias[half + i];
        }
        out.store(t, i, activated(gate, activation) * up);
    }
}

// Up to 8 tokens. Grid: ceil(rows / 16) blocks of 256 threads.
extern "C" __global__ void __launch_bounds__(WARPS* WARP, 3)
gemv_8(const bf16* x, i64 x_stride, int tokens, const bf16* w, i64 w_stride, int rows, int width,
       int vector, void* out, i64 out_stride, int is_bf16, int add, float scale) {
    const Product p = {x, x_stride, tokens, w, w_stride, rows, width, vector != 0};
    plain<1>(p, Output{out, out_stride, is_bf16, add, scale});
}

// Up to 16.
extern "C" __global__ void __launch_bounds__(WARPS* WARP, 2)
gemv_16(const bf16* x, i64 x_stride, int tokens, const bf16* w, i64 w_stride, int rows, int width,
        int vector, void* out, i64 out_stride, int is_bf16, int add, float scale) {
    const Product p = {x, x_stride, tokens, w, w_stride, rows, width, vector != 0};
    plain<2>(p, Output{out, out_stride, is_bf16, add, scale});
}

// Gates and ups folded, up to 8 tokens. Grid: ceil(rows / 2 / 8) blocks of 256 threads.
extern "C" __global__ void __launch_bounds__(WARPS* WARP, 3)
gemv_gated_8(const bf16* x, i64 x_stride, int tokens, const bf16* w, i64 w_stride, int rows, int width,
             int vector, const float* bias, int activation, void* out, i64 out_stride, int is_bf16) {
    const Product p = {x, x_stride, tokens, w, w_stride, rows, width, vector != 0};
    gated<1>(p, bias, activation, Output{out, out_stride, is_bf16, 0, 1.0f});
}

// Up to 16.
extern "C" __global__ void __launch_bounds__(WARPS* WARP, 2)
gemv_gated_16(const bf16* x, i64 x_stride, int tokens, const bf16* w, i64 w_stride, int rows, int width,
              int vector, const float* bias, int activation, void* out, i64 out_stride, int is_bf16) {
    const Product p = {x, x_stride, tokens, w, w_stride, rows, width, vector != 0};
    gated<2>(p, bias, activation, Output{out, out_stride, is_bf16, 0, 1.0f});
}

constexpr int FEW = 8;

// f32 activations, up to 8 tokens: a warp for each row of w, its lanes 32 columns apart. This is for
// comparing with other implementations, not for speed.
extern "C" __global__ void gemv_f32(const float* x, i64 x_stride, int tokens, const bf16* w, i64 w_stride,
                                    int rows, int width, void* out, i64 out_stride, int is_bf16, int add,
                                    float scale) {
    wait_for_previous();
    const int lane = threadIdx.x % WARP;
    const int n = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (n >= rows) {
        return;  // All of the warp.
    }
    const Output to = {out, out_stride, is_bf16, add, scale};
    const bf16* row = w + n * w_stride;
    float sum[FEW] = {};
    for (int k = lane; k < width; k += WARP) {
        const float weight = to_f32(row[k]);
#pragma unroll
        for (int t = 0; t < FEW; t++) {
            if (t < tokens) {
                sum[t] += x[t * x_stride + k] * weight;
            }
        }
    }
#pragma unroll
    for (int t = 0; t < FEW; t++) {
        if (t < tokens) {
            const float y = warp_reduce<Sum>(sum[t]);
            if (lane == 0) {
                to.store(t, n, y);
            }
        }
    }
}
