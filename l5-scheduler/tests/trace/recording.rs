//! What a recorder writes of a run, held against what the engine said of it.

use std::collections::HashMap;
use std::io::{self, Write};

use l5_scheduler::trace::{self, Event, Recorder, RowDrafts, RowPhase, SpanKind, Summary};
use l5_scheduler::{
    ExecuteError, Job, Note, PolicyContext, Request, RequestId, RequestView, Retain, Retention,
    Scheduler, SchedulerConfig,
};

use crate::world::{World, crowded, events, request, run_of, small, steps};

#[test]
fn every_step_is_recorded_as_the_engine_tells_it() {
    let (text, results) = crowded().finish();
    let steps = steps(&text);
    assert_eq!(steps.len(), results.len(), "steps");
    for (step, result) in steps.iter().zip(&results) {
        let at = format!("step {}", result.step);
        assert_eq!(step.step, result.step, "{at}: its number");
        assert_eq!(step.at_us, result.step as f64 * 1000.0, "{at}: when it was planned");
        assert_eq!(step.rows.len(), result.scheduled, "{at}: rows");
        assert_eq!(step.tokens(), result.scheduled_tokens, "{at}: tokens");
        let told: HashMap<u64, usize> =
            result.new_tokens().map(|(id, tokens)| (id.0, tokens.len())).collect();
        let rows = step.rows.iter().filter(|row| row.new > 0);
        let recorded: HashMap<u64, usize> = rows.map(|row| (row.id, row.new)).collect();
        assert_eq!(recorded, told, "{at}: who has new tokens");
        let ids = |ids: &[RequestId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!(step.preempted, ids(&result.preempted), "{at}: who was preempted");
        let ends = result.finished.iter().map(|(id, why)| (id.0, why.to_string()));
        assert_eq!(step.finished, ends.collect::<Vec<_>>(), "{at}: who ended");
        let total = result.phases.total().as_nanos() as f64 / 1000.0;
        assert!((step.duration_us() - total).abs() < 0.01, "{at}: {} us", step.duration_us());
        assert_eq!((step.phases_us.forward, step.phases_us.sample), (100.0, 20.0), "{at}");
        assert!(step.kv.free <= step.kv.total && step.kv.total == 8, "{at}: {:?}", step.kv);
    }
    let preempted: usize = results.iter().map(|result| result.preempted.len()).sum();
    assert!(preempted > 0, "a pool this small makes somebody give way");
}

#[test]
fn rows_with_drafts_are_recorded_as_such() {
    let mut world = World::new(SchedulerConfig { num_speculative_tokens: 2, ..small() });
    world.core.add_request(request(0, 5, 8, 0.0), ()).unwrap();
    let (text, results) = world.finish();
    // A prompt; then rows of a token and the drafts 7 and 8, of which the first is right; the last row has room for one
    // output token and none for drafts.
    let rows: Vec<_> = steps(&text).iter().flat_map(|step| step.rows.clone()).collect();
    let told = rows.iter().map(|row| (row.phase, row.tokens, row.new));
    let verify = (RowPhase::Verify, 3, 2);
    let want = [(RowPhase::Prefill, 5, 1), verify, verify, verify, (RowPhase::Decode, 1, 1)];
    assert_eq!(told.collect::<Vec<_>>(), want, "phase, tokens and new tokens of each row");
    let drafts = results.iter().map(|result| (result.draft_tokens, result.accepted_tokens));
    assert_eq!(drafts.collect::<Vec<_>>(), [(0, 0), (2, 1), (2, 1), (2, 1), (0, 0)]);
    let recorded = steps(&text).into_iter().map(|step| step.drafts).collect::<Vec<_>>();
    let one = vec![RowDrafts { row: 0, proposed: 2, accepted: 1 }];
    assert_eq!(recorded, [vec![], one.clone(), one.clone(), one, vec![]], "drafts of each step");
    let decoded: usize = run_of(&text).steps.iter().map(|step| step.decode_tokens).sum();
    assert_eq!(decoded, 3 * 3 + 1, "tokens of rows that decode, drafts included");
}

#[test]
fn the_drafts_of_every_row_add_up_to_what_the_scheduler_counts() {
    let mut world = World::new(SchedulerConfig { num_speculative_tokens: 2, ..small() });
    for (id, max_tokens) in [(0, 9), (1, 6), (2, 4)] {
        world.core.add_request(request(id, 3 + id as u32, max_tokens, 0.0), ()).unwrap();
    }
    let (text, results) = world.finish();
    let recorded = steps(&text);
    for (step, result) in recorded.iter().zip(&results) {
        let sum = step.drafts.iter().fold((0, 0), |(proposed, accepted), row| {
            (proposed + row.proposed, accepted + row.accepted)
        });
        assert_eq!(sum, (result.draft_tokens, result.accepted_tokens), "step {}", step.step);
        for drafts in &step.drafts {
            let row = step.rows[drafts.row];
            assert_eq!(row.phase, RowPhase::Verify);
            // Without a guide, a row gives its accepted drafts and one token behind them.
            assert_eq!(row.new, drafts.accepted + 1, "step {}", step.step);
        }
    }
    assert!(
        recorded.iter().any(|step| step.drafts.len() > 1),
        "several rows with drafts in a step"
    );
    let (run, summary) = (run_of(&text), Summary::of(&run_of(&text)));
    let all = |of: fn(&l5_scheduler::StepResult) -> usize| results.iter().map(of).sum::<usize>();
    let (drafts, accepted) = (all(|r| r.draft_tokens), all(|r| r.accepted_tokens));
    assert_eq!((summary.draft_tokens, summary.accepted_tokens), (drafts, accepted));
    assert_eq!(run.lanes.iter().map(|lane| lane.drafts).sum::<usize>(), drafts);
    assert_eq!(run.lanes.iter().map(|lane| lane.accepted).sum::<usize>(), accepted);
    let text = summary.to_string();
    let line = text.lines().find(|line| line.starts_with("drafts")).expect("a line of drafts");
    assert!(
        line.contains(&format!("in {} rows; {accepted} accepted", summary.drafted_rows)),
        "{line}"
    );
    assert!(line.ends_with("mean acceptance length 2.00"), "one of each row was right: {line}");
}

#[test]
fn a_request_is_heard_of_from_its_arrival_to_its_end() {
    let (text, _) = crowded().finish();
    let mut told: HashMap<u64, Vec<String>> = HashMap::new();
    for event in events(&text) {
        let (id, what) = match event {
            Event::Arrived { id, prompt, .. } => (id, format!("arrived with {prompt}")),
            Event::Rejected { id, reason, .. } => (id, format!("rejected: {reason}")),
            Event::FirstToken { id, .. } => (id, "first token".to_owned()),
            Event::Ended { id, reason, tokens, .. } => {
                (id, format!("ended with {tokens}: {reason}"))
            }
            Event::Step(_) => continue,
        };
        told.entry(id).or_default().push(what);
    }
    for id in 0..3 {
        let life = ["arrived with 8", "first token", "ended with 12: length"];
        assert_eq!(told[&id], life, "request {id}");
    }
    assert_eq!(told[&3], ["arrived with 14", "first token", "ended with 3: length"], "request 3");
    assert_eq!(told[&9], ["rejected: empty_prompt"], "request 9");
}

#[test]
fn the_sums_of_a_run_are_those_of_its_requests() {
    let (text, results) = crowded().finish();
    let summary = Summary::of(&run_of(&text));
    assert_eq!(summary.new_tokens, 3 * 12 + 3, "tokens that were chosen");
    assert_eq!(summary.steps, results.len(), "steps");
    assert_eq!((summary.requests, summary.unfinished), (5, 0), "requests");
    let ends: Vec<_> = summary.ends.iter().map(|(why, n)| (why.as_str(), *n)).collect();
    assert_eq!(ends, [("empty_prompt", 1), ("length", 4)], "ends");
    // Whatever is fed is a prompt's token, or again what was fed before, or the last token of an answer.
    let fed: usize = results.iter().map(|result| result.scheduled_tokens).sum();
    let decoded: usize = run_of(&text).steps.iter().map(|step| step.decode_tokens).sum();
    assert_eq!(summary.prefill_tokens + summary.resumed_tokens + decoded, fed, "tokens fed");
    assert!(summary.resumed_tokens > 0 && summary.mixed > 0, "{summary:?}");
    assert!((summary.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{:?}", summary.shares);
}

#[test]
fn without_preemption_a_prompt_is_prefilled_once_and_each_other_token_decoded() {
    let mut world = World::new(small());
    world.core.add_request(request(0, 20, 5, 0.0), ()).unwrap();
    let (text, _) = world.finish();
    let rows: Vec<_> = steps(&text).iter().flat_map(|step| step.rows.clone()).collect();
    let rows: Vec<_> =
        rows.iter().map(|row| (row.phase, row.tokens, row.computed, row.new)).collect();
    let decode = |computed| (RowPhase::Decode, 1, computed, 1);
    let first = [(RowPhase::Prefill, 12, 0, 0), (RowPhase::Prefill, 8, 12, 1)];
    assert_eq!(rows, [&first[..], &[20, 21, 22, 23].map(decode)].concat(), "its rows");
}

#[test]
fn a_lane_says_what_its_request_did_from_when_to_when() {
    let run = run_of(&crowded().finish().0);
    let lane = run.lanes.iter().find(|lane| lane.preemptions > 0).expect("somebody gave way");
    let kinds: Vec<SpanKind> = lane.spans.iter().map(|span| span.kind).collect();
    assert_eq!(kinds[0], SpanKind::Queued, "{kinds:?}");
    let gave_way = kinds.iter().position(|kind| *kind == SpanKind::Preempted).unwrap();
    assert_eq!(kinds[gave_way + 1], SpanKind::Resumed, "{kinds:?}");
    for lane in &run.lanes {
        for pair in lane.spans.windows(2) {
            assert!(pair[0].end <= pair[1].start, "request {}: {pair:?}", lane.id);
            assert!(pair[0].to <= pair[1].from, "request {}: {pair:?}", lane.id);
            assert!(pair[0].start <= pair[0].end && pair[0].from <= pair[0].to, "{pair:?}");
        }
    }
}

#[test]
fn a_step_that_failed_is_told_of_and_counts_for_nothing() {
    let mut world = World::new(small());
    world.core.executor_mut().fails = vec![1];
    world.core.add_request(request(0, 8, 3, 0.0), ()).unwrap();
    let (text, _) = world.finish();
    let failed: Vec<u64> =
        steps(&text).iter().filter(|step| step.abandoned).map(|step| step.step).collect();
    assert_eq!(failed, [1], "steps that failed");
    let summary = Summary::of(&run_of(&text));
    assert_eq!((summary.steps, summary.abandoned, summary.new_tokens), (3, 1, 3), "{summary:?}");
}

#[test]
fn who_is_aborted_while_waiting_has_an_end() {
    let mut world = World::new(small());
    for id in 0..5 {
        world.core.add_request(request(id, 8, 4, 0.0), ()).unwrap();
    }
    world.step();
    assert!(world.core.abort(RequestId(4)), "request 4 was there");
    let run = run_of(&world.finish().0);
    let lane = run.lanes.iter().find(|lane| lane.id == 4).unwrap();
    assert_eq!(lane.end.as_ref().map(|end| end.reason.as_str()), Some("abort"), "how it ended");
    assert_eq!(lane.spans.len(), 1, "it did nothing but wait: {:?}", lane.spans);
}

#[test]
fn the_first_line_says_what_ran() {
    let (text, _) = crowded().finish();
    let reader = trace::read(text.as_bytes()).unwrap();
    let header = reader.header();
    assert_eq!((header.model.as_deref(), header.policy.as_str()), (Some("sayer"), "fcfs"));
    assert_eq!((header.config.block_size, header.config.num_gpu_blocks), (4, 9));
}

#[test]
fn lines_are_written_again_as_they_were_read() {
    let (text, _) = crowded().finish();
    let header = serde_json::to_string(trace::read(text.as_bytes()).unwrap().header()).unwrap();
    let lines = events(&text).into_iter().map(|event| serde_json::to_string(&event).unwrap());
    let again: Vec<String> = std::iter::once(header).chain(lines).collect();
    assert_eq!(again, text.lines().collect::<Vec<_>>(), "the lines");
}

/// A disk with no room.
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other("no space left"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_told_of_at_the_end_and_stops_nobody() {
    let mut world = World::new(small());
    let recorder = Recorder::new(Full);
    world.core.set_observer(Some(recorder.observer()));
    world.core.add_request(request(0, 8, 3, 0.0), ()).unwrap();
    while world.core.has_unfinished() {
        world.step();
    }
    assert_eq!(world.results.len(), 3, "steps");
    assert_eq!(recorder.finish().unwrap_err().to_string(), "no space left");
}

/// What a recording has of each request of this id: tokens of its prompt, number of its output tokens, how it ended.
fn lives(text: &str, of: u64) -> Vec<(usize, usize, String)> {
    let mut lives = Vec::new();
    for event in events(text) {
        match event {
            Event::Arrived { id, prompt, .. } if id == of => lives.push((prompt, 0, String::new())),
            Event::Ended { id, reason, tokens, .. } if id == of => {
                let life = lives.last_mut().expect("it arrived");
                assert_eq!(life.2, "", "a request ends once");
                (life.1, life.2) = (tokens, reason);
            }
            _ => {}
        }
    }
    lives
}

#[test]
fn requests_that_have_one_id_one_after_the_other_are_told_apart() {
    let mut world = World::new(small());
    world.core.add_request(request(1, 5, 9, 0.0), ()).unwrap();
    (0..3).for_each(|_| world.step());
    for (prompt, max_tokens) in [(6, 4), (7, 2)] {
        // Its end is in the next result, and that request's successor arrives before it.
        assert!(world.core.abort(RequestId(1)));
        world.core.add_request(request(1, prompt, max_tokens, 0.003), ()).unwrap();
    }
    let (text, results) = world.finish();
    let ends = results.iter().flat_map(|result| &result.finished).count();
    assert_eq!(ends, 3, "ends in the results");
    let life = |prompt, tokens, why: &str| (prompt, tokens, why.to_owned());
    let want = [life(5, 3, "abort"), life(6, 0, "abort"), life(7, 2, "length")];
    assert_eq!(lives(&text, 1), want);
    let run = run_of(&text);
    assert_eq!(run.lanes.iter().map(|lane| lane.prompt).collect::<Vec<_>>(), [5, 6, 7], "lanes");
    let finished = run.steps.iter().flat_map(|step| &step.finished);
    assert_eq!(
        finished.map(|(lane, _)| *lane).collect::<Vec<_>>(),
        [2],
        "lanes that end in a step"
    );
}

#[test]
fn a_request_that_failed_has_ended_and_its_id_can_be_used_again() {
    let mut world = World::new(small());
    world.core.executor_mut().fails = vec![2];
    world.core.add_request(request(1, 5, 9, 0.0), ()).unwrap();
    (0..3).for_each(|_| world.step());
    world.core.fail_step(&ExecuteError::Malformed("it was told to fail".into()));
    world.core.add_request(request(1, 6, 4, 0.003), ()).unwrap();
    let (text, _) = world.finish();
    let life = |prompt, tokens, why: &str| (prompt, tokens, why.to_owned());
    assert_eq!(lives(&text, 1), [life(5, 2, "error"), life(6, 4, "length")]);
}

/// Keeps what everybody leaves.
struct KeepsAll;

impl Retention for KeepsAll {
    fn retain(&mut self, _: &RequestView<'_>, _: Option<&Note>, _: &PolicyContext<'_>) -> Retain {
        Retain::Keep
    }
}

#[test]
fn a_block_that_two_leases_share_is_one_leased_block() {
    let scheduler = Scheduler::new(small()).unwrap().with_retention(Box::new(KeepsAll));
    let mut world = World::of(scheduler);
    for id in [1, 2] {
        let job = Some(Job { id: format!("job {id}"), last_step: false });
        let asked = Request { id: RequestId(id), job, ..request(7, 9, 1, 0.0) };
        world.core.add_request(asked, ()).unwrap();
        (0..2).for_each(|_| world.step());
    }
    world.core.add_request(request(3, 2, 3, 0.0), ()).unwrap();
    let (text, _) = world.finish();
    let leased: Vec<usize> = steps(&text).iter().map(|step| step.kv.leased).collect();
    assert_eq!(leased, [0, 2, 2, 2, 2, 2, 2], "blocks that are leased when each step is planned");
}

#[test]
fn a_step_that_was_planned_ahead_ends_when_it_was_applied() {
    let mut world = World::new(small());
    assert!(world.core.set_async_scheduling(true));
    world.core.add_request(request(0, 8, 5, 0.0), ()).unwrap();
    let (text, results) = world.finish();
    let steps = steps(&text);
    assert_eq!(steps.len(), 5);
    // Steps are a millisecond apart; the first one was not planned ahead.
    for (step, result) in steps.iter().zip(&results).skip(1) {
        let (end, applied) = (step.at_us + step.duration_us(), 1e6 * result.at.seconds());
        let late = end - applied - step.phases_us.apply;
        assert!(late.abs() < 0.01, "step {} ends {late} us late", step.step);
        assert!(step.at_us > 1e3 * (step.step as f64 - 1.0), "it was planned a step earlier");
    }
    let phases: Vec<_> = steps.iter().map(|step| step.rows[0].phase).collect();
    assert_eq!(phases[0], RowPhase::Prefill);
    assert_eq!(phases[1..], [RowPhase::Decode; 4]);
}

#[test]
fn a_recorder_is_told_of_the_step_that_runs() {
    let mut world = World::new(small());
    assert!(world.core.set_async_scheduling(true));
    world.core.add_request(request(0, 8, 5, 0.0), ()).unwrap();
    world.core.set_observer(None);
    world.step();
    assert!(world.core.is_running());
    world.core.set_observer(Some(world.recorder.observer()));
    let (text, _) = world.finish();
    let numbers: Vec<u64> = steps(&text).iter().map(|step| step.step).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    let ended = events(&text).into_iter().filter(|event| matches!(event, Event::Ended { .. }));
    assert_eq!(ended.count(), 1);
}
