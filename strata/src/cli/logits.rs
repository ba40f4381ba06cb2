//! `strata logits`: the logits of the next token.

use l1_tensor::ops::{TopKScratch, top_k};
use l1_tensor::{Runtime, TensorRef};
use l2_model::{
    Batch, BatchError, ContiguousState, Decoder, Error, Workspace, WorkspaceSpec,
    generate::PREFILL_CHUNK,
};
use l5_scheduler::{AdapterFailure, RequestAdapter};
use serde::Serialize;

use super::adapter::AdapterArgs;
use super::args::{ModelArgs, RuntimeArgs, TokenIds};
use super::context::Context;
use super::load::Loaded;
use super::out::Out;

/// Rows of logits held at a time. A row is as wide as the vocabulary, half a megabyte for a large one, so a long
/// prompt is computed in chunks of this many tokens and is printed as it comes.
pub(super) const ROWS: usize = 64;

/// Print the logits after each token of a prompt
#[derive(Debug, clap::Args)]
pub struct LogitsArgs {
    /// Prompt as token ids: 1,2,3
    #[arg(long, value_name = "IDS", allow_hyphen_values = true)]
    tokens: TokenIds,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    adapter: AdapterArgs,
    /// Print every position, not only the last
    #[arg(long)]
    all: bool,
    /// Number of largest logits to print
    #[arg(long, value_name = "K", default_value_t = 10)]
    top: usize,
    /// Also print all logits, in the order of the ids (needs --json)
    #[arg(long, requires = "json")]
    full: bool,
    /// Print JSON: {"positions": [{"position", "top": [[id, logit, logprob], ..], "logits"}, ..]}
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

/// The logits after one token, as `--json` prints them.
#[derive(Serialize)]
struct Position<'a> {
    position: usize,
    /// Id, logit, and natural logarithm of the probability; the largest logit first, of equal ones the lower id.
    top: Vec<(u32, f32, f32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logits: Option<&'a [f32]>,
}

/// Runs the command.
///
/// # Errors
/// What loading and the forward pass report; logits that are NaN.
pub fn run(args: &LogitsArgs, context: &Context) -> anyhow::Result<()> {
    let model = Loaded::open(&args.model, &args.runtime, context)?;
    let config = model.decoder.config();
    let tokens = &args.tokens.0;
    check(tokens, config.vocab, config.max_context)?;
    let adapter = args.adapter.open(&model.rt, config, context)?;
    let mut out = Out::new();
    let mut scratch = TopKScratch::new(args.top.min(config.vocab));
    if args.json {
        out.text("{\"positions\":[")?;
    }
    let mut first = true;
    let chunk = if args.all { ROWS } else { PREFILL_CHUNK };
    let adapted = (&model.decoder, adapter.as_ref());
    each_position(&model.rt, adapted, tokens, args.all, chunk, |position, row| {
        let top = largest(row, args.top, &mut scratch)?;
        if args.json {
            let logits = args.full.then(|| row.as_slice("logits")).transpose()?;
            out.text(if first { "" } else { "," })?;
            out.json(&Position { position, top, logits })?;
            first = false;
        } else {
            out.text(&format!("position {position}, after token {}\n", tokens[position]))?;
            for (id, logit, logprob) in top {
                let token = model.tokenizer.as_ref().ok().and_then(|t| t.id_to_token(id));
                let token = token.map(|p| format!("  {p:?}")).unwrap_or_default();
                out.text(&format!("{id:>8}  {logit:>9.4}  {logprob:>9.4}{token}\n"))?;
            }
        }
        Ok(())
    })?;
    if args.json {
        out.text("]}\n")?;
    }
    Ok(out.finish()?)
}

/// Rejects what the forward pass would reject, before any output is printed.
fn check(tokens: &[u32], vocab: usize, context: usize) -> Result<(), Error> {
    if tokens.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if tokens.len() > context {
        return Err(Error::PromptTooLong { tokens: tokens.len(), context });
    }
    match tokens.iter().find(|id| **id as usize >= vocab) {
        Some(&id) => Err(BatchError::TokenOutOfRange { id, vocab }.into()),
        None => Ok(()),
    }
}

/// Runs `tokens` through the model, with an adapter if there is one, `chunk` at a time, and hands the logits `[V]` after
/// each one to `visit` (only those after the last, unless `all`). Only rows that are visited pay for the output
/// projection.
///
/// # Errors
/// What the forward pass reports; logits of which one is NaN, naming the adapter if there is one.
pub(super) fn each_position(
    rt: &Runtime,
    (decoder, adapter): (&Decoder, Option<&RequestAdapter>),
    tokens: &[u32],
    all: bool,
    chunk: usize,
    mut visit: impl FnMut(usize, TensorRef<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let n = tokens.len();
    let max_tokens = chunk.min(n);
    let max_rows = if all { max_tokens } else { 1 };
    let spec = WorkspaceSpec { max_tokens, max_rows, max_context: n };
    let mut ws = Workspace::new(rt, decoder.config(), spec)?;
    let adapters: &[i32] = if adapter.is_some() { &[0] } else { &[] };
    if let Some(adapter) = adapter {
        ws.allow_adapters(adapter.weights.rank())?;
        ws.set_adapter(0, Some(adapter.weights.clone()))?;
    }
    let (config, dtype) = (decoder.config(), rt.activation_dtype());
    let mut state = ContiguousState::new_on(rt.device(), config, 1, n, dtype)?;
    for (i, part) in tokens.chunks(max_tokens).enumerate() {
        let start = i * max_tokens;
        let positions: Vec<i32> = (start..start + part.len()).map(|p| p as i32).collect();
        let last = start + part.len() == n;
        let rows: Vec<u32> = match (all, last) {
            (true, _) => (0..part.len() as u32).collect(),
            (false, true) => vec![part.len() as u32 - 1],
            (false, false) => vec![],
        };
        let batch = Batch {
            tokens: part,
            positions: &positions,
            cu_seqlens_q: &[0, part.len() as i32],
            state_slots: &[0],
            adapters,
            logit_rows: &rows,
            ..Batch::default()
        };
        let logits = decoder.forward(&batch, &mut state, &mut ws)?;
        let mut copy = None;
        let logits = logits.on_cpu(&mut copy)?;
        for (r, row) in rows.iter().enumerate() {
            let one = logits.narrow(0, r, 1)?.reshape(&[decoder.config().vocab])?;
            let position = start + *row as usize;
            check_numbers(one, position, adapter)?;
            visit(position, one)?;
        }
    }
    Ok(())
}

/// Rejects logits `[V]` that no token can be chosen by.
fn check_numbers(
    logits: TensorRef<'_>,
    position: usize,
    adapter: Option<&RequestAdapter>,
) -> anyhow::Result<()> {
    if !logits.as_slice::<f32>("logits")?.iter().any(|x| x.is_nan()) {
        return Ok(());
    }
    match adapter {
        Some(adapter) => Err(AdapterFailure::NotFinite { name: adapter.name.clone() }.into()),
        None => anyhow::bail!(
            "the logits at position {position} are NaN: the model's weights are damaged or too large; fetch or convert \
             the model again"
        ),
    }
}

/// The `k` largest of `row` `[V]`: (id, logit, logprob).
///
/// ```text
/// logprob(i) = x[i] - max(x) - ln(sum over j of exp(x[j] - max(x)))
/// ```
fn largest(
    row: TensorRef<'_>,
    k: usize,
    scratch: &mut TopKScratch,
) -> anyhow::Result<Vec<(u32, f32, f32)>> {
    let x = row.as_slice::<f32>("logits")?;
    let k = k.min(x.len());
    let (mut values, mut ids) = (vec![0.0; k], vec![0; k]);
    let k = top_k(row, &mut values, &mut ids, scratch)?;
    // In f64: a sum of a hundred thousand terms is where f32 begins to lose digits that are printed.
    let max = f64::from(x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let log_sum = x.iter().map(|v| (f64::from(*v) - max).exp()).sum::<f64>().ln() + max;
    let with_logprob = |(id, v): (&u32, &f32)| (*id, *v, (f64::from(*v) - log_sum) as f32);
    Ok(ids[..k].iter().zip(&values[..k]).map(with_logprob).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use l1_tensor::{RuntimeOptions, Tensor};
    use l2_model::ModelFiles;
    use std::path::Path;

    fn top_of(x: &[f32], k: usize) -> Vec<(u32, f32, f32)> {
        let row = Tensor::from_slice(x, &[x.len()]).unwrap();
        largest(row.view(), k, &mut TopKScratch::new(k)).unwrap()
    }

    #[test]
    fn probabilities_of_all_tokens_sum_to_one_whatever_the_offset() {
        for offset in [0.0, -1000.0, 1000.0] {
            let x: Vec<f32> = (0..50).map(|i| (i * 37 % 50) as f32 * 0.25 + offset).collect();
            let top = top_of(&x, 50);
            let sum: f64 = top.iter().map(|(.., p)| f64::from(*p).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-5, "{sum}");
            assert!(top.is_sorted_by(|a, b| a.1 > b.1 && a.2 > b.2));
        }
    }

    #[test]
    fn of_equal_logits_the_lower_id_comes_first_and_k_may_be_anything() {
        let ids = |k| top_of(&[1.0, 3.0, 3.0, 2.0], k).iter().map(|t| t.0).collect::<Vec<_>>();
        assert_eq!(ids(3), [1, 2, 3]);
        assert!(ids(0).is_empty());
        assert_eq!(ids(1000), [1, 2, 3, 0]);
    }

    #[test]
    fn what_json_cannot_say_becomes_null() {
        let top = top_of(&[f32::NAN, f32::INFINITY, 0.1], 3);
        let position =
            Position { position: 0, top, logits: Some(&[f32::NAN, 0.1, -f32::INFINITY]) };
        let text = serde_json::to_string(&position).unwrap();
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
        assert!(text.contains("[null,0.1,null]"), "{text}");
    }

    #[test]
    fn chunks_of_any_size_give_the_same_bits() {
        let rt = Runtime::new(RuntimeOptions { threads: Some(2), ..Default::default() }).unwrap();
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
        let decoder = ModelFiles::open(&dir).unwrap().decoder(&rt).unwrap();
        let tokens: Vec<u32> = (0..23).map(|i| i * 7 % 380).collect();
        let rows = |all: bool, chunk: usize| {
            let mut rows = vec![];
            each_position(&rt, (&decoder, None), &tokens, all, chunk, |position, row| {
                let bits = row.as_slice::<f32>("test")?.iter().map(|x| x.to_bits());
                rows.push((position, bits.collect::<Vec<_>>()));
                Ok(())
            })
            .unwrap();
            rows
        };
        let whole = rows(true, 64);
        assert_eq!(whole.len(), 23);
        for chunk in [1, 5, 22] {
            assert!(rows(true, chunk) == whole, "chunks of {chunk}");
            assert!(rows(false, chunk) == whole[22..], "the last row, chunks of {chunk}");
        }
    }
}
