// Weights in NVFP4 expanded: for matmuls of many tokens, and rows of an embedding.
//
// With many tokens a weight is used so often that decoding it for each tile of tokens would cost more than
// reading it. So some rows are expanded to bf16 once, into memory that the matmul then reads as any other
// weight: 0.56 bytes read and 2 written, beside 2 T multiplications and additions.
#include "nvfp4.cuh"

// out[r, k] = w[r, k], bf16, rows behind each other. A thread has eight columns of a row; rows times width is
// at most 2^31. Grid: ceil(rows width / 8 / 256) blocks of 256 threads.
extern "C" __global__ void dequantize_nvfp4(const unsigned char* w, int rows, int width, bf16* out) {
    wait_for_previous();
    const Nvfp4 from = {w, rows, width};
    const int words = width / 8;  // whole ones: rows are multiples of 16
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * words) {
        return;
    }
    store_16(out + 8 * static_cast<i64>(i), from.eight(i / words, i % words));
}

// out[t, :] = w[ids[t], :], f32. A number beyond the rows gives zeros. A thread has eight columns of a row.
// Grid: `tiles` blocks of 128 threads for each token.
extern "C" __global__ void embedding_nvfp4(const unsigned char* w, const u32* ids, float* out, int rows,
                                           int width, int tiles, i64 out_stride) {
    wait_for_previous();
    const Nvfp4 from = {w, rows, width};
    const int t = blockIdx.x / tiles;
    const int i = blockIdx.x % tiles * blockDim.x + threadIdx.x;
    if (i >= width / 8) {
        return;
    }
    const u32 id = ids[t];
    uint4 weights = {0, 0, 0, 0};
    if (id < static_cast<u32>(rows)) {
        weights = from.eight(static_cast<int>(id), i);
    }
    float* to = out + t * out_stride + 8 * i;
    const u32 words[4] = {weights.x, weights.y, weights.z, weights.w};
    for (int j = 0; j < 4; j++) {
        to[2 * j] = low_half(words[j]);
        to[2 * j + 1] = high_half(words[j]);
    }
}

// out[t, :] *= factors[ids[t]], where there is such a row. Grid: `tiles` blocks of 256 threads for each token.
extern "C" __global__ void scale_rows(const float* factors, const u32* ids, float* out, int rows, int width,
                                      int tiles, i64 out_stride) {
    wait_for_previous();
    const int t = blockIdx.x / tiles;
    const int i = blockIdx.x % tiles * blockDim.x + threadIdx.x;
    const u32 id = ids[t];
    if (i < width && id < static_cast<u32>(rows)) {
        out[t * out_stride + i] *= factors[id];
    }
}
