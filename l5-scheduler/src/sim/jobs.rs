//! The closed loop: a job's next turn arrives when the tool that its output called is done.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::BufRead;

use super::Durations;
use super::agent_report::{AgentReport, Percentiles, TurnHits};
use super::agents::{AgentJob, AgentSpec, Input, JobSource, Tokens, Turn, turn_key};
use super::arrivals::{Arrivals, Measured, Output};
use super::fake::Script;
use super::job_log::JobRecord;
use super::lengths::{Dice, Purpose};
use super::workload::WorkloadError;
use crate::{Job, Request, RequestId, Time};

/// Jobs of agents as [`Arrivals`].
///
/// A turn arrives when the turn before it has finished and its tool has run: at that finish plus the tool's seconds.
/// Its prompt is the prompt before it, the output, and the result of the tool. A turn that is rejected or outgrows the
/// pool ends its job.
///
/// What a job will ask, and how long its tools take, follows from the seed and its number alone. So two simulations
/// with one seed can be compared job by job, and no difference between them is one of traffic. (A retention policy can
/// be judged in this way only: arrivals at random differ by more than most policies do.)
///
/// Jobs that have not arrived, and prompts of turns that have not, take no memory.
///
/// # Example
///
/// ```
/// use l5_scheduler::sim::{AgentJobs, Goodput, Planner};
/// use l5_scheduler::{CostModel, SchedulerConfig};
///
/// let spec = r#"{"jobs": 20, "rate": 0.5, "turns": {"uniform": [2, 6]}, "input": {"constant": 100},
///     "output": {"constant": 20}, "tool_result": {"constant": 200},
///     "tools": [{"name": "ls", "seconds": {"uniform": [0.05, 0.1]}}]}"#;
/// let jobs = AgentJobs::read(Box::new(spec.as_bytes()), None, None, None)?;
/// let config = SchedulerConfig::new(1024, 16);
/// let planner = Planner::new(config, CostModel::SMOLLM2_TWO_CORES, Goodput::default())?;
/// let agents = planner.run(jobs)?.agents.expect("a report on the jobs");
/// assert_eq!((agents.jobs, agents.finished), (20, 20));
/// assert!(agents.later_turns.hit_rate > 0.3, "a later turn begins with the turns before it");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AgentJobs<'a> {
    source: JobSource<'a>,
    dice: Dice,
    /// Next job, if it has been made and has not arrived.
    ahead: Option<AgentJob>,
    /// Unfinished jobs that have arrived, by their number.
    jobs: HashMap<u64, Active>,
    /// Next turns of these whose time is known: first by their arrival, then by the number of the job.
    coming: BTreeSet<(Time, u64)>,
    /// Jobs of the turns that are being served.
    served: HashMap<RequestId, u64>,
    /// Id of the next job's first turn.
    next_id: u64,
    meter: Meter,
    /// Records of jobs by their number, if jobs are recorded.
    records: Option<BTreeMap<u64, JobRecord>>,
}

/// A job that has arrived.
#[derive(Debug)]
struct Active {
    job: AgentJob,
    /// Id of its first turn; that of turn n is n more.
    first_id: u64,
    /// Turn that is being served, or is the next one.
    turn: usize,
    /// Seconds that its tools have run.
    tools: f64,
}

/// What is counted for the report.
#[derive(Debug, Default)]
struct Meter {
    jobs: u64,
    finished: u64,
    ended_early: u64,
    e2e: Durations,
    tools: Durations,
    wait: Durations,
    first: TurnHits,
    later: TurnHits,
}

