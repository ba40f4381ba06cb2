// Normalisation of rows: every row divided by its own size, then weighted column by column.
//
//   rms_norm     out = x / sqrt(mean(x^2) + eps) * weight
//   layer_norm   out = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias
//
// A row has to be seen twice: first to add up its squares, then to be scaled. Reading it twice would
// cost half as much again, so it stays in registers between the two passes: a row belongs to blockDim.x
// threads, and each keeps a few quads of it. Thread i has quads i, i + blockDim.x, ...
//
//   row:       |q0|q1|q2|q3|q4|q5|q6|q7|...      4 threads
//   thread:     0  1  2  3  0  1  2  3
//
// Each thread adds up what it holds, then the threads add up their sums (row_reduce in reduce.cuh), and
// each scales what it still holds. How many threads a row gets depends on its width alone. So does the
// order of its sum, and with it every bit of the result: it is the same alone and in any batch.
//
//   width           threads of a row     why
//   a head's, 128   1 to 32, 2^n         several rows share a warp, and none waits at a barrier
//   up to 16384     width / 16           in whole warps. A block is one row; while it adds up, the other
//                                        blocks of its multiprocessor keep the memory busy
//   beyond          1024                 what is not held is read again, from a cache if there is room
//
// Bytes moved per element: rms_norm 4 read + 2 or 4 written; add_rms_norm, which adds x to the residual
// stream on the way, 8 read + 4 + (2 or 4) written. Apart, addition and norm would move 12 + 6: the fused
// one saves a fifth, and a launch. The weight is the same for all rows and comes from the cache. About
// four operations an element: bound by bytes.
#include "quads.cuh"
#include "reduce.cuh"

// Quads of a long row that a thread keeps, and of a head, which is short. What it keeps does not show in
// the sums: a thread takes its quads in the same order, from wherever they come.
constexpr int HELD = 4;
constexpr int HELD_OF_A_HEAD = 1;

// Which row this thread works on. The last block may have threads without a row: they take part in its
// barriers with a row of width 0.
struct Mine {
    i64 row;
    int width;

    static __device__ inline Mine of(int rows, int width) {
        const i64 row = static_cast<i64>(blockIdx.x) * blockDim.y + threadIdx.y;
        return row < rows ? Mine{row, width} : Mine{0, 0};
    }
};

// Where this thread's k-th quad begins in its row.
__device__ inline int quad_of(int k) {
    return 4 * static_cast<int>(threadIdx.x + k * blockDim.x);
}

__device__ inline float add_squares(float sum, const Quad<float>& x) {
    // exercise l0.rms_norm
    for (int j = 0; j < 4; j++) {
        sum = fmaf(x.at[j], x.at[j], sum);
    }
    // end of exercise
    return sum;
}

// What a row is multiplied by, from this thread's part of its sum of squares.
__device__ inline float rms_scale(float squares, int width, float eps) {
    __shared__ float partial[WARP];
    // exercise l0.rms_norm
    squares = row_reduce<Sum>(squares, partial);
    return 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
    // end of exercise
}

__device__ inline Quad<float> added(Quad<float> x, const Quad<float>& y) {
    for (int j = 0; j < 4; j++) {
        x.at[j] += y.at[j];
    }
    return x;
}

// A quad of the result.
template <class O>
__device__ inline Quad<O> scaled(const Quad<float>& x, float scale, const Quad<float>& weight) {
    Quad<O> out;
    // exercise l0.rms_norm
    for (int j = 0; j < 4; j++) {
        assign(out.at[j], x.at[j] * scale * weight.at[j]);
    }
    // end of exercise
    return out;
}

// The first `width` elements of x to out. In place if they are the same: a thread writes only where it
// alone has read.
template <bool whole, int held, class O>
__device__ inline void rms_norm_row(const float* x, const float* weight, O* out, int width, float eps) {
    Quad<float> kept[held], weights[held];
    for (int k = 0; k < held; k++) {
        kept[k] = load_quad<whole>(x, quad_of(k), width);
        weights[k] = load_quad<whole>(weight, quad_of(k), width);
    }
    float squares = 0.0f;
    for (int k = 0; k < held; k++) {
        squares = add_squares(squares, kept[k]);
    }
    for (int k = held; quad_of(k) < width; k++) {
        squares = add_squares(squares, load_quad<whole>(x, quad_of(k), width));
    }

    const float scale = rms_scale(squares, width, eps);

    for (int k = 0; k < held; k++) {
        store_quad<whole>(out, quad_of(k), width, scaled<O>(kept[k], scale, weights[k]));
    }
    for (int k = held; quad_of(k) < width; k++) {
        const Quad<float> again = load_quad<whole>(x, quad_of(k), width);
        const Quad<float> w = load_quad<whole>(weight, quad_of(k), width);
        store_quad<whole>(out, quad_of(k), width, scaled<O>(again, scale, w));
    }
}

