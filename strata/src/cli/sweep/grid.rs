//! The grid of a sweep: every policy on the jobs of every pool, rate and seed.

use std::fmt;
use std::io::Cursor;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context as _, anyhow};
use l5_scheduler::retention::Ttl;
use l5_scheduler::sim::{AgentJobs, Goodput, JobLog, Planner};
use l5_scheduler::{CostModel, PolicyKind, SchedulerConfig};
use serde::{Serialize, Serializer};

use super::traffic::CHAT;

/// End of the name of a policy that has the host memory.
const WITH_HOST: &str = "+host";

/// A policy with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    pub kind: PolicyKind,
    pub ttl: Ttl,
    /// Whether it has the host memory.
    pub host: bool,
}

impl Variant {
    /// The policy that others are compared with.
    pub(super) const BASELINE: Self = Self::new(PolicyKind::Fcfs);

    const fn new(kind: PolicyKind) -> Self {
        Self { kind, ttl: Ttl::Fixed, host: matches!(kind, PolicyKind::LmCache) }
    }

    /// All policies, without those by priority: the jobs have none. A host memory is for `lmcache` and `adaptive`.
    pub(super) fn defaults(host_memory: bool) -> Vec<Self> {
        let by_priority = [PolicyKind::Priority, PolicyKind::StrictPriority];
        let kinds = PolicyKind::ALL.into_iter().filter(|kind| !by_priority.contains(kind));
        let mut all = Vec::new();
        for kind in kinds {
            let host = host_memory && kind == PolicyKind::Adaptive;
            let plain = Self::new(kind);
            all.push(Self { host: plain.host || host, ..plain });
            if kind == PolicyKind::Continuum {
                all.push(Self { ttl: Ttl::Cdf, ..plain });
            }
        }
        all.retain(|variant| host_memory || !variant.host);
        all
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if self.kind == PolicyKind::Continuum && self.ttl == Ttl::Cdf {
            f.write_str("-cdf")?;
        }
        if self.host && self.kind != PolicyKind::LmCache {
            f.write_str(WITH_HOST)?;
        }
        Ok(())
    }
}

impl FromStr for Variant {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (name, host) = match s.strip_suffix(WITH_HOST) {
            Some(name) => (name, true),
            None => (s, false),
        };
        let (name, ttl) = match name.strip_suffix("-cdf") {
            Some("continuum") => ("continuum", Ttl::Cdf),
            _ => (name, Ttl::Fixed),
        };
        let plain = Self::new(name.parse::<PolicyKind>()?);
        Ok(Self { ttl, host: plain.host || host, ..plain })
    }
}

impl Serialize for Variant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Jobs that arrive: those of one rate and one seed.
pub(super) struct Jobs {
    /// Jobs per second; `None`: as the file says.
    pub rate: Option<f64>,
    pub seed: u64,
    /// File of jobs. Its arrivals are drawn at the rate if `draws_arrivals`.
    pub text: String,
    pub draws_arrivals: bool,
    /// Maximum number of jobs that are read.
    pub most: Option<u64>,
}

/// What is the same in all cells.
pub(super) struct Machine {
    pub cost: CostModel,
    pub host_memory: u64,
    pub block_size: usize,
    pub max_num_seqs: usize,
    pub max_num_batched_tokens: usize,
}

/// A policy on a pool and its jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Outcome {
    /// Blocks of the pool.
    pub num_gpu_blocks: usize,
    /// Jobs per second; `null`: as the file says.
    pub rate: Option<f64>,
    pub seed: u64,
    pub policy: Variant,
    /// Jobs that arrived, and those of them that finished.
    pub jobs: usize,
    pub finished: usize,
    /// Seconds from the arrival of a job to the end of its last turn.
    pub mean: f64,
    pub p90: f64,
    pub p99: f64,
    /// Mean seconds of the chats among them, tools and think times included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_mean: Option<f64>,
    /// Tokens that were computed for prompts, or again after a preemption.
    pub computed_tokens: usize,
    /// Prompt tokens that were hit in the pool, and those that were loaded from the host memory.
    pub hit_tokens: usize,
    pub loaded_tokens: usize,
    pub preemptions: u64,
    pub leases_made: u64,
    pub leases_stolen: u64,
}

/// A sweep.
pub(super) struct Grid {
    pub pools: Vec<usize>,
    pub jobs: Vec<Jobs>,
    pub variants: Vec<Variant>,
    pub machine: Machine,
}

/// What one thread does next: numbers of the pool, the jobs and the policy.
type Place = (usize, usize, usize);

impl Grid {
    /// Number of simulations.
    pub(super) fn len(&self) -> usize {
        self.pools.len() * self.jobs.len() * self.variants.len()
    }

    fn place(&self, number: usize) -> Place {
        let (cell, variant) = (number / self.variants.len(), number % self.variants.len());
        (cell / self.jobs.len(), cell % self.jobs.len(), variant)
    }

