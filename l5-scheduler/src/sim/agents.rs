//! Jobs of agents: what each of them will ask, before any of it is served.
//!
//! A job is a conversation between a model and tools. Each **turn** is a request; its output calls a tool, and when the
//! tool is done the next turn arrives, whose prompt is the whole conversation so far. A file of jobs has one of three
//! forms. **A specification** says how jobs are made:
//!
//! ```json
//! {"jobs": 40, "rate": 0.5, "turns": {"uniform": [2, 8]}, "input": {"uniform": [60, 120]},
//!  "output": {"uniform": [13, 80]}, "tool_result": {"exponential": 300},
//!  "shared_prefix": {"tokens": 512, "groups": 2},
//!  "tools": [{"name": "ls", "weight": 3, "seconds": {"uniform": [0.05, 0.1]}},
//!            {"name": "python", "weight": 1, "seconds": {"lognormal": {"median": 3, "sigma": 0.5}}}]}
//! ```
//!
//! **A list** has a line of JSON for each job:
//!
//! ```json
//! {"job": "j1", "arrival": 0.4, "prefix": {"id": "system", "tokens": 512}, "turns": [
//!   {"prompt_tokens": 92, "output_tokens": 25, "tool": "cat", "tool_seconds": 0.1},
//!   {"prompt_tokens": 469, "output_tokens": 17}]}
//! ```
//!
//! Beside the name of a tool, either form may have the `"command"` that the tool runs, such as `"cat src/main.rs"`:
//! `context-serve` looks at it.
//!
//! `"history": {"id": "h", "tokens": 2048}` replaces the first tokens of the conversation, outputs included, by those
//! of all jobs with this id, as if they had asked the same before they went different ways. `"abandoned": true` is a
//! job whose agent never returns: its last turn does not say that it is the last step.
//!
//! **A trace** of aiperf's `synthesize agentic-code` has a line for each turn: see [`Sessions`].
//!
//! Everything about a job follows from the seed and the job's number alone: two simulations with one seed have the same
//! jobs, token counts and tool times, whatever the scheduler does with them.

use std::collections::HashMap;
use std::io::{BufRead, Cursor, Read as _};

use serde::Deserialize;

use super::lengths::{Dice, Lengths, MAX_TOKENS_PER_REQUEST, Purpose, check_weights, choose};
use super::lines::{Form, read_form};
use super::seconds::{MAX_SECONDS, Seconds};
use super::sessions::{Session, Sessions, is_session};
use super::workload::{ArrivalProcess, Prefix, SharedPrefix, WorkloadError};
use crate::Time;

/// Maximum number of turns of a job.
pub(super) const MAX_TURNS: usize = 1 << 16;

/// Specification: how jobs are made.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// Number of jobs.
    pub jobs: u64,
    /// Jobs a second, as a Poisson process; all at time 0 without it.
    pub rate: Option<f64>,
    /// Seed of all random values; 0 without it.
    pub seed: Option<u64>,
    /// Turns of a job.
    pub turns: Lengths,
    /// Tokens of the first prompt, without the shared prefix.
    pub input: Lengths,
    /// Output tokens of a turn.
    pub output: Lengths,
    /// Tokens that the result of a tool adds to the next prompt.
    pub tool_result: Lengths,
    /// Tools; each output but the last calls one of them.
    pub tools: Vec<Tool>,
    /// Prefix that the first prompts of several jobs share.
    pub shared_prefix: Option<SharedPrefix>,
    /// Priorities of jobs with their weights.
    pub priorities: Option<Vec<(i64, f64)>>,
}

/// A tool.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// Name of the tool.
    pub name: String,
    /// How often it is called, relative to the others.
    #[serde(default = "one")]
    pub weight: f64,
    /// Seconds from the end of the output that calls it to the arrival of the next turn.
    pub seconds: Seconds,
    /// Shell commands that it runs.
    pub command: Option<String>,
}

fn one() -> f64 {
    1.0
}

/// A job of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobLine {
    job: String,
    arrival: Option<f64>,
    tenant: Option<String>,
    #[serde(default = "yes")]
    has_id: bool,
    #[serde(default)]
    priority: i64,
    prefix: Option<Prefix>,
    history: Option<Prefix>,
    #[serde(default)]
    abandoned: bool,
    turns: Vec<TurnLine>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TurnLine {
    prompt_tokens: Tokens,
    output_tokens: Tokens,
    tool: Option<String>,
    tool_seconds: Option<f64>,
    command: Option<String>,
}

