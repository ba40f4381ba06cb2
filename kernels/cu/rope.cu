// Rotary position embedding: pairs of elements of queries and keys turned by an angle that grows with the
// position.
//
//   rope_angles   cos[t, i] = scaling * cos(position[t] * inv_freq[i])      and sin
//   rope          y[i]        = x[i]        cos[t, i] - x[i + half] sin[t, i]
//                 y[i + half] = x[i + half] cos[t, i] + x[i]        sin[t, i]       i < half
//
// with half = rotary_dim / 2; what lies behind rotary_dim in a head stays. Su et al., "RoFormer" (2021), in
// the pairing of GPT-NeoX. The angles are made once per step, for the queries and keys of every layer.
//
// A block is one token. Its threads form a table: threadIdx.x has four pairs of every head, threadIdx.y has
// some of the heads. A thread reads its four cosines and sines once and turns the same four pairs in one
// head after the other, TURNED of them at a time so that several loads are on their way.
//
//              pairs 0-3      4-7      8-11  ...
//   head 0    (x 0, y 0)  (x 1, y 0)  (x 2, y 0)
//   head 1    (x 0, y 1)  (x 1, y 1)  (x 2, y 1)
//
// Each product is rounded by itself (__fmul_rn): fused into one multiply-add, the two terms of a turn would
// be rounded differently, and a CPU that has no such instruction would get other bits.
//
// Bytes moved per element that turns: 4 read + 4 written; the angles are shared by all heads. Three
// operations: bound by bytes.
#include "quads.cuh"

// Heads whose elements a thread has in its registers at the same time.
constexpr int TURNED = 2;

// Four pairs by their angles: a are the first of each pair, b the second.
__device__ inline void turn(Quad<float>& a, Quad<float>& b, const Quad<float>& cos, const Quad<float>& sin) {
    // exercise l0.rope
    for (int j = 0; j < 4; j++) {
        const float first = a.at[j];
        const float second = b.at[j];
        a.at[j] = __fsub_rn(__fmul_rn(first, cos.at[j]), __fmul_rn(second, sin.at[j]));
        b.at[j] = __fadd_rn(__fmul_rn(second, cos.at[j]), __fmul_rn(first, sin.at[j]));
    }
    // end of exercise
}

// A token's heads.
template <bool whole>
__device__ inline void turn_token(float* x, const float* cos, const float* sin, int heads, int dim,
                                  int half) {
    for (int i = 4 * static_cast<int>(threadIdx.x); i < half; i += 4 * static_cast<int>(blockDim.x)) {
        const Quad<float> c = load_quad<whole>(cos, i, half);
        const Quad<float> s = load_quad<whole>(sin, i, half);
        for (int head = threadIdx.y; head < heads; head += TURNED * static_cast<int>(blockDim.y)) {
            float* at[TURNED];
            int pairs[TURNED];
            Quad<float> a[TURNED], b[TURNED];
            for (int n = 0; n < TURNED; n++) {
                const int mine = head + n * static_cast<int>(blockDim.y);
                at[n] = x + static_cast<i64>(mine) * dim;
                // Behind the last head there are none.
                pairs[n] = mine < heads ? half : 0;
                // exercise l0.rope
                a[n] = load_quad<whole>(at[n], i, pairs[n]);
                b[n] = load_quad<whole>(at[n] + half, i, pairs[n]);
                // end of exercise
            }
            for (int n = 0; n < TURNED; n++) {
                turn(a[n], b[n], c, s);
                store_quad<whole>(at[n], i, pairs[n], a[n]);
                store_quad<whole>(at[n] + half, i, pairs[n], b[n]);
            }
        }
    }
}

extern "C" __global__ void rope(float* x, const float* cos, const float* sin, int heads, int dim, int half,
                                long long stride, long long cos_stride, long long sin_stride, int whole) {
    wait_for_previous();
    const i64 token = blockIdx.x;
    x += token * stride;
    cos += token * cos_stride;
    sin += token * sin_stride;
    if (whole) {
        turn_token<true>(x, cos, sin, heads, dim, half);
    } else {
        turn_token<false>(x, cos, sin, heads, dim, half);
    }
}

// One thread for each angle. The product is rounded to f32 before its cosine is taken: a model was trained
// with that rounding, which at position 131071 is up to 0.004 radians. cosf and sinf are the exact ones,
// which bring such an angle into one turn with as many digits of pi as it takes; __cosf does not.
extern "C" __global__ void rope_angles(const int* positions, const float* inv_freq, float scaling, float* cos,
                                       float* sin, int tokens, int half, long long cos_stride,
                                       long long sin_stride) {
    wait_for_previous();
    const i64 at = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    const i64 token = at / half;
    const int i = static_cast<int>(at % half);
    if (token >= tokens) {
        return;
    }
    const float angle = __fmul_rn(static_cast<float>(positions[token]), inv_freq[i]);
    cos[token * cos_stride + i] = cosf(angle) * scaling;
    sin[token * sin_stride + i] = sinf(angle) * scaling;
}
