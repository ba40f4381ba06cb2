//! `strata chat`, and pipes that break.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::strata::{command, end, fixture, strata_reading};

#[test]
fn a_piped_conversation_answers_each_line_and_ends_with_the_input() {
    let model = fixture("tiny-qwen2");
    let args = ["chat", "-m", &model, "--max-tokens", "8"];
    let once = strata_reading(b"Hello\n", args);
    assert!(!once.text().trim().is_empty(), "{once:?}");
    // After /reset the same message finds the same beginning, so it gets the same answer.
    let twice = strata_reading(b"Hello\n/reset\nHello\n/quit\nnever read\n", args);
    assert_eq!(twice.text(), once.text().repeat(2));
    assert_eq!(twice.stderr, "");
}

#[test]
fn a_conversation_can_be_sampled_and_its_seed_says_how() {
    let model = fixture("tiny-qwen2");
    let chat = |options: &str, input: &str| {
        let args = ["chat", "-m", &model, "--max-tokens", "12"].into_iter();
        strata_reading(input.as_bytes(), args.chain(options.split_whitespace()))
    };
    let greedy = chat("", "Hello\n");
    let sampled = chat("--temperature 1 --top-p 0.95 --seed 3", "Hello\n");
    assert_ne!(sampled.text(), greedy.text());
    let again = "Hello\n/reset\nHello\n";
    assert_eq!(
        chat("--temperature 1 --top-p 0.95 --seed 3", again).text(),
        sampled.text().repeat(2)
    );
    assert_ne!(chat("--temperature 1 --top-p 0.95 --seed 4", "Hello\n").text(), sampled.text());
    let idle = chat("--seed 3", "Hello\n");
    assert_eq!(idle.text(), greedy.text());
    assert!(idle.stderr.contains("--seed: no effect at temperature 0"), "{idle:?}");
    let refused = chat("--temperature -1", "");
    assert_eq!(refused.code, 2, "{refused:?}");
}

#[test]
fn the_system_message_is_part_of_the_conversation() {
    let model = fixture("tiny-qwen2");
    let args = ["chat", "-m", &model, "--max-tokens", "8"];
    let plain = strata_reading(b"Hello\n", args);
    let given =
        strata_reading(b"Hello\n", args.into_iter().chain(["--system", "Answer in verse."]));
    let typed = strata_reading(b"/system Answer in verse.\nHello\n", args);
    assert_eq!(typed.text(), given.text());
    assert_ne!(typed.text(), plain.text());
}

#[test]
fn commands_answer_on_stderr_and_a_bad_turn_does_not_end_the_chat() {
    let model = fixture("tiny-qwen2");
    let long = "word ".repeat(600);
    let input = format!("/help\n/nonsense\n{long}\n/system\nHello\n");
    let ran = strata_reading(input.as_bytes(), ["chat", "-m", &model, "--max-tokens", "8"]);
    let alone = strata_reading(b"Hello\n", ["chat", "-m", &model, "--max-tokens", "8"]);
    assert_eq!(ran.text(), alone.text());
    for part in
        ["/reset", "unknown command /nonsense", "error: the prompt has", "no system message"]
    {
        assert!(ran.stderr.contains(part), "{part} in {}", ran.stderr);
    }
}

#[test]
#[cfg(unix)]
fn an_interrupt_while_nothing_is_answered_ends_the_program_with_130() {
    let model = fixture("tiny-qwen2");
    let mut child = command()
        .args(["chat", "-m", &model, "--max-tokens", "4"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"Hello\n/nonsense\n").unwrap();
    // Its complaint about the second line says that the first has been answered.
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("/nonsense"), "{line}");
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(end(child).code, 130);
    drop(stdin);
}

#[test]
fn a_closed_stdout_is_no_error() {
    for args in [
        &["logits", "--all", "--full", "--json", "--tokens", "1,2,3,4,5,6,7,8,9"][..],
        &["generate", "--tokens", "1,2,3", "--ignore-eos"],
        &["generate", "--tokens", "1,2,3", "--json"],
    ] {
        let mut child = command().args(args).args(["-m", &fixture("tiny-llama")]).spawn().unwrap();
        drop(child.stdout.take());
        let ran = end(child);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran = end(command().arg("models").stdout(full).spawn().unwrap());
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.starts_with("error: cannot write to stdout"), "{ran:?}");
}
