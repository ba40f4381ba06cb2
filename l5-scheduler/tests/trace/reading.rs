//! Files that are no recordings, or were.

use l5_scheduler::trace::{self, Run, TraceError};

use crate::world::{World, crowded, request, small};

fn read(text: &str) -> Result<Run, TraceError> {
    trace::read(text.as_bytes()).and_then(|reader| Run::read(reader, usize::MAX))
}

fn fails(text: &str, expected: &str) {
    let error = read(text).unwrap_err().to_string();
    assert!(error.contains(expected), "\n  expected  .. {expected} ..\n  got       {error}");
}

#[test]
fn an_empty_file_says_so() {
    fails("", "the recording is empty");
}

#[test]
fn a_foreign_file_is_no_recording() {
    fails("hello\n", "line 1 is not the beginning of a recorded run");
    fails("{\"strata_block_trace\":1,\"num_blocks\":4}\n", "missing field `strata_trace`");
    fails("[]\n", "line 1 is not the beginning");
    fails("{\"strata_trace\":1}\n", "missing field `policy`");
    fails("{\"strata_trace\":7}\n", "version 7, but only versions 1 and 2 can be read");
}

#[test]
fn a_recording_that_breaks_off_anywhere_names_the_line() {
    let mut world = World::new(small());
    world.core.add_request(request(0, 3, 2, 0.0), ()).unwrap();
    let (text, _) = world.finish();
    let lines: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    for cut in 1..text.len() {
        let line = text[..cut].lines().count();
        // A line is whole with and without its end.
        let whole = lines.contains(&cut) || lines.contains(&(cut - 1));
        match read(&text[..cut]) {
            Ok(_) => assert!(whole, "cut at {cut}, in line {line}, it was read"),
            Err(TraceError::CutShort { line: told }) => assert_eq!(told, line, "cut at {cut}"),
            Err(TraceError::NotARecording { .. }) => assert_eq!(line, 1, "cut at {cut}"),
            Err(other) => panic!("cut at {cut}: {other}"),
        }
        assert_eq!(read(&text[..cut]).is_ok(), whole, "cut at {cut}");
    }
}

#[test]
fn a_line_that_is_no_event_is_named() {
    let (text, _) = crowded().finish();
    let lines: Vec<&str> = text.lines().collect();
    let with = |line: &str| [&lines[..4], &[line], &lines[4..]].concat().join("\n");
    fails(&with("{}"), "line 5 is not an event");
    fails(&with("{\"event\":\"lunch\"}"), "line 5 is not an event: unknown variant `lunch`");
    fails(&with("garbage"), "line 5 is not an event");
    fails(&with(""), "line 5 is not an event");
}

#[test]
fn numbers_beyond_all_clocks_do_no_harm() {
    let (text, _) = crowded().finish();
    for wild in ["-5.0", "1e300", "1e18"] {
        let run = read(&text.replace("\"at_us\":2000.0", &format!("\"at_us\":{wild}"))).unwrap();
        let mut before = 0;
        for step in &run.steps {
            assert!(before <= step.start && step.start <= step.end, "{wild}: {step:?}");
            before = step.start;
        }
    }
}

#[test]
fn a_long_run_is_read_as_far_as_is_wanted() {
    let (text, results) = crowded().finish();
    let run = Run::read(trace::read(text.as_bytes()).unwrap(), 5).unwrap();
    assert_eq!(
        (run.steps.len(), run.left_out),
        (5, results.len() - 5),
        "steps, and those left out"
    );
}