/// Tokens of a list: how many, or which.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "must be a number of tokens or a list of token ids")]
pub(super) enum Tokens {
    Count(usize),
    Ids(Vec<u32>),
}

impl Tokens {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Count(count) => *count,
            Self::Ids(ids) => ids.len(),
        }
    }
}

/// A job, as it will be if all of its turns are served.
#[derive(Debug)]
pub(super) struct AgentJob {
    /// Number of the job, in the order of arrival.
    pub number: u64,
    pub arrival: Time,
    pub name: String,
    /// Id that its requests have; `None` if they do not say that they are steps of a job.
    pub id: Option<String>,
    pub tenant: Option<String>,
    pub priority: i64,
    /// Number of a shared prefix, and its tokens.
    pub prefix: Option<(u64, usize)>,
    /// Number of a shared beginning of the conversation, and its tokens. It can be longer than the first prompt.
    pub history: Option<(u64, usize)>,
    /// Whether its last turn does not say that it is the last step: the agent calls a tool and never returns.
    pub abandoned: bool,
    pub turns: Vec<Turn>,
}

/// A turn of a job.
#[derive(Debug)]
pub(super) struct Turn {
    pub input: Input,
    pub output: Tokens,
    pub tool: Option<String>,
    /// Shell commands that the tool runs.
    pub command: Option<String>,
    pub tool_seconds: f64,
}

/// Prompt of a turn.
#[derive(Debug)]
pub(super) enum Input {
    /// The conversation so far, and so many tokens behind it.
    Behind(usize),
    /// The conversation so far, and the tokens of these blocks behind it; of the last block not all.
    Blocks { ids: Vec<u64>, block_size: usize, tokens: usize },
    /// These tokens.
    Whole(Vec<u32>),
}

/// Where jobs come from.
enum Source<'a> {
    File(Form<'a, AgentSpec>),
    /// Jobs of a trace, which is read as a whole: the turns of a session need not be behind each other.
    Trace(std::vec::IntoIter<AgentJob>),
}

/// Jobs in the order of arrival, made one at a time.
pub(super) struct JobSource<'a> {
    source: Source<'a>,
    process: ArrivalProcess,
    dice: Dice,
    count: u64,
    last: Time,
    /// Numbers of named prefixes.
    prefixes: HashMap<String, u64>,
}

impl<'a> JobSource<'a> {
    /// Reads a file in any form; `seed` replaces that of a specification.
    pub(super) fn read(
        mut input: Box<dyn BufRead + 'a>,
        rate: Option<f64>,
        jobs: Option<u64>,
        seed: Option<u64>,
    ) -> Result<Self, WorkloadError> {
        let mut head = String::new();
        while head.trim().is_empty() && input.read_line(&mut head)? > 0 {}
        let is_trace = is_session(head.trim());
        let input = Box::new(Cursor::new(head.into_bytes()).chain(input));
        let source = match is_trace {
            true => Source::Trace(jobs_of(Sessions::read(input)?).into_iter()),
            false => Source::File(read_form(input, is_list, WorkloadError::NoJobs)?),
        };
        Self::from_source(source, rate, jobs, seed)
    }

    /// The jobs of a specification.
    pub(super) fn of(spec: AgentSpec) -> Result<Self, WorkloadError> {
        Self::from_source(Source::File(Form::Spec(spec)), None, None, None)
    }

    fn from_source(
        source: Source<'a>,
        rate: Option<f64>,
        jobs: Option<u64>,
        seed: Option<u64>,
    ) -> Result<Self, WorkloadError> {
        let (mut process, mut own_seed) = (ArrivalProcess { rate, requests: jobs, seed: 0 }, None);
        if let Source::File(Form::Spec(spec)) = &source {
            spec.check()?;
            process.rate = Some(rate.or(spec.rate).unwrap_or(f64::INFINITY));
            process.requests = Some(jobs.unwrap_or(spec.jobs));
            own_seed = spec.seed;
        }
        process.seed = seed.or(own_seed).unwrap_or_default();
        process.check()?;
        Ok(Self {
            source,
            process,
            dice: Dice::new(process.seed),
            count: 0,
            last: Time::ZERO,
            prefixes: HashMap::new(),
        })
    }

    /// Random numbers of these jobs.
    pub(super) fn dice(&self) -> Dice {
        self.dice
    }

