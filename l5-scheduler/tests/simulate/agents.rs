//! Jobs of agents: a closed loop, in which a turn arrives when the tool of the turn before it is done.

mod retention;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io::{BufReader, Cursor, Read};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use l5_scheduler::sim::{
    AgentJobs, AgentReport, AgentSpec, Arrivals, Goodput, Measured, Output, PlanError, Planner,
    Report, WorkloadError,
};
use l5_scheduler::{
    CostModel, Note, PolicyContext, PolicyEvent, PolicyKind, Request, RequestId, RequestView,
    Retain, Retention, SchedulerConfig, Time,
};
use proptest::prelude::*;

/// As in `clock.rs`, but what is read costs nothing: a step takes 1 s, a prompt's token 0.5 s and a decode 0.25 s.
const COST: CostModel = CostModel { per_kv_byte: 0.0, ..super::clock::COST };

pub(super) fn config() -> SchedulerConfig {
    SchedulerConfig { max_num_seqs: 8, max_num_batched_tokens: 64, ..SchedulerConfig::new(65, 4) }
}

pub(super) fn jobs(file: &str) -> AgentJobs<'static> {
    read(file, None).unwrap_or_else(|e| panic!("{file}: {e}"))
}

fn read(file: &str, seed: Option<u64>) -> Result<AgentJobs<'static>, WorkloadError> {
    AgentJobs::read(Box::new(Cursor::new(file.to_owned())), None, None, seed)
}

pub(super) fn planner(config: SchedulerConfig) -> Planner {
    Planner::new(config, COST, Goodput::default()).unwrap()
}

pub(super) fn run(config: SchedulerConfig, arrivals: impl Arrivals) -> Report {
    planner(config).run(arrivals).unwrap_or_else(|e| panic!("{e}"))
}

fn agents(report: &Report) -> AgentReport {
    report.agents.expect("a report on the jobs")
}

/// Everything that a simulation did, as its arrivals saw it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Log {
    requests: BTreeMap<RequestId, Request>,
    outputs: BTreeMap<RequestId, Output>,
    tools: BTreeMap<RequestId, String>,
    measured: BTreeMap<RequestId, Measured>,
    finished: BTreeMap<RequestId, Time>,
    ended_early: BTreeMap<RequestId, Time>,
    most_unfinished: usize,
}

struct Logged<'a> {
    jobs: AgentJobs<'a>,
    log: Rc<RefCell<Log>>,
}

impl Arrivals for Logged<'_> {
    fn next(&mut self, now: Time) -> Result<Option<Request>, WorkloadError> {
        let request = self.jobs.next(now)?;
        let mut log = self.log.borrow_mut();
        if let Some(request) = &request {
            assert!(request.arrival <= now, "{} comes at {now:?}", request.id);
            log.outputs.insert(request.id, self.jobs.output(request));
            if let Some(tool) = self.jobs.tool(request.id) {
                log.tools.insert(request.id, tool.to_owned());
            }
            let before = log.requests.insert(request.id, request.clone());
            assert_eq!(before, None, "an id is given once");
        }
        log.most_unfinished = log.most_unfinished.max(self.jobs.unfinished());
        Ok(request)
    }

    fn next_arrival(&mut self) -> Result<Option<Time>, WorkloadError> {
        self.jobs.next_arrival()
    }

    fn output(&self, request: &Request) -> Output {
        self.jobs.output(request)
    }

    fn finished(&mut self, id: RequestId, now: Time) {
        self.log.borrow_mut().finished.insert(id, now);
        self.jobs.finished(id, now);
    }

    fn ended_early(&mut self, id: RequestId, now: Time) {
        self.log.borrow_mut().ended_early.insert(id, now);
        self.jobs.ended_early(id, now);
    }

    fn measured(&mut self, request: &Measured) {
        self.log.borrow_mut().measured.insert(request.id, *request);
        self.jobs.measured(request);
    }

    fn tool(&self, id: RequestId) -> Option<&str> {
        self.jobs.tool(id)
    }

    fn command(&self, id: RequestId) -> Option<&str> {
        self.jobs.command(id)
    }

    fn report(&mut self) -> Option<AgentReport> {
        self.jobs.report()
    }
}

