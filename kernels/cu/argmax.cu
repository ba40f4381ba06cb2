// The largest element of each row of logits.
//
// An element's place in line is one 64-bit integer: the bits of the float, put in order, in the upper
// half, the index, negated, in the lower. The maximum of these is the largest element and, of equal
// ones, the first; a maximum does not care about the order in which it is taken. A NaN is before all: a
// model that makes one should be found out, and always in the same way.
//
// 4 bytes are read for each element and nothing is written: a row of 152,000 is 0.6 MB. One block has a
// row to itself only when there are rows enough for the device; few rows are split over several blocks,
// each of which leaves the first of its part, and argmax_combine takes the first of those.
#include "select.cuh"

// Grid: [splits, rows]. `partial` is [rows, splits], or unused when there is one split.
extern "C" __global__ void argmax(const float* x, i64 stride, int width, u64* partial, u32* out) {
    __shared__ u64 firsts[WARP];
    const int row = blockIdx.y;
    const int splits = gridDim.x;
    const int piece = ceil_div(width, splits);
    const int begin = blockIdx.x * piece;
    const int end = begin + piece < width ? begin + piece : width;
    const u64 place = first_of<NanFirst>(x + row * stride, begin, end, firsts);
    if (threadIdx.x == 0) {
        if (splits == 1) {
            out[row] = index_in_line(place);
        } else {
            partial[static_cast<i64>(row) * splits + blockIdx.x] = place;
        }
    }
}

// Grid: [rows], 32 threads.
extern "C" __global__ void argmax_combine(const u64* partial, int splits, u32* out) {
    const int row = blockIdx.x;
    u64 place = 0;
    for (int i = threadIdx.x; i < splits; i += WARP) {
        const u64 other = partial[static_cast<i64>(row) * splits + i];
        place = other > place ? other : place;
    }
    for (int bit = WARP / 2; bit > 0; bit /= 2) {
        const u64 other = __shfl_xor_sync(ALL_LANES, place, bit);
        place = other > place ? other : place;
    }
    if (threadIdx.x == 0) {
        out[row] = index_in_line(place);
    }
}
