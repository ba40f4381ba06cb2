//! Leases and transfers of keys and values, as a recording has them.

use serde::{Deserialize, Serialize};

use crate::scheduler::{KvChange, KvChangeRecord};
use crate::{Lease, StepOp};

/// Something that happened to blocks, beside what requests use. It is recorded with the step in which it was seen, or before
/// which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvEvent {
    /// A finished request left a lease.
    Leased {
        /// Number of the lease.
        lease: u64,
        /// Id of the finished request.
        id: u64,
        /// Time of its beginning.
        at_us: f64,
        /// Number of blocks.
        blocks: usize,
        /// Job of the request, if it was a step of one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<String>,
        /// Tool that the request called, if one was noted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool: Option<String>,
    },
    /// A lease has ended.
    LeaseEnded {
        /// Number of the lease.
        lease: u64,
        /// Time of its end.
        at_us: f64,
        /// [`LeaseEnd::as_str`](crate::LeaseEnd::as_str).
        why: String,
    },
    /// The step began to load tokens of a request from outside the pool.
    Load {
        /// Request id.
        id: u64,
        /// First token.
        from: usize,
        /// Token behind the last one.
        to: usize,
    },
    /// A load has ended.
    Loaded {
        /// Request id.
        id: u64,
        /// Time at which it was known.
        at_us: f64,
        /// Number of tokens of the request that are in its blocks.
        tokens: usize,
    },
    /// The step began to store the blocks of a lease outside the pool. The lease ends with the store.
    Store {
        /// Number of the lease.
        lease: u64,
        /// Number of blocks.
        blocks: usize,
    },
    /// The step began with a copy of blocks that it may overwrite: those of a lease that has ended, or of a preempted
    /// request.
    WriteBack {
        /// Number of blocks.
        blocks: usize,
    },
}

impl KvEvent {
    /// A change of the scheduler. `us` rounds a time in seconds to microseconds.
    pub(super) fn of_change(record: &KvChangeRecord, us: impl Fn(crate::Time) -> f64) -> Self {
        match &record.change {
            KvChange::Leased(lease) => {
                let Lease { id, request, since, blocks, job, tool, .. } = lease;
                let job = job.as_ref().map(|job| job.id.clone());
                let (blocks, tool) = (*blocks, tool.clone());
                Self::Leased { lease: id.0, id: request.0, at_us: us(*since), blocks, job, tool }
            }
            KvChange::LeaseEnded(lease, why) => Self::LeaseEnded {
                lease: lease.id.0,
                at_us: us(record.at),
                why: why.as_str().to_owned(),
            },
            KvChange::Loaded { id, tokens } => {
                Self::Loaded { id: id.0, at_us: us(record.at), tokens: *tokens }
            }
        }
    }

    /// An operation of a step.
    pub(super) fn of_op(op: &StepOp) -> Self {
        match op {
            StepOp::Load { id, from, to, .. } => Self::Load { id: id.0, from: *from, to: *to },
            StepOp::Store { lease, blocks, .. } => {
                Self::Store { lease: lease.0, blocks: blocks.len() }
            }
            StepOp::WriteBack { blocks, .. } => Self::WriteBack { blocks: blocks.len() },
        }
    }
}
