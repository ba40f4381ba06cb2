//! NVFP4 weights in safetensors: one weight is several tensors.
//!
//! ```text
//! codes    U8 [N, K/2]            two E2M1 floats a byte, the even input in the low half
//! scales   F8_E4M3 [N, K/16]      one for 16 inputs
//! global   F32 [1] or scalar      one for the weight
//!
//! w[n, k] = e2m1(code[n, k]) * e4m3(scale[n, k / 16]) * factor
//!
//!            compressed-tensors            ModelOpt
//! codes      X.weight_packed               X.weight
//! scales     X.weight_scale                X.weight_scale
//! global     X.weight_global_scale         X.weight_scale_2
//! factor     1 / global                    global
//! unused     X.input_global_scale          X.input_scale, X.k_scale, X.v_scale
//! ```
//!
//! Code times scale has at most six significant bits, so it is exact in bf16: all 8 x 127 products are. The factor is
//! not folded in, since that would round. It is applied to the sum of a matmul, in f32
//! ([`Weight::scaled`](l1_tensor::Weight::scaled)).
//!
//! Scales of inputs are those of checkpoints whose activations are quantised too (W4A4). Activations stay in bf16 or
//! f32 here, so they are not read.
//!
//! In a GGUF file, where NVFP4 is a format of blocks, a file made from one of these has the factor of `X.weight` in
//! `X.scale`.

use l1_tensor::{BlockFormat, StoredRow, e4m3};

use super::quant::{StoredType, dequantize, e2m1};
use super::{Checkpoint, CheckpointError, SafetensorsDir, StoredTensor};

/// Number of inputs that share a scale.
pub const GROUP: usize = 16;

/// Error of a weight in NVFP4.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("NVFP4 weight {weight}: {problem}")]
pub struct Nvfp4Error {
    /// The weight, by its Hugging Face name.
    pub weight: String,
    /// What is wrong.
    pub problem: Nvfp4Problem,
}

/// What is wrong with a weight in NVFP4.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Nvfp4Problem {
    /// One of its tensors is missing.
    #[error("{} missing; download the checkpoint again", tensors.join(" and "))]
    Missing {
        /// Names that the tensor may have.
        tensors: Vec<String>,
    },
    /// Both layouts at once.
    #[error("{first} and {second} both hold its factor; export the checkpoint again")]
    Ambiguous {
        /// One tensor.
        first: String,
        /// The other.
        second: String,
    },
    /// A tensor of another type or shape.
    #[error("{tensor} is {found_type} {found:?}, and must be {expected_type} {expected:?}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// Its type.
        found_type: StoredType,
        /// Its shape.
        found: Vec<usize>,
        /// The type it must have.
        expected_type: StoredType,
        /// The shape it must have.
        expected: Vec<usize>,
    },
    /// A row that is no whole number of groups.
    #[error("its rows of {inputs} inputs are no whole groups of {GROUP}; it cannot be NVFP4")]
    Rows {
        /// Length of a row.
        inputs: usize,
    },
    /// A factor that is no positive number.
    #[error(
        "{tensor} is {value}, and a factor must be positive and finite: the checkpoint was not calibrated, \
         export it again"
    )]
    Global {
        /// The tensor.
        tensor: String,
        /// Its value.
        value: f32,
    },
    /// A scale that is negative or not a number.
    #[error(
        "the scale of inputs {}..{} of row {row} is {}: the checkpoint is damaged, download it again",
        group * GROUP,
        (group + 1) * GROUP,
        e4m3::to_f32(*code)
    )]
    Scale {
        /// Row of the weight.
        row: usize,
        /// Group of the row.
        group: usize,
        /// The E4M3 code.
        code: u8,
    },
}

