//! Strata's side: `strata bench`, and the cost of starting up.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::samples::{Commands, Figure, Reached, Work};
use super::{ALONE, BATCHED, BATCHES, PROMPT, Settings};
use course::shell::{program, quiet_output, spelled};

/// The program under test and its models.
pub struct Strata {
    pub program: PathBuf,
    /// The same model in its downloaded form.
    pub default_model: PathBuf,
    pub settings: Settings,
}

/// Time and memory before the first token.
pub struct StartUp {
    /// Milliseconds from the downloaded file to a model that is ready.
    pub load_ms: f64,
    /// Peak anonymous memory of the process, in bytes; not on every system.
    pub peak_bytes: Option<u64>,
    /// Memory of the weights, in bytes.
    pub weight_bytes: f64,
    /// Memory of the keys and values of the run's tokens, in bytes.
    pub kv_bytes: f64,
}

impl Strata {
    fn bench(&self, model: &Path, precision: &str) -> Command {
        let Settings { threads, repeat } = self.settings;
        let mut command = program(&self.program);
        command.arg("bench").arg("--model").arg(model).args(["--device", "cpu"]);
        command.args(["--precision", precision, "--threads", &threads.to_string()]);
        command.args(["--repeat", &repeat.to_string(), "--json"]);
        command
    }

    /// The figures of one round.
    pub fn measure(
        &self,
        model: &Path,
        precision: &str,
        commands: &mut Commands,
    ) -> Result<Vec<Figure>> {
        let mut alone = self.bench(model, precision);
        alone.args(["--batch", "1", "--prompt-tokens", &PROMPT.to_string()]);
        alone.args(["--context", "0", "--gen-tokens", &ALONE.to_string()]);
        let mut many = self.bench(model, precision);
        let batches = BATCHES.map(|b| b.to_string()).join(",");
        let (context, generate) = (BATCHED.0.to_string(), BATCHED.1.to_string());
        many.args(["--batch", &batches, "--prompt-tokens", &context]);
        many.args(["--context", &context, "--gen-tokens", &generate]);
        commands.note(&alone);
        commands.note(&many);

        let (alone, many) = (json_of(&mut alone)?, json_of(&mut many)?);
        let mut figures = vec![prefill(&alone, &alone["results"][0])?];
        for run in [&alone, &many] {
            for result in run["results"].as_array().context("no results")? {
                figures.push(decode(run, result)?);
            }
        }
        Ok(figures)
    }

    /// Loads the default model and generates some tokens, measuring time and memory.
    pub fn start_up(&self, commands: &mut Commands) -> Result<StartUp> {
        let mut generate = program(&self.program);
        generate.args(["generate", "The capital of France is", "--max-tokens", &ALONE.to_string()]);
        generate.args(["--ignore-eos", "--json", "--device", "cpu", "--precision", "bf16"]);
        generate.args(["--threads", &self.settings.threads.to_string()]);
        generate.arg("--model").arg(&self.default_model);
        commands.note(&generate);
        let (stdout, peak_bytes) = with_peak_memory(&mut generate)?;
        let output: Value = serde_json::from_str(&stdout).context("strata generate --json")?;
        let len = |key: &str| output[key].as_array().map_or(0, Vec::len) as f64;

        // The shortest possible benchmark reports the size of the model.
        let mut bench = self.bench(&self.default_model, "bf16");
        bench.args(["--batch", "1", "--prompt-tokens", "1", "--gen-tokens", "1"]);
        let size = json_of(&mut bench)?;
        Ok(StartUp {
            load_ms: number(&output["timings"]["load_ms"])?,
            peak_bytes,
            weight_bytes: number(&size["weight_bytes"])?,
            kv_bytes: number(&size["kv_bytes_per_token"])? * (len("prompt_tokens") + len("tokens")),
        })
    }
}

fn prefill(run: &Value, result: &Value) -> Result<Figure> {
    let precision = run["precision"].as_str().unwrap_or_default();
    let reached = Reached {
        fraction: number(&result["fraction"]["prefill_of_flops"])?,
        limit: number(&run["flops"][precision])? / 1e9,
        unit: "GFLOP/s",
    };
    let rate = number(&result["prefill_tokens_per_s"])?;
    Ok(Figure { work: Work::Prefill, rate, reached: Some(reached), latency: None })
}

fn decode(run: &Value, result: &Value) -> Result<Figure> {
    let precision = run["precision"].as_str().unwrap_or_default();
    let fraction = &result["fraction"];
    let memory = Reached {
        fraction: number(&fraction["decode_of_bandwidth"])?,
        limit: number(&result["read_gb_s"])?,
        unit: "GB/s",
    };
    let arithmetic = Reached {
        fraction: number(&fraction["decode_of_flops"])?,
        limit: number(&run["flops"][precision])? / 1e9,
        unit: "GFLOP/s",
    };
    // The nearer limit is the one that binds.
    let reached = if memory.fraction > arithmetic.fraction { memory } else { arithmetic };
    let batch = number(&result["batch"])? as usize;
    let rate = number(&result["decode_tokens_per_s"])?;
    Ok(Figure { work: Work::Decode(batch), rate, reached: Some(reached), latency: None })
}

fn json_of(command: &mut Command) -> Result<Value> {
    let text = quiet_output(command)?;
    serde_json::from_str(&text).with_context(|| format!("what `{}` printed", spelled(command)))
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().with_context(|| format!("expected a number, found {value}"))
}

/// Runs a command; returns its stdout and its peak anonymous memory, in bytes. Mapped files do not
/// count: the system may reclaim their pages at any time.
fn with_peak_memory(command: &mut Command) -> Result<(String, Option<u64>)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start `{}`", spelled(command)))?;
    let mut peak = None;
    while child.try_wait()?.is_none() {
        peak = peak.max(anonymous_bytes(child.id()));
        std::thread::sleep(Duration::from_millis(2));
    }
    // Its output fits in a pipe: one short object.
    let out = child.wait_with_output()?;
    if !out.status.success() {
        bail!("`{}` failed ({})", spelled(command), out.status);
    }
    Ok((String::from_utf8(out.stdout)?, peak))
}

/// `RssAnon` of a process. Linux only.
fn anonymous_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decode_is_held_against_the_limit_that_binds() {
        let run = serde_json::json!({"precision": "bf16", "flops": {"bf16": 1e12, "f32": 5e11}});
        let result = |bandwidth: f64, flops: f64| {
            serde_json::json!({
                "batch": 8, "decode_tokens_per_s": 100.0, "read_gb_s": 50.0,
                "fraction": {"decode_of_bandwidth": bandwidth, "decode_of_flops": flops},
            })
        };
        let of = |bandwidth, flops| decode(&run, &result(bandwidth, flops)).unwrap();
        let near_memory = of(0.9, 0.1).reached.unwrap();
        assert_eq!((near_memory.limit, near_memory.unit), (50.0, "GB/s"));
        let near_arithmetic = of(0.3, 0.8).reached.unwrap();
        assert_eq!((near_arithmetic.limit, near_arithmetic.unit), (1000.0, "GFLOP/s"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_holds_some_anonymous_memory() {
        assert!(anonymous_bytes(std::process::id()).unwrap() > 10_000);
    }
}
