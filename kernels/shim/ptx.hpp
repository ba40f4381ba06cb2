// What cu/ptx.cuh has assembly for, element by element: see there for what each of them does.
//
// Two things can be told apart here that a device lets pass by luck: a fragment that a lane has filled
// wrongly, and an asynchronous copy that nobody waited for (it has not happened yet).
#pragma once

// One kernel ends before the next one begins.
inline void wait_for_previous() {}

// A sum of bf16 products. A product of two bf16 is exact in f32; their sum is taken in f32, k ascending.
// The tensor cores keep a few bits more or less, so results agree to rounding, not to the last bit.
struct strata_mma {
    float* d;
    const u32* a;
    const u32* b;

    STRATA_TRUSTED static float half(u32 word, int which) {
        return which == 0 ? low_half(word) : high_half(word);
    }

    STRATA_TRUSTED static const char* combine(void* const* lanes, u32 mask) {
        if (mask != ALL_LANES) {
            return "not all lanes take part";
        }
        float a[16][16];
        alignas(32) float b[16][8];
        for (int lane = 0; lane < WARP; ++lane) {
            const strata_mma& of = *static_cast<const strata_mma*>(lanes[lane]);
            const int group = lane / 4, pair = lane % 4;
            for (int h = 0; h < 2; ++h) {
                const int column = 2 * pair + h;
                a[group][column] = half(of.a[0], h);
                a[group + 8][column] = half(of.a[1], h);
                a[group][column + 8] = half(of.a[2], h);
                a[group + 8][column + 8] = half(of.a[3], h);
                b[column][group] = half(of.b[0], h);
                b[column + 8][group] = half(of.b[1], h);
            }
        }
        alignas(32) float d[16][8];
        for (int lane = 0; lane < WARP; ++lane) {
            const strata_mma& of = *static_cast<const strata_mma*>(lanes[lane]);
            const int group = lane / 4, column = lane % 4 * 2;
            d[group][column] = of.d[0];
            d[group][column + 1] = of.d[1];
            d[group + 8][column] = of.d[2];
            d[group + 8][column + 1] = of.d[3];
        }
        for (int row = 0; row < 16; ++row) {
            // A row at once: the compiler's own vectors are as wide as the tile.
            typedef float vector __attribute__((vector_size(32)));
            vector sums;
            memcpy(&sums, d[row], sizeof sums);
            for (int k = 0; k < 16; ++k) {
                vector right;
                memcpy(&right, b[k], sizeof right);
                sums += a[row][k] * right;
            }
            memcpy(d[row], &sums, sizeof sums);
        }
        for (int lane = 0; lane < WARP; ++lane) {
            const strata_mma& of = *static_cast<const strata_mma*>(lanes[lane]);
            const int group = lane / 4, column = lane % 4 * 2;
            of.d[0] = d[group][column];
            of.d[1] = d[group][column + 1];
            of.d[2] = d[group + 8][column];
            of.d[3] = d[group + 8][column + 1];
        }
        return nullptr;
    }
};

inline void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], STRATA_HERE) {
    strata_mma mine{d, a, b};
    strata_warp_collective(ALL_LANES, &mine, strata_mma::combine, "mma_bf16", file, line);
}

struct strata_ldmatrix {
    u32* out;
    const u16* row;

    template <bool transposed>
    static const char* combine(void* const* lanes, u32) {
        for (int lane = 0; lane < WARP; ++lane) {
            if (reinterpret_cast<size_t>(static_cast<const strata_ldmatrix*>(lanes[lane])->row) % 16 != 0) {
                return "a row that is not aligned to 16 bytes";
            }
        }
        for (int lane = 0; lane < WARP; ++lane) {
            const strata_ldmatrix& of = *static_cast<const strata_ldmatrix*>(lanes[lane]);
            for (int i = 0; i < 4; ++i) {
                u32 halves[2];
                for (int h = 0; h < 2; ++h) {
                    const int row = transposed ? lane % 4 * 2 + h : lane / 4;
                    const int column = transposed ? lane / 4 : lane % 4 * 2 + h;
                    halves[h] = static_cast<const strata_ldmatrix*>(lanes[8 * i + row])->row[column];
                }
                of.out[i] = halves[0] | halves[1] << 16;
            }
        }
        return nullptr;
    }
};

inline void ldmatrix_x4(u32 (&out)[4], const void* row, STRATA_HERE) {
    strata_ldmatrix mine{out, static_cast<const u16*>(row)};
    strata_warp_collective(ALL_LANES, &mine, strata_ldmatrix::combine<false>, "ldmatrix_x4", file, line);
}

inline void ldmatrix_x4_transposed(u32 (&out)[4], const void* row, STRATA_HERE) {
    strata_ldmatrix mine{out, static_cast<const u16*>(row)};
    strata_warp_collective(ALL_LANES, &mine, strata_ldmatrix::combine<true>, "ldmatrix_x4_transposed", file,
                           line);
}

inline void copy_async_16(void* shared, const void* global, bool wanted) {
    strata_copy_async(shared, global, 16, wanted);
}

inline void copy_async_commit() {
    strata_copy_commit();
}

template <int pending>
inline void copy_async_wait() {
    strata_copy_wait(pending);
}

inline uint4 load_once(const uint4* from, bool wanted) {
    return wanted ? *from : uint4{0, 0, 0, 0};
}

inline float exp2_fast(float x) {
    return x < -126.0f ? 0.0f : exp2f(x);
}

inline u32 pack_bf16(float low, float high) {
    return pack_halves(low, high);
}

// A product of two bf16 is exact in f32, unless it is below 2^-126.
inline u32 multiply_bf16(u32 a, u32 b) {
    return pack_halves(low_half(a) * low_half(b), high_half(a) * high_half(b));
}

inline void store_16(void* to, uint4 words) {
    if (reinterpret_cast<size_t>(to) % 16 != 0) {
        strata_fail("store_16 to an address that is not a multiple of 16");
    }
    memcpy(to, &words, 16);
}

inline void store_8(void* to, uint2 words) {
    if (reinterpret_cast<size_t>(to) % 8 != 0) {
        strata_fail("store_8 to an address that is not a multiple of 8");
    }
    memcpy(to, &words, 8);
}
