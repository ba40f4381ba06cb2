//! What happened in a scenario, step by step: the form in which vLLM's own scheduler was recorded, so that the two can be
//! laid side by side.

use std::io::{self, Write};

use l3_paged_kv::BlockId;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::scenario::Tables;

/// A trace. Names are the scenario's.
#[derive(Clone, Debug, Serialize)]
pub struct Trace<'a> {
    /// The scenario's name.
    pub name: &'a str,
    /// Whose block tables are in it.
    pub block_tables: Tables,
    /// Whether requests were left that could never run. With this scheduler there are none.
    pub stalled: bool,
    /// All steps together.
    pub summary: Summary,
    /// Step by step.
    pub steps: Vec<TraceStep<'a>>,
}

/// All steps together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Steps, those in which nobody ran too.
    pub steps: usize,
    /// Requests that gave way, each time.
    pub preemptions: usize,
    /// How often one came back.
    pub resumes: usize,
    /// Requests that ended by themselves.
    pub finished: usize,
    /// Tokens found in the cache.
    pub cached_tokens: usize,
    /// Tokens computed.
    pub scheduled_tokens: usize,
    /// Tokens chosen.
    pub sampled: usize,
}

/// One step.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TraceStep<'a> {
    /// Its number, from 0.
    pub step: u64,
    /// Who takes part with how many tokens: who ran already, then who is admitted.
    pub scheduled: Vec<(&'a str, usize)>,
    /// Of each of those, the tokens that were computed before.
    pub num_computed_tokens: ById<'a, usize>,
    /// Blocks that were appended to its table; of an admission the whole table.
    pub new_block_ids: ById<'a, Vec<BlockId>>,
    /// Block tables.
    pub block_table: ById<'a, Vec<BlockId>>,
    /// Of each admission, tokens that were found in the cache.
    pub cached_tokens: ById<'a, usize>,
    /// Who was admitted and had run before.
    pub resumed: Vec<&'a str>,
    /// Who gave way, in the order in which they were chosen.
    pub preempted: Vec<&'a str>,
    /// Free blocks, with everything reserved.
    pub num_free_blocks: usize,
    /// Who waits, in the order of the queue.
    pub waiting: Vec<&'a str>,
    /// Who runs, in the order of admission.
    pub running: Vec<&'a str>,
    /// Who got a token.
    pub sampled: Vec<&'a str>,
    /// Who ended.
    pub finished: Vec<&'a str>,
    /// And why.
    pub finish_reason: ById<'a, &'static str>,
    /// Free blocks, when those who ended have given theirs back.
    pub num_free_blocks_end: usize,
    /// What happened before the step.
    pub events: Vec<TraceEvent<'a>>,
    /// Requests that came and could never be completed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<Rejected<'a>>,
    /// Free blocks at the end of the step, the next one first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_queue_end: Option<Vec<BlockId>>,
    /// Blocks with a hash at the end of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hashed_blocks_end: Option<Vec<BlockId>>,
}

/// What happened before a step.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum TraceEvent<'a> {
    /// A request was not wanted any more.
    Abort {
        /// Which.
        id: &'a str,
        /// Whether it was there.
        ok: bool,
    },
    /// The cache was to be forgotten.
    ResetPrefixCache {
        /// Whether it was: not while blocks are in use.
        ok: bool,
        /// Who gave way for it.
        preempted: Vec<&'a str>,
    },
}

/// A request that was not taken.
#[derive(Clone, Debug, Serialize)]
pub struct Rejected<'a> {
    /// Which.
    pub id: &'a str,
    /// Why, in a word.
    pub reason: &'static str,
}

/// Something of each of some requests: a JSON object, in the order of the requests.
#[derive(Clone, Debug)]
pub struct ById<'a, T>(pub Vec<(&'a str, T)>);

impl<T> Default for ById<'_, T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'a, T> ById<'a, T> {
    /// One more.
    pub fn push(&mut self, id: &'a str, value: T) {
        self.0.push((id, value));
    }
}

impl<T: Serialize> Serialize for ById<'_, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (id, value) in &self.0 {
            map.serialize_entry(id, value)?;
        }
        map.end()
    }
}

impl Trace<'_> {
    /// Write it as JSON, a line for each step: a difference of two traces is then one of lines.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        // The head, less the brackets behind `steps`.
        let head = serde_json::to_string(&Trace { steps: Vec::new(), ..*self })?;
        out.write_all(head.trim_end_matches("]}").as_bytes())?;
        for (i, step) in self.steps.iter().enumerate() {
            out.write_all(if i == 0 { b"\n" } else { b",\n" })?;
            serde_json::to_writer(&mut *out, step)?;
        }
        out.write_all(b"\n]}\n")
    }
}
