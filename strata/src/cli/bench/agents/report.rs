//! The report, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::drive::{JobRecord, TurnRecord};
use super::pins::Gap;
use crate::cli::bench::serve::measure::Sample;
use crate::cli::bench::speculation::SpeculationReport;

/// What the report is about.
#[derive(Debug, Serialize)]
pub(super) struct Subject {
    pub url: String,
    pub model_id: String,
    /// Jobs a second. `None`: all at once, or as the file says.
    pub request_rate: Option<f64>,
    pub seed: u64,
    /// Number of jobs.
    #[serde(rename = "num_jobs")]
    pub number: usize,
}

/// The whole object of `--output`. Names are as in `strata bench serve`, with `_s` for seconds.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    subject: Subject,
    /// Seconds from the beginning to the end of the last job.
    duration: f64,
    completed: usize,
    failed: usize,
    /// Jobs that Ctrl-C ended.
    interrupted: usize,
    /// Failures by kind.
    errors: BTreeMap<String, usize>,
    /// One message of each kind.
    error_examples: BTreeMap<String, String>,
    /// Jobs that finished, each second.
    job_throughput: f64,
    /// Seconds of jobs that finished, from their arrival, tools included.
    #[serde(flatten)]
    job: Spread,
    /// Seconds of turns, from sending to the whole response.
    #[serde(flatten)]
    turn: Spread,
    /// `null` if the server did not say.
    total_input_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    total_output_tokens: Option<u64>,
    /// Drafts of the server meanwhile; absent if it does not speculate.
    #[serde(flatten)]
    speculation: Option<SpeculationReport>,
    turns: Vec<TurnSummary>,
    jobs: Vec<JobSummary>,
}

/// Seconds of one kind: `mean_job_s`, `p99_job_s`...
#[derive(Debug)]
struct Spread {
    name: &'static str,
    sample: Sample,
}

impl Serialize for Spread {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { name, sample } = self;
        let mut map = to.serialize_map(None)?;
        map.serialize_entry(&format!("mean_{name}_s"), &sample.mean())?;
        for percent in [50, 90, 95, 99] {
            let value = sample.percentile(f64::from(percent));
            map.serialize_entry(&format!("p{percent}_{name}_s"), &value)?;
        }
        map.serialize_entry(&format!("max_{name}_s"), &sample.max())?;
        map.end()
    }
}

/// The turns of one number, of all jobs.
#[derive(Debug, Serialize)]
struct TurnSummary {
    /// Number of the turn, from 1.
    turn: usize,
    requests: usize,
    /// Means: tokens that prompts were to have, tokens that they had, those of them in the cache, and output tokens.
    planned_prompt_tokens: f64,
    prompt_tokens: Option<f64>,
    cached_tokens: Option<f64>,
    completion_tokens: Option<f64>,
    #[serde(flatten)]
    seconds: Spread,
    /// Smallest, mean and largest number of leased blocks behind the turn, with `--verify-pins`.
    leased_blocks: Option<(u64, f64, u64)>,
}

/// One job.
#[derive(Debug, Serialize)]
struct JobSummary {
    job: String,
    arrival: f64,
    /// Seconds from its arrival; `null` if it failed.
    seconds: Option<f64>,
    failed_turn: Option<usize>,
    turns: Vec<TurnLine>,
    /// What `--verify-pins` saw behind each turn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gaps: Vec<Gap>,
}

#[derive(Debug, Serialize)]
struct TurnLine {
    sent: f64,
    seconds: f64,
    tool: Option<String>,
    prompt_tokens: Option<usize>,
    cached_tokens: Option<usize>,
    completion_tokens: Option<usize>,
}

