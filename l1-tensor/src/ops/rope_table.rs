//! The angles of rotary embedding: one frequency for each pair of elements, stretched as a checkpoint's
//! [`RopeScaling`] says.
//!
//! ```text
//! inv_freq[i] = theta^(-2 i / rotary_dim)        i < rotary_dim / 2
//! angle[t, i] = position[t] * inv_freq[i]
//! ```
//!
//! The first pairs turn fast and distinguish neighbouring positions; the last ones hardly turn within a whole
//! document. Scaling keeps the fast frequencies and slows the slow ones down.
//!
//! The numbers are those of Hugging Face transformers (`modeling_rope_utils.py`), f32 roundings
//! included: a model was trained with them, and at position 131,071 one ulp of a frequency is a
//! hundredth of a radian.

use super::RopeScaling;
use super::rows::{Dst, for_rows};
use crate::gpu::rope::Frequencies;
use crate::{Error, Index, OpKind, Result, Runtime, TensorMut, Work};

const OP: &str = "rope";

/// The frequencies of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    inv_freq: Vec<f32>,
    attention_scaling: f32,
    on_device: Frequencies,
}

impl RopeTable {
    /// Computes frequencies for heads of which `rotary_dim` elements turn (an even number), with base
    /// `theta`.
    ///
    /// # Errors
    /// [`Error::BadParameter`] for invalid sizes or factors.
    pub fn new(rotary_dim: usize, theta: f64, scaling: &RopeScaling) -> Result<Self> {
        if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) || rotary_dim > 1 << 16 {
            return Err(bad(format!("rotary_dim must be even, 2 to 65536, but is {rotary_dim}")));
        }
        scaling.check(theta).map_err(|why| bad(why.to_string()))?;
        let base = wavelengths(rotary_dim, theta);
        let plain = base.iter().map(|b| 1.0 / b);
        let (inv_freq, attention_scaling) = match *scaling {
            RopeScaling::None => (plain.collect(), 1.0),
            RopeScaling::Factors(ref factors) => {
                if factors.len() != base.len() {
                    return Err(bad(format!(
                        "{} factors for {} pairs of elements",
                        factors.len(),
                        base.len()
                    )));
                }
                (plain.zip(factors).map(|(f, by)| f / by).collect(), 1.0)
            }
            RopeScaling::Linear { factor } => (plain.map(|f| f / factor as f32).collect(), 1.0),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position,
            } => {
                let context = original_max_position as f64;
                let stretch =
                    |f| llama3_frequency(f, factor, low_freq_factor, high_freq_factor, context);
                (plain.map(stretch).collect(), 1.0)
            }
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_position,
                attention_factor,
                mscale,
                mscale_all_dim,
                truncate,
            } => {
                let context = original_max_position as f64;
                let ramp =
                    YarnRamp::new(rotary_dim, theta, beta_fast, beta_slow, context, truncate);
                let blend = |(i, b): (usize, &f32)| ramp.blend(i, *b, factor);
                let sharper = match (attention_factor, mscale, mscale_all_dim) {
                    (Some(given), ..) => given,
                    (None, Some(up), Some(down)) if up != 0.0 && down != 0.0 => {
                        yarn_mscale(factor, up) / yarn_mscale(factor, down)
                    }
                    _ => yarn_mscale(factor, 1.0),
                };
                if !(sharper as f32).is_normal() {
                    return Err(bad(format!("mscale makes the attention factor {sharper}")));
                }
                (base.iter().enumerate().map(blend).collect(), sharper as f32)
            }
        };
        Ok(Self { inv_freq, attention_scaling, on_device: Frequencies::default() })
    }

    /// Radians per position of each pair: `[rotary_dim / 2]`.
    pub fn inv_freq(&self) -> &[f32] {
        &self.inv_freq
    }

    /// Factor of cos and sin (1 except for YaRN).
    pub fn attention_scaling(&self) -> f32 {
        self.attention_scaling
    }

    /// Number of elements of a head that rotate.
    pub fn rotary_dim(&self) -> usize {
        self.inv_freq.len() * 2
    }

    /// Writes the cosines and sines of `positions` (T of them) into `cos` and `sin`: f32 `[T, rotary_dim /
    /// 2]`, scaled by [`attention_scaling`](Self::attention_scaling). It runs once per step: all layers share
    /// them.
    ///
    /// The angle is an f32 product, as in transformers. Rounding it costs up to 0.004 radians at position
    /// 131,071; models were trained with the same rounding.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::UnexpectedDType`] or [`Error::UnsupportedLayout`].
    pub fn angles<'a>(
        &self,
        rt: &Runtime,
        positions: impl Into<Index<'a, i32>>,
        cos: TensorMut<'_>,
        sin: TensorMut<'_>,
    ) -> Result<()> {
        const OP: &str = "rope angles";
        let _timed = rt.time(|| (OpKind::Rope, Work::default()));
        let index = positions.into();
        let positions = index.host;
        let want = [positions.len(), self.inv_freq.len()];
        if cos.dims() != want || sin.dims() != want {
            let why = "cos and sin must be [positions, rotary_dim / 2]";
            return Err(Error::ShapeMismatch {
                op: OP,
                why,
                lhs: *cos.layout(),
                rhs: *sin.layout(),
            });
        }
        if let Some(gpu) = rt.gpu() {
            let (f, scaling) = (&self.inv_freq, self.attention_scaling);
            return self.on_device.angles(OP, gpu, f, scaling, index, cos, sin);
        }
        let (cos, sin) = (Dst::<f32>::new(OP, cos)?, Dst::<f32>::new(OP, sin)?);
        // A sine costs a dozen times as much as an operation of the usual ops of `for_rows`.
        for_rows(rt, positions.len(), want[1] * 12, |rows| {
            for t in rows {
                // SAFETY: `for_rows` gives every row to one call.
                let (cos, sin) = unsafe { (cos.row(t), sin.row(t)) };
                // exercise l1.rope_table
                let position = positions[t] as f32;
                for ((c, s), f) in cos.iter_mut().zip(sin).zip(&self.inv_freq) {
                    let (sine, cosine) = (position * f).sin_cos();
                    *c = cosine * self.attention_scaling;
                    *s = sine * self.attention_scaling;
                }
                // end of exercise
            }
        });
        Ok(())
    }
}

