// Selection in a row of logits without sorting it: the k largest, or the fewest that have a given mass.
//
// All of it is done by one block, and with integers: a float's bits, put in order, are an integer (its key),
// and a token's share is one as well (fixed point, see sample.cu). Integers have the same sum in any order,
// so neither the number of threads nor the order in which they come changes a result, and shared memory can
// be added to atomically.
#pragma once

#include "row_scan.cuh"

__device__ inline u64 warp_sum(u64 value) {
    for (int bit = WARP / 2; bit > 0; bit /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, bit);
    }
    return value;
}

// The sum of the values of lanes 0 to this one.
__device__ inline u64 warp_scan(u64 value) {
    const int lane = threadIdx.x % WARP;
    for (int by = 1; by < WARP; by *= 2) {
        const u64 other = __shfl_up_sync(ALL_LANES, value, by);
        value += lane >= by ? other : 0;
    }
    return value;
}

// Adds to a sum of 64 bits that is kept as two words. A multiprocessor adds 32 bits to shared memory in one
// instruction; for 64 it would have to load, add, compare and perhaps start again.
//
// The sum is exact in any order. The lower word wraps as often as the sum of all lower parts contains 2^32,
// each wrap is seen by the one addition that caused it, and that one carries it to the upper word.
__device__ inline void add_mass(u32* low, u32* high, u64 mass) {
    const u32 part = static_cast<u32>(mass);
    const u32 sum = atomicAdd(low, part) + part;
    const u32 upper = static_cast<u32>(mass >> 32) + (sum < part ? 1 : 0);
    if (upper > 0) {
        atomicAdd(high, upper);
    }
}

__device__ inline u64 two_words(u32 low, u32 high) {
    return static_cast<u64>(high) << 32 | low;
}

constexpr int BINS = 2048;
constexpr int GROUPS = WARP;  // of bins, summed by a warp each

struct Histogram {
    u32 low[BINS];
    u32 high[BINS];
    u64 groups[GROUPS];
    u64 total;
    u64 above;
    int bin;
    bool found;

    __device__ inline void clear() {
        for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
            low[bin] = 0;
            high[bin] = 0;
        }
        __syncthreads();
    }

    __device__ inline void add(int bin, u64 mass) {
        add_mass(&low[bin], &high[bin], mass);
    }

    __device__ inline u64 mass(int bin) const {
        return two_words(low[bin], high[bin]);
    }
};

// The bin, from the last one down, at which the sum reaches `need(total)`; `above` is the sum before it.
// Not found when there is not that much.
template <class Need>
__device__ inline void find_bin(Histogram& h, Need need) {
    const int lane = threadIdx.x % WARP;
    constexpr int OF_GROUP = BINS / GROUPS;
    static_assert(OF_GROUP == 2 * WARP, "a lane has two bins of a group");
    for (int group = threadIdx.x / WARP; group < GROUPS; group += blockDim.x / WARP) {
        const int bin = group * OF_GROUP + lane;
        const u64 sum = warp_sum(h.mass(bin) + h.mass(bin + WARP));
        if (lane == 0) {
            h.groups[group] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x < WARP) {
        // Lanes have groups, then pairs of bins, from the last one down.
        const u64 of_group = h.groups[GROUPS - 1 - lane];
        u64 sum = warp_scan(of_group);
        const u64 total = __shfl_sync(ALL_LANES, sum, WARP - 1);
        const u64 enough = need(total);
        u32 reached = __ballot_sync(ALL_LANES, sum >= enough);
        int at = reached != 0 ? __ffs(static_cast<int>(reached)) - 1 : WARP - 1;
        u64 above = __shfl_sync(ALL_LANES, sum - of_group, at);
        const int last = (GROUPS - at) * OF_GROUP - 1 - 2 * lane;
        const u64 upper = h.mass(last);
        const u64 pair = upper + h.mass(last - 1);
        sum = above + warp_scan(pair);
        reached = __ballot_sync(ALL_LANES, sum >= enough);
        at = reached != 0 ? __ffs(static_cast<int>(reached)) - 1 : WARP - 1;
        if (lane == at) {
            above = sum - pair;
            const bool in_upper = above + upper >= enough;
            h.total = total;
            h.above = in_upper ? above : above + upper;
            h.bin = in_upper ? last : last - 1;
            h.found = enough <= total;
        }
    }
    __syncthreads();
}

// Where a selection ends: all elements with a larger key belong to it, and those with this key until it is
// enough.
struct Boundary {
    u32 key;
    u64 missing;  // what the larger ones lack to be enough, at least 1
    bool found;   // else all elements together do not suffice
};

// The boundary of the fewest elements whose weights reach need(the weight of all), at least 1, by 11, 11
// and the last 10 bits of their keys. `each` calls add(key, weight) for every element that may belong to it;
// the key `floor`, below all of them, has the weight `of_floor`.
template <class Each, class Need>
__device__ inline Boundary select(Each each, u32 floor, u64 of_floor, Need need, Histogram& h) {
    u32 prefix = 0;  // what is known of the key
    u64 enough = 0;
#pragma unroll 1
    for (int pass = 0; pass < 3; pass++) {
        const int lowest_bit = pass == 0 ? 21 : pass == 1 ? 10 : 0;
        const int bits = pass == 2 ? 10 : 11;
        const auto add = [&](u32 key, u64 mass) {
            const u32 upper = key >> lowest_bit;
            if (pass == 0 || upper >> bits == prefix) {
                h.add(static_cast<int>(upper & ((1u << bits) - 1)), mass);
            }
        };
        h.clear();
        each(add);
        if (threadIdx.x == 0 && of_floor > 0) {
            add(floor, of_floor);
        }
        __syncthreads();
        find_bin(h, [&](u64 total) { return pass == 0 ? need(total) : enough; });
        if (pass == 0) {
            if (!h.found) {
                return Boundary{floor, 0, false};
            }
            enough = need(h.total);
        }
        enough -= h.above;
        prefix = prefix << bits | static_cast<u32>(h.bin);
    }
    return Boundary{prefix, enough, true};
}

// Elements (`ranked`) that a block has picked from a row, in any order.
template <int capacity>
struct List {
    u64 at[capacity];
    int count;  // how many it should hold; of more than its capacity the rest is lost

    __device__ inline void clear() {
        if (threadIdx.x == 0) {
            count = 0;
        }
        __syncthreads();
    }

    __device__ inline void append(u64 element) {
        // A look first: where the list is full long ago, threads need not queue for its counter.
        if (*static_cast<volatile int*>(&count) <= capacity) {
            const int slot = atomicAdd(&count, 1);
            if (slot < capacity) {
                at[slot] = element;
            }
        }
    }

    __device__ inline bool complete() const {
        return count <= capacity;
    }
};

// A lower bound of the k-th largest element of a row: the k-th largest of the threads' largest, which are
// elements of the row, as keys. 0 when fewer than k threads have one (0 is none).
//
// Found bit by bit: 32 barriers, a microsecond or two.
__device__ inline u32 kth_of_threads(u32 mine, int k) {
    u32 found = 0;
    for (u32 bit = 0x80000000u; bit > 0; bit >>= 1) {
        if (__syncthreads_count(mine >= (found | bit)) >= k) {
            found |= bit;
        }
    }
    return found;
}
