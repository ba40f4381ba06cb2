//! What a lane has to do at one moment: what a door tells the doors of the other lanes of its machine.

use l5_scheduler::{Load, Rank, RequestId, SchedulerConfig, Time};

use super::in_flight::{Admitted, Entry};
use super::{InFlight, OutputLengths};

/// Number of decode steps without a token after which a request is taken for preempted. One step is too few, since the
/// tokens of a step are not reported at one instant.
const PREEMPTED_STEPS: f64 = 1.5;

/// Number of steps below which the rates of a lane are not trusted: the first step fits every rate.
const MIN_STEPS: u64 = 8;

/// Fractional part of the golden ratio: its multiples are evenly spread in (0, 1).
pub(crate) const GOLDEN: f64 = 0.618_033_988_749_895;

/// A request of a forecast.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub id: RequestId,
    pub rank: Rank,
    pub priority: i64,
    /// Deadline, if it was promised.
    pub deadline: Option<Time>,
    /// Time of its first token if all goes as badly as it was told.
    pub promised: Option<Time>,
    /// Prompt tokens to compute. Of a request that decodes: if it is preempted.
    pub prompt: f64,
    /// Output tokens that are expected to come.
    pub output: f64,
    /// Whether it may be in the planned step.
    pub joined: bool,
    /// Whether it has a seat, and a part of its prompt is computed.
    pub prefills: bool,
}

impl Job {
    /// Number of steps with an output token.
    pub(crate) fn steps(&self) -> u64 {
        self.output.round().max(1.0) as u64
    }
}

/// Rates of a replica in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    base: f64,
    per_row: f64,
    pub(crate) per_prompt_token: f64,
}

impl Rates {
    #[cfg(test)]
    pub(crate) fn new(base: f64, per_row: f64, per_prompt_token: f64) -> Self {
        Self { base, per_row, per_prompt_token }
    }

    /// The measured rates; `None` before the first step.
    fn of(load: &Load) -> Option<Self> {
        let decode = load.decode_time?;
        let per_prompt_token = load.prefill_seconds_per_token?;
        Some(Self { base: decode.base, per_row: decode.per_row, per_prompt_token })
    }

    /// Seconds that each row adds to a step.
    pub(crate) fn per_row(&self) -> f64 {
        self.per_row
    }

    /// Mean of several rates; `None` of none.
    pub(crate) fn mean(all: impl Iterator<Item = Self>) -> Option<Self> {
        let (mut sum, mut count) = (Self::default(), 0.0);
        for rates in all {
            sum.base += rates.base;
            sum.per_row += rates.per_row;
            sum.per_prompt_token += rates.per_prompt_token;
            count += 1.0;
        }
        (count > 0.0).then(|| Self {
            base: sum.base / count,
            per_row: sum.per_row / count,
            per_prompt_token: sum.per_prompt_token / count,
        })
    }

    /// Duration of a step that decodes `width` rows.
    pub(crate) fn step(&self, width: f64) -> f64 {
        self.base + self.per_row * width
    }
}

/// Requests, limits and rates of a replica at one moment. The doors of all replicas on one machine exchange it
/// ([`LaneView::neighbours`](crate::admission::LaneView::neighbours)), because their steps take turns.
#[derive(Clone, Debug)]
pub struct LaneWork {
    pub(crate) rates: Rates,
    /// Whether the rates are those of enough steps.
    pub(crate) measured: bool,
    pub(crate) seats: usize,
    /// Maximum number of tokens of a step.
    pub(crate) step_tokens: f64,
    /// Whether waiting requests preempt less urgent ones.
    pub(crate) preempts: bool,
    /// Requests that decode. The output is what is still to come.
    pub(crate) running: Vec<Job>,
    /// Requests that wait, in the order of the queue.
    pub(crate) waiting: Vec<Job>,
    /// When the lane asked for the machine.
    pub(crate) asked: Time,
    /// End of the last step.
    pub(crate) last_step: Time,
    /// The requests that were admitted last, and the seconds in which they came.
    pub(crate) arrivals: Vec<Job>,
    pub(crate) period: f64,
    /// Numbers of requests that these found in flight on the machine, added up, and the seconds that they were in
    /// flight themselves.
    pub(crate) found: f64,
    pub(crate) seconds: f64,
}

