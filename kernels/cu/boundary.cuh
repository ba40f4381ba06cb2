// The boundary of a filter in a row of logits: two passes over the row, and the rest in shared memory.
//
// The first pass adds every weight to one of 2048 bins by the distance from the row's largest logit; the bin
// where it becomes enough is then known. The second lists the elements of that bin, and sums up what is
// above it for each warp's segment, so that a draw need not do that again. The boundary itself is selected
// in the list by the bits of the keys. Where the list is too short for the bin (many equal logits), these
// three passes read the row.
#pragma once

#include "select.cuh"

// Keys of tokens that can be drawn: +infinity counts as the largest finite number. Others (NaN, -infinity)
// are excluded by comparisons before.
__device__ inline u32 token_key(float x) {
    return ordered(fminf(x, largest_finite()));
}

// Least number above which a float's key is above `key`, for keys up to `top`, the row's largest. No float
// has the key of -0, and only its neighbours are told apart from it.
__device__ inline float above_key(u32 key, u32 top) {
    if (key == 0) {
        return minus_infinity();
    }
    if (key >= top) {
        return -minus_infinity();
    }
    return value_of(key == 0x7fffffffu ? key - 1 : key);
}

// Bins by distance from the largest: they spread logits far better than the bits of a float do, nearly all
// of which share the upper ones. Whether a bin has few elements or many is a matter of speed alone.
struct DistanceBins {
    float max;
    float steps;  // bins to a unit; finite

    // The bin of a logit that is at most `max`, added to 2^23. A float of that size has a unit in the last
    // place of 1, so the addition rounds to a whole bin and the bin is in the lowest bits.
    __device__ inline float at(float logit) const {
        return fmaxf(fmaf(logit - max, steps, 8388608.0f + (BINS - 1)), 8388608.0f);
    }

    static __device__ inline int bin(float at) {
        return static_cast<int>(__float_as_uint(at) & (BINS - 1));
    }

    static __device__ inline float at_bin(int bin) {
        return 8388608.0f + static_cast<float>(bin);
    }
};

constexpr int LISTED = 3072;

// Sums of the kept shares, and numbers of elements at the boundary, of each warp's segment.
struct Segments {
    u32 low[WARP];
    u32 high[WARP];
    u32 ties[WARP];

    // By one lane of the warp that has the segment.
    __device__ inline void put(int segment, u64 mass, u32 equal) {
        low[segment] = static_cast<u32>(mass);
        high[segment] = static_cast<u32>(mass >> 32);
        ties[segment] = equal;
    }
};

struct Filter {
    Histogram histogram;
    List<LISTED> list;
    Segments segments;
};

// The boundary among the listed elements with a key above `floor`.
template <class Weight, class Need>
__device__ inline Boundary boundary_in_list(u32 floor, u64 of_floor, Weight weight, Need need, Filter& f) {
    const auto each = [&](auto add) {
        for (int i = threadIdx.x; i < f.list.count; i += blockDim.x) {
            const u32 key = key_of(f.list.at[i]);
            if (key > floor) {
                add(key, weight(value_of(key)));
            }
        }
    };
    return select(each, floor, of_floor, need, f.histogram);
}

// The boundary among the elements of a row for which `there` says so, in three passes over it.
template <class There, class Weight, class Need>
__device__ inline Boundary boundary_by_bits(const Span& span, There there, u32 floor, u64 of_floor, Weight weight,
                                            Need need, Histogram& h) {
    const auto each = [&](auto add) {
        for_each_rarely(span, [&](int, float x) {
            if (there(x)) {
                add(token_key(x), weight(fminf(x, largest_finite())));
            }
        });
    };
    return select(each, floor, of_floor, need, h);
}

// The boundary of the fewest elements with a key above `floor` whose weights reach need(the weight of all),
// at least 1; the key `floor` itself has the weight `of_floor`. `summed` says whether f.segments has been
// filled, which takes a complete list and no floor.
template <class Weight, class Need>
__device__ inline Boundary boundary_in_row(const Span& span, const DistanceBins& bins, u32 top, u32 floor,
                                           u64 of_floor, Weight weight, Need need, Filter& f, bool& summed) {
    const int lane = threadIdx.x % WARP;
    const float bound = above_key(floor, top);
    const float lowest = DistanceBins::at_bin(0);
    // The lowest bin has all that is far away: often most of the row, so it is summed up in registers.
    u64 far = 0;
    f.histogram.clear();
    for_each(span, Direction::Backward, quiet_nan(), [&](int, float x) {
        if (x > bound) {
            const float logit = fminf(x, bins.max);
            const float at = bins.at(logit);
            const u64 mass = weight(logit);
            if (at > lowest) {
                f.histogram.add(DistanceBins::bin(at), mass);
            } else {
                far += mass;
            }
        }
    });
    far = warp_sum(far);
    if (lane == 0 && far > 0) {
        f.histogram.add(0, far);
    }
    const int of_floor_bin = floor > 0 ? DistanceBins::bin(bins.at(value_of(floor))) : 0;
    if (threadIdx.x == 0 && of_floor > 0) {
        f.histogram.add(of_floor_bin, of_floor);
    }
    __syncthreads();
    find_bin(f.histogram, need);
    summed = false;
    if (!f.histogram.found) {
        return Boundary{floor, 0, false};
    }
    const u64 enough = need(f.histogram.total) - f.histogram.above;
    const int near = f.histogram.bin;
    const float at_near = DistanceBins::at_bin(near);

    u64 kept = 0;
    f.list.clear();
    for_each(span, Direction::Forward, quiet_nan(), [&](int i, float x) {
        if (x > bound) {
            const float logit = fminf(x, bins.max);
            const float at = bins.at(logit);
            if (at > at_near) {
                kept += weight(logit);
            } else if (at == at_near) {
                f.list.append(ranked(ordered(logit), i));
            }
        }
    });
    kept = warp_sum(kept);
    if (lane == 0) {
        f.segments.put(threadIdx.x / WARP, kept, 0);
    }
    __syncthreads();
    const u64 of_floor_here = of_floor_bin == near ? of_floor : 0;
    const auto rest = [&](u64) { return enough; };
    if (!f.list.complete()) {
        const auto there = [&](float x) { return x > bound && bins.at(fminf(x, bins.max)) == at_near; };
        return boundary_by_bits(span, there, floor, of_floor_here, weight, rest, f.histogram);
    }
    const Boundary last = boundary_in_list(floor, of_floor_here, weight, rest, f);
    for (int i = threadIdx.x; i < f.list.count; i += blockDim.x) {
        const u32 key = key_of(f.list.at[i]);
        const u32 segment = index_of(f.list.at[i]) / static_cast<u32>(span.segment);
        if (key > last.key) {
            add_mass(&f.segments.low[segment], &f.segments.high[segment], weight(value_of(key)));
        } else if (key == last.key) {
            atomicAdd(&f.segments.ties[segment], 1u);
        }
    }
    __syncthreads();
    summed = floor == 0;
    return last;
}
