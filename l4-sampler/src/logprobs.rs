//! Log probabilities of a token and of the most likely tokens.
//!
//! `ln softmax(x)[i] = (x[i] - max) - ln sum(e^(x - max))`: never the logarithm of a probability, which may underflow
//! to 0 where its logarithm is an ordinary number.

mod best;

use l1_tensor::cpu::Isa;
use l1_tensor::cpu::lanes::{LANES, accumulate, dispatch, exp, fold_lanes};

use self::best::Best;
use crate::error::{Error, ParamError};
use crate::processors::logit;
use crate::{Distribution, Result};

/// Distribution that log probabilities are taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogprobsOf {
    /// The model's own distribution, before bias, penalties, temperature and filters.
    #[default]
    Raw,
    /// The distribution that was sampled from, after temperature and filters. Tokens that were filtered out are not
    /// reported.
    Processed,
}

/// Log probabilities to return with each token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogprobsRequest {
    /// Number of most likely tokens, besides the sampled one.
    pub top: usize,
    /// Distribution that they are taken from.
    pub of: LogprobsOf,
}

/// Log probabilities (natural logarithms) of a token and its alternatives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// Sampled token.
    pub id: u32,
    /// Its log probability.
    pub logprob: f32,
    /// Number of tokens that are more likely (0 for the most likely one).
    pub rank: u32,
    /// Most likely tokens, in descending order, equal ones by id. Fewer than requested if fewer have a probability.
    pub top: Vec<(u32, f32)>,
}

/// Buffers for log probabilities, kept by the caller so that a steady step allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct LogprobsScratch {
    best: Best,
}

/// Log probabilities of the token `chosen` and of the `top` most likely ones, from a row as the model gave it. `chosen`
/// must be in the row.
pub fn raw_into(
    isa: Isa,
    logits: &[f32],
    chosen: u32,
    top: usize,
    out: &mut TokenLogprobs,
    scratch: &mut LogprobsScratch,
) {
    let Some(x) = logits.get(chosen as usize).copied().map(logit) else { return };
    // exercise l4.logprobs
    let max = largest(isa, logits);
    let ln_total = mass(isa, logits, max).ln();
    // In f64: the two terms may be large, and their difference small.
    let logprob = |x: f32| ((f64::from(x) - f64::from(max)) - ln_total) as f32;
    out.id = chosen;
    out.logprob = logprob(x);
    out.rank = count_above(isa, logits, x);
    scratch.best.start(top.min(logits.len()));
    gather(isa, logits, &mut scratch.best);
    out.top.clear();
    out.top.extend(scratch.best.finish().map(|(x, id)| (id, logprob(logit(x)))));
    // end of exercise
}

/// Log probabilities of the token `chosen` and of the `top` most likely ones, from the distribution that it was sampled
/// from.
pub fn processed_into(
    distribution: &Distribution,
    chosen: u32,
    top: usize,
    out: &mut TokenLogprobs,
    scratch: &mut LogprobsScratch,
) {
    // exercise l4.logprobs
    let of_chosen = distribution.prob(chosen);
    out.id = chosen;
    out.logprob = of_chosen.ln() as f32;
    out.rank = 0;
    scratch.best.start(top.min(distribution.len()));
    for (id, p) in distribution.iter() {
        out.rank += u32::from(p > of_chosen);
        scratch.best.offer(p.ln() as f32, id);
    }
    out.top.clear();
    out.top.extend(scratch.best.finish().map(|(logprob, id)| (id, logprob)));
    // end of exercise
}

/// Log probabilities of a prompt's own tokens: entry `i` is about `tokens[i]`, from row `i - 1` of `logits` `[T, V]`.
/// The first token has none.
///
/// # Errors
/// Shapes that do not fit, a token out of range, or a `STRATA_CPU` that this processor does not support.
pub fn prompt_logprobs(
    logits: l1_tensor::TensorRef<'_>,
    tokens: &[u32],
    top: usize,
) -> Result<Vec<Option<TokenLogprobs>>> {
    let rows = logits.rows::<f32>("prompt_logprobs")?;
    if rows.n != tokens.len() {
        let what = "rows of logits, one for each token of the prompt";
        return Err(Error::Shape { what, expected: tokens.len(), got: rows.n });
    }
    if let Some(id) = tokens.iter().copied().find(|id| *id as usize >= rows.len) {
        return Err(ParamError::TokenOutOfRange { name: "the prompt", id, vocab: rows.len }.into());
    }
    let isa = Isa::from_env()?;
    let mut scratch = LogprobsScratch::default();
    // exercise l4.logprobs
    let mut out = Vec::with_capacity(tokens.len());
    for (i, token) in tokens.iter().enumerate() {
        // Row i is about what comes after token i.
        out.push((i > 0).then(|| {
            let mut about = TokenLogprobs::default();
            raw_into(isa, rows.row(i - 1), *token, top, &mut about, &mut scratch);
            about
        }));
    }
    Ok(out)
    // end of exercise
}

dispatch! {
    /// Largest logit.
    fn largest<const FMA: bool>(logits: &[f32]) -> f32 {
        logit(l1_tensor::cpu::lanes::max_of(logits))
    }

    /// Sum of `e^(x - max)`.
    fn mass<const FMA: bool>(logits: &[f32], max: f32) -> f64 {
        let lanes = accumulate(logits, 0.0, |sum, x| sum + f64::from(exp::<FMA>(logit(x) - max)));
        fold_lanes(lanes, |a, b| a + b)
    }

    /// Number of logits above `x`.
    fn count_above<const FMA: bool>(logits: &[f32], x: f32) -> u32 {
        fold_lanes(accumulate(logits, 0, |n, y| n + u32::from(logit(y) > x)), |a, b| a + b)
    }

    /// Offers all logits to `best`, skipping groups of sixteen of which none is above the bar.
    fn gather<const FMA: bool>(logits: &[f32], best: &mut Best) {
        for (chunk, at) in logits.chunks(LANES).zip((0u32..).step_by(LANES)) {
            let bar = best.bar();
            if chunk.iter().fold(false, |any, x| any | (*x > bar)) {
                for (x, id) in chunk.iter().zip(at..) {
                    best.offer(*x, id);
                }
            }
        }
    }
}
