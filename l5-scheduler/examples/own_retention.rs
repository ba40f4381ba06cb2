//! A retention of one's own: mean times of agents' jobs at several loads, against `fcfs` and `continuum`.
//!
//! ```text
//! cargo run -p l5-scheduler --example own_retention
//! cargo run -p l5-scheduler --example own_retention -- sweep.svg
//! ```
//!
//! All three serve the same jobs. To try a rule, change what `retain`, `lease_for` and `observe` answer.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write as _;

use l5_scheduler::sim::{AgentJobs, Goodput, Planner};
use l5_scheduler::{
    CostModel, Job, JobKey, LeaseId, Note, PolicyContext, PolicyEvent, PolicyKind, RequestView,
    Retain, Retention, SchedulerConfig, Status, Time,
};

/// Holds the blocks of a step for twice the longest pause that its tool has had: 1 s while it has had none, and not at all
/// if that is more than 5 s.
#[derive(Default)]
struct TwiceTheLongest {
    /// Longest pause of each tool, in seconds.
    longest: HashMap<String, f64>,
    /// Jobs whose tools run: since when, and which. (Those that never return stay here; a server must bound them.)
    pauses: HashMap<JobKey, (Time, String)>,
}

impl Retention for TwiceTheLongest {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        note: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        let returns = matches!(finished.job(), Some(Job { last_step: false, .. }));
        let tool = note.and_then(|note| note.tool.as_ref());
        let (true, Some(job), Some(tool)) = (returns, finished.job_key(), tool) else {
            return Retain::Free;
        };
        self.pauses.insert(job.clone(), (context.now, tool.clone()));
        match self.longest.get(tool).map_or(1.0, |pause| 2.0 * pause) {
            seconds if seconds <= 5.0 => Retain::LeaseUntil(context.now + seconds),
            _ => Retain::Free,
        }
    }

    fn lease_for(
        &self,
        needy: &RequestView<'_>,
        named: &[LeaseId],
        context: &PolicyContext<'_>,
    ) -> Option<LeaseId> {
        // A waiting request waits. A running one would be preempted without a block.
        let runs = needy.status() == Status::Running;
        runs.then(|| context.leases.next_to_expire(named.last().copied()))?.map(|lease| lease.id)
    }

    fn observe(&mut self, event: &PolicyEvent<'_>, _context: &PolicyContext<'_>) {
        if let PolicyEvent::Arrived(request) = event
            && let Some((since, tool)) = request.job_key().and_then(|job| self.pauses.remove(job))
        {
            let longest = self.longest.entry(tool).or_default();
            *longest = longest.max(request.arrival() - since);
        }
    }
}

const JOBS: &str = include_str!("../../fixtures/schedules/workloads/agents.json");
const MACHINE: &str = include_str!("../../fixtures/schedules/workloads/two-cores.json");

/// Jobs a second.
const LOADS: [f64; 5] = [0.1, 0.2, 0.3, 0.4, 0.5];
const SEEDS: u64 = 3;

/// Mean seconds of a job, over all jobs of all seeds.
fn mean(policy: PolicyKind, own: bool, load: f64) -> Result<f64, Box<dyn Error>> {
    let mut sum = 0.0;
    for seed in 0..SEEDS {
        let config = SchedulerConfig { policy, ..SchedulerConfig::new(401, 16) };
        let jobs = AgentJobs::read(Box::new(JOBS.as_bytes()), Some(load), None, Some(seed))?;
        let mut planner = Planner::new(config, CostModel::from_json(MACHINE)?, Goodput::default())?;
        if own {
            planner = planner.with_retention(Box::new(TwiceTheLongest::default()));
        }
        let agents = planner.run(jobs)?.agents.and_then(|agents| agents.e2e);
        sum += agents.ok_or("no job has finished")?.mean;
    }
    Ok(sum / SEEDS as f64)
}

/// The curves as a picture.
fn picture(names: [&str; 3], rows: &[[f64; 3]]) -> Result<String, std::fmt::Error> {
    let top = rows.iter().flatten().copied().fold(1.0, f64::max);
    let x = |n: usize| 70.0 + 520.0 * n as f64 / (LOADS.len() - 1) as f64;
    let y = |seconds: f64| 300.0 - 260.0 * seconds / top;
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 740 360\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"740\" height=\"360\" fill=\"#fcfbf7\"/>\n",
    );
    let mut label = |x: f64, y: f64, text: String| {
        writeln!(svg, "<text x=\"{x:.0}\" y=\"{y:.0}\" fill=\"#222\">{text}</text>")
    };
    label(20.0, 24.0, "mean seconds of a job, by jobs a second".into())?;
    label(20.0, y(top), format!("{top:.1}"))?;
    label(20.0, y(0.0), "0".into())?;
    for (n, load) in LOADS.iter().enumerate() {
        label(x(n) - 8.0, 322.0, load.to_string())?;
    }
    for (curve, (name, colour)) in names.iter().zip(["#b03030", "#3060b0", "#308040"]).enumerate() {
        let points = rows.iter().enumerate().map(|(n, row)| (x(n), y(row[curve])));
        let points: Vec<String> = points.map(|(x, y)| format!("{x:.0},{y:.0}")).collect();
        let line = "fill=\"none\" stroke-width=\"2\"";
        writeln!(svg, "<polyline points=\"{}\" {line} stroke=\"{colour}\"/>", points.join(" "))?;
        let end = y(rows.last().map_or(0.0, |row| row[curve]));
        writeln!(svg, "<text x=\"600\" y=\"{end:.0}\" fill=\"{colour}\">{name}</text>")?;
    }
    Ok(svg + "</svg>\n")
}

fn main() -> Result<(), Box<dyn Error>> {
    let names = ["fcfs", "continuum", "your own"];
    println!("jobs/s  {:>9}  {:>9}  {:>9}  your own / fcfs", names[0], names[1], names[2]);
    let mut rows = Vec::new();
    for load in LOADS {
        // The queue of `continuum` goes by jobs. With that of `fcfs`, a job waits in line again for each of its turns.
        let row = [
            mean(PolicyKind::Fcfs, false, load)?,
            mean(PolicyKind::Continuum, false, load)?,
            mean(PolicyKind::Continuum, true, load)?,
        ];
        let [fcfs, continuum, own] = row;
        println!("{load:>6}  {fcfs:>9.3}  {continuum:>9.3}  {own:>9.3}  {:>15.3}", own / fcfs);
        rows.push(row);
    }
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(&path, picture(names, &rows)?)?;
        println!("written to {path}");
    }
    Ok(())
}