template <int held, class O>
__device__ inline void rms_norm(const float* x, const float* weight, O* out, int width, float eps,
                                int whole) {
    if (whole) {
        rms_norm_row<true, held>(x, weight, out, width, eps);
    } else {
        rms_norm_row<false, 1>(x, weight, out, width, eps);
    }
}

extern "C" __global__ void rms_norm_f32(const float* x, const float* weight, float* out, int rows, int width,
                                        long long x_stride, long long out_stride, float eps, int whole) {
    wait_for_previous();
    const Mine mine = Mine::of(rows, width);
    rms_norm<HELD>(x + mine.row * x_stride, weight, out + mine.row * out_stride, mine.width, eps, whole);
}

extern "C" __global__ void rms_norm_bf16(const float* x, const float* weight, bf16* out, int rows, int width,
                                         long long x_stride, long long out_stride, float eps, int whole) {
    wait_for_previous();
    const Mine mine = Mine::of(rows, width);
    rms_norm<HELD>(x + mine.row * x_stride, weight, out + mine.row * out_stride, mine.width, eps, whole);
}

// In place, a row being one of a token's heads: the query and key norms of Qwen3, inside of a packed row
// of queries, keys and values.
extern "C" __global__ void rms_norm_heads(float* x, const float* weight, int tokens, int heads, int dim,
                                          long long stride, float eps, int whole) {
    wait_for_previous();
    const Mine mine = Mine::of(tokens * heads, dim);
    float* head = x + mine.row / heads * stride + mine.row % heads * dim;
    rms_norm<HELD_OF_A_HEAD>(head, weight, head, mine.width, eps, whole);
}

// residual += x on the way; then as above, the sum staying in registers.
template <bool whole, int held, class O>
__device__ inline void add_rms_norm_row(float* residual, const float* x, const float* weight, O* out,
                                        int width, float eps) {
    Quad<float> kept[held], addends[held];
    for (int k = 0; k < held; k++) {
        kept[k] = load_quad<whole>(residual, quad_of(k), width);
        addends[k] = load_quad<whole>(x, quad_of(k), width);
    }
    float squares = 0.0f;
    for (int k = 0; k < held; k++) {
        kept[k] = added(kept[k], addends[k]);
        store_quad<whole>(residual, quad_of(k), width, kept[k]);
        squares = add_squares(squares, kept[k]);
    }
    for (int k = held; quad_of(k) < width; k++) {
        const Quad<float> addend = load_quad<whole>(x, quad_of(k), width);
        const Quad<float> sum = added(load_quad<whole>(residual, quad_of(k), width), addend);
        store_quad<whole>(residual, quad_of(k), width, sum);
        squares = add_squares(squares, sum);
    }
    Quad<float> weights[held];
    for (int k = 0; k < held; k++) {
        weights[k] = load_quad<whole>(weight, quad_of(k), width);
    }

    const float scale = rms_scale(squares, width, eps);

    for (int k = 0; k < held; k++) {
        store_quad<whole>(out, quad_of(k), width, scaled<O>(kept[k], scale, weights[k]));
    }
    for (int k = held; quad_of(k) < width; k++) {
        const Quad<float> again = load_quad<whole>(residual, quad_of(k), width);
        const Quad<float> w = load_quad<whole>(weight, quad_of(k), width);
        store_quad<whole>(out, quad_of(k), width, scaled<O>(again, scale, w));
    }
}

template <class O>
__device__ inline void add_rms_norm(float* residual, const float* x, const float* weight, O* out, int width,
                                    float eps, int whole) {
    if (whole) {
        add_rms_norm_row<true, HELD>(residual, x, weight, out, width, eps);
    } else {
        add_rms_norm_row<false, 1>(residual, x, weight, out, width, eps);
    }
}

extern "C" __global__ void add_rms_norm_f32(float* residual, const float* x, const float* weight, float* out,
                                            int rows, int width, long long residual_stride,
                                            long long x_stride, long long out_stride, float eps, int whole) {
    wait_for_previous();
    const Mine mine = Mine::of(rows, width);
    add_rms_norm(residual + mine.row * residual_stride, x + mine.row * x_stride, weight,
                 out + mine.row * out_stride, mine.width, eps, whole);
}

