// What the attention kernels share: where keys lie, who sees them, and 16 rows of flash attention.
#pragma once

#include "ptx.cuh"

// Scores that no softmax has met: less than any of them, and still a number. A maximum that starts here
// instead of at -infinity never makes the -infinity - (-infinity) that would be a NaN.
constexpr float LOWEST = -3.4028235e38f;

// One sequence of a batch, as it lies in device memory.
struct Sequence {
    int start;   // its first query among the tokens of the step
    int q_len;   // its queries: the last ones of its keys
    int kv_len;  // its keys; 0 for padding
    const int* table;

    __device__ inline Sequence(const int* cu_seqlens_q, const int* seq_lens_kv, const int* block_table,
                               int max_blocks, int s)
        : start(cu_seqlens_q[s]),
          q_len(cu_seqlens_q[s + 1] - cu_seqlens_q[s]),
          kv_len(seq_lens_kv[s]),
          table(block_table + static_cast<i64>(s) * max_blocks) {}

    // The key that query i is itself: it sees this one and those before it. Below 0 it sees nothing.
    __device__ inline int position(int i) const {
        return kv_len - q_len + i;
    }

    // Where key `key` lies, counted in tokens of the cache; -1 where its block is missing.
    __device__ inline int slot(int key, int block_size) const {
        return slot_in(table[key / block_size], key, block_size);
    }

    // The same in two steps, for who has something else to do until the table has answered.
    static __device__ inline int slot_in(int block, int key, int block_size) {
        return block < 0 ? -1 : block * block_size + key % block_size;
    }
};

// The first key that a query at this position sees.
__device__ inline int first_visible(int position, int window) {
    return position < window ? 0 : position + 1 - window;  // never beyond what an int holds
}

__device__ inline void put(float* to, float value) {
    *to = value;
}

__device__ inline void put(bf16* to, float value) {
    *to = to_bf16(value);
}

__device__ inline void store(void* out, int out_bf16, i64 at, float value) {
    if (out_bf16) {
        put(static_cast<bf16*>(out) + at, value);
    } else {
        put(static_cast<float*>(out) + at, value);
    }
}

// A weighted sum over a sum of weights; without any weight, as where there are no keys, 0.
__device__ inline float divided(float value, float total) {
    return total == 0.0f ? 0.0f : value / total;
}

// Keys and values lie in shared memory as rows of DIM elements and 16 bytes more. The 16 bytes turn the
// 8 rows that ldmatrix reads at once into 8 different groups of banks: a row is an odd number of 16-byte
// pieces long.
template <int DIM>
constexpr int PADDED = DIM + 8;

// Copy one row of a tile's keys or values, piece by piece: `pieces` of 16 bytes make a row.
template <int DIM>
__device__ inline void copy_piece(bf16* tile, const bf16* cache, int row, int piece, int slot, int heads,
                                  int head) {
    const i64 from = (static_cast<i64>(slot < 0 ? 0 : slot) * heads + head) * DIM + piece * 8;
    copy_async_16(tile + row * PADDED<DIM> + piece * 8, cache + from, slot >= 0);
}

// 16 rows of queries, the work of one warp: their running maximum, sum and output, in registers.
//
// The layout is that of mma_bf16 (ptx.cuh): with group = lane / 4 and pair = lane % 4, a lane has of the
// rows `group` ([0]) and `group + 8` ([1]) the columns 2 pair and 2 pair + 1 of every 8. Four lanes share
// a row, so a row's maximum takes two exchanges instead of five.
template <int DIM>
struct Rows {
    u32 query[DIM / 16][4];
    float out[DIM / 8][4];
    float max[2];  // of the scores, in units of log2
    float sum[2];  // of 2^(score - max): this lane's columns only, until `total`