/// A weight as a checkpoint stores it.
#[derive(Clone, Copy, Debug)]
pub enum Stored<'a> {
    /// One tensor, in any format.
    Plain(StoredTensor<'a>),
    /// Codes and scales in tensors of their own.
    Nvfp4(Nvfp4<'a>),
    /// One tensor in blocks, all of whose weights have a factor.
    Scaled(StoredTensor<'a>, f32),
}

impl<'a> Stored<'a> {
    /// Name of the weight, or of its only tensor in the file.
    pub fn name(&self) -> &'a str {
        match self {
            Stored::Plain(t) | Stored::Scaled(t, _) => t.name,
            Stored::Nvfp4(w) => weight_of(&w.codes),
        }
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        match self {
            Stored::Plain(t) | Stored::Scaled(t, _) => t.n_rows(),
            Stored::Nvfp4(w) => w.codes.n_rows(),
        }
    }

    /// Number of weights in a row.
    pub fn row_len(&self) -> usize {
        match self {
            Stored::Plain(t) | Stored::Scaled(t, _) => t.row_len(),
            Stored::Nvfp4(w) => w.codes.row_len(),
        }
    }

    /// Number that all weights are to be multiplied by; `None` where there is none.
    pub fn factor(&self) -> Option<f32> {
        match self {
            Stored::Plain(_) => None,
            Stored::Scaled(_, factor) => Some(*factor),
            Stored::Nvfp4(w) => Some(w.factor),
        }
    }

    /// The format in which a weight keeps it in memory; `None` where it is expanded.
    pub fn blocks(&self) -> Option<BlockFormat> {
        match self {
            Stored::Plain(t) | Stored::Scaled(t, _) => t.ty.blocks(),
            Stored::Nvfp4(_) => Some(BlockFormat::NVFP4_SPLIT),
        }
    }

    /// One row in the format [`blocks`](Self::blocks).
    ///
    /// # Errors
    /// [`Nvfp4Error`].
    pub(crate) fn blocks_of_row(&self, row: usize) -> Result<StoredRow<'a>, Nvfp4Error> {
        match self {
            Stored::Plain(t) | Stored::Scaled(t, _) => Ok(t.row(row).unwrap_or_default().into()),
            Stored::Nvfp4(w) => {
                let (codes, scales) = w.row(row)?.unwrap_or_default();
                Ok(StoredRow::split(codes, scales))
            }
        }
    }

    /// Tensors of the weight, for hints to the system's page cache.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &StoredTensor<'a>> {
        let [first, second] = match self {
            Stored::Plain(t) | Stored::Scaled(t, _) => [Some(t), None],
            Stored::Nvfp4(w) => [Some(&w.codes), Some(&w.scales)],
        };
        first.into_iter().chain(second)
    }

    /// Expands one row to f32, without the [factor](Self::factor); `out` has [`row_len`](Self::row_len) elements.
    ///
    /// # Errors
    /// [`QuantError`](super::QuantError) when `out` has another length, or there is no such row; [`Nvfp4Error`].
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        match self {
            Stored::Plain(t) | Stored::Scaled(t, _) => Ok(t.dequantize_row(row, out)?),
            Stored::Nvfp4(w) => w.dequantize_row(row, out),
        }
    }
}

/// Bytes of codes and of scales.
type CodesAndScales<'a> = (&'a [u8], &'a [u8]);

/// A weight in NVFP4: two of its tensors, and its factor.
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4<'a> {
    /// `E2M1 [N, K]`.
    codes: StoredTensor<'a>,
    /// `F8_E4M3 [N, K / 16]`.
    scales: StoredTensor<'a>,
    /// Positive and finite.
    factor: f32,
}

