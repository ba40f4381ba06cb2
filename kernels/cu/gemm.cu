// Matmuls on the tensor cores: y[t, n] = sum over k of x[t, k] w[n, k], bf16 in, f32 sums.
//
// Each output is one sum, taken from the first k to the last by instructions of 16 columns each, into
// one accumulator that starts at 0. How many tokens there are, which tile an output falls into and what
// its neighbours are changes nothing about that sequence: a row's result has the same bits in any batch.
// (The usual faster libraries split K over blocks when there are few tokens, and so change the order.)
// That is why this kernel is the one for Arithmetic::BatchInvariant, at any number of tokens; else it
// stands in where cuBLASLt is missing.
//
// A tile of BM tokens by BN rows of w takes BK (BM + BN) elements a step and does BM BN BK
// multiplications with them: 64 for each element at 128 x 128, which is what makes the tensor cores
// rather than the memory the limit. There are three sizes, so that few tokens waste little and still
// make blocks enough for the device:
//
//     entry          tile        threads   for
//     gemm_narrow     16 x 32       64     decode steps: weights are read once, time is that of reading
//     gemm_medium     64 x 64      128     up to a few hundred tokens
//     gemm_large     128 x 128     256     prefill
//
// Steps are pipelined: while one is multiplied, the next STAGES - 1 are on their way from global to
// shared memory (copy_async), which no thread waits for until it needs them.
//
// Shared memory has 32 banks of 4 bytes, so 8 lanes that each read 16 bytes (ldmatrix) are served at
// once only if these lie in different eighths of 128 bytes. The rows of a stage are 64 or 128 bytes: the
// chunks of row r are exchanged by a pattern that depends on r (`place`), so that the same chunk of 8
// rows lies in 8 different eighths, without padding.
#include "linear.cuh"
#include "ptx.cuh"

struct Gemm {
    const bf16* x;
    i64 x_stride;
    int tokens;
    const bf16* w;
    i64 w_stride;
    int rows;
    int width;
    bool vector;  // both operands can be read 16 bytes at a time
};

// Where chunk c (8 elements) of row r lies in a stage, in elements.
template <int BK>
__device__ inline int place(int r, int c) {
    constexpr int CHUNKS = BK / 8;
    constexpr int ROWS_OF_128_BYTES = 8 / CHUNKS;
    return r * BK + 8 * (c ^ (r / ROWS_OF_128_BYTES) % CHUNKS);
}

// Bring columns k0 to k0 + BK of R rows from `first` on to shared memory; zeros outside of the matrix.
template <int R, int BK, int THREADS>
__device__ inline void bring(bf16* stage, const bf16* from, i64 stride, int first, int end, int k0, int width,
                             bool vector) {
    constexpr int CHUNKS = BK / 8;
    static_assert(R * CHUNKS % THREADS == 0, "every thread brings as many chunks");
#pragma unroll
    for (int i = threadIdx.x; i < R * CHUNKS; i += THREADS) {
        const int r = i / CHUNKS;
        const int c = i % CHUNKS;
        const int k = k0 + 8 * c;
        const bool inside = first + r < end && k < width;
        bf16* to = stage + place<BK>(r, c);
        if (vector) {
            copy_async_16(to, inside ? from + (first + r) * stride + k : from, inside);
        } else {
            const bf16* row = from + (inside ? first + r : 0) * stride;
            *reinterpret_cast<uint4*>(to) = eight(row, k, inside ? width : 0, false);
        }
    }
}

