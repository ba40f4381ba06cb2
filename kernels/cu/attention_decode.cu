// Attention of few queries per sequence over a paged cache, split over the keys: Flash-Decoding (Dao,
// Haziza, Massa, Sizov 2023).
//
//   out = softmax(scale q K^T) V     for the last tokens of each sequence: one, or a token and its drafts
//
// Decoding reads every key and value once and computes little with them, so what counts is that all of
// the memory's bandwidth is in use: reads of 16 bytes, enough of them on their way at any time (an H200
// brings 4.8 TB/s after about 0.8 us, so about 30 KB a multiprocessor have to be under way, and more when
// it is busy), enough blocks for all multiprocessors, and no key read twice as long as the rows fit a
// block.
//
// A block owns one split of the keys of one sequence and one KV head, for all queries and all query heads
// of the group together, as far as they fill 16 rows: one query of 16 heads, or four of 4. Its four warps
// take turns: of every 64 keys a warp has 16, and it runs by itself, with its own two stages of shared
// memory, its own running maximum, sum and output. While it computes with one stage, cp.async brings the
// other. At DIM 128 a stage is 8.5 KiB and a block 68 KiB, and a thread has at most 168 registers, so an
// H200 has three blocks a multiprocessor and at least 3 x 4 x 8 KiB = 96 KiB on their way, at most twice
// that.
//
// Why tensor cores, when there is so little to compute? A key of DIM 128 is 512 bytes with its value, and
// with a group of 4 takes 4 x 2 x 128 fused multiply-adds; at 18 bytes a clock and multiprocessor that is
// 36 lanes of its 128 for those alone, as many again to widen bf16 and to add over lanes, and it
// grows with the group. Padded to the 16 rows of an mma the same work is 32 instructions for 16 keys,
// about a tenth of what the tensor cores can do, whatever the group. Empty rows cost nothing that is
// scarce, so drafts that fill them cost next to nothing.
//
// At the end a block merges its warps, and writes either the result (a sequence with one split) or
// its partial result, which attention_decode_merge merges with those of the other splits. Both merge in
// the same way: parts that were summed relative to their own maxima are made relative to the largest.
// A partial result is (DIM + 2) words of f32 a head for a split of (4 DIM bytes) a key: at 512 keys and a
// group of 4 less than 1% of what is read.
//
// How many splits. The host gives a number of parts; the device divides the keys there are by it. So a
// captured launch, whose grid cannot change, keeps all multiprocessors busy at any length. The order of
// sums depends on that number, hence on the batch: this kernel is not for batch-invariant arithmetic.
#include "attention.cuh"

constexpr int WARPS = 4;
constexpr int KEYS = 16;               // a warp's tile
constexpr int ROUND = WARPS * KEYS;    // a block's
constexpr int SHORTEST_SPLIT = 128;    // below this a block is mostly beginning and end
constexpr int MOST_PARTS = 64;         // more would make the merging long

// Dynamic shared memory: first the one, then the other.
template <int DIM>
union Shared {
    struct {
        bf16 keys[2][KEYS * PADDED<DIM>];
        bf16 values[2][KEYS * PADDED<DIM>];
    } stages[WARPS];
    struct {
        float out[WARPS][16][DIM];
        float max[16][WARPS];
        float sum[16][WARPS];
    } ends;
};

// The keys that the queries of a sequence see, and how they are split: [begin, begin + length), and so on.
struct Splits {
    int begin;
    int length;
    int count;

    __device__ inline Splits(const Sequence& sequence, int window, int parts) {
        begin = first_visible(sequence.position(0), window);
        const int share = ceil_div(sequence.kv_len - begin, parts);
        length = share > SHORTEST_SPLIT ? ceil_div(share, ROUND) * ROUND : SHORTEST_SPLIT;
        count = ceil_div(sequence.kv_len - begin, length);
    }
};