fn run_logged(config: SchedulerConfig, jobs: AgentJobs<'_>) -> (Report, Log) {
    let log = Rc::new(RefCell::new(Log::default()));
    let report = run(config, Logged { jobs, log: log.clone() });
    (report, log.take())
}

/// ```text
///  2       7  8.25          11.25      15.25   15.75     18.75  20
///  | 8     |d |   ls: 3 s    | 6        | cat   | 4       | d    |
/// ```
pub(super) const THREE_TURNS: &str = r#"{"job":"a","arrival":2,"turns":[
    {"prompt_tokens":8,"output_tokens":2,"tool":"ls","tool_seconds":3},
    {"prompt_tokens":14,"output_tokens":1,"tool":"cat","tool_seconds":0.5},
    {"prompt_tokens":16,"output_tokens":2}]}"#;

/// Two jobs that need 9 blocks of 4 at once.
pub(super) const TWO_JOBS: &str = r#"
{"job":"b","arrival":2,"turns":[{"prompt_tokens":9,"output_tokens":16,"tool":"make"},{"prompt_tokens":27,"output_tokens":1}]}
{"job":"c","arrival":2,"turns":[{"prompt_tokens":4,"output_tokens":26,"tool":"cc"}]}"#;

pub(super) fn one_line(json: &str) -> String {
    json.lines().map(str::trim).collect()
}

#[test]
fn a_job_of_three_turns_can_be_followed_by_hand() {
    let (report, log) = run_logged(config(), jobs(&one_line(THREE_TURNS)));
    let turn = |id,
                [arrival, first_token, finish]: [f64; 3],
                prompt_tokens,
                cached_tokens,
                output_tokens| {
        Measured {
            id: RequestId(id),
            arrival: Time(arrival),
            admitted: Time(arrival),
            first_token: Time(first_token),
            finish: Time(finish),
            prompt_tokens,
            cached_tokens,
            loaded_tokens: 0,
            computed_tokens: prompt_tokens - cached_tokens,
            output_tokens,
        }
    };
    // The first turn fills 2 blocks of 4 and computes a ninth token, the second one has computed 14: 3 blocks.
    let want = [
        turn(0, [2.0, 7.0, 8.25], 8, 0, 2),
        turn(1, [11.25, 15.25, 15.25], 14, 8, 1),
        turn(2, [15.75, 18.75, 20.0], 16, 12, 2),
    ];
    assert_eq!(log.measured.into_values().collect::<Vec<_>>(), want);
    let ends: Vec<f64> = log.finished.values().map(|time| time.seconds()).collect();
    assert_eq!(ends, [8.25, 15.25, 20.0]);
    assert_eq!(
        log.tools,
        BTreeMap::from([(RequestId(0), "ls".into()), (RequestId(1), "cat".into())])
    );

    let agents = agents(&report);
    assert_eq!((agents.jobs, agents.finished, agents.ended_early, agents.turns), (1, 1, 0, 3));
    assert_eq!(agents.e2e.unwrap().p50, 18.0, "from 2 to 20");
    assert_eq!(agents.tools.unwrap().p50, 3.5, "ls and cat");
    assert_eq!(agents.wait.unwrap().max, 0.0, "it is alone");
    assert_eq!((agents.first_turns.prompt_tokens, agents.first_turns.cached_tokens), (8, 0));
    let later = agents.later_turns;
    assert_eq!((later.turns, later.prompt_tokens, later.cached_tokens), (2, 30, 20));
    assert_eq!(later.hit_rate, 20.0 / 30.0);
    assert_eq!(report.counts.scheduled_tokens, 8 + 1 + 6 + 4 + 1);
    assert_eq!(report.seconds, 18.0);
}

