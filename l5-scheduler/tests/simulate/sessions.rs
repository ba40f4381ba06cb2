//! Traces of aiperf's `synthesize agentic-code`, and conversations that begin alike.

use l5_scheduler::Request;
use l5_scheduler::sim::{AgentJobs, Arrivals, Sessions};

use super::agents::{config, jobs, run};

/// Written by hand, in aiperf's format: blocks of 16 tokens; the first two sessions are of one group, and all of them
/// share the first block. The second begins before the first has ended.
const TRACE: &str = concat!(
    r#"{"session_id":"sess-a","input_length":40,"output_length":4,"hash_ids":[0,1,7],"timestamp":0.0,"group_id":4}"#,
    "\n",
    r#"{"session_id":"sess-c","input_length":20,"output_length":1,"hash_ids":[0,5],"timestamp":9000.0,"group_id":5,"is_restart":true}"#,
    "\n\n",
    r#"{"session_id":"sess-a","input_length":20,"output_length":2,"hash_ids":[9,10],"delay":2500.5}"#,
    "\n",
    r#"{"session_id":"sess-b","input_length":48,"output_length":1,"hash_ids":[0,1,8],"timestamp":1000.0,"group_id":4}"#,
    "\n",
);

/// Requests of a file of jobs, each finished as soon as it has arrived.
fn requests(mut jobs: AgentJobs<'_>) -> Vec<Request> {
    let mut all = Vec::new();
    while let Some(now) = jobs.next_arrival().unwrap() {
        while let Some(request) = jobs.next(now).unwrap() {
            jobs.finished(request.id, now);
            all.push(request);
        }
    }
    all
}

#[test]
fn a_trace_is_jobs_whose_turns_have_the_tokens_of_their_blocks() {
    let sessions = Sessions::read(Box::new(TRACE.as_bytes())).unwrap();
    let names: Vec<&str> = sessions.sessions.iter().map(|session| session.id.as_str()).collect();
    assert_eq!((sessions.block_size, names), (16, vec!["sess-a", "sess-b", "sess-c"]));
    assert_eq!(sessions.sessions[0].turns[1].delay, 2.5005);

    let all = requests(jobs(TRACE));
    let [a, b, next, c] = &all[..] else { panic!("{} requests", all.len()) };
    let arrivals = [a, b, next, c].map(|request| request.arrival.seconds());
    assert_eq!(arrivals, [0.0, 1.0, 2.5005, 9.0]);
    assert_eq!([a, b, next, c].map(|request| request.prompt.len()), [40, 48, 40 + 4 + 20, 20]);
    assert_eq!(a.prompt[..32], b.prompt[..32], "blocks 0 and 1");
    assert_ne!(a.prompt[32..40], b.prompt[32..40], "blocks 7 and 8");
    assert_eq!(c.prompt[..16], a.prompt[..16], "block 0");
    assert!(next.prompt.starts_with(&a.prompt));
    let steps = [a, b, next, c].map(|request| request.job.clone().unwrap());
    assert_eq!(steps.clone().map(|job| job.id), ["sess-a", "sess-b", "sess-a", "sess-c"]);
    assert_eq!(steps.map(|job| job.last_step), [false, true, true, true]);
}

#[test]
fn a_bad_trace_says_which_line_and_which_field() {
    let told = |from: &str, to: &str| {
        assert!(TRACE.contains(from), "{from}");
        let read = Sessions::read(Box::new(TRACE.replacen(from, to, 1).as_bytes()));
        read.map(|_| ()).unwrap_err().to_string()
    };
    let cases = [
        (r#""timestamp":9000.0,"#, "", "line 2: timestamp is missing"),
        (r#""timestamp":9000.0"#, r#""timestamp":-1"#, "line 2: timestamp must be from 0"),
        (r#""timestamp":9000.0"#, r#""timestamp":1,"delay":2"#, "line 2: delay: the first turn"),
        (r#","delay":2500.5"#, "", "line 4: delay is missing"),
        ("2500.5", "1e300", "line 4: delay must be from 0"),
        (r#""delay":2500.5"#, r#""delay":1,"timestamp":2"#, "line 4: timestamp: only the first"),
        (r#""input_length":48"#, r#""input_length":0"#, "line 5: input_length must be at least 1"),
        (r#""output_length":2"#, r#""output_length":0"#, "line 4: output_length must be"),
        (
            "[9,10]",
            "[9]",
            "line 4: hash_ids must have an id for each block of input_length, got 1 ids for 20",
        ),
        ("[9,10]", "[9,-1]", "hash_ids[1]"),
        (r#""input_length":20"#, r#""input_length":"x""#, "line 2"),
        (r#""is_restart":true"#, r#""messages":[]"#, "unknown field `messages`"),
    ];
    for (from, to, want) in cases {
        let got = told(from, to);
        assert!(got.contains(want), "{to}: told `{got}`, which does not say `{want}`");
    }
    assert!(Sessions::read(Box::new(&b"\n"[..])).unwrap_err().to_string().contains("empty"));
}

#[test]
fn sessions_of_a_trace_hit_the_blocks_that_they_share() {
    let report = run(config(), jobs(TRACE).with_records());
    let log = report.job_log.unwrap();
    let hits: Vec<Vec<usize>> =
        log.jobs.iter().map(|job| job.turns.iter().map(|turn| turn.hit_tokens).collect()).collect();
    // sess-a has computed 43 tokens before its second turn, in blocks of 4.
    assert_eq!(hits[0], [0, 40]);
    assert_eq!(hits[1], [32], "the two blocks of the group");
    assert_eq!(hits[2], [16], "the block of all");
}

/// Two jobs that have asked the same, and got the same, for their first 21 tokens.
#[test]
fn conversations_can_begin_alike() {
    let job = |name: &str, arrival: u32| {
        format!(
            r#"{{"job":"{name}","arrival":{arrival},"history":{{"id":"h","tokens":21}},"turns":[{{"prompt_tokens":10,"output_tokens":5}},{{"prompt_tokens":18,"output_tokens":6}},{{"prompt_tokens":30,"output_tokens":1}}]}}"#
        )
    };
    let list = format!("{}\n{}\n", job("a", 0), job("b", 1000));
    let all = requests(jobs(&list));
    let alike = |turn: usize| {
        let pairs = all[turn].prompt.iter().zip(&all[3 + turn].prompt);
        pairs.take_while(|(a, b)| a == b).count()
    };
    assert_eq!([alike(0), alike(1), alike(2)], [10, 18, 21], "tokens that begin alike");
    assert!(all[2].prompt.starts_with(&all[1].prompt) && all[1].prompt.starts_with(&all[0].prompt));
    let log = run(config(), jobs(&list).with_records()).job_log.unwrap();
    let hits: Vec<usize> = log.jobs[1].turns.iter().map(|turn| turn.hit_tokens).collect();
    // In blocks of 4, and never the last token. Before its third turn, b has computed 23 tokens of its own.
    assert_eq!(hits, [8, 16, 20]);
}

#[test]
fn an_abandoned_job_has_no_last_step() {
    let list = r#"{"job":"a","abandoned":true,"turns":[{"prompt_tokens":4,"output_tokens":1,"tool":"ls","tool_seconds":1},{"prompt_tokens":8,"output_tokens":1,"tool":"cat"}]}"#;
    let all = requests(jobs(list));
    assert!(all.iter().all(|request| !request.job.as_ref().unwrap().last_step));
    let report = run(config(), jobs(list));
    assert_eq!(report.agents.unwrap().finished, 1, "its turns are served all the same");
}
