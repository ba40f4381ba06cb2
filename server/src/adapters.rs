//! LoRA adapters of the served model: a request that names one as its `model` runs with it.
//!
//! ```text
//! model name -> AdapterRegistry (l5) -> in memory: used at once
//!                                    -> evicted: read again on a background thread, while the request waits
//! ```
//!
//! A response to such a request has the adapter's name as `model`. Tokenizer, chat template, limits and metrics are those
//! of the model.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

use axum::http::StatusCode;
use l5_scheduler::adapters::{AdapterInfo, RegistryError};
use l5_scheduler::{AdapterRegistry, RequestAdapter};

use super::background::Background;
use super::error::{ApiError, unavailable};
use super::lanes::ServedLane;
use super::model::ServedModel;

/// The adapters of a server of one model. Clones share everything.
#[derive(Clone, Debug)]
pub struct Adapters {
    registry: AdapterRegistry,
    background: Background,
    /// The model under the name of each adapter.
    models: Arc<Mutex<HashMap<String, Arc<ServedModel>>>>,
}

impl Adapters {
    /// The adapters of a registry, whose files are read by `background`.
    pub fn new(registry: AdapterRegistry, background: Background) -> Self {
        Self { registry, background, models: Arc::default() }
    }

    /// The registry.
    pub fn registry(&self) -> &AdapterRegistry {
        &self.registry
    }

    /// Loads an adapter under a name.
    ///
    /// # Errors
    /// 400 for an adapter that cannot be loaded and a name that is taken or impossible; 503 if there is no room.
    pub async fn load(
        &self,
        name: String,
        path: PathBuf,
        load_inplace: bool,
    ) -> Result<RequestAdapter, ApiError> {
        let registry = self.registry.clone();
        let loaded = self.background.load(move || registry.load(&name, &path, load_inplace));
        loaded.await?.map_err(|why| load_error(&why))
    }

    /// Unloads the adapter of a name. Requests that run with it are not affected.
    ///
    /// # Errors
    /// 404 for a name that no adapter has.
    pub async fn unload(&self, name: String) -> Result<(), ApiError> {
        let (registry, own) = (self.registry.clone(), name.clone());
        // It waits while the adapter is read.
        let unloaded = self.background.load(move || registry.unload(&own)).await?;
        unloaded.map_err(|why| load_error(&why))?;
        self.models().remove(&name);
        Ok(())
    }

    /// The lane as a request sees it whose model is the adapter of this name. An evicted adapter is read again.
    ///
    /// # Errors
    /// 404 for a name that no adapter has, 503 for an adapter that cannot be used now.
    pub async fn lane(&self, lane: &ServedLane, name: &str) -> Result<ServedLane, ApiError> {
        let resident = self.registry.get_resident(name).map_err(|why| use_error(&why))?;
        let adapter = match resident {
            Some(adapter) => adapter,
            None => {
                let (registry, name) = (self.registry.clone(), name.to_owned());
                let read = self.background.load(move || registry.get(&name)).await?;
                read.map_err(|why| use_error(&why))?
            }
        };
        let mut lane = lane.clone();
        lane.generation.model = self.model(lane.model(), name);
        lane.generation.adapter = Some(adapter);
        Ok(lane)
    }

    /// The model under the name of an adapter.
    fn model(&self, base: &ServedModel, name: &str) -> Arc<ServedModel> {
        let root = self.registry.info(name).map(|info| info.path.display().to_string());
        let root = root.unwrap_or_default();
        let mut models = self.models();
        if let Some(known) = models.get(name).filter(|known| known.root == root) {
            return known.clone();
        }
        let model = ServedModel { names: vec![name.to_owned()], alias: None, root, ..base.clone() };
        let model = Arc::new(model);
        models.insert(name.to_owned(), model.clone());
        model
    }

    fn models(&self) -> MutexGuard<'_, HashMap<String, Arc<ServedModel>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time of an adapter's load, in seconds since 1970.
pub fn created(info: &AdapterInfo) -> u64 {
    info.loaded_at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Error of an operator's request about an adapter.
fn load_error(why: &RegistryError) -> ApiError {
    let message = sentence(why);
    match why {
        RegistryError::Name { .. } => ApiError::param("lora_name", message),
        RegistryError::AlreadyLoaded { .. } => {
            ApiError::param("lora_name", message).with_code("adapter_already_loaded")
        }
        RegistryError::NotFound { .. } => {
            let error = ApiError::not_found(message).with_code("adapter_not_found");
            ApiError { param: Some("lora_name".into()), ..error }
        }
        RegistryError::Load { .. } | RegistryError::Changed { .. } => {
            ApiError::param("lora_path", message).with_code("invalid_adapter")
        }
        RegistryError::Full { .. } => unavailable(message, "adapters_busy"),
    }
}

/// Error of a request that names an adapter as its model.
fn use_error(why: &RegistryError) -> ApiError {
    let message = sentence(why);
    match why {
        RegistryError::Full { .. } => unavailable(message, "adapters_busy"),
        // An operator has to load it again. Nothing is wrong with the request.
        RegistryError::Load { .. } | RegistryError::Changed { .. } => {
            ApiError { retry_after: None, ..unavailable(message, "adapter_unavailable") }
        }
        RegistryError::Name { .. }
        | RegistryError::NotFound { .. }
        | RegistryError::AlreadyLoaded { .. } => {
            let error = ApiError::not_found(message).with_code("model_not_found");
            ApiError { param: Some("model".into()), ..error }
        }
    }
}

/// Error of a server without adapters.
pub fn disabled() -> ApiError {
    let message =
        "This server takes no LoRA adapters. Start it with --enable-lora, or with --lora-modules.";
    ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
        .with_code("lora_disabled")
}

/// An error as a sentence.
fn sentence(why: &RegistryError) -> String {
    let text = why.to_string();
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", chars.as_str())
}
