//! Workloads: requests and their arrivals, created one at a time, so that a workload can be of any size.
//!
//! A workload is a file in one of two forms. **A specification** says how requests are made:
//!
//! ```json
//! {"requests": 1000, "input": {"uniform": [100, 1024]}, "output": {"constant": 128},
//!  "shared_prefix": {"tokens": 512, "groups": 8, "fraction": 0.5},
//!  "priorities": [[0, 0.1], [10, 0.9]], "deadline": 20}
//! ```
//!
//! **A list** has a line of JSON for each request:
//!
//! ```json
//! {"prompt_tokens": 200, "output_tokens": 50, "arrival": 0.25, "prefix": {"id": "system", "tokens": 512}}
//! ```
//!
//! A shared prefix comes before a request's own tokens, and in addition to them. Tokens given as a number are random,
//! so that no request hits another's blocks except by a shared prefix. All random values follow from a seed.

use std::collections::HashMap;
use std::io::{self, BufRead};

use serde::Deserialize;

use super::arrivals::Arrivals;
use super::lengths::{Dice, Lengths, MAX_TOKENS_PER_REQUEST, Purpose, check_weights, choose};
use super::lines::{Form, read_form};
use crate::{Adapter, Job, Request, RequestId, Time};

/// Specification: how requests are made.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Number of requests.
    pub requests: u64,
    /// Prompt tokens, without a shared prefix.
    pub input: Lengths,
    /// Output tokens.
    pub output: Lengths,
    /// Prefix that several prompts share.
    pub shared_prefix: Option<SharedPrefix>,
    /// Priorities with their weights.
    pub priorities: Option<Vec<(i64, f64)>>,
    /// Seconds after its arrival by which a request should be finished.
    pub deadline: Option<f64>,
}

/// Prefix that several prompts share.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedPrefix {
    /// Tokens of the prefix.
    pub tokens: usize,
    /// Number of different prefixes.
    #[serde(default = "one")]
    pub groups: u64,
    /// Fraction of the requests that begin with one of them.
    #[serde(default = "all")]
    pub fraction: f64,
}

/// A request of a list.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt_tokens: Prompt,
    output_tokens: usize,
    arrival: Option<f64>,
    #[serde(default)]
    priority: i64,
    deadline: Option<f64>,
    prefix: Option<Prefix>,
    job: Option<JobLine>,
    adapter: Option<String>,
    /// Ignored: for the reader of the file.
    #[serde(default, rename = "id")]
    _id: serde::de::IgnoredAny,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "prompt_tokens must be a number of tokens or a list of token ids")]
enum Prompt {
    Count(usize),
    Ids(Vec<u32>),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prefix {
    pub id: String,
    pub tokens: usize,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobLine {
    id: String,
    #[serde(default)]
    last_step: bool,
}

/// When requests arrive, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ArrivalProcess {
    /// Requests a second, as a Poisson process. Infinite: all at time 0. `None`: as the file says, and at time 0 where
    /// it does not.
    pub rate: Option<f64>,
    /// Maximum number of requests; `None`: as many as the file says.
    pub requests: Option<u64>,
    /// Seed of all random values.
    pub seed: u64,
}

/// An iterator over the requests of a workload, in the order of their arrival.
pub struct Workload<'a> {
    source: Form<'a, Spec>,
    arrivals: ArrivalProcess,
    dice: Dice,
    /// Next request, if it has been read and has not been taken.
    ahead: Option<Request>,
    /// Number of requests so far, and the arrival of the last one.
    count: u64,
    last: Time,
    /// Numbers of named prefixes.
    prefixes: HashMap<String, u64>,
}

/// Why a file is not a workload.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is empty.
    #[error(
        "the workload is empty: it must be a specification ({{\"requests\":..}}) or have a line of JSON for each \
         request"
    )]
    Empty,
    /// A file of agents' jobs is empty.
    #[error(
        "the file of jobs is empty: it must be a specification ({{\"jobs\":..}}) or have a line of JSON for each job"
    )]
    NoJobs,
    /// A turn of a job is too long for this program to make.
    #[error(
        "turn {turn} of job {job} is too long: prompt and output must have at most {MAX_TOKENS_PER_REQUEST} tokens \
         each; lower the number of turns or the tokens that each adds"
    )]
    LongTurn {
        /// Number of the job in the order of arrival, from 1.
        job: u64,
        /// Number of the turn, from 1.
        turn: usize,
    },
    /// The specification is not JSON, or has unknown or missing fields.
    #[error("invalid specification: {0} (at `{1}`)")]
    Spec(serde_json::Error, String),
    /// A field of the specification has an invalid value.
    #[error("invalid specification: {field}: {why}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A line of a list is not a request.
    #[error("line {number}: {what} (at `{path}`)")]
    Line {
        /// Number of the line, from 1.
        number: usize,
        /// Path of the field.
        path: String,
        /// What is wrong.
        what: serde_json::Error,
    },
    /// A line of a list has an invalid value.
    #[error("line {number}: {why}")]
    Value {
        /// Number of the line, from 1.
        number: usize,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The request rate is not above 0.
    #[error("the request rate must be above 0, or inf for all at once, got {0}")]
    Rate(f64),
}