#[test]
fn a_prompt_is_the_conversation_so_far() {
    let (_, log) = run_logged(config(), jobs(&one_line(THREE_TURNS)));
    let requests: Vec<&Request> = log.requests.values().collect();
    for pair in requests.windows(2) {
        let [before, after] = pair else { unreachable!() };
        let Output::Counting(first) = log.outputs[&before.id] else { panic!("{:?}", log.outputs) };
        let mut start = before.prompt.clone();
        start.extend((0..before.max_tokens as u32).map(|n| first.wrapping_add(n)));
        assert_eq!(after.prompt[..start.len()], start, "prompt and output of {}", before.id);
    }
    let steps: Vec<_> = requests.iter().map(|r| r.job.clone().unwrap()).collect();
    assert!(steps.iter().all(|job| job.id == "a"));
    assert_eq!(steps.iter().map(|job| job.last_step).collect::<Vec<_>>(), [false, false, true]);
}

#[test]
fn token_ids_of_a_list_are_taken_as_they_are() {
    // The second prompt is not the first one, its output and more: this agent drops what it thought.
    let list = r#"{"job":"a","tenant":"t","priority":3,"turns":[
        {"prompt_tokens":[1,2,3,4,5],"output_tokens":[6,7,8,9]},
        {"prompt_tokens":[1,2,3,4,8,9],"output_tokens":3},
        {"prompt_tokens":10,"output_tokens":1}]}"#;
    let (report, log) = run_logged(config(), jobs(&one_line(list)));
    assert_eq!(log.outputs[&RequestId(0)], Output::Tokens(vec![6, 7, 8, 9]));
    assert_eq!(log.requests[&RequestId(1)].prompt, [1, 2, 3, 4, 8, 9]);
    assert_eq!(log.requests[&RequestId(2)].prompt[..6], [1, 2, 3, 4, 8, 9]);
    assert_eq!(log.requests[&RequestId(2)].prompt.len(), 10);
    let of = |r: &Request| (r.cache_salt.clone(), r.priority);
    assert!(log.requests.values().all(|r| of(r) == (Some("t".into()), 3)));
    assert_eq!(report.counts.output_tokens, 4 + 3 + 1);
    assert_eq!(agents(&report).later_turns.cached_tokens, 4 + 8, "1 2 3 4; and 8 9 and two more");
}

#[test]
fn a_job_may_keep_its_id_to_itself() {
    let list = THREE_TURNS.replace("\"arrival\"", "\"has_id\":false,\"arrival\"");
    let (report, log) = run_logged(config(), jobs(&one_line(&list)));
    assert!(log.requests.values().all(|request| request.job.is_none()));
    assert_eq!((agents(&report).finished, agents(&report).turns), (1, 3));
}

#[test]
fn a_specification_is_the_same_in_a_file_and_as_a_value() {
    let spec: AgentSpec = serde_json::from_str(SPEC).unwrap();
    let given = run(config(), AgentJobs::from_spec(spec).unwrap());
    assert_eq!(given.to_string(), run(config(), jobs(SPEC)).to_string());
}

/// One seat. A's first turn ends at 3.5; B waits from 0 to then; A's second turn waits from 4.5 for B's end at 6.
#[test]
fn a_turn_waits_from_its_arrival_to_its_first_step() {
    let list = r#"{"job":"A","turns":[{"prompt_tokens":5,"output_tokens":1,"tool_seconds":1},{"prompt_tokens":7,"output_tokens":1}]}
{"job":"B","turns":[{"prompt_tokens":3,"output_tokens":1}]}"#;
    let one_seat = SchedulerConfig { max_num_seqs: 1, ..config() };
    let (report, log) = run_logged(one_seat, jobs(list));
    let waits: Vec<[f64; 2]> =
        log.measured.values().map(|m| [m.arrival.seconds(), m.admitted.seconds()]).collect();
    assert_eq!(waits, [[0.0, 0.0], [4.5, 6.0], [0.0, 3.5]], "A, A, B: arrival and first step");
    let wait = agents(&report).wait.unwrap();
    assert_eq!((wait.p50, wait.max), (1.5, 3.5));
    assert_eq!(wait.mean, (0.0 + 1.5 + 3.5) / 3.0);
    let ends = agents(&report).e2e.unwrap();
    // A's second turn finds a block of 4 in the cache and computes 3 tokens: 2.5 s.
    assert_eq!((ends.p50, ends.max), (6.0, 8.5));
}

