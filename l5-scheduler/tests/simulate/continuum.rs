//! The policy `continuum` against an event simulator of its own.
//!
//! `fixtures/reference/continuum_events.py` is written from the rules of Li et al. 2025 ("Continuum") and shares no code
//! with this crate. It has run 200 random sets of agents' jobs, with small pools, so that leases are stolen and requests
//! are preempted. Here the scheduler runs the same sets, and must do the same at the same times: start the same requests
//! with the same hits, lease as many blocks for as long, end the same leases for the same reasons, and preempt the same
//! requests. The script's first comment has the rules and the format of an event.
//!
//! The comparison fails, for example, if [`Continuum`](l5_scheduler::policy::Continuum) preempts the oldest job or
//! prefers last steps, if its queue ignores leases, if the lease that expires first is stolen first, if a lease expires
//! while a step of its job waits, or if the mean of waits is left out of the time to live.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Cursor;
use std::path::Path;
use std::sync::{Arc, Mutex};

use l5_scheduler::retention::{Continuum, Ttl};
use l5_scheduler::sim::{AgentJobs, Arrivals, FakeModel, Goodput, Output, Planner, VirtualClock};
use l5_scheduler::{
    Admitted, Caps, CostModel, Executor, LeaseEnd, LeaseId, Note, PolicyContext, PolicyEvent,
    PolicyKind, RequestId, RequestView, Resolved, Retain, Retention, Scheduler, SchedulerConfig,
    StepOutput, Time,
};
use serde::Deserialize;
use serde_json::json;

/// Ticks of a second: the simulator counts time in them.
const TICKS: f64 = 64.0;

const TOOLS: [Option<&str>; 5] = [Some("ls"), Some("cat"), Some("python"), Some("make"), None];

/// A set of jobs, and what the simulator does with it.
#[derive(Deserialize)]
struct Case {
    /// Usable blocks of the pool, tokens of a block, tokens of a step, and seats.
    blocks: usize,
    block: usize,
    budget: usize,
    seats: usize,
    /// Ticks of a step, of a token of a prompt, and of a row of one token.
    cost: [f64; 3],
    ttl: String,
    jobs: Vec<JobLine>,
    events: String,
}

/// Arrival, tenant, whether requests have a job id, prefix and its tokens, turns.
#[derive(Deserialize)]
struct JobLine(f64, Option<String>, bool, Option<(u64, usize)>, Vec<TurnLine>);

/// Tokens behind the conversation so far, output tokens, tool, and its ticks.
#[derive(Deserialize)]
struct TurnLine(usize, usize, usize, f64);

/// Something that happens: when, in ticks, what, to which request, and what the script says beside that.
#[derive(Clone, Debug)]
struct Event {
    at: f64,
    what: char,
    turn: u64,
    more: Vec<f64>,
}

impl Event {
    /// Whether two events are the same, up to the digits that the script writes.
    fn is(&self, other: &Self) -> bool {
        let near = |a: &f64, b: &f64| (a - b).abs() < 1e-5;
        (self.what, self.turn, self.more.len()) == (other.what, other.turn, other.more.len())
            && near(&self.at, &other.at)
            && self.more.iter().zip(&other.more).all(|(a, b)| near(a, b))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}: {}{} {:?}", self.at, self.what, self.turn, self.more)
    }
}

fn cases() -> Vec<Case> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/retention/continuum.jsonl");
    let lines = std::fs::read_to_string(file).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

impl Case {
    fn config(&self) -> SchedulerConfig {
        SchedulerConfig {
            policy: PolicyKind::Continuum,
            continuum_ttl: self.ttl.parse().unwrap(),
            max_num_seqs: self.seats,
            max_num_batched_tokens: self.budget,
            ..SchedulerConfig::new(self.blocks + 1, self.block)
        }
    }

    fn cost(&self) -> CostModel {
        let [base, per_prefill_token, per_decode_token] = self.cost.map(|ticks| ticks / TICKS);
        CostModel {
            base,
            per_prefill_token,
            per_decode_token,
            per_verify_token: None,
            per_kv_byte: 0.0,
            kv_bytes_per_token: 4.0,
            load_bytes_per_second: None,
        }
    }

