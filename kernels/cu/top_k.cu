// The k largest elements of each row, largest first, of equal ones the first; k at most 64.
//
// A block has a row. It finds the key of the k-th largest (`front`, each element weighing 1), collects
// what is above, which is fewer than k, and fills up with the first of those that are equal to it. Only
// these k are put in order: each counts how many are before it, and that is its place.
//
// The row is read six times: once for the largest, four times by `front`, once to collect; all but the
// first time from the second-level cache. 24 bytes for each element of a row.
#include "select.cuh"

constexpr int MOST = 64;

extern "C" __global__ void top_k(const float* x, i64 stride, int width, int k, float* values,
                                 i64 values_stride, u32* ids) {
    __shared__ Histogram h;
    __shared__ u64 partial[WARP];
    __shared__ u64 places[MOST];
    __shared__ int taken;
    __shared__ int equal[WARP];
    const float* row = x + blockIdx.x * stride;
    const int lane = threadIdx.x % WARP;
    const int warp = threadIdx.x / WARP;
    const int warps = blockDim.x / WARP;

    const u32 top = key_in_line(first_of<NanFirst>(row, 0, width, partial));
    const auto one = [](float) { return static_cast<u64>(1); };
    const auto all = [&](u64) { return static_cast<u64>(k); };
    const Front last = front<NanFirst>(row, width, top, BINS / 32.0f, 0, 0, one, all, h);

    // The first of the equal ones are wanted, so each warp has a part of the row for itself, and knows how
    // many there are in the parts before.
    const int piece = ceil_div(width, warps);
    const int begin = warp * piece;
    const int end = begin + piece < width ? begin + piece : width;
    if (threadIdx.x == 0) {
        taken = 0;
    }
    int mine = 0;
    for (int i = begin + lane; i < end; i += WARP) {
        mine += NanFirst::key(row[i]) == last.key;
    }
    mine = static_cast<int>(warp_sum(mine));
    if (lane == 0) {
        equal[warp] = mine;
    }
    __syncthreads();
    const int missing = static_cast<int>(last.missing);
    const int above = k - missing;
    int before = 0;
    for (int w = 0; w < warp; w++) {
        before += equal[w];
    }
    for (int from = begin; from < end; from += WARP) {
        const int i = from + lane;
        const u32 key = i < end ? NanFirst::key(row[i]) : 0;
        if (key > last.key) {
            places[atomicAdd(&taken, 1)] = in_line(key, i);
        }
        const u32 same = __ballot_sync(ALL_LANES, i < end && key == last.key);
        const int rank = before + __popc(same & ((1u << lane) - 1));
        if (i < end && key == last.key && rank < missing) {
            places[above + rank] = in_line(key, i);
        }
        before += __popc(same);
    }
    __syncthreads();

    for (int i = threadIdx.x; i < k; i += blockDim.x) {
        int rank = 0;
        for (int j = 0; j < k; j++) {
            rank += places[j] > places[i];
        }
        const u32 id = index_in_line(places[i]);
        values[blockIdx.x * values_stride + rank] = row[id];
        ids[static_cast<i64>(blockIdx.x) * k + rank] = id;
    }
}
