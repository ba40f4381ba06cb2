//! From a scheduler's trace to a page.
//!
//! Such a trace has the result of a step, not its events: the free list, the hashed blocks and the tables are compared
//! with those of the step before. A step makes one frame, and a second one where sequences finished in it, since they
//! gave their blocks back after it ran.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use l3_paged_kv::BlockId;

use super::page::{Delta, Frame, Page};
use super::recording::list;
use server::words::count;

type Tables = BTreeMap<String, Vec<BlockId>>;

/// A trace, as far as blocks are concerned. Whatever else stands in it is of no interest here.
#[derive(Debug, Deserialize)]
pub struct Trace {
    #[serde(default)]
    name: String,
    #[serde(default)]
    block_tables: String,
    #[serde(default)]
    config: Config,
    steps: Vec<Step>,
}

/// The scenario's configuration. A trace may repeat it, and need not.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    block_size: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Step {
    step: u64,
    scheduled: Vec<(String, usize)>,
    num_computed_tokens: BTreeMap<String, usize>,
    new_block_ids: Tables,
    block_table: Tables,
    cached_tokens: BTreeMap<String, usize>,
    resumed: Vec<String>,
    preempted: Vec<String>,
    num_free_blocks: Option<usize>,
    running: Vec<String>,
    finished: Vec<String>,
    free_queue_end: Option<Vec<BlockId>>,
    hashed_blocks_end: Option<Vec<BlockId>>,
    events: Vec<Event>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    op: String,
    id: Option<String>,
    ok: Option<bool>,
}

/// Why a trace cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// No step says anything about blocks.
    #[error("no step says what is free (`num_free_blocks`): there is nothing to show")]
    NothingFree,
    /// More blocks than a pool can have.
    #[error("the pool would have {num_blocks} blocks, and can have {} at most", i32::MAX)]
    NoSuchPool {
        /// Blocks in use and free at the end of the first step.
        num_blocks: usize,
    },
    /// A step that cannot be.
    #[error("step {step} names block {block}, and the pool has blocks 1 to {last}")]
    UnknownBlock {
        /// The step.
        step: u64,
        /// The block.
        block: BlockId,
        /// The last there is.
        last: usize,
    },
}

/// Makes the page of a trace. Steps that do not fit `most` frames are counted and left out.
///
/// # Errors
/// [`SimulationError`]
pub fn page(trace: &Trace, title: &str, most: usize) -> Result<Page, SimulationError> {
    let changed_only = trace.block_tables == "changed";
    let knows_free_list = trace.steps.iter().all(|s| s.free_queue_end.is_some());
    let first = trace.steps.first().ok_or(SimulationError::NothingFree)?;
    let mut in_use = used(&first.block_table);
    let free = match &first.free_queue_end {
        Some(queue) if knows_free_list => {
            in_use.extend(queue);
            0
        }
        _ => first.num_free_blocks.ok_or(SimulationError::NothingFree)?,
    };
    let num_blocks = free.saturating_add(in_use.len() + 1);
    if num_blocks > i32::MAX as usize {
        return Err(SimulationError::NoSuchPool { num_blocks });
    }
    for step in &trace.steps {
        let named = step.block_table.values().chain(step.new_block_ids.values()).flatten();
        let named =
            named.chain(step.free_queue_end.iter().chain(&step.hashed_blocks_end).flatten());
        for &block in named {
            if !(1..num_blocks).contains(&(block as usize)) {
                let (step, last) = (step.step, num_blocks - 1);
                return Err(SimulationError::UnknownBlock { step, block, last });
            }
        }
    }
    let title = if trace.name.is_empty() { title } else { &trace.name };
    let mut drawn = Drawn {
        page: Page::new(title, "simulation", num_blocks),
        most,
        sequences: BTreeMap::new(),
        now: Picture::default(),
    };
    drawn.page.knows_free_list = knows_free_list;
    drawn.page.block_size =
        trace.config.block_size.filter(|n| *n > 0).or_else(|| trace.block_size());
    for step in &trace.steps {
        drawn.step(step, changed_only);
    }
    drawn.page.finish();
    Ok(drawn.page)
}

