//! Finds the first layer of a model whose output is wrong.
//!
//! One wrong op makes all later results wrong. So the model is run on a prompt whose hidden rows are known (a golden
//! dump from another implementation), and its taps are compared in the order of computation: the error is in the first
//! tap that differs.

use std::fmt;
use std::path::Path;

use l1_tensor::safetensors::SafetensorsFile;
use l1_tensor::{DType, Precision, Runtime};

use crate::config::Op;
use crate::{
    Batch, ContiguousState, Decoder, Error, ModelConfig, Result, Tap, Workspace, WorkspaceSpec,
};

/// Difference of a tap from the golden one.
#[derive(Clone, Debug, PartialEq)]
pub struct TapError {
    /// Name of the tap.
    pub tap: Tap,
    /// Largest error of the tap, divided by `max(1, largest golden value)`.
    pub error: f32,
    /// Index of the token of the worst element.
    pub token: usize,
    /// Index of the worst element in its row.
    pub element: usize,
    /// Index of the first token whose row is beyond the tolerance.
    pub first_token: Option<usize>,
    /// Golden value of the worst element.
    pub expected: f32,
    /// Value of the worst element.
    pub got: f32,
}

/// Result of a comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Bound for the error of a tap.
    pub tolerance: f32,
    /// Tokens of the golden prompt.
    pub tokens: usize,
    /// Differences of all taps of the golden file, in the order of computation.
    pub taps: Vec<TapError>,
    causes: Vec<&'static str>,
}

impl Comparison {
    /// First tap beyond the tolerance.
    pub fn first_wrong(&self) -> Option<&TapError> {
        self.taps.iter().find(|t| t.first_token.is_some())
    }

    /// Usual causes of an error that begins at that tap.
    pub fn likely_causes(&self) -> &[&'static str] {
        &self.causes
    }
}

/// The tolerance used when none is given: rounding alone stays well below it.
pub fn default_tolerance(precision: Precision) -> f32 {
    match precision {
        Precision::F32 => 2e-3,
        Precision::Bf16 => 5e-2,
    }
}

/// Runs `decoder` over the prompt of a golden safetensors file (`tokens`, and any taps by name), and compares every tap
/// in the file.
///
/// # Errors
/// [`Error::Golden`] for a file that has no prompt, no taps, or taps of other shapes.
pub fn compare(
    rt: &Runtime,
    decoder: &Decoder,
    golden: &Path,
    tolerance: f32,
) -> Result<Comparison> {
    let bad = |why: String| Error::Golden { path: golden.into(), why };
    let file = SafetensorsFile::open(golden)?;
    let tokens = read_tokens(&file).map_err(bad)?;
    let config = decoder.config();
    let names = file.names();
    let present: Vec<Tap> = Tap::all(config.layers.len())
        .into_iter()
        .filter(|tap| names.contains(&tap.to_string()))
        .collect();
    if present.is_empty() {
        let why = "it holds none of this model's taps (embed, layers.0.attn, .., logits)";
        return Err(bad(why.into()));
    }
    let t = tokens.len();
    let spec = WorkspaceSpec { max_tokens: t, max_rows: t, max_context: t };
    let mut ws = Workspace::new(rt, config, spec)?;
    let mut state = ContiguousState::new_on(rt.device(), config, 1, t, rt.activation_dtype())?;
    let positions: Vec<i32> = (0..t as i32).collect();
    let rows: Vec<u32> = (0..t as u32).collect();
    let batch = Batch {
        tokens: &tokens,
        positions: &positions,
        cu_seqlens_q: &[0, t as i32],
        state_slots: &[0],
        logit_rows: &rows,
        taps: &present,
        ..Batch::default()
    };
    decoder.forward(&batch, &mut state, &mut ws)?;
    // exercise l2.compare
    let mut taps = Vec::new();
    for tap in present {
        let expected = file.tensor(&tap.to_string())?.to_vec_f32()?;
        let got = match ws.tapped(tap) {
            Some(rows) => rows.to_vec_f32()?,
            None => continue,
        };
        if expected.len() != got.len() {
            let why = format!(
                "`{tap}` holds {} numbers, this model makes {} for {t} tokens: is it the golden of another model?",
                expected.len(),
                got.len()
            );
            return Err(bad(why));
        }
        taps.push(tap_error(tap, &expected, &got, t, tolerance));
    }
    let wrong = taps.iter().find(|e| e.first_token.is_some());
    let causes = wrong.map_or(vec![], |e| likely_causes(e, config));
    Ok(Comparison { tolerance, tokens: t, taps, causes })
    // end of exercise
}

fn read_tokens(file: &SafetensorsFile) -> std::result::Result<Vec<u32>, String> {
    const NEED: &str = "it needs a 1-d tensor `tokens` of token ids";
    let tensor = file.tensor("tokens").map_err(|_| NEED.to_string())?;
    let id = |v: i64| u32::try_from(v).map_err(|_| format!("token id {v} is not possible"));
    let ids = match tensor.dtype() {
        DType::I64 => {
            let ids = tensor.view().as_slice::<i64>("tokens").map_err(|e| e.to_string())?;
            ids.iter().map(|v| id(*v)).collect::<std::result::Result<Vec<_>, _>>()?
        }
        DType::I32 => {
            let ids = tensor.view().as_slice::<i32>("tokens").map_err(|e| e.to_string())?;
            ids.iter().map(|v| id(i64::from(*v))).collect::<std::result::Result<Vec<_>, _>>()?
        }
        other => return Err(format!("{NEED}, as I32 or I64, not {other}")),
    };
    if ids.is_empty() { Err(NEED.into()) } else { Ok(ids) }
}

