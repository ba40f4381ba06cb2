// Instructions that CUDA C++ has no name for: tensor cores and copies that run by themselves.
//
// All of the assembly in this project is in this file. Each function has a twin in
// kernels/shim/ptx.hpp that does the same on a CPU, element by element, so what is built on them can be
// run and tested without a GPU.
#pragma once

#include "types.cuh"

#ifdef STRATA_SHIM
#include "ptx.hpp"
#else

__device__ inline u32 shared_address(const void* shared) {
    return static_cast<u32>(__cvta_generic_to_shared(shared));
}

// d += a b, on the tensor cores: a is 16 x 16 and b 16 x 8 (bf16), d is 16 x 8 (f32), spread over the
// warp. With group = lane / 4 and pair = lane % 4, a lane holds
//
//   a[0]  row group,     columns 2 pair, 2 pair + 1        b[0]  rows 2 pair, 2 pair + 1,   column group
//   a[1]  row group + 8, the same columns                  b[1]  rows 2 pair + 8, + 9,      column group
//   a[2]  row group,     columns 2 pair + 8, + 9           d[0], d[1]  row group,     columns 2 pair, + 1
//   a[3]  row group + 8, the same columns                  d[2], d[3]  row group + 8, the same columns
//
// two bf16 to a word, the lower index in the lower half (PTX ISA, "Matrix fragments for
// mma.m16n8k16 with floating point type").
__device__ inline void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 x 8 matrices of bf16 from shared memory, one word of each to every lane: lane 8 i + r says
// where row r of matrix i begins (16 bytes, aligned), and gets of matrix i the elements 2 (lane % 4)
// and the next one of row lane / 4 in out[i].
__device__ inline void ldmatrix_x4(u32 (&out)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same, each matrix transposed on the way.
__device__ inline void ldmatrix_x4_transposed(u32 (&out)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Copy 16 bytes from global to shared memory while the thread goes on; zeros where `wanted` is false.
// Both addresses are aligned to 16; `global` must be readable even then.
__device__ inline void copy_async_16(void* shared, const void* global, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
                 :
                 : "r"(shared_address(shared)), "l"(global), "r"(wanted ? 16 : 0)
                 : "memory");
}

// What this thread has copied since the last call becomes one group.
__device__ inline void copy_async_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

// Wait until at most `pending` of this thread's groups are on their way. A barrier must follow before
// other threads read what this one copied.
template <int pending>
__device__ inline void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

// 16 bytes that will be read once: past the first-level cache, so that they push nothing out of it. Zeros
// where `wanted` is false; then nothing is read.
__device__ inline uint4 load_once(const uint4* from, bool wanted) {
    uint4 value;
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.s32 wanted, %5, 0;\n"
        "mov.u32 %0, 0;\n"
        "mov.u32 %1, 0;\n"
        "mov.u32 %2, 0;\n"
        "mov.u32 %3, 0;\n"
        "@wanted ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
        "}\n"
        : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
        : "l"(from), "r"(static_cast<int>(wanted)));
    return value;
}

// Wait until all kernels before this one have ended and what they wrote can be read; then let the next
// kernel begin. Its blocks take the room that this kernel leaves, and wait here in turn ("programmatic
// dependent launch", CUDA C++ Programming Guide). Between two kernels that wait for each other in the
// ordinary way a device is idle for about a microsecond, and a decode step has hundreds of kernels.
//
// Every kernel here calls this before it touches memory that a kernel may have written: launch.rs counts
// on it, and a test reads the sources. Weights may be read earlier: no kernel writes them, and the host
// waits for their upload. To let the next kernel begin before this one has waited would be allowed, too,
// but blocks of many kernels would then crowd the multiprocessors: on an H100 a decode step of Qwen3-0.6B
// took 14% longer than without all this, and takes 10% less so; one of 8 layers of Qwen3-8B 9% longer,
// and 1% less.
//
// Devices before Hopper do not have it: there a kernel begins when the one before it has ended.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// 2^x by the special function unit: two units in the last place, and 0 below 2^-126.
__device__ inline float exp2_fast(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x));
    return power;
}

// Two singles, rounded to nearest even, in one word: what pack_halves does, in one instruction.
__device__ inline u32 pack_bf16(float low, float high) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

// The products of two pairs of bf16, each rounded to nearest even; numbers below 2^-126 count. (Adding -0
// changes no product. Before Hopper a multiplication without an addition has no instruction.)
__device__ inline u32 multiply_bf16(u32 a, u32 b) {
    u32 product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    return product;
}

// 16 bytes written with one instruction, and 8. The compiler does so by itself only where it sees that the
// words come from one vector; where each was computed, it writes them one by one.
__device__ inline void store_16(void* to, uint4 words) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};\n"
                 :
                 : "l"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
}

__device__ inline void store_8(void* to, uint2 words) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};\n" : : "l"(to), "r"(words.x), "r"(words.y) : "memory");
}

#endif
