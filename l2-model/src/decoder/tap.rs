//! Named places in the forward pass where hidden rows can be read.

use std::fmt;
use std::str::FromStr;

/// A named point of the forward pass. Its rows are f32 `[T, H]`; for logits `[R, V]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tap {
    /// The embedding rows.
    Embed,
    /// In a draft head: the rows that enter its layer, made of embedding and hidden rows by `fc`.
    Fused,
    /// Layer `i`'s attention, after the output projection, before it joins the residual stream.
    Attn(usize),
    /// Layer `i`'s MLP, before it joins the residual stream.
    Mlp(usize),
    /// The residual stream as it leaves layer `i`.
    Residual(usize),
    /// After the last norm.
    FinalNorm,
    /// Logits of `Batch::logit_rows`.
    Logits,
}

impl Tap {
    /// Returns every tap of a decoder of `layers` layers, in the order of computation.
    pub fn all(layers: usize) -> Vec<Tap> {
        let inside = (0..layers).flat_map(|i| [Tap::Attn(i), Tap::Mlp(i), Tap::Residual(i)]);
        [Tap::Embed].into_iter().chain(inside).chain([Tap::FinalNorm, Tap::Logits]).collect()
    }

    /// Index of the layer; `None` for taps outside the layers.
    pub fn layer(self) -> Option<usize> {
        match self {
            Tap::Attn(i) | Tap::Mlp(i) | Tap::Residual(i) => Some(i),
            Tap::Embed | Tap::Fused | Tap::FinalNorm | Tap::Logits => None,
        }
    }
}

impl fmt::Display for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tap::Embed => f.write_str("embed"),
            Tap::Fused => f.write_str("fused"),
            Tap::Attn(i) => write!(f, "layers.{i}.attn"),
            Tap::Mlp(i) => write!(f, "layers.{i}.mlp"),
            Tap::Residual(i) => write!(f, "layers.{i}.residual"),
            Tap::FinalNorm => f.write_str("final_norm"),
            Tap::Logits => f.write_str("logits"),
        }
    }
}

impl FromStr for Tap {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let layer = || {
            let (i, part) = s.strip_prefix("layers.")?.split_once('.')?;
            let i = i.parse().ok()?;
            match part {
                "attn" => Some(Tap::Attn(i)),
                "mlp" => Some(Tap::Mlp(i)),
                "residual" => Some(Tap::Residual(i)),
                _ => None,
            }
        };
        match s {
            "embed" => Ok(Tap::Embed),
            "fused" => Ok(Tap::Fused),
            "final_norm" => Ok(Tap::FinalNorm),
            "logits" => Ok(Tap::Logits),
            _ => layer().ok_or_else(|| format!("`{s}` is not a tap")),
        }
    }
}
