// Weights in NVFP4: how they lie in a device's memory, and how they become bf16.
//
//     w = e2m1(code) e4m3(scale)      a code of 4 bits for each weight, a scale of 8 for 16 neighbours
//
// and a factor for some rows, which is applied to a finished sum (Output::of in linear.cuh).
//
// A row is cut into blocks of 128 columns, which is what a warp of a gemv takes at a time (gemv.cuh). All of
// a row's codes come first, then all of its scales, then what is missing to a multiple of 16 bytes:
//
//     block of codes    64 bytes: for pair 0..4, for piece 0..4, a word with the 8 codes of columns
//                       32 piece + 8 pair and on, so that the 16 bytes of a lane are one load
//     word              columns 0, 2, 4, 6 in the nibbles of the lower half, the first one on top; columns
//                       1, 3, 5, 7 so in the upper half: two neighbours are 16 bits apart, as in a pair of bf16
//     block of scales   8 bytes: for half 0..2, for piece 0..4, that of columns 32 piece + 16 half and on
//
// Codes and scales beyond the end of a row are zeros. kernels/src/nvfp4.rs writes rows so.
//
// A code is sign, two bits of exponent (bias 1), one bit of mantissa. Put where a bf16 has its sign, the
// lower end of its exponent and the upper end of its mantissa, it is the same number times 2^-126, and that
// holds for the subnormal one (0.5), too. So does a scale (four bits of exponent, bias 7, three of mantissa)
// times 2^-120. Multiplications by these powers make them right, and code times scale is exact, since a
// product has at most six significant bits. No table is read, and nothing is converted from or to f32.
#pragma once

#include "ptx.cuh"
#include "types.cuh"

constexpr int NVFP4_BLOCK = 128;  // columns

// Two bf16 in a word, both of them this power of two.
constexpr u32 TWO_TO_THE_126 = 0x7e807e80u;
constexpr u32 TWO_TO_THE_120 = 0x7b807b80u;

// The scale that byte `piece` of a word is, twice in a word as bf16.
__device__ inline u32 nvfp4_scale(u32 scales, int piece) {
    const u32 twice = __byte_perm(scales, 0, 0x0404 | piece << 4 | piece << 12);
    return multiply_bf16(twice >> 4, TWO_TO_THE_120);
}

// The weights of a word of codes: a word of two bf16 for columns 0 and 1, for 2 and 3, 4 and 5, 6 and 7.
__device__ inline uint4 nvfp4_weights(u32 codes, u32 scale) {
    u32 out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 top = codes << 4 * i;
        const u32 bits = (top & 0x80008000u) | (top >> 6 & 0x01c001c0u);
        out[i] = multiply_bf16(multiply_bf16(bits, TWO_TO_THE_126), scale);
    }
    return uint4{out[0], out[1], out[2], out[3]};
}

// A matrix.
struct Nvfp4 {
    const unsigned char* at;
    int rows;
    int width;

    __device__ inline int blocks() const {
        return ceil_div(width, NVFP4_BLOCK);
    }

    // The first byte of a row: 72 bytes for a block, rounded up.
    __device__ inline const unsigned char* row(int n) const {
        return at + n * static_cast<i64>(ceil_div(72 * blocks(), 16) * 16);
    }

    // Four words of codes, one for each piece.
    static __device__ inline const uint4* codes(const unsigned char* row, int block, int pair) {
        return reinterpret_cast<const uint4*>(row) + 4 * block + pair;
    }

    // Four scales in a word, one for each piece.
    __device__ inline const u32* scales(const unsigned char* row, int block, int pair) const {
        return reinterpret_cast<const u32*>(row + 64 * blocks()) + 2 * block + pair / 2;
    }

    // Columns 8 i and on of a row, as bf16.
    __device__ inline uint4 eight(int n, int i) const {
        const int block = i / 16;
        const int piece = i % 16 / 4;
        const int pair = i % 4;
        const unsigned char* from = row(n);
        const u32 word = reinterpret_cast<const u32*>(codes(from, block, pair))[piece];
        return nvfp4_weights(word, nvfp4_scale(*scales(from, block, pair), piece));
    }
};
