// CUDA C++'s names, for a CPU. Included in front of every file of cu/ when it is compiled for one.
//
// Only what NVRTC knows without any header, and of that what these kernels use.
#pragma once

#include <math.h>
#include <string.h>

#include "runtime.hpp"

// ---- the language ---------------------------------------------------------------------------------
#define __host__
#define __device__
#define __global__
#define __constant__ static const
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
// One block is run by one thread of the system, so what a block shares is what that thread owns.
// AddressSanitizer does not watch such variables, so for it they are plain ones, and there is one thread.
#ifdef STRATA_SHIM_ASAN
#define __shared__ static
#else
#define __shared__ static thread_local
#endif
// Its declaration is taken out before this is compiled: compile/host.rs.
#define dynamic_shared (strata_current->dynamic_shared)

#define threadIdx (strata_current->thread)
#define blockIdx (strata_current->block)
#define blockDim (strata_current->block_dim)
#define gridDim (strata_current->grid_dim)
constexpr int warpSize = 32;

// The emulation itself, where it is worth the time, goes without the checks that kernels have.
#define STRATA_TRUSTED __attribute__((no_sanitize("undefined")))

// ---- vectors --------------------------------------------------------------------------------------
#define STRATA_VECTORS(T, name, a1, a2, a4)                                      \
    struct name##1 { T x; };                                                     \
    struct alignas(a2) name##2 { T x, y; };                                      \
    struct name##3 { T x, y, z; };                                               \
    struct alignas(a4) name##4 { T x, y, z, w; };                                \
    inline name##1 make_##name##1(T x) { return {x}; }                           \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                   \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }           \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
STRATA_VECTORS(float, float, 4, 8, 16)
STRATA_VECTORS(int, int, 4, 8, 16)
STRATA_VECTORS(unsigned, uint, 4, 8, 16)
STRATA_VECTORS(short, short, 2, 4, 8)
STRATA_VECTORS(unsigned short, ushort, 2, 4, 8)
STRATA_VECTORS(signed char, char, 1, 2, 4)
STRATA_VECTORS(unsigned char, uchar, 1, 2, 4)
#undef STRATA_VECTORS
struct alignas(16) longlong2 { long long x, y; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
struct alignas(16) double2 { double x, y; };
inline longlong2 make_longlong2(long long x, long long y) { return {x, y}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }
inline double2 make_double2(double x, double y) { return {x, y}; }

// ---- numbers --------------------------------------------------------------------------------------
template <class To, class From>
inline To strata_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "other sizes");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}
inline unsigned __float_as_uint(float x) { return strata_bits<unsigned>(x); }
inline int __float_as_int(float x) { return strata_bits<int>(x); }
inline float __uint_as_float(unsigned x) { return strata_bits<float>(x); }
inline float __int_as_float(int x) { return strata_bits<float>(x); }
inline long long __double_as_longlong(double x) { return strata_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return strata_bits<double>(x); }

#define STRATA_MIN_MAX(T)                               \
    inline T min(T a, T b) { return b < a ? b : a; }    \
    inline T max(T a, T b) { return a < b ? b : a; }
STRATA_MIN_MAX(int)
STRATA_MIN_MAX(unsigned)
STRATA_MIN_MAX(long)
STRATA_MIN_MAX(unsigned long)
STRATA_MIN_MAX(long long)
STRATA_MIN_MAX(unsigned long long)
#undef STRATA_MIN_MAX
inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
// As on the device: of a number and a NaN, the number.
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// Where the device has a faster and less exact form, this is the exact one: tests allow for both.
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
// g++ defines fmaf and the like in math.h; these names are CUDA's own. (glibc declares some of them for
// itself, so they are macros here.)
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanhf(x) tanhf(x)
#define __sincosf(x, s, c) sincosf(x, s, c)
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }

inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
    return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; ++bit) {
        reversed |= (x >> bit & 1u) << (31 - bit);
    }
    return reversed;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select) {
    const unsigned long long both = static_cast<unsigned long long>(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned nibble = select >> (4 * i) & 0xfu;
        unsigned byte = static_cast<unsigned>(both >> (8 * (nibble & 7u))) & 0xffu;
        if (nibble & 8u) {
            byte = byte & 0x80u ? 0xffu : 0u;
        }
        result |= byte << (8 * i);
    }
    return result;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    return static_cast<unsigned>(both >> (by & 31u));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    return static_cast<unsigned>(both << (by & 31u) >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

// ---- memory ---------------------------------------------------------------------------------------
template <class T>
inline T __ldg(const T* at) {
    return *at;
}
template <class T>
inline T __ldcs(const T* at) {
    return *at;
}
template <class T>
inline T __ldcg(const T* at) {
    return *at;
}
template <class T>
inline void __stcs(T* at, T value) {
    *at = value;
}
template <class T>
inline void __stcg(T* at, T value) {
    *at = value;
}
inline size_t __cvta_generic_to_shared(const void* at) { return reinterpret_cast<size_t>(at); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Real atomics: blocks may run on several threads of the system.
template <class T, class F>
inline T strata_atomic(T* at, F change) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "the device has these for 32 and 64 bits");
    T old;
    __atomic_load(at, &old, __ATOMIC_SEQ_CST);
    for (;;) {
        T changed = change(old);
        if (__atomic_compare_exchange(at, &old, &changed, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            return old;
        }
    }
}
#define STRATA_ATOMIC(T)                                                                             \
    inline T atomicAdd(T* at, T by) { return strata_atomic(at, [=](T old) -> T { return old + by; }); } \
    inline T atomicExch(T* at, T by) { return strata_atomic(at, [=](T) -> T { return by; }); }
#define STRATA_ATOMIC_INTEGER(T)                                                                           \
    STRATA_ATOMIC(T)                                                                                       \
    inline T atomicSub(T* at, T by) { return strata_atomic(at, [=](T old) -> T { return old - by; }); }    \
    inline T atomicMin(T* at, T by) { return strata_atomic(at, [=](T old) -> T { return min(old, by); }); } \
    inline T atomicMax(T* at, T by) { return strata_atomic(at, [=](T old) -> T { return max(old, by); }); } \
    inline T atomicAnd(T* at, T by) { return strata_atomic(at, [=](T old) -> T { return old & by; }); }    \
    inline T atomicOr(T* at, T by) { return strata_atomic(at, [=](T old) -> T { return old | by; }); }     \
    inline T atomicXor(T* at, T by) { return strata_atomic(at, [=](T old) -> T { return old ^ by; }); }    \
    inline T atomicCAS(T* at, T if_this, T then_that) {                                                    \
        return strata_atomic(at, [=](T old) -> T { return old == if_this ? then_that : old; });            \
    }
STRATA_ATOMIC(float)
STRATA_ATOMIC_INTEGER(int)
STRATA_ATOMIC_INTEGER(unsigned)
STRATA_ATOMIC_INTEGER(unsigned long long)
#undef STRATA_ATOMIC_INTEGER
#undef STRATA_ATOMIC
inline unsigned atomicInc(unsigned* at, unsigned most) {
    return strata_atomic(at, [=](unsigned old) -> unsigned { return old >= most ? 0u : old + 1u; });
}

// ---- how a launch calls a kernel ------------------------------------------------------------------
// A letter for each parameter, so that the driver can check what it was given: a pointer, 8 bytes, 4
// bytes, anything else.
template <class T>
constexpr char strata_letter() {
    return __is_class(T) ? 'x' : sizeof(T) == 8 ? 'l' : sizeof(T) == 4 ? 'i' : 'x';
}
template <class T>
struct strata_parameter {
    static constexpr char letter = strata_letter<T>();
};
template <class T>
struct strata_parameter<T*> {
    static constexpr char letter = 'p';
};
template <class T>
struct strata_parameter<T* __restrict__> {
    static constexpr char letter = 'p';
};
template <class... A>
struct strata_letters {
    static constexpr char text[] = {strata_parameter<A>::letter..., '\0'};
};
template <class... A>
inline const char* strata_signature(void (*)(A...)) {
    return strata_letters<A...>::text;
}
constexpr int strata_first_of(int first, int = 0, int = 0) {
    return first;
}
template <unsigned... I>
struct strata_indices {};
template <unsigned N, unsigned... I>
struct strata_count : strata_count<N - 1, N - 1, I...> {};
template <unsigned... I>
struct strata_count<0, I...> {
    typedef strata_indices<I...> type;
};
template <class T>
struct strata_plain {
    typedef T type;
};
template <class T>
struct strata_plain<const T> {
    typedef T type;
};
template <class... A, unsigned... I>
inline void strata_call_with(void (*kernel)(A...), void* const* args, strata_indices<I...>) {
    kernel(*static_cast<typename strata_plain<A>::type*>(args[I])...);
}
template <class... A>
inline void strata_call(void (*kernel)(A...), void* const* args) {
    strata_call_with(kernel, args, typename strata_count<sizeof...(A)>::type());
}

#include "warp.hpp"
