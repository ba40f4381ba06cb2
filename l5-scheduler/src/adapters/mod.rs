//! LoRA adapters of requests.
//!
//! ```text
//! AdapterRegistry   name -> path and weights; loads, unloads and evicts        any thread
//! AdapterRead       one read of an adapter's files                             a thread that may wait for files
//! RequestAdapter    name and weights, held by a request until it ends          from the handle to the runner
//! Adapter           name and digest, of which the hashes of blocks are made    scheduler
//! ```
//!
//! A request holds the weights that it began with, so an adapter can be unloaded or loaded again at any time: requests
//! that run finish with the old weights. The path in the scheduler's [`Adapter`] is the digest of the weights, and not
//! where they were read. So a request with new weights never hits blocks of old ones of the same name, in the pool or
//! in a tier, whose keys are made of the same hashes. (vLLM hashes the path of the file, and reuses such blocks.)

mod error;
mod read;
mod registry;
mod residency;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use l1_tensor::Runtime;
use l2_model::ModelConfig;
use l2_model::adapter::LoraAdapter;

pub use error::{AdapterFailure, RegistryError};
pub use read::{AdapterRead, Begun, ReadFor};
pub use registry::{AdapterInfo, AdapterOptions, AdapterRegistry, MAX_ADAPTER_NAME_BYTES};

use crate::Adapter;

/// Default maximum rank of adapters, where they are allowed.
pub const DEFAULT_MAX_LORA_RANK: usize = 64;

/// Default maximum number of adapters in memory.
pub const DEFAULT_MAX_CPU_LORAS: usize = 16;

/// Default maximum number of names of adapters. A name costs a few hundred bytes; its weights may be evicted.
pub const DEFAULT_MAX_ADAPTER_NAMES: usize = 1024;

/// Default maximum time to read an adapter. A large one has a few hundred megabytes.
pub const DEFAULT_LOAD_TIMEOUT_SECONDS: u64 = 60;

/// Target of what operators should see in a log. The server logs its own events under the same name.
const LOG: &str = "strata";

/// The LoRA adapter of a request. Clones share the weights.
#[derive(Clone)]
pub struct RequestAdapter {
    /// Name of the adapter.
    pub name: String,
    /// The weights.
    pub weights: Arc<LoraAdapter>,
}

impl RequestAdapter {
    /// Loads the LoRA adapter in a directory for a model of this configuration. Its name is the last part of the path.
    ///
    /// # Errors
    /// As [`LoraAdapter::open`].
    pub fn open(
        rt: &Runtime,
        path: &Path,
        model: &ModelConfig,
        max_rank: usize,
    ) -> l2_model::Result<Self> {
        let weights = LoraAdapter::open(rt, path, model, max_rank)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { name, weights: Arc::new(weights) })
    }

    /// The adapter as the scheduler sees it: its name, and the digest of its weights in place of a path.
    pub fn scheduled(&self) -> Adapter {
        let path = format!("sha256:{}", self.weights.digest_hex());
        Adapter { name: self.name.clone(), path }
    }
}

/// Two adapters are equal if their names and the digests of their weights are.
impl PartialEq for RequestAdapter {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.weights.digest() == other.weights.digest()
    }
}

impl fmt::Debug for RequestAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, digest) = (&self.name, self.weights.digest_hex());
        f.debug_struct("RequestAdapter").field("name", name).field("digest", &digest).finish()
    }
}

/// Why an engine does not take the adapter of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdapterRejection {
    /// The engine has no buffers for adapters.
    #[error(
        "adapter `{name}`: this engine takes no LoRA adapters: start it with --enable-lora (`max_lora_rank`)"
    )]
    Off {
        /// Name of the adapter.
        name: String,
    },
    /// The adapter was loaded for another model.
    #[error("adapter `{name}` was loaded for another model: load it for the model of this engine")]
    OtherModel {
        /// Name of the adapter.
        name: String,
    },
    /// The rank is above the maximum of the engine.
    #[error(
        "adapter `{name}` has rank {rank}, the maximum is {max}: raise --max-lora-rank to at least {rank}"
    )]
    Rank {
        /// Name of the adapter.
        name: String,
        /// Its rank.
        rank: usize,
        /// Maximum rank of the engine.
        max: usize,
    },
}

/// What an engine knows of the adapters that it takes.
#[derive(Clone, Debug)]
pub(crate) struct AdapterLimits {
    /// Configuration of its model.
    pub model: ModelConfig,
    /// Maximum rank.
    pub max_rank: usize,
}

impl AdapterLimits {
    /// Checks the adapter of a request, if it has one. `limits`: `None` if no adapter is allowed.
    pub(crate) fn check(
        limits: Option<&Self>,
        adapter: Option<&RequestAdapter>,
    ) -> Result<(), AdapterRejection> {
        let Some(adapter) = adapter else { return Ok(()) };
        let (name, rank) = (adapter.name.clone(), adapter.weights.rank());
        match limits {
            None => Err(AdapterRejection::Off { name }),
            Some(limits) if !adapter.weights.fits(&limits.model) => {
                Err(AdapterRejection::OtherModel { name })
            }
            Some(Self { max_rank: max, .. }) if rank > *max => {
                Err(AdapterRejection::Rank { name, rank, max: *max })
            }
            Some(_) => Ok(()),
        }
    }
}