// Parts of one softmax, each summed relative to its own maximum, become one relative to the largest:
// part i, its sum of weights and its weighted sum of values alike, counts 2^(max_i - largest).
struct Merge {
    float largest;
    float total;  // of all weights

    __device__ inline Merge(const float* max, const float* sum, int parts) : largest(LOWEST), total(0.0f) {
        // exercise l0.split_kv
        for (int i = 0; i < parts; i++) {
            largest = fmaxf(largest, max[i]);
        }
        for (int i = 0; i < parts; i++) {
            total += sum[i] * weight(max[i]);
        }
        // end of exercise
    }

    __device__ inline float weight(float max) const {
        // exercise l0.split_kv
        return exp2_fast(max - largest);
        // end of exercise
    }
};

template <int DIM>
__device__ inline void attend(const float* q, const bf16* k, const bf16* v, const Sequence& sequence,
                              void* out, float* partial, float* ends, i64 q_stride, i64 out_stride,
                              int q_heads, int kv_heads, int block_size, int window, float scale_log2,
                              int most_queries, int out_bf16) {
    extern __shared__ STRATA_ALIGNED(16) unsigned char dynamic_shared[];
    Shared<DIM>& shared = *reinterpret_cast<Shared<DIM>*>(dynamic_shared);
    const int parts = gridDim.x;
    const int split = blockIdx.x;
    const Splits splits(sequence, window, parts);
    const int group = q_heads / kv_heads;
    const int row_tiles = ceil_div(most_queries * group, 16);
    const int kv_head = blockIdx.y / row_tiles;
    const int first_row = blockIdx.y % row_tiles * 16;
    const int there = sequence.q_len * group - first_row;
    const int count = there < 16 ? there : 16;
    // A sequence without keys has no split, but its output wants zeros.
    if (sequence.q_len > most_queries || count <= 0 || (split >= splits.count && split > 0)) {
        return;
    }
    const int lane = threadIdx.x % WARP;
    const int warp = threadIdx.x / WARP;
    // A row is a query of one head: the head of the group runs fastest.
    const auto query_of = [&](int row) { return (first_row + row) / group; };
    const auto head_of = [&](int row) { return kv_head * group + (first_row + row) % group; };

    const int begin = splits.begin + split * splits.length;
    const int end = begin + splits.length < sequence.kv_len ? begin + splits.length : sequence.kv_len;

    // The two rows of this lane, and what they see of this split.
    Rows<DIM> rows;
    const int low = lane / 4;
    const float* query[2];
    int from[2], to[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = low + r * 8;
        const int i = query_of(row);
        const int position = sequence.position(i);
        const i64 token = sequence.start + i;
        query[r] = row < count ? q + token * q_stride + static_cast<i64>(head_of(row)) * DIM : nullptr;
        from[r] = max(begin, first_visible(position, window));
        to[r] = min(end, position + 1);
    }
    rows.begin(query[0], query[1]);

    // Lane l and lane l + 16 know in which block key l of the next tile lies: looked up a whole tile
    // before it is needed.
    auto look_up = [&](int tile) {
        const int key = tile + lane % KEYS;
        return key < end ? sequence.table[key / block_size] : -1;
    };
    auto fetch = [&](int stage, int tile, int block) {
        constexpr int PIECES = DIM / 8;
        static_assert(KEYS * PIECES % WARP == 0, "every lane copies as many pieces");
        if (tile < end) {
            const int my_slot = Sequence::slot_in(block, tile + lane % KEYS, block_size);
#pragma unroll
            for (int i = 0; i < KEYS * PIECES / WARP; i++) {
                const int piece = i * WARP + lane;
                const int row = piece / PIECES;
                const int slot = __shfl_sync(ALL_LANES, my_slot, row);
                auto& mine = shared.stages[warp];
                copy_piece<DIM>(mine.keys[stage], k, row, piece % PIECES, slot, kv_heads, kv_head);
                copy_piece<DIM>(mine.values[stage], v, row, piece % PIECES, slot, kv_heads, kv_head);
            }
        }
        copy_async_commit();
    };

    int tile = begin + warp * KEYS;
    const int first = look_up(tile);
    const int second = look_up(tile + ROUND);
    int next = look_up(tile + 2 * ROUND);
    fetch(0, tile, first);
    fetch(1, tile + ROUND, second);
    for (int stage = 0; tile < end; tile += ROUND, stage ^= 1) {
        // All groups but the last are there, for every lane: only this warp wrote and reads them.
        copy_async_wait<1>();
        __syncwarp();
        auto& mine = shared.stages[warp];
        rows.template meet<KEYS>(mine.keys[stage], mine.values[stage], tile, from, to, true, scale_log2);
        __syncwarp();
        fetch(stage, tile + 2 * ROUND, next);
        next = look_up(tile + 3 * ROUND);
    }

    // The four warps' results, side by side where the stages were. Nothing is on its way any more: a tile
    // that was fetched was waited for.
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = low + r * 8;
        const float total = rows.total(r);
        if (lane % 4 == 0) {
            shared.ends.max[row][warp] = rows.max[r];
            shared.ends.sum[row][warp] = total;
        }
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            float* two = shared.ends.out[warp][row] + n * 8 + lane % 4 * 2;
            two[0] = rows.out[n][2 * r];
            two[1] = rows.out[n][2 * r + 1];
        }
    }
    __syncthreads();

    for (int element = threadIdx.x; element < count * DIM; element += WARPS * WARP) {
        const int row = element / DIM;
        const int d = element % DIM;
        const Merge merge(shared.ends.max[row], shared.ends.sum[row], WARPS);
        float value = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            value += merge.weight(shared.ends.max[row][w]) * shared.ends.out[w][row][d];
        }
        const int i = query_of(row);
        const int head = head_of(row);
        if (splits.count <= 1) {
            const i64 at = (sequence.start + i) * out_stride + static_cast<i64>(head) * DIM + d;
            store(out, out_bf16, at, divided(value, merge.total));
        } else {
            const i64 number = static_cast<i64>(blockIdx.z) * most_queries + i;
            const i64 part = (number * q_heads + head) * parts;
            partial[(part + split) * DIM + d] = value;
            if (d == 0) {
                ends[part * 2 + split] = merge.largest;
                ends[part * 2 + parts + split] = merge.total;
            }
        }
    }
}