extern "C" __global__ void add_rms_norm_bf16(float* residual, const float* x, const float* weight, bf16* out,
                                             int rows, int width, long long residual_stride,
                                             long long x_stride, long long out_stride, float eps, int whole) {
    wait_for_previous();
    const Mine mine = Mine::of(rows, width);
    add_rms_norm(residual + mine.row * residual_stride, x + mine.row * x_stride, weight,
                 out + mine.row * out_stride, mine.width, eps, whole);
}

// Layer norm takes three passes: the mean, what deviates from it, the result. As mean(x^2) - mean^2, in two
// passes, the deviations of a row far from zero would be lost in the rounding of its squares.
__device__ inline float add_elements(float sum, const Quad<float>& x) {
    for (int j = 0; j < 4; j++) {
        sum += x.at[j];
    }
    return sum;
}

// What lies beyond the row is no deviation, though load_quad gave 0 for it.
__device__ inline float add_deviations(float sum, const Quad<float>& x, float mean, int i, int width) {
    for (int j = 0; j < 4; j++) {
        const float deviation = i + j < width ? x.at[j] - mean : 0.0f;
        sum = fmaf(deviation, deviation, sum);
    }
    return sum;
}

template <class O>
__device__ inline Quad<O> standardised(const Quad<float>& x, float mean, float scale,
                                       const Quad<float>& weight, const Quad<float>& bias) {
    Quad<O> out;
    for (int j = 0; j < 4; j++) {
        assign(out.at[j], fmaf((x.at[j] - mean) * scale, weight.at[j], bias.at[j]));
    }
    return out;
}

// `bias` may be null: then its width is 0, and its elements are read as zeros.
template <bool whole, int held, class O>
__device__ inline void layer_norm_row(const float* x, const float* weight, const float* bias, O* out,
                                      int width, float eps) {
    __shared__ float partial[WARP];
    const int biased = bias != nullptr ? width : 0;
    Quad<float> kept[held];
    for (int k = 0; k < held; k++) {
        kept[k] = load_quad<whole>(x, quad_of(k), width);
    }
    float sum = 0.0f;
    for (int k = 0; k < held; k++) {
        sum = add_elements(sum, kept[k]);
    }
    for (int k = held; quad_of(k) < width; k++) {
        sum = add_elements(sum, load_quad<whole>(x, quad_of(k), width));
    }
    const float mean = row_reduce<Sum>(sum, partial) / static_cast<float>(width);

    float squares = 0.0f;
    for (int k = 0; k < held; k++) {
        squares = add_deviations(squares, kept[k], mean, quad_of(k), width);
    }
    for (int k = held; quad_of(k) < width; k++) {
        squares = add_deviations(squares, load_quad<whole>(x, quad_of(k), width), mean, quad_of(k), width);
    }
    const float scale = rms_scale(squares, width, eps);

    for (int k = 0; k < held; k++) {
        const Quad<float> w = load_quad<whole>(weight, quad_of(k), width);
        const Quad<float> b = load_quad<whole>(bias, quad_of(k), biased);
        store_quad<whole>(out, quad_of(k), width, standardised<O>(kept[k], mean, scale, w, b));
    }
    for (int k = held; quad_of(k) < width; k++) {
        const Quad<float> again = load_quad<whole>(x, quad_of(k), width);
        const Quad<float> w = load_quad<whole>(weight, quad_of(k), width);
        const Quad<float> b = load_quad<whole>(bias, quad_of(k), biased);
        store_quad<whole>(out, quad_of(k), width, standardised<O>(again, mean, scale, w, b));
    }
}

template <class O>
__device__ inline void layer_norm(const float* x, const float* weight, const float* bias, O* out, int width,
                                  float eps, int whole) {
    if (whole) {
        layer_norm_row<true, HELD>(x, weight, bias, out, width, eps);
    } else {
        layer_norm_row<false, 1>(x, weight, bias, out, width, eps);
    }
}

extern "C" __global__ void layer_norm_f32(const float* x, const float* weight, const float* bias, float* out,
                                          int rows, int width, long long x_stride, long long out_stride,
                                          float eps, int whole) {
    wait_for_previous();
    const Mine mine = Mine::of(rows, width);
    layer_norm(x + mine.row * x_stride, weight, bias, out + mine.row * out_stride, mine.width, eps, whole);
}

extern "C" __global__ void layer_norm_bf16(const float* x, const float* weight, const float* bias, bf16* out,
                                           int rows, int width, long long x_stride, long long out_stride,
                                           float eps, int whole) {
    wait_for_previous();
    const Mine mine = Mine::of(rows, width);
    layer_norm(x + mine.row * x_stride, weight, bias, out + mine.row * out_stride, mine.width, eps, whole);
}