    /// Makes the next job.
    pub(super) fn next(&mut self) -> Result<Option<AgentJob>, WorkloadError> {
        let number = self.count;
        if self.process.requests.is_some_and(|most| number >= most) {
            return Ok(None);
        }
        let mut job = match &mut self.source {
            Source::Trace(jobs) => match jobs.next() {
                Some(job) => AgentJob { number, ..job },
                None => return Ok(None),
            },
            Source::File(Form::Spec(spec)) => spec.job(number, self.dice),
            Source::File(Form::List(lines)) => {
                let Some(line) = lines.next::<JobLine>()? else { return Ok(None) };
                let wrong = |why| WorkloadError::Value { number: lines.number(), why };
                line.job(number, &mut self.prefixes).map_err(wrong)?
            }
        };
        job.arrival = self.process.next(job.arrival, self.last, number, self.dice);
        if let Source::File(Form::List(lines)) = &self.source {
            lines.in_order(job.arrival, self.last)?;
        }
        job.check()?;
        self.count += 1;
        self.last = job.arrival;
        Ok(Some(job))
    }
}

/// Whether a file is a list, by its first line.
fn is_list(first: &str) -> bool {
    match serde_json::from_str::<serde_json::Value>(first) {
        Ok(line) => line.get("jobs").is_none(),
        Err(_) => first.contains("\"prompt_tokens\""),
    }
}

/// What the random numbers of a turn follow from.
pub(super) fn turn_key(job: u64, turn: usize) -> u64 {
    (job << 16) | turn as u64
}

impl AgentSpec {
    fn check(&self) -> Result<(), WorkloadError> {
        let field = |field: &'static str| move |why: String| WorkloadError::Field { field, why };
        let lengths = [
            ("turns", &self.turns),
            ("input", &self.input),
            ("output", &self.output),
            ("tool_result", &self.tool_result),
        ];
        for (name, lengths) in lengths {
            lengths.check().map_err(field(name))?;
        }
        if self.turns.most() > MAX_TURNS {
            let why = format!("must be at most {MAX_TURNS}, got {}", self.turns.most());
            return Err(field("turns")(why));
        }
        for tool in &self.tools {
            let why = |why| format!("{}: {why}", tool.name);
            tool.seconds.check().map_err(|e| field("tools")(why(e)))?;
        }
        let weights = self.tools.iter().map(|tool| tool.weight);
        check_weights(weights).map_err(field("tools"))?;
        if let Some(prefix) = &self.shared_prefix {
            prefix.check()?;
        }
        if let Some(priorities) = &self.priorities {
            let weights = priorities.iter().map(|(_, weight)| *weight);
            check_weights(weights).map_err(field("priorities"))?;
        }
        Ok(())
    }

    fn job(&self, number: u64, dice: Dice) -> AgentJob {
        let turns = self.turns.at(dice.uniform(Purpose::Turns, number)).min(MAX_TURNS);
        let prefix = self.shared_prefix.as_ref();
        let prefix = prefix.and_then(|p| Some((p.of(number, dice)?, p.tokens)));
        let priority = |all: &Vec<_>| *choose(all, dice.uniform(Purpose::Priority, number));
        AgentJob {
            number,
            arrival: Time::ZERO,
            name: format!("job-{number}"),
            id: Some(format!("job-{number}")),
            tenant: None,
            priority: self.priorities.as_ref().map_or(0, priority),
            prefix,
            history: None,
            abandoned: false,
            turns: (0..turns).map(|turn| self.turn(number, turn, turns, dice)).collect(),
        }
    }

    fn turn(&self, job: u64, turn: usize, turns: usize, dice: Dice) -> Turn {
        let key = turn_key(job, turn);
        let added = if turn == 0 { &self.input } else { &self.tool_result };
        let tools: Vec<(&Tool, f64)> = self.tools.iter().map(|tool| (tool, tool.weight)).collect();
        let tool = *choose(&tools, dice.uniform(Purpose::Tool, key));
        let calls = turn + 1 < turns;
        Turn {
            input: Input::Behind(added.at(dice.uniform(Purpose::Input, key))),
            output: Tokens::Count(self.output.at(dice.uniform(Purpose::Output, key))),
            tool: calls.then(|| tool.name.clone()),
            command: tool.command.clone().filter(|_| calls),
            tool_seconds: match calls {
                true => tool.seconds.at(dice.uniforms(Purpose::ToolSeconds, key)),
                false => 0.0,
            },
        }
    }
}