fn tap_error(tap: Tap, expected: &[f32], got: &[f32], tokens: usize, tolerance: f32) -> TapError {
    // exercise l2.compare
    let width = expected.len() / tokens;
    let size = expected.iter().fold(1.0f32, |m, x| m.max(x.abs()));
    let mut worst = TapError {
        tap,
        error: 0.0,
        token: 0,
        element: 0,
        first_token: None,
        expected: expected.first().copied().unwrap_or(0.0),
        got: got.first().copied().unwrap_or(0.0),
    };
    for (i, (e, g)) in expected.iter().zip(got).enumerate() {
        let error = (e - g).abs() / size;
        // A NaN on one side only is as wrong as can be.
        let error = if e.is_nan() && g.is_nan() { 0.0 } else { error };
        let error = if error.is_nan() { f32::INFINITY } else { error };
        if error > tolerance && worst.first_token.is_none() {
            worst.first_token = Some(i / width);
        }
        if error > worst.error {
            let (token, element) = (i / width, i % width);
            worst = TapError { error, token, element, expected: *e, got: *g, ..worst };
        }
    }
    worst
    // end of exercise
}

/// Diagnoses the pattern of the error. At position 0 rope rotates by 0 and attention sees one key, so its output is
/// `o(v)`: an attention that is right there and wrong later has a wrong q or k.
fn likely_causes(wrong: &TapError, config: &ModelConfig) -> Vec<&'static str> {
    let from_start = wrong.first_token == Some(0);
    match wrong.tap {
        Tap::Embed => vec![
            "the embedding matrix: wrong tensor, transposed, or dequantised wrongly",
            "token ids off by one, or another tokenizer's",
        ],
        Tap::Fused => vec!["`fc`: its input must be the embedding, then the hidden row"],
        Tap::Attn(i) => attention_causes(i, from_start, wrong.first_token, config),
        Tap::Mlp(_) => vec![
            "gate and up exchanged, or the activation applied to the wrong one",
            "another activation than the config's (silu, gelu, tanh gelu)",
            "the norm before the MLP: its weight, its eps, or eps outside of the root",
        ],
        Tap::Residual(_) => {
            vec!["the residual connection: a branch not added, added twice, or scaled"]
        }
        Tap::FinalNorm => vec!["the final norm: its weight or eps"],
        Tap::Logits => vec![
            "tied embeddings: the output projection must be the embedding matrix, or must not",
            "logits of other rows than those asked for",
        ],
    }
}

fn attention_causes(
    i: usize,
    from_start: bool,
    first: Option<usize>,
    config: &ModelConfig,
) -> Vec<&'static str> {
    let ops = config.layers.get(i).into_iter().flat_map(|l| &l.branches).map(|b| &b.op);
    let attention = ops.into_iter().find_map(|op| match op {
        Op::Attention(a) => Some(a),
        Op::Mlp(_) => None,
    });
    let mut causes = Vec::new();
    if from_start {
        causes.push("the norm before attention: its weight, its eps, or eps outside of the root");
        causes.push("the v or o projection: wrong rows, transposed, or a bias left out");
        causes.push("query heads mapped to the wrong KV head (h / group, not h % kv_heads)");
        causes.push("the causal mask off by one: token 0 must see its own key and no other");
        return causes;
    }
    let window = attention.and_then(|a| a.window);
    if let (Some(w), Some(first)) = (window, first)
        && first + 1 >= w
    {
        causes.push("the sliding window: a query sees itself and window - 1 keys before it");
    }
    causes.push("rope: rotate-half against interleaved pairs, its theta or its scaling");
    causes.push("the q or k projection: GGUF's row permutation not undone, or a bias left out");
    if attention.is_some_and(|a| a.qk_norm.is_some()) {
        causes.push("q/k norm: before rope, over each head, with its own weight");
    }
    // Positions that all start at 1 change no score: rope depends on their differences only.
    causes.push("positions that queries and keys count differently: one of the two off by one");
    causes.push("the scale of the scores: 1 / sqrt(head_dim)");
    causes
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(wrong) = self.first_wrong() else {
            let worst = self.taps.iter().map(|t| t.error).fold(0.0, f32::max);
            return write!(
                f,
                "all {} taps agree over {} tokens: largest error {worst:.2e}, tolerance {:.0e}",
                self.taps.len(),
                self.tokens,
                self.tolerance
            );
        };
        let layer = match wrong.tap.layer() {
            Some(i) => format!("layer {i}"),
            None => "outside the layers".into(),
        };
        let right = self.taps.iter().position(|t| t.tap == wrong.tap).unwrap_or(0);
        writeln!(f, "first wrong: {} ({layer})", wrong.tap)?;
        writeln!(f, "  taps before it that agree: {right}")?;
        writeln!(f, "  first token beyond tolerance: {}", wrong.first_token.unwrap_or(0))?;
        writeln!(
            f,
            "  worst element: token {}, element {}: expected {}, got {} (error {:.2e}, tolerance {:.0e})",
            wrong.token, wrong.element, wrong.expected, wrong.got, wrong.error, self.tolerance
        )?;
        write!(f, "  likely causes:")?;
        for cause in &self.causes {
            write!(f, "\n  - {cause}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
