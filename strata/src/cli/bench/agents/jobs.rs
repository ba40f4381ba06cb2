//! Jobs of agents: how their prompts grow, and how long their tools take.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use l5_scheduler::sim::{Session, Sessions, is_session};
use serde::Deserialize;

use crate::cli::bench::coding_agent;
use crate::cli::bench::random::Random;

/// Maximum number of turns of a job.
const MAX_TURNS: usize = 1 << 16;
/// Maximum seconds of a tool, or of an arrival: a day.
const MAX_SECONDS: f64 = 86_400.0;

/// A job.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentJob {
    /// Id of the job.
    pub job: String,
    /// Arrival in seconds from the beginning.
    #[serde(default)]
    pub arrival: f64,
    /// `cache_salt` of its requests.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Whether its requests say which job they are a step of.
    #[serde(default = "yes")]
    pub has_id: bool,
    /// Priority of its requests.
    #[serde(default)]
    pub priority: i64,
    /// Beginning of the first prompt that it shares with other jobs.
    #[serde(default)]
    pub prefix: Option<Prefix>,
    /// Whether its agent never returns: its last turn does not say that it is the last step.
    #[serde(default)]
    pub abandoned: bool,
    /// Turns.
    pub turns: Vec<Turn>,
}

/// Beginning of a prompt: jobs with the same id have the same one.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prefix {
    /// Id of the prefix.
    pub id: String,
    /// Number of tokens: part of those of the first prompt.
    pub tokens: usize,
}

/// A turn, and the tool that runs behind it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Turn {
    /// Tokens of the whole prompt, history included.
    pub prompt_tokens: usize,
    /// Tokens of the output.
    pub output_tokens: usize,
    /// Name of the tool.
    #[serde(default)]
    pub tool: Option<String>,
    /// Seconds that the tool takes.
    #[serde(default)]
    pub tool_seconds: f64,
    /// Command of the tool, which the simulator reads. A server finds it in the output.
    #[serde(default, rename = "command")]
    pub _command: Option<String>,
}

fn yes() -> bool {
    true
}

/// Jobs of a coding agent, which all arrive at once. A job depends on its number and the seed only.
pub(super) fn draw(jobs: usize, seed: u64) -> Vec<AgentJob> {
    let job = |number: usize| {
        let turns = coding_agent::draw(&mut Random::of_job(seed, number));
        let last = turns.len() - 1;
        let turns = turns.into_iter().enumerate().map(|(at, turn)| Turn {
            prompt_tokens: turn.prompt_tokens,
            output_tokens: turn.output_tokens,
            tool: (at < last).then(|| turn.tool.to_owned()),
            tool_seconds: if at < last { turn.tool_seconds } else { 0.0 },
            _command: None,
        });
        AgentJob {
            job: format!("agents-{seed}-{number}"),
            arrival: 0.0,
            tenant: None,
            has_id: true,
            priority: 0,
            prefix: None,
            abandoned: false,
            turns: turns.collect(),
        }
    };
    (0..jobs).map(job).collect()
}

/// Reads a file of jobs: a line each, or a trace of aiperf's `synthesize agentic-code` ([`Sessions`]).
///
/// # Errors
/// The number of a line that is not a job, and why.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<AgentJob>> {
    let file = File::open(path).with_context(|| format!("--agents {}", path.display()))?;
    parse(BufReader::new(file)).with_context(|| format!("--agents {}", path.display()))
}

fn parse(mut file: impl BufRead) -> anyhow::Result<Vec<AgentJob>> {
    let (mut jobs, mut text) = (Vec::new(), String::new());
    file.read_to_string(&mut text)?;
    if text.lines().find(|line| !line.trim().is_empty()).is_some_and(is_session) {
        return from_trace(Sessions::read(Box::new(text.as_bytes()))?);
    }
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let number = at + 1;
        let job: AgentJob = serde_json::from_str(line).with_context(|| format!("line {number}"))?;
        job.check().with_context(|| format!("line {number}"))?;
        jobs.push(job);
    }
    ensure!(!jobs.is_empty(), "the file has no jobs");
    Ok(jobs)
}