fn bad(why: String) -> Error {
    Error::BadParameter { op: OP, why }
}

/// Positions per radian of each pair, `theta^(2 i / rotary_dim)`: the inverse of its frequency.
fn wavelengths(rotary_dim: usize, theta: f64) -> Vec<f32> {
    // exercise l1.rope_table
    let exponent = |i| (2 * i) as f32 / rotary_dim as f32;
    (0..rotary_dim / 2).map(|i| (theta as f32).powf(exponent(i))).collect()
    // end of exercise
}

fn llama3_frequency(f: f32, factor: f64, low: f64, high: f64, context: f64) -> f32 {
    // exercise l1.rope_table
    let wavelength = std::f64::consts::TAU as f32 / f;
    if wavelength < (context / high) as f32 {
        return f;
    }
    if wavelength > (context / low) as f32 {
        return f / factor as f32;
    }
    let smooth = (context as f32 / wavelength - low as f32) / (high - low) as f32;
    (1.0 - smooth) * f / factor as f32 + smooth * f
    // end of exercise
}

/// Position on the ramp: 0 for pairs that are kept, 1 for those that are stretched in full.
struct YarnRamp {
    from: f64,
    to: f64,
}

impl YarnRamp {
    fn new(dim: usize, theta: f64, fast: f64, slow: f64, context: f64, truncate: bool) -> Self {
        // exercise l1.rope_table
        // The pair, as a real number, that makes this many turns within the original context.
        let pair_of = |turns: f64| {
            dim as f64 * (context / (turns * std::f64::consts::TAU)).ln() / (2.0 * theta.ln())
        };
        let (mut from, mut to) = (pair_of(fast), pair_of(slow));
        if truncate {
            (from, to) = (from.floor(), to.ceil());
        }
        let from = from.max(0.0);
        let to = to.min((dim - 1) as f64);
        Self { from, to: if from == to { to + 0.001 } else { to } }
        // end of exercise
    }

    /// Frequency of a pair whose wavelength was `base`.
    fn blend(&self, pair: usize, base: f32, factor: f64) -> f32 {
        // exercise l1.rope_table
        let keep = 1.0 - self.at(pair);
        1.0 / (factor as f32 * base) * (1.0 - keep) + 1.0 / base * keep
        // end of exercise
    }

    fn at(&self, pair: usize) -> f32 {
        // exercise l1.rope_table
        let along = (pair as f32 - self.from as f32) / (self.to - self.from) as f32;
        along.clamp(0.0, 1.0)
        // end of exercise
    }
}

/// `0.1 m ln(factor) + 1`: factor by which attention is sharper over the longer context. 1 for a `factor` of at most 1.
fn yarn_mscale(factor: f64, m: f64) -> f64 {
    // exercise l1.rope_table
    if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 }
    // end of exercise
}