impl<'a> Workload<'a> {
    /// Reads a file in either form; a list is read line by line, as requests are taken.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn read(
        input: Box<dyn BufRead + 'a>,
        arrivals: ArrivalProcess,
    ) -> Result<Self, WorkloadError> {
        match read_form(input, is_list, WorkloadError::Empty)? {
            Form::Spec(spec) => Self::from_spec(spec, arrivals),
            list => Self::new(list, arrivals),
        }
    }

    /// Creates the workload of a specification.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn from_spec(spec: Spec, arrivals: ArrivalProcess) -> Result<Self, WorkloadError> {
        spec.check()?;
        Self::new(Form::Spec(spec), arrivals)
    }

    fn new(source: Form<'a, Spec>, arrivals: ArrivalProcess) -> Result<Self, WorkloadError> {
        arrivals.check()?;
        Ok(Self {
            source,
            arrivals,
            dice: Dice::new(arrivals.seed),
            ahead: None,
            count: 0,
            last: Time::ZERO,
            prefixes: HashMap::new(),
        })
    }

    fn next_request(&mut self) -> Result<Option<Request>, WorkloadError> {
        let index = self.count;
        if self.arrivals.requests.is_some_and(|most| index >= most) {
            return Ok(None);
        }
        let made = match &mut self.source {
            Form::Spec(spec) => spec.request(index, self.arrivals.requests, self.dice),
            Form::List(lines) => {
                let (line, prefixes) = (lines.next::<Line>()?, &mut self.prefixes);
                line.map(|line| line.request(lines.number(), index, self.dice, prefixes))
                    .transpose()?
            }
        };
        let Some(mut request) = made else { return Ok(None) };
        request.id = RequestId(index);
        request.arrival = self.arrival(request.arrival, index)?;
        request.deadline = request.deadline.map(|after| request.arrival + after.seconds());
        self.count += 1;
        self.last = request.arrival;
        Ok(Some(request))
    }

    /// Time of arrival: by the rate, or as the file says.
    fn arrival(&self, said: Time, index: u64) -> Result<Time, WorkloadError> {
        let arrival = self.arrivals.next(said, self.last, index, self.dice);
        match &self.source {
            Form::List(lines) => lines.in_order(arrival, self.last),
            Form::Spec(_) => Ok(arrival),
        }
    }
}

impl ArrivalProcess {
    pub(super) fn check(&self) -> Result<(), WorkloadError> {
        match self.rate {
            Some(rate) if rate.is_nan() || rate <= 0.0 => Err(WorkloadError::Rate(rate)),
            _ => Ok(()),
        }
    }

    /// Time of the `index`-th arrival, after the one at `last`. `said` is what the file says.
    pub(super) fn next(&self, said: Time, last: Time, index: u64, dice: Dice) -> Time {
        match self.rate {
            Some(rate) if rate.is_infinite() => Time::ZERO,
            Some(rate) => last + dice.gap(rate, index),
            None => said,
        }
    }
}

impl Iterator for Workload<'_> {
    type Item = Result<Request, WorkloadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.ahead.take().map(Ok).or_else(|| self.next_request().transpose())
    }
}

impl Arrivals for Workload<'_> {
    fn next(&mut self, now: Time) -> Result<Option<Request>, WorkloadError> {
        self.next_arrival()?;
        Ok(self.ahead.take_if(|request| request.arrival <= now))
    }

    fn next_arrival(&mut self) -> Result<Option<Time>, WorkloadError> {
        if self.ahead.is_none() {
            self.ahead = self.next_request()?;
        }
        Ok(self.ahead.as_ref().map(|request| request.arrival))
    }

    fn finished(&mut self, _id: RequestId, _now: Time) {}
}

impl Spec {
    fn check(&self) -> Result<(), WorkloadError> {
        let field = |field: &'static str| move |why: String| WorkloadError::Field { field, why };
        self.input.check().map_err(field("input"))?;
        self.output.check().map_err(field("output"))?;
        if let Some(prefix) = &self.shared_prefix {
            prefix.check()?;
        }
        if let Some(priorities) = &self.priorities {
            let weights = priorities.iter().map(|(_, weight)| *weight);
            check_weights(weights).map_err(field("priorities"))?;
        }
        match self.deadline {
            Some(after) if !(after.is_finite() && after > 0.0) => {
                Err(field("deadline")(format!("must be a number of seconds above 0, got {after}")))
            }
            _ => Ok(()),
        }
    }

