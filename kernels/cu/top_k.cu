// The k largest elements of each row, largest first, of equal ones the first; k at most 64.
//
// A block has a row and reads it twice. The first pass leaves each thread its largest element. The k-th
// largest of these is at most the k-th largest of the row, so the second pass lists what is not below it:
// of 1024 threads' elements only a few more than k. They are put in order by counting: an element's rank is
// the number of those before it.
//
// 8 bytes for each element of a row: for 152,000 an estimated 15 us. Where more than FEW elements are in
// question, as in a row of equal ones, the boundary is selected by the bits of the keys in three more passes,
// and two more collect what is above it and the first of those on it: 28 bytes for each element.
#include "select.cuh"

constexpr int MOST = 64;
constexpr int FEW = 512;

struct Scratch {
    Histogram histogram;
    List<FEW> list;
    u64 first[MOST];
    u32 partial[WARP];
    int equal[WARP];
    int taken;
};

// The k largest to s.first, in any order, for rows where many are equal.
__device__ inline void collect_by_bits(const Span& span, int k, Scratch& s) {
    const int lane = threadIdx.x % WARP;
    const int warp = threadIdx.x / WARP;
    const auto each = [&](auto add) {
        for_each_rarely(span, [&](int, float x) { add(nan_first(x), 1); });
    };
    const Boundary last = select(each, 0, 0, [&](u64) { return static_cast<u64>(k); }, s.histogram);

    // The first of the equal ones are wanted, so each warp counts those of its segment.
    const int begin = span.of_warp(warp);
    const int end = span.of_warp(warp + 1);
    if (threadIdx.x == 0) {
        s.taken = 0;
    }
    int mine = 0;
    for (int i = begin + lane; i < end; i += WARP) {
        mine += nan_first(span.row[i]) == last.key;
    }
    mine = static_cast<int>(warp_sum(static_cast<u64>(mine)));
    if (lane == 0) {
        s.equal[warp] = mine;
    }
    __syncthreads();
    const int missing = static_cast<int>(last.missing);
    const int above = k - missing;
    int before = 0;
    for (int w = 0; w < warp; w++) {
        before += s.equal[w];
    }
    for (int from = begin; from < end; from += WARP) {
        const int i = from + lane;
        const u32 key = i < end ? nan_first(span.row[i]) : 0;
        if (key > last.key) {
            s.first[atomicAdd(&s.taken, 1)] = ranked(key, i);
        }
        const bool same = i < end && key == last.key;
        const u32 all = __ballot_sync(ALL_LANES, same);
        const int rank = before + __popc(all & ((1u << lane) - 1));
        if (same && rank < missing) {
            s.first[above + rank] = ranked(key, i);
        }
        before += __popc(all);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(1024)
    top_k(const float* x, i64 stride, int width, int k, float* values, i64 values_stride, u32* ids) {
    wait_for_previous();
    __shared__ Scratch s;
    const float* row = x + blockIdx.x * stride;
    const Span span(row, 0, width);

    const Largest mine = scan_largest(span);
    const bool any = mine.nan || mine.value > minus_infinity();
    const u32 least = kth_of_threads(any ? (mine.nan ? NAN_KEY : ordered(mine.value)) : 0, k);
    // With k NaNs or more the infinities are listed too, which does no harm.
    const float bound = least == 0 ? minus_infinity() : value_of(min(least, ordered(-minus_infinity())));
    s.list.clear();
    for_each_batch(span, Direction::Backward, minus_infinity(), [&](int first, const float(&batch)[BATCH]) {
        if (largest_of(batch) < bound && !mine.nan) {
            return;
        }
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            const int i = in_batch(first, n);
            if (!(batch[n] < bound) && i < width) {
                s.list.append(ranked(nan_first(batch[n]), i));
            }
        }
    });
    __syncthreads();
    const bool listed = s.list.complete();
    if (!listed) {  // The same for all threads.
        collect_by_bits(span, k, s);
    }
    const u64* found = listed ? s.list.at : s.first;
    const int count = listed ? s.list.count : k;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        const u64 element = found[i];
        int rank = 0;
        for (int j = 0; j < count; j++) {
            rank += found[j] > element;
        }
        if (rank < k) {
            const u32 id = index_of(element);
            values[blockIdx.x * values_stride + rank] = row[id];
            ids[static_cast<i64>(blockIdx.x) * k + rank] = id;
        }
    }
}
