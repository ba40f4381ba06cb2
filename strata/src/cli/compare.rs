//! `strata compare`: names the first layer that differs from a golden dump.

use std::path::PathBuf;
use std::process::ExitCode;

use l1_tensor::{Precision, PrecisionRequest};
use l2_model::compare::{compare, default_tolerance};

use super::args::{ModelArgs, RuntimeArgs};
use super::context::Context;
use super::load::Loaded;
use super::out;

/// Compare every layer with a golden dump, and name the first that differs
///
/// The dump is a safetensors file with the prompt (`tokens`) and hidden states by name: embed, layers.0.attn,
/// layers.0.mlp, layers.0.residual, .., final_norm, logits. The exit code is 1 if one exceeds the tolerance.
/// `--precision auto` means f32 here, as rounding to bf16 would hide errors.
#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Golden safetensors file
    #[arg(long, value_name = "FILE")]
    golden: PathBuf,
    /// Maximum error, relative to the largest value of the hidden state [default: 2e-3 in f32, 5e-2 in bf16]
    #[arg(long, value_name = "X", value_parser = tolerance)]
    tolerance: Option<f32>,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

fn tolerance(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(x) if x >= 0.0 => Ok(x),
        _ => Err("must be a number, 0 or more".into()),
    }
}

/// Runs the command.
///
/// # Errors
/// What loading reports; a golden file that does not fit the model.
pub fn run(args: &CompareArgs, context: &Context) -> anyhow::Result<ExitCode> {
    let mut runtime = args.runtime.clone();
    if runtime.device.precision == PrecisionRequest::Auto {
        runtime.device.precision = PrecisionRequest::Exactly(Precision::F32);
    }
    let model = Loaded::open(&args.model, &runtime, context)?;
    let tolerance = args.tolerance.unwrap_or_else(|| default_tolerance(model.rt.precision()));
    let comparison = compare(&model.rt, &model.decoder, &args.golden, tolerance)?;
    out::text(&format!("{comparison}\n"))?;
    Ok(ExitCode::from(u8::from(comparison.first_wrong().is_some())))
}
