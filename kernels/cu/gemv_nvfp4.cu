// Matmuls of few tokens with weights in NVFP4: what gemv.cu does, with the same bits, from 4.5 bits a weight
// instead of 16. (Activations stay in bf16: "W4A16".)
//
// Reading is what takes the time, so the weights must stay small until they are in registers: written back
// as bf16, to memory or even to shared memory, they would cost the traffic that was saved. Each lane decodes
// the eight weights that it hands to the tensor cores anyway; they are the bf16 values that expansion gives,
// in the places where gemv.cu has them, and go through the same instructions in the same order.
//
// The factor of a row is not multiplied into its weights: the product would have to be rounded to bf16, each
// weight by itself. Multiplied with the sum it rounds once, and costs one multiplication for K.
//
// A lane reads 16 bytes for the four pieces of a round, and four scales of one byte: a quarter of
// the bytes of gemv.cu in a quarter of the loads, so it reads whole rounds ahead instead of pieces. With 3
// blocks of 256 threads and two rounds of two rows 60 KB are under way for each multiprocessor, which needs
// some 26 (gemv.cu).
//
// Arithmetic is closer to being the limit than there. 4.8 TB/s are 37 weights a clock for each
// multiprocessor of an H200. Decoding takes 26 instructions for 8 weights (15 to put the bits in place, 8
// multiplications of two bf16, 3 for the scale), so 120 of its 128 lanes would be busy at that rate. Bits that
// were stored in another order could save some of it.
#include "gemv.cuh"
#include "nvfp4.cuh"

constexpr int ROUNDS = 2;  // that are read ahead

static_assert(AHEAD * PIECE == NVFP4_BLOCK, "a warp takes a block a round");

// Weights in NVFP4.
struct Packed {
    Nvfp4 w;
    int rows;

    template <int TILES>
    __device__ inline void multiply(const Tokens& x, const BlockRows& of, Partial<TILES> partial) const {
        if (x.vector) {
            sums<TILES, true>(x, of, partial);
        } else {
            sums<TILES, false>(x, of, partial);
        }
    }

    template <int TILES, bool VECTOR>
    __device__ inline void sums(const Tokens& x, const BlockRows& of, Partial<TILES> partial) const {
        const int group = threadIdx.x % WARP / 4;
        const int pair = threadIdx.x % 4;
        const unsigned char* row[2] = {w.row(of.lower(group)), w.row(of.upper(group))};
        const bf16* token[TILES];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            token[tile] = x.row(8 * tile + group);
        }

        const int begin = threadIdx.x / WARP * NVFP4_BLOCK;
        uint4 codes[ROUNDS][2];
        u32 scales[ROUNDS][2];
        // The round at k0, zeros beyond the end of a row.
        const auto load_weights = [&](int round, int k0) {
            const bool wanted = k0 < x.width;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int block = k0 / NVFP4_BLOCK;
                codes[round][r] = load_once(Nvfp4::codes(row[r], block, pair), wanted);
                // A warp reads 8 bytes of a row here, and the next one those behind them: through the cache.
                scales[round][r] = wanted ? *w.scales(row[r], block, pair) : 0;
            }
        };
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            load_weights(round, begin + round * ROUND);
        }
        // The weights were there before; x is what the kernel before this one writes.
        wait_for_previous();
        float sum[TILES][4] = {};
        for (int k0 = begin; k0 < x.width; k0 += ROUNDS * ROUND) {
#pragma unroll
            for (int round = 0; round < ROUNDS; round++) {
                const int k = k0 + round * ROUND;
                uint4 b[AHEAD][TILES];
#pragma unroll
                for (int i = 0; i < AHEAD; i++) {
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++) {
                        b[i][tile] = eight(token[tile], k + i * PIECE + 8 * pair, x.width, VECTOR);
                    }
                }
#pragma unroll
                for (int i = 0; i < AHEAD; i++) {
                    uint4 a[2];
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        a[r] = nvfp4_weights(word(codes[round][r], i), nvfp4_scale(scales[round][r], i));
                    }
                    const u32 left[4] = {a[0].x, a[1].x, a[0].y, a[1].y};
                    const u32 right[4] = {a[0].z, a[1].z, a[0].w, a[1].w};
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++) {
                        const u32 upper[2] = {b[i][tile].x, b[i][tile].y};
                        const u32 lower[2] = {b[i][tile].z, b[i][tile].w};
                        mma_bf16(sum[tile], left, upper);
                        mma_bf16(sum[tile], right, lower);
                    }
                }
                // A round that was used makes room for another one.
                load_weights(round, k + ROUNDS * ROUND);
            }
        }
        deposit<TILES>(sum, partial);
    }

    static __device__ inline u32 word(const uint4& words, int i) {
        return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
    }
};

// Up to 8 tokens. Grid: ceil(rows / 16) blocks of 256 threads.
extern "C" __global__ void __launch_bounds__(WARPS* WARP, 3)
gemv_nvfp4_8(const bf16* x, i64 x_stride, int tokens, const unsigned char* w, int rows, int width, int vector,
             void* out, i64 out_stride, int is_bf16, int add, float scale, const float* factors) {
    const Tokens inputs = {x, x_stride, tokens, width, vector != 0};
    plain<1>(inputs, Packed{{w, rows, width}, rows}, Output{out, out_stride, is_bf16, add, scale, factors});
}

// Up to 16.
extern "C" __global__ void __launch_bounds__(WARPS* WARP, 2)
gemv_nvfp4_16(const bf16* x, i64 x_stride, int tokens, const unsigned char* w, int rows, int width,
              int vector, void* out, i64 out_stride, int is_bf16, int add, float scale,
              const float* factors) {
    const Tokens inputs = {x, x_stride, tokens, width, vector != 0};
    plain<2>(inputs, Packed{{w, rows, width}, rows}, Output{out, out_stride, is_bf16, add, scale, factors});
}

// Gates and ups folded, up to 8 tokens. Grid: ceil(rows / 2 / 8) blocks of 256 threads.
extern "C" __global__ void __launch_bounds__(WARPS* WARP, 3)
gemv_nvfp4_gated_8(const bf16* x, i64 x_stride, int tokens, const unsigned char* w, int rows, int width,
                   int vector, const float* bias, int activation, void* out, i64 out_stride, int is_bf16,
                   const float* factors) {
    const Tokens inputs = {x, x_stride, tokens, width, vector != 0};
    gated<1>(inputs, Packed{{w, rows, width}, rows}, bias, activation,
             Output{out, out_stride, is_bf16, 0, 1.0f, factors});
}

// Up to 16.
extern "C" __global__ void __launch_bounds__(WARPS* WARP, 2)
gemv_nvfp4_gated_16(const bf16* x, i64 x_stride, int tokens, const unsigned char* w, int rows, int width,
                    int vector, const float* bias, int activation, void* out, i64 out_stride, int is_bf16,
                    const float* factors) {
    const Tokens inputs = {x, x_stride, tokens, width, vector != 0};
    gated<2>(inputs, Packed{{w, rows, width}, rows}, bias, activation,
             Output{out, out_stride, is_bf16, 0, 1.0f, factors});
}