impl LaneWork {
    /// Whether there are requests.
    pub(crate) fn is_busy(&self) -> bool {
        self.len() > 0
    }

    /// Expected wait of a new request for a seat on a machine of its own: none while a seat is free, or else the time
    /// of the present work, of which the part of one seat must end first.
    pub fn queue_seconds(&self) -> f64 {
        let requests = self.len();
        if requests < self.seats {
            return 0.0;
        }
        let output: f64 = self.running.iter().chain(&self.waiting).map(|job| job.output).sum();
        let prompts: f64 = self.waiting.iter().map(|job| job.prompt).sum();
        let width = self.seats as f64;
        let seconds =
            self.rates.per_prompt_token * prompts + self.rates.step(width) * output / width;
        let ahead = (requests + 1 - self.seats) as f64 / requests as f64;
        seconds * ahead.min(1.0)
    }

    /// Number of requests.
    pub(crate) fn len(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    /// Mean seconds between two arrivals.
    pub(crate) fn gap(&self) -> f64 {
        self.period / self.arrivals.len() as f64
    }

    /// Seconds of work that arrive in a second, if all seats are taken.
    pub(crate) fn arriving_work(&self) -> f64 {
        if self.arrivals.is_empty() {
            return 0.0;
        }
        let seats = self.seats as f64;
        let token = self.rates.step(seats) / seats;
        let work = |job: &Job| job.output * token + job.prompt * self.rates.per_prompt_token;
        self.arrivals.iter().map(work).sum::<f64>() / self.period
    }

    /// Duration of the planned step.
    pub(crate) fn planned_step(&self) -> f64 {
        let width = self.running.len().min(self.seats);
        let joined = self.waiting.iter().filter(|job| job.joined).take(self.seats - width);
        let prompts = joined.map(|job| job.prompt).sum::<f64>();
        let prompts = prompts.min(self.step_tokens - width as f64).max(0.0);
        self.rates.step(width as f64) + self.rates.per_prompt_token * prompts
    }
}

impl InFlight {
    /// What the replica has to do at `now`. Rates that are unknown are 0.
    pub fn work(&self, config: &SchedulerConfig, load: &Load, now: Time) -> LaneWork {
        let rates = Rates::of(load);
        let asked = self.step_began();
        let late = PREEMPTED_STEPS * rates.unwrap_or_default().step(1.0);
        let is_preempted = |entry: &Entry| asked - entry.last > late;
        let (preempted, decoding): (Vec<_>, Vec<_>) =
            self.decoding().partition(|(_, entry)| is_preempted(entry));
        let new = self.waiting().zip(1_u32..).map(|((id, entry), i)| {
            let joined = entry.admitted.arrival <= asked;
            let job = self.job(id, &entry.admitted);
            let left = entry.admitted.size.prompt_tokens.saturating_sub(entry.prefilled).max(1);
            let prompt = job.prompt.min(left as f64);
            // Of many requests some are short: they are spread like the lengths that were seen.
            let quantile = (f64::from(i) * GOLDEN).fract();
            let output = match entry.admitted.size.expected_output_tokens {
                Some(_) => job.output,
                None => self.lengths().quantile(entry.admitted.size.max_tokens, quantile),
            };
            let [soonest, latest] = entry.admitted.first_token_range;
            let promised =
                (soonest < latest).then(|| entry.admitted.arrival + latest.as_secs_f64());
            let prefills = entry.prefilled > 0;
            Job { joined, prefills, prompt, output, promised, ..job }
        });
        // Its tokens are computed again, and what is to come of its output follows.
        let preempted = preempted.into_iter().map(|(id, entry)| {
            let (job, had) = (self.job(id, &entry.admitted), entry.output as f64);
            let output = (job.output - had).max(1.0);
            Job { prompt: job.prompt + had, output, joined: true, ..job }
        });
        let mut waiting: Vec<_> = new.chain(preempted).collect();
        waiting.sort_by_key(|job| job.rank);
        let mut recent = self.arrivals().recent(now);
        let mut arrivals = Vec::new();
        let (mut found, mut seconds) = (0.0, 0.0);
        for arrival in recent.iter_mut().flat_map(|(all, _)| all) {
            // They have no ids, and rank behind those in flight that are like them.
            let job = self.job(RequestId(u64::MAX >> 1), &arrival.request);
            let output = arrival.end.map_or(job.output, |(_, output)| output.max(1) as f64);
            arrivals.push(Job { output, ..job });
            found += arrival.request.beside as f64;
            seconds += arrival.seconds(now);
        }
        let period = recent.map_or(f64::INFINITY, |(_, period)| period);
        LaneWork {
            rates: rates.unwrap_or_default(),
            measured: rates.is_some() && load.steps >= MIN_STEPS,
            seats: self.seats(config, decoding.len()),
            step_tokens: config.max_num_batched_tokens.max(1) as f64,
            preempts: self.preempts(),
            running: self.running(decoding),
            waiting,
            asked,
            last_step: self.last_step(),
            arrivals,
            period,
            found,
            seconds,
        }
    }

