//! From a directory to a [`LoraAdapter`].

use std::path::Path;

use l1_tensor::{LowRank, Runtime, Weight};
use sha2::{Digest, Sha256};

use super::config::LoraConfig;
use super::error::{AdapterError, shortened};
use super::names::{self, TensorRole};
use super::{LoraAdapter, Projection};
use crate::checkpoint::{
    CheckpointError, SafetensorsDir, SafetensorsError, StoredTensor, StoredType,
};
use crate::config::Op;
use crate::digest::field;
use crate::finite::first_not_finite;
use crate::{Error, ModelConfig, Result};

/// The weights, as PEFT saves them.
const FILE: &str = "adapter_model.safetensors";

impl LoraAdapter {
    /// Reads the adapter in a directory as PEFT writes it (`adapter_config.json`, `adapter_model.safetensors`), for a
    /// model of configuration `model`. Matrices may be F32, F16 or BF16, and are rounded to bf16, as the model's own.
    ///
    /// # Errors
    /// [`AdapterError`] (as [`Error::Adapter`]) for an adapter that is not supported, was made for another model, is
    /// incomplete, or has a rank above `max_rank`; [`Error::Checkpoint`] for a file that is not a safetensors file, or
    /// is larger than an adapter of that rank can be.
    pub fn open(rt: &Runtime, dir: &Path, model: &ModelConfig, max_rank: usize) -> Result<Self> {
        // The path may be a link that is pointed elsewhere meanwhile, or the directory exchanged: config and weights are
        // to be those of one adapter.
        let dir = &dir.canonicalize().unwrap_or_else(|_| dir.into());
        let opened = identity(dir);
        let (config, bytes) = LoraConfig::read(dir)?;
        let path = dir.join(FILE);
        if !path.is_file() {
            return Err(AdapterError::NoWeights { path: dir.into() }.into());
        }
        // Read and not mapped: an operator may replace the file while a server reads it, and a mapped file that becomes
        // shorter ends the process.
        let file =
            SafetensorsDir::read_file(&path, max_file_bytes(model, max_rank)).map_err(typed)?;
        if identity(dir) != opened {
            let why = "another directory took its place while it was read: load it again".into();
            return Err(AdapterError::File { path: dir.clone(), why }.into());
        }
        let stored = by_role(&file, model.layers.len())?;
        check_modules(&config, &file, max_rank)?;
        let load = Load { rt, config: &config, model };
        let layer = |(i, sides): (usize, &Layer<'_>)| load.layer(i, sides);
        let layers: Vec<_> = stored.iter().enumerate().map(layer).collect::<Result<_>>()?;
        // After the shapes: of another model's adapter they say more than what is missing.
        check_targets(&config, &stored)?;
        let ranks = layers.iter().flatten().flatten().map(|side: &LowRank| side.a.n());
        let rank = ranks.max().unwrap_or(0);
        let digest = digest(&bytes, &file);
        Ok(Self { layers, model: model.clone(), rank, digest })
    }
}

/// What tells a directory from another one of its name.
fn identity(dir: &Path) -> Option<(u64, u64)> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let found = dir.metadata().ok()?;
        Some((found.dev(), found.ino()))
    }
    #[cfg(not(unix))]
    {
        let _ = dir;
        None
    }
}

/// The error of a file of weights. Of one with numbers of another type a model's error would advise to take another
/// model.
fn typed(why: CheckpointError) -> Error {
    match why {
        CheckpointError::Safetensors {
            reason: SafetensorsError::UnsupportedType { name, dtype },
            ..
        } => AdapterError::Type { tensor: shortened(&name), dtype }.into(),
        why => why.into(),
    }
}

/// Both matrices of each projection of a layer, where they are stored.
type Layer<'a> = [[Option<StoredTensor<'a>>; 2]; Projection::ALL.len()];