impl Report {
    pub(super) fn new(
        subject: Subject,
        records: Vec<JobRecord>,
        speculation: Option<SpeculationReport>,
    ) -> Self {
        let finished = || records.iter().filter(|job| job.failure.is_none());
        let turns = || records.iter().flat_map(|job| &job.turns);
        let duration = records.iter().map(|job| job.end).fold(0.0, f64::max).max(1e-9);
        let (mut errors, mut error_examples) = (BTreeMap::new(), BTreeMap::new());
        for (turn, failure) in records.iter().filter_map(|job| job.failure.as_ref()) {
            *errors.entry(failure.kind()).or_insert(0) += 1;
            let message = || format!("turn {turn}: {failure}");
            error_examples.entry(failure.kind()).or_insert_with(message);
        }
        let sum = |count: fn(&TurnRecord) -> Option<usize>| {
            let all: Option<u64> = turns().map(|turn| count(turn).map(|n| n as u64)).sum();
            all.filter(|_| turns().next().is_some())
        };
        let longest = records.iter().map(|job| job.turns.len()).max().unwrap_or(0);
        Self {
            duration,
            completed: finished().count(),
            failed: records.len() - finished().count(),
            interrupted: subject.number - records.len(),
            errors,
            error_examples,
            job_throughput: finished().count() as f64 / duration,
            job: Spread {
                name: "job",
                sample: finished().map(|job| job.end - job.arrival).collect(),
            },
            turn: Spread { name: "turn", sample: turns().map(TurnRecord::seconds).collect() },
            total_input_tokens: sum(|turn| turn.counts.prompt),
            cached_tokens: sum(|turn| turn.counts.cached),
            total_output_tokens: sum(|turn| turn.counts.completion),
            speculation,
            turns: (1..=longest).map(|number| TurnSummary::of(number, &records)).collect(),
            jobs: records.iter().map(JobSummary::of).collect(),
            subject,
        }
    }

    /// Number of jobs that Ctrl-C ended.
    pub(super) fn interrupted(&self) -> usize {
        self.interrupted
    }

    /// Number of jobs that finished.
    pub(super) fn completed(&self) -> usize {
        self.completed
    }

