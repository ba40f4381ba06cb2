// A row of logits read by one block, with many bytes on their way.
//
// The kernels for logits do little with an element, so they wait for memory unless each thread has asked for
// several elements before it uses the first (quads.cuh says how many bytes it takes). Every pass over a row
// is therefore written with `for_each_batch`: a thread loads 16 elements with four independent loads of 16
// bytes, a warp 2 KB without a gap, 1024 threads 64 KB.
//
// Each warp has a segment of consecutive elements, the same one in every pass. A pass may run backward: it
// then begins with what the pass before has read last. That is worth it because 132 rows of 152,000 logits
// at once are 80 MB, more than the 50 MB of an H100's second-level cache.
#pragma once

#include "quads.cuh"
#include "types.cuh"

// A float as an integer of the same order, its key; 0 and -0 have the same. No float has the key 0.
__device__ inline u32 ordered(float x) {
    const u32 bits = __float_as_uint(x + 0.0f);  // -0 + 0 is 0
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// And back.
__device__ inline float value_of(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

constexpr u32 NAN_KEY = 0xffffffffu;

// Key with which every element counts, a NaN before all.
__device__ inline u32 nan_first(float x) {
    return x == x ? ordered(x) : NAN_KEY;
}

__device__ inline float largest_finite() {
    return __uint_as_float(0x7f7fffffu);
}

__device__ inline float quiet_nan() {
    return __uint_as_float(0x7fffffffu);
}

// An element in one integer: the larger the key, and of equal keys the lower the index, the larger.
__device__ inline u64 ranked(u32 key, int i) {
    return static_cast<u64>(key) << 32 | (0xffffffffu - static_cast<u32>(i));
}

__device__ inline u32 key_of(u64 element) {
    return static_cast<u32>(element >> 32);
}

__device__ inline u32 index_of(u64 element) {
    return 0xffffffffu - static_cast<u32>(element);
}

constexpr int BATCH = 16;               // elements that a thread loads before it uses the first
constexpr int STEP = BATCH * WARP;      // elements that a warp loads at a time
constexpr int GRAIN = 4 * WARP;         // segments are multiples of this: 512 bytes

// A part of a row, and its division among the warps of a block.
struct Span {
    const float* row;
    int begin;
    int end;
    int segment;  // elements of a warp
    bool quads;   // it can be read 16 bytes at a time

    __device__ inline Span(const float* of_row, int from, int to) : row(of_row), begin(from), end(to) {
        const int warps = blockDim.x / WARP;
        segment = ceil_div(ceil_div(to - from, warps), GRAIN) * GRAIN;
        quads = reinterpret_cast<u64>(of_row) % 16 == 0 && from % 4 == 0 && to % 4 == 0;
    }

    __device__ inline int of_warp(int warp) const {
        const i64 from = begin + static_cast<i64>(segment) * warp;
        return from < end ? static_cast<int>(from) : end;
    }
};

enum class Direction { Forward, Backward };

// The n-th element of a batch whose first is `first`. In order of n they ascend.
__device__ inline int in_batch(int first, int n) {
    return first + n / 4 * GRAIN + n % 4;
}

// Calls f(first, elements) for each batch that this thread has of begin..end, a part of the row that the
// warp reads together. Elements behind `end` are `fill`. `quads` is for parts that begin and end at a multiple
// of four in a row that is aligned.
template <class F>
__device__ inline void for_each_batch(const float* row, int begin, int end, bool quads, Direction direction,
                                      float fill, F f) {
    const int lane = threadIdx.x % WARP;
    const int steps = begin < end ? ceil_div(end - begin, STEP) : 0;
    for (int k = 0; k < steps; k++) {
        const int from = begin + STEP * (direction == Direction::Forward ? k : steps - 1 - k);
        const int first = from + 4 * lane;
        float x[BATCH];
        if (quads) {
            const bool whole = from + STEP <= end;
            Quad<float> loaded[BATCH / 4];
#pragma unroll
            for (int q = 0; q < BATCH / 4; q++) {
                const int i = first + q * GRAIN;
                if (whole || i < end) {
                    loaded[q] = *reinterpret_cast<const Quad<float>*>(row + i);
                } else {
                    loaded[q] = Quad<float>{{fill, fill, fill, fill}};
                }
            }
#pragma unroll
            for (int n = 0; n < BATCH; n++) {
                x[n] = loaded[n / 4].at[n % 4];
            }
        } else {
#pragma unroll
            for (int n = 0; n < BATCH; n++) {
                const int i = in_batch(first, n);
                x[n] = i < end ? row[i] : fill;
            }
        }
        f(first, x);
    }
}

// The same for this warp's segment of a span.
template <class F>
__device__ inline void for_each_batch(const Span& span, Direction direction, float fill, F f) {
    const int warp = threadIdx.x / WARP;
    for_each_batch(span.row, span.of_warp(warp), span.of_warp(warp + 1), span.quads, direction, fill, f);
}

// Calls f(index, element) for each of them.
template <class F>
__device__ inline void for_each(const Span& span, Direction direction, float fill, F f) {
    for_each_batch(span, direction, fill, [&](int first, const float(&x)[BATCH]) {
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            f(in_batch(first, n), x[n]);
        }
    });
}

// Calls f(index, element) for each element, for passes that are rarely taken: the threads of the block are
// side by side, and a thread loads four elements before it uses the first. Less code than `for_each`.
template <class F>
__device__ inline void for_each_rarely(const Span& span, F f) {
    constexpr int AHEAD = 4;
    const int threads = blockDim.x;
#pragma unroll 1
    for (int from = span.begin + threadIdx.x; from < span.end; from += AHEAD * threads) {
        float x[AHEAD];
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            x[n] = from + n * threads < span.end ? span.row[from + n * threads] : 0.0f;
        }
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            if (from + n * threads < span.end) {
                f(from + n * threads, x[n]);
            }
        }
    }
}