/// What is known after a frame.
#[derive(Clone, Debug, Default)]
struct Picture {
    tables: Tables,
    /// `None` until the trace says: then the pool is as it was made.
    free: Option<Vec<BlockId>>,
    hashed: BTreeSet<BlockId>,
}

struct Drawn {
    page: Page,
    most: usize,
    sequences: BTreeMap<String, usize>,
    now: Picture,
}

impl Trace {
    /// Tokens a block: the one power of two by which every table is as long as its tokens need, and every hit whole.
    fn block_size(&self) -> Option<usize> {
        let sizes = self.steps.iter().flat_map(Step::sizes);
        let hits = || self.steps.iter().flat_map(|s| s.cached_tokens.values());
        let fits = |size: &usize| {
            sizes.clone().all(|(tokens, blocks)| tokens.div_ceil(*size) == blocks)
                && hits().all(|hit| hit.is_multiple_of(*size))
        };
        let mut fitting = (0..usize::BITS - 1).map(|bit| 1 << bit).filter(fits);
        match (fitting.next(), fitting.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        }
    }
}

impl Step {
    /// Tokens after this step and blocks, of every table that is told.
    fn sizes(&self) -> impl Iterator<Item = (usize, usize)> + Clone + '_ {
        self.scheduled.iter().filter_map(|(id, tokens)| {
            let computed = self.num_computed_tokens.get(id)?;
            Some((computed.saturating_add(*tokens), self.block_table.get(id)?.len()))
        })
    }

    /// The tables right after planning.
    fn tables(&self, before: &Tables, changed_only: bool) -> Tables {
        let mut tables = Tables::new();
        if changed_only {
            for id in &self.running {
                tables.extend(before.get(id).map(|table| (id.clone(), table.clone())));
            }
        }
        tables.extend(self.block_table.clone());
        tables
    }
}

fn used(tables: &Tables) -> BTreeSet<BlockId> {
    tables.values().flatten().copied().collect()
}

impl Drawn {
    fn step(&mut self, step: &Step, changed_only: bool) {
        let tables = step.tables(&self.now.tables, changed_only);
        let in_use = used(&tables);
        // Blocks that came back after the step are at either end of the list; the rest is as the plan left it.
        let planned = |queue: &Vec<BlockId>| {
            queue.iter().filter(|block| !in_use.contains(block)).copied().collect()
        };
        let plan = Picture {
            free: step.free_queue_end.as_ref().filter(|_| self.page.knows_free_list).map(planned),
            hashed: match &step.hashed_blocks_end {
                Some(hashed) => hashed.iter().copied().collect(),
                None => self.now.hashed.clone(),
            },
            tables,
        };
        let text = self.planned(step, &plan);
        let stored: BTreeMap<_, _> = step
            .scheduled
            .iter()
            .map(|(id, tokens)| {
                let before = step.num_computed_tokens.get(id).copied().unwrap_or_default();
                (id.clone(), before.saturating_add(*tokens))
            })
            .collect();
        self.frame(step, "step", text, plan, &stored);
        if step.finished.is_empty() {
            return;
        }
        let mut end = self.now.clone();
        let gone: BTreeSet<BlockId> =
            step.finished.iter().filter_map(|id| end.tables.remove(id)).flatten().collect();
        let still_used = used(&end.tables);
        end.free = end.free.and(step.free_queue_end.clone());
        let text = self.ended(step, &end, &gone, &still_used);
        self.frame(step, "ends", text, end, &BTreeMap::new());
    }

    fn frame(
        &mut self,
        step: &Step,
        kind: &'static str,
        text: String,
        next: Picture,
        stored: &BTreeMap<String, usize>,
    ) {
        if self.page.frames.len() >= self.most {
            self.page.left_out += 1;
            return;
        }
        let mut deltas = Vec::new();
        self.tables(&next.tables, stored, &mut deltas);
        self.users(&next.tables, &mut deltas);
        match &next.free {
            Some(free) => {
                let before =
                    self.now.free.clone().unwrap_or_else(|| all_blocks(self.page.num_blocks));
                reorder(&before, free, &mut deltas);
            }
            None => {
                let (before, after) = (used(&self.now.tables), used(&next.tables));
                deltas.extend(after.difference(&before).map(|b| Delta::Leave(*b)));
                deltas.extend(before.difference(&after).map(|b| Delta::Back(*b)));
            }
        }
        deltas.extend(self.now.hashed.difference(&next.hashed).map(|b| Delta::Unhash(*b)));
        deltas
            .extend(next.hashed.difference(&self.now.hashed).map(|b| Delta::Hash(*b, None, false)));
        self.now = next;
        self.page.push(Frame { step: Some(step.step), kind, text, deltas });
    }

