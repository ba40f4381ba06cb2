//! A planned step: its rows, and what has to happen to blocks before it runs.

use l3_paged_kv::{BlockHash, BlockId, BlockTable, SeqId};

use crate::requests::Requests;
use crate::seats::Seats;
use crate::{FinishReason, LeaseId, RequestId, RequestView, Seat, StepShape, Time};

/// Row of a step: one request's part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRow {
    /// Request id.
    pub id: RequestId,
    /// Seat of the request, constant while it runs.
    pub seat: Seat,
    /// Number of tokens computed before this step: the row begins with the token behind them.
    pub computed: usize,
    /// Number of tokens of the row (its `q_len`), drafts included.
    pub len: usize,
    /// Number of drafts among them: its last tokens.
    pub drafts: usize,
    /// Whether the row contains the request's last token, so that a new token is sampled.
    ///
    /// In a step that was [planned ahead](crate::Scheduler::plan_ahead), `false` from the moment when it is known that
    /// the sample is of no use.
    pub samples: bool,
    /// Whether its only token is the one that the step before samples, which runs when this one is planned: the executor
    /// feeds it.
    pub awaits: bool,
    /// How the request came to run.
    pub admitted: Admitted,
    /// For an admitted request: number of tokens that were hit in the cache. Tokens that were
    /// [loaded](StepRow::loaded) are not among them.
    pub cached: usize,
    /// Number of blocks that its table has kept from before this step: an executor's copy is cut to them, and those behind
    /// them are new. 0 for an admitted request.
    pub blocks_before: usize,
}

impl StepRow {
    /// Whether the row decodes: one token, perhaps with drafts behind it, and a new one is sampled.
    pub fn decodes(&self) -> bool {
        self.fed() == 1 && self.samples
    }

    /// For an admitted request: number of tokens whose keys and values were loaded from outside the pool.
    pub fn loaded(&self) -> usize {
        if self.admitted == Admitted::Before { 0 } else { self.computed - self.cached }
    }

    /// Number of tokens of the row that belong to its request, drafts left out.
    pub fn fed(&self) -> usize {
        self.len - self.drafts
    }

    /// Number of its tokens whose logits are computed, its last ones: for each draft, and for the token behind them all.
    pub fn logit_rows(&self) -> usize {
        if self.samples { 1 + self.drafts } else { 0 }
    }
}

/// How a request came to have a row in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// It was running already.
    Before,
    /// It was admitted for the first time.
    Now,
    /// It was preempted earlier, and was admitted again.
    Resumed,
}

/// Operation on blocks that a step requires, besides allocating and freeing.
///
/// Hashes name contents of blocks: they are those of the prefix cache, and of
/// [`TokenChain::hashes`](l3_paged_kv::TokenChain::hashes) that a [`KvConnector`](crate::KvConnector) sees. The hash of
/// a block is of all tokens up to its end, of the adapter and of the tenant's salt. So a second memory can be a map
/// from hashes to keys and values, and no tenant gets blocks of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOp {
    /// Loads keys and values of tokens `from..to` of a request from elsewhere, into the blocks of its table. The
    /// request waits for [`KvCompletion::Loaded`](crate::KvCompletion::Loaded).
    Load {
        /// Request id.
        id: RequestId,
        /// First token to load, at the beginning of a block.
        from: usize,
        /// Token behind the last one to load, at the end of a block.
        to: usize,
        /// Blocks of these tokens, in order.
        blocks: Vec<BlockId>,
        /// Hash of each block, under which the connector has promised it.
        hashes: Vec<BlockHash>,
    },
    /// Stores the blocks of a finished request elsewhere. A lease holds them until
    /// [`KvCompletion::Stored`](crate::KvCompletion::Stored).
    Store {
        /// Lease that holds the blocks.
        lease: LeaseId,
        /// Request id of the finished request.
        id: RequestId,
        /// The blocks, in the order of its tokens.
        blocks: Vec<BlockId>,
        /// Hash of each block, under which a later request will look for it.
        hashes: Vec<BlockHash>,
    },
    /// Copies blocks elsewhere that this step may overwrite: those of a lease that has ended, or of a preempted request.
    /// The executor copies them when the step is launched, before anything of the step is written. It may copy fewer,
    /// those at the end first, if that would take too long. Nothing is reported.
    WriteBack {
        /// The blocks, in the order of their tokens, from the first token on.
        blocks: Vec<BlockId>,
        /// Hash of each block, under which a later request will look for it.
        hashes: Vec<BlockHash>,
        /// Until when the copy should not be evicted for another one, unless it is loaded before. A time that is past:
        /// it may be evicted as any other.
        keep_until: Time,
    },
}

