//! `strata perplexity`: how well a model predicts a text.
//!
//! ```text
//! text -> tokens -> windows of N tokens, none of which overlap
//! nll(i)     = -ln p(token i | the tokens before it in its window)
//! mean       = sum of nll / number of scored tokens
//! perplexity = exp(mean)
//! ```
//!
//! The text is tokenized without special tokens. If the model's prompts begin with special tokens (mostly BOS), each
//! window begins with them, and they count as a part of its length: all tokens of the text are scored. If not, nothing
//! precedes the first token of a window, which is not scored.

use serde::Serialize;

use super::adapter::AdapterArgs;
use super::args::{ModelArgs, RuntimeArgs};
use super::context::Context;
use super::error::CliError;
use super::load::Loaded;
use super::logits::{ROWS, each_position};
use super::options::values::count;
use super::out;
use super::progress;
use super::prompt::text_of;
use server::words;

/// Measure how well a model predicts a text: its perplexity
///
/// The text is cut into windows of N tokens that do not overlap. A token is predicted from the tokens before it in its
/// window, and the perplexity is the exponential of the mean of -ln p. Compare only figures of the same text, tokenizer
/// and N.
#[derive(Debug, clap::Args)]
pub struct PerplexityArgs {
    /// The text, a UTF-8 file; - for stdin
    #[arg(value_name = "FILE")]
    file: String,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    adapter: AdapterArgs,
    /// Number of tokens of a window, special tokens included, at least 2 [default: the model's context length]
    #[arg(long, value_name = "N", value_parser = count)]
    context: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

/// What was measured, as `--json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Measured {
    /// `null` where it is infinite in f64: JSON has no infinity.
    perplexity: f64,
    /// Standard error of the perplexity; `null` of one token, or where it is infinite.
    perplexity_error: Option<f64>,
    /// Mean of -ln p of the scored tokens.
    mean_nll: f64,
    /// Standard error of that mean; `null` of one token.
    mean_nll_error: Option<f64>,
    /// Number of scored tokens.
    scored: usize,
    /// Number of tokens of the text.
    tokens: usize,
    windows: usize,
    context: usize,
}

/// Runs the command.
///
/// # Errors
/// What the file, loading and the forward pass report; a text or a window of too few tokens.
pub fn run(args: &PerplexityArgs, context: &Context) -> anyhow::Result<()> {
    let text = match args.file.as_str() {
        "-" => text_of("-")?,
        path => std::fs::read_to_string(path)
            .map_err(|reason| CliError::Input { what: path.to_owned(), reason })?,
    };
    let Loaded { rt, decoder, tokenizer, .. } = Loaded::open(&args.model, &args.runtime, context)?;
    let (tokenizer, config) = (tokenizer?, decoder.config());
    let adapter = args.adapter.open(&rt, config, context)?;
    let prefix = tokenizer.prefix();
    let tokens = tokenizer.encode(&text, false)?;
    let window = args.context.unwrap_or(config.max_context);
    check(window, prefix.len(), config.max_context)?;
    let mut nlls = Vec::with_capacity(tokens.len());
    let parts = tokens.chunks(window - prefix.len());
    let windows = parts.len();
    let template = "[{wide_bar}] {pos}/{len} tokens {elapsed} of ~{duration}";
    let bar = progress::bar(tokens.len(), template, context);
    for part in parts {
        let all = [prefix, part].concat();
        let (last, inputs) = (all.len() - 1, &all[..all.len() - 1]);
        if inputs.is_empty() {
            continue;
        }
        // The last token predicts nothing, and a token before the first one of the text nothing that is scored.
        let first = prefix.len().max(1);
        each_position(&rt, (&decoder, adapter.as_ref()), inputs, true, ROWS, |position, row| {
            let next = position + 1;
            if (first..=last).contains(&next) {
                let nll = negative_log_probability(row.as_slice("logits")?, all[next]);
                anyhow::ensure!(
                    nll.is_finite(),
                    "the logits of token {next} of a window are not finite"
                );
                nlls.push(nll);
                bar.set_position(nlls.len() as u64);
            }
            Ok(())
        })?;
    }
    drop(bar);
    let Some(mean) = Mean::of(&nlls) else {
        let what = format!(
            "the text has {}, and none can be scored: pass a longer one",
            words::count(tokens.len(), "token")
        );
        return Err(CliError::Usage(what).into());
    };
    let perplexity = mean.value.exp();
    let measured = Measured {
        perplexity,
        perplexity_error: mean.error.map(|error| perplexity * error),
        mean_nll: mean.value,
        mean_nll_error: mean.error,
        scored: nlls.len(),
        tokens: tokens.len(),
        windows,
        context: window,
    };
    if args.json { Ok(out::json_line(&measured)?) } else { Ok(out::text(&sentence(&measured))?) }
}

