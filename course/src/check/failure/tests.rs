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
        input: vec![],
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
    assert_eq!(of(&output), Complaint::Said { message: message.into(), place, input: vec![] });
}

#[test]
fn a_property_gives_its_reason_and_its_smallest_input() {
    let head = "proptest: FileFailurePersistence::SourceParallel set, but failed to find lib.rs\n\n\
        thread 'norms_agree' (1) panicked at l1-tensor/tests/p.rs:6:21:\nlarger case\n\n\
        thread 'norms_agree' (1) panicked at l1-tensor/tests/p.rs:2:1:\n";
    let tail = "\nminimal failing input: a = 11, v = []\n\tsuccesses: 0\n\tlocal rejects: 0\n\
        \tglobal rejects: 0\n\n";
    let input = vec!["a = 11".to_string(), "v = []".to_string()];

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
    assert_eq!(of(output), Complaint::Said { message: "m".into(), place: None, input: vec![] });
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

/// Failures of proptest 1.12, with the line numbers of the tests that were recorded.
fn of_property(reason: &str, input: &str) -> Complaint {
    of(&format!(
        "\nthread 'norms_agree' (13864) panicked at tests/t.rs:12:1:\nTest failed: {reason}.\n\
         minimal failing input: {input}\n\tsuccesses: 4\n\tlocal rejects: 0\n\tglobal rejects: 0\n\n\
         note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace"
    ))
}

#[test]
fn an_input_over_many_lines_is_one_line_for_each_argument() {
    let Complaint::Unequal { about, expected, got, input, .. } = of_property(
        "assertion failed: `(left == right)` \n  left: `9`, \n right: `3`: the length, after 1 of (1.5, 7) at \
         tests/t.rs:16",
        "ops = [\n    (\n        1,\n        7,\n    ),\n], n = 1",
    ) else {
        panic!()
    };
    assert_eq!(about, "the length, after 1 of (1.5, 7)");
    assert_eq!((expected.as_str(), got.as_str()), ("3", "9"));
    assert_eq!(input, ["ops = [(1, 7)]", "n = 1"]);

    let Complaint::Said { message, input, .. } = of_property(
        "too long: 2 at 1 at tests/t.rs:20",
        "load = Load {\n    a: 0.0,\n    v: [\n        0,\n        0,\n    ],\n    name: \"x, y = 3\",\n}, n = 1",
    ) else {
        panic!()
    };
    assert_eq!(message, "too long: 2 at 1");
    assert_eq!(input, ["load = Load { a: 0.0, v: [0, 0], name: \"x, y = 3\" }", "n = 1"]);
}

#[test]
fn bits_are_shown_as_the_floats_that_the_words_have() {
    let sides = |about: &str| {
        let reason = format!(
            "assertion failed: `(left == right)` \n  left: `1075536688`, \n right: `1068942943`{about} at \
             tests/t.rs:18"
        );
        let Complaint::Unequal { expected, got, .. } = of_property(&reason, "v = 1.4279288") else {
            panic!()
        };
        (expected, got)
    };
    let as_floats =
        ("1.4279288 (bits 0x3fb6c65f)".to_string(), "2.427929 (bits 0x401b6330)".to_string());
    assert_eq!(sides(": 2.427929 and 1.4279288"), as_floats);
    assert_eq!(sides(": [2.427929], 1.4279288."), as_floats);
    let as_bits = ("1068942943".to_string(), "1075536688".to_string());
    assert_eq!(sides(": 2.427929 alone"), as_bits);
    assert_eq!(sides(""), as_bits);
    // Whole numbers, which are not the bits of any float that is named.
    let counts = "\nthread 'norms_agree' (1) panicked at x.rs:1:1:\nassertion `left == right` failed: 3 of 4\n  \
        left: 3\n right: 4";
    let Complaint::Unequal { expected, got, .. } = of(counts) else { panic!() };
    assert_eq!((expected.as_str(), got.as_str()), ("4", "3"));
}

#[test]
fn two_values_that_should_differ_are_said_once() {
    let message = |output: &str| {
        let Complaint::Said { message, .. } = of(output) else { panic!() };
        message
    };
    let std = "\nthread 'norms_agree' (1) panicked at x.rs:1:1:\nassertion `left != right` failed: a hash\n  \
        left: 2\n right: 2";
    assert_eq!(message(std), "a hash: both are 2");
    assert_eq!(message(&std.replace(": a hash", "")), "two values that should differ are both 2");
    let Complaint::Said { message, input, .. } = of_property(
        "assertion failed: `(left != right)`\n  left: `2`,\n right: `2`: five at tests/t.rs:23",
        "n = 10",
    ) else {
        panic!()
    };
    assert_eq!((message.as_str(), input), ("five: both are 2", vec!["n = 10".to_string()]));
}

#[test]
fn a_test_that_runs_proptest_itself_keeps_its_own_words() {
    let output = "\nthread 'norms_agree' (1) panicked at l2-model/tests/d.rs:171:13:\nllama: Test failed: \
        assertion failed: `(left == right)` \n  left: `\"a\"`,\n right: `\"b\"` at l2-model/tests/d.rs:168.\n\
        minimal failing input: (\n    [\n        7,\n    ],\n    false,\n)\n";
    let expected = Complaint::Unequal {
        about: "llama".into(),
        expected: "\"b\"".into(),
        got: "\"a\"".into(),
        place: Some("l2-model/tests/d.rs:168".into()),
        input: vec!["([7], false)".into()],
    };
    assert_eq!(of(output), expected);
}

#[test]
fn a_backtrace_is_no_part_of_the_message() {
    let output = "\nthread 'norms_agree' (13857) panicked at src/list.rs:6:9:\nblock 3 is free twice\n\
        stack backtrace:\n   0: __rustc::rust_begin_unwind\n   1: core::panicking::panic_fmt\n   2: \
        l9_rec::list::List::push\nnote: Some details are omitted, run with `RUST_BACKTRACE=full`.\n\n\
        thread 'norms_agree' (13857) panicked at tests/t.rs:12:1:\nTest failed: block 3 is free twice.\n\
        minimal failing input: n = 0\n\tsuccesses: 0\n\tlocal rejects: 0\n\tglobal rejects: 0\n\n\
        stack backtrace:\n   0: __rustc::rust_begin_unwind\n";
    let expected = Complaint::Said {
        message: "block 3 is free twice".into(),
        place: Some("src/list.rs:6".into()),
        input: vec!["n = 0".into()],
    };
    assert_eq!(of(output), expected);
}
