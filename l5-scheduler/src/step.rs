//! A planned step: who takes part with how much, and what has to happen to blocks before.

use l3_paged_kv::{BlockId, BlockTable, CopyBlock, SeqId};

use crate::requests::Requests;
use crate::{FinishReason, LeaseId, RequestId, RequestView, Time};

/// One request's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRow {
    /// Whose.
    pub id: RequestId,
    /// The request's place: the same from when it is added until it ends, then somebody else's.
    pub place: u32,
    /// Tokens whose keys and values it has: this step's first token is the one behind.
    pub computed: usize,
    /// Tokens of this step: its q_len.
    pub len: usize,
    /// Whether its last token is the last one there is, so that the next one is chosen.
    pub samples: bool,
    /// How it came to run.
    pub admitted: Admitted,
    /// Of an admission: tokens that were found in the cache.
    pub cached: usize,
    /// Length of its block table before this step. 0 for an admission: its whole table is new to the executor.
    pub blocks_before: usize,
}

/// How a request came to take part in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// It ran already.
    Before,
    /// It begins.
    Now,
    /// It was preempted and comes back.
    Resumed,
}

/// Something that happens to blocks, beside their being taken and given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOp {
    /// Copy one block's beginning to another, before anything is written.
    Copy(CopyBlock),
    /// Fetch a request's keys and values from elsewhere: tokens `from..to`, into the blocks of its table. It waits until
    /// [`Scheduler::kv_arrived`](crate::Scheduler::kv_arrived) is told.
    Load {
        /// Whose.
        id: RequestId,
        /// The first token to fetch, at the beginning of a block.
        from: usize,
        /// The token behind the last one, at the end of a block.
        to: usize,
        /// The blocks of these tokens, in their order.
        blocks: Vec<BlockId>,
    },
    /// Write the blocks of a finished request elsewhere. They are held until
    /// [`Scheduler::kv_stored`](crate::Scheduler::kv_stored) is told.
    Store {
        /// Under which name they are held.
        lease: LeaseId,
        /// Whose they were.
        id: RequestId,
        /// The blocks, in the order of its tokens.
        blocks: Vec<BlockId>,
    },
}

/// A planned step. The scheduler owns it and uses its memory again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Counted from 0.
    pub number: u64,
    /// The moment it was planned for.
    pub now: Time,
    /// Who takes part: first those who ran already, in the order of their admission, then the new ones.
    pub rows: Vec<StepRow>,
    /// Tokens of all rows.
    pub tokens: usize,
    /// What has to happen to blocks.
    pub ops: Vec<StepOp>,
    /// Who was preempted while this was planned, in the order in which they were chosen.
    pub preempted: Vec<RequestId>,
    /// Who ended while this was planned: the pool is too small for their next token.
    pub ended: Vec<(RequestId, FinishReason)>,
}

impl Step {
    pub(crate) fn clear(&mut self, number: u64, now: Time) {
        self.number = number;
        self.now = now;
        self.rows.clear();
        self.tokens = 0;
        self.ops.clear();
        self.preempted.clear();
        self.ended.clear();
    }

    /// Whether there is nothing to run: no rows, and nothing to be done to blocks.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.ops.is_empty()
    }

    /// Rows of which a token is chosen.
    pub fn samples(&self) -> usize {
        self.rows.iter().filter(|row| row.samples).count()
    }
}

/// A planned step with what its executor must see: tokens and block tables, but no queue.
#[derive(Clone, Copy)]
pub struct StepView<'a> {
    pub(crate) step: &'a Step,
    pub(crate) requests: &'a Requests,
    pub(crate) blocks: &'a l3_paged_kv::BlockManager,
}

/// One row of a [`StepView`].
#[derive(Clone, Copy)]
pub struct RowView<'a> {
    /// What was planned.
    pub row: &'a StepRow,
    /// The tokens to be fed: `row.len` of them.
    pub tokens: &'a [u32],
    /// Where keys and values are, and where those of this step go.
    pub table: &'a BlockTable,
    /// The request.
    pub request: RequestView<'a>,
}

impl<'a> StepView<'a> {
    /// What was planned.
    pub fn step(&self) -> &'a Step {
        self.step
    }

    /// Row by row.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = RowView<'a>> + use<'a> {
        let Self { requests, blocks, .. } = *self;
        self.step.rows.iter().map(move |row| {
            let entry = requests.at(row.place);
            let tokens = &entry.chain.tokens()[row.computed..row.computed + row.len];
            RowView { row, tokens, table: table(blocks, entry.seq), request: entry.view() }
        })
    }

    /// The blocks of a request that has some, whether it takes part or not.
    pub fn table_of(&self, id: RequestId) -> Option<&'a BlockTable> {
        let seq = self.requests.at(self.requests.find(id)?).seq?;
        self.blocks.table(seq).ok()
    }
}

/// # Panics
/// For a request without blocks: none of those is ever in a step.
fn table(blocks: &l3_paged_kv::BlockManager, seq: Option<SeqId>) -> &BlockTable {
    let table = seq.and_then(|seq| blocks.table(seq).ok());
    table.expect("whoever takes part in a step has blocks")
}
