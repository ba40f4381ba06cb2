//! Traces of aiperf's generator of coding agents, `aiperf synthesize agentic-code` (its `dataset.jsonl`).
//!
//! The format is that of Mooncake's traces with sessions, as aiperf's `agentic_code_gen/README.md` describes it
//! (NVIDIA, repository ai-dynamo/aiperf). A line is a turn:
//!
//! ```json
//! {"session_id": "s1", "input_length": 1536, "output_length": 320, "hash_ids": [0, 1, 2], "timestamp": 0.0, "group_id": 4}
//! {"session_id": "s1", "input_length": 768, "output_length": 180, "hash_ids": [1000, 1001], "delay": 2450.3}
//! ```
//!
//! `input_length` counts what the turn adds to the conversation; in the first turn also the prefix that it shares with
//! other sessions. `hash_ids` names the blocks of these tokens: blocks with one id have the same tokens. `timestamp` is
//! the arrival of the first turn, `delay` the time from the end of the turn before, both in milliseconds. The tokens of
//! a block are not in the file; they follow from the lengths and the numbers of ids.
//!
//! A trace does not name tools. `is_restart` marks a session that begins with the blocks of an earlier one.

use std::collections::HashMap;
use std::io::BufRead;

use serde::Deserialize;

use super::agents::MAX_TURNS;
use super::lines::{Form, Lines, read_form};
use super::seconds::MAX_SECONDS;
use super::workload::WorkloadError;

/// Tokens of a block by aiperf's default.
const USUAL_BLOCK: usize = 512;

/// Sessions of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Sessions {
    /// Tokens of a block.
    pub block_size: usize,
    /// Sessions in the order of arrival.
    pub sessions: Vec<Session>,
}

/// A session.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// Id of the session.
    pub id: String,
    /// Arrival of the first turn, in seconds.
    pub arrival: f64,
    /// Group of sessions whose first prompts begin alike.
    pub group: Option<u64>,
    /// Turns; at least one.
    pub turns: Vec<SessionTurn>,
}

/// A turn of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionTurn {
    /// Tokens behind the conversation so far.
    pub input_tokens: usize,
    /// Ids of their blocks; empty, or one for each block.
    pub blocks: Vec<u64>,
    /// Output tokens.
    pub output_tokens: usize,
    /// Seconds from the end of the turn before to the arrival of this one; 0 for the first turn.
    pub delay: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    session_id: String,
    input_length: usize,
    output_length: usize,
    #[serde(default)]
    hash_ids: Vec<u64>,
    timestamp: Option<f64>,
    delay: Option<f64>,
    group_id: Option<u64>,
    /// Its blocks say so already.
    #[serde(default, rename = "is_restart")]
    _is_restart: bool,
}

/// Smallest and largest number of tokens that a block can have.
struct BlockSize {
    least: usize,
    most: usize,
}

/// Whether a line is a turn of such a trace.
pub fn is_session(line: &str) -> bool {
    match serde_json::from_str::<serde_json::Value>(line) {
        Ok(line) => line.get("session_id").is_some(),
        Err(_) => line.contains("\"session_id\""),
    }
}