/// The tensor that holds the factor of a weight.
#[derive(Clone, Copy, Debug)]
pub(super) enum Global<'a> {
    /// ModelOpt's `weight_scale_2`, GGUF's `scale`.
    Factor(StoredTensor<'a>),
    /// `weight_global_scale` of compressed-tensors.
    Reciprocal(StoredTensor<'a>),
}

impl Global<'_> {
    /// The factor, in f32.
    pub(super) fn factor(&self) -> Result<f32, Nvfp4Problem> {
        let (Global::Factor(tensor) | Global::Reciprocal(tensor)) = self;
        if tensor.ty != StoredType::F32 || tensor.len() != 1 {
            return Err(unlike(tensor, StoredType::F32, &[1]));
        }
        let mut value = [0.0];
        let read = dequantize(tensor.ty, tensor.bytes, &mut value);
        let factor: f32 = {
            // exercise l2.nvfp4
            match self {
                Global::Factor(_) => value[0],
                Global::Reciprocal(_) => 1.0 / value[0],
            }
            // end of exercise
        };
        // A reciprocal may be infinite or zero where the value is not.
        if read.is_err() || !(factor.is_normal() && factor > 0.0) {
            return Err(Nvfp4Problem::Global { tensor: tensor.name.into(), value: value[0] });
        }
        Ok(factor)
    }
}

impl<'a> Nvfp4<'a> {
    /// Checks the tensors of a weight against each other.
    pub(super) fn new(
        codes: StoredTensor<'a>,
        scales: StoredTensor<'a>,
        global: Global<'_>,
    ) -> Result<Self, Nvfp4Error> {
        let bad = |problem| Nvfp4Error { weight: weight_of(&codes).into(), problem };
        let &[n, k] = codes.shape else {
            return Err(bad(unlike(&codes, StoredType::E2M1, &[codes.n_rows(), codes.row_len()])));
        };
        if !k.is_multiple_of(GROUP) {
            return Err(bad(Nvfp4Problem::Rows { inputs: k }));
        }
        let groups = [n, k / GROUP];
        if scales.ty != StoredType::F8_E4M3 || scales.shape != groups {
            return Err(bad(unlike(&scales, StoredType::F8_E4M3, &groups)));
        }
        Ok(Self { codes, scales, factor: global.factor().map_err(bad)? })
    }

    /// Codes and scales of a row: `K / 2` and `K / 16` bytes. `None` beyond the last.
    ///
    /// # Errors
    /// [`Nvfp4Problem::Scale`].
    pub fn row(&self, row: usize) -> Result<Option<CodesAndScales<'a>>, Nvfp4Error> {
        let (Some(codes), Some(scales)) = (self.codes.row(row), self.scales.row(row)) else {
            return Ok(None);
        };
        // Codes from NaN (0x7f) on: it and what has a sign.
        match scales.iter().position(|code| *code > 0x7e) {
            None => Ok(Some((codes, scales))),
            Some(group) => Err(Nvfp4Error {
                weight: weight_of(&self.codes).into(),
                problem: Nvfp4Problem::Scale { row, group, code: scales[group] },
            }),
        }
    }

    /// See [`Stored::dequantize_row`].
    fn dequantize_row(&self, row: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        let Some((codes, scales)) = self.row(row)?.filter(|_| out.len() == self.codes.row_len())
        else {
            // The error of a row or a buffer that does not fit.
            return Ok(self.codes.dequantize_row(row, out)?);
        };
        // exercise l2.nvfp4
        let groups = codes.chunks_exact(GROUP / 2).zip(scales).zip(out.chunks_exact_mut(GROUP));
        for ((codes, scale), out) in groups {
            let scale = e4m3::to_f32(*scale);
            for (both, out) in codes.iter().zip(out.chunks_exact_mut(2)) {
                out[0] = e2m1(both & 15) * scale;
                out[1] = e2m1(both >> 4) * scale;
            }
        }
        // end of exercise
        Ok(())
    }
}

/// Name of the weight with these codes.
fn weight_of<'a>(codes: &StoredTensor<'a>) -> &'a str {
    codes.name.strip_suffix("_packed").unwrap_or(codes.name)
}

fn unlike(tensor: &StoredTensor<'_>, ty: StoredType, shape: &[usize]) -> Nvfp4Problem {
    Nvfp4Problem::Tensor {
        tensor: tensor.name.into(),
        found_type: tensor.ty,
        found: tensor.shape.into(),
        expected_type: ty,
        expected: shape.into(),
    }
}