    // The rows' queries, rounded to bf16; nullptr for a row that is not there.
    __device__ inline void begin(const float* low, const float* high) {
        const int pair = threadIdx.x % 4;
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
#pragma unroll
            for (int part = 0; part < 4; part++) {
                const float* row = part % 2 == 0 ? low : high;
                const int column = step * 16 + part / 2 * 8 + pair * 2;
                query[step][part] = row ? pack_bf16(row[column], row[column + 1]) : 0;
            }
        }
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0.0f;
        }
        max[0] = max[1] = LOWEST;
        sum[0] = sum[1] = 0.0f;
    }

    // Let the rows meet KEYS more keys, `first_key` the number of the first. Row [i] sees keys from[i] up
    // to below to[i]; `masked` is false where that is all of them. `scale` includes log2(e).
    //
    // Keys that a row does not see are exact no-ops: their score is -infinity, so the maximum stays,
    // everything that was is multiplied by 2^0 = 1, and 0 is added.
    template <int KEYS>
    __device__ inline void meet(const bf16* keys, const bf16* values, int first_key, const int (&from)[2],
                                const int (&to)[2], bool masked, float scale) {
        const int lane = threadIdx.x % WARP;
        const int pair = lane % 4;

        // Where this lane's row of the first ldmatrix begins; every other one is a constant away.
        const bf16* key_row = keys + (lane / 16 * 8 + lane % 8) * PADDED<DIM> + lane / 8 % 2 * 8;
        const bf16* value_row = values + lane % 16 * PADDED<DIM> + lane / 16 * 8;

        // scores = queries keys^T: every ldmatrix brings 16 keys x 16 dimensions.
        float score[KEYS / 8][4] = {};
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
#pragma unroll
            for (int n = 0; n < KEYS / 16; n++) {
                u32 b[4];
                ldmatrix_x4(b, key_row + n * 16 * PADDED<DIM> + step * 16);
                const u32 left[2] = {b[0], b[1]};
                const u32 right[2] = {b[2], b[3]};
                mma_bf16(score[2 * n], query[step], left);
                mma_bf16(score[2 * n + 1], query[step], right);
            }
        }
        if (masked) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int key = first_key + n * 8 + pair * 2 + e % 2;
                    if (key < from[e / 2] || key >= to[e / 2]) {
                        score[n][e] = minus_infinity();
                    }
                }
            }
        }

        // Online softmax (Milakov and Gimelshein 2018): what was summed so far was relative to the old
        // maximum; `shrink` makes it relative to the new one.
        float shrink[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float largest = minus_infinity();
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                largest = fmaxf(largest, fmaxf(score[n][2 * r], score[n][2 * r + 1]));
            }
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
            largest = fmaxf(max[r], largest * scale);
            shrink[r] = exp2_fast(max[r] - largest);
            max[r] = largest;
            float added = 0.0f;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    score[n][e] = exp2_fast(fmaf(score[n][e], scale, -largest));
                    added += score[n][e];
                }
            }
            sum[r] = fmaf(sum[r], shrink[r], added);
        }
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            out[n][0] *= shrink[0];
            out[n][1] *= shrink[0];
            out[n][2] *= shrink[1];
            out[n][3] *= shrink[1];
        }

        // out += weights values. The weights lie as the scores came out, and that is how mma_bf16 wants
        // its left side: two tiles of 8 columns side by side are one of 16.
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) {
            u32 weight[4];
#pragma unroll
            for (int part = 0; part < 4; part++) {
                const float* two = score[2 * step + part / 2] + part % 2 * 2;
                weight[part] = pack_bf16(two[0], two[1]);
            }
#pragma unroll
            for (int n = 0; n < DIM / 16; n++) {
                u32 b[4];
                ldmatrix_x4_transposed(b, value_row + step * 16 * PADDED<DIM> + n * 16);
                const u32 left[2] = {b[0], b[1]};
                const u32 right[2] = {b[2], b[3]};
                mma_bf16(out[2 * n], weight, left);
                mma_bf16(out[2 * n + 1], weight, right);
            }
        }
    }

    // The whole sum of row [r]: of all columns.
    __device__ inline float total(int r) const {
        float value = sum[r];
        value += __shfl_xor_sync(ALL_LANES, value, 1);
        return value + __shfl_xor_sync(ALL_LANES, value, 2);
    }
};