/// Jobs of a trace. Sessions of a group begin with the tokens of the blocks that all of them have in common.
fn from_trace(trace: Sessions) -> anyhow::Result<Vec<AgentJob>> {
    let mut groups: HashMap<Option<u64>, Vec<&Session>> = HashMap::new();
    for session in &trace.sessions {
        groups.entry(session.group).or_default().push(session);
    }
    let shared = |group: &[&Session]| match group {
        [first, others @ ..] if !others.is_empty() => {
            others.iter().fold(first.turns[0].blocks.len(), |most, other| {
                let pairs = first.turns[0].blocks.iter().zip(&other.turns[0].blocks);
                pairs.take(most).take_while(|(a, b)| a == b).count()
            })
        }
        _ => 0,
    };
    let shared: HashMap<Option<u64>, usize> =
        groups.iter().map(|(group, sessions)| (*group, shared(sessions))).collect();
    let job = |session: &Session| {
        let tokens = shared[&session.group] * trace.block_size;
        let tokens = tokens.min(session.turns[0].input_tokens);
        let id = session.group.map_or("trace".to_owned(), |group| format!("group-{group}"));
        let mut said = 0;
        let delays = session.turns.iter().skip(1).map(|turn| turn.delay).chain([0.0]);
        let turns = session.turns.iter().zip(delays).map(|(turn, tool_seconds)| {
            let prompt_tokens = said + turn.input_tokens;
            said = prompt_tokens + turn.output_tokens;
            Turn {
                prompt_tokens,
                output_tokens: turn.output_tokens,
                tool: None,
                _command: None,
                tool_seconds,
            }
        });
        AgentJob {
            job: session.id.clone(),
            arrival: session.arrival,
            tenant: None,
            has_id: true,
            priority: 0,
            prefix: (tokens > 0).then_some(Prefix { id, tokens }),
            abandoned: false,
            turns: turns.collect(),
        }
    };
    let jobs: Vec<AgentJob> = trace.sessions.iter().map(job).collect();
    for job in &jobs {
        job.check().with_context(|| format!("session `{}`", job.job))?;
    }
    Ok(jobs)
}

