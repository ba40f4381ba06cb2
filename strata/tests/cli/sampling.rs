//! Sampling: temperature, filters, seeds; several choices; stop rules; log probabilities.

use std::fs;

use serde_json::Value;

use crate::strata::{arg, comma, copy_of, fixture, ids, keys, strata};

const PROMPT: &str = "5,17,100,3,64,200,9";

/// `strata generate --json` on tiny-llama with options as one types them.
fn generate(options: &str) -> Value {
    let model = fixture("tiny-llama");
    let args = ["generate", "-m", &model, "--json", "--tokens", PROMPT];
    strata(args.into_iter().chain(options.split_whitespace())).json()
}

fn text(answer: &Value) -> &str {
    answer["text"].as_str().unwrap()
}

#[test]
fn the_same_seed_gives_the_same_text_twice_and_another_one_another() {
    let options = "--ignore-eos -n 40 --temperature 0.9 --top-k 60 --top-p 0.95 --min-p 0.001 --typical-p 0.99";
    let first = generate(&format!("{options} --seed 42"));
    let again = generate(&format!("{options} --seed 42 --state contiguous --threads 1"));
    assert_eq!((&first["tokens"], &first["text"]), (&again["tokens"], &again["text"]));
    assert_eq!(first["seed"], 42);
    assert_ne!(generate(&format!("{options} --seed 43"))["tokens"], first["tokens"]);
    assert_ne!(generate("--ignore-eos -n 40")["tokens"], first["tokens"], "greedy");
    // A random seed is reported, so that the output can be reproduced.
    let drawn = generate(options);
    let seed = drawn["seed"].as_u64().unwrap();
    assert_ne!(generate(options)["seed"], seed, "two draws");
    let again = generate(&format!("{options} --seed {seed}"));
    assert_eq!(again["tokens"], drawn["tokens"]);
}

#[test]
fn every_option_changes_what_is_chosen() {
    let base = "--ignore-eos -n 40 --seed 1 --temperature 1.2";
    let plain = generate(base)["tokens"].clone();
    for option in [
        "--top-k 3",
        "--top-p 0.3",
        "--min-p 0.5",
        "--typical-p 0.3",
        "--repetition-penalty 1.8",
        "--presence-penalty 2",
        "--frequency-penalty 2",
        "--temperature 0.3",
    ] {
        let base = if option.starts_with("--temp") { "--ignore-eos -n 40 --seed 1" } else { base };
        assert_ne!(generate(&format!("{base} {option}"))["tokens"], plain, "{option}");
    }
    let off = "--top-k 0 --top-p 1 --min-p 0 --typical-p 1 --repetition-penalty 1 --presence-penalty 0 --frequency-penalty 0";
    assert_eq!(generate(&format!("{base} {off}"))["tokens"], plain, "all of them off");
    let greedy = generate("--ignore-eos -n 40")["tokens"].clone();
    assert_eq!(generate("--ignore-eos -n 40 --temperature 1.2 --top-k 1")["tokens"], greedy);
}

#[test]
fn options_without_effect_at_temperature_0_are_named_unless_it_was_asked_for() {
    let model = fixture("tiny-llama");
    let run = |options: &str| {
        let args = ["generate", "-m", &model, "--tokens", PROMPT, "-n", "5"];
        strata(args.into_iter().chain(options.split_whitespace()))
    };
    let plain = run("");
    for (options, named) in
        [("--top-p 0.9", "--top-p"), ("--seed 3 --top-k 5", "--top-k, --seed"), ("--n 2", "--n")]
    {
        let ran = run(options);
        assert!(ran.text().starts_with(plain.text()), "{ran:?}");
        let warning = format!("strata: {named}: no effect at temperature 0");
        assert!(ran.stderr.starts_with(&warning), "{ran:?}");
        assert_eq!(run(&format!("{options} --temperature 0")).stderr, "", "{options}");
        assert_eq!(run(&format!("{options} --quiet")).stderr, "", "{options}");
    }
}