// The largest of a batch; a NaN is passed over unless there is nothing else.
__device__ inline float largest_of(const float (&x)[BATCH]) {
    float largest = x[0];
#pragma unroll
    for (int n = 1; n < BATCH; n++) {
        largest = fmaxf(largest, x[n]);
    }
    return largest;
}

// What a thread knows of its elements after one pass: the largest, and the first batch that has it.
struct Largest {
    float value = minus_infinity();
    int batch = 0;
    bool nan = false;

    __device__ inline void take(int first, float largest) {
        if (largest > value) {
            value = largest;
            batch = first;
        }
    }
};

// With a NaN before all. Where all elements are -infinity, `batch` is the thread's first.
__device__ inline Largest scan_largest(const Span& span) {
    Largest found;
    found.batch = span.of_warp(threadIdx.x / WARP) + 4 * (threadIdx.x % WARP);
    for_each_batch(span, Direction::Forward, minus_infinity(), [&](int first, const float(&x)[BATCH]) {
        found.take(first, largest_of(x));
#pragma unroll
        for (int n = 0; n < BATCH; n += 2) {
            found.nan |= x[n] != x[n] || x[n + 1] != x[n + 1];
        }
    });
    return found;
}

// The largest of all threads' numbers. `partial` has room for 32.
__device__ inline u32 block_max(u32 value, u32* partial) {
    const int lane = threadIdx.x % WARP;
    const int warps = blockDim.x / WARP;
    value = __reduce_max_sync(ALL_LANES, value);
    if (lane == 0) {
        partial[threadIdx.x / WARP] = value;
    }
    __syncthreads();
    value = __reduce_max_sync(ALL_LANES, lane < warps ? partial[lane] : 0);
    __syncthreads();
    return value;
}

// Index of the first element that is `largest`, given for each thread the first of its batches that may
// hold one; `mine` says whether it does.
template <class Same>
__device__ inline u32 first_index(const Span& span, int batch, bool mine, Same same, u32* partial) {
    const int end = span.of_warp(threadIdx.x / WARP + 1);
    u32 index = 0xffffffffu;
    if (mine) {
#pragma unroll
        for (int n = BATCH - 1; n >= 0; n--) {
            const int i = in_batch(batch, n);
            if (i < end && same(span.row[i])) {
                index = static_cast<u32>(i);
            }
        }
    }
    return ~block_max(~index, partial);
}

// The first in order of all elements, as `ranked` has it, a NaN before all.
__device__ inline u64 first_of(const Span& span, u32* partial) {
    const Largest mine = scan_largest(span);
    if (__syncthreads_or(mine.nan)) {
        // Rare, so it may take another pass.
        u32 first = 0xffffffffu;
        for_each_rarely(span, [&](int i, float x) { first = x != x ? min(first, static_cast<u32>(i)) : first; });
        return ranked(NAN_KEY, static_cast<int>(~block_max(~first, partial)));
    }
    const u32 key = ordered(mine.value);
    const u32 top = block_max(key, partial);
    const auto same = [&](float x) { return ordered(x) == top; };
    return ranked(top, static_cast<int>(first_index(span, mine.batch, key == top, same, partial)));
}
