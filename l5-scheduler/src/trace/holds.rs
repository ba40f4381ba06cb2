//! Leases and transfers of a run, as spans of time.

use std::collections::HashMap;

use super::kv::KvEvent;
use super::run::{Fold, ns};

/// A lease: blocks that were held for no running request. Times are nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Number of the lease.
    pub lease: u64,
    /// Lane of the finished request.
    pub lane: usize,
    /// Job of the request.
    pub job: Option<String>,
    /// Tool that it called.
    pub tool: Option<String>,
    /// Number of blocks.
    pub blocks: usize,
    /// Time of the beginning.
    pub start: u64,
    /// Time of the end; that of the run, if the lease has not ended.
    pub end: u64,
    /// Index of the step with which it was recorded.
    pub from: usize,
    /// Index of the step with which its end was recorded.
    pub to: usize,
    /// Why it ended; `None` if it has not.
    pub why: Option<String>,
}

/// A copy of keys and values into the pool or out of it. Times are nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Lane of the request that loads, or of the finished one whose blocks are stored.
    pub lane: usize,
    /// What is copied.
    pub kind: TransferKind,
    /// Number of tokens that are copied.
    pub tokens: usize,
    /// Number of tokens that arrived; `None` if it has not ended, and for a store.
    pub arrived: Option<usize>,
    /// Time of the step that began it.
    pub start: u64,
    /// Time of its end; that of the run, if it has not ended.
    pub end: u64,
    /// Index of the step that began it.
    pub from: usize,
    /// Index of the step with which its end was recorded.
    pub to: usize,
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// Into the pool.
    Load,
    /// Out of it.
    Store,
}

impl TransferKind {
    /// Name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Store => "store",
        }
    }
}

/// Leases and transfers that have not ended.
#[derive(Default)]
pub(super) struct Open {
    /// Index of each lease.
    holds: HashMap<u64, usize>,
    /// Index of each load, by its request, and the token that it began with.
    loads: HashMap<u64, (usize, usize)>,
    /// Index of each store, by its lease.
    stores: HashMap<u64, usize>,
}

impl Fold {
    /// What was recorded with a step that begins at `start` and counts, unless it was `abandoned`.
    pub(super) fn kv_events(&mut self, events: Vec<KvEvent>, start: u64, abandoned: bool) {
        let at = self.run.steps.len();
        for event in events {
            match event {
                KvEvent::Leased { lease, id, at_us, blocks, job, tool } => {
                    let (lane, now) = (self.lane(id, start), ns(at_us));
                    self.open.holds.insert(lease, self.run.holds.len());
                    let (end, why) = (u64::MAX, None);
                    let hold = Hold {
                        lease,
                        lane,
                        job,
                        tool,
                        blocks,
                        start: now,
                        end,
                        from: at,
                        to: at,
                        why,
                    };
                    self.run.holds.push(hold);
                }
                KvEvent::LeaseEnded { lease, at_us, why } => {
                    let now = ns(at_us);
                    if let Some(hold) = self.open.holds.remove(&lease) {
                        let hold = &mut self.run.holds[hold];
                        (hold.end, hold.to, hold.why) = (now.max(hold.start), at, Some(why));
                    }
                    if let Some(store) = self.open.stores.remove(&lease) {
                        let store = &mut self.run.transfers[store];
                        (store.end, store.to) = (now.max(store.start), at);
                    }
                }
                KvEvent::WriteBack { .. } if abandoned => {}
                // A part of its step, without a span of its own.
                KvEvent::WriteBack { blocks } => match self.run.write_backs.last_mut() {
                    Some((step, copied)) if *step == at => *copied += blocks,
                    _ => self.run.write_backs.push((at, blocks)),
                },
                // It is planned again.
                KvEvent::Load { .. } | KvEvent::Store { .. } if abandoned => {}
                KvEvent::Load { id, from, to } => {
                    let lane = self.lane(id, start);
                    self.open.loads.insert(id, (self.run.transfers.len(), from));
                    self.begin(TransferKind::Load, lane, to.saturating_sub(from), start);
                }
                KvEvent::Loaded { id, at_us, tokens } => {
                    let now = ns(at_us);
                    if let Some((load, from)) = self.open.loads.remove(&id) {
                        let load = &mut self.run.transfers[load];
                        (load.end, load.to) = (now.max(load.start), at);
                        load.arrived = Some(tokens.saturating_sub(from).min(load.tokens));
                    }
                }
                KvEvent::Store { lease, blocks } => {
                    let Some(hold) = self.open.holds.get(&lease) else { continue };
                    let lane = self.run.holds[*hold].lane;
                    self.open.stores.insert(lease, self.run.transfers.len());
                    let tokens = blocks.saturating_mul(self.run.header.config.block_size);
                    self.begin(TransferKind::Store, lane, tokens, start);
                }
            }
        }
    }

    fn begin(&mut self, kind: TransferKind, lane: usize, tokens: usize, start: u64) {
        let at = self.run.steps.len();
        let (arrived, end) = (None, u64::MAX);
        self.run.transfers.push(Transfer {
            lane,
            kind,
            tokens,
            arrived,
            start,
            end,
            from: at,
            to: at,
        });
    }

    /// Ends what has not ended with the run.
    pub(super) fn end_kv(&mut self, end: u64) {
        let steps = self.run.steps.len();
        for hold in self.run.holds.iter_mut().filter(|hold| hold.end == u64::MAX) {
            (hold.end, hold.to) = (end.max(hold.start), steps);
        }
        for transfer in self.run.transfers.iter_mut().filter(|transfer| transfer.end == u64::MAX) {
            (transfer.end, transfer.to) = (end.max(transfer.start), steps);
        }
    }
}

/// Rows on which spans do not overlap, the spans of one name together: for each span its row, and the name of each row.
pub fn rows<'a>(
    spans: impl Iterator<Item = (Option<&'a str>, u64, u64)>,
) -> (Vec<usize>, Vec<String>) {
    /// Name of a row, and the end of its last span.
    struct Row<'a>(Option<&'a str>, u64);
    let mut rows: Vec<Row<'a>> = Vec::new();
    // A list for each name, so that many jobs take no search through all of them.
    let mut of_name: HashMap<Option<&str>, Vec<usize>> = HashMap::new();
    let place = |(name, start, end): (Option<&'a str>, u64, u64)| {
        let own = of_name.entry(name).or_default();
        let free = own.iter().copied().find(|row| rows.get(*row).is_some_and(|row| row.1 <= start));
        let row = free.unwrap_or_else(|| {
            own.push(rows.len());
            rows.push(Row(name, 0));
            rows.len() - 1
        });
        rows[row].1 = end;
        row
    };
    let placed: Vec<usize> = spans.map(place).collect();
    (placed, rows.into_iter().map(|row| row.0.unwrap_or("no job").to_owned()).collect())
}
