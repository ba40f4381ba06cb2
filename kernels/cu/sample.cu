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
// Logits stand in line as they are, before the division by the temperature: two that only the division
// makes equal are still told apart.
//
// A filter is a bar in this line: everything with a larger key is kept, and of those with this
// very key the first few. So filters need no lists: each one moves the bar up (`front` finds it).
//
// A block has a row, which it reads once for the largest, four times for each of top-k and top-p, and
// once and a bit to draw; but for the first time from the second-level cache, which gives a
// multiprocessor some 64 bytes a clock: 5 us for each pass over 152,000 logits.
#include "select.cuh"

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

    __device__ inline u64 share(float logit) const {
        return static_cast<u64>(exp2f((fminf(logit, max) - max) * scale) * 17592186044416.0f);
    }

    // Its logarithm, as exactly as it can be had.
    __device__ inline double log_share(float logit) const {
        return (static_cast<double>(logit) - static_cast<double>(max)) / static_cast<double>(temperature);
    }
};

// Kept are keys above `key`, and the first `ties` elements that have it.
struct Bar {
    u32 key;
    u64 ties;
};

__device__ inline u64 at_most(u64 a, u64 b) {
    return a < b ? a : b;
}

// The token at `uniform` of the way through the kept shares. Each warp sums up a part of the row; the
// part in which the sum exceeds the dart is divided among the warps in turn, until it is one token. With
// 32 warps 152,000 tokens take four rounds, the last three of which are over in no time.
__device__ inline u32 draw(const float* row, int width, const Softmax& softmax, const Bar& bar, float uniform,
                           u64* sums, u64* ties) {
    const int lane = threadIdx.x % WARP;
    const int warp = threadIdx.x / WARP;
    const int warps = blockDim.x / WARP;
    const u64 share = bar.ties > 0 ? softmax.share(value_of(bar.key)) : 0;
    int low = 0;
    int high = width;
    u64 dart = 0;
    u64 walked = 0;   // shares of kept tokens before `low`
    u64 ties_before = 0;
    bool thrown = false;
    while (high - low > 1) {
        const int piece = ceil_div(high - low, warps);
        const int begin = low + warp * piece;
        const int end = begin + piece < high ? begin + piece : high;
        u64 sum = 0;
        u64 equal = 0;
        for (int i = begin + lane; i < end; i += WARP) {
            const u32 key = Choosable::key(row[i]);
            if (key > bar.key) {
                sum += softmax.share(row[i]);
            }
            equal += key == bar.key;
        }
        sum = warp_sum(sum);
        equal = warp_sum(equal);
        if (lane == 0) {
            sums[warp] = sum;
            ties[warp] = equal;
        }
        __syncthreads();
        if (!thrown) {
            u64 total = 0;
            u64 all = 0;
            for (int w = 0; w < warps; w++) {
                total += sums[w];
                all += ties[w];
            }
            total += at_most(all, bar.ties) * share;
            const double at = static_cast<double>(uniform) * static_cast<double>(total);
            dart = at > 0.0 ? static_cast<u64>(at) : 0;
            dart = at_most(dart, total - 1);
            thrown = true;
        }
        int w = 0;
        for (; w < warps - 1; w++) {
            const u64 kept = at_most(ties_before + ties[w], bar.ties) - at_most(ties_before, bar.ties);
            const u64 mass = sums[w] + kept * share;
            if (walked + mass > dart) {
                break;
            }
            walked += mass;
            ties_before += ties[w];
        }
        low += w * piece;
        high = low + piece < high ? low + piece : high;
        __syncthreads();
    }
    return low;
}

// Grid: a block for each row; at least two warps.
extern "C" __global__ void sample(const float* logits, i64 stride, int width, const SampleRow* rows,
                                  u32* out) {
    __shared__ Histogram h;
    __shared__ u64 partial[WARP];
    __shared__ u64 ties[WARP];
    const float* row = logits + blockIdx.x * stride;
    const SampleRow wanted = rows[blockIdx.x];

    const u64 first = first_of<Choosable>(row, 0, width, partial);
    const u32 top = key_in_line(first);
    if (top == 0 || !(wanted.temperature > 0.0f)) {  // The same for all threads.
        if (threadIdx.x == 0) {
            out[blockIdx.x] = top == 0 ? NOTHING : index_in_line(first);
        }
        return;
    }
    const Softmax softmax(value_of(top), wanted.temperature);
    const float steps = BINS / 32.0f / wanted.temperature;
    Bar bar = {0, 0};
    if (wanted.top_k > 0 && wanted.top_k < width) {
        const auto one = [](float) { return static_cast<u64>(1); };
        const auto enough = [&](u64) { return static_cast<u64>(wanted.top_k); };
        const Front last = front<Choosable>(row, width, top, steps, 0, 0, one, enough, h);
        if (last.found) {
            bar = Bar{last.key, last.missing};
        }
    }
    if (wanted.top_p < 1.0f) {
        const u64 of_bar = bar.ties > 0 ? bar.ties * softmax.share(value_of(bar.key)) : 0;
        const auto share = [&](float x) { return softmax.share(x); };
        const auto enough = [&](u64 total) {
            const double mass = ceil(static_cast<double>(wanted.top_p) * static_cast<double>(total));
            const u64 rounded = mass > 1.0 ? static_cast<u64>(mass) : 1;
            return at_most(rounded, total);
        };
        const Front last = front<Choosable>(row, width, top, steps, bar.key, of_bar, share, enough, h);
        const u64 each = softmax.share(value_of(last.key));
        bar = Bar{last.key, (last.missing + each - 1) / each};
    }
    if (wanted.min_p > 0.0f) {
        // The least key that is likely enough, by bisection: the larger a key, the likelier.
        const double farthest = log(static_cast<double>(wanted.min_p));
        u32 less = 0;
        u32 enough = top;
        while (enough - less > 1) {
            const u32 middle = less + (enough - less) / 2;
            if (softmax.log_share(value_of(middle)) >= farthest) {
                enough = middle;
            } else {
                less = middle;
            }
        }
        if (enough > bar.key) {
            bar = Bar{enough - 1, 0};
        }
    }
    const u32 token = draw(row, width, softmax, bar, wanted.uniform, partial, ties);
    if (threadIdx.x == 0) {
        out[blockIdx.x] = token;
    }
}
