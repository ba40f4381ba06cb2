//! A profile: how long each kind of op took, and how much it read and computed.
//!
//! A runtime [that is profiled](crate::Runtime::profiled) is one more handle to the same device and threads, whose ops
//! add their times to a [`Profile`]. So the code that calls ops is the same with a profile and without, and another handle
//! is not profiled. Without a profile an op pays for one test of an `Option`.
//!
//! A time is the caller's: from the op's first check until its last chunk is done. Ops do not call each other, so times
//! add up to the part of a step that was spent in ops.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cpu::ThreadPool;
use crate::{Runtime, Weight};

/// Kind of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    /// `linear` by this weight.
    Matmul(WeightId),
    /// `linear_low_rank`: the side term of an adapter.
    LowRank,
    /// `attention`.
    Attention,
    /// `KvCache::write`.
    KvWrite,
    /// `rms_norm` and `layer_norm`.
    Norm,
    /// `rope` and the table of its angles.
    Rope,
    /// `embedding`.
    Embedding,
    /// `argmax` and `top_k`: a choice of tokens.
    Select,
    /// Ops on elements and rows: additions, activations, conversions, copies.
    Elementwise,
}

/// Identity of a weight: its address. Valid as long as the weight is not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WeightId(usize);

impl WeightId {
    /// Identity of this weight.
    pub fn of(weight: &Weight) -> Self {
        Self(std::ptr::from_ref(weight).addr())
    }
}

/// Bytes and operations of an op: what has to come from memory, and what has to be computed.
///
/// Bytes are those of weights as stored, of rows of an embedding, and of keys and values that are read, or written by
/// [`OpKind::KvWrite`]; each is counted once per call, however often a kernel reads it. Activations are not counted: a
/// step's fit the caches. A multiplication and an addition are two operations. Ops that are neither matmul nor
/// attention count none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes.
    pub bytes: u64,
    /// Floating point operations.
    pub flops: u64,
}

impl Work {
    /// A matmul of so many rows.
    pub fn matmul(rows: usize, weight: &Weight) -> Self {
        let flops = 2 * rows as u64 * weight.n() as u64 * weight.k() as u64;
        Self { bytes: weight.bytes() as u64, flops }
    }

    /// Two ops one after the other.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, flops: self.flops + other.flops }
    }

    /// Only bytes.
    pub(crate) fn moved(bytes: usize) -> Self {
        Self { bytes: bytes as u64, flops: 0 }
    }
}

/// Sums over the calls of one kind of op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTotals {
    /// Number of calls.
    pub calls: u64,
    /// Time in the op.
    pub time: Duration,
    /// Part of `time` in which the caller had no chunk left and waited for other threads to complete theirs.
    pub waited: Duration,
    /// Bytes and operations.
    pub work: Work,
}

impl std::ops::AddAssign for OpTotals {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.time += other.time;
        self.waited += other.waited;
        self.work = self.work.and(other.work);
    }
}

/// Times of ops, by kind. Filled by the ops of a runtime made by [`Runtime::profiled`].
///
/// ```
/// use std::sync::Arc;
/// use l1_tensor::ops::rms_norm;
/// use l1_tensor::{DType, Device, OpKind, Profile, Runtime, RuntimeOptions, Tensor};
///
/// let rt = Runtime::new(RuntimeOptions::cpu())?;
/// let profile = Arc::new(Profile::default());
/// let profiled = rt.profiled(&profile)?;
/// let x = Tensor::from_slice(&[3.0f32, 4.0], &[1, 2])?;
/// let weight = Tensor::from_slice(&[1.0f32, 1.0], &[2])?;
/// let mut out = Tensor::zeros(&[1, 2], DType::F32, Device::Cpu)?;
/// for rt in [&rt, &profiled] {
///     rms_norm(rt, x.view(), weight.view(), 0.0, out.view_mut())?;
/// }
/// assert_eq!(profile.take()[&OpKind::Norm].calls, 1);
/// assert!(profile.take().is_empty());
/// # Ok::<(), l1_tensor::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Profile {
    totals: Mutex<BTreeMap<OpKind, OpTotals>>,
}

impl Profile {
    /// Returns what was added since the last call, and begins anew.
    pub fn take(&self) -> BTreeMap<OpKind, OpTotals> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<OpKind, OpTotals>> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An op that runs, from [`Runtime::time`] until it is dropped.
pub(crate) struct Timed<'a> {
    profile: &'a Profile,
    pool: &'a ThreadPool,
    kind: OpKind,
    work: Work,
    waited: Duration,
    started: Instant,
}

impl Runtime {
    /// Begins to time an op, if this runtime is profiled: `let _timed = rt.time(..)` at the op's beginning. `op`
    /// returns the op's kind and work, and is not called without a profile.
    pub(crate) fn time(&self, op: impl FnOnce() -> (OpKind, Work)) -> Option<Timed<'_>> {
        let profile = self.profile()?;
        let (pool, (kind, work)) = (self.pool(), op());
        pool.time_waits(true);
        let waited = pool.waited();
        Some(Timed { profile, pool, kind, work, waited, started: Instant::now() })
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        let time = self.started.elapsed();
        let waited = self.pool.waited().saturating_sub(self.waited);
        self.pool.time_waits(false);
        let call = OpTotals { calls: 1, time, waited, work: self.work };
        *self.profile.lock().entry(self.kind).or_default() += call;
    }
}
