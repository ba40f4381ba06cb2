//! What Rust's test runner and proptest really print (1.95 and 1.12), shortened.

use super::*;

fn of(output: &str) -> Complaint {
    understand(&Verdict::Failed(output.into()), "norms_agree", "l1.rms_norm").unwrap()
}

#[test]
fn the_own_blank_is_not_written_yet_wherever_it_is_reached() {
    let plain = "\nthread 'norms_agree' (7) panicked at l1-tensor/src/ops/rms_norm.rs:41:5:\n\
        not yet implemented: exercise l1.rms_norm, chapter l1-tensors/ops.md\n\
        note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n";
    let place = Some("l1-tensor/src/ops/rms_norm.rs:41".to_string());
    assert_eq!(of(plain), Complaint::NotWritten { place: place.clone() });

    let on_a_pool_thread = plain.replace("norms_agree", "strata-3").to_string()
        + "\nthread 'norms_agree' (9) panicked at l1-tensor/tests/ops_norm.rs:2:1:\n\
           a thread of the pool panicked\n";
    assert_eq!(of(&on_a_pool_thread), Complaint::NotWritten { place: place.clone() });

    let in_a_property = plain.to_string()
        + "\nthread 'norms_agree' (7) panicked at l1-tensor/tests/ops_norm.rs:2:1:\n\
           Test failed: not yet implemented: exercise l1.rms_norm, chapter l1-tensors/ops.md.\n\
           minimal failing input: a = 0, b = 0\n\tsuccesses: 0\n\tlocal rejects: 0\n";
    assert_eq!(of(&in_a_property), Complaint::NotWritten { place });
}

#[test]
fn a_blank_of_another_exercise_is_named() {
    let output = "\nthread 'norms_agree' (7) panicked at .strata/x/src/rope.rs:9:5:\n\
        not yet implemented: exercise l1.rope, chapter l1-tensors/ops.md\n";
    let place = Some(".strata/x/src/rope.rs:9".to_string());
    assert_eq!(of(output), Complaint::OtherBlank { id: "l1.rope".into(), place });
}

#[test]
fn left_is_what_came_and_right_what_was_expected() {
    let output = "\nthread 'norms_agree' (1) panicked at l1-tensor/tests/x.rs:30:11:\n\
        assertion `left == right` failed: the sorted numbers, in words\n  left: [1, 2, 3]\n \
        right: [1, 2, 4]\nnote: run with `RUST_BACKTRACE=1` environment variable to display\n";
    let expected = Complaint::Unequal {
        about: "the sorted numbers, in words".into(),
        expected: "[1, 2, 4]".into(),
        got: "[1, 2, 3]".into(),
        place: Some("l1-tensor/tests/x.rs:30".into()),
        input: None,
    };
    assert_eq!(of(output), expected);
    let Complaint::Unequal { about, .. } =
        of(&output.replace(": the sorted numbers, in words", ""))
    else {
        panic!()
    };
    assert_eq!(about, "two values that should be equal");
}

#[test]
fn a_message_in_the_words_of_the_test_is_kept_line_by_line() {
    let message = "rms_norm on avx2, x [3, 64]: 188 of 192 elements are wrong\n  worst at  [2, 17]\n  \
        expected  0.12345\n  got       0.45678\n  off by    0.33333 (allowed 1e-6)";
    let output = format!(
        "noise of the test\n\nthread 'norms_agree' (1) panicked at l1-tensor/tests/s.rs:6:21:\n\
         {message}\nnote: run with `RUST_BACKTRACE=1` environment variable\n"
    );
    let place = Some("l1-tensor/tests/s.rs:6".to_string());
    assert_eq!(of(&output), Complaint::Said { message: message.into(), place, input: None });
}

#[test]
fn a_property_gives_its_reason_and_its_smallest_input() {
    let head = "proptest: FileFailurePersistence::SourceParallel set, but failed to find lib.rs\n\n\
        thread 'norms_agree' (1) panicked at l1-tensor/tests/p.rs:6:21:\nlarger case\n\n\
        thread 'norms_agree' (1) panicked at l1-tensor/tests/p.rs:2:1:\n";
    let tail = "\nminimal failing input: a = 11, v = []\n\tsuccesses: 0\n\tlocal rejects: 0\n\
        \tglobal rejects: 0\n\n";
    let input = Some("a = 11, v = []".to_string());

    let panicked = format!("{head}Test failed: it is wrong\n  got  0.2.{tail}");
    let place = Some("l1-tensor/tests/p.rs:6".to_string());
    let message = "it is wrong\n  got  0.2".to_string();
    assert_eq!(
        of(&panicked),
        Complaint::Said { message, place: place.clone(), input: input.clone() }
    );

    let asserted =
        format!("{head}Test failed: 20 is not below 20 at l1-tensor/tests/p.rs:18.{tail}");
    let message = "20 is not below 20".to_string();
    let at = Some("l1-tensor/tests/p.rs:18".to_string());
    assert_eq!(of(&asserted), Complaint::Said { message, place: at.clone(), input: input.clone() });

    let unequal = |about: &str, place: &Option<String>| Complaint::Unequal {
        about: about.into(),
        expected: "21".into(),
        got: "20".into(),
        place: place.clone(),
        input: input.clone(),
    };
    let with_words = format!(
        "{head}Test failed: assertion failed: `(left == right)` \n  left: `20`, \n right: `21`: \
         a is 21 at l1-tensor/tests/p.rs:18.{tail}"
    );
    assert_eq!(of(&with_words), unequal("a is 21", &at));
    let without = format!(
        "{head}Test failed: assertion failed: `(left == right)` \n  left: `20`,\n right: `21` at \
         l1-tensor/tests/p.rs:18.{tail}"
    );
    assert_eq!(of(&without), unequal("two values that should be equal", &at));
    let of_std = format!(
        "{head}Test failed: assertion `left == right` failed: what was looked at\n  left: 20\n \
         right: 21.{tail}"
    );
    assert_eq!(of(&of_std), unequal("what was looked at", &place));
}

