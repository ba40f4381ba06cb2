//! Medusa: independent heads on the target's last hidden row, one for each position to come.
//!
//! With `x` `[H]` the target's final norm at the last token, head `i` proposes the token `i + 2` positions after it
//! (the target itself gives the next one):
//!
//! ```text
//! for each residual block (one in published heads):  x += silu(W x + b)      {i}.{block}.linear.weight [H, H], bias
//! [H] logits = O x                                                              {i}.{blocks}.weight [V, H]
//! ```
//!
//! No head sees another's proposal, and there is no KV cache: heads cost two matmuls each, and guess worse the further
//! ahead they look.

use std::path::Path;

use l1_tensor::ops::{Epilogue, add_in_place, convert, linear, silu_mul};
use l1_tensor::{DType, RowOrder, Runtime, Tensor, TensorRef, Weight};
use serde_json::Value;

use super::DraftHeadError;
use super::config::{self, MedusaConfig};
use crate::checkpoint::{Checkpoint, SafetensorsDir};
use crate::decoder::load::Loader;
use crate::decoder::workspace::{first, first_mut};
use crate::{Decoder, ModelConfig, Result, Tap};

/// File of the heads as Medusa's training writes it; `model.safetensors` is read where it is missing.
const FILE: &str = "medusa_lm_head.safetensors";

/// The heads of one checkpoint. Immutable, as a [`Decoder`] is.
///
/// ```
/// # use std::path::Path;
/// use l1_tensor::{Runtime, RuntimeOptions, Tensor};
/// use l2_model::ModelFiles;
/// use l2_model::draft_head::{MedusaHead, MedusaWorkspace};
///
/// # let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures"));
/// let rt = Runtime::new(RuntimeOptions::cpu())?;
/// let target = ModelFiles::open(&fixtures.join("tiny-llama-linear"))?.decoder(&rt)?;
/// let medusa = MedusaHead::open(&rt, &fixtures.join("draft-heads/medusa"), &target)?;
///
/// let mut ws = MedusaWorkspace::new(&rt, &medusa, 2)?;
/// // In an engine: rows of `Tap::FinalNorm` at the last token of each sequence.
/// let (hidden, vocab) = (target.config().hidden, target.config().vocab);
/// let rows = Tensor::from_slice(&vec![0.5f32; 2 * hidden], &[2, hidden])?;
/// medusa.forward(rows.view(), &mut ws)?;
/// for head in 0..medusa.heads() {
///     assert_eq!(ws.logits(head)?.dims(), [2, vocab]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MedusaHead {
    heads: Vec<Head>,
    hidden: usize,
    vocab: usize,
}

struct Head {
    /// W and b of each residual block.
    blocks: Vec<(Weight, Tensor)>,
    out: Weight,
}

/// Buffers of [`MedusaHead::forward`], in the memory of the runtime's device. A steady step allocates nothing else.
pub struct MedusaWorkspace {
    rt: Runtime,
    /// f32 `[R, H]`: the row on its way through the blocks.
    stream: Tensor,
    /// `[R, H]` in the activations' dtype: what a matmul reads.
    input: Tensor,
    /// f32 `[R, 2 H]`: `W x + b`, and ones. The op for silu multiplies by the second half of its input.
    gated: Tensor,
    /// f32 `[R, H]`: `silu(W x + b)`.
    inner: Tensor,
    /// f32 `[R, V]` for each head.
    logits: Vec<Tensor>,
    /// Number of rows of the last step that succeeded.
    rows: usize,
}

/// Medusa heads whose weights are not read.
pub(super) struct MedusaFiles {
    /// Number of heads.
    pub(super) heads: usize,
    /// Number of residual blocks of a head.
    blocks: usize,
    checkpoint: Checkpoint,
}

/// Name of the projection of head `i`.
fn out(i: usize, blocks: usize) -> String {
    format!("{i}.{blocks}.weight")
}