/// The stored tensors of each layer.
fn by_role(file: &SafetensorsDir, layers: usize) -> Result<Vec<Layer<'_>>> {
    let mut stored: Vec<Layer<'_>> = vec![Default::default(); layers];
    for tensor in file.tensors() {
        let TensorRole { layer, projection, side } = names::role(tensor.name)?;
        let bad = |why: String| AdapterError::Tensor { tensor: shortened(tensor.name), why };
        let Some(sides) = stored.get_mut(layer) else {
            let why = format!("the model has {layers} layers: pass an adapter of this model");
            return Err(bad(why).into());
        };
        let of_role = &mut sides[projection as usize][side as usize];
        if of_role.is_some() {
            let why = "the file has it twice, under two names: save the adapter again";
            return Err(bad(why.into()).into());
        }
        *of_role = Some(tensor);
    }
    if stored.iter().flatten().flatten().all(Option::is_none) {
        return Err(AdapterError::Missing { missing: "lora_A.weight".into() }.into());
    }
    Ok(stored)
}

/// Fails for a tensor whose module the config does not list, which PEFT ignores, and for a rank above `max`.
fn check_modules(config: &LoraConfig, file: &SafetensorsDir, max: usize) -> Result<()> {
    let outside = |tensor: &StoredTensor<'_>| !config.targets(names::module(tensor.name));
    if let Some(tensor) = file.tensors().find(outside).filter(|_| config.lists_targets()) {
        let why = "`target_modules` does not list its module: pass the adapter_config.json that was saved with this file";
        let tensor = shortened(tensor.name);
        return Err(AdapterError::Tensor { tensor, why: why.into() }.into());
    }
    let modules = file.tensors().map(|tensor| names::module(tensor.name));
    let largest = modules.map(|module| (config.rank(module), module)).max();
    match largest.filter(|(rank, _)| *rank > max) {
        None => Ok(()),
        Some((rank, module)) => {
            Err(AdapterError::RankTooLarge { module: shortened(module), rank, max }.into())
        }
    }
}

/// Fails if the config lists a projection that is not stored: in every layer, or in any if the config chooses layers.
fn check_targets(config: &LoraConfig, stored: &[Layer<'_>]) -> Result<()> {
    for projection in Projection::ALL {
        let module = projection.module();
        let listed = |layer: usize| {
            let name = format!("model.layers.{layer}.{module}");
            config.targets(&name) && !config.excluded.may_have(&name)
        };
        let has = |layer: &Layer<'_>| layer[projection as usize].iter().any(Option::is_some);
        let lacks = |layer: &usize| listed(*layer) && !has(&stored[*layer]);
        let enough = config.chooses_layers && stored.iter().any(has);
        if let Some(layer) = (0..stored.len()).find(lacks).filter(|_| !enough) {
            let missing = format!("model.layers.{layer}.{module}.lora_A.weight");
            return Err(AdapterError::Missing { missing }.into());
        }
    }
    Ok(())
}

struct Load<'a> {
    rt: &'a Runtime,
    config: &'a LoraConfig,
    model: &'a ModelConfig,
}

