// What the matmul kernels share: reading eight bf16 at a time, and what becomes of a product.
#pragma once

#include "types.cuh"

// Eight bf16 of a row, `k` to `k + 7`, zeros from `width` on. One load of 16 bytes where rows begin at
// multiples of 16 bytes and `width` is a multiple of 8 (`vector`), else eight guarded ones.
__device__ inline uint4 eight(const bf16* row, int k, int width, bool vector) {
    uint4 out = {0, 0, 0, 0};
    if (vector) {
        if (k < width) {
            out = *reinterpret_cast<const uint4*>(row + k);
        }
        return out;
    }
    u32 half[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        half[i] = k + i < width ? row[k + i].bits : 0;
    }
    out.x = half[0] | half[1] << 16;
    out.y = half[2] | half[3] << 16;
    out.z = half[4] | half[5] << 16;
    out.w = half[6] | half[7] << 16;
    return out;
}

// Where a product goes: `out[t, n] = y` as f32 or bf16, or `out[t, n] += scale y` (f32), where y is the sum
// or, for a weight whose rows have factors, the sum times that of row n.
struct Output {
    void* at;
    i64 stride;
    int is_bf16;
    int add;
    float scale;
    const float* factors;

    // What becomes of the sum of row n of the weight. Rounded by itself: fused with an addition behind it,
    // it would depend on what follows (a bias, a residual) how a product is rounded.
    __device__ inline float of(int n, float sum) const {
        return factors == nullptr ? sum : __fmul_rn(sum, factors[n]);
    }

    __device__ inline void store(int t, int n, float y) const {
        const i64 i = t * stride + n;
        if (is_bf16) {
            static_cast<bf16*>(at)[i] = to_bf16(y);
            return;
        }
        float* out = static_cast<float*>(at);
        out[i] = add ? out[i] + scale * y : y;
    }

    // Whether two neighbours, the first of an even number, can be stored at once.
    __device__ inline bool pairs() const {
        const u64 size = is_bf16 ? 4 : 8;
        return stride % 2 == 0 && reinterpret_cast<u64>(at) % size == 0 && !add;
    }

    __device__ inline void store_pair(int t, int n, float first, float second) const {
        const i64 i = t * stride + n;
        if (is_bf16) {
            *reinterpret_cast<u32*>(static_cast<bf16*>(at) + i) = pack_halves(first, second);
        } else {
            *reinterpret_cast<float2*>(static_cast<float*>(at) + i) = float2{first, second};
        }
    }
};
