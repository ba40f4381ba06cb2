//! From a directory to an [`EagleHead`].
//!
//! | tensor | EAGLE-1 | EAGLE-3 |
//! |---|---|---|
//! | `fc.weight` | `[H, 2 H]` | `[H, 3 H]` |
//! | `fc.bias` | `[H]`, if stored | |
//! | the layer | `layers.0.*`, without `input_layernorm` | `midlayer.*` or `layers.0.*`; q, k and v `[.., 2 H]` |
//! | `hidden_norm.weight`, `input_layernorm.weight` of the layer | | `[H]` |
//! | `norm.weight` | | `[H]` |
//! | `lm_head.weight` | `[V, H]`, else the target's | `[V_d, H]`, else the target's if `V_d` is `V` |
//! | `embed_tokens.weight` | `[V, H]`, else the target's | the same |
//! | `d2t`, `t2d` | | I64 `[V_d]`, BOOL `[V]` |

use std::path::Path;
use std::sync::Arc;

use l1_tensor::ops::RopeTable;
use l1_tensor::{RowOrder, Runtime, Weight};
use serde_json::Value;

use super::{EagleHead, EagleKind, InputNorms};
use crate::checkpoint::{Checkpoint, SafetensorsDir};
use crate::config::{Branch, Op};
use crate::decoder::load::{Loader, op_tensors};
use crate::draft_head::config::{self, EagleConfig};
use crate::draft_head::{DraftHeadError, vocabulary};
use crate::{Decoder, ModelConfig, Result, Tap};

const EMBEDDING: &str = "embed_tokens.weight";
const LM_HEAD: &str = "lm_head.weight";
const FC: &str = "fc.weight";
const FC_BIAS: &str = "fc.bias";
const FINAL_NORM: &str = "norm";
// Of the layer.
const INPUT_NORM: &str = "input_layernorm";
const HIDDEN_NORM: &str = "hidden_norm";
const MLP_NORM: &str = "post_attention_layernorm";

impl EagleHead {
    /// Loads an EAGLE head in a Hugging Face directory for `target`: `config.json`, and `model.safetensors` or shards.
    /// EAGLE-3 is recognised by its layer's `hidden_norm`.
    ///
    /// # Errors
    /// [`DraftHeadError`] for a head that was trained for another model, or of a variant that is not supported; errors
    /// of config and checkpoint, such as one [`TensorSetError`](crate::checkpoint::TensorSetError) that lists every
    /// tensor that does not fit.
    pub fn open(rt: &Runtime, path: &Path, target: &Decoder) -> Result<Self> {
        EagleFiles::open(path, &config::read(path)?, target.config())?.load(rt, target)
    }
}

/// An EAGLE head whose weights are not read.
pub(in crate::draft_head) struct EagleFiles {
    layout: Layout,
    targets: Option<Vec<u32>>,
    checkpoint: Checkpoint,
}

impl EagleFiles {
    /// Reads everything but the weights, and checks that the head was made for `target`. `config`: the `config.json` of
    /// the directory.
    pub(in crate::draft_head) fn open(
        path: &Path,
        config: &Value,
        target: &ModelConfig,
    ) -> Result<Self> {
        let dir = SafetensorsDir::open(path)?;
        if dir.tensor(FC).is_none() {
            return Err(DraftHeadError::NotAHead { path: path.into() }.into());
        }
        let layout = Layout::of(&dir, EagleConfig::parse(config, target)?, target)?;
        let targets = match layout.kind {
            EagleKind::Eagle1 => None,
            EagleKind::Eagle3 => vocabulary::read(&dir, layout.draft_vocab, layout.model.vocab)?,
        };
        let checkpoint = Checkpoint::Safetensors(dir);
        checkpoint.check(&layout.expected())?;
        Ok(Self { layout, targets, checkpoint })
    }

    /// Generation of the head.
    pub(in crate::draft_head) fn kind(&self) -> EagleKind {
        self.layout.kind
    }

    /// Reads the weights.
    pub(in crate::draft_head) fn load(self, rt: &Runtime, target: &Decoder) -> Result<EagleHead> {
        let Self { layout, targets, checkpoint } = self;
        layout.load(&Loader { rt, checkpoint: &checkpoint }, target, targets)
    }
}

/// What a head consists of: its config, corrected by the tensors that are stored.
struct Layout {
    kind: EagleKind,
    /// Beginning of the names of the layer's tensors.
    layer: &'static str,
    model: ModelConfig,
    draft_vocab: usize,
    taps: Vec<Tap>,
    norm_before_residual: bool,
    fc_bias: bool,
    own_embedding: bool,
    own_lm_head: bool,
}

