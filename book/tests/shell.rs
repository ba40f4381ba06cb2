//! The shell fences of the book do what the book says: every command is run, and its output is that
//! of the page and that of the page's snapshot. What can be written in a fence stands in
//! `support/fences.rs`.
//!
//! After a change that is meant to be seen: `INSTA_UPDATE=always cargo test -p strata-book --test shell`.
//! What a page itself shows is corrected by hand; the test prints what to paste.

#[allow(dead_code, reason = "each test uses its own part")]
mod support;

use support::{built, fences, normal, pages, run, servers, snapshots};

#[test]
fn every_command_of_the_book_does_what_the_page_shows() {
    if run::is_a_learners() {
        println!("not here: what comes in your workspace depends on what you have written");
        return;
    }
    snapshots::check("", |fence| !fence.full);
}

#[test]
fn every_snapshot_belongs_to_a_page() {
    let pages = pages::all();
    for path in pages::files_below(&snapshots::folder(), "snap") {
        let file = path.file_name().unwrap().to_str().unwrap();
        let page = file.trim_end_matches(".snap").trim_end_matches("--full");
        let fences = pages
            .iter()
            .find(|p| snapshots::name(&p.name) == page)
            .map(|page| fences::of(&page.text).unwrap_or_else(|e| panic!("{}:{e}", page.name)));
        let run = |f: &fences::Fence| !f.norun && f.full == file.contains("--full");
        let needed = fences.is_some_and(|all| all.iter().any(run));
        assert!(needed, "snapshots/{file} belongs to no page: delete it");
    }
}

#[test]
fn almost_every_command_is_run() {
    let mut all = 0;
    let mut kept_out = 0;
    for page in pages::all() {
        for fence in fences::of(&page.text).unwrap_or_else(|e| panic!("{}:{e}", page.name)) {
            all += fence.steps.len();
            kept_out += if fence.norun { fence.steps.len() } else { 0 };
        }
    }
    assert!(kept_out * 5 <= all, "{kept_out} of {all} commands of the book are not run");
}

#[test]
fn what_changes_from_run_to_run_is_not_compared() {
    for (came, kept) in [
        ("finished in 0.02s", "finished in <time>"),
        ("prefill 5 tokens, 1,234.5 tokens/s (12 ms)", "prefill 5 tokens, <rate> (<time>)"),
        ("rms_norm on avx512bf16, x [3, 64]", "rms_norm on <isa>, x [3, 64]"),
        ("avx512bf16, 2 threads of f32", "<isa>, <n> threads of f32"),
        ("at l1-tensor/src/ops/rope.rs:41:9:", "at l1-tensor/src/ops/rope.rs:<line>:"),
        ("write a/src/b.rs:9, 83, 100", "write a/src/b.rs:<line>"),
        ("a/src/b.rs:9; 2 of the 6 others", "a/src/b.rs:<line>; 2 of the 6 others"),
        ("thread 'a::b' (8123) panicked at x.rs:7:1:", "thread 'a::b' panicked at x.rs:<line>:"),
        ("src/lib.rs - f (line 12) ... ok", "src/lib.rs - f (line <n>) ... ok"),
        ("{\"id\":\"x-1\",\"created\":17,\"n\":1}", "{\"id\":\"<id>\",\"created\":<time>,\"n\":1}"),
        ("about 30 minutes, 64 sizes, bf16, q4_1", "about 30 minutes, 64 sizes, bf16, q4_1"),
    ] {
        assert_eq!(normal::line(came), kept);
    }
    let text = "   Compiling x v0.1.0 (/r/x)\n    Finished `dev` profile\nsee /r/x/a and /r.\n\n";
    let paths = [("/r/".to_string(), ""), ("/r".to_string(), "here")];
    assert_eq!(normal::output(text, &paths), ["see x/a and here."]);
}

