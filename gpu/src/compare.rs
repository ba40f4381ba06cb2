//! Comparison with transformers on the same machine: a script, run by the machine's own Python, serves a model of the
//! same config with random weights, and prompts of the same lengths.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use crate::Context;
use crate::bench::{Served, Target, Workload, serve, workloads};

/// File name of the script, which is beside the program or in `gpu/compare`.
const SCRIPT: &str = "transformers_bench.py";

/// Results of one workload.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// Figure of Strata.
    pub ours: Served,
    /// Figure of transformers: output tokens per second of all requests together. `None` if it was not measured.
    pub theirs: Option<f64>,
    /// How transformers served the workload, or why it did not.
    pub how: String,
    /// Ratio of Strata's figure to that of transformers.
    pub ratio: Option<f64>,
    /// Target of the ratio.
    pub target: Target,
}

/// Results of all workloads.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Versions and device, as the script reports them.
    pub machine: Value,
    /// Results, one for each workload.
    pub pairs: Vec<Pair>,
}

/// Serves the workloads with Strata and with transformers, and reports what there is after each.
///
/// # Errors
/// No script, no Python, no torch or transformers, which the script says; no memory.
pub fn run(ctx: &Context, mut report: impl FnMut(&Comparison) -> Result<()>) -> Result<()> {
    let script = find_script()?;
    let mut comparison = Comparison { machine: Value::Null, pairs: Vec::new() };
    let ours = workloads(ctx).iter().map(|workload| serve(ctx, *workload));
    let ours = ours.collect::<Result<Vec<_>>>()?;
    // The other engine gets all of the memory.
    ctx.forget_random();
    for (workload, ours) in workloads(ctx).iter().zip(ours) {
        let answer = ask(ctx, &script, workload)?;
        comparison.machine.clone_from(&answer["machine"]);
        let theirs = answer["tokens_per_second"].as_f64();
        let how = answer["how"].as_str().unwrap_or("the script does not say").to_string();
        let target = Target::AtLeast(if workload.requests == 1 { 3.0 } else { 5.0 });
        let ratio = theirs.filter(|theirs| *theirs > 0.0).map(|t| ours.tokens_per_second / t);
        comparison.pairs.push(Pair { ours, theirs, how, ratio, target });
        report(&comparison)?;
    }
    Ok(())
}

fn ask(ctx: &Context, script: &Path, workload: &Workload) -> Result<Value> {
    let out = std::env::temp_dir().join(format!("strata-compare-{}.json", std::process::id()));
    let python = std::env::var("STRATA_PYTHON").unwrap_or_else(|_| "python3".into());
    let config = ctx.fixtures.join(workload.config);
    let options = json!({
        "config": config, "requests": workload.requests, "prompt": workload.prompt,
        "answer": workload.answer, "out": out,
        "device": if ctx.gpu.is_emulated() { "cpu" } else { "cuda" },
    });
    let status = Command::new(&python)
        .arg(script)
        .arg(options.to_string())
        .status()
        .with_context(|| format!("{python}: STRATA_PYTHON names another one"))?;
    let text = std::fs::read_to_string(&out);
    let _ = std::fs::remove_file(&out);
    ensure!(status.success(), "{} ended with {status}: see above", script.display());
    let text = text.with_context(|| out.display().to_string())?;
    serde_json::from_str(&text).with_context(|| format!("what {} wrote", script.display()))
}

fn find_script() -> Result<PathBuf> {
    let program = std::env::current_exe().context("where is this program?")?;
    let here = std::env::current_dir().context("the current directory")?;
    let beside = program.parent().map(|folder| folder.join(SCRIPT));
    let in_tree = here.ancestors().map(|folder| folder.join("gpu/compare").join(SCRIPT));
    match beside.into_iter().chain(in_tree).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => bail!("{SCRIPT} is neither beside this program nor in gpu/compare"),
    }
}