impl Layout {
    fn of(dir: &SafetensorsDir, config: EagleConfig, target: &ModelConfig) -> Result<Self> {
        let has = |name: &str| dir.tensor(name).is_some();
        let hidden_norm = |layer: &&str| has(&format!("{layer}.hidden_norm.weight"));
        let third = ["midlayer", "layers.0"].into_iter().find(hidden_norm);
        let layer = third.unwrap_or("layers.0");
        let mut model = config.model;
        for branch in model.layers.iter_mut().flat_map(|l| &mut l.branches) {
            let part = |name: &str| has(&format!("{layer}.{name}"));
            match &mut branch.op {
                Op::Attention(a) => {
                    a.qkv_bias = part("self_attn.q_proj.bias");
                    a.o_bias = part("self_attn.o_proj.bias");
                    a.qk_norm = a.qk_norm.filter(|_| part("self_attn.q_norm.weight"));
                }
                Op::Mlp(m) => m.bias = part("mlp.gate_proj.bias"),
            }
        }
        let (kind, taps) = match (third, config.aux) {
            (None, _) => (EagleKind::Eagle1, vec![Tap::FinalNorm]),
            (Some(_), Some(taps)) => (EagleKind::Eagle3, taps.to_vec()),
            (Some(_), None) => {
                (EagleKind::Eagle3, config::default_aux(target.layers.len())?.to_vec())
            }
        };
        let whole_vocabulary = config.draft_vocab == model.vocab;
        for (key, set) in [
            ("draft_vocab_size", !whole_vocabulary),
            ("norm_before_residual", config.norm_before_residual),
        ] {
            if kind == EagleKind::Eagle1 && set {
                let why =
                    "it is supported in EAGLE-3 heads only, and this is an EAGLE-1 head".into();
                return Err(DraftHeadError::Unsupported { key, why }.into());
            }
        }
        Ok(Self {
            kind,
            layer,
            model,
            draft_vocab: config.draft_vocab,
            taps,
            norm_before_residual: config.norm_before_residual,
            fc_bias: has(FC_BIAS),
            own_embedding: has(EMBEDDING),
            own_lm_head: has(LM_HEAD) || !whole_vocabulary,
        })
    }

    /// Attention and MLP of the layer, with their eps.
    fn branches(&self) -> impl Iterator<Item = &Branch> {
        self.model.layers.iter().flat_map(|l| &l.branches)
    }

    fn prefix(&self, op: &Op) -> String {
        match op {
            Op::Attention(_) => format!("{}.self_attn", self.layer),
            Op::Mlp(_) => format!("{}.mlp", self.layer),
        }
    }

    /// Name of a norm of the layer.
    fn norm(&self, name: &str) -> String {
        format!("{}.{name}", self.layer)
    }

    /// Every tensor of the head: name and shape.
    fn expected(&self) -> Vec<(String, Vec<usize>)> {
        let (h, third) = (self.model.hidden, self.kind == EagleKind::Eagle3);
        let mut out = vec![(FC.to_string(), vec![h, if third { 3 * h } else { 2 * h }])];
        let mut add = |name: String, shape: Vec<usize>| out.push((name, shape));
        let inputs = if third { 2 * h } else { h };
        for branch in self.branches() {
            op_tensors(&self.prefix(&branch.op), &branch.op, inputs, h, &mut add);
        }
        let mut norms = vec![self.norm(MLP_NORM)];
        if third {
            norms.extend([self.norm(INPUT_NORM), self.norm(HIDDEN_NORM), FINAL_NORM.into()]);
        }
        norms.into_iter().for_each(|name| add(format!("{name}.weight"), vec![h]));
        for (name, stored, shape) in [
            (FC_BIAS, self.fc_bias, vec![h]),
            (EMBEDDING, self.own_embedding, vec![self.model.vocab, h]),
            (LM_HEAD, self.own_lm_head, vec![self.draft_vocab, h]),
        ] {
            if stored {
                add(name.into(), shape);
            }
        }
        out
    }

    /// Reads the weights of a checkpoint that has the [expected](Layout::expected) tensors.
    fn load(
        self,
        loader: &Loader,
        target: &Decoder,
        targets: Option<Vec<u32>>,
    ) -> Result<EagleHead> {
        let matrix = |name: &str| loader.matrix(&[(name, None)], RowOrder::Plain);
        let own = |stored: bool, name: &str, shared: &Arc<Weight>| -> Result<Arc<Weight>> {
            if stored { Ok(Arc::new(matrix(name)?)) } else { Ok(Arc::clone(shared)) }
        };
        let [attention, mlp] = self.branches().collect::<Vec<_>>()[..] else {
            let why = "a layer of a draft head is attention and an MLP".into();
            return Err(DraftHeadError::Unsupported { key: "model_type", why }.into());
        };
        let eps = mlp.norm;
        let third = self.kind == EagleKind::Eagle3;
        let input_norms = || -> Result<InputNorms> {
            Ok(InputNorms {
                embedding: loader.norm(&self.norm(INPUT_NORM), eps)?,
                hidden: loader.norm(&self.norm(HIDDEN_NORM), eps)?,
                before_residual: self.norm_before_residual,
            })
        };
        let rope = &self.model.rope;
        Ok(EagleHead {
            kind: self.kind,
            draft_vocab: self.draft_vocab,
            targets,
            embedding: own(self.own_embedding, EMBEDDING, &target.embedding)?,
            fc: matrix(FC)?,
            fc_bias: self.fc_bias.then(|| loader.tensor(FC_BIAS)).transpose()?,
            input_norms: third.then(input_norms).transpose()?,
            attention: loader.op(&self.prefix(&attention.op), &attention.op)?,
            mlp_norm: loader.norm(&self.norm(MLP_NORM), eps)?,
            mlp: loader.op(&self.prefix(&mlp.op), &mlp.op)?,
            final_norm: third
                .then(|| loader.norm(FINAL_NORM, self.model.final_norm))
                .transpose()?,
            lm_head: own(self.own_lm_head, LM_HEAD, &target.lm_head)?,
            rope: RopeTable::new(rope.rotary_dim, rope.theta, &rope.scaling)?,
            shared: [!self.own_embedding, !self.own_lm_head],
            taps: self.taps,
            config: self.model,
        })
    }
}