#[test]
fn the_report_of_tests_is_sorted_and_silent_about_programs_without_any() {
    let report = "\nrunning 2 tests\ntest b ... ok\ntest a ... FAILED\n\nfailures:\n\n---- a stdout ----\n\
        \nwhat was looked at\n  expected  1\n\n\nfailures:\n    a\n\ntest result: FAILED. 1 passed; \
        1 failed; 0 ignored; 0 measured; 9 filtered out; finished in <time>\n\nrunning 0 tests\n\n\
        test result: ok. 0 passed; 0 failed; 0 ignored; finished in <time>\n";
    let lines = normal::tests(report.lines().map(str::to_string).collect());
    assert_eq!(lines[..2], ["test a ... FAILED", "test b ... ok"]);
    assert!(lines.contains(&"  expected  1".to_string()), "{lines:?}");
    assert_eq!(lines.last().unwrap(), "test result: FAILED. 1 passed; 1 failed");
    assert_eq!(lines.iter().filter(|l| l.starts_with("test result")).count(), 1);
}

#[test]
fn fences_are_read_with_their_commands_and_what_is_shown() {
    let text = "<!-- solved: before l1.rope -->\n```console,learner,fails\n$ one \\\n    --two\nout\n...\n\n\
        $ three\n```\n\n```rust\nlet x = 1;\n```\n```sh\n# a comment\nfour # five\n```\n";
    let fences = fences::of(text).unwrap();
    assert_eq!(fences.len(), 2);
    assert!(fences[0].learner && fences[0].fails && !fences[0].full);
    assert_eq!(fences[0].solved.as_deref(), Some("before l1.rope"));
    assert_eq!(fences[0].steps[0].command, "one --two");
    assert_eq!(fences[0].steps[0].shown, ["out", "..."]);
    assert!(fences[0].steps[1].shown.is_empty());
    assert_eq!((fences[1].steps[0].command.as_str(), fences[1].line), ("four # five", 14));
    for (text, said) in [
        ("```sh,norun\na\n```", "1: say on the line above why"),
        ("```sh,lerner\na\n```", "cannot be `lerner`"),
        ("```sh\n# nothing\n```", "no command"),
        ("```console\nout\n```", "2: output before any"),
        ("<!-- solved: l1.a -->\n```sh\na\n```", "in a learner's workspace"),
        ("```sh\na\n", "left open"),
    ] {
        let error = fences::of(text).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn dots_stand_for_any_number_of_lines() {
    let lines = |text: &str| text.lines().map(str::to_string).collect::<Vec<_>>();
    let came = lines("a\nb\nc\nd");
    for (shown, is) in [
        ("a\nb\nc\nd", true),
        ("a\n...\nd", true),
        ("...\nb\n...\nc\nd\n...", true),
        ("a\nb", false),
        ("a\n...\nc", false),
        ("...\nc\n...\nb\n...", false),
    ] {
        assert_eq!(fences::shows(&lines(shown), &came), is, "{shown:?}");
    }
}

#[test]
fn commands_whose_programs_are_built_are_understood_and_others_left_to_cargo() {
    let parse = built::Built::parse;
    let command = "STRATA_CPU=avx2 cargo test -p l1-tensor --lib --test a name -- --nocapture";
    let command = parse(command).unwrap();
    assert_eq!(command.environment, [("STRATA_CPU".to_string(), "avx2".to_string())]);
    assert_eq!(command.package, "l1-tensor");
    assert_eq!(command.targets, built::Targets::Tests(vec!["lib".into(), "a".into()]));
    assert_eq!(command.arguments, ["name", "--nocapture"]);
    let command = parse("cargo run -q -- compare --model a/b").unwrap();
    assert_eq!((command.package.as_str(), command.arguments.len()), ("strata", 3));
    let command = parse("cargo run -p l1-tensor --example ops").unwrap();
    assert_eq!(command.targets, built::Targets::Example("ops".into()));
    let command = parse("cargo run -- generate \"tails & heads?\" --n 2 # twice").unwrap();
    assert_eq!(command.arguments, ["generate", "tails & heads?", "--n", "2"]);
    let command = parse("cargo run -q -- bench serve > target/a").unwrap();
    assert_eq!((command.arguments.len(), command.into.as_deref()), (2, Some("target/a")));
    for other in [
        "cargo test",
        "cargo run -- generate \"$HOME\"",
        "cargo run -- generate \"left open",
        "cargo x test",
        "cargo run --release -- chat",
        "cargo test -p l1-tensor --release",
        "cargo test -p l1-tensor | tail -1",
    ] {
        assert_eq!(parse(other), None, "{other}");
    }
}
