// Rows by their numbers: tokens to embeddings, and the rows of a batch whose logits are wanted.
//
//   embedding      out[t, :] = weight[ids[t], :]     bf16 to f32
//   gather_rows    out[i, :] = x[rows[i], :]         types as they are
//
// A number beyond the table gives a row of zeros, so a padded place needs no row of its own.
//
// A block owns a tile of one row of the output, a thread EACH quads of it (see quads.cuh). All threads
// of a block read the same number, which is one transaction for each warp. Rows are far apart in
// memory, but each is long: 1024 elements of bf16 are 2 KB, many times the 32 bytes that memory
// hands out at once, so nothing is lost by jumping.
//
// Bytes moved per element: 2 + 4 for the embedding, 4 + 4 or 2 + 2 for a gather. No arithmetic.
#include "quads.cuh"

template <class From, class To>
__device__ inline void pick(const From* table, const u32* numbers, To* out, int count, int tiles,
                            i64 width, i64 stride, i64 out_stride, int whole) {
    const Tile tile = Tile::mine(tiles);
    const u32 number = numbers[tile.row];
    const bool there = number < static_cast<u32>(count);
    // Where a row has ended, zeros are read: a row that is not there has ended at its first element.
    const From* from = there ? table + number * stride : table;
    const i64 readable = there ? width : 0;
    copy_tile(from, readable, out + tile.row * out_stride, width, tile, whole);
}

extern "C" __global__ void embedding(const bf16* weight, const u32* ids, float* out, int count, int tiles,
                                     long long width, long long stride, long long out_stride,
                                     int whole) {
    wait_for_previous();
    pick(weight, ids, out, count, tiles, width, stride, out_stride, whole);
}

// As bits, whatever they mean.
extern "C" __global__ void gather_rows_f32(const u32* x, const u32* rows, u32* out, int count, int tiles,
                                           long long width, long long stride, long long out_stride,
                                           int whole) {
    wait_for_previous();
    pick(x, rows, out, count, tiles, width, stride, out_stride, whole);
}

extern "C" __global__ void gather_rows_bf16(const u16* x, const u32* rows, u16* out, int count, int tiles,
                                            long long width, long long stride, long long out_stride,
                                            int whole) {
    wait_for_previous();
    pick(x, rows, out, count, tiles, width, stride, out_stride, whole);
}