/// A planned step. The scheduler owns it and reuses its memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepPlan {
    /// Number of the step, from 0.
    pub number: u64,
    /// Time it was planned for.
    pub now: Time,
    /// Shape that it was planned with.
    pub shape: StepShape,
    /// Rows: running requests in the order of their admission, then the requests admitted in this step.
    pub rows: Vec<StepRow>,
    /// Tokens of all rows.
    pub tokens: usize,
    /// Operations on blocks.
    pub ops: Vec<StepOp>,
    /// Requests preempted during planning, in the order in which they were chosen.
    pub preempted: Vec<RequestId>,
    /// Requests that ended during planning, because the pool is too small for their next token.
    pub ended: Vec<(RequestId, FinishReason)>,
}

impl StepPlan {
    pub(crate) fn clear(&mut self, number: u64, now: Time) {
        self.number = number;
        self.now = now;
        self.shape = StepShape::Mixed;
        self.rows.clear();
        self.tokens = 0;
        self.ops.clear();
        self.preempted.clear();
        self.ended.clear();
    }

    /// Whether there is nothing to execute: no rows and no operations on blocks.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.ops.is_empty()
    }

    /// Number of rows and drafts, if all rows decode: a step of this width can be replayed from a recording. `None` for a
    /// step with another row, or without rows.
    pub fn decode_width(&self) -> Option<usize> {
        let decodes = !self.rows.is_empty() && self.rows.iter().all(StepRow::decodes);
        decodes.then(|| self.rows.len() + self.drafts())
    }

    /// Number of rows for which a token is sampled.
    pub fn samples(&self) -> usize {
        self.rows.iter().filter(|row| row.samples).count()
    }

    /// Number of drafts of all rows.
    pub fn drafts(&self) -> usize {
        self.rows.iter().map(|row| row.drafts).sum()
    }
}

/// A planned step as its executor sees it: tokens and block tables, but no queue.
#[derive(Clone, Copy)]
pub struct StepView<'a> {
    pub(crate) step: &'a StepPlan,
    pub(crate) requests: &'a Requests,
    pub(crate) seats: &'a Seats,
    pub(crate) blocks: &'a l3_paged_kv::BlockManager,
}

/// Row of a [`StepView`].
#[derive(Clone, Copy)]
pub struct RowView<'a> {
    /// The row as planned.
    pub row: &'a StepRow,
    /// Tokens of the request to feed. Empty if the row [awaits](StepRow::awaits) its token.
    pub tokens: &'a [u32],
    /// Drafts to feed behind them: together they are `row.len` tokens.
    pub drafts: &'a [u32],
    /// Block table: where its keys and values are, and where those of this step go.
    pub table: &'a BlockTable,
    /// The request.
    pub request: RequestView<'a>,
}

impl<'a> StepView<'a> {
    /// The step as planned.
    pub fn step(&self) -> &'a StepPlan {
        self.step
    }

    /// Iterates over the rows of an open step.
    ///
    /// # Panics
    /// After [`Scheduler::apply`](crate::Scheduler::apply), if a request of the step has ended.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = RowView<'a>> + use<'a> {
        let Self { requests, seats, blocks, .. } = *self;
        self.step.rows.iter().map(move |row| {
            let entry = requests.at(seats.owner(row.seat));
            let (tokens, fed) = (entry.chain.tokens(), row.computed..row.computed + row.fed());
            let tokens = match row.awaits {
                // It may not be there yet.
                true => tokens.get(fed).unwrap_or_default(),
                false => &tokens[fed],
            };
            let drafts = &entry.drafts[..row.drafts];
            RowView { row, tokens, drafts, table: table(blocks, entry.seq), request: entry.view() }
        })
    }

    /// Indices of the seats that no running request has, in no particular order: padding rows use them.
    pub fn free_seats(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.seats.free()
    }

    /// Block table of a request that has one, whether or not it has a row.
    pub fn table_of(&self, id: RequestId) -> Option<&'a BlockTable> {
        let seq = self.requests.at(self.requests.find(id)?).seq?;
        self.blocks.table(seq).ok()
    }
}

/// # Panics
/// For a request without blocks, which never has a row.
fn table(blocks: &l3_paged_kv::BlockManager, seq: Option<SeqId>) -> &BlockTable {
    let table = seq.and_then(|seq| blocks.table(seq).ok());
    table.expect("a request with a row has blocks")
}
