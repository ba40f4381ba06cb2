// A token for each row of logits: temperature, top-k, top-p, min-p, a draw.
//
//     share[i] = e^((logit[i] - max) / temperature)
//     top-k    keep the k largest, of equal ones the first
//     top-p    of these the fewest, in the same order, that have p of their shares together
//     min-p    of these those with a share of at least min_p (the largest has 1)
//     draw     the first, in the order of ids, at which the sum of kept shares exceeds uniform * total
//
// NaN and -infinity are never drawn, +infinity counts as the largest finite number, and a row where
// nothing can be drawn gets the token 0xffffffff. Temperature 0 takes the first of the largest.
//
// Shares are made fixed-point numbers of 44 bits after the point, so their sums are exact: a token does
// not depend on how many threads there are, nor on the batch. 2^20 of them fit 64 bits. What is below
// 2^-44 (30 nats under the largest) is never drawn.
//
// Logits are compared as they are, before the division by the temperature: two that only the division
// makes equal are still told apart.
//
// A filter is a threshold: everything with a larger key is kept, and of those with this very key the first
// few. So filters need no lists of what they keep: each one raises the threshold.
//
// A block has a row. The first pass finds the largest logit. Then there are, with
//     no filter, min-p   one pass for the draw
//     top-p              two for the threshold (boundary.cuh), which also sum up the segments for the draw
//     top-k              one that lists the candidates (as in top_k.cu), among which top-p also selects, and
//                        one for the draw
// and the draw reads one warp's segment again: 8 to 12 bytes for each logit. Two rare cases read the row some
// times more: a top-k above the number of threads, and thousands of logits so close to the threshold that
// they do not fit the list.
//
// Estimated for an H100 at 1.75 GHz: a multiprocessor reads 64 bytes a clock, so a pass over 152,000 logits
// takes at least 5.4 us, and 0.7 us for each instruction that all of them need. The bin pass of top-p has 15
// (far logits) to 27 of these, a draw 20. That makes about 25 us for a row with top-k or no filter, 30 to 50
// with top-p. Where every multiprocessor has a row, all passes but the first still come from memory in part.
#include "boundary.cuh"

struct SampleRow {
    float temperature;
    float top_p;
    float min_p;
    float uniform;
    int top_k;
};

constexpr u32 NOTHING = 0xffffffffu;

// What turns a logit into a share. Powers of 2 are what the hardware has an instruction for, and a factor
// spares a division for each logit; both together are off by a few millionths of a share at most.
struct Softmax {
    float max;
    float temperature;
    float scale;  // log2(e) / temperature, but never so large that 0 times it is no number

    __device__ inline Softmax(float of_max, float of_temperature)
        : max(of_max), temperature(of_temperature), scale(fminf(1.44269504f / of_temperature, 1e30f)) {}

    // Of a logit that is at most `max`. (What exp2_fast flushes to 0 has no share in any case.)
    __device__ inline u64 share(float logit) const {
        return static_cast<u64>(exp2_fast((logit - max) * scale) * 17592186044416.0f);
    }

    // Its logarithm, as exactly as it can be had.
    __device__ inline double log_share(float logit) const {
        return (static_cast<double>(logit) - static_cast<double>(max)) / static_cast<double>(temperature);
    }
};

// Kept are keys above `key`, and the first `ties` elements that have it.
struct Threshold {
    u32 key;
    u64 ties;
};

__device__ inline u64 at_most(u64 a, u64 b) {
    return a < b ? a : b;
}

struct Extremes {
    Largest largest;
    float smallest = -minus_infinity();
};

// The largest and the smallest of this thread's logits that can be drawn.
__device__ inline Extremes scan_extremes(const Span& span) {
    Extremes found;
    for_each_batch(span, Direction::Forward, quiet_nan(), [&](int first, const float(&x)[BATCH]) {
        const float largest = largest_of(x);
        found.largest.take(first, largest > largest_finite() ? largest_finite() : largest);
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            found.smallest = x[n] > minus_infinity() ? fminf(found.smallest, x[n]) : found.smallest;
        }
    });
    return found;
}

