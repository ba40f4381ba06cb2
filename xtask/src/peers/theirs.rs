//! llama.cpp's side: `llama-bench` for one sequence, `llama-batched-bench` for many.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::obtain::Peer;
use super::samples::{Commands, Figure, Work, median};
use super::{ALONE, BATCHED, BATCHES, PROMPT, Settings};
use course::shell::{program, quiet_output};

/// The figures of one round.
pub fn measure(
    peer: &Peer,
    gguf: &Path,
    settings: Settings,
    commands: &mut Commands,
) -> Result<Vec<Figure>> {
    let Settings { threads, repeat } = settings;
    let threads = threads.to_string();
    let mut alone = program(peer.tool("llama-bench"));
    alone.arg("-m").arg(gguf).args(["-t", &threads]);
    alone.args(["-p", &PROMPT.to_string(), "-n", &ALONE.to_string()]);
    alone.args(["-r", &repeat.to_string(), "-o", "json"]);

    let (context, generate) = BATCHED;
    // Room for all tokens of the largest batch, and the usual step sizes.
    let room = BATCHES.iter().max().unwrap_or(&1) * (context + generate);
    let batches = BATCHES.map(|b| b.to_string()).join(",");
    let mut many = program(peer.tool("llama-batched-bench"));
    many.arg("-m").arg(gguf).args(["-t", &threads, "-tb", &threads]);
    many.args(["-c", &room.max(8192).to_string(), "-b", "2048", "-ub", "512"]);
    many.args(["-npp", &context.to_string(), "-ntg", &generate.to_string(), "-npl", &batches]);
    many.args(["--output-format", "jsonl"]);
    commands.note(&alone);
    commands.note(&many);

    let mut figures = of_llama_bench(&quiet_output(&mut alone)?).context("llama-bench")?;
    let mut rates = vec![Vec::new(); BATCHES.len()];
    // The program has no option for repetitions.
    for _ in 0..repeat {
        let once = of_batched_bench(&quiet_output(&mut many)?).context("llama-batched-bench")?;
        for (rates, rate) in rates.iter_mut().zip(once) {
            rates.push(rate);
        }
    }
    for (batch, rates) in BATCHES.into_iter().zip(rates) {
        let rate = median(rates.into_iter());
        figures.push(Figure { work: Work::Decode(batch), rate, reached: None });
    }
    Ok(figures)
}

/// Reads an array with an entry for the prompt and one for the generation, each with its samples.
fn of_llama_bench(text: &str) -> Result<Vec<Figure>> {
    let runs: Vec<Value> = serde_json::from_str(text)?;
    let rate_of = |prompt: usize, generate: usize| {
        let run = runs.iter().find(|r| r["n_prompt"] == prompt && r["n_gen"] == generate);
        let samples = run.and_then(|r| r["samples_ts"].as_array()).with_context(|| {
            format!("no run of {prompt} prompt tokens and {generate} generated ones")
        })?;
        Ok::<f64, anyhow::Error>(median(samples.iter().filter_map(Value::as_f64)))
    };
    let figure = |work, rate| Figure { work, rate, reached: None };
    Ok(vec![
        figure(Work::Prefill, rate_of(PROMPT, 0)?),
        figure(Work::Decode(1), rate_of(0, ALONE)?),
    ])
}

/// Reads a line for each batch size; returns decode rates in the order of [`BATCHES`].
fn of_batched_bench(text: &str) -> Result<Vec<f64>> {
    // Log lines may come between; objects are the lines that begin with a brace.
    let lines: Vec<Value> = text
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let rates: Vec<f64> = BATCHES
        .iter()
        .filter_map(|batch| lines.iter().find(|l| l["pl"] == *batch)?["speed_tg"].as_f64())
        .collect();
    ensure!(rates.len() == BATCHES.len(), "not every batch size is in its output:\n{text}");
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_llama_bench_are_medians_of_its_samples() {
        let text = r#"[
            {"n_prompt": 512, "n_gen": 0, "avg_ts": 9.0, "samples_ts": [2000.0, 1.0, 2100.0]},
            {"n_prompt": 0, "n_gen": 128, "avg_ts": 9.0, "samples_ts": [140.0, 150.0, 1.0]}
        ]"#;
        let figures = of_llama_bench(text).unwrap();
        assert_eq!((figures[0].work, figures[0].rate), (Work::Prefill, 2000.0));
        assert_eq!((figures[1].work, figures[1].rate), (Work::Decode(1), 140.0));
        assert!(of_llama_bench("[]").is_err());
    }

    #[test]
    fn rates_of_llama_batched_bench_are_found_by_batch_size() {
        let text =
            "some log\n{\"pl\": 32, \"speed_tg\": 800.5}\n{\"pl\": 8, \"speed_tg\": 500.0}\n";
        assert_eq!(of_batched_bench(text).unwrap(), [500.0, 800.5]);
        assert!(of_batched_bench("{\"pl\": 8, \"speed_tg\": 500.0}").is_err());
    }
}
