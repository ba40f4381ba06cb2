//! Trace of a scenario, step by step, in the form in which vLLM's own scheduler was recorded, so that the two can be
//! compared.

use std::io::{self, Write};

use l3_paged_kv::BlockId;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::scenario::Tables;

/// A trace. Requests have the names of the scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Trace<'a> {
    /// Name of the scenario.
    pub name: &'a str,
    /// Which block tables are recorded.
    pub block_tables: Tables,
    /// Whether requests were left that could never run, which this scheduler does not allow.
    pub stalled: bool,
    /// Totals over all steps.
    pub summary: Summary,
    /// The steps.
    pub steps: Vec<TraceStep<'a>>,
}

/// Totals over all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Steps, empty ones included.
    pub steps: usize,
    /// Preemptions.
    pub preemptions: usize,
    /// Admissions of preempted requests.
    pub resumes: usize,
    /// Requests that ended by themselves.
    pub finished: usize,
    /// Tokens hit in the cache.
    pub cached_tokens: usize,
    /// Tokens computed.
    pub scheduled_tokens: usize,
    /// Tokens sampled.
    pub sampled: usize,
}

/// One step.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TraceStep<'a> {
    /// Number of the step, from 0.
    pub step: u64,
    /// Scheduled requests with their numbers of tokens: running ones, then admitted ones.
    pub scheduled: Vec<(&'a str, usize)>,
    /// Drafts among the tokens of scheduled requests that have some.
    #[serde(skip_serializing_if = "ById::is_empty")]
    pub scheduled_drafts: ById<'a, usize>,
    /// Tokens of each scheduled request that were computed before.
    pub num_computed_tokens: ById<'a, usize>,
    /// Blocks appended to its table; the whole table of an admitted request.
    pub new_block_ids: ById<'a, Vec<BlockId>>,
    /// Block tables.
    pub block_table: ById<'a, Vec<BlockId>>,
    /// Tokens of each admitted request that were hit in the cache.
    pub cached_tokens: ById<'a, usize>,
    /// Admitted requests that had been preempted.
    pub resumed: Vec<&'a str>,
    /// Preempted requests, in the order in which they were chosen.
    pub preempted: Vec<&'a str>,
    /// Free blocks after planning.
    pub num_free_blocks: usize,
    /// Waiting requests, in the order of the queue.
    pub waiting: Vec<&'a str>,
    /// Running requests, in the order of admission.
    pub running: Vec<&'a str>,
    /// Requests for which a token was sampled.
    pub sampled: Vec<&'a str>,
    /// Requests that ended.
    pub finished: Vec<&'a str>,
    /// Their finish reasons.
    pub finish_reason: ById<'a, &'static str>,
    /// Free blocks at the end of the step.
    pub num_free_blocks_end: usize,
    /// Events before the step.
    pub events: Vec<TraceEvent<'a>>,
    /// Requests that were rejected on arrival.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<Rejected<'a>>,
    /// Free blocks at the end of the step, the next one first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_queue_end: Option<Vec<BlockId>>,
    /// Blocks with a hash at the end of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hashed_blocks_end: Option<Vec<BlockId>>,
}

/// An event before a step.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum TraceEvent<'a> {
    /// A request was aborted.
    Abort {
        /// Name of the request.
        id: &'a str,
        /// Whether there was such a request.
        ok: bool,
    },
    /// The prefix cache was to be cleared.
    ResetPrefixCache {
        /// Whether it was: not while blocks are in use.
        ok: bool,
        /// Requests that were preempted for it.
        preempted: Vec<&'a str>,
    },
}

/// A request that was rejected.
#[derive(Clone, Debug, Serialize)]
pub struct Rejected<'a> {
    /// Name of the request.
    pub id: &'a str,
    /// Code of the reason.
    pub reason: &'static str,
}

/// A value for each of some requests: a JSON object, in the order of the requests.
#[derive(Clone, Debug)]
pub struct ById<'a, T>(pub Vec<(&'a str, T)>);

impl<T> Default for ById<'_, T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'a, T> ById<'a, T> {
    /// Whether no request has a value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a request's value.
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
    /// Writes the trace as JSON, a line for each step, so that a difference of two traces is one of lines.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        // The head, without the closing brackets behind `steps`.
        let head = serde_json::to_string(&Trace { steps: Vec::new(), ..*self })?;
        out.write_all(head.trim_end_matches("]}").as_bytes())?;
        for (i, step) in self.steps.iter().enumerate() {
            out.write_all(if i == 0 { b"\n" } else { b",\n" })?;
            serde_json::to_writer(&mut *out, step)?;
        }
        out.write_all(b"\n]}\n")
    }
}