// A warp owns BM / WARPS_M tokens by BN / WARPS_N rows of w.
template <int BM, int BN, int BK, int WARPS_M, int WARPS_N, int STAGES>
__device__ inline void tile(const Gemm& g, const Output& out, unsigned char* shared) {
    constexpr int THREADS = WARPS_M * WARPS_N * WARP;
    constexpr int WM = BM / WARPS_M;
    constexpr int WN = BN / WARPS_N;
    constexpr int MS = WM / 16;  // of the instruction's 16 x 8 outputs: down
    constexpr int NS = WN / 8;   // and across
    constexpr int STAGE = (BM + BN) * BK;
    static_assert(NS % 2 == 0 && BK % 16 == 0, "two columns of outputs are loaded together");
    bf16* stages = reinterpret_cast<bf16*>(shared);

    // Blocks that run at the same time should want the same rows and columns, so that the second-level
    // cache serves all but the first: they go down 8 tiles of tokens before they go on to the next n.
    constexpr int BAND = 8;
    const int tiles_m = ceil_div(g.tokens, BM);
    const int tiles_n = ceil_div(g.rows, BN);
    const int of_band = blockIdx.x % (BAND * tiles_n);
    const int band = blockIdx.x / (BAND * tiles_n) * BAND;
    const int height = tiles_m - band < BAND ? tiles_m - band : BAND;
    const int m0 = (band + of_band % height) * BM;
    const int n0 = of_band / height * BN;

    const int lane = threadIdx.x % WARP;
    const int warp = threadIdx.x / WARP;
    const int wm = warp / WARPS_N * WM;
    const int wn = warp % WARPS_N * WN;

    const auto fetch = [&](int step) {
        bf16* stage = stages + step % STAGES * STAGE;
        bring<BM, BK, THREADS>(stage, g.x, g.x_stride, m0, g.tokens, step * BK, g.width, g.vector);
        bring<BN, BK, THREADS>(stage + BM * BK, g.w, g.w_stride, n0, g.rows, step * BK, g.width, g.vector);
    };

    float sum[MS][NS][4] = {};
    const int steps = ceil_div(g.width, BK);
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) {
            fetch(step);
        }
        copy_async_commit();
    }
    for (int step = 0; step < steps; step++) {
        // Of the groups committed so far all but the last STAGES - 2 must be there: this step's is. The
        // barrier makes the other threads' copies visible, and says that all have done the step before,
        // whose stage is filled anew.
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) {
            fetch(step + STAGES - 1);
        }
        copy_async_commit();
        const bf16* xs = stages + step % STAGES * STAGE;
        const bf16* ws = xs + BM * BK;
#pragma unroll
        for (int k = 0; k < BK / 8; k += 2) {
            u32 a[MS][4];
            u32 b[NS / 2][4];
#pragma unroll
            for (int i = 0; i < MS; i++) {
                // Matrices: upper and lower rows of the left 8 columns, then of the right.
                ldmatrix_x4(a[i], xs + place<BK>(wm + 16 * i + lane % 16, k + lane / 16));
            }
#pragma unroll
            for (int j = 0; j < NS / 2; j++) {
                // Matrices: left and right columns of 8 rows of w, then of the next 8.
                const int r = wn + 16 * j + lane / 16 * 8 + lane % 8;
                ldmatrix_x4(b[j], ws + place<BK>(r, k + lane / 8 % 2));
            }
#pragma unroll
            for (int i = 0; i < MS; i++) {
#pragma unroll
                for (int j = 0; j < NS; j++) {
                    const u32 right[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
                    mma_bf16(sum[i][j], a[i], right);
                }
            }
        }
    }
    copy_async_wait<0>();

    const bool pairs = out.pairs();
#pragma unroll
    for (int i = 0; i < MS; i++) {
#pragma unroll
        for (int j = 0; j < NS; j++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int t = m0 + wm + 16 * i + lane / 4 + 8 * half;
                const int n = n0 + wn + 8 * j + lane % 4 * 2;
                if (t >= g.tokens || n >= g.rows) {
                    continue;
                }
                const float left = out.of(n, sum[i][j][2 * half]);
                if (n + 1 >= g.rows) {
                    out.store(t, n, left);
                    continue;
                }
                const float right = out.of(n + 1, sum[i][j][2 * half + 1]);
                if (pairs) {
                    out.store_pair(t, n, left, right);
                } else {
                    out.store(t, n, left);
                    out.store(t, n + 1, right);
                }
            }
        }
    }
}