impl MedusaFiles {
    /// Reads everything but the weights, and checks that the heads were made for `target`. `config`: the `config.json`
    /// of the directory.
    pub(super) fn open(path: &Path, config: &Value, target: &ModelConfig) -> Result<Self> {
        let MedusaConfig { heads: stated, blocks } = MedusaConfig::parse(config)?;
        let file = path.join(FILE);
        let dir = match file.exists() {
            true => SafetensorsDir::open_file(&file)?,
            false => SafetensorsDir::open(path)?,
        };
        let out = |i: usize| out(i, blocks);
        let Some(shape) = dir.tensor(&out(0)).map(|t| t.shape) else {
            if dir.tensor("0.0.linear.weight").is_some() {
                let why = format!("it is {blocks}, but there is no tensor `{}`", out(0));
                return Err(DraftHeadError::Unsupported { key: "medusa_num_layers", why }.into());
            }
            return Err(DraftHeadError::NotAHead { path: path.into() }.into());
        };
        let (hidden, vocab) = (target.hidden, target.vocab);
        if let [rows, columns] = *shape {
            config::fits("hidden_size", columns, hidden)?;
            config::fits("vocab_size", rows, vocab)?;
        }
        let stored = (0..config::MAX_MEDUSA).take_while(|i| dir.tensor(&out(*i)).is_some()).count();
        let heads = stated.max(stored);
        let mut expected = Vec::new();
        for i in 0..heads {
            for block in 0..blocks {
                expected.push((format!("{i}.{block}.linear.weight"), vec![hidden, hidden]));
                expected.push((format!("{i}.{block}.linear.bias"), vec![hidden]));
            }
            expected.push((out(i), vec![vocab, hidden]));
        }
        let checkpoint = Checkpoint::Safetensors(dir);
        checkpoint.check(&expected)?;
        Ok(Self { heads, blocks, checkpoint })
    }

    /// Reads the weights.
    pub(super) fn load(self, rt: &Runtime, target: &Decoder) -> Result<MedusaHead> {
        let Self { heads, blocks, checkpoint } = self;
        let loader = Loader { rt, checkpoint: &checkpoint };
        let matrix = |name: &str| loader.matrix(&[(name, None)], RowOrder::Plain);
        let block = |i: usize, block: usize| -> Result<_> {
            let name = format!("{i}.{block}.linear");
            Ok((matrix(&format!("{name}.weight"))?, loader.tensor(&format!("{name}.bias"))?))
        };
        let head = |i: usize| -> Result<Head> {
            Ok(Head {
                blocks: (0..blocks).map(|b| block(i, b)).collect::<Result<_>>()?,
                out: matrix(&out(i, blocks))?,
            })
        };
        let (hidden, vocab) = (target.config().hidden, target.config().vocab);
        Ok(MedusaHead { heads: (0..heads).map(head).collect::<Result<_>>()?, hidden, vocab })
    }
}

impl MedusaHead {
    /// Loads the Medusa heads in a Hugging Face directory for `target`: `config.json`, and `medusa_lm_head.safetensors`
    /// or `model.safetensors`. All stored heads are loaded: published configs state fewer.
    ///
    /// # Errors
    /// [`DraftHeadError`] for heads that were trained for another model; errors of config and checkpoint, such as one
    /// [`TensorSetError`](crate::checkpoint::TensorSetError) that lists every tensor that does not fit.
    pub fn open(rt: &Runtime, path: &Path, target: &Decoder) -> Result<Self> {
        MedusaFiles::open(path, &config::read(path)?, target.config())?.load(rt, target)
    }

    /// Number of heads: the number of positions that they propose tokens for.
    pub fn heads(&self) -> usize {
        self.heads.len()
    }

    /// Taps of the target whose rows the heads read.
    pub fn taps(&self) -> &[Tap] {
        &[Tap::FinalNorm]
    }