/// Endings of the tensors that accompany codes in a safetensors file. Those of scale and factor are read.
const BESIDE_CODES: [&str; 7] = [
    "weight_scale",
    "weight_scale_2",
    "weight_global_scale",
    "input_scale",
    "input_global_scale",
    "k_scale",
    "v_scale",
];

impl Checkpoint {
    /// The weight of this Hugging Face name, in one tensor or several; `None` if there is none.
    ///
    /// # Errors
    /// [`Nvfp4Error`] (as [`CheckpointError::Nvfp4`]) for tensors that do not fit
    /// together.
    pub fn stored(&self, name: &str) -> Result<Option<Stored<'_>>, CheckpointError> {
        let bad = |problem| Nvfp4Error { weight: name.into(), problem };
        match self {
            Checkpoint::Gguf(file) => {
                let Some(tensor) = self.get(name) else { return Ok(None) };
                let factor = tensor.name.strip_suffix(".weight").map(|x| format!("{x}.scale"));
                let factor = factor.filter(|_| tensor.ty == StoredType::NVFP4);
                Ok(Some(match factor.and_then(|name| file.tensor(&name)) {
                    Some(of) => Stored::Scaled(tensor, Global::Factor(of).factor().map_err(bad)?),
                    None => Stored::Plain(tensor),
                }))
            }
            Checkpoint::Safetensors(dir) => {
                let Some(codes) = codes(dir, name) else {
                    return Ok(dir.tensor(name).map(Stored::Plain));
                };
                let part = |ending: &str| format!("{name}{ending}");
                let missing = |tensors: Vec<String>| bad(Nvfp4Problem::Missing { tensors });
                let scales = part("_scale");
                let scales = dir.tensor(&scales).ok_or_else(|| missing(vec![scales]))?;
                let [reciprocal, factor] = [part("_global_scale"), part("_scale_2")];
                let global = match (dir.tensor(&reciprocal), dir.tensor(&factor)) {
                    (Some(of), None) => Global::Reciprocal(of),
                    (None, Some(of)) => Global::Factor(of),
                    (None, None) => return Err(missing(vec![reciprocal, factor]).into()),
                    (Some(_), Some(_)) => {
                        let problem = Nvfp4Problem::Ambiguous { first: reciprocal, second: factor };
                        return Err(bad(problem).into());
                    }
                };
                Ok(Some(Stored::Nvfp4(Nvfp4::new(codes, scales, global)?)))
            }
        }
    }

    /// Name of the weight that the tensor `name` holds; `None` for one that only accompanies codes.
    pub(super) fn weight_in<'a>(
        &self,
        name: &'a str,
        tensor: &StoredTensor<'_>,
    ) -> Option<&'a str> {
        let (module, part) = tensor.name.rsplit_once('.').unwrap_or_default();
        let weight = || format!("{module}.weight");
        let accompanies = match self {
            Checkpoint::Gguf(file) => {
                matches!(part, "scale" | "input_scale")
                    && file.tensor(&weight()).is_some_and(|t| t.ty == StoredType::NVFP4)
            }
            Checkpoint::Safetensors(dir) => {
                BESIDE_CODES.contains(&part) && codes(dir, &weight()).is_some()
            }
        };
        match tensor.ty {
            _ if accompanies => None,
            StoredType::E2M1 => Some(name.strip_suffix("_packed").unwrap_or(name)),
            _ => Some(name),
        }
    }
}

/// The codes of a weight in NVFP4.
fn codes<'a>(dir: &'a SafetensorsDir, name: &str) -> Option<StoredTensor<'a>> {
    let packed = dir.tensor(&format!("{name}_packed"));
    packed.or_else(|| dir.tensor(name)).filter(|tensor| tensor.ty == StoredType::E2M1)
}
