// Attention over a paged cache, one query of one head at a time:
//
//   out = sum over j of w_j v_j,   w_j = e^(scale q.k_j) / sum over i of e^(scale q.k_i)
//
// over the keys j that the query sees. A warp owns one (query, head). It walks over the keys 32 at a
// time, from the first it sees, and never stores the scores: it keeps the largest so far, and sum and
// output relative to that (online softmax: Milakov and Gimelshein 2018). At every 32 keys
//
//   1. a lane scores one key: q.k over all dimensions;
//   2. the warp finds the new maximum, and every lane shrinks its sum to it and adds its key's weight;
//   3. a lane owns dimensions lane, lane + 32, ... of the output: it shrinks them and adds the 32 values,
//      each times its weight.
//
// Where a tile begins depends on the position of the query alone (multiples of 32 from key 0), so a query
// has the same bits whether it comes alone, in a chunk or in a batch.
//
// This is the kernel to read first. It takes any head size and both cache types, and it computes with
// IEEE singles throughout, which is what makes it the one for f32 caches (parity with the CPU). What it
// is not is fast: every head of a group reads the keys again (the four warps of a block are neighbouring
// heads, so mostly from the first-level cache), nothing is on its way while it computes, and it has no
// tensor cores: 4 flops an element of the cache and head. attention_decode.cu and attention_prefill.cu
// mend one after the other.
#include "attention.cuh"
#include "reduce.cuh"

constexpr int HEADS_PER_BLOCK = 4;

// A softmax that has seen some of its scores, 32 at a time, one for each lane.
struct Running {
    float max = LOWEST;  // the largest so far, of all lanes
    float sum = 0.0f;    // of e^(score - max), over the scores of this lane

    // Every lane brings one more score and gets its weight. What was added up before, here and elsewhere,
    // counts `shrink` times as much by now.
    __device__ inline float meet(float score, float& shrink) {
        // exercise l0.online_softmax
        const float largest = fmaxf(max, warp_reduce<Max>(score));
        shrink = expf(max - largest);
        const float weight = expf(score - largest);
        max = largest;
        sum = sum * shrink + weight;
        return weight;
        // end of exercise
    }
};

template <class T>
__device__ inline void attend(const float* q, const T* k, const T* v, const Sequence& sequence, int i,
                              int head, void* out, i64 q_stride, i64 out_stride, int q_heads, int kv_heads,
                              int dim, int block_size, int window, float scale, int out_bf16) {
    extern __shared__ STRATA_ALIGNED(16) unsigned char dynamic_shared[];
    const int lane = threadIdx.x % WARP;
    const int warp = threadIdx.x / WARP;
    // Each warp's own: the query, the output so far, weights and places of 32 keys.
    float* query = reinterpret_cast<float*>(dynamic_shared) + warp * (2 * dim + 2 * WARP);
    float* sums = query + dim;
    float* weights = sums + dim;
    int* slots = reinterpret_cast<int*>(weights + WARP);

    const i64 token = sequence.start + i;
    const int kv_head = head / (q_heads / kv_heads);
    for (int d = lane; d < dim; d += WARP) {
        query[d] = q[token * q_stride + static_cast<i64>(head) * dim + d];
        sums[d] = 0.0f;
    }

    const int position = sequence.position(i);
    const int first = first_visible(position, window);
    Running softmax;
    for (int tile = first / WARP * WARP; tile <= position; tile += WARP) {
        __syncwarp();  // the query is there; the last tile's weights have been read

        const int key = tile + lane;
        const bool visible = key >= first && key <= position;
        const int slot = visible ? sequence.slot(key, block_size) : -1;
        float score = minus_infinity();
        if (slot >= 0) {
            const T* row = k + (static_cast<i64>(slot) * kv_heads + kv_head) * dim;
            float dot = 0.0f;
            for (int d = 0; d < dim; d++) {
                dot += query[d] * to_f32(row[d]);
            }
            score = dot * scale;
        }

        float shrink;
        weights[lane] = softmax.meet(score, shrink);
        slots[lane] = slot;
        __syncwarp();
        // exercise l0.online_softmax
        for (int d = lane; d < dim; d += WARP) {
            float value = sums[d] * shrink;
            for (int j = 0; j < WARP; j++) {
                if (slots[j] >= 0) {
                    const T* row = v + (static_cast<i64>(slots[j]) * kv_heads + kv_head) * dim;
                    value += weights[j] * to_f32(row[d]);
                }
            }
            sums[d] = value;
        }
        // end of exercise
    }

    // A query without keys gets zeros.
    const float sum = warp_reduce<Sum>(softmax.sum);
    for (int d = lane; d < dim; d += WARP) {
        store(out, out_bf16, token * out_stride + static_cast<i64>(head) * dim + d, divided(sums[d], sum));
    }
}

// Grid: (queries of the longest sequence, heads / 4, sequences), 128 threads. A sequence's missing
// queries and the heads behind the last are warps that leave at once; no barrier of the block follows.
// Shared memory: 4 (2 dim + 64) words.
extern "C" __global__ void attention_rows_f32(const float* q, const float* k, const float* v,
                                              const int* cu_seqlens_q, const int* seq_lens_kv,
                                              const int* block_table, void* out, i64 q_stride, i64 out_stride,
                                              int q_heads, int kv_heads, int dim, int block_size,
                                              int max_blocks, int window, float scale, int out_bf16) {
    wait_for_previous();
    const Sequence sequence(cu_seqlens_q, seq_lens_kv, block_table, max_blocks, blockIdx.z);
    const int i = blockIdx.x;
    const int head = blockIdx.y * HEADS_PER_BLOCK + threadIdx.x / WARP;
    if (i < sequence.q_len && head < q_heads) {
        attend(q, k, v, sequence, i, head, out, q_stride, out_stride, q_heads, kv_heads, dim, block_size,
               window, scale, out_bf16);
    }
}

extern "C" __global__ void attention_rows_bf16(const float* q, const bf16* k, const bf16* v,
                                               const int* cu_seqlens_q, const int* seq_lens_kv,
                                               const int* block_table, void* out, i64 q_stride,
                                               i64 out_stride, int q_heads, int kv_heads, int dim,
                                               int block_size, int max_blocks, int window, float scale,
                                               int out_bf16) {
    wait_for_previous();
    const Sequence sequence(cu_seqlens_q, seq_lens_kv, block_table, max_blocks, blockIdx.z);
    const int i = blockIdx.x;
    const int head = blockIdx.y * HEADS_PER_BLOCK + threadIdx.x / WARP;
    if (i < sequence.q_len && head < q_heads) {
        attend(q, k, v, sequence, i, head, out, q_stride, out_stride, q_heads, kv_heads, dim, block_size,
               window, scale, out_bf16);
    }
}
