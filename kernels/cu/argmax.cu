// The largest element of each row of logits.
//
// A NaN is before all: a model that makes one should be found out, and always in the same way. Of equal
// elements the first counts.
//
// A pass keeps, in each thread, the largest element and in which of its batches of 16 it was: one maximum for
// each element, one test for NaN for two, one comparison for a batch. Only threads that have the largest of
// all look into that batch again for the index. Parts of a row are compared by one 64-bit integer: the
// element's key in the upper half, the index, negated, in the lower. A maximum is the same in any order.
//
// 4 bytes are read for each element and nothing is written: a row of 152,000 is 0.6 MB. Rows are split, so that
// there are several blocks for each multiprocessor; each leaves the first of its part, and argmax_combine
// takes the first of those. A row with a NaN is read twice.
#include "row_scan.cuh"

// Grid: [splits, rows]. `partial` is [rows, splits], or unused when there is one split.
extern "C" __global__ void __launch_bounds__(256)
    argmax(const float* x, i64 stride, int width, u64* partial, u32* out) {
    wait_for_previous();
    __shared__ u32 largest[WARP];
    const int row = blockIdx.y;
    const int splits = gridDim.x;
    const int piece = ceil_div(ceil_div(width, splits), GRAIN) * GRAIN;
    const int begin = min(static_cast<int>(blockIdx.x) * piece, width);
    const int end = min(begin + piece, width);
    const u64 first = first_of(Span(x + row * stride, begin, end), largest);
    if (threadIdx.x == 0) {
        if (splits == 1) {
            out[row] = index_of(first);
        } else {
            partial[static_cast<i64>(row) * splits + blockIdx.x] = first;
        }
    }
}

// Grid: [rows], 32 threads.
extern "C" __global__ void argmax_combine(const u64* partial, int splits, u32* out) {
    wait_for_previous();
    const int row = blockIdx.x;
    u64 first = 0;
    for (int i = threadIdx.x; i < splits; i += WARP) {
        const u64 other = partial[static_cast<i64>(row) * splits + i];
        first = other > first ? other : first;
    }
    for (int bit = WARP / 2; bit > 0; bit /= 2) {
        const u64 other = __shfl_xor_sync(ALL_LANES, first, bit);
        first = other > first ? other : first;
    }
    if (threadIdx.x == 0) {
        out[row] = index_of(first);
    }
}