#[test]
fn turns_that_arrive_together_come_in_the_order_of_their_jobs() {
    // All at 0, and all tools take no time: one step has all first turns, and so they finish together.
    let line = |job: &str| {
        let turn = r#"{"prompt_tokens":4,"output_tokens":1}"#;
        let next = r#"{"prompt_tokens":8,"output_tokens":1}"#;
        format!("{{\"job\":\"{job}\",\"turns\":[{turn},{next}]}}\n")
    };
    let list: String = ["x", "c", "m"].map(line).concat();
    let mut jobs = jobs(&list);
    let mut taken = |now: f64| {
        let mut all = Vec::new();
        while let Some(request) = jobs.next(Time(now)).unwrap() {
            all.push((request.id.0, request.job.unwrap().id));
        }
        // In another order than they came.
        for (id, _) in all.iter().rev() {
            jobs.finished(RequestId(*id), Time(now + 1.0));
        }
        all
    };
    let named =
        |ids: [u64; 3]| ids.into_iter().zip(["x", "c", "m"].map(String::from)).collect::<Vec<_>>();
    assert_eq!(taken(0.0), named([0, 2, 4]));
    assert_eq!(taken(0.5), [], "none has arrived");
    assert_eq!(taken(1.0), named([1, 3, 5]), "the second turns");
    assert_eq!((taken(9.0), jobs.unfinished()), (vec![], 0));
}

pub(super) const SPEC: &str = r#"{"jobs":60,"rate":0.05,"seed":5,"turns":{"uniform":[1,5]},"input":{"uniform":[4,20]},
    "output":{"uniform":[1,8]},"tool_result":{"exponential":8},"shared_prefix":{"tokens":12,"groups":2,"fraction":0.7},
    "priorities":[[0,1],[5,2]],
    "tools":[{"name":"ls","weight":3,"seconds":{"uniform":[0.05,0.1]}},
             {"name":"python","seconds":{"lognormal":{"median":20,"sigma":1}}}]}"#;

#[test]
fn the_same_seed_gives_the_same_simulation_and_another_one_another() {
    let with = |seed| {
        let (report, log) = run_logged(config(), read(SPEC, seed).unwrap());
        (report.to_string(), log)
    };
    assert_eq!(with(None), with(Some(5)), "the specification's own seed");
    assert_ne!(with(None).0, with(Some(6)).0);
}

#[test]
fn two_configurations_get_the_same_jobs() {
    let small = SchedulerConfig { num_gpu_blocks: 40, max_num_seqs: 2, ..config() };
    let policy = |policy| SchedulerConfig { policy, ..small.clone() };
    let configs = [
        config(),
        small.clone(),
        SchedulerConfig { enable_prefix_caching: false, ..config() },
        policy(PolicyKind::Priority),
        policy(PolicyKind::StrictPriority),
    ];
    let runs = configs.map(|config| run_logged(config, jobs(SPEC)));
    let (first, others) = runs.split_first().unwrap();
    // What the jobs ask. A later turn's arrival follows from when the turn before it was served.
    let asked = |log: &Log| {
        let at_0 = |request: &Request| Request { arrival: Time::ZERO, ..request.clone() };
        let requests: Vec<Request> = log.requests.values().map(at_0).collect();
        (requests, log.outputs.clone(), log.tools.clone())
    };
    // Seconds from the end of a turn to the arrival of its job's next one.
    let tool_seconds = |log: &Log| {
        let job = |id: RequestId| log.requests.get(&id)?.job.clone().map(|job| job.id);
        let later = log.requests.iter().filter_map(|(id, request)| {
            let before = RequestId(id.0.checked_sub(1)?);
            (job(before) == job(*id)).then(|| request.arrival - log.finished[&before])
        });
        later.collect::<Vec<f64>>()
    };
    assert_eq!(agents(&first.0).finished, 60);
    assert!(tool_seconds(&first.1).len() > 60, "{}", first.0);
    for (report, log) in others {
        assert_ne!(report.to_string(), first.0.to_string(), "the configuration matters");
        assert_eq!(asked(log), asked(&first.1), "the same requests");
        let (here, there) = (tool_seconds(log), tool_seconds(&first.1));
        assert_eq!(here.len(), there.len());
        for (here, there) in here.into_iter().zip(there) {
            assert!((here - there).abs() < 1e-9, "a tool takes {here} s and {there} s");
        }
        let tools = |report: &Report| agents(report).tools.map(|t| (t.p50, t.p90, t.p99, t.max));
        assert_eq!(tools(report), tools(&first.0), "tool seconds of whole jobs");
    }
}

