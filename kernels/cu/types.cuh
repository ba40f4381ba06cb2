// The types and the few helpers that every kernel here uses.
//
// No CUDA header is included: NVRTC knows the language (threadIdx, __shfl_sync, float4) by itself, so
// these files compile on a machine that has only the driver and the compiler's library. Where a CPU
// stands in for the device, kernels/shim/cuda.hpp defines the same names.
#pragma once

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

constexpr int WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

// The upper half of an IEEE single: its sign, its 8 exponent bits, 7 bits of its mantissa.
struct bf16 {
    u16 bits;
};

__device__ inline float to_f32(float x) {
    return x;
}

__device__ inline float to_f32(bf16 x) {
    return __uint_as_float(static_cast<u32>(x.bits) << 16);
}

// Round to nearest, ties to even; a NaN stays one.
__device__ inline bf16 to_bf16(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return bf16{static_cast<u16>((bits >> 16) | 0x40u)};
    }
    return bf16{static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// A float as an element of an array of T.
template <class T>
__device__ inline T narrow(float x);

template <>
__device__ inline float narrow<float>(float x) {
    return x;
}

template <>
__device__ inline bf16 narrow<bf16>(float x) {
    return to_bf16(x);
}

// The two bf16 of a word, the lower half first.
__device__ inline float low_half(u32 word) {
    return __uint_as_float(word << 16);
}

__device__ inline float high_half(u32 word) {
    return __uint_as_float(word & 0xffff0000u);
}

__device__ inline u32 pack_halves(float low, float high) {
    return static_cast<u32>(to_bf16(low).bits) | static_cast<u32>(to_bf16(high).bits) << 16;
}

// How many pieces of `size` cover `n`.
__host__ __device__ constexpr int ceil_div(int n, int size) {
    return (n + size - 1) / size;
}

// -infinity, without a header.
__device__ inline float minus_infinity() {
    return __uint_as_float(0xff800000u);
}

#define STRATA_ALIGNED(bytes) __align__(bytes)

// For the course. A part that a reader has to write says so: on a CPU it ends the launch with the text
// ("exercise k.name, chapter kernels/x.md"), on a device it traps. A switch by name, for copies of these
// files that can behave wrongly when asked to: on a CPU STRATA_SCHEMATA lists the names, with commas.
#ifdef STRATA_SHIM
#define STRATA_TODO(text) strata_todo(text)
__device__ inline bool strata_switch(const char* name) {
    return strata_switched_on(name) != 0;
}
#else
#define STRATA_TODO(text) __trap()
__device__ inline bool strata_switch(const char*) {
    return false;
}
#endif