impl AgentJob {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.job.len() <= 512,
            "`job` has {} bytes: at most 512 are allowed",
            self.job.len()
        );
        ensure!(
            !self.has_id || !self.job.is_empty(),
            "`job` is empty: name it, or set has_id to false"
        );
        let is_time = |seconds: f64| (0.0..=MAX_SECONDS).contains(&seconds);
        ensure!(is_time(self.arrival), "`arrival` must be from 0 to {MAX_SECONDS} seconds");
        ensure!(!self.turns.is_empty(), "`turns` is empty: a job has at least one turn");
        ensure!(self.turns.len() <= MAX_TURNS, "`turns` has more than {MAX_TURNS} turns");
        let mut history = self.prefix.as_ref().map_or(0, |prefix| prefix.tokens);
        for (at, turn) in self.turns.iter().enumerate() {
            if turn.prompt_tokens < history.max(1) {
                bail!(
                    "turns[{at}].prompt_tokens must be at least {}, the conversation so far, got {}",
                    history.max(1),
                    turn.prompt_tokens
                );
            }
            ensure!(turn.output_tokens > 0, "turns[{at}].output_tokens must be at least 1");
            ensure!(
                is_time(turn.tool_seconds),
                "turns[{at}].tool_seconds must be from 0 to {MAX_SECONDS} seconds"
            );
            history = turn.prompt_tokens + turn.output_tokens;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::coding_agent::TURNS;

    #[test]
    fn a_drawn_job_has_the_turns_of_the_table() {
        let jobs = draw(300, 7);
        assert_eq!(jobs, draw(300, 7), "the same for the same seed");
        assert_eq!(jobs[..3], draw(3, 7), "whatever the number of jobs");
        assert_ne!(jobs, draw(300, 8));
        for job in &jobs {
            job.check().unwrap();
            for (at, (turn, means)) in job.turns.iter().zip(TURNS).enumerate() {
                let (prompt, output, tool, from, to) = means;
                // The last turn calls none.
                let tool = (at < 7).then_some((tool, from, to));
                assert_eq!(turn.prompt_tokens, prompt);
                let share = turn.output_tokens as f64 / output as f64;
                assert!((0.65..=1.35).contains(&share), "{turn:?}");
                assert_eq!(turn.tool.as_deref(), tool.map(|(name, ..)| name));
                let (from, to) = tool.map_or((0.0, 0.0), |(_, from, to)| (from, to));
                assert!((from..=to).contains(&turn.tool_seconds), "{turn:?}");
            }
        }
        // The python of 300 jobs: a mean of 3.5 s.
        let mean = jobs.iter().map(|job| job.turns[4].tool_seconds).sum::<f64>() / 300.0;
        assert!((mean - 3.5).abs() < 0.2, "{mean}");
    }

    #[test]
    fn a_file_has_a_job_per_line() {
        let text = r#"{"job": "a", "arrival": 0.5, "tenant": "t", "prefix": {"id": "p", "tokens": 20}, "turns":
            [{"prompt_tokens": 30, "output_tokens": 5, "tool": "ls", "tool_seconds": 0.1}, {"prompt_tokens": 50, "output_tokens": 5}]}"#
            .replace('\n', " ");
        let jobs = parse(format!("{text}\n\n{text}\n").as_bytes()).unwrap();
        assert_eq!(jobs.len(), 2);
        assert_eq!((jobs[0].arrival, jobs[0].has_id, jobs[0].turns.len()), (0.5, true, 2));
    }

    #[test]
    fn a_trace_has_a_line_for_each_turn() {
        let trace = concat!(
            r#"{"session_id":"a","input_length":40,"output_length":5,"hash_ids":[0,1,7],"timestamp":0.0,"group_id":4}"#,
            "\n",
            r#"{"session_id":"b","input_length":48,"output_length":6,"hash_ids":[0,1,8],"timestamp":1500.0,"group_id":4}"#,
            "\n",
            r#"{"session_id":"a","input_length":10,"output_length":2,"hash_ids":[9],"delay":250.5}"#,
            "\n",
            r#"{"session_id":"c","input_length":16,"output_length":1,"hash_ids":[0],"timestamp":2000.0,"group_id":5}"#,
        );
        let jobs = parse(trace.as_bytes()).unwrap();
        let names: Vec<&str> = jobs.iter().map(|job| job.job.as_str()).collect();
        assert_eq!((names, jobs[1].arrival), (vec!["a", "b", "c"], 1.5));
        // Blocks of 16 tokens: three hold 48 tokens.
        let prefix = Some(Prefix { id: "group-4".to_owned(), tokens: 32 });
        assert_eq!((&jobs[0].prefix, &jobs[1].prefix, &jobs[2].prefix), (&prefix, &prefix, &None));
        let turn = |prompt_tokens, output_tokens, tool_seconds| Turn {
            _command: None,
            prompt_tokens,
            output_tokens,
            tool: None,
            tool_seconds,
        };
        assert_eq!(jobs[0].turns, [turn(40, 5, 0.2505), turn(55, 2, 0.0)]);
        let bad = trace.replace("\"delay\"", "\"pause\"");
        let error = format!("{:#}", parse(bad.as_bytes()).unwrap_err());
        assert!(error.contains("line 3") && error.contains("pause"), "{error}");
    }

    #[test]
    fn what_is_no_job_is_refused_by_its_line() {
        let turns = |turns: &str| format!(r#"{{"job": "a", "turns": [{turns}]}}"#);
        for (line, why) in [
            ("{}".to_owned(), "missing field `job`"),
            (r#"{"job": "a", "turns": [], "x": 1}"#.to_owned(), "unknown field `x`"),
            (turns(""), "at least one turn"),
            (turns(r#"{"prompt_tokens": 0, "output_tokens": 1}"#), "turns[0].prompt_tokens"),
            (turns(r#"{"prompt_tokens": 9, "output_tokens": 0}"#), "turns[0].output_tokens"),
            (
                turns(
                    r#"{"prompt_tokens": 9, "output_tokens": 3}, {"prompt_tokens": 11, "output_tokens": 1}"#,
                ),
                "must be at least 12, the conversation so far, got 11",
            ),
            (
                turns(r#"{"prompt_tokens": 9, "output_tokens": 1, "tool_seconds": -1}"#),
                "tool_seconds",
            ),
            (turns(r#"{"prompt_tokens": [1, 2], "output_tokens": 1}"#), "invalid type"),
        ] {
            let error = format!("{:#}", parse(format!("\n{line}").as_bytes()).unwrap_err());
            assert!(error.contains("line 2") && error.contains(why), "{line}: {error}");
        }
        assert!(parse("\n".as_bytes()).is_err());
    }
}