    fn agents(&self) -> AgentJobs<'static> {
        let mut file = String::new();
        for (number, JobLine(arrival, tenant, has_id, prefix, turns)) in
            self.jobs.iter().enumerate()
        {
            let mut said = prefix.map_or(0, |(_, tokens)| tokens);
            let turns = turns.iter().map(|TurnLine(added, output, tool, ticks)| {
                let prompt = said + added;
                said = prompt + output;
                json!({"prompt_tokens": prompt, "output_tokens": output, "tool": TOOLS[*tool],
                       "tool_seconds": ticks / TICKS})
            });
            let turns: Vec<_> = turns.collect();
            let prefix = prefix.map(|(id, tokens)| json!({"id": id.to_string(), "tokens": tokens}));
            let job = json!({"job": number.to_string(), "arrival": arrival / TICKS, "tenant": tenant,
                             "has_id": has_id, "prefix": prefix, "turns": turns});
            file += &format!("{job}\n");
        }
        AgentJobs::read(Box::new(Cursor::new(file)), None, None, None).unwrap()
    }

    /// What the script says.
    fn want(&self) -> Vec<Event> {
        let (mut at, mut events) = (0.0, Vec::new());
        for word in self.events.split(' ') {
            if let Some(ticks) = word.strip_prefix('+') {
                at += ticks.parse::<f64>().unwrap();
                continue;
            }
            let mut numbers = word[1..].split(',').map(|number| number.parse::<f64>().unwrap());
            let turn = numbers.next().unwrap() as u64;
            let what = word.chars().next().unwrap();
            events.push(Event { at, what, turn, more: numbers.collect() });
        }
        events
    }
}

/// The retention of `continuum`, and everything that it is told.
struct Listening {
    retention: Continuum,
    heard: Arc<Mutex<Vec<Event>>>,
    /// Request for which a lease was asked for last.
    needy: Mutex<Option<RequestId>>,
}

impl Retention for Listening {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        note: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        self.retention.retain(finished, note, context)
    }

    fn lease_for(
        &self,
        needy: &RequestView<'_>,
        named: &[LeaseId],
        context: &PolicyContext<'_>,
    ) -> Option<LeaseId> {
        *self.needy.lock().unwrap() = Some(needy.id());
        self.retention.lease_for(needy, named, context)
    }

    fn observe(&mut self, event: &PolicyEvent<'_>, context: &PolicyContext<'_>) {
        let needy = || self.needy.lock().unwrap().expect("a request that needs blocks").0 as f64;
        let (what, turn, more) = match event {
            PolicyEvent::Arrived(_) => ('a', RequestId(0), vec![]),
            PolicyEvent::Preempted(request) => ('p', request.id(), vec![]),
            PolicyEvent::Finished(request, _) => ('f', request.id(), vec![]),
            PolicyEvent::Leased(lease) => {
                let seconds = lease.until().expect("a time") - context.now;
                ('l', lease.request, vec![lease.blocks as f64, seconds * TICKS])
            }
            PolicyEvent::LeaseEnded(lease, why) => {
                let (what, more) = match why {
                    LeaseEnd::Expired => ('x', vec![]),
                    LeaseEnd::ForWaiting => ('w', vec![needy()]),
                    LeaseEnd::ForRunning => ('g', vec![needy()]),
                    LeaseEnd::Outlived => ('o', vec![]),
                    LeaseEnd::JobOver => ('j', vec![]),
                    other => panic!("a lease of {} ends: {other:?}", lease.request),
                };
                (what, lease.request, more)
            }
        };
        if what != 'a' {
            let at = context.now.seconds() * TICKS;
            self.heard.lock().unwrap().push(Event { at, what, turn: turn.0, more });
        }
        self.retention.observe(event, context);
    }
}

/// Runs a set through the scheduler. An engine without requests wakes when the next lease expires.
fn run(case: &Case) -> Vec<Event> {
    let heard = Arc::<Mutex<Vec<Event>>>::default();
    let ttl: Ttl = case.ttl.parse().unwrap();
    let retention =
        Listening { retention: Continuum::new(ttl), heard: heard.clone(), needy: Mutex::default() };
    let mut scheduler = Scheduler::new(case.config()).unwrap().with_retention(Box::new(retention));
    let (mut jobs, mut clock) = (case.agents(), VirtualClock::new(case.cost()));
    let mut model = FakeModel::<Output>::default();
    scheduler.set_caps(&Caps { cost: Some(case.cost()), ..model.caps() });
    let (mut output, mut resolved) = (StepOutput::default(), Resolved::default());
    loop {
        while let Some(request) = jobs.next(clock.now()).unwrap() {
            model.begin(request.id, jobs.output(&request));
            scheduler.add_request(request).unwrap();
        }
        if !scheduler.has_unfinished() {
            let wake = [jobs.next_arrival().unwrap(), scheduler.leases().next_deadline()];
            let Some(wake) = wake.into_iter().flatten().min() else { break };
            if wake > clock.now() {
                clock.wait_until(wake);
                continue;
            }
        }
        let now = clock.now();
        let step = scheduler.plan(now);
        for row in step.rows.iter().filter(|row| row.admitted != Admitted::Before) {
            let what = if row.admitted == Admitted::Resumed { 'r' } else { 's' };
            let (at, turn) = (now.seconds() * TICKS, row.id.0);
            heard.lock().unwrap().push(Event { at, what, turn, more: vec![row.cached as f64] });
        }
        let now = clock.run(step);
        output.clear();
        model.execute(&scheduler.view(), &mut output).unwrap();
        for (row, view) in scheduler.view().rows().enumerate().filter(|(_, v)| v.row.samples) {
            let tool = jobs.tool(view.row.id).map(str::to_owned);
            output.note(row, Note { tool, command: None });
        }
        scheduler.resolve(&output, &mut resolved).unwrap();
        scheduler.apply(&resolved, now);
        for (id, reason) in scheduler.take_ended() {
            model.end(id, reason);
            jobs.finished(id, now);
        }
    }
    std::mem::take(&mut *heard.lock().unwrap())
}