#[test]
fn arrivals_of_jobs_do_not_depend_on_how_they_are_served() {
    let first_arrivals = |config| {
        let (_, log) = run_logged(config, jobs(SPEC));
        let mut first = HashMap::new();
        for request in log.requests.values() {
            let job = request.job.clone().unwrap().id;
            let arrival = request.arrival.seconds();
            first.entry(job).and_modify(|t: &mut f64| *t = t.min(arrival)).or_insert(arrival);
        }
        first
    };
    let slow = SchedulerConfig { max_num_seqs: 1, ..config() };
    assert_eq!(first_arrivals(config()), first_arrivals(slow));
}

#[test]
fn a_rejected_turn_ends_its_job_and_no_other() {
    let line = |job: &str, second: usize| {
        format!(
            "{{\"job\":\"{job}\",\"turns\":[{{\"prompt_tokens\":8,\"output_tokens\":2,\"tool_seconds\":1}},\
             {{\"prompt_tokens\":{second},\"output_tokens\":2,\"tool_seconds\":1}},\
             {{\"prompt_tokens\":{},\"output_tokens\":2}}]}}\n",
            second + 10
        )
    };
    let list = line("ends", 100) + &line("goes on", 20);
    let short = SchedulerConfig { max_model_len: 64, ..config() };
    let (report, log) = run_logged(short, jobs(&list));
    let agents = agents(&report);
    assert_eq!((agents.jobs, agents.finished, agents.ended_early, agents.turns), (2, 1, 1, 4));
    assert_eq!(
        (report.counts.requests, report.counts.rejected),
        (5, 1),
        "its third turn never comes"
    );
    assert!(report.to_string().contains("2 came, 1 finished, 1 ended early, 4 turns"), "{report}");
    assert_eq!(log.ended_early.keys().copied().collect::<Vec<_>>(), [RequestId(1)]);
}

#[test]
fn a_turn_that_outgrows_the_pool_ends_its_job() {
    // 16 blocks of 4 hold 64 tokens, and this job wants 8 + 100.
    let list = r#"{"job":"a","turns":[{"prompt_tokens":8,"output_tokens":100},{"prompt_tokens":108,"output_tokens":1}]}"#;
    let small = SchedulerConfig { num_gpu_blocks: 17, max_model_len: 4096, ..config() };
    let report = run(small, jobs(list));
    let agents = agents(&report);
    assert_eq!((agents.jobs, agents.finished, agents.ended_early, agents.turns), (1, 0, 1, 0));
    assert_eq!((report.counts.requests, report.counts.cut_short), (1, 1));
    assert_eq!(agents.e2e, None);
}

/// Lines without an end.
struct Endless;

impl Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let line = b"{\"job\":\"a\",\"turns\":[{\"prompt_tokens\":4,\"output_tokens\":1}]}\n";
        let n = line.len().min(into.len());
        assert_eq!(n, line.len(), "the reader's buffer takes a line");
        into[..n].copy_from_slice(&line[..n]);
        Ok(n)
    }
}

