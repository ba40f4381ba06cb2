// Gated activations: the middle of a transformer's MLP.
//
//   out[t, i] = activation(gate_up[t, i]) * gate_up[t, I + i]
//
//   silu        x / (1 + e^-x)
//   gelu_tanh   x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3), as (1 + tanh u) / 2 = 1 / (1 + e^-2u):
//               one exponential, and no digits cancel where x is far below zero
//   gelu_erf    x Phi(x), Phi(x) = erfc(-x / sqrt 2) / 2, which keeps its digits there too
//
// One matmul gives gates and ups together, so a row has I gates and then I ups. A block owns a tile of one
// row of the output, a thread EACH quads of it (see quads.cuh), and reads each quad's gates and ups: eight
// loads on their way before the first exponential.
//
// Bytes moved per element of the output: 8 read + 2 (bf16) or 4 written. Exponential and division are 20 to
// 30 instructions; in the time of moving 10 bytes an H200 does about 60. Bound by bytes, but not by far.
#include "quads.cuh"

struct Silu {
    static __device__ inline float of(float x) {
        return x / (1.0f + expf(-x));
    }
};

struct GeluTanh {
    static __device__ inline float of(float x) {
        const float u = 0.797884561f * fmaf(x * x * x, 0.044715f, x);
        return x / (1.0f + expf(-2.0f * u));
    }
};

struct GeluErf {
    static __device__ inline float of(float x) {
        return 0.5f * x * erfcf(-0.707106781f * x);
    }
};

template <class Activation, class O>
__device__ inline void gated(const float* gate_up, O* out, int tiles, i64 width, i64 stride, i64 out_stride,
                             int whole) {
    const Tile tile = Tile::mine(tiles);
    const float* gate = gate_up + tile.row * stride;
    const float* up = gate + width;
    out += tile.row * out_stride;
    if (whole) {
        Quad<float> gates[EACH], ups[EACH];
        for (int k = 0; k < EACH; k++) {
            gates[k] = load_quad<true>(gate, tile.quad(k), width);
            ups[k] = load_quad<true>(up, tile.quad(k), width);
        }
        for (int k = 0; k < EACH; k++) {
            Quad<O> quad;
            for (int j = 0; j < 4; j++) {
                assign(quad.at[j], Activation::of(gates[k].at[j]) * ups[k].at[j]);
            }
            store_quad<true>(out, tile.quad(k), width, quad);
        }
    } else {
        for (i64 i = tile.begin(); i < tile.end(width); i += blockDim.x) {
            assign(out[i], Activation::of(gate[i]) * up[i]);
        }
    }
}

extern "C" __global__ void silu_f32(const float* gate_up, float* out, int tiles, long long width,
                                    long long stride, long long out_stride, int whole) {
    wait_for_previous();
    gated<Silu>(gate_up, out, tiles, width, stride, out_stride, whole);
}

extern "C" __global__ void silu_bf16(const float* gate_up, bf16* out, int tiles, long long width,
                                     long long stride, long long out_stride, int whole) {
    wait_for_previous();
    gated<Silu>(gate_up, out, tiles, width, stride, out_stride, whole);
}

extern "C" __global__ void gelu_tanh_f32(const float* gate_up, float* out, int tiles, long long width,
                                         long long stride, long long out_stride, int whole) {
    wait_for_previous();
    gated<GeluTanh>(gate_up, out, tiles, width, stride, out_stride, whole);
}

extern "C" __global__ void gelu_tanh_bf16(const float* gate_up, bf16* out, int tiles, long long width,
                                          long long stride, long long out_stride, int whole) {
    wait_for_previous();
    gated<GeluTanh>(gate_up, out, tiles, width, stride, out_stride, whole);
}

extern "C" __global__ void gelu_erf_f32(const float* gate_up, float* out, int tiles, long long width,
                                        long long stride, long long out_stride, int whole) {
    wait_for_previous();
    gated<GeluErf>(gate_up, out, tiles, width, stride, out_stride, whole);
}

extern "C" __global__ void gelu_erf_bf16(const float* gate_up, bf16* out, int tiles, long long width,
                                         long long stride, long long out_stride, int whole) {
    wait_for_previous();
    gated<GeluErf>(gate_up, out, tiles, width, stride, out_stride, whole);
}