impl<'a> AgentJobs<'a> {
    /// Reads a file in any form; a list is read line by line, as jobs arrive. `rate` (jobs a second, infinite for
    /// all at time 0), `jobs` (their number; of a list the maximum) and `seed` replace what the file says.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn read(
        input: Box<dyn BufRead + 'a>,
        rate: Option<f64>,
        jobs: Option<u64>,
        seed: Option<u64>,
    ) -> Result<Self, WorkloadError> {
        JobSource::read(input, rate, jobs, seed).map(Self::new)
    }

    /// Creates the jobs of a specification.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn from_spec(spec: AgentSpec) -> Result<Self, WorkloadError> {
        JobSource::of(spec).map(Self::new)
    }

    fn new(source: JobSource<'a>) -> Self {
        Self {
            dice: source.dice(),
            source,
            ahead: None,
            jobs: HashMap::new(),
            coming: BTreeSet::new(),
            served: HashMap::new(),
            next_id: 0,
            meter: Meter::default(),
            records: None,
        }
    }

    /// Also records each job and turn. (The record is as long as the simulation.)
    #[must_use]
    pub fn with_records(mut self) -> Self {
        self.records = Some(BTreeMap::new());
        self
    }

    /// Number of jobs that have arrived and have not ended.
    pub fn unfinished(&self) -> usize {
        self.jobs.len()
    }

    /// Arrival and number of the next job or turn. A job that arrives together with a turn of an earlier one is behind
    /// it.
    fn first_coming(&mut self) -> Result<Option<(Time, u64)>, WorkloadError> {
        if self.ahead.is_none() {
            self.ahead = self.source.next()?;
        }
        let new = self.ahead.as_ref().map(|job| (job.arrival, job.number));
        Ok(self.coming.first().copied().into_iter().chain(new).min())
    }

    /// The turn that a request is.
    fn turn(&self, id: RequestId) -> Option<(&Active, &Turn)> {
        let active = self.jobs.get(self.served.get(&id)?)?;
        Some((active, active.job.turns.get(active.turn)?))
    }
}

impl Active {
    fn id(&self, turn: usize) -> RequestId {
        RequestId(self.first_id + turn as u64)
    }

    /// Output of a turn.
    fn output(&self, turn: usize, dice: Dice) -> Output {
        let own = match &self.job.turns[turn].output {
            Tokens::Count(_) => Output::of(self.id(turn)),
            Tokens::Ids(ids) => Output::Tokens(ids.clone()),
        };
        let begin = self.prompt_len(turn);
        let shared = self.job.history.map_or(0, |(_, tokens)| tokens).saturating_sub(begin);
        if shared == 0 {
            return own;
        }
        let tokens = 0..self.job.turns[turn].output.len();
        let mut output: Vec<u32> = tokens.filter_map(|n| own.token(n)).collect();
        self.share_history(begin, &mut output, dice);
        Output::Tokens(output)
    }

    /// Number of prompt tokens of a turn.
    fn prompt_len(&self, turn: usize) -> usize {
        let Self { job, .. } = self;
        let prefix = job.prefix.map_or(0, |(_, tokens)| tokens);
        let said = job.turns[..turn]
            .iter()
            .fold(prefix, |said, turn| turn.prompt_len(said) + turn.output.len());
        job.turns[turn].prompt_len(said)
    }

    /// Replaces tokens of the conversation from the `begin`-th on by those that jobs share, as far as these go.
    fn share_history(&self, begin: usize, tokens: &mut [u32], dice: Dice) {
        let Some((which, len)) = self.job.history.filter(|(_, len)| *len > begin) else { return };
        let mut shared = Vec::with_capacity(len);
        dice.tokens(Purpose::Prefix, which, len.min(begin + tokens.len()), &mut shared);
        for (token, shared) in tokens.iter_mut().zip(&shared[begin..]) {
            *token = *shared;
        }
    }

    /// Request of the next turn. Its prompt is made from the beginning, so that none is kept while a tool runs.
    fn request(&self, arrival: Time, dice: Dice) -> Request {
        let Self { job, .. } = self;
        let mut prompt = Vec::new();
        if let Some((which, tokens)) = job.prefix {
            dice.tokens(Purpose::Prefix, which, tokens, &mut prompt);
        }
        for (i, turn) in job.turns[..=self.turn].iter().enumerate() {
            match &turn.input {
                Input::Behind(count) => {
                    let key = turn_key(job.number, i);
                    dice.tokens(Purpose::Prompt, key, *count, &mut prompt);
                }
                Input::Blocks { ids, block_size, tokens } => {
                    let end = prompt.len() + tokens;
                    for id in ids {
                        let room = end - prompt.len();
                        dice.tokens(Purpose::Prefix, *id, room.min(*block_size), &mut prompt);
                    }
                }
                Input::Whole(ids) => prompt.clone_from(ids),
            }
            if i < self.turn {
                let output = self.output(i, dice);
                prompt.extend((0..turn.output.len()).filter_map(|n| output.token(n)));
            }
        }
        self.share_history(0, &mut prompt, dice);
        let last_step = self.turn + 1 == job.turns.len() && !job.abandoned;
        Request {
            id: self.id(self.turn),
            prompt,
            max_tokens: job.turns[self.turn].output.len(),
            arrival,
            priority: job.priority,
            cache_salt: job.tenant.clone(),
            job: job.id.clone().map(|id| Job { id, last_step }),
            ..Request::default()
        }
    }
}

