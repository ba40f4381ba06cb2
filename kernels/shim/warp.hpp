// What threads of a block, and lanes of a warp, do together: the rest of CUDA C++'s names.
//
// What a warp does is done by the last lane to arrive, for all of them: `combine` gets what each has brought.
#pragma once

// ---- the block ------------------------------------------------------------------------------------
// Where a collective was called from is part of what it is: threads of a block that meet in two places
// have parted ways.
#define STRATA_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(STRATA_HERE) {
    strata_block_barrier(0, "__syncthreads", file, line);
}
inline int __syncthreads_count(int flag, STRATA_HERE) {
    return strata_block_barrier(flag, "__syncthreads_count", file, line);
}
inline int __syncthreads_or(int flag, STRATA_HERE) {
    return strata_block_barrier(flag, "__syncthreads_or", file, line) != 0;
}
inline int __syncthreads_and(int flag, STRATA_HERE) {
    return strata_block_barrier(!flag, "__syncthreads_and", file, line) == 0;
}

// ---- the warp -------------------------------------------------------------------------------------
inline const char* strata_nothing(void* const*, unsigned) {
    return nullptr;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, STRATA_HERE) {
    strata_warp_collective(mask, nullptr, strata_nothing, "__syncwarp", file, line);
}
inline unsigned __activemask() { return strata_active_lanes(); }

template <class T>
struct strata_shuffle {
    T value;
    unsigned source;
    T result;

    STRATA_TRUSTED static const char* combine(void* const* lanes, unsigned mask) {
        for (unsigned lane = 0; lane < 32; ++lane) {
            if (mask >> lane & 1u) {
                strata_shuffle* mine = static_cast<strata_shuffle*>(lanes[lane]);
                if (!(mask >> mine->source & 1u)) {
                    return "a lane reads from a lane that is not in the mask";
                }
                mine->result = static_cast<strata_shuffle*>(lanes[mine->source])->value;
            }
        }
        return nullptr;
    }
};

template <class T>
inline T strata_shuffled(unsigned mask, T value, unsigned source, const char* what, const char* file,
                         int line) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "the device shuffles 32 and 64 bits");
    strata_shuffle<T> mine{value, source, value};
    strata_warp_collective(mask, &mine, strata_shuffle<T>::combine, what, file, line);
    return mine.result;
}

// `width` cuts the warp into parts that know nothing of each other.
template <class T>
inline T __shfl_sync(unsigned mask, T value, int from, int width = 32, STRATA_HERE) {
    const unsigned lane = strata_current->lane;
    const unsigned part = lane & ~static_cast<unsigned>(width - 1);
    const unsigned source = part + (static_cast<unsigned>(from) & static_cast<unsigned>(width - 1));
    return strata_shuffled(mask, value, source, "__shfl_sync", file, line);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, STRATA_HERE) {
    const unsigned lane = strata_current->lane;
    const unsigned other = lane ^ static_cast<unsigned>(with);
    const unsigned end = (lane | static_cast<unsigned>(width - 1)) + 1;
    return strata_shuffled(mask, value, other < end ? other : lane, "__shfl_xor_sync", file, line);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, STRATA_HERE) {
    const unsigned lane = strata_current->lane;
    const unsigned place = lane & static_cast<unsigned>(width - 1);
    return strata_shuffled(mask, value, place >= by ? lane - by : lane, "__shfl_up_sync", file, line);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, STRATA_HERE) {
    const unsigned lane = strata_current->lane;
    const unsigned place = lane & static_cast<unsigned>(width - 1);
    const bool inside = place + by < static_cast<unsigned>(width);
    return strata_shuffled(mask, value, inside ? lane + by : lane, "__shfl_down_sync", file, line);
}

struct strata_vote {
    unsigned result;

    static const char* combine(void* const* lanes, unsigned mask) {
        unsigned votes = 0;
        for (unsigned lane = 0; lane < 32; ++lane) {
            if (mask >> lane & 1u) {
                votes |= (static_cast<strata_vote*>(lanes[lane])->result != 0 ? 1u : 0u) << lane;
            }
        }
        for (unsigned lane = 0; lane < 32; ++lane) {
            if (mask >> lane & 1u) {
                static_cast<strata_vote*>(lanes[lane])->result = votes;
            }
        }
        return nullptr;
    }
};
inline unsigned strata_voted(unsigned mask, int flag, const char* what, const char* file, int line) {
    strata_vote mine{flag != 0 ? 1u : 0u};
    strata_warp_collective(mask, &mine, strata_vote::combine, what, file, line);
    return mine.result;
}
inline unsigned __ballot_sync(unsigned mask, int flag, STRATA_HERE) {
    return strata_voted(mask, flag, "__ballot_sync", file, line);
}
inline int __any_sync(unsigned mask, int flag, STRATA_HERE) {
    return strata_voted(mask, flag, "__any_sync", file, line) != 0;
}
inline int __all_sync(unsigned mask, int flag, STRATA_HERE) {
    return strata_voted(mask, flag, "__all_sync", file, line) == mask;
}

struct strata_reduction {
    unsigned value;

    template <class F>
    static void fold(void* const* lanes, unsigned mask, F with) {
        bool first = true;
        unsigned result = 0;
        for (unsigned lane = 0; lane < 32; ++lane) {
            if (mask >> lane & 1u) {
                const unsigned value = static_cast<strata_reduction*>(lanes[lane])->value;
                result = first ? value : with(result, value);
                first = false;
            }
        }
        for (unsigned lane = 0; lane < 32; ++lane) {
            if (mask >> lane & 1u) {
                static_cast<strata_reduction*>(lanes[lane])->value = result;
            }
        }
    }
};
#define STRATA_REDUCTION(name, T, expression)                                                            \
    inline T name(unsigned mask, T value, STRATA_HERE) {                                                 \
        strata_reduction mine{static_cast<unsigned>(value)};                                             \
        strata_warp_collective(                                                                          \
            mask, &mine,                                                                                 \
            [](void* const* lanes, unsigned all) -> const char* {                                        \
                strata_reduction::fold(lanes, all, [](unsigned l, unsigned r) -> unsigned {              \
                    const T a = static_cast<T>(l), b = static_cast<T>(r);                                \
                    return static_cast<unsigned>(expression);                                            \
                });                                                                                      \
                return nullptr;                                                                          \
            },                                                                                           \
            #name, file, line);                                                                          \
        return static_cast<T>(mine.value);                                                               \
    }
STRATA_REDUCTION(__reduce_add_sync, int, static_cast<unsigned>(a) + static_cast<unsigned>(b))
STRATA_REDUCTION(__reduce_add_sync, unsigned, a + b)
STRATA_REDUCTION(__reduce_min_sync, int, min(a, b))
STRATA_REDUCTION(__reduce_min_sync, unsigned, min(a, b))
STRATA_REDUCTION(__reduce_max_sync, int, max(a, b))
STRATA_REDUCTION(__reduce_max_sync, unsigned, max(a, b))
#undef STRATA_REDUCTION

inline void __trap() { strata_fail("__trap() was called"); }
inline void __nanosleep(unsigned) {}
inline long long clock64() { return 0; }
