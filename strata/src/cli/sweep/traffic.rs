//! Built-in traffic: lists of agents' jobs, as `strata simulate --agents` reads them.
//!
//! What a job asks and how long its tools take follows from the seed and its number alone, and its arrival from the
//! seed, its number and the rate. So the same jobs arrive whatever the policy, and at a higher rate the same jobs come
//! faster.

use std::str::FromStr;

use serde_json::{Value, json};

use crate::cli::bench::coding_agent::{self, TURNS};
use crate::cli::bench::random::Random;

/// Name of a built-in traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traffic {
    /// A coding agent of eight turns.
    Coding,
    /// Five to eleven turns, with tools of up to a minute.
    Long,
    /// Half coding agents; the others are chats without a job id.
    Mixed,
    /// Coding agents, of which 15% call a tool and never return.
    NoReturn,
    /// Coding agents, of which half give no job id.
    NoIds,
    /// Coding agents, and a tenant whose `cat` takes half a minute.
    Adversary,
}

/// What decides the jobs of a cell, beside the kind of traffic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Jobs per second.
    pub rate: f64,
    /// Seconds in which jobs arrive.
    pub seconds: f64,
    /// Maximum number of jobs.
    pub jobs: Option<usize>,
    /// First tokens of the conversations of agents, outputs included, that are the same in all jobs.
    pub history: usize,
    pub seed: u64,
}

/// Share of jobs that never return, and of those that are an adversary's.
const ABANDONED: f64 = 0.15;
const ADVERSARIES: f64 = 0.25;

/// Seconds of an adversary's tool.
const ADVERSARY_SECONDS: f64 = 30.0;

/// Maximum seconds of a tool of a long job.
const LONGEST_TOOL: f64 = 60.0;

/// Beginning of the names of chats.
pub(super) const CHAT: &str = "chat-";

impl Traffic {
    /// All kinds.
    pub(super) const ALL: [Self; 6] =
        [Self::Coding, Self::Long, Self::Mixed, Self::NoReturn, Self::NoIds, Self::Adversary];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Coding => "coding",
            Self::Long => "long",
            Self::Mixed => "mixed",
            Self::NoReturn => "no-return",
            Self::NoIds => "no-ids",
            Self::Adversary => "adversary",
        }
    }

    /// The list of jobs, a line each.
    pub(super) fn jobs(self, load: &Load) -> String {
        let mut gaps = Random::new(load.seed);
        let (mut lines, mut arrival) = (String::new(), 0.0);
        for number in 0..load.jobs.unwrap_or(usize::MAX) {
            arrival += gaps.exponential() / load.rate;
            if load.jobs.is_none() && arrival >= load.seconds {
                break;
            }
            let random = Random::of_job(load.seed, number);
            lines += &format!("{}\n", self.job(number, arrival, load, random));
        }
        lines
    }

    fn job(self, number: usize, arrival: f64, load: &Load, mut random: Random) -> Value {
        let share = random.uniform();
        if self == Self::Mixed && share < 0.5 {
            return chat(number, arrival, random);
        }
        let adversary = self == Self::Adversary && share < ADVERSARIES;
        let mut turns = match self {
            Self::Long => long(&mut random),
            _ => coding(&mut random),
        };
        if adversary {
            for turn in &mut turns {
                (turn["tool"], turn["tool_seconds"]) = (json!("cat"), json!(ADVERSARY_SECONDS));
            }
        }
        let abandoned = self == Self::NoReturn && share < ABANDONED;
        if abandoned {
            turns.truncate(1 + random.below(turns.len() as u64 - 1) as usize);
        }
        let history = (load.history > 0).then(|| json!({"id": "shared", "tokens": load.history}));
        json!({
            "job": format!("job-{number}"),
            "arrival": arrival,
            "tenant": adversary.then_some("adversary"),
            "has_id": self != Self::NoIds || share >= 0.5,
            "history": history,
            "abandoned": abandoned,
            "turns": turns,
        })
    }
}

impl FromStr for Traffic {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == s);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            format!("use {}", names.join(", "))
        })
    }
}

fn turn(prompt: usize, output: usize, tool: Option<&str>, seconds: f64) -> Value {
    json!({"prompt_tokens": prompt, "output_tokens": output, "tool": tool, "tool_seconds": seconds})
}

/// Turns of a coding agent. The last turn of a job that is abandoned calls a tool, too.
fn coding(random: &mut Random) -> Vec<Value> {
    let turns = coding_agent::draw(random).into_iter();
    let turns = turns.map(|t| turn(t.prompt_tokens, t.output_tokens, Some(t.tool), t.tool_seconds));
    turns.collect()
}