#[test]
fn jobs_are_read_and_made_as_they_arrive() {
    let list =
        AgentJobs::read(Box::new(BufReader::new(Endless)), Some(1.0), Some(50), None).unwrap();
    assert_eq!(agents(&run(config(), list)).finished, 50);

    // A specification of more jobs than any memory holds, of which the first are taken.
    let spec = SPEC.replace("\"jobs\":60", "\"jobs\":1000000000000");
    let mut jobs = jobs(&spec);
    let (mut turns, mut most) = (0, 0);
    while turns < 10_000 {
        let now = jobs.next_arrival().unwrap().expect("there are more");
        while let Some(request) = jobs.next(now).unwrap() {
            most = most.max(jobs.unfinished());
            jobs.finished(request.id, now + 0.5);
            turns += 1;
        }
    }
    assert!(most < 50, "{most} jobs at once, of those that arrive every 20 s and take a minute");
}

#[test]
fn jobs_that_wait_for_a_seat_are_not_made_yet() {
    let spec = SPEC
        .replace("\"jobs\":60", "\"jobs\":2000")
        .replace("\"turns\":{\"uniform\":[1,5]}", "\"turns\":{\"constant\":1}");
    let all =
        AgentJobs::read(Box::new(Cursor::new(spec)), Some(f64::INFINITY), None, None).unwrap();
    let (report, log) = run_logged(config(), all);
    assert_eq!(agents(&report).finished, 2000);
    assert!(log.most_unfinished <= 8 + 2 * 8 + 2, "{} jobs at once", log.most_unfinished);
}