impl Load<'_> {
    fn layer(
        &self,
        i: usize,
        stored: &Layer<'_>,
    ) -> Result<[Option<LowRank>; Projection::ALL.len()]> {
        let missing = |missing: String| AdapterError::Missing { missing }.into();
        let mut sides = [const { None }; Projection::ALL.len()];
        for projection in Projection::ALL {
            sides[projection as usize] = match &stored[projection as usize] {
                [None, None] => None,
                [Some(a), Some(b)] => Some(self.side(i, projection, a, b)?),
                [Some(a), None] => return Err(missing(a.name.replace(".lora_A.", ".lora_B."))),
                [None, Some(b)] => return Err(missing(b.name.replace(".lora_B.", ".lora_A."))),
            };
        }
        Ok(sides)
    }

    fn side(
        &self,
        layer: usize,
        projection: Projection,
        a: &StoredTensor<'_>,
        b: &StoredTensor<'_>,
    ) -> Result<LowRank> {
        let module = names::module(a.name);
        let Some([n, k]) = shape(self.model, layer, projection) else {
            let why = "the model has no such projection: pass an adapter of this model".into();
            return Err(AdapterError::Tensor { tensor: a.name.into(), why }.into());
        };
        let rank = self.config.rank(module);
        for (tensor, expected) in [(a, [rank, k]), (b, [n, rank])] {
            if !matches!(tensor.ty, StoredType::F32 | StoredType::F16 | StoredType::BF16) {
                // Bytes are read as codes of NVFP4, which an adapter does not have.
                let dtype = if tensor.ty == StoredType::E2M1 { "U8" } else { tensor.ty.name() };
                let (tensor, dtype) = (tensor.name.into(), dtype.into());
                return Err(AdapterError::Type { tensor, dtype }.into());
            }
            if tensor.shape != expected {
                let (tensor, got) = (tensor.name.into(), tensor.shape.to_vec());
                let expected = expected.to_vec();
                return Err(AdapterError::Shape { tensor, got, expected, rank }.into());
            }
        }
        let scale = self.config.scale(module);
        if !scale.is_finite() {
            let (module, scale) = (module.into(), scale.to_string());
            return Err(AdapterError::Scale { module, scale }.into());
        }
        Ok(LowRank { a: self.matrix(a)?, b: self.matrix(b)?, scale })
    }

    fn matrix(&self, tensor: &StoredTensor<'_>) -> Result<Weight> {
        let (n, k) = (tensor.n_rows(), tensor.row_len());
        let weight = Weight::load_apart(self.rt, n, k, &|row, out| {
            tensor.dequantize_row(row, out)?;
            match first_not_finite(out) {
                None => Ok::<_, Error>(()),
                Some((i, _)) => {
                    let (tensor, value) = (tensor.name.into(), out[i].to_string());
                    Err(AdapterError::NotFinite { tensor, row, value }.into())
                }
            }
        })?;
        Ok(weight)
    }
}

/// Shape `[N, K]` of a projection of the model, if the layer has it.
fn shape(model: &ModelConfig, layer: usize, projection: Projection) -> Option<[usize; 2]> {
    use Projection::{Down, Gate, K, O, Q, Up, V};
    let h = model.hidden;
    let of = |op: &Op| match (op, projection) {
        (Op::Attention(a), Q) => Some([a.q_heads * a.head_dim, h]),
        (Op::Attention(a), K | V) => Some([a.kv_heads * a.head_dim, h]),
        (Op::Attention(a), O) => Some([h, a.q_heads * a.head_dim]),
        (Op::Mlp(m), Gate | Up) => Some([m.intermediate, h]),
        (Op::Mlp(m), Down) => Some([h, m.intermediate]),
        _ => None,
    };
    model.layers.get(layer)?.branches.iter().find_map(|branch| of(&branch.op))
}

/// Maximum length of the file of an adapter: every projection with this rank, in f32, and a header.
fn max_file_bytes(model: &ModelConfig, max_rank: usize) -> u64 {
    const HEADER: u64 = 16 << 20;
    let shapes = (0..model.layers.len())
        .flat_map(|layer| Projection::ALL.map(|projection| shape(model, layer, projection)));
    let numbers: u64 = shapes.flatten().map(|[n, k]| (n + k) as u64).sum();
    numbers
        .saturating_mul(max_rank as u64)
        .saturating_mul(size_of::<f32>() as u64)
        .saturating_add(HEADER)
}

/// Sha256 of config and tensors, in the order of their names.
fn digest(config: &[u8], file: &SafetensorsDir) -> [u8; 32] {
    let mut hash = Sha256::new();
    field(&mut hash, b"strata adapter 1");
    field(&mut hash, config);
    let mut tensors: Vec<_> = file.tensors().collect();
    tensors.sort_by_key(|tensor| tensor.name);
    for tensor in tensors {
        field(&mut hash, tensor.name.as_bytes());
        field(&mut hash, format!("{} {:?}", tensor.ty.name(), tensor.shape).as_bytes());
        field(&mut hash, tensor.bytes);
    }
    hash.finalize().into()
}
