// Keys and values in blocks: storing those of a step, copying blocks.
//
//   kv_write      cache[slots[t]] = row t of the step, keys and values alike
//   copy_blocks   cache[to] = cache[from], for every pair (from, to)
//
// The cache is [blocks, block_size, heads, dim], keys and values apart. A slot is one token's place in it,
// block * block_size + offset, so the cache is also [slots, heads * dim]: a token's heads lie behind each
// other, and writing a token is copying one row of `width` = heads * dim. A bf16 cache takes each f32 rounded
// to nearest even.
//
// A slot of -1 belongs to a row that only fills up a batch: a captured step always has its full number of
// rows. Such a row must store nothing at all. There is no place in the cache for it: slot 0 is somebody's.
//
// In kv_write a thread owns one quad of a token's keys and the same quad of its values, a block
// blockDim.x of them, side by side. Two loads of 16 bytes from each of 2048 threads are 64 KB on their way
// in a multiprocessor, enough (see quads.cuh).
//
// Bytes moved per element: kv_write 4 read + 2 (bf16) or 4 written, of keys and of values each; copy_blocks
// the cache's element read and written. No arithmetic: bound by bytes.
#include "quads.cuh"

template <bool whole, class C>
__device__ inline void write_quad(const float* k, const float* v, C* keys, C* values, int i, int width) {
    // exercise l0.kv_write
    const Quad<float> key = load_quad<whole>(k, i, width);
    const Quad<float> value = load_quad<whole>(v, i, width);
    store_quad<whole>(keys, i, width, convert_quad<C>(key));
    store_quad<whole>(values, i, width, convert_quad<C>(value));
    // end of exercise
}

// `tiles` blocks have a token's row between them. The cache has `places` slots.
template <class C>
__device__ inline void kv_write(const float* k, const float* v, const i64* slots, C* keys, C* values,
                                i64 places, int tiles, int width, i64 k_stride, i64 v_stride, int whole) {
    const i64 token = blockIdx.x / tiles;
    const int i = 4 * static_cast<int>(blockIdx.x % tiles * blockDim.x + threadIdx.x);
    // exercise l0.kv_write
    const i64 slot = slots[token];
    if (slot < 0 || slot >= places) {
        return;
    }
    k += token * k_stride;
    v += token * v_stride;
    keys += slot * width;
    values += slot * width;
    // end of exercise
    if (whole) {
        write_quad<true>(k, v, keys, values, i, width);
    } else {
        write_quad<false>(k, v, keys, values, i, width);
    }
}

extern "C" __global__ void kv_write_f32(const float* k, const float* v, const long long* slots, float* keys,
                                        float* values, long long places, int tiles, int width,
                                        long long k_stride, long long v_stride, int whole) {
    wait_for_previous();
    kv_write(k, v, slots, keys, values, places, tiles, width, k_stride, v_stride, whole);
}

extern "C" __global__ void kv_write_bf16(const float* k, const float* v, const long long* slots, bf16* keys,
                                         bf16* values, long long places, int tiles, int width,
                                         long long k_stride, long long v_stride, int whole) {
    wait_for_previous();
    kv_write(k, v, slots, keys, values, places, tiles, width, k_stride, v_stride, whole);
}

// A cache block is one row of `elements`, whose tiles are copied as bits. The grid's y is 0 for the keys and
// 1 for the values. A pair with a number that is no block's is left out.
template <class T>
__device__ inline void copy_block(T* keys, T* values, const int* pairs, int blocks, int tiles, i64 elements,
                                  int whole) {
    const Tile tile = Tile::mine(tiles);
    const int from = pairs[2 * tile.row];
    const int to = pairs[2 * tile.row + 1];
    if (from < 0 || from >= blocks || to < 0 || to >= blocks) {
        return;
    }
    T* cache = blockIdx.y == 0 ? keys : values;
    copy_tile(cache + from * elements, elements, cache + to * elements, elements, tile, whole);
}

extern "C" __global__ void copy_blocks_f32(u32* keys, u32* values, const int* pairs, int blocks, int tiles,
                                           long long elements, int whole) {
    wait_for_previous();
    copy_block(keys, values, pairs, blocks, tiles, elements, whole);
}

extern "C" __global__ void copy_blocks_bf16(u16* keys, u16* values, const int* pairs, int blocks, int tiles,
                                            long long elements, int whole) {
    wait_for_previous();
    copy_block(keys, values, pairs, blocks, tiles, elements, whole);
}