// Bins for a row. They need not reach below its smallest logit, nor to where a share is 0, nor to where
// all tokens together have less than what top-p leaves over: width * share < 1 - p.
__device__ inline DistanceBins bins_for(const SampleRow& wanted, int width, float max, float smallest) {
    const float left = wanted.top_p < 1.0f ? 1.0f - wanted.top_p : 0.0f;
    const float nats = fminf(logf(static_cast<float>(width) / left) + 0.1f, 30.6f);
    const float reach = fminf(max - smallest, nats * wanted.temperature);
    return DistanceBins{max, fminf((BINS - 2) / reach, 1e30f)};
}

// The threshold of top-k. `listed` says whether f.list has all that is kept.
__device__ inline Threshold keep_most_likely(const Span& span, u32 mine, int k, Filter& f, bool& listed) {
    const auto one = [](float) { return static_cast<u64>(1); };
    const auto enough = [&](u64) { return static_cast<u64>(k); };
    listed = false;
    if (k <= static_cast<int>(blockDim.x)) {
        const u32 least = kth_of_threads(mine, k);
        const float bound = least == 0 ? -largest_finite() : value_of(least);
        f.list.clear();
        for_each_batch(span, Direction::Backward, quiet_nan(), [&](int first, const float(&x)[BATCH]) {
            if (!(largest_of(x) >= bound)) {
                return;
            }
#pragma unroll
            for (int n = 0; n < BATCH; n++) {
                if (x[n] >= bound) {
                    f.list.append(ranked(token_key(x[n]), in_batch(first, n)));
                }
            }
        });
        __syncthreads();
        listed = f.list.complete();
    }
    const auto there = [](float x) { return x > minus_infinity(); };
    const Boundary last = listed ? boundary_in_list(0, 0, one, enough, f)
                                 : boundary_by_bits(span, there, 0, 0, one, enough, f.histogram);
    return last.found ? Threshold{last.key, last.missing} : Threshold{0, 0};
}

// The least key that is likely enough for min-p. The larger a key, the likelier, so each lane tries another
// one, until two neighbours are left: seven times.
__device__ inline u32 least_likely(const Softmax& softmax, float min_p, u32 top) {
    const u32 lane = threadIdx.x % WARP;
    const double farthest = log(static_cast<double>(min_p));
    u32 less = 0;
    u32 enough = top;
    while (enough - less > 1) {
        const u32 gap = (enough - less + WARP) / (WARP + 1);
        const u32 key = less + gap * (lane + 1);
        const bool likely = key >= enough || softmax.log_share(value_of(key)) >= farthest;
        const u32 all = __ballot_sync(ALL_LANES, likely);
        const u32 first = all != 0 ? __ffs(static_cast<int>(all)) - 1 : WARP;
        less += gap * first;
        enough = first < WARP ? min(enough, less + gap) : enough;
    }
    return enough;
}

// The token at `uniform` of the way through the kept shares. Each warp sums up a segment of the row; the
// segment in which the sum exceeds that point is divided among the warps in turn, until it is one token.
// With 32 warps 152,000 tokens take four rounds, of which only the first reads the whole row, and none when
// the segments are `summed` already.
__device__ inline u32 draw(const Span& span, const Softmax& softmax, const Threshold& kept, u32 top, float uniform,
                           Segments& segments, bool summed) {
    const int lane = threadIdx.x % WARP;
    const int warp = threadIdx.x / WARP;
    const int warps = blockDim.x / WARP;
    const u64 share = kept.ties > 0 ? softmax.share(value_of(kept.key)) : 0;
    const float above = above_key(kept.key, top);
    const float equal = kept.key > 0 ? value_of(kept.key) : -minus_infinity();
    int low = 0;
    int high = span.end;
    int piece = span.segment;
    u64 point = 0;
    u64 before = 0;  // shares of kept tokens before `low`
    u64 ties_before = 0;
    bool chosen = false;
    while (high - low > 1) {
        if (!summed) {
            const int begin = min(low + warp * piece, high);
            const int end = min(begin + piece, high);
            u64 sum = 0;
            u32 ties = 0;
            const auto add = [&](int, const float(&x)[BATCH]) {
#pragma unroll
                for (int n = 0; n < BATCH; n++) {
                    if (x[n] > above) {
                        sum += softmax.share(fminf(x[n], softmax.max));
                    } else if (x[n] >= equal) {
                        ties++;
                    }
                }
            };
            for_each_batch(span.row, begin, end, span.quads && !chosen, Direction::Backward, quiet_nan(), add);
            sum = warp_sum(sum);
            ties = __reduce_add_sync(ALL_LANES, ties);
            if (lane == 0) {
                segments.put(warp, sum, ties);
            }
            __syncthreads();
        }
        summed = false;
        // Every warp does the same here, each lane for one segment.
        const bool there = lane < warps;
        const u64 equals = there ? segments.ties[lane] : 0;
        const u64 equals_until = ties_before + warp_scan(equals);
        const u64 first_ties = at_most(equals_until, kept.ties) - at_most(equals_until - equals, kept.ties);
        const u64 mass = (there ? two_words(segments.low[lane], segments.high[lane]) : 0) + first_ties * share;
        const u64 until = before + warp_scan(mass);
        if (!chosen) {
            const u64 total = __shfl_sync(ALL_LANES, until, WARP - 1);
            const double at = static_cast<double>(uniform) * static_cast<double>(total);
            point = at_most(at > 0.0 ? static_cast<u64>(at) : 0, total - 1);
            chosen = true;
        }
        const u32 exceeds = __ballot_sync(ALL_LANES, there && until > point);
        const int found = exceeds != 0 ? __ffs(static_cast<int>(exceeds)) - 1 : warps - 1;
        before = __shfl_sync(ALL_LANES, until - mass, found);
        ties_before = __shfl_sync(ALL_LANES, equals_until - equals, found);
        low += found * piece;
        high = min(low + piece, high);
        piece = ceil_div(high - low, warps);
        __syncthreads();
    }
    return low;
}

