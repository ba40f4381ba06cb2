//! l2's `SequenceState` over blocks: what `strata generate` and `bench` run on, without a scheduler.

pub struct PagedOptions { pub num_blocks: usize, pub block_size: usize, pub dtype: DType, pub slots: usize, pub max_len: usize, pub max_step_tokens: usize, pub prefix_caching: bool, .. }

/// manager + PagedKv + ForwardMeta + per slot (SeqId, TokenChain). Also: `resume(slot, tokens) -> usize` credits a cached prefix to an empty slot
/// (tokens that need not be fed).
pub struct PagedState { }