    fn tables(&mut self, next: &Tables, stored: &BTreeMap<String, usize>, deltas: &mut Vec<Delta>) {
        for id in self.now.tables.keys().filter(|id| !next.contains_key(*id)) {
            deltas.push(Delta::End(self.sequences[id]));
        }
        for (id, table) in next {
            let seq = self.sequence(id);
            let before = self.now.tables.get(id);
            if before.is_none() {
                deltas.push(Delta::Begin(seq));
            }
            let before = before.map_or(&[][..], |t| t);
            let same = before.iter().zip(table).take_while(|(a, b)| a == b).count();
            if same < before.len() {
                deltas.push(Delta::Truncate(seq, same));
            }
            deltas.extend(table[same..].iter().map(|block| Delta::Append(seq, *block)));
            deltas.extend(stored.get(id).map(|tokens| Delta::Stored(seq, *tokens)));
        }
    }

    fn users(&self, next: &Tables, deltas: &mut Vec<Delta>) {
        let count = |tables: &Tables| {
            let mut users = BTreeMap::<BlockId, u32>::new();
            tables.values().flatten().for_each(|block| *users.entry(*block).or_default() += 1);
            users
        };
        let (before, after) = (count(&self.now.tables), count(next));
        for &block in before.keys().filter(|block| !after.contains_key(block)) {
            deltas.push(Delta::Users(block, 0));
        }
        for (&block, &users) in after.iter().filter(|(b, users)| before.get(b) != Some(users)) {
            deltas.push(Delta::Users(block, users));
        }
    }

    fn sequence(&mut self, id: &str) -> usize {
        if let Some(seq) = self.sequences.get(id) {
            return *seq;
        }
        self.page.sequences.push(id.to_owned());
        self.sequences.insert(id.to_owned(), self.page.sequences.len() - 1);
        self.page.sequences.len() - 1
    }

    fn planned(&mut self, step: &Step, plan: &Picture) -> String {
        let mut says = Vec::new();
        for event in &step.events {
            says.push(match (event.op.as_str(), &event.id) {
                ("abort", Some(id)) if event.ok == Some(false) => {
                    format!("an abort of {id}, which does not exist.")
                }
                ("abort", Some(id)) => format!("{} is aborted.", self.name(id)),
                ("reset_prefix_cache", _) if event.ok == Some(false) => {
                    "the prefix cache cannot be reset: blocks are in use.".to_owned()
                }
                ("reset_prefix_cache", _) => "the prefix cache is reset.".to_owned(),
                (op, _) => format!("event {op}."),
            });
        }
        for id in &step.preempted {
            says.push(format!(
                "{} is preempted: it frees its blocks and is computed again later.",
                self.name(id)
            ));
        }
        for (id, new) in &step.new_block_ids {
            let name = self.name(id);
            let Some(&cached) = step.cached_tokens.get(id) else {
                says.push(format!("{name} grows into {}.", list(new)));
                continue;
            };
            let hits = self.page.block_size.map_or(0, |size| (cached / size).min(new.len()));
            let how = if step.resumed.contains(id) { "comes back" } else { "enters" };
            says.push(match (cached, hits) {
                (0, _) => {
                    format!("{name} {how}, none of its prompt is cached: it takes {}.", list(new))
                }
                (_, 0) => format!(
                    "{name} {how}: {} are cached; its block table is {}.",
                    count(cached, "token"),
                    list(new)
                ),
                _ => format!(
                    "{name} {how}: {} are cached in {} and need not be computed; {} new.",
                    count(cached, "token"),
                    list(&new[..hits]),
                    match &new[hits..] {
                        [one] => format!("{{b{one}}} is"),
                        more => format!("{} are", list(more)),
                    }
                ),
            });
        }
        let evicted: Vec<_> = self.now.hashed.difference(&plan.hashed).copied().collect();
        if !evicted.is_empty() {
            says.push(format!("the earlier content of {} is evicted.", list(&evicted)));
        }
        if says.is_empty() {
            says.push(match step.scheduled.len() {
                0 if step.running.is_empty() => "nothing runs.".to_owned(),
                0 => "no request gets a token.".to_owned(),
                n => format!(
                    "{} run{}, and no block changes hands.",
                    count(n, "sequence"),
                    if n == 1 { "s" } else { "" }
                ),
            });
        }
        format!("Step {}: {}", step.step, says.join(" "))
    }