#[test]
fn a_test_that_must_panic_says_what_it_missed() {
    let silent = "note: test did not panic as expected at tests/x.rs:49:4";
    let Complaint::Said { message, .. } = of(silent) else { panic!() };
    assert!(message.contains("refused"), "{message}");
    let other = "\nthread 'should' (1) panicked at tests/x.rs:46:15:\nhay\n\
        note: panic did not contain expected string\n      panic message: \"hay\"\n \
        expected substring: \"needle\"";
    let Complaint::Unequal { expected, got, .. } = of(other) else { panic!() };
    assert_eq!((expected.as_str(), got.as_str()), ("\"needle\"", "\"hay\""));
}

#[test]
fn a_panic_on_purpose_is_not_taken_for_the_reason() {
    let output = "\nthread 'pool-1' (2) panicked at l1-tensor/tests/pool.rs:9:9:\non purpose\n\n\
        thread 'norms_agree' (1) panicked at l1-tensor/tests/pool.rs:12:5:\nthe pool is dead\n";
    let Complaint::Said { message, .. } = of(output) else { panic!() };
    assert_eq!(message, "the pool is dead");
    // Passed on without a message of its own: what the other thread said is all there is.
    let (only_other, _) = output.split_once("\n\nthread 'norms").unwrap();
    let Complaint::Said { message, .. } = of(only_other) else { panic!() };
    assert_eq!(message, "on purpose");
}

#[test]
fn an_error_that_a_test_returns_is_its_reason() {
    let Complaint::Said { message, place, .. } = of("noise\nError: \"no such tensor\"") else {
        panic!()
    };
    assert_eq!((message.as_str(), place), ("Error: \"no such tensor\"", None));
}

#[test]
fn places_outside_of_the_workspace_are_not_shown() {
    let output = "\nthread 'norms_agree' (1) panicked at /rustc/59/library/core/src/x.rs:9:5:\nm\n";
    assert_eq!(of(output), Complaint::Said { message: "m".into(), place: None, input: None });
}

#[test]
fn a_program_that_dies_says_how_in_words() {
    let died = |how: &str, output: &str| {
        let verdict = Verdict::Died { how: how.into(), output: output.into() };
        understand(&verdict, "norms_agree", "l1.rms_norm").unwrap()
    };
    let overflow = "\nthread 'norms_agree' (9) has overflowed its stack\n\
        fatal runtime error: stack overflow, aborting\n";
    let Complaint::Died { how, .. } = died("signal: 6 (SIGABRT)", overflow) else { panic!() };
    assert!(how.starts_with("the stack overflowed"), "{how}");
    let Complaint::Died { how, .. } = died("signal: 11 (SIGSEGV)", "") else { panic!() };
    assert!(how.contains("memory that is not its own"), "{how}");
    let twice = "\nthread 'norms_agree' (1) panicked at l1-tensor/src/a.rs:3:27:\nfirst message\n\
        stack backtrace:\n   0: 0x55\nthread caused non-unwinding panic. aborting.\n";
    let Complaint::Died { how, message, .. } = died("signal: 6 (SIGABRT)", twice) else { panic!() };
    assert_eq!((how.as_str(), message.as_deref()), ("signal: 6 (SIGABRT)", Some("first message")));
    let blank = "thread 'w' (1) panicked at l1-tensor/src/a.rs:3:27:\n\
        not yet implemented: exercise l1.rms_norm, chapter c.md\n";
    assert!(matches!(died("signal: 6 (SIGABRT)", blank), Complaint::NotWritten { .. }));
}

#[test]
fn what_needs_no_output_is_told_apart() {
    let say = |verdict| understand(&verdict, "t", "l1.a");
    assert_eq!(say(Verdict::Passed), None);
    assert_eq!(say(Verdict::Hung), Some(Complaint::Endless));
    assert_eq!(say(Verdict::Missing), Some(Complaint::Missing));
}