    fn request(&self, index: u64, instead: Option<u64>, dice: Dice) -> Option<Request> {
        if index >= instead.unwrap_or(self.requests) {
            return None;
        }
        let uniform = |purpose| dice.uniform(purpose, index);
        let mut prompt = Vec::new();
        if let Some(prefix) = &self.shared_prefix
            && let Some(which) = prefix.of(index, dice)
        {
            dice.tokens(Purpose::Prefix, which, prefix.tokens, &mut prompt);
        }
        let own = self.input.at(uniform(Purpose::Input));
        dice.tokens(Purpose::Prompt, index, own, &mut prompt);
        Some(Request {
            prompt,
            max_tokens: self.output.at(uniform(Purpose::Output)),
            priority: self
                .priorities
                .as_ref()
                .map_or(0, |all| *choose(all, uniform(Purpose::Priority))),
            deadline: self.deadline.map(Time),
            ..Request::default()
        })
    }
}

impl SharedPrefix {
    pub(super) fn check(&self) -> Result<(), WorkloadError> {
        let wrong = |field, why| Err(WorkloadError::Field { field, why });
        if self.tokens > MAX_TOKENS_PER_REQUEST {
            let why = format!("must be at most {MAX_TOKENS_PER_REQUEST}, got {}", self.tokens);
            return wrong("shared_prefix.tokens", why);
        }
        if self.groups == 0 {
            return wrong("shared_prefix.groups", "must be at least 1, got 0".to_owned());
        }
        if !(0.0..=1.0).contains(&self.fraction) {
            let why = format!("must be from 0 to 1, got {}", self.fraction);
            return wrong("shared_prefix.fraction", why);
        }
        Ok(())
    }

    /// Which of the prefixes the `index`-th request or job begins with, if any.
    pub(super) fn of(&self, index: u64, dice: Dice) -> Option<u64> {
        let has = dice.uniform(Purpose::HasPrefix, index) < self.fraction;
        has.then(|| (dice.uniform(Purpose::WhichPrefix, index) * self.groups as f64) as u64)
    }
}

impl Line {
    fn request(
        self,
        number: usize,
        index: u64,
        dice: Dice,
        prefixes: &mut HashMap<String, u64>,
    ) -> Result<Request, WorkloadError> {
        let wrong = |why: String| Err(WorkloadError::Value { number, why });
        if self.output_tokens == 0 {
            return wrong("output_tokens must be at least 1, got 0".to_owned());
        }
        for (name, value) in [("arrival", self.arrival), ("deadline", self.deadline)] {
            if let Some(value) = value.filter(|value| !(value.is_finite() && *value >= 0.0)) {
                return wrong(format!(
                    "{name} must be a number of seconds, 0 or above, got {value}"
                ));
            }
        }
        let mut prompt = Vec::new();
        if let Some(prefix) = self.prefix {
            let next = prefixes.len() as u64;
            let which = *prefixes.entry(prefix.id).or_insert(next);
            if prefix.tokens > MAX_TOKENS_PER_REQUEST {
                return wrong(format!(
                    "prefix.tokens must be at most {MAX_TOKENS_PER_REQUEST}, got {}",
                    prefix.tokens
                ));
            }
            dice.tokens(Purpose::Prefix, which, prefix.tokens, &mut prompt);
        }
        match self.prompt_tokens {
            Prompt::Count(count) if count > MAX_TOKENS_PER_REQUEST => {
                return wrong(format!(
                    "prompt_tokens must be at most {MAX_TOKENS_PER_REQUEST}, got {count}"
                ));
            }
            Prompt::Count(count) => dice.tokens(Purpose::Prompt, index, count, &mut prompt),
            Prompt::Ids(ids) => prompt.extend(ids),
        }
        Ok(Request {
            prompt,
            max_tokens: self.output_tokens,
            arrival: Time(self.arrival.unwrap_or_default()),
            priority: self.priority,
            deadline: self.deadline.map(Time),
            adapter: self.adapter.map(|name| Adapter { path: name.clone(), name }),
            job: self.job.map(|job| Job { id: job.id, last_step: job.last_step }),
            ..Request::default()
        })
    }
}

/// Whether a file is a list, by its first line.
fn is_list(first: &str) -> bool {
    match serde_json::from_str::<serde_json::Value>(first) {
        Ok(line) => line.get("input").is_none(),
        Err(_) => first.contains("\"prompt_tokens\""),
    }
}

fn one() -> u64 {
    1
}

fn all() -> f64 {
    1.0
}
