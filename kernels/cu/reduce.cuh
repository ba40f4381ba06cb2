// Sums and maxima over the threads of a warp and of a block.
//
// The tree is the same for every call with the same number of threads, so a sum has one order, whatever
// runs beside it: that is what makes these kernels give a row the same bits in any batch.
#pragma once

#include "types.cuh"

struct Sum {
    static __device__ inline float identity() {
        return 0.0f;
    }
    static __device__ inline float of(float a, float b) {
        return a + b;
    }
};

struct Max {
    static __device__ inline float identity() {
        return minus_infinity();
    }
    static __device__ inline float of(float a, float b) {
        return fmaxf(a, b);
    }
};

// Every lane gets the result. Step by step each lane exchanges its value with the lane whose number
// differs in one bit: after five steps all 32 have met.
template <class Op>
__device__ inline float warp_reduce(float value) {
    // exercise l0.reduce
    for (int bit = WARP / 2; bit > 0; bit /= 2) {
        value = Op::of(value, __shfl_xor_sync(ALL_LANES, value, bit));
    }
    // end of exercise
    return value;
}

// Every thread gets the result. The block has a multiple of 32 threads, all of which must call this.
// `partial` is shared memory for 32 numbers. The barrier at the end lets it be used again at once.
template <class Op>
__device__ inline float block_reduce(float value, float* partial) {
    const int lane = threadIdx.x % WARP;
    const int warp = threadIdx.x / WARP;
    const int warps = blockDim.x / WARP;
    // exercise l0.reduce
    value = warp_reduce<Op>(value);
    if (lane == 0) {
        partial[warp] = value;
    }
    __syncthreads();
    value = lane < warps ? partial[lane] : Op::identity();
    value = warp_reduce<Op>(value);
    __syncthreads();
    // end of exercise
    return value;
}

// The same for a block that holds several rows: threads with the same threadIdx.y are a row, and every one
// of them gets its result. A row has 1, 2, 4, 8, 16 or 32 threads, or it is the only one of its block
// and has a multiple of 32. All threads of the block must call this.
template <class Op>
__device__ inline float row_reduce(float value, float* partial) {
    if (blockDim.x > WARP) {
        return block_reduce<Op>(value, partial);
    }
    // As in a warp, but only the bits in which the lanes of one row differ.
    for (int bit = static_cast<int>(blockDim.x) / 2; bit > 0; bit /= 2) {
        value = Op::of(value, __shfl_xor_sync(ALL_LANES, value, bit));
    }
    return value;
}
