// Four neighbours at a time, and which of them are whose: for kernels that a device could run as fast
// as it can copy.
//
// Such a kernel does next to nothing with what it reads, so all that counts is how many bytes are on
// their way. Memory answers after 0.5 to 1 us; to keep 4.8 TB/s (an H200) busy for 0.7 us, 3.4 MB must be
// under way at any time, 25 KB for each of 132 multiprocessors. A multiprocessor holds 2048 threads: one
// load of 4 bytes from each is 8 KB, a third of what is needed; one of 16 bytes is 32 KB; four of 16
// bytes, asked for before the first is used, 128 KB, which also covers what other threads do in between.
//
// Hence both rules: a thread loads quads, and it loads several before it touches one. Neighbouring
// threads have neighbouring quads, so a warp's load is 512 bytes without a gap.
#pragma once

#include "ptx.cuh"
#include "types.cuh"

template <class T>
struct alignas(4 * sizeof(T)) Quad {
    T at[4];
};

// Write a quad with one instruction, of 16 bytes or 8.
__device__ inline void store_whole(u32* to, const Quad<u32>& quad) {
    store_16(to, make_uint4(quad.at[0], quad.at[1], quad.at[2], quad.at[3]));
}

__device__ inline void store_whole(float* to, const Quad<float>& quad) {
    store_16(to, make_uint4(__float_as_uint(quad.at[0]), __float_as_uint(quad.at[1]),
                            __float_as_uint(quad.at[2]), __float_as_uint(quad.at[3])));
}

__device__ inline u32 two_halves(u16 low, u16 high) {
    return static_cast<u32>(low) | static_cast<u32>(high) << 16;
}

__device__ inline void store_whole(u16* to, const Quad<u16>& quad) {
    store_8(to, make_uint2(two_halves(quad.at[0], quad.at[1]), two_halves(quad.at[2], quad.at[3])));
}

__device__ inline void store_whole(bf16* to, const Quad<bf16>& quad) {
    store_8(to, make_uint2(two_halves(quad.at[0].bits, quad.at[1].bits),
                           two_halves(quad.at[2].bits, quad.at[3].bits)));
}

// Elements i to i + 3 of a row of `width`; 0 where the row has ended.
//
// A row is `whole` when it can be read in quads: its width is a multiple of four and its first element
// lies where a quad may. The host looks at addresses and strides and says so. Any other row is read
// element by element: more instructions, but each thread gets the same numbers, so a sum over a row
// has the same order and the same bits either way.
template <bool whole, class T, class Index>
__device__ inline Quad<T> load_quad(const T* row, Index i, Index width) {
    Quad<T> quad = {};
    if (whole) {
        if (i < width) {
            quad = *reinterpret_cast<const Quad<T>*>(row + i);
        }
    } else {
        for (int j = 0; j < 4; j++) {
            if (i + j < width) {
                quad.at[j] = row[i + j];
            }
        }
    }
    return quad;
}

// The other way; what lies beyond the row is not written.
template <bool whole, class T, class Index>
__device__ inline void store_quad(T* row, Index i, Index width, const Quad<T>& quad) {
    if (whole) {
        if (i < width) {
            store_whole(row + i, quad);
        }
    } else {
        for (int j = 0; j < 4; j++) {
            if (i + j < width) {
                row[i + j] = quad.at[j];
            }
        }
    }
}

// An element as one of another type; one of the same type keeps its bits, a NaN's too.
__device__ inline void assign(float& to, float from) {
    to = from;
}

__device__ inline void assign(float& to, bf16 from) {
    to = to_f32(from);
}

__device__ inline void assign(bf16& to, float from) {
    to = to_bf16(from);
}

__device__ inline void assign(bf16& to, bf16 from) {
    to = from;
}

__device__ inline void assign(u32& to, u32 from) {
    to = from;
}

__device__ inline void assign(u16& to, u16 from) {
    to = from;
}

template <class To, class From>
__device__ inline Quad<To> convert_quad(const Quad<From>& from) {
    Quad<To> to;
    for (int j = 0; j < 4; j++) {
        assign(to.at[j], from.at[j]);
    }
    return to;
}

// Quads of each thread in a tile.
constexpr int EACH = 4;

// What a block owns where rows need not be looked at as a whole: a tile, EACH quads for each of its
// threads, side by side in one row. `tiles` of them cover a row, so block b has tile b % tiles of row
// b / tiles. The thread's own quads are blockDim.x quads apart; in a row that is not whole it has
// single elements, blockDim.x elements apart, from `begin` to `end`.
struct Tile {
    int row;
    i64 start;

    static __device__ inline Tile mine(int tiles) {
        const i64 size = static_cast<i64>(4 * EACH) * blockDim.x;
        const int row = static_cast<int>(blockIdx.x) / tiles;
        const int tile = static_cast<int>(blockIdx.x) % tiles;
        return Tile{row, tile * size};
    }

    // Where the k-th of this thread's quads begins in the row.
    __device__ inline i64 quad(int k) const {
        return start + 4 * static_cast<int>(threadIdx.x + k * blockDim.x);
    }

    __device__ inline i64 begin() const {
        return start + threadIdx.x;
    }

    __device__ inline i64 end(i64 width) const {
        const i64 full = start + static_cast<i64>(4 * EACH) * blockDim.x;
        return full < width ? full : width;
    }
};

// A tile of a row to a tile of another, of which only so much can be read: the rest becomes 0.
template <class From, class To>
__device__ inline void copy_tile(const From* from, i64 readable, To* to, i64 width, Tile tile, int whole) {
    if (whole) {
        Quad<From> quads[EACH];
        for (int k = 0; k < EACH; k++) {
            quads[k] = load_quad<true>(from, tile.quad(k), readable);
        }
        for (int k = 0; k < EACH; k++) {
            store_quad<true>(to, tile.quad(k), width, convert_quad<To>(quads[k]));
        }
    } else {
        for (i64 i = tile.begin(); i < tile.end(width); i += blockDim.x) {
            From element = {};
            if (i < readable) {
                element = from[i];
            }
            assign(to[i], element);
        }
    }
}