impl Arrivals for AgentJobs<'_> {
    fn next(&mut self, now: Time) -> Result<Option<Request>, WorkloadError> {
        let Some((arrival, number)) = self.first_coming()?.filter(|(arrival, _)| *arrival <= now)
        else {
            return Ok(None);
        };
        if !self.coming.remove(&(arrival, number))
            && let Some(job) = self.ahead.take()
        {
            let first_id = self.next_id;
            self.next_id += job.turns.len() as u64;
            self.meter.jobs += 1;
            if let Some(records) = &mut self.records {
                records.insert(number, JobRecord::new(&job.name, job.arrival));
            }
            self.jobs.insert(number, Active { job, first_id, turn: 0, tools: 0.0 });
        }
        let request = self.jobs.get(&number).map(|active| active.request(arrival, self.dice));
        if let Some(request) = &request {
            self.served.insert(request.id, number);
        }
        Ok(request)
    }

    fn next_arrival(&mut self) -> Result<Option<Time>, WorkloadError> {
        Ok(self.first_coming()?.map(|(arrival, _)| arrival))
    }

    fn output(&self, request: &Request) -> Output {
        match self.turn(request.id) {
            Some((active, _)) => active.output(active.turn, self.dice),
            None => Output::of(request.id),
        }
    }

    fn finished(&mut self, id: RequestId, now: Time) {
        let Some(number) = self.served.remove(&id) else { return };
        let Some(active) = self.jobs.get_mut(&number) else { return };
        if active.turn + 1 < active.job.turns.len() {
            let seconds = active.job.turns[active.turn].tool_seconds;
            active.tools += seconds;
            active.turn += 1;
            self.coming.insert((now + seconds, number));
            return;
        }
        self.meter.finished += 1;
        self.meter.e2e.add(now - active.job.arrival);
        self.meter.tools.add(active.tools);
        self.jobs.remove(&number);
        if let Some(record) = self.records.as_mut().and_then(|all| all.get_mut(&number)) {
            record.finish = Some(now.seconds());
        }
    }

    fn ended_early(&mut self, id: RequestId, _now: Time) {
        if let Some(number) = self.served.remove(&id) {
            self.jobs.remove(&number);
            self.meter.ended_early += 1;
        }
    }

    fn measured(&mut self, turn: &Measured) {
        let Some((active, _)) = self.turn(turn.id) else { return };
        let hits = if active.turn == 0 { &mut self.meter.first } else { &mut self.meter.later };
        hits.add(turn);
        self.meter.wait.add(turn.admitted - turn.arrival);
        let number = self.served.get(&turn.id);
        if let Some(records) = &mut self.records
            && let Some(record) = number.and_then(|number| records.get_mut(number))
        {
            record.turns.push(turn.into());
        }
    }

    fn tool(&self, id: RequestId) -> Option<&str> {
        self.turn(id)?.1.tool.as_deref()
    }

    fn command(&self, id: RequestId) -> Option<&str> {
        self.turn(id)?.1.command.as_deref()
    }

    fn job_records(&mut self) -> Option<Vec<JobRecord>> {
        Some(self.records.take()?.into_values().collect())
    }

    fn report(&mut self) -> Option<AgentReport> {
        let meter = &mut self.meter;
        Some(AgentReport {
            jobs: meter.jobs,
            finished: meter.finished,
            ended_early: meter.ended_early,
            turns: meter.first.turns + meter.later.turns,
            e2e: Percentiles::of(&mut meter.e2e),
            tools: Percentiles::of(&mut meter.tools),
            wait: Percentiles::of(&mut meter.wait),
            first_turns: meter.first,
            later_turns: meter.later,
        })
    }
}