impl Sessions {
    /// Reads a trace, whose sessions may be interleaved.
    ///
    /// # Errors
    /// [`WorkloadError`], with the line and the field.
    pub fn read<'a>(input: Box<dyn BufRead + 'a>) -> Result<Self, WorkloadError> {
        match read_form::<serde::de::IgnoredAny>(input, |_| true, WorkloadError::NoJobs)? {
            Form::List(lines) => Self::of(lines),
            Form::Spec(_) => Err(WorkloadError::NoJobs),
        }
    }

    fn of(mut lines: Lines<'_>) -> Result<Self, WorkloadError> {
        let mut sessions: Vec<Session> = Vec::new();
        let mut by_id: HashMap<String, usize> = HashMap::new();
        let mut size = BlockSize { least: 1, most: usize::MAX };
        while let Some(row) = lines.next::<Row>()? {
            let wrong = |why| WorkloadError::Value { number: lines.number(), why };
            size.narrow(&row).map_err(wrong)?;
            match by_id.get(&row.session_id) {
                Some(at) => {
                    let turns = &mut sessions[*at].turns;
                    if turns.len() == MAX_TURNS {
                        return Err(wrong(format!("a session has at most {MAX_TURNS} turns")));
                    }
                    turns.push(row.later().map_err(wrong)?);
                }
                None => {
                    by_id.insert(row.session_id.clone(), sessions.len());
                    sessions.push(row.first().map_err(wrong)?);
                }
            }
        }
        sessions.sort_by(|a, b| a.arrival.total_cmp(&b.arrival));
        Ok(Self { block_size: size.tokens(), sessions })
    }
}

impl Row {
    fn first(self) -> Result<Session, String> {
        let missing = "timestamp is missing: the first turn of a session needs it";
        let arrival = milliseconds("timestamp", self.timestamp.ok_or(missing)?)?;
        if self.delay.is_some() {
            return Err("delay: the first turn of a session has a timestamp instead".to_owned());
        }
        let (id, group) = (self.session_id.clone(), self.group_id);
        Ok(Session { id, arrival, group, turns: vec![self.turn(0.0)?] })
    }

    fn later(self) -> Result<SessionTurn, String> {
        let missing = "delay is missing: each turn but the first of a session needs it";
        let delay = milliseconds("delay", self.delay.ok_or(missing)?)?;
        if self.timestamp.is_some() {
            return Err("timestamp: only the first turn of a session has one".to_owned());
        }
        self.turn(delay)
    }

    fn turn(self, delay: f64) -> Result<SessionTurn, String> {
        for (field, tokens) in
            [("input_length", self.input_length), ("output_length", self.output_length)]
        {
            if tokens == 0 {
                return Err(format!("{field} must be at least 1, got 0"));
            }
        }
        Ok(SessionTurn {
            input_tokens: self.input_length,
            blocks: self.hash_ids,
            output_tokens: self.output_length,
            delay,
        })
    }
}

/// Seconds of a field in milliseconds.
fn milliseconds(field: &str, value: f64) -> Result<f64, String> {
    let most = MAX_SECONDS * 1e3;
    match (0.0..=most).contains(&value) {
        true => Ok(value / 1e3),
        false => Err(format!("{field} must be from 0 to {most:e} milliseconds, got {value}")),
    }
}

impl BlockSize {
    /// A row with `n` ids has `n - 1` full blocks and at least one token more.
    fn narrow(&mut self, row: &Row) -> Result<(), String> {
        let (tokens, ids) = (row.input_length, row.hash_ids.len());
        if ids == 0 || tokens == 0 {
            return Ok(());
        }
        let least = self.least.max(tokens.div_ceil(ids));
        let most = (tokens - 1).checked_div(ids - 1).unwrap_or(usize::MAX).min(self.most);
        if least > most {
            let known = match (self.least, self.most) {
                (1, usize::MAX) => String::new(),
                (least, usize::MAX) => {
                    format!("; by the rows before, a block has at least {least} tokens")
                }
                (least, most) => {
                    format!("; by the rows before, a block has {least} to {most} tokens")
                }
            };
            return Err(format!(
                "hash_ids must have an id for each block of input_length, got {ids} ids for {tokens} tokens{known}"
            ));
        }
        (self.least, self.most) = (least, most);
        Ok(())
    }

    /// Of several numbers aiperf's default, else the largest power of two.
    fn tokens(&self) -> usize {
        let allowed = |size: &usize| (self.least..=self.most).contains(size);
        let powers = (0..usize::BITS).rev().map(|bit| 1 << bit).filter(|size| *size < USUAL_BLOCK);
        [USUAL_BLOCK].into_iter().chain(powers).find(allowed).unwrap_or(self.least)
    }
}