    /// Size of the heads' weights in memory, in bytes.
    pub fn weight_bytes(&self) -> usize {
        let of = |head: &Head| {
            head.out.bytes() + head.blocks.iter().map(|(w, _)| w.bytes()).sum::<usize>()
        };
        self.heads.iter().map(of).sum()
    }

    /// Computes every head's logits of `rows`, float `[R, H]`: the target's final norm at the last token of each
    /// sequence. [`MedusaWorkspace::logits`] returns them. A row's bits do not depend on the other rows.
    ///
    /// # Errors
    /// [`DraftHeadError::Hidden`] for rows of another shape; [`l1_tensor::Error::OutOfRange`] for more rows than the
    /// workspace holds; whatever the ops report.
    pub fn forward(&self, rows: TensorRef<'_>, ws: &mut MedusaWorkspace) -> Result<()> {
        let &[r, h] = rows.dims() else { return Err(self.wrong_rows(rows)) };
        if h != self.hidden {
            return Err(self.wrong_rows(rows));
        }
        ws.rows = 0;
        let MedusaWorkspace { rt, stream, input, gated, inner, logits, .. } = ws;
        for (head, logits) in self.heads.iter().zip(logits) {
            convert(rt, rows, first_mut(stream, r)?)?;
            for (w, b) in &head.blocks {
                convert(rt, first(stream, r)?, first_mut(input, r)?)?;
                let y = first_mut(gated, r)?.narrow(1, 0, h)?;
                linear(rt, first(input, r)?, w, Some(b.view()), Epilogue::Store, y)?;
                let half = |i: usize| -> Result<_> { Ok(first(gated, r)?.narrow(1, i * h, h)?) };
                silu_mul(rt, half(0)?, half(1)?, first_mut(inner, r)?)?;
                add_in_place(rt, first_mut(stream, r)?, first(inner, r)?)?;
            }
            convert(rt, first(stream, r)?, first_mut(input, r)?)?;
            let out = first_mut(logits, r)?;
            linear(rt, first(input, r)?, &head.out, None, Epilogue::Store, out)?;
        }
        ws.rows = r;
        Ok(())
    }

    fn wrong_rows(&self, rows: TensorRef) -> crate::Error {
        let (expected, got) = (format!("[R, {}]", self.hidden), format!("{:?}", rows.dims()));
        DraftHeadError::Hidden { expected, got }.into()
    }
}

impl MedusaWorkspace {
    /// Allocates buffers for steps of at most `max_rows` rows.
    ///
    /// # Errors
    /// [`l1_tensor::Error::OutOfMemory`], or a device's own.
    pub fn new(rt: &Runtime, heads: &MedusaHead, max_rows: usize) -> Result<Self> {
        let tensor = |width: usize, dtype| Tensor::zeros(&[max_rows, width], dtype, rt.device());
        let h = heads.hidden;
        let ones = Tensor::from_slice(&vec![1.0f32; max_rows * 2 * h], &[max_rows, 2 * h])?;
        Ok(Self {
            rt: rt.clone(),
            stream: tensor(h, DType::F32)?,
            input: tensor(h, rt.activation_dtype())?,
            gated: ones.to_device(rt.device())?,
            inner: tensor(h, DType::F32)?,
            logits: heads
                .heads
                .iter()
                .map(|_| Ok(tensor(heads.vocab, DType::F32)?))
                .collect::<Result<_>>()?,
            rows: 0,
        })
    }

    /// Logits of one head in the last step: f32 `[R, V]`, in the memory of the runtime's device.
    ///
    /// # Errors
    /// [`l1_tensor::Error::OutOfRange`] for a head that there is not.
    pub fn logits(&self, head: usize) -> Result<TensorRef<'_>> {
        let limit = self.logits.len();
        let logits = self.logits.get(head).ok_or(l1_tensor::Error::OutOfRange {
            op: "medusa logits",
            what: "head",
            index: head as i64,
            limit,
        })?;
        first(logits, self.rows)
    }
}
