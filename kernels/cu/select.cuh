// Finding the front of a row of logits without sorting it: the k largest, or the fewest that have a given
// mass together.
//
// All of it is done by one block, and with integers: a float's bits, put in order, are an integer (its
// `key`), and a token's share is one as well (fixed point, see sample.cu). Integers have the same sum in
// any order, so neither the number of threads nor the order in which they come changes a result, and
// shared memory can be added to atomically.
#pragma once

#include "types.cuh"

// A float as an integer of the same order; 0 and -0 have the same. No float has the key 0.
__device__ inline u32 ordered(float x) {
    const u32 bits = __float_as_uint(x + 0.0f);  // -0 + 0 is 0
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// And back.
__device__ inline float value_of(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Every element counts, a NaN before all.
struct NanFirst {
    static __device__ inline u32 key(float x) {
        return x == x ? ordered(x) : 0xffffffffu;
    }
};

// Tokens that can be drawn: neither NaN nor -infinity, which have the key 0. +infinity counts as the
// largest finite number.
struct Choosable {
    static __device__ inline u32 key(float x) {
        const u32 key = ordered(fminf(x, 3.40282347e38f));
        return x > minus_infinity() ? key : 0;
    }
};

// The place in line of an element: the larger the key, and of equal ones the lower the index, the larger.
__device__ inline u64 in_line(u32 key, int i) {
    return static_cast<u64>(key) << 32 | (0xffffffffu - static_cast<u32>(i));
}

__device__ inline u32 key_in_line(u64 place) {
    return static_cast<u32>(place >> 32);
}

__device__ inline u32 index_in_line(u64 place) {
    return 0xffffffffu - static_cast<u32>(place);
}

// The first in line of all threads' places. `partial` has room for 32.
__device__ inline u64 block_first(u64 place, u64* partial) {
    const int lane = threadIdx.x % WARP;
    const int warps = blockDim.x / WARP;
    for (int round = 0; round < 2; round++) {
        for (int bit = WARP / 2; bit > 0; bit /= 2) {
            const u64 other = __shfl_xor_sync(ALL_LANES, place, bit);
            place = other > place ? other : place;
        }
        if (round == 0) {
            if (lane == 0) {
                partial[threadIdx.x / WARP] = place;
            }
            __syncthreads();
            place = lane < warps ? partial[lane] : 0;
        }
    }
    __syncthreads();
    return place;
}

// The first in line of elements begin..end.
template <class Keys>
__device__ inline u64 first_of(const float* row, int begin, int end, u64* partial) {
    u64 place = 0;
#pragma unroll 4
    for (int i = begin + threadIdx.x; i < end; i += blockDim.x) {
        const u64 other = in_line(Keys::key(row[i]), i);
        place = other > place ? other : place;
    }
    return block_first(place, partial);
}

__device__ inline u64 warp_sum(u64 value) {
    for (int bit = WARP / 2; bit > 0; bit /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, bit);
    }
    return value;
}

constexpr int BINS = 2048;
constexpr int GROUPS = 32;  // of bins, summed by a warp each

// Shared memory of `front`.
struct Histogram {
    u64 bins[BINS];
    u64 groups[GROUPS];
    u64 total;
    u64 above;
    int bin;
    bool found;
};

// The bin, from the last one down, at which the sum reaches `need(total)`; `above` is the sum before it.
// Not found when there is not that much.
template <class Need>
__device__ inline void find_bin(Histogram& h, Need need) {
    const int lane = threadIdx.x % WARP;
    constexpr int OF_GROUP = BINS / GROUPS;
    for (int group = threadIdx.x / WARP; group < GROUPS; group += blockDim.x / WARP) {
        u64 sum = 0;
        for (int bin = lane; bin < OF_GROUP; bin += WARP) {
            sum += h.bins[group * OF_GROUP + bin];
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            h.groups[group] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        u64 total = 0;
        for (int group = 0; group < GROUPS; group++) {
            total += h.groups[group];
        }
        const u64 enough = need(total);
        u64 above = 0;
        int group = GROUPS - 1;
        for (; group > 0 && above + h.groups[group] < enough; group--) {
            above += h.groups[group];
        }
        int bin = (group + 1) * OF_GROUP - 1;
        for (; bin > group * OF_GROUP && above + h.bins[bin] < enough; bin--) {
            above += h.bins[bin];
        }
        h.total = total;
        h.above = above;
        h.bin = bin;
        h.found = above + h.bins[bin] >= enough;
    }
    __syncthreads();
}

// Where the front of a line ends: all elements with a larger key, and those with this one until it is
// enough.
struct Front {
    u32 key;
    u64 missing;  // what the larger ones lack to be enough, at least 1
    bool found;   // else all there are do not suffice
};

// The front of the elements with a key above `floor`, to which `of_floor` is added at that key: the
// fewest whose weights reach need(the weight of all), at least 1.
//
// Four times over the row. Weights are summed up in bins: first by the distance from the largest element,
// `steps` bins to a unit, which spreads logits far better than the bits of a float do (nearly all of them
// share the upper ones, and threads that add to the same bin wait for each other). Then, of the elements
// in the bin where it becomes enough, by 11, 11 and the last 10 bits of their keys.
template <class Keys, class Weight, class Need>
__device__ inline Front front(const float* row, int width, u32 top, float steps, u32 floor, u64 of_floor,
                              Weight weight, Need need, Histogram& h) {
    const float largest = value_of(top);
    const auto distance = [&](u32 key) {
        const float d = (largest - value_of(key)) * steps;
        return key >= top ? BINS - 1 : BINS - 1 - static_cast<int>(fminf(d, BINS - 1.0f));
    };
    int near = 0;    // the bin of the first pass
    u32 prefix = 0;  // what is known of the key
    u64 enough = 0;
    const auto lowest_bit = [](int pass) { return pass == 1 ? 21 : pass == 2 ? 10 : pass == 3 ? 0 : 32; };
    for (int pass = 0; pass < 4; pass++) {
        for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
            h.bins[bin] = 0;
        }
        __syncthreads();
        const auto add = [&](u32 key, u64 mass) {
            int bin;
            if (pass == 0) {
                bin = distance(key);
            } else {
                const bool known = pass == 1 || key >> lowest_bit(pass - 1) == prefix;
                if (!known || distance(key) != near) {
                    return;
                }
                bin = key >> lowest_bit(pass) & (pass == 3 ? BINS / 2 - 1 : BINS - 1);
            }
            atomicAdd(&h.bins[bin], mass);
        };
#pragma unroll 4
        for (int i = threadIdx.x; i < width; i += blockDim.x) {
            const float x = row[i];
            const u32 key = Keys::key(x);
            if (key > floor) {
                add(key, weight(x));
            }
        }
        if (threadIdx.x == 0 && of_floor > 0) {
            add(floor, of_floor);
        }
        __syncthreads();
        if (pass == 0) {
            find_bin(h, need);
            if (!h.found) {
                return Front{floor, 0, false};
            }
            enough = need(h.total) - h.above;
            near = h.bin;
        } else {
            find_bin(h, [&](u64) { return enough; });
            enough -= h.above;
            prefix = pass == 1 ? h.bin : prefix << (lowest_bit(pass - 1) - lowest_bit(pass)) | h.bin;
        }
    }
    return Front{prefix, enough, true};
}