    fn ended(
        &mut self,
        step: &Step,
        end: &Picture,
        gone: &BTreeSet<BlockId>,
        still_used: &BTreeSet<BlockId>,
    ) -> String {
        let names: Vec<_> = step.finished.iter().map(|id| self.name(id)).collect();
        let mut text =
            format!("{} end{}.", names.join(", "), if names.len() == 1 { "s" } else { "" });
        if let Some(free) = &end.free {
            let back: Vec<_> = free.iter().filter(|b| gone.contains(b)).copied().collect();
            let (kept, lost): (Vec<_>, Vec<_>) =
                back.into_iter().partition(|block| end.hashed.contains(block));
            if !lost.is_empty() {
                text +=
                    &format!(" Without a hash, to the front of the free list: {}.", list(&lost));
            }
            if !kept.is_empty() {
                text += &format!(
                    " Cached, to its back, tail first, so that the end of a text is forgotten before its beginning: \
                    {}.",
                    list(&kept)
                );
            }
        }
        let shared: Vec<_> = gone.intersection(still_used).copied().collect();
        if !shared.is_empty() {
            text += &format!(" Still in use by others: {}.", list(&shared));
        }
        text
    }

    fn name(&mut self, id: &str) -> String {
        format!("{{s{}}}", self.sequence(id))
    }
}

fn all_blocks(num_blocks: usize) -> Vec<BlockId> {
    (1..num_blocks as BlockId).collect()
}

/// The moves from one order of the free list to another: blocks leave, and come in at either end.
fn reorder(before: &[BlockId], after: &[BlockId], deltas: &mut Vec<Delta>) {
    let places: BTreeMap<_, _> = before.iter().enumerate().map(|(i, block)| (*block, i)).collect();
    // The longest run of `after` that is in the order of `before` stays where it is.
    let mut best = 0..0;
    let mut start = 0;
    for at in 0..after.len() {
        let place = places.get(&after[at]);
        if place.is_none() {
            start = at + 1;
        } else if at > start && places.get(&after[at - 1]) > place {
            start = at;
        }
        if at + 1 - start > best.len() {
            best = start..at + 1;
        }
    }
    let stays: BTreeSet<_> = after[best.clone()].iter().copied().collect();
    deltas.extend(before.iter().filter(|b| !stays.contains(b)).map(|b| Delta::Leave(*b)));
    deltas.extend(after[..best.start].iter().rev().map(|b| Delta::Front(*b)));
    deltas.extend(after[best.end..].iter().map(|b| Delta::Back(*b)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_order_is_reached_by_moves_at_the_ends() {
        let cases: [(&[u32], &[u32]); 6] = [
            (&[1, 2, 3, 4], &[3, 4]),
            (&[1, 2, 3, 4], &[9, 3, 4, 8, 7]),
            (&[5, 6, 7], &[7, 6, 5]),
            (&[], &[1, 2]),
            (&[1, 2, 3], &[]),
            (&[1, 2, 3, 4, 5], &[4, 1, 2, 5, 3]),
        ];
        for (before, after) in cases {
            let mut deltas = Vec::new();
            reorder(before, after, &mut deltas);
            let mut list = std::collections::VecDeque::from(before.to_vec());
            for delta in deltas {
                match delta {
                    Delta::Leave(block) => list.retain(|b| *b != block),
                    Delta::Front(block) => list.push_front(block),
                    Delta::Back(block) => list.push_back(block),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(list, after, "from {before:?}");
        }
    }
}
