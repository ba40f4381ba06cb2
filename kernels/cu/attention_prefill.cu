// Attention of many queries over a paged cache, in tiles, on tensor cores: FlashAttention (Dao et al.
// 2022, Dao 2023) over blocks.
//
//   out = softmax(scale q K^T) V     over the keys that each query sees
//
// A block owns 128 rows of one sequence and one KV head. A row is a query of one head: the heads of a
// group share their keys, so rows are (query, head of the group), the head running fastest. With 4 heads
// a group 128 rows are 32 queries; a decode row is 4 rows of an otherwise empty tile. The block walks
// over the keys 64 at a time; while it computes with one tile, cp.async brings the next one.
// A warp owns 16 rows (attention.cuh: Rows), with queries, scores and output in its registers; warps only
// share the tiles of keys and values. Tiles that no row of the block sees (after its last query, before
// its first window) are not even loaded, tiles that no row of a warp sees it leaves out.
//
// Why this tile. Per 64 keys a block computes 4 x 128 x 64 x DIM flops and reads 2 x 64 x DIM x 2 bytes:
// 128 flops a byte. At 297 TFLOP/s (30% of an H200's 989) that asks 2.3 TB/s of the second-level cache,
// which has more than twice that; with 64 rows it would be too close. Registers at DIM 128: 64 for the
// output, 32 for the queries, 32 for the scores, with fragments on their way about 220 in all and none
// spilled, so one block of 8 warps a multiprocessor, and shared memory of 2 stages x (keys + values) x 64
// x (DIM + 8) x 2 bytes = 68 KiB. Every mma.sync reads its right side from shared memory: 256 bytes for
// 4096 flops, which at 128 bytes a clock bounds it to 0.6 of the peak. (wgmma, which reads both sides from
// there by itself, lifts that bound; only Hopper has it.)
//
// Which block has which tile. Sequences have any number of queries: in a step of the engine one may have two
// thousand and the other 255 one each. A grid of (tiles of the longest) x (sequences) would be blocks without
// work but for a few, and each of them costs time. So tiles are numbered through all sequences. Tile 0 of
// sequence s has the number
//
//   floor(start of s * group / 128) + s
//
// which leaves room for the tiles of those before it: n rows need at most floor(n / 128) + 1, wherever they
// begin. A block looks for the last sequence whose first number is not above its own. A grid has one block more
// for each sequence than a perfect list would need, and depends on the number of tokens and sequences only.
//
// The largest tiles of causal attention are the last ones: they start first, so that what is left at the
// end is small.
//
// One order of sums for every query. Tiles begin at multiples of 64 from key 0, and a row meets them in
// that order, each by the same instructions, whichever row of whichever tile it is. What differs with the
// queries around it is only which tiles it meets without seeing a key of them, and those change no bit:
// its maximum stays, sum and output are multiplied by exactly 1, and zeros are added (the + 0.0f at the
// end makes +0 of a -0). So a query has the same bits alone, in a chunk or in a batch. That is why
// batch-invariant arithmetic uses this kernel for decode rows too. The price there: one block walks
// over all keys of a sequence, so few sequences leave most of the device idle.
#include "attention.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * WARP;
constexpr int ROWS = WARPS * 16;
constexpr int KEYS = 64;

// Dynamic shared memory.
template <int DIM>
struct Tiles {
    bf16 keys[2][KEYS * PADDED<DIM>];
    bf16 values[2][KEYS * PADDED<DIM>];
    int slots[2][KEYS];  // where the keys of a tile lie, -1 where there is none
};

// A tile of the step: the number of its sequence, and its own number within that.
struct MyTile {
    int sequence;
    int tile;

    // Number of the first tile of sequence s.
    static __device__ inline int first_of(const int* cu_seqlens_q, int s, int group) {
        return static_cast<int>(static_cast<i64>(cu_seqlens_q[s]) * group / ROWS) + s;
    }

    // All lanes of a warp must call this.
    __device__ inline MyTile(const int* cu_seqlens_q, int sequences, int group) {
        const int number = gridDim.y - 1 - blockIdx.y;
        // Numbers rise, so those that are not above this one come first. 32 sequences are asked at once, the
        // range between the last of them that says yes and the next is asked in turn.
        int low = 0;
        int high = sequences;
        while (high - low > 1) {
            const int step = ceil_div(high - low, WARP);
            const int s = low + static_cast<int>(threadIdx.x) % WARP * step;
            const bool before = s < high && first_of(cu_seqlens_q, s, group) <= number;
            const int count = __popc(__ballot_sync(ALL_LANES, before));
            low += (count - 1) * step;
            high = low + step < high ? low + step : high;
        }
        sequence = low;
        tile = number - first_of(cu_seqlens_q, low, group);
    }
};