/// Five to eleven turns. Prompts grow by 250 to 600 tokens behind the output, outputs have 10 to 150 tokens, and tools
/// are those of the table, with lognormal times around two seconds.
fn long(random: &mut Random) -> Vec<Value> {
    let (mut said, mut turns) = (0, Vec::new());
    for _ in 0..5 + random.below(7) {
        let prompt = said + 250 + random.below(351) as usize;
        let output = 10 + random.below(141) as usize;
        let (_, _, tool, _, _) = TURNS[random.below(TURNS.len() as u64) as usize];
        let seconds = random.lognormal(2.0, 1.2).min(LONGEST_TOOL);
        turns.push(turn(prompt, output, Some(tool), seconds));
        said = prompt + output;
    }
    turns
}

/// A chat of one to three turns without a job id. A person thinks between them, for lognormal times around 8 s.
fn chat(number: usize, arrival: f64, mut random: Random) -> Value {
    let (mut said, mut turns) = (0, Vec::new());
    for _ in 0..1 + random.below(3) {
        let prompt = said + 50 + random.below(351) as usize;
        let output = 50 + random.below(251) as usize;
        turns.push(turn(prompt, output, None, random.lognormal(8.0, 0.5)));
        said = prompt + output;
    }
    json!({"job": format!("{CHAT}{number}"), "arrival": arrival, "has_id": false, "turns": turns})
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load { rate: 4.0, seconds: 500.0, jobs: None, history: 2048, seed: 3 };

    fn jobs(traffic: Traffic, load: Load) -> Vec<Value> {
        let lines = traffic.jobs(&load);
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn share(jobs: &[Value], is: impl Fn(&Value) -> bool) -> f64 {
        jobs.iter().filter(|job| is(job)).count() as f64 / jobs.len() as f64
    }

    #[test]
    fn jobs_arrive_at_their_rate_and_are_the_same_at_another() {
        let slow = jobs(Traffic::Coding, LOAD);
        assert!((slow.len() as f64 - 2000.0).abs() < 150.0, "{}", slow.len());
        let fast = jobs(Traffic::Coding, Load { rate: 8.0, ..LOAD });
        for (slow, fast) in slow.iter().zip(&fast) {
            assert_eq!(slow["turns"], fast["turns"]);
            let ratio = slow["arrival"].as_f64().unwrap() / fast["arrival"].as_f64().unwrap();
            assert!((ratio - 2.0).abs() < 1e-9, "{ratio}");
        }
        assert_eq!(jobs(Traffic::Coding, Load { jobs: Some(7), ..LOAD }), slow[..7]);
        assert_ne!(jobs(Traffic::Coding, Load { seed: 4, ..LOAD })[0]["turns"], slow[0]["turns"]);
    }

    #[test]
    fn a_coding_agent_has_the_turns_of_the_table() {
        for job in jobs(Traffic::Coding, LOAD) {
            let turns = job["turns"].as_array().unwrap();
            assert_eq!(turns.len(), 8);
            for (turn, (prompt, output, tool, from, to)) in turns.iter().zip(TURNS) {
                assert_eq!(turn["prompt_tokens"], prompt);
                let share = turn["output_tokens"].as_f64().unwrap() / output as f64;
                assert!((0.65..=1.35).contains(&share), "{turn}");
                let seconds = turn["tool_seconds"].as_f64().unwrap();
                assert!(turn["tool"] == tool && (from..=to).contains(&seconds), "{turn}");
            }
            assert_eq!(job["history"], json!({"id": "shared", "tokens": 2048}));
        }
        let unique = jobs(Traffic::Coding, Load { history: 0, ..LOAD });
        assert_eq!(unique[0]["history"], Value::Null);
    }

    #[test]
    fn the_variants_have_their_shares() {
        let near = |got: f64, want: f64| assert!((got - want).abs() < 0.04, "{got}, not {want}");
        let mixed = jobs(Traffic::Mixed, LOAD);
        near(share(&mixed, |job| job["has_id"] == false), 0.5);
        assert!(
            mixed
                .iter()
                .all(|job| job["job"].as_str().unwrap().starts_with(CHAT)
                    == (job["has_id"] == false))
        );
        let gone = jobs(Traffic::NoReturn, LOAD);
        near(share(&gone, |job| job["abandoned"] == true), 0.15);
        let whole = |job: &Value| job["turns"].as_array().unwrap().len() == 8;
        assert!(gone.iter().all(|job| whole(job) != (job["abandoned"] == true)));
        near(share(&jobs(Traffic::NoIds, LOAD), |job| job["has_id"] == true), 0.5);
        let adversary = jobs(Traffic::Adversary, LOAD);
        near(share(&adversary, |job| job["tenant"] == "adversary"), 0.25);
        let slow = |job: &Value| job["turns"][1]["tool_seconds"] == 30.0;
        assert!(adversary.iter().all(|job| slow(job) == (job["tenant"] == "adversary")));
        for job in jobs(Traffic::Long, LOAD) {
            let turns = job["turns"].as_array().unwrap();
            assert!((5..=11).contains(&turns.len()));
            assert!(turns.iter().all(|turn| turn["tool_seconds"].as_f64().unwrap() <= 60.0));
        }
    }
}