#[test]
fn the_scheduler_does_what_an_event_simulator_does() {
    let cases = cases();
    let mut counts = BTreeMap::<char, usize>::new();
    for (number, case) in cases.iter().enumerate() {
        let (got, want) = (run(case), case.want());
        let same = got.iter().zip(&want).take_while(|(got, want)| got.is(want)).count();
        if same < got.len().max(want.len()) {
            let from = same.saturating_sub(8);
            let told = |events: &[Event]| -> String {
                events.iter().skip(from).take(12).map(|event| format!("\n    {event}")).collect()
            };
            panic!(
                "set {number}, event {same} differs; the scheduler:{}\n  and the simulator:{}",
                told(&got),
                told(&want)
            );
        }
        want.iter().for_each(|event| *counts.entry(event.what).or_default() += 1);
    }
    // A set that has none of something says nothing about it.
    assert_eq!(cases.len(), 200);
    let least = [('s', 4000), ('l', 2000), ('x', 800), ('o', 400), ('j', 200), ('w', 500)];
    let least = least.into_iter().chain([('p', 100), ('r', 100), ('g', 40)]);
    for (what, least) in least {
        assert!(counts[&what] >= least, "{} times {what}, too few", counts[&what]);
    }
}

#[test]
fn the_planner_finishes_turns_when_an_event_simulator_does() {
    for (number, case) in cases().iter().enumerate() {
        let planner = Planner::new(case.config(), case.cost(), Goodput::default()).unwrap();
        let report = planner.run(case.agents().with_records()).unwrap();
        let turns = report.job_log.unwrap().jobs.into_iter().flat_map(|job| job.turns);
        let got: Vec<_> = turns.map(|turn| (Time(turn.finish), turn.hit_tokens)).collect();
        let want = case.want();
        let of = |what: char| {
            let events = want.iter().filter(move |event| event.what == what);
            events.map(|event| (event.turn, event)).collect::<BTreeMap<_, _>>()
        };
        let want = of('f').into_values().zip(of('s').into_values());
        let want: Vec<_> =
            want.map(|(end, start)| (Time(end.at / TICKS), start.more[0] as usize)).collect();
        assert_eq!(got.len(), want.len(), "set {number}");
        for (turn, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!((got.0 - want.0).abs() < 1e-6, "set {number}, turn {turn}: {got:?}, {want:?}");
            assert_eq!(got.1, want.1, "set {number}: hit of turn {turn}");
        }
    }
}

/// Two jobs return at 50 s. The lease of the second one has expired at 8 s, while nothing ran, so the first one is first.
#[test]
fn an_idle_planner_ends_leases_at_their_time() {
    let turns = |tool: &str, seconds: u32| {
        format!(
            r#""turns":[{{"prompt_tokens":4,"output_tokens":1{tool},"tool_seconds":{seconds}}},{{"prompt_tokens":8,"output_tokens":1}}]"#
        )
    };
    let first = format!(r#"{{"job":"first","arrival":0,{}}}"#, turns("", 47));
    let second = format!(r#"{{"job":"second","arrival":1,{}}}"#, turns(r#","tool":"ls""#, 44));
    let config = SchedulerConfig {
        policy: PolicyKind::Continuum,
        max_num_seqs: 1,
        ..super::agents::config()
    };
    let jobs = super::agents::jobs(&format!("{first}\n{second}\n")).with_records();
    let log = super::agents::run(config, jobs).job_log.unwrap();
    let arrivals: Vec<f64> = log.jobs.iter().map(|job| job.turns[1].arrival).collect();
    assert_eq!(arrivals, [50.0, 50.0]);
    assert_eq!(log.leases.made, 1, "the first job called no tool");
    let finishes: Vec<_> = log.jobs.iter().map(|job| job.finish.unwrap()).collect();
    assert!(finishes[0] < finishes[1], "{finishes:?}");
}