#[test]
fn a_bad_file_of_jobs_says_where() {
    let told = |file: &str| {
        let read = read(file, None).map(|jobs| planner(config()).run(jobs));
        match read {
            Err(e) | Ok(Err(PlanError::Workload(e))) => e.to_string(),
            other => panic!("{file}: {:?}", other.map(|ran| ran.map(|report| report.to_string()))),
        }
    };
    let turn = r#"{"prompt_tokens":4,"output_tokens":1}"#;
    let line = |turns: &str| format!("{{\"job\":\"a\",\"turns\":[{turns}]}}");
    let spec = |from: &str, to: &str| {
        assert!(SPEC.contains(from), "{from}");
        SPEC.replace(from, to)
    };
    let cases = [
        (String::new(), "the file of jobs is empty"),
        ("\n \n".into(), "empty"),
        (line(""), "line 1: turns: must be 1 to 65536, got 0"),
        (
            line(&format!("{turn},{turn}")),
            "turns[1].prompt_tokens must be at least 5, the conversation so far, got 4",
        ),
        (
            line(r#"{"prompt_tokens":4,"output_tokens":0}"#),
            "turns[0].output_tokens must be at least 1",
        ),
        (
            line(r#"{"prompt_tokens":4,"output_tokens":1,"tool_seconds":-1}"#),
            "tool_seconds must be from 0 to 1e9 seconds, got -1",
        ),
        (
            line(r#"{"prompt_tokens":"x","output_tokens":1}"#),
            "must be a number of tokens or a list",
        ),
        (line(r#"{"prompt_tokens":4,"output_tokens":1,"tol":"ls"}"#), "unknown field `tol`"),
        (
            line(r#"{"prompt_tokens":4,"output_tokens":1,"command":"ls"}"#),
            "turns[0].command needs a tool that runs it",
        ),
        (line(&turn.replace('4', "99999999")), "turn 1 of job 1 is too long"),
        (
            format!("{}\n{}", line(turn).replace("\"job\"", "\"arrival\":2,\"job\""), line(turn)),
            "line 2: arrival 0 is before the previous one, 2",
        ),
        (spec("\"jobs\":60", "\"jobs\":-1"), "jobs"),
        (spec("\"rate\":0.05", "\"rate\":0"), "the request rate must be above 0"),
        (spec("\"uniform\":[1,5]", "\"uniform\":[5,1]"), "turns: uniform must be"),
        (
            spec("\"uniform\":[1,5]", "\"constant\":70000"),
            "turns: must be at most 65536, got 70000",
        ),
        (
            spec("\"uniform\":[0.05,0.1]", "\"constant\":-1"),
            "tools: ls: constant must be from 0 to 1e9",
        ),
        (spec("\"weight\":3", "\"weight\":-3"), "tools: each weight"),
        (spec("\"groups\":2", "\"groups\":0"), "shared_prefix.groups: must be at least 1"),
        (spec("[[0,1],[5,2]]", "[[0,0]]"), "priorities: each weight"),
        (spec("\"input\"", "\"imput\""), "imput"),
    ];
    for (file, want) in cases {
        let got = told(&file);
        assert!(got.contains(want), "{file}: told `{got}`, which does not say `{want}`");
    }
}

/// A list of jobs: for each the turns' (tokens added, output tokens, tool milliseconds).
fn a_list() -> impl Strategy<Value = Vec<Vec<(usize, usize, u32)>>> {
    let turn = (1usize..30, 1usize..10, 0u32..40_000);
    prop::collection::vec(prop::collection::vec(turn, 1..6), 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_turn_gets_its_tokens_and_comes_after_its_tool(
        list in a_list(),
        rate in prop::sample::select(vec![0.01, 0.2, f64::INFINITY]),
        blocks in 60usize..120,
        seats in 1usize..9,
        policy in prop::sample::select(PolicyKind::ALL.to_vec()),
        host_memory in prop::option::of((0u64..4096, prop::option::of(1f64..100.0))),
    ) {
        let mut file = String::new();
        let (mut turns, mut prompt_tokens, mut output_tokens) = (0, 0, 0);
        for (number, job) in list.iter().enumerate() {
            let mut history = 0;
            let lines = job.iter().map(|(added, output, tool)| {
                history += added;
                let line = format!(
                    r#"{{"prompt_tokens":{history},"output_tokens":{output},"tool_seconds":{}}}"#,
                    f64::from(*tool) / 1000.0
                );
                turns += 1;
                prompt_tokens += history as u64;
                output_tokens += *output as u64;
                history += output;
                line
            });
            let lines: Vec<_> = lines.collect();
            file += &format!("{{\"job\":\"{number}\",\"priority\":{},\"turns\":[{}]}}\n", number % 3, lines.join(","));
        }
        let jobs = AgentJobs::read(Box::new(Cursor::new(file)), Some(rate), None, None).unwrap();
        let config = SchedulerConfig { policy, num_gpu_blocks: blocks, max_num_seqs: seats, ..config() };
        let config = SchedulerConfig { max_model_len: 232, ..config };
        let cost = CostModel { load_bytes_per_second: host_memory.and_then(|(_, rate)| rate), ..COST };
        let mut planner = Planner::new(config, cost, Goodput::default()).unwrap();
        if let Some((bytes, _)) = host_memory {
            planner = planner.with_host_memory(bytes);
        }
        let log = Rc::new(RefCell::new(Log::default()));
        let report = planner.run(Logged { jobs, log: log.clone() }).unwrap_or_else(|e| panic!("{e}"));
        let log = log.take();
        let agents = agents(&report);
        prop_assert_eq!((agents.jobs, agents.finished), (list.len() as u64, list.len() as u64), "{}", report);
        prop_assert_eq!((agents.turns, report.counts.finished), (turns, turns));
        prop_assert_eq!((report.counts.prompt_tokens, report.counts.output_tokens), (prompt_tokens, output_tokens));
        let (first, later) = (agents.first_turns, agents.later_turns);
        prop_assert_eq!(first.prompt_tokens + later.prompt_tokens, prompt_tokens);
        let mut id = 0;
        for job in &list {
            for (turn, (_, output, _)) in job.iter().enumerate() {
                let at = log.measured[&RequestId(id)];
                prop_assert_eq!(at.output_tokens, *output);
                prop_assert!(at.arrival <= at.admitted && at.admitted < at.first_token);
                if turn > 0 {
                    let tool = f64::from(job[turn - 1].2) / 1000.0;
                    prop_assert_eq!(at.arrival, log.finished[&RequestId(id - 1)] + tool, "turn {}", turn);
                }
                id += 1;
            }
        }
        prop_assert!(agents.e2e.unwrap().max <= report.seconds + 1e-9);
    }
}