    /// Runs all simulations on so many threads. `done` is called after each of them. The outcomes are in the order of
    /// pools, jobs and policies, whichever thread had them.
    ///
    /// # Errors
    /// That of the first simulation, in this order, that fails.
    pub(super) fn run(
        &self,
        threads: usize,
        done: impl Fn() + Sync,
    ) -> anyhow::Result<Vec<Outcome>> {
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let outcomes = Mutex::new(Vec::with_capacity(self.len()));
        std::thread::scope(|scope| {
            for _ in 0..threads.min(self.len()) {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        // Numbers are given out in order, so all before the one that has failed will be there.
                        if number >= self.len() || failed.load(Ordering::Relaxed) {
                            break;
                        }
                        let outcome = self.simulate(self.place(number));
                        failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                        if let Ok(mut all) = outcomes.lock() {
                            all.push((number, outcome));
                        }
                        done();
                    }
                });
            }
        });
        let mut all = outcomes.into_inner().map_err(|_| anyhow!("a simulation has panicked"))?;
        all.sort_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, outcome)| outcome).collect()
    }

    fn simulate(&self, (pool, jobs, variant): Place) -> anyhow::Result<Outcome> {
        let (pool, jobs, variant) = (self.pools[pool], &self.jobs[jobs], self.variants[variant]);
        self.outcome(pool, jobs, variant).map_err(|e| {
            let rate = jobs.rate.map_or(String::new(), |rate| format!(", {rate} jobs/s"));
            anyhow!("{variant}, {pool} blocks{rate}, seed {}: {e}", jobs.seed)
        })
    }

    fn outcome(&self, pool: usize, jobs: &Jobs, variant: Variant) -> anyhow::Result<Outcome> {
        let Machine { cost, host_memory, block_size, .. } = self.machine;
        let config = SchedulerConfig {
            policy: variant.kind,
            continuum_ttl: variant.ttl,
            max_num_seqs: self.machine.max_num_seqs,
            max_num_batched_tokens: self.machine.max_num_batched_tokens,
            ..SchedulerConfig::new(pool, block_size)
        };
        let mut planner = Planner::new(config, cost, Goodput::default())?;
        if variant.host {
            planner = planner.with_host_memory(host_memory);
        }
        let rate = jobs.rate.filter(|_| jobs.draws_arrivals);
        let file = Box::new(Cursor::new(jobs.text.as_bytes()));
        let agents = AgentJobs::read(file, rate, jobs.most, Some(jobs.seed))?;
        let report = planner.run(agents.with_records())?;
        let log = report.job_log.context("the jobs were not recorded")?;
        let turns = || log.jobs.iter().flat_map(|job| &job.turns);
        Ok(Outcome {
            num_gpu_blocks: pool,
            rate: jobs.rate,
            seed: jobs.seed,
            policy: variant,
            jobs: log.jobs.len(),
            finished: log.jobs.iter().filter(|job| job.finish.is_some()).count(),
            mean: log.mean.unwrap_or(f64::NAN),
            p90: log.p90.unwrap_or(f64::NAN),
            p99: log.p99.unwrap_or(f64::NAN),
            chat_mean: chat_mean(&log),
            computed_tokens: turns().map(|turn| turn.computed_tokens).sum(),
            hit_tokens: turns().map(|turn| turn.hit_tokens).sum(),
            loaded_tokens: turns().map(|turn| turn.loaded_tokens).sum(),
            preemptions: report.counts.preemptions,
            leases_made: log.leases.made,
            leases_stolen: log.leases.stolen,
        })
    }
}

fn chat_mean(log: &JobLog) -> Option<f64> {
    let chats = log.jobs.iter().filter(|job| job.job.starts_with(CHAT));
    let seconds: Vec<f64> = chats.filter_map(|job| Some(job.finish? - job.arrival)).collect();
    (!seconds.is_empty()).then(|| seconds.iter().sum::<f64>() / seconds.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_the_name_that_it_is_read_from() {
        let names = ["fcfs", "continuum", "continuum-cdf", "lmcache", "adaptive", "adaptive+host"];
        for name in names {
            assert_eq!(name.parse::<Variant>().unwrap().to_string(), name);
        }
        assert_eq!("lmcache+host".parse::<Variant>().unwrap().to_string(), "lmcache");
        assert!("fcfs-cdf".parse::<Variant>().unwrap_err().contains("fcfs-cdf"));
        assert!("fifo".parse::<Variant>().unwrap_err().contains("unknown scheduling policy"));
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse::<Variant>().unwrap().kind, kind);
        }
    }

    #[test]
    fn policies_that_need_a_host_memory_are_defaults_only_with_one() {
        let names = |host| -> Vec<String> {
            Variant::defaults(host).iter().map(Variant::to_string).collect()
        };
        for name in ["fcfs", "continuum", "continuum-cdf", "adaptive"] {
            assert!(names(false).contains(&name.to_owned()), "{name}");
        }
        assert!(names(false).iter().all(|name| !name.contains("host") && name != "lmcache"));
        for name in ["fcfs", "lmcache", "adaptive+host"] {
            assert!(names(true).contains(&name.to_owned()), "{name}");
        }
    }
}