    /// Whether any request succeeded.
    pub(super) fn has_responses(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Message of one of the failures.
    pub(super) fn first_error(&self) -> Option<&str> {
        self.error_examples.values().next().map(String::as_str)
    }
}

impl TurnRecord {
    fn seconds(&self) -> f64 {
        self.end - self.sent
    }
}

/// Mean of counts that a server made of every one.
fn mean(counts: impl Iterator<Item = Option<usize>>) -> Option<f64> {
    let all: Option<Vec<usize>> = counts.collect();
    let all = all.filter(|all| !all.is_empty())?;
    Some(all.iter().sum::<usize>() as f64 / all.len() as f64)
}

impl TurnSummary {
    fn of(number: usize, records: &[JobRecord]) -> Self {
        let turns = || records.iter().filter_map(|job| job.turns.get(number - 1));
        let gaps = records.iter().filter_map(|job| job.gaps.get(number - 1));
        let blocks: Vec<u64> =
            gaps.flat_map(|gap| gap.polls.iter().map(|pins| pins.blocks)).collect();
        let leased = |blocks: &[u64]| {
            let mean = blocks.iter().sum::<u64>() as f64 / blocks.len() as f64;
            Some((*blocks.iter().min()?, mean, *blocks.iter().max()?))
        };
        Self {
            turn: number,
            requests: turns().count(),
            planned_prompt_tokens: mean(turns().map(|turn| Some(turn.planned_prompt_tokens)))
                .unwrap_or_default(),
            prompt_tokens: mean(turns().map(|turn| turn.counts.prompt)),
            cached_tokens: mean(turns().map(|turn| turn.counts.cached)),
            completion_tokens: mean(turns().map(|turn| turn.counts.completion)),
            seconds: Spread { name: "turn", sample: turns().map(TurnRecord::seconds).collect() },
            leased_blocks: leased(&blocks),
        }
    }
}

impl JobSummary {
    fn of(record: &JobRecord) -> Self {
        let JobRecord { job, arrival, end, turns, failure, gaps } = record;
        let line = |turn: &TurnRecord| TurnLine {
            sent: turn.sent,
            seconds: turn.seconds(),
            tool: turn.tool.clone(),
            prompt_tokens: turn.counts.prompt,
            cached_tokens: turn.counts.cached,
            completion_tokens: turn.counts.completion,
        };
        Self {
            job: job.clone(),
            arrival: *arrival,
            seconds: failure.is_none().then(|| end - arrival),
            failed_turn: failure.as_ref().map(|(turn, _)| *turn),
            turns: turns.iter().map(line).collect(),
            gaps: gaps.clone(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, completed, failed, interrupted, duration, .. } = self;
        writeln!(f, "server       {}, model {}", subject.url, subject.model_id)?;
        let arrivals = match subject.request_rate {
            Some(rate) => format!("{rate} jobs/s, a Poisson process"),
            None => "all at once, or as the file says".to_owned(),
        };
        writeln!(f, "arrivals     {arrivals}; seed {}", subject.seed)?;
        write!(f, "jobs         {completed} of {} finished in {duration:.2} s", subject.number)?;
        if failed + interrupted > 0 {
            write!(f, "; {failed} failed, {interrupted} interrupted")?;
        }
        writeln!(f)?;
        for (kind, count) in &self.errors {
            let example = self.error_examples.get(kind).map(String::as_str).unwrap_or_default();
            writeln!(f, "errors       {count} {kind}: {example}")?;
        }
        if let (Some(input), Some(output)) = (self.total_input_tokens, self.total_output_tokens) {
            write!(f, "tokens       {input} in, {output} out")?;
            match self.cached_tokens {
                Some(cached) => {
                    let share = 100.0 * cached as f64 / input.max(1) as f64;
                    writeln!(f, "; {cached} of those in were cached ({share:.1}%)")?;
                }
                None => writeln!(f)?,
            }
        }
        if let Some(speculation) = &self.speculation {
            writeln!(f, "{speculation}")?;
        }
        write!(f, "{:12}", "seconds")?;
        ["mean", "p50", "p90", "p95", "p99", "max"]
            .iter()
            .try_for_each(|column| write!(f, " {column:>10}"))?;
        writeln!(f)?;
        for (name, spread) in [("job", &self.job), ("turn", &self.turn)] {
            let Some(mean) = spread.sample.mean() else { continue };
            write!(f, "{name:12} {mean:>10.3}")?;
            for percent in [50.0, 90.0, 95.0, 99.0, 100.0] {
                write!(f, " {:>10.3}", spread.sample.percentile(percent).unwrap_or(mean))?;
            }
            writeln!(f)?;
        }
        if self.turns.is_empty() {
            return Ok(());
        }
        self.turn_table(f)
    }
}

impl Report {
    fn turn_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pins = self.turns.iter().any(|turn| turn.leased_blocks.is_some());
        write!(f, "{:12}", "turn")?;
        let columns = ["requests", "prompt", "cached", "output", "mean s", "p90 s", "p99 s"];
        columns.iter().try_for_each(|column| write!(f, " {column:>10}"))?;
        if pins {
            write!(f, " {:>18}", "leased blocks")?;
        }
        writeln!(f)?;
        for turn in &self.turns {
            let count = |count: Option<f64>| count.map_or("-".to_owned(), |n| format!("{n:.0}"));
            write!(f, "{:<12} {:>10}", turn.turn, turn.requests)?;
            for tokens in [turn.prompt_tokens, turn.cached_tokens, turn.completion_tokens] {
                write!(f, " {:>10}", count(tokens))?;
            }
            let seconds = &turn.seconds.sample;
            for seconds in [seconds.mean(), seconds.percentile(90.0), seconds.percentile(99.0)] {
                write!(f, " {:>10.3}", seconds.unwrap_or_default())?;
            }
            match turn.leased_blocks {
                Some((least, _, most)) if least == most => write!(f, " {least:>18}")?,
                Some((least, _, most)) => write!(f, " {:>18}", format!("{least} to {most}"))?,
                None if pins => write!(f, " {:>18}", "-")?,
                None => {}
            }
            writeln!(f)?;
        }
        if pins {
            let doubtful =
                self.jobs.iter().flat_map(|job| &job.gaps).filter(|gap| gap.blocks().is_none());
            let doubtful = doubtful.count();
            if doubtful > 0 {
                writeln!(
                    f,
                    "note         {doubtful} gaps have no look at /metrics: they were too short, or it failed"
                )?;
            }
            let held = self.turns.iter().filter_map(|turn| turn.leased_blocks);
            if held.map(|(.., most)| most).max() == Some(0) {
                writeln!(
                    f,
                    "note         no block was leased: the server's --policy keeps none (use continuum, context-serve or \
                     adaptive), or no output called a tool that it knows"
                )?;
            }
            if self.jobs.len() > 1 {
                writeln!(
                    f,
                    "note         leased blocks are those of the whole server: of a job alone with --jobs 1"
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::conversation::Counts;
    use super::super::pins::Pins;
    use super::*;
    use crate::cli::bench::serve::failure::Failure;

    fn turn(turn: usize, sent: f64, end: f64) -> TurnRecord {
        let counts = Counts { prompt: Some(100 * turn), cached: Some(50), completion: Some(7) };
        TurnRecord { tool: Some("ls".into()), planned_prompt_tokens: 90, sent, end, counts }
    }

    fn job(arrival: f64, end: f64, failure: Option<(usize, Failure)>) -> JobRecord {
        let turns = vec![turn(1, arrival, arrival + 1.0), turn(2, end - 0.5, end)];
        let pins = |blocks| Pins { leases: 1, blocks };
        let gap = |turn, polls| Gap { turn, tool: None, seconds: 0.5, polls, failed_polls: 0 };
        let gaps = vec![gap(1, vec![pins(4), pins(6)]), gap(2, vec![pins(0)])];
        JobRecord { job: "a".into(), arrival, end, turns, failure, gaps }
    }

    fn report(records: Vec<JobRecord>) -> Report {
        let subject = Subject {
            url: "http://host/v1/chat/completions".into(),
            model_id: "tiny".into(),
            request_rate: Some(2.0),
            seed: 3,
            number: 3,
        };
        Report::new(subject, records, None)
    }

    #[test]
    fn figures_are_those_of_jobs_that_finished_and_of_all_turns() {
        let failed = job(1.0, 9.0, Some((3, Failure::Timeout)));
        let report = report(vec![job(0.0, 2.0, None), job(1.0, 5.0, None), failed]);
        let json: Value = serde_json::to_value(&report).unwrap();
        for (name, value) in [
            ("num_jobs", json!(3)),
            ("completed", json!(2)),
            ("failed", json!(1)),
            ("interrupted", json!(0)),
            ("errors", json!({"timeout": 1})),
            ("duration", json!(9.0)),
            ("mean_job_s", json!(3.0)),
            ("p90_job_s", json!(3.8)),
            ("max_job_s", json!(4.0)),
            ("mean_turn_s", json!(0.75)),
            ("total_input_tokens", json!(900)),
            ("cached_tokens", json!(300)),
            ("total_output_tokens", json!(42)),
        ] {
            assert_eq!(json[name], value, "{name}");
        }
        let second = &json["turns"][1];
        assert_eq!(
            (&second["prompt_tokens"], &second["mean_turn_s"]),
            (&json!(200.0), &json!(0.5))
        );
        assert_eq!(json["turns"][0]["leased_blocks"], json!([4, 5.0, 6]));
        assert_eq!(second["leased_blocks"], json!([0, 0.0, 0]));
        assert_eq!(
            (&json["jobs"][2]["seconds"], &json["jobs"][2]["failed_turn"]),
            (&Value::Null, &json!(3))
        );
        let text = report.to_string();
        for part in ["2 of 3 finished", "1 timeout: turn 3", "33.3%", "4 to 6", "whole server"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_server_that_does_not_count_leaves_counts_out() {
        let mut record = job(0.0, 2.0, None);
        record.gaps.clear();
        record.turns.iter_mut().for_each(|turn| turn.counts = Counts::default());
        let report = report(vec![record]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            (&json["total_input_tokens"], &json["cached_tokens"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!(json["interrupted"], 2);
        let text = report.to_string();
        assert!(!text.contains("leased") && !text.contains("tokens   "), "{text}");
    }

    #[test]
    fn a_run_without_a_response_can_be_reported() {
        let mut record = job(0.0, 2.0, Some((1, Failure::Timeout)));
        (record.turns, record.gaps) = (Vec::new(), Vec::new());
        let report = report(vec![record]);
        assert!(!report.has_responses());
        assert!(report.first_error().unwrap().starts_with("turn 1: "));
        assert!(!report.to_string().contains("p99 s"));
    }
}
