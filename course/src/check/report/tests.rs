use super::*;
use crate::check::report_fixture;
use crate::programs::Verdict;
use crate::workspace::Workspace;

fn screen(workspace: &Workspace, complaint: Complaint, change: impl FnOnce(&mut Report)) -> Screen {
    let task = workspace.task("l1.a").unwrap();
    let gate = &task.exercise.gates[0];
    let trouble = Trouble { gate, verdict: Verdict::Hung, failing: 1, given: None };
    screen_of(&task, &trouble, complaint, change)
}

fn screen_of(
    task: &Task,
    trouble: &Trouble,
    complaint: Complaint,
    change: impl FnOnce(&mut Report),
) -> Screen {
    let places = places::to_write(task).unwrap();
    let (edited, linked, nudge) = (None, None, None);
    let mut report =
        Report { task: *task, trouble, complaint, places, edited, linked, hints: 0, nudge };
    change(&mut report);
    let mut above = Screen::default();
    above.line(Tone::Plain, "l1  ..  0 of 2").blank();
    render(&report, above)
}

#[test]
fn a_failure_is_one_calm_screen() {
    let (_dir, workspace) = report_fixture::workspace();
    let complaint = Complaint::Unequal {
        about: "the answer".into(),
        expected: "42".into(),
        got: "41".into(),
        place: Some("p/tests/f.rs:9".into()),
        input: vec!["n = 0".into(), "v = [1, 2]".into()],
    };
    let text = screen(&workspace, complaint, |_| {}).text();
    let expected = "\
l1  ..  0 of 2

l1.a, exercise 1 of 2: An idea, about 30 min
  write    p/src/a.rs:2
  read     book/src/c.md

  failed   it is right
           p/tests/f.rs:2; the other test passed

  the answer
    expected  42
    got       41
    at        p/tests/f.rs:9
  fails for
    n = 0
    v = [1, 2]

  nudge    look there

  cargo x check l1.a               only this exercise
  cargo x hint l1.a                hint 2 of 3
";
    assert_eq!(text, expected);
}

#[test]
fn the_worst_of_everything_still_fits() {
    let long = "a long line of words ".repeat(40);
    let complaints = [
        Complaint::NotWritten { place: Some(long.clone()) },
        Complaint::OtherBlank { id: "l1.b".into(), place: Some(long.clone()) },
        Complaint::Unequal {
            about: long.clone(),
            expected: long.clone(),
            got: long.clone(),
            place: Some(long.clone()),
            input: vec![long.clone(); 3],
        },
        Complaint::Said {
            message: format!("{long}\n").repeat(30),
            place: None,
            input: vec!["x".repeat(5000)],
        },
        Complaint::Died { how: long.clone(), message: Some(long.clone()), place: None },
        Complaint::Endless,
        Complaint::Missing,
    ];
    for complaint in complaints {
        let (_dir, mut workspace) = report_fixture::workspace();
        let exercise = &mut workspace.members[0].layer.exercises[0];
        exercise.title = long.clone();
        exercise.chapter = long.clone();
        exercise.hints[0] = long.clone();
        let screen = screen(&workspace, complaint.clone(), |report| {
            let place = Place { file: "p/src/".to_string() + &"x".repeat(200), lines: vec![1, 2] };
            report.places = vec![place; 9];
            report.edited = Some((vec!["p/tests/f.rs".into(); 9], long.clone()));
        });
        let text = screen.text();
        assert!(screen.height() <= HEIGHT, "{} lines:\n{text}", screen.height());
        assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("cargo x check l1.a"), "the command is not cut off:\n{text}");
    }
}

#[test]
fn a_cut_message_says_how_to_see_all_of_it() {
    let (_dir, workspace) = report_fixture::workspace();
    let complaint = Complaint::Said { message: "line\n".repeat(50), place: None, input: vec![] };
    let text = screen(&workspace, complaint, |_| {}).text();
    assert!(text.contains(".. all of it: cargo test -p p --test f it_is_right"), "{text}");
}

#[test]
fn another_blank_is_explained_by_where_it_is() {
    let (_dir, workspace) = report_fixture::workspace();
    let blank = |id: &str| Complaint::OtherBlank { id: id.into(), place: None };
    let text = screen(&workspace, blank("l1.b"), |_| {}).text();
    assert!(text.contains("it reached l1.b") && text.contains("a later exercise"), "{text}");
    let text = screen(&workspace, blank("l0.x"), |r| r.linked = Some(Version::Mine)).text();
    assert!(text.contains("cargo x use l0 reference"), "{text}");
}

#[test]
fn hints_are_counted_to_the_last() {
    let (_dir, workspace) = report_fixture::workspace();
    let at = |hints| screen(&workspace, Complaint::Endless, |r| r.hints = hints).text();
    assert!(at(1).contains("hint 2 of 3") && at(2).contains("hint 3 of 3"));
    assert!(at(3).contains("all hints again"));
}

#[test]
fn an_edited_test_is_named_with_its_remedy() {
    let (_dir, workspace) = report_fixture::workspace();
    let edited = Some((vec!["p/tests/f.rs".to_string()], "git restore p/tests/f.rs".to_string()));
    let text = screen(&workspace, Complaint::Endless, |r| r.edited = edited).text();
    assert!(text.contains("p/tests/f.rs was edited: this result is that of an edited"), "{text}");
    assert!(text.contains("git restore p/tests/f.rs"), "{text}");
}

#[test]
fn a_test_is_named_by_its_sentence() {
    let words = |gate: &str| in_words(&Gate::try_from(gate.to_string()).unwrap());
    assert_eq!(words("lib::cpu::lanes::tests::sums_are_equal"), "sums are equal");
    assert_eq!(
        words("ops_norm::agrees_with_torch::rms_norm_does"),
        "agrees with torch, rms norm does"
    );
}

#[test]
fn a_panic_in_given_code_is_said_to_be_one() {
    let (_dir, workspace) = report_fixture::workspace();
    let task = workspace.task("l1.a").unwrap();
    let text = |caller: Option<&str>| {
        let given = Some(Given { caller: caller.map(str::to_string) });
        let gate = &task.exercise.gates[0];
        let trouble = Trouble { gate, verdict: Verdict::Hung, failing: 1, given };
        let complaint = Complaint::Said {
            message: "block 3 is free twice".into(),
            place: Some("p/src/list.rs:6".into()),
            input: vec!["n = 0".into()],
        };
        screen_of(&task, &trouble, complaint, |_| {}).text()
    };
    let known = text(Some("p/src/a.rs:2 (release)"));
    let expected = "  block 3 is free twice\n    panicked in given code at p/src/list.rs:6, called from your \
        p/src/a.rs:2 (release)\n  fails for\n    n = 0\n";
    assert!(known.contains(expected), "{known}");
    let unknown = text(None);
    assert!(unknown.contains("    panicked in given code at p/src/list.rs:6\n"), "{unknown}");
}

#[test]
fn the_nudge_is_that_of_the_gate_once_something_was_written() {
    let (_dir, workspace) = report_fixture::workspace();
    let text = |complaint| screen(&workspace, complaint, |r| r.nudge = Some("mind the NaN")).text();
    let failed = text(Complaint::Said { message: "m".into(), place: None, input: vec![] });
    assert!(failed.contains("nudge    mind the NaN") && !failed.contains("look there"), "{failed}");
    let blank = text(Complaint::NotWritten { place: None });
    assert!(blank.contains("nudge    look there"), "{blank}");
}
