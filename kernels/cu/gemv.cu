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
#include "gemv.cuh"
#include "reduce.cuh"

// Weights in bf16.
struct Dense {
    const bf16* w;
    i64 stride;
    int rows;
    bool vector;  // they can be read 16 bytes at a time, as x can

    template <int TILES>
    __device__ inline void multiply(const Tokens& x, const BlockRows& of, Partial<TILES> partial) const {
        if (vector) {
            sums<TILES, true>(x, of, partial);
        } else {
            sums<TILES, false>(x, of, partial);
        }
    }

    template <int TILES, bool VECTOR>
    __device__ inline void sums(const Tokens& x, const BlockRows& of, Partial<TILES> partial) const {
        const int group = threadIdx.x % WARP / 4;
        const int pair = threadIdx.x % 4;
        const bf16* row[2] = {w + of.lower(group) * stride, w + of.upper(group) * stride};
        const bf16* token[TILES];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            token[tile] = x.row(8 * tile + group);
        }

        const int begin = threadIdx.x / WARP * AHEAD * PIECE;
        uint4 a[AHEAD][2];
        uint4 b[AHEAD][TILES];
        // Piece i of the round at k0, zeros beyond the end of a row.
        const auto load_weights = [&](int i, int k0) {
            const int k = k0 + i * PIECE + 8 * pair;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                a[i][r] = VECTOR ? load_once(reinterpret_cast<const uint4*>(row[r] + k), k < x.width)
                                 : eight(row[r], k, x.width, false);
            }
        };
        const auto load_inputs = [&](int i, int k0) {
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                b[i][tile] = eight(token[tile], k0 + i * PIECE + 8 * pair, x.width, VECTOR);
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
        for (int k0 = begin; k0 < x.width; k0 += ROUND) {
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
        deposit<TILES>(sum, partial);
    }
};

// Up to 8 tokens. Grid: ceil(rows / 16) blocks of 256 threads.
extern "C" __global__ void __launch_bounds__(WARPS* WARP, 3)
gemv_8(const bf16* x, i64 x_stride, int tokens, const bf16* w, i64 w_stride, int rows, int width,
       int vector, void* out, i64 out_stride, int is_bf16, int add, float scale, const float* factors) {
    const Tokens inputs = {x, x_stride, tokens, width, vector != 0};
    plain<1>(inputs, Dense{w, w_stride, rows, vector != 0},
             Output{out, out_stride, is_bf16, add, scale, factors});
}

// Up to 16.
extern "C" __global__ void __launch_bounds__(WARPS* WARP, 2)
gemv_16(const bf16* x, i64 x_stride, int tokens, const bf16* w, i64 w_stride, int rows, int width,
        int vector, void* out, i64 out_stride, int is_bf16, int add, float scale, const float* factors) {
    const Tokens inputs = {x, x_stride, tokens, width, vector != 0};
    plain<2>(inputs, Dense{w, w_stride, rows, vector != 0},
             Output{out, out_stride, is_bf16, add, scale, factors});
}

// Gates and ups folded, up to 8 tokens. Grid: ceil(rows / 2 / 8) blocks of 256 threads.
extern "C" __global__ void __launch_bounds__(WARPS* WARP, 3)
gemv_gated_8(const bf16* x, i64 x_stride, int tokens, const bf16* w, i64 w_stride, int rows, int width,
             int vector, const float* bias, int activation, void* out, i64 out_stride, int is_bf16,
             const float* factors) {
    const Tokens inputs = {x, x_stride, tokens, width, vector != 0};
    gated<1>(inputs, Dense{w, w_stride, rows, vector != 0}, bias, activation,
             Output{out, out_stride, is_bf16, 0, 1.0f, factors});
}

// Up to 16.
extern "C" __global__ void __launch_bounds__(WARPS* WARP, 2)
gemv_gated_16(const bf16* x, i64 x_stride, int tokens, const bf16* w, i64 w_stride, int rows, int width,
              int vector, const float* bias, int activation, void* out, i64 out_stride, int is_bf16,
              const float* factors) {
    const Tokens inputs = {x, x_stride, tokens, width, vector != 0};
    gated<2>(inputs, Dense{w, w_stride, rows, vector != 0}, bias, activation,
             Output{out, out_stride, is_bf16, 0, 1.0f, factors});
}

constexpr int FEW = 8;

// f32 activations, up to 8 tokens: a warp for each row of w, its lanes 32 columns apart. This is for
// comparing with other implementations, not for speed.
extern "C" __global__ void gemv_f32(const float* x, i64 x_stride, int tokens, const bf16* w, i64 w_stride,
                                    int rows, int width, void* out, i64 out_stride, int is_bf16, int add,
                                    float scale, const float* factors) {
    wait_for_previous();
    const int lane = threadIdx.x % WARP;
    const int n = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (n >= rows) {
        return;  // All of the warp.
    }
    const Output to = {out, out_stride, is_bf16, add, scale, factors};
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
                to.store(t, n, to.of(n, y));
            }
        }
    }
}
