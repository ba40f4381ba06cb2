// One element after the other: sums, multiples, biases and changes of type.
//
//   add_in_place     x[r, c] += y[r, c]
//   scale_in_place   x[r, c] *= by
//   add_bias         x[r, c] += bias[c]
//   convert          out[r, c] = x[r, c], rounded to nearest even where bf16 takes an f32
//
// A block owns a tile of 4 * EACH * blockDim.x neighbours in one row, a thread EACH quads of it (see
// quads.cuh). Matrices without gaps between their rows come as one long row.
//
// Bytes moved per element: 12 to add (two read, one written), 8 to scale, 8 and a bias that stays in the
// cache, 6 from f32 to bf16 or back. One or two operations for each of them, on a device that does 50 in
// the time of moving 8 bytes: only the bytes count.
#include "quads.cuh"

__device__ inline void add_tile(float* x, const float* y, i64 width, Tile tile, int whole) {
    if (whole) {
        Quad<float> sums[EACH], addends[EACH];
        for (int k = 0; k < EACH; k++) {
            sums[k] = load_quad<true>(x, tile.quad(k), width);
            addends[k] = load_quad<true>(y, tile.quad(k), width);
        }
        for (int k = 0; k < EACH; k++) {
            for (int j = 0; j < 4; j++) {
                sums[k].at[j] += addends[k].at[j];
            }
            store_quad<true>(x, tile.quad(k), width, sums[k]);
        }
    } else {
        for (i64 i = tile.begin(); i < tile.end(width); i += blockDim.x) {
            x[i] += y[i];
        }
    }
}

extern "C" __global__ void add_in_place(float* x, const float* y, int tiles, long long width,
                                        long long x_stride, long long y_stride, int whole) {
    wait_for_previous();
    const Tile tile = Tile::mine(tiles);
    add_tile(x + tile.row * x_stride, y + tile.row * y_stride, width, tile, whole);
}

// A bias is a row that is added to every row.
extern "C" __global__ void add_bias(float* x, const float* bias, int tiles, long long width,
                                    long long x_stride, int whole) {
    wait_for_previous();
    const Tile tile = Tile::mine(tiles);
    add_tile(x + tile.row * x_stride, bias, width, tile, whole);
}

extern "C" __global__ void scale_in_place(float* x, float by, int tiles, long long width,
                                          long long x_stride, int whole) {
    wait_for_previous();
    const Tile tile = Tile::mine(tiles);
    float* row = x + tile.row * x_stride;
    if (whole) {
        Quad<float> quads[EACH];
        for (int k = 0; k < EACH; k++) {
            quads[k] = load_quad<true>(row, tile.quad(k), width);
        }
        for (int k = 0; k < EACH; k++) {
            for (int j = 0; j < 4; j++) {
                quads[k].at[j] *= by;
            }
            store_quad<true>(row, tile.quad(k), width, quads[k]);
        }
    } else {
        for (i64 i = tile.begin(); i < tile.end(width); i += blockDim.x) {
            row[i] *= by;
        }
    }
}

template <class From, class To>
__device__ inline void convert(const From* x, To* out, int tiles, i64 width, i64 x_stride,
                               i64 out_stride, int whole) {
    const Tile tile = Tile::mine(tiles);
    copy_tile(x + tile.row * x_stride, width, out + tile.row * out_stride, width, tile, whole);
}

extern "C" __global__ void convert_f32_bf16(const float* x, bf16* out, int tiles, long long width,
                                            long long x_stride, long long out_stride, int whole) {
    wait_for_previous();
    convert(x, out, tiles, width, x_stride, out_stride, whole);
}

extern "C" __global__ void convert_bf16_f32(const bf16* x, float* out, int tiles, long long width,
                                            long long x_stride, long long out_stride, int whole) {
    wait_for_previous();
    convert(x, out, tiles, width, x_stride, out_stride, whole);
}

// From a type to itself: a copy of bits that may close or open gaps between rows.
extern "C" __global__ void convert_f32_f32(const u32* x, u32* out, int tiles, long long width,
                                           long long x_stride, long long out_stride, int whole) {
    wait_for_previous();
    convert(x, out, tiles, width, x_stride, out_stride, whole);
}

extern "C" __global__ void convert_bf16_bf16(const u16* x, u16* out, int tiles, long long width,
                                             long long x_stride, long long out_stride, int whole) {
    wait_for_previous();
    convert(x, out, tiles, width, x_stride, out_stride, whole);
}