template <int DIM>
__device__ inline void attend(const float* q, const bf16* k, const bf16* v, const Sequence& sequence,
                              int my_tile, void* out, i64 q_stride, i64 out_stride, int q_heads, int kv_heads,
                              int block_size, int window, float scale_log2, int out_bf16) {
    extern __shared__ STRATA_ALIGNED(16) unsigned char dynamic_shared[];
    Tiles<DIM>& tiles = *reinterpret_cast<Tiles<DIM>*>(dynamic_shared);
    const int tid = threadIdx.x;
    const int lane = tid % WARP;
    const int kv_head = blockIdx.x;
    const int group = q_heads / kv_heads;
    const int rows = sequence.q_len * group;
    const int first_row = my_tile * ROWS;
    if (first_row >= rows) {
        return;
    }

    // The two rows of this lane, and the keys they see.
    const int my_rows = first_row + tid / WARP * 16;
    Rows<DIM> mine;
    int from[2], to[2];
    i64 target[2];
    const float* query[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = my_rows + lane / 4 + r * 8;
        const int i = row / group;
        const i64 token = sequence.start + i;
        const i64 head_at = static_cast<i64>(kv_head * group + row % group) * DIM;
        const bool there = row < rows;
        to[r] = there ? sequence.position(i) + 1 : 0;
        from[r] = there ? first_visible(to[r] - 1, window) : 0;
        target[r] = there ? token * out_stride + head_at : -1;
        query[r] = there ? q + token * q_stride + head_at : nullptr;
    }
    mine.begin(query[0], query[1]);

    // The keys that any row of the block sees, and those that any row of this warp does.
    const int last_row = (first_row + ROWS < rows ? first_row + ROWS : rows) - 1;
    const int begin = first_visible(sequence.position(first_row / group), window);
    const int end = sequence.position(last_row / group) + 1;
    const int my_last_row = my_rows + 15 < rows ? my_rows + 15 : rows - 1;
    const int my_begin = first_visible(sequence.position(my_rows / group), window);
    const int my_end = my_rows < rows ? sequence.position(my_last_row / group) + 1 : 0;
    // What lies in [all_from, all_to) every row of this warp sees, without a look at each.
    const int all_from = first_visible(my_end - 1, window);
    const int all_to = my_rows + 15 < rows ? sequence.position(my_rows / group) + 1 : 0;

    const int first_tile = begin / KEYS;
    const int behind_tile = end > 0 ? ceil_div(end, KEYS) : 0;
    // Keys outside of [begin, end) become zeros: whatever lies in their place in the cache, 0 times it
    // must be 0, which a NaN would not make.
    auto look_up = [&](int tile) {
        const int key = tile * KEYS + tid;
        return tid < KEYS && key >= begin && key < end ? sequence.table[key / block_size] : -1;
    };
    auto locate = [&](int tile, int block) {
        if (tid < KEYS) {
            tiles.slots[tile % 2][tid] = Sequence::slot_in(block, tile * KEYS + tid, block_size);
        }
    };
    auto fetch = [&](int tile) {
        constexpr int PIECES = DIM / 8;
        const int stage = tile % 2;
#pragma unroll
        for (int i = 0; i < ceil_div(KEYS * PIECES, THREADS); i++) {
            const int piece = i * THREADS + tid;
            const int row = piece / PIECES;
            if (KEYS * PIECES % THREADS == 0 || piece < KEYS * PIECES) {
                const int slot = tiles.slots[stage][row];
                copy_piece<DIM>(tiles.keys[stage], k, row, piece % PIECES, slot, kv_heads, kv_head);
                copy_piece<DIM>(tiles.values[stage], v, row, piece % PIECES, slot, kv_heads, kv_head);
            }
        }
    };
    locate(first_tile, look_up(first_tile));
    locate(first_tile + 1, look_up(first_tile + 1));
    __syncthreads();
    if (first_tile < behind_tile) {
        fetch(first_tile);
    }
    copy_async_commit();

    for (int tile = first_tile; tile < behind_tile; tile++) {
        // This tile is there, for every thread, and every warp is done with the one before: its place
        // takes the one after.
        copy_async_wait<0>();
        __syncthreads();
        if (tile + 1 < behind_tile) {
            fetch(tile + 1);
        }
        copy_async_commit();
        const int block = look_up(tile + 2);  // needed below: by then it is there

        const int key = tile * KEYS;
        if (key < my_end && key + KEYS > my_begin) {
            const bool masked = key < all_from || key + KEYS > all_to;
            mine.template meet<KEYS>(tiles.keys[tile % 2], tiles.values[tile % 2], key, from, to, masked,
                                     scale_log2);
        }
        locate(tile + 2, block);
    }

    const float normal[2] = {divided(1.0f, mine.total(0)), divided(1.0f, mine.total(1))};
    auto write = [&](auto* to) {
#pragma unroll
        for (int e = 0; e < DIM / 2; e++) {
            const int r = e / 2 % 2;
            const i64 at = target[r] + e / 4 * 8 + lane % 4 * 2 + e % 2;
            if (target[r] >= 0) {
                put(to + at, mine.out[e / 4][e % 4] * normal[r] + 0.0f);
            }
        }
    };
    if (out_bf16) {
        write(static_cast<bf16*>(out));
    } else {
        write(static_cast<float*>(out));
    }
}