#[test]
fn several_answers_are_all_told_and_the_first_is_the_one_that_n_1_gives() {
    let options = "--ignore-eos -n 20 --temperature 1 --seed 5";
    let one = generate(options);
    let three = generate(&format!("{options} --n 3"));
    let choices = three["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for key in ["text", "tokens", "finish_reason"] {
        assert_eq!(choices[0][key], one[key], "{key} of the first choice");
        assert_eq!(three[key], one[key], "{key} at top level");
    }
    assert_ne!(choices[1]["tokens"], choices[0]["tokens"]);
    assert_ne!(choices[2]["tokens"], choices[1]["tokens"]);
    assert_eq!(three["usage"]["completion_tokens"], 3 * 20);
    assert_eq!(three["usage"]["total_tokens"], 7 + 3 * 20);

    let best = generate(&format!("{options} --n 2 --best-of 3"));
    let best = best["choices"].as_array().unwrap();
    assert_eq!(best.len(), 2);
    assert!(best.iter().all(|choice| choices.contains(choice)), "two of the three");
}

#[test]
fn several_choices_are_printed_one_after_the_other_each_with_its_newline() {
    let model = fixture("tiny-llama");
    let args = ["generate", "-m", &model, "--tokens", PROMPT, "--n", "3"];
    let options = ["--temperature", "1", "--seed", "5", "-n", "12", "--ignore-eos"];
    let answer = strata(args.iter().chain(&options).chain(&["--json"])).json();
    let texts = answer["choices"].as_array().unwrap().iter().map(text);
    let expected: String = texts.map(|text| format!("{text}\n")).collect();
    assert_eq!(strata(args.iter().chain(&options)).text(), expected);
}

#[test]
fn blocks_of_the_prompt_are_counted_once() {
    // 33 prompt and 15 output tokens in blocks of 16: two full blocks are shared, and each choice has one of its own.
    let prompt = comma(&(0..33).collect::<Vec<u32>>());
    let model = fixture("tiny-llama");
    let run = |options: &str| {
        let args = ["generate", "-m", &model, "--json", "--tokens", &prompt, "-n", "15"];
        let rest = "--ignore-eos --precision f32 --temperature 1 --seed 1".split(' ');
        strata(args.into_iter().chain(rest).chain(options.split(' ')))
    };
    let alone = run("--n 1").json();
    assert_eq!(alone["kv"]["num_blocks"], 3 + 2, "three, the null block, one to spare");
    let four = run("--n 4").json();
    assert_eq!(four["kv"]["num_blocks"], 2 + 4 + 2, "two shared, four own, null, to spare");
    assert_eq!(four["choices"][0]["tokens"], alone["tokens"]);
    // That is just what it takes: 12 KiB a block.
    assert_eq!(run("--n 4 --kv-memory 84KiB").json()["choices"], four["choices"]);
    let short = run("--n 4 --kv-memory 83KiB");
    assert_eq!(short.code, 1, "{short:?}");
    for words in ["4 x 48 tokens, the first 32 of them shared,", "84 KiB", "1024 B are missing"] {
        assert!(short.stderr.contains(words), "`{words}` in {short:?}");
    }
    let contiguous = run("--n 4 --state contiguous").json();
    assert_eq!(contiguous["choices"], four["choices"]);
}

