//! Commands on a CUDA device.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::golden::Golden;
use crate::strata::{Ran, comma, end, fixture, keys, strata, with_cuda};

/// The same command on the device and on the CPU, in f32.
fn both(args: &[&str]) -> [Ran; 2] {
    ["cuda", "cpu"].map(|device| {
        let args = args.iter().copied().chain(["--device", device, "--precision", "f32"]);
        end(with_cuda().args(args).spawn().unwrap())
    })
}

fn positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|x| x > 0.0 && x.is_finite())
}

#[test]
fn a_prompt_is_continued_as_on_a_cpu() {
    let model = fixture("tiny-llama");
    let prompt = ["generate", "-m", &model, "--tokens", "5,17,100", "-n", "6", "--verbose"];
    let [there, here] = both(&prompt);
    assert_eq!(there.text(), here.text());
    assert!(there.stderr.contains("cuda:0"), "what it runs on: {}", there.stderr);
    let drawn = [&prompt[..7], &["--temperature", "0.8", "--top-p", "0.9", "--seed", "3"]].concat();
    let [there, here] = both(&[&drawn[..], &["--json", "--logprobs", "2", "--n", "2"]].concat());
    let choices = |ran: &Ran| -> Vec<Value> {
        let said = ran.json();
        said["choices"].as_array().unwrap().iter().map(|c| c["tokens"].clone()).collect()
    };
    assert_eq!(choices(&there), choices(&here));
}

#[test]
fn many_prompts_are_answered_as_on_a_cpu_captured_or_not() {
    let model = fixture("tiny-llama");
    let lines = "{\"id\": 1, \"tokens\": [5, 17, 100]}\n{\"id\": 2, \"tokens\": [9, 9]}\n";
    let answers = |device: &str, flag: Option<&str>| {
        let args = ["generate", "-m", &model, "--prompts", "-", "-n", "5", "--precision", "f32"];
        let mut command = with_cuda();
        command.args(args).args(["--device", device, "--verbose"]).args(flag);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let ran = end(child);
        let tokens = ran.text().lines().map(|line| {
            let said: Value = serde_json::from_str(line).unwrap();
            (said["id"].clone(), said["choices"][0]["tokens"].clone())
        });
        (tokens.collect::<Vec<_>>(), ran.stderr)
    };
    let (here, _) = answers("cpu", None);
    let (captured, told) = answers("cuda", None);
    assert_eq!(captured, here);
    assert!(told.contains("decode steps of [1, 2] rows"), "{told}");
    let (eager, told) = answers("cuda", Some("--eager"));
    assert_eq!(eager, here);
    assert!(told.contains("none: every step is launched"), "{told}");
    assert_eq!(answers("cuda", Some("--batch-invariant")).0, here);
}

#[test]
fn logits_are_those_of_the_reference_and_layers_compare() {
    let (model, golden) = (fixture("tiny-llama"), fixture("tiny-llama/golden.safetensors"));
    let reference = Golden::open(&golden);
    let tokens = comma(&reference.ids("tokens"));
    let args = ["logits", "-m", &model, "--tokens", &tokens, "--full", "--json"];
    let device = ["--device", "cuda", "--precision", "f32"];
    let said = end(with_cuda().args(args).args(device).spawn().unwrap()).json();
    let got = said["positions"][0]["logits"].as_array().unwrap().clone();
    let want = reference.rows("logits").pop().unwrap();
    assert_eq!(got.len(), want.len());
    for (id, (got, want)) in got.iter().zip(&want).enumerate() {
        let error = (got.as_f64().unwrap() - f64::from(*want)).abs();
        assert!(error <= 2e-3, "id {id}: {got}, not {want}");
    }
    let compare = ["compare", "-m", &model, "--golden", &golden, "--device", "cuda"];
    let ran = end(with_cuda().args(compare).spawn().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
}

/// Any size without a checkpoint, on both.
#[test]
fn a_model_of_random_weights_is_measured_from_its_config() {
    let config = fixture("tiny-qwen3/config.json");
    let args = ["bench", "--random-weights", "--config", &config, "--prompt-tokens", "6"];
    let rest = ["--context", "4", "--gen-tokens", "3", "--batch", "1,2", "--repeat", "1"];
    let [there, here] = both(&[&args[..], &rest, &["--json"]].concat());
    let (there, here) = (there.json(), here.json());
    assert_eq!(keys(&there), keys(&here));
    assert_eq!(there["architecture"], here["architecture"]);
    assert_eq!((&there["device"], &here["device"]), (&"cuda:0".into(), &"cpu".into()));
    for result in there["results"].as_array().unwrap() {
        for key in ["prefill_tokens_per_s", "decode_tokens_per_s", "bytes_per_token", "read_gb_s"] {
            assert!(positive(&result[key]), "{key}: {there}");
        }
        assert!(positive(&result["fraction"]["decode_of_bandwidth"]), "{there}");
    }
    let unpaged = [&args[..], &["--state", "contiguous", "--device", "cuda"]].concat();
    let ran = end(with_cuda().args(unpaged).spawn().unwrap());
    assert_eq!(ran.code, 2, "{ran:?}");
    assert_eq!(strata(["bench", "--random-weights"]).code, 2, "without a config");
    let missing = strata(["bench", "--random-weights", "--config", "./no/such.json"]);
    assert!(missing.code == 1 && missing.stderr.contains("no/such.json"), "{missing:?}");
}

#[test]
fn a_device_measures_adapters_and_says_why_it_cannot_time_single_ops() {
    let (model, adapter) = (fixture("tiny-llama"), fixture("adapters/tiny-llama-all"));
    let short = ["--prompt-tokens", "4", "--context", "2", "--gen-tokens", "2", "--repeat", "1"];
    let args = ["bench", "-m", &model, "--device", "cuda", "--batch", "2", "--json"];
    let args = [&args[..], &short].concat();
    let ran = end(with_cuda().args(&args).args(["--adapter", &adapter]).spawn().unwrap());
    let said = ran.json();
    let rows = said["comparison"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{said}");
    for row in rows {
        assert!(positive(&row["results"][0]["decode_tokens_per_s"]), "{row}");
    }
    let ran = end(with_cuda().args(&args).arg("--by-op").spawn().unwrap());
    assert_eq!(ran.code, 1, "{ran:?}");
    for word in ["--by-op", "cuda:0", "cargo x gpu", "--device cpu"] {
        assert!(ran.stderr.contains(word), "{word} in {}", ran.stderr);
    }
}

#[test]
fn serving_tells_how_many_steps_were_replayed() {
    let model = fixture("tiny-llama");
    let args = ["bench", "serve-offline", "-m", &model, "--device", "cuda", "--requests", "1"];
    let lengths = ["--input", "4", "--output", "5", "--max-num-seqs", "1", "--precision", "f32"];
    let mut command = with_cuda();
    let ran = end(command.args(args).args(lengths).spawn().unwrap());
    assert!(ran.text().contains("replay rate  80.0% of the steps"), "{}", ran.text());
}