// Grid: a block for each row; at least two warps.
extern "C" __global__ void __launch_bounds__(1024)
    sample(const float* logits, i64 stride, int width, const SampleRow* rows, u32* out) {
    wait_for_previous();
    __shared__ Filter f;
    __shared__ u32 partial[WARP];
    const float* row = logits + blockIdx.x * stride;
    const Span span(row, 0, width);
    const SampleRow wanted = rows[blockIdx.x];

    const Extremes found = scan_extremes(span);
    const u32 mine = found.largest.value > minus_infinity() ? ordered(found.largest.value) : 0;
    const u32 top = block_max(mine, partial);
    if (top == 0 || !(wanted.temperature > 0.0f)) {  // The same for all threads.
        const auto same = [&](float x) { return x > minus_infinity() && token_key(x) == top; };
        const bool has = top > 0 && mine == top;
        const u32 first = first_index(span, found.largest.batch, has, same, partial);
        if (threadIdx.x == 0) {
            out[blockIdx.x] = top == 0 ? NOTHING : first;
        }
        return;
    }
    const float smallest = value_of(~block_max(~ordered(found.smallest), partial));
    const Softmax softmax(value_of(top), wanted.temperature);
    const DistanceBins bins = bins_for(wanted, width, softmax.max, smallest);
    Threshold kept = {0, 0};
    bool listed = false;
    bool summed = false;
    if (wanted.top_k > 0 && wanted.top_k < width) {
        kept = keep_most_likely(span, mine, wanted.top_k, f, listed);
    }
    if (wanted.top_p < 1.0f) {
        const u64 of_ties = kept.ties > 0 ? kept.ties * softmax.share(value_of(kept.key)) : 0;
        const auto share = [&](float x) { return softmax.share(x); };
        const auto enough = [&](u64 total) {
            const double mass = ceil(static_cast<double>(wanted.top_p) * static_cast<double>(total));
            const u64 rounded = mass > 1.0 ? static_cast<u64>(mass) : 1;
            return at_most(rounded, total);
        };
        const Boundary last =
            listed ? boundary_in_list(kept.key, of_ties, share, enough, f)
                   : boundary_in_row(span, bins, top, kept.key, of_ties, share, enough, f, summed);
        const u64 each = softmax.share(value_of(last.key));
        kept = Threshold{last.key, (last.missing + each - 1) / each};
    }
    if (wanted.min_p > 0.0f) {
        const u32 enough = least_likely(softmax, wanted.min_p, top);
        if (enough > kept.key) {
            kept = Threshold{enough - 1, 0};
            summed = false;
        }
    }
    const u32 token = draw(span, softmax, kept, top, wanted.uniform, f.segments, summed);
    if (threadIdx.x == 0) {
        out[blockIdx.x] = token;
    }
}