// Grid: (KV heads, floor(tokens * group / 128) + sequences), 256 threads; shared memory of Tiles<DIM>.
// Sequences of fewer than `least_q_len` queries are another kernel's.
extern "C" __global__ void attention_prefill_d64(const float* q, const bf16* k, const bf16* v,
                                                 const int* cu_seqlens_q, const int* seq_lens_kv,
                                                 const int* block_table, void* out, i64 q_stride,
                                                 i64 out_stride, int q_heads, int kv_heads, int block_size,
                                                 int max_blocks, int window, float scale_log2,
                                                 int sequences, int least_q_len, int out_bf16) {
    wait_for_previous();
    const MyTile mine(cu_seqlens_q, sequences, q_heads / kv_heads);
    const Sequence sequence(cu_seqlens_q, seq_lens_kv, block_table, max_blocks, mine.sequence);
    if (sequence.q_len >= least_q_len) {
        attend<64>(q, k, v, sequence, mine.tile, out, q_stride, out_stride, q_heads, kv_heads, block_size, window,
                   scale_log2, out_bf16);
    }
}

extern "C" __global__ void attention_prefill_d80(const float* q, const bf16* k, const bf16* v,
                                                 const int* cu_seqlens_q, const int* seq_lens_kv,
                                                 const int* block_table, void* out, i64 q_stride,
                                                 i64 out_stride, int q_heads, int kv_heads, int block_size,
                                                 int max_blocks, int window, float scale_log2,
                                                 int sequences, int least_q_len, int out_bf16) {
    wait_for_previous();
    const MyTile mine(cu_seqlens_q, sequences, q_heads / kv_heads);
    const Sequence sequence(cu_seqlens_q, seq_lens_kv, block_table, max_blocks, mine.sequence);
    if (sequence.q_len >= least_q_len) {
        attend<80>(q, k, v, sequence, mine.tile, out, q_stride, out_stride, q_heads, kv_heads, block_size, window,
                   scale_log2, out_bf16);
    }
}

extern "C" __global__ void attention_prefill_d96(const float* q, const bf16* k, const bf16* v,
                                                 const int* cu_seqlens_q, const int* seq_lens_kv,
                                                 const int* block_table, void* out, i64 q_stride,
                                                 i64 out_stride, int q_heads, int kv_heads, int block_size,
                                                 int max_blocks, int window, float scale_log2,
                                                 int sequences, int least_q_len, int out_bf16) {
    wait_for_previous();
    const MyTile mine(cu_seqlens_q, sequences, q_heads / kv_heads);
    const Sequence sequence(cu_seqlens_q, seq_lens_kv, block_table, max_blocks, mine.sequence);
    if (sequence.q_len >= least_q_len) {
        attend<96>(q, k, v, sequence, mine.tile, out, q_stride, out_stride, q_heads, kv_heads, block_size, window,
                   scale_log2, out_bf16);
    }
}

extern "C" __global__ void attention_prefill_d128(const float* q, const bf16* k, const bf16* v,
                                                  const int* cu_seqlens_q, const int* seq_lens_kv,
                                                  const int* block_table, void* out, i64 q_stride,
                                                  i64 out_stride, int q_heads, int kv_heads, int block_size,
                                                  int max_blocks, int window, float scale_log2,
                                                  int sequences, int least_q_len, int out_bf16) {
    wait_for_previous();
    const MyTile mine(cu_seqlens_q, sequences, q_heads / kv_heads);
    const Sequence sequence(cu_seqlens_q, seq_lens_kv, block_table, max_blocks, mine.sequence);
    if (sequence.q_len >= least_q_len) {
        attend<128>(q, k, v, sequence, mine.tile, out, q_stride, out_stride, q_heads, kv_heads, block_size, window,
                   scale_log2, out_bf16);
    }
}