// Grid: one block for each tile. Dynamic shared memory: 6 stages of 6 KiB.
extern "C" __global__ void gemm_narrow(const bf16* x, i64 x_stride, int tokens, const bf16* w, i64 w_stride,
                                       int rows, int width, int vector, void* out, i64 out_stride,
                                       int is_bf16, int add, float scale, const float* factors) {
    wait_for_previous();
    extern __shared__ STRATA_ALIGNED(16) unsigned char dynamic_shared[];
    const Gemm g = {x, x_stride, tokens, w, w_stride, rows, width, vector != 0};
    tile<16, 32, 64, 1, 2, 6>(g, Output{out, out_stride, is_bf16, add, scale, factors}, dynamic_shared);
}

// 4 stages of 8 KiB.
extern "C" __global__ void gemm_medium(const bf16* x, i64 x_stride, int tokens, const bf16* w, i64 w_stride,
                                       int rows, int width, int vector, void* out, i64 out_stride,
                                       int is_bf16, int add, float scale, const float* factors) {
    wait_for_previous();
    extern __shared__ STRATA_ALIGNED(16) unsigned char dynamic_shared[];
    const Gemm g = {x, x_stride, tokens, w, w_stride, rows, width, vector != 0};
    tile<64, 64, 32, 2, 2, 4>(g, Output{out, out_stride, is_bf16, add, scale, factors}, dynamic_shared);
}

// 4 stages of 16 KiB.
extern "C" __global__ void gemm_large(const bf16* x, i64 x_stride, int tokens, const bf16* w, i64 w_stride,
                                      int rows, int width, int vector, void* out, i64 out_stride, int is_bf16,
                                      int add, float scale, const float* factors) {
    wait_for_previous();
    extern __shared__ STRATA_ALIGNED(16) unsigned char dynamic_shared[];
    const Gemm g = {x, x_stride, tokens, w, w_stride, rows, width, vector != 0};
    tile<128, 128, 32, 2, 4, 4>(g, Output{out, out_stride, is_bf16, add, scale, factors}, dynamic_shared);
}

constexpr int SIDE = 64;
constexpr int DEPTH = 16;

// f32 activations, which tensor cores would round: on the ordinary lanes, for comparing with other
// implementations. A block of 16 x 16 threads owns 64 tokens by 64 rows of w, a thread 4 x 4 of them, 16
// apart, so that neighbours read neighbouring words. Sums run from the first k to the last, here too.
extern "C" __global__ void gemm_f32(const float* x, i64 x_stride, int tokens, const bf16* w, i64 w_stride,
                                    int rows, int width, void* out, i64 out_stride, int is_bf16, int add,
                                    float scale, const float* factors) {
    wait_for_previous();
    __shared__ float xs[DEPTH][SIDE + 1];
    __shared__ float ws[DEPTH][SIDE + 1];
    const Output to = {out, out_stride, is_bf16, add, scale, factors};
    const int n0 = blockIdx.x * SIDE;
    const int m0 = blockIdx.y * SIDE;
    const int across = threadIdx.x % 16;
    const int down = threadIdx.x / 16;
    float sum[4][4] = {};
    for (int k0 = 0; k0 < width; k0 += DEPTH) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = down + 16 * i;
            const int k = k0 + across;
            const bool inside = k < width;
            xs[across][r] = inside && m0 + r < tokens ? x[(m0 + r) * x_stride + k] : 0.0f;
            ws[across][r] = inside && n0 + r < rows ? to_f32(w[(n0 + r) * w_stride + k]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    sum[i][j] += xs[k][down + 16 * i] * ws[k][across + 16 * j];
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int t = m0 + down + 16 * i;
            const int n = n0 + across + 16 * j;
            if (t < tokens && n < rows) {
                to.store(t, n, to.of(n, sum[i][j]));
            }
        }
    }
}