// Grid: (parts, KV heads x tiles of 16 rows of `most_queries` queries, sequences), 128 threads; shared memory
// of Shared<DIM>. Sequences of more queries are another kernel's.
//   partial [sequences, most_queries, heads, parts, DIM]
//   ends    [sequences, most_queries, heads, 2, parts]: maxima, then sums
extern "C" __global__ void attention_decode_d64(const float* q, const bf16* k, const bf16* v,
                                                const int* cu_seqlens_q, const int* seq_lens_kv,
                                                const int* block_table, void* out, float* partial,
                                                float* ends, i64 q_stride, i64 out_stride, int q_heads,
                                                int kv_heads, int block_size, int max_blocks, int window,
                                                float scale_log2, int most_queries, int out_bf16) {
    wait_for_previous();
    const Sequence sequence(cu_seqlens_q, seq_lens_kv, block_table, max_blocks, blockIdx.z);
    attend<64>(q, k, v, sequence, out, partial, ends, q_stride, out_stride, q_heads, kv_heads, block_size,
               window, scale_log2, most_queries, out_bf16);
}

extern "C" __global__ void attention_decode_d80(const float* q, const bf16* k, const bf16* v,
                                                const int* cu_seqlens_q, const int* seq_lens_kv,
                                                const int* block_table, void* out, float* partial,
                                                float* ends, i64 q_stride, i64 out_stride, int q_heads,
                                                int kv_heads, int block_size, int max_blocks, int window,
                                                float scale_log2, int most_queries, int out_bf16) {
    wait_for_previous();
    const Sequence sequence(cu_seqlens_q, seq_lens_kv, block_table, max_blocks, blockIdx.z);
    attend<80>(q, k, v, sequence, out, partial, ends, q_stride, out_stride, q_heads, kv_heads, block_size,
               window, scale_log2, most_queries, out_bf16);
}

