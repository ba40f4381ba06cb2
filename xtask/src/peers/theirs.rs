//! llama.cpp's side, and its fork's: `llama-bench` for one sequence, `llama-batched-bench` for many.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::obtain::{Peer, Project, peers_dir};
use super::samples::{Commands, Figure, Work, median};
use super::{ALONE, BATCHED, BATCHES, PROMPT, Settings};
use course::shell::{program, quiet_output, spelled};

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
    // The fork has no such option: it prints a table, as part of its log.
    if peer.project == Project::LlamaCpp {
        many.args(["--output-format", "jsonl"]);
    }
    // The fork leaves a log file where it runs.
    many.current_dir(peers_dir()?);
    commands.note(&alone);
    commands.note(&many);

    let mut figures = of_llama_bench(&quiet_output(&mut alone)?).context("llama-bench")?;
    let mut rates = vec![Vec::new(); BATCHES.len()];
    // The program has no option for repetitions.
    for _ in 0..repeat {
        let once = of_batched_bench(&all_output(&mut many)?).context("llama-batched-bench")?;
        for (rates, rate) in rates.iter_mut().zip(once) {
            rates.push(rate);
        }
    }
    for (batch, rates) in BATCHES.into_iter().zip(rates) {
        let rate = median(rates.into_iter());
        figures.push(Figure::rate(Work::Decode(batch), rate));
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
    Ok(vec![
        Figure::rate(Work::Prefill, rate_of(PROMPT, 0)?),
        Figure::rate(Work::Decode(1), rate_of(0, ALONE)?),
    ])
}

/// Runs a command and returns its stdout, and then its stderr.
fn all_output(command: &mut Command) -> Result<String> {
    let text = spelled(command);
    let out = command.output().with_context(|| format!("cannot start `{text}`"))?;
    let said = [out.stdout, out.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    ensure!(out.status.success(), "`{text}` failed ({}):\n{}", out.status, said[1]);
    Ok(said.join("\n"))
}

/// Reads a line for each batch size; returns decode rates in the order of [`BATCHES`].
fn of_batched_bench(text: &str) -> Result<Vec<f64>> {
    // Log lines may come between.
    let lines: Vec<(usize, f64)> = text.lines().filter_map(batch_and_rate).collect();
    let rate = |batch| lines.iter().find(|(of, _)| of == batch).map(|(_, rate)| *rate);
    let rates: Vec<f64> = BATCHES.iter().filter_map(rate).collect();
    ensure!(rates.len() == BATCHES.len(), "not every batch size is in its output:\n{text}");
    Ok(rates)
}

/// Batch size and decode rate of a line: an object, or a row of the table whose columns are prompt, generated tokens,
/// batch size, all tokens, and then seconds and tokens per second of prompts, of generated tokens and of both.
fn batch_and_rate(line: &str) -> Option<(usize, f64)> {
    if line.starts_with('{') {
        let object: Value = serde_json::from_str(line).ok()?;
        return Some((object["pl"].as_u64()? as usize, object["speed_tg"].as_f64()?));
    }
    let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
    Some((cells.get(2)?.parse().ok()?, cells.get(7)?.parse().ok()?))
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
    #[test]
    fn rates_of_the_forks_table_are_those_of_its_generated_tokens() {
        let text = "main: n_kv_max = 8192, n_threads = 2\n\n\
            |    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |\n\
            |-------|--------|------|--------|----------|----------|----------|----------|----------|----------|\n\
            |   128 |     64 |    8 |   1536 |    0.500 |  2048.00 |    1.000 |   512.25 |    1.500 |  1024.00 |\n\
            |   128 |     64 |   32 |   6144 |    2.000 |  2048.00 |    2.500 |   819.20 |    4.500 |  1365.33 |\n";
        assert_eq!(of_batched_bench(text).unwrap(), [512.25, 819.2]);
        assert!(of_batched_bench(&text[..text.rfind("|   128").unwrap()]).is_err());
    }

    /// A peer whose programs are shell scripts that print this, each with its arguments in front.
    #[cfg(unix)]
    fn scripted(project: Project, name: &str, batched: &str) -> Peer {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("strata-peers-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let alone = r#"[{"n_prompt": 512, "n_gen": 0, "samples_ts": [2000.0]},
            {"n_prompt": 0, "n_gen": 128, "samples_ts": [140.0]}]"#;
        for (tool, said) in
            [("llama-bench", alone), ("llama-batched-bench", batched), ("llama-quantize", "")]
        {
            let script = format!(
                "#!/bin/sh\necho \"$@\" > {}\ncat <<'EOF'\n{said}\nEOF\n",
                dir.join("arguments").display()
            );
            std::fs::write(dir.join(tool), script).unwrap();
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(dir.join(tool), mode).unwrap();
        }
        Peer::in_directory(project, &dir).unwrap()
    }

    #[cfg(unix)]
    #[test]
    fn both_projects_are_measured_by_their_own_programs() {
        let table = "| 128 | 64 | 8 | 1536 | 0.5 | 2048.0 | 1.0 | 512.0 | 1.5 | 1024.0 |\n\
            | 128 | 64 | 32 | 6144 | 2.0 | 2048.0 | 2.5 | 819.0 | 4.5 | 1365.0 |";
        let objects = "{\"pl\": 8, \"speed_tg\": 500.0}\n{\"pl\": 32, \"speed_tg\": 800.0}";
        for (project, name, said, rates, option) in [
            (Project::LlamaCpp, "llama", objects, [500.0, 800.0], true),
            (Project::IkLlama, "ik", table, [512.0, 819.0], false),
        ] {
            let peer = scripted(project, name, said);
            let mut commands = Commands::default();
            let settings = Settings { threads: 2, repeat: 2 };
            let figures = measure(&peer, Path::new("/m.gguf"), settings, &mut commands).unwrap();
            let rates_of: Vec<(Work, f64)> = figures.iter().map(|f| (f.work, f.rate)).collect();
            let expected = [
                (Work::Prefill, 2000.0),
                (Work::Decode(1), 140.0),
                (Work::Decode(8), rates[0]),
                (Work::Decode(32), rates[1]),
            ];
            assert_eq!(rates_of, expected, "{project}");
            let arguments = peer.tool("arguments");
            let asked = std::fs::read_to_string(&arguments).unwrap();
            assert!(asked.contains("-m /m.gguf") && asked.contains("-npl 8,32"), "{asked}");
            assert_eq!(asked.contains("--output-format"), option, "{asked}");
            std::fs::remove_dir_all(arguments.parent().unwrap()).unwrap();
        }
    }
}