/// Rejects windows that the model cannot have, and those in which nothing can be scored.
fn check(window: usize, prefix: usize, context: usize) -> anyhow::Result<()> {
    let least = (prefix + 1).max(2);
    if window < least {
        let what = format!("--context must be at least {least} for this model, got {window}");
        return Err(CliError::Usage(what).into());
    }
    if window > context {
        let what = format!("--context must be at most {context} for this model, got {window}");
        return Err(CliError::Usage(what).into());
    }
    Ok(())
}

/// -ln p of a token, from logits `[V]`. In f64: a sum of a hundred thousand terms is where f32 begins to lose digits.
fn negative_log_probability(logits: &[f32], token: u32) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|x| (f64::from(*x) - max).exp()).sum();
    logits.get(token as usize).map_or(f64::NAN, |x| sum.ln() + max - f64::from(*x))
}

/// A mean with its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mean {
    value: f64,
    /// `None` of one number: nothing is known about it.
    error: Option<f64>,
}

impl Mean {
    /// `None` without numbers.
    fn of(numbers: &[f64]) -> Option<Self> {
        if numbers.is_empty() {
            return None;
        }
        let n = numbers.len() as f64;
        let value = numbers.iter().sum::<f64>() / n;
        let squares: f64 = numbers.iter().map(|x| (x - value).powi(2)).sum();
        let error = (numbers.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt());
        Some(Self { value, error })
    }
}

fn sentence(measured: &Measured) -> String {
    let Measured { perplexity, perplexity_error, mean_nll, mean_nll_error, .. } = measured;
    let Measured { scored, tokens, windows, context, .. } = measured;
    let error = |error: &Option<f64>, digits: usize| {
        error.map_or_else(String::new, |error| format!(" +- {error:.digits$}"))
    };
    let (perplexity_error, mean_nll_error) = (error(perplexity_error, 4), error(mean_nll_error, 5));
    format!(
        "perplexity {perplexity:.4}{perplexity_error}\nmean -ln p {mean_nll:.5}{mean_nll_error}\n\
         {scored} of {} scored, in {} of {context}\n",
        words::count(*tokens, "token"),
        words::count(*windows, "window"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_among_equal_ones_has_the_logarithm_of_their_number() {
        for offset in [0.0, 1000.0, -1000.0] {
            let nll = negative_log_probability(&[offset; 8], 3);
            assert!((nll - 8f64.ln()).abs() < 1e-9, "{nll}");
        }
        assert!(negative_log_probability(&[f32::NAN; 4], 0).is_nan());
        assert!(!negative_log_probability(&[0.0], 7).is_finite(), "a token without a logit");
    }

    #[test]
    fn the_error_of_a_mean_is_that_of_its_formula() {
        // Deviations -3, -1, 1, 3: variance 20 / 3 with three degrees of freedom.
        let mean = Mean::of(&[1.0, 3.0, 5.0, 7.0]).unwrap();
        assert_eq!(mean.value, 4.0);
        assert!((mean.error.unwrap() - (20.0f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12, "{mean:?}");
        assert_eq!(Mean::of(&[2.0]), Some(Mean { value: 2.0, error: None }));
        assert_eq!(Mean::of(&[]), None);
    }

    #[test]
    fn a_window_has_room_for_a_token_and_one_before_it_and_fits_the_model() {
        for (window, prefix, fits) in [
            (1, 0, false),
            (2, 0, true),
            (1, 1, false),
            (2, 1, true),
            (2, 2, false),
            (65, 0, false),
        ] {
            assert_eq!(check(window, prefix, 64).is_ok(), fits, "{window}, {prefix}");
        }
    }
}