/// Jobs of a trace. They call no tools that have names.
fn jobs_of(trace: Sessions) -> Vec<AgentJob> {
    let Sessions { block_size, sessions } = trace;
    let job = |Session { id, arrival, turns, .. }: Session| {
        let delays: Vec<f64> = turns.iter().skip(1).map(|turn| turn.delay).chain([0.0]).collect();
        let turns = turns.into_iter().zip(delays).map(|(turn, tool_seconds)| Turn {
            input: match turn.blocks {
                ids if ids.is_empty() => Input::Behind(turn.input_tokens),
                ids => Input::Blocks { ids, block_size, tokens: turn.input_tokens },
            },
            output: Tokens::Count(turn.output_tokens),
            tool: None,
            command: None,
            tool_seconds,
        });
        AgentJob {
            number: 0,
            arrival: Time(arrival),
            id: Some(id.clone()),
            name: id,
            tenant: None,
            priority: 0,
            prefix: None,
            history: None,
            abandoned: false,
            turns: turns.collect(),
        }
    };
    sessions.into_iter().map(job).collect()
}

impl JobLine {
    fn job(self, number: u64, prefixes: &mut HashMap<String, u64>) -> Result<AgentJob, String> {
        let arrival = self.arrival.unwrap_or_default();
        if !(0.0..=MAX_SECONDS).contains(&arrival) {
            return Err(format!(
                "arrival must be from 0 to {MAX_SECONDS:e} seconds, got {arrival}"
            ));
        }
        if self.turns.is_empty() || self.turns.len() > MAX_TURNS {
            return Err(format!("turns: must be 1 to {MAX_TURNS}, got {}", self.turns.len()));
        }
        if self.history.as_ref().is_some_and(|history| history.tokens > MAX_TOKENS_PER_REQUEST) {
            return Err(format!("history.tokens must be at most {MAX_TOKENS_PER_REQUEST}"));
        }
        let mut number_of = |prefix: Prefix| {
            let next = prefixes.len() as u64;
            (*prefixes.entry(prefix.id).or_insert(next), prefix.tokens)
        };
        let (prefix, history) = (self.prefix.map(&mut number_of), self.history.map(number_of));
        let mut said = prefix.map_or(0, |(_, tokens)| tokens);
        let mut turns = Vec::with_capacity(self.turns.len());
        for (i, turn) in self.turns.into_iter().enumerate() {
            let turn = turn.turn(said).map_err(|why| format!("turns[{i}].{why}"))?;
            said = turn.prompt_len(said).saturating_add(turn.output.len());
            turns.push(turn);
        }
        Ok(AgentJob {
            number,
            arrival: Time(arrival),
            id: self.has_id.then(|| self.job.clone()),
            name: self.job,
            tenant: self.tenant,
            priority: self.priority,
            prefix,
            history,
            abandoned: self.abandoned,
            turns,
        })
    }
}

impl TurnLine {
    /// The turn behind a conversation of `history` tokens.
    fn turn(self, history: usize) -> Result<Turn, String> {
        let input = match self.prompt_tokens {
            Tokens::Count(count) if count < history => {
                return Err(format!(
                    "prompt_tokens must be at least {history}, the conversation so far, got {count}"
                ));
            }
            Tokens::Count(count) => Input::Behind(count - history),
            Tokens::Ids(ids) => Input::Whole(ids),
        };
        if self.output_tokens.len() == 0 {
            return Err("output_tokens must be at least 1, got 0".to_owned());
        }
        let tool_seconds = self.tool_seconds.unwrap_or_default();
        if !(0.0..=MAX_SECONDS).contains(&tool_seconds) {
            return Err(format!(
                "tool_seconds must be from 0 to {MAX_SECONDS:e} seconds, got {tool_seconds}"
            ));
        }
        let (tool, command) = (self.tool, self.command);
        if command.is_some() && tool.is_none() {
            return Err("command needs a tool that runs it: give `tool`, too".to_owned());
        }
        Ok(Turn { input, output: self.output_tokens, tool, command, tool_seconds })
    }
}

impl Turn {
    /// Prompt tokens behind a conversation of `history` tokens.
    pub(super) fn prompt_len(&self, history: usize) -> usize {
        match &self.input {
            Input::Behind(added) | Input::Blocks { tokens: added, .. } => {
                history.saturating_add(*added)
            }
            Input::Whole(ids) => ids.len(),
        }
    }
}

impl AgentJob {
    /// Checks that no prompt is larger than this program will make.
    fn check(&self) -> Result<(), WorkloadError> {
        let mut history = self.prefix.map_or(0, |(_, tokens)| tokens);
        for (i, turn) in self.turns.iter().enumerate() {
            let prompt = turn.prompt_len(history);
            if prompt > MAX_TOKENS_PER_REQUEST || turn.output.len() > MAX_TOKENS_PER_REQUEST {
                return Err(WorkloadError::LongTurn { job: self.number + 1, turn: i + 1 });
            }
            history = prompt + turn.output.len();
        }
        Ok(())
    }
}