    /// A request as a job.
    pub(crate) fn job(&self, id: RequestId, request: &Admitted) -> Job {
        let size = &request.size;
        Job {
            id,
            rank: self.rank(id, request),
            priority: request.priority,
            deadline: request.deadline.filter(|_| request.in_time),
            promised: None,
            prompt: size.prompt_tokens.saturating_sub(size.cached_tokens).max(1) as f64,
            output: size.expected(self.lengths()),
            joined: false,
            prefills: false,
        }
    }

    /// Seats that requests can take at the same time: `max_num_seqs`, or fewer if the pool does not hold as many
    /// requests of the mean size. The door knows no free blocks; it knows the size of the pool.
    fn seats(&self, config: &SchedulerConfig, decoding: usize) -> usize {
        let pool = (config.capacity() * config.block_size) as f64;
        let held = self.held_tokens().map_or(usize::MAX, |held| (pool / held.max(1.0)) as usize);
        // As many as decode there is room for.
        held.max(decoding).min(config.seats()).max(1)
    }

    /// Requests that decode, with the output that is still to come.
    ///
    /// The lengths of outputs are random, and the first of `n` requests ends long before the mean request does. So the
    /// `i`-th of them is supposed to have the `i`-th of `n` evenly spaced quantiles of what is still to come. Where the
    /// lengths are certain, all quantiles are equal.
    fn running(&self, decoding: Vec<(RequestId, &Entry)>) -> Vec<Job> {
        let lengths: &OutputLengths = self.lengths();
        let remaining = |entry: &Entry, quantile: f64| {
            let Admitted { size, .. } = entry.admitted;
            match size.expected_output_tokens {
                Some(expected) => (expected - entry.output as f64).max(1.0),
                None => lengths.remaining(size.max_tokens, entry.output, quantile),
            }
        };
        let mut middle: Vec<_> =
            decoding.iter().map(|(id, entry)| (Time(remaining(entry, 0.5)), *id, *entry)).collect();
        middle.sort_unstable_by_key(|(remaining, id, _)| (*remaining, *id));
        let n = middle.len() as f64;
        let spread = middle.iter().zip(1_u32..).map(|((_, id, entry), i)| {
            let job = self.job(*id, &entry.admitted);
            let output = remaining(entry, f64::from(i) / (n + 1.0));
            Job { prompt: job.prompt + entry.output as f64, output, joined: true, ..job }
        });
        let mut all: Vec<_> = spread.collect();
        all.sort_unstable_by_key(|job| (Time(job.output), job.id));
        all
    }
}