extern "C" __global__ void attention_decode_d96(const float* q, const bf16* k, const bf16* v,
                                                const int* cu_seqlens_q, const int* seq_lens_kv,
                                                const int* block_table, void* out, float* partial,
                                                float* ends, i64 q_stride, i64 out_stride, int q_heads,
                                                int kv_heads, int block_size, int max_blocks, int window,
                                                float scale_log2, int most_queries, int out_bf16) {
    wait_for_previous();
    const Sequence sequence(cu_seqlens_q, seq_lens_kv, block_table, max_blocks, blockIdx.z);
    attend<96>(q, k, v, sequence, out, partial, ends, q_stride, out_stride, q_heads, kv_heads, block_size,
               window, scale_log2, most_queries, out_bf16);
}

extern "C" __global__ void attention_decode_d128(const float* q, const bf16* k, const bf16* v,
                                                 const int* cu_seqlens_q, const int* seq_lens_kv,
                                                 const int* block_table, void* out, float* partial,
                                                 float* ends, i64 q_stride, i64 out_stride, int q_heads,
                                                 int kv_heads, int block_size, int max_blocks, int window,
                                                 float scale_log2, int most_queries, int out_bf16) {
    wait_for_previous();
    const Sequence sequence(cu_seqlens_q, seq_lens_kv, block_table, max_blocks, blockIdx.z);
    attend<128>(q, k, v, sequence, out, partial, ends, q_stride, out_stride, q_heads, kv_heads, block_size,
               window, scale_log2, most_queries, out_bf16);
}

// Merge the splits of each query and head, in their order. Grid: (heads, sequences, most_queries), 128
// threads, of which each owns dimensions 128 apart. `parts` is at most MOST_PARTS.
extern "C" __global__ void attention_decode_merge(const float* partial, const float* ends,
                                                  const int* cu_seqlens_q, const int* seq_lens_kv, void* out,
                                                  i64 out_stride, int dim, int parts, int window,
                                                  int out_bf16) {
    wait_for_previous();
    __shared__ float max[MOST_PARTS];
    __shared__ float sum[MOST_PARTS];
    const Sequence sequence(cu_seqlens_q, seq_lens_kv, nullptr, 0, blockIdx.y);
    const Splits splits(sequence, window, parts);
    const int query = blockIdx.z;
    if (query >= sequence.q_len || sequence.q_len > static_cast<int>(gridDim.z) || splits.count <= 1) {
        return;  // no query, another kernel's, or written by its only split
    }
    const i64 number = static_cast<i64>(blockIdx.y) * gridDim.z + query;
    const i64 part = (number * gridDim.x + blockIdx.x) * parts;
    for (int split = threadIdx.x; split < splits.count; split += blockDim.x) {
        max[split] = ends[part * 2 + split];
        sum[split] = ends[part * 2 + parts + split];
    }
    __syncthreads();
    const Merge merge(max, sum, splits.count);
    for (int d = threadIdx.x; d < dim; d += blockDim.x) {
        float value = 0.0f;
        // exercise l0.split_kv
#pragma unroll 8
        for (int i = 0; i < splits.count; i++) {
            value += merge.weight(max[i]) * partial[(part + i) * dim + d];
        }
        // end of exercise
        const i64 at = (sequence.start + query) * out_stride + static_cast<i64>(blockIdx.x) * dim + d;
        store(out, out_bf16, at, divided(value, merge.total));
    }
}