#[test]
fn log_probabilities_are_those_of_the_logits() {
    let model = fixture("tiny-llama");
    let answer =
        generate("--ignore-eos -n 6 --precision f32 --temperature 1 --seed 8 --logprobs 4");
    let (prompt, tokens) = (ids(&answer["prompt_tokens"]), ids(&answer["tokens"]));
    let told = answer["logprobs"].as_array().unwrap();
    assert_eq!(told.len(), 6);
    let all = comma(&[&prompt[..], &tokens].concat());
    let args = ["logits", "-m", &model, "--tokens", &all, "--all", "--json", "--top", "400"];
    let logits = strata(args.into_iter().chain(["--precision", "f32"])).json();
    for (i, told) in told.iter().enumerate() {
        assert_eq!(keys(told), ["id", "logprob", "top"]);
        assert_eq!(told["id"], tokens[i]);
        // Rows of [id, logit, logprob], the likeliest first.
        let row = logits["positions"][prompt.len() - 1 + i]["top"].as_array().unwrap();
        let chosen = row.iter().find(|entry| entry[0] == tokens[i]).unwrap();
        let near = |a: &Value, b: &Value| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-4;
        assert!(near(&told["logprob"], &chosen[2]), "token {i}: {told} and {chosen}");
        let top = told["top"].as_array().unwrap();
        assert_eq!(top.len(), 4);
        for (entry, expected) in top.iter().zip(row) {
            assert_eq!(entry[0], expected[0], "token {i}");
            assert!(near(&entry[1], &expected[2]), "token {i}: {entry} and {expected}");
        }
    }
    let processed = generate(
        "--ignore-eos -n 6 --temperature 0.5 --top-k 2 --seed 8 --logprobs 4 --logprobs-of processed",
    );
    for told in processed["logprobs"].as_array().unwrap() {
        let top = told["top"].as_array().unwrap();
        let mass: f64 = top.iter().map(|entry| entry[1].as_f64().unwrap().exp()).sum();
        assert!(top.len() == 2 && (mass - 1.0).abs() < 1e-5, "two tokens are left: {told}");
    }
    let none = generate("--ignore-eos -n 3 --logprobs 0");
    assert_eq!(none["logprobs"][0]["top"], serde_json::json!([]));
}

#[test]
fn a_stop_string_ends_the_text_before_it_also_between_tokens() {
    let model = fixture("tiny-llama");
    let run = |options: &[&str]| {
        let args = ["generate", "-m", &model, "--tokens", PROMPT, "-n", "60", "--ignore-eos"];
        strata(args.into_iter().chain(options.iter().copied()))
    };
    let whole = run(&["--json"]).json();
    let chars: Vec<(usize, char)> = text(&whole).char_indices().collect();
    // Four characters of the answer that are not there before: tokens of this vocabulary are shorter.
    let (at, stop) = (10..chars.len() - 4)
        .map(|i| (chars[i].0, &text(&whole)[chars[i].0..chars[i + 4].0]))
        .find(|(at, s)| !s.contains(['\u{fffd}', '\0']) && text(&whole).find(s) == Some(*at))
        .unwrap();
    let end = at + stop.len();
    let answer = run(&["--json", "--stop", "not in there", "--stop", stop]).json();
    assert_eq!(text(&answer), &text(&whole)[..at]);
    assert_eq!(answer["finish_reason"], "stop");
    let tokens = ids(&answer["tokens"]);
    assert_eq!(tokens, ids(&whole["tokens"])[..tokens.len()]);
    assert!(tokens.len() < 60);
    assert_eq!(run(&["--stop", stop]).text(), &text(&whole)[..at], "streamed");
    let included = run(&["--stop", stop, "--include-stop-str"]);
    assert_eq!(included.text(), &text(&whole)[..end]);
    // One that comes up before the answer is long enough does not count.
    let long = run(&["--json", "--stop", stop, "--min-tokens", "60"]).json();
    assert_eq!(long["tokens"], whole["tokens"]);
}

#[test]
fn a_choice_does_not_end_before_min_tokens() {
    let greedy = ids(&generate("--ignore-eos -n 20")["tokens"]);
    let model = copy_of("tiny-llama");
    let config = format!("{{\"eos_token_id\": [{}]}}", greedy[0]);
    fs::write(model.path().join("generation_config.json"), config).unwrap();
    let model = arg(&model);
    let args = ["generate", "-m", &model, "--json", "--tokens", PROMPT, "-n", "20"];
    let short = strata(args).json();
    assert_eq!((ids(&short["tokens"]).len(), &short["finish_reason"]), (1, &"stop".into()));
    let longer = strata(args.into_iter().chain(["--min-tokens", "5"])).json();
    let tokens = ids(&longer["tokens"]);
    assert!(tokens.len() >= 6 || longer["finish_reason"] == "length", "{longer}");
    assert!(!tokens[..5].contains(&greedy[0]), "{longer}");
}
