//! LoRA adapters of the served model: a request that names one as its `model` runs with it.
//!
//! ```text
//! model name -> AdapterRegistry (l5) -> in memory: used at once
//!                                    -> evicted: read again on a background thread, while the request waits
//!                                    -> requests and reads have all the room: the request waits for room
//! ```
//!
//! A request is validated before it waits (`backpressure`). Requests, loads and unloads wait in one queue (`room`).
//! Every wait is bounded: for room, for a thread, and for the files. A shutdown ends all of them.
//!
//! A response to such a request has the adapter's name as `model`. Tokenizer, chat template, limits and metrics are
//! those of the model.

mod room;
mod waiting;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use axum::http::StatusCode;
use l5_scheduler::adapters::{AdapterInfo, RegistryError};
use l5_scheduler::{AdapterFailure, AdapterRegistry, RequestAdapter};
use l6_ensemble::admission::RefusalCode;
use tokio::sync::watch;
use tokio::time::timeout_at;

use super::background::{Background, LoadError};
use super::error::{ApiError, unavailable};
use super::lanes::ServedLane;
use super::model::ServedModel;
use room::{Grant, ReadGrant, Refusal, RoomQueue, Wanted, now};
use waiting::WaitingRequests;

pub use waiting::Waits;

/// The adapters of a server of one model. Clones share everything.
#[derive(Clone, Debug)]
pub struct Adapters {
    registry: AdapterRegistry,
    background: Background,
    /// The model under the name of each adapter.
    models: Arc<Mutex<HashMap<String, Arc<ServedModel>>>>,
    queue: Arc<RoomQueue>,
    waiting: Arc<WaitingRequests>,
    /// Whether the server shuts down.
    closing: watch::Sender<bool>,
}

/// The adapter that a request names as its model, before the request has it.
#[derive(Clone)]
pub struct NamedAdapter {
    adapters: Adapters,
    name: String,
}

impl NamedAdapter {
    /// Engine requests that wait for an adapter, whichever it is.
    pub fn waiting(&self) -> Waits {
        self.adapters.waiting.totals()
    }

    /// The adapter, once it is in memory, for these engine requests. An evicted one is read again, and if there is no
    /// room it waits. Returns how long it waited, too.
    ///
    /// # Errors
    /// 404 for an adapter that was unloaded meanwhile; 503 for one that cannot be used now, and if the wait is over;
    /// 504 if the time of the request is.
    pub async fn obtain(
        &self,
        own: Waits,
        deadline: Option<Instant>,
    ) -> Result<(RequestAdapter, Duration), ApiError> {
        let (Self { adapters, name }, began) = (self, now());
        if !adapters.queue.holds_back(began)
            && let Some(ready) =
                adapters.registry.get_resident(name).map_err(|why| use_error(&why))?
        {
            return Ok((ready, Duration::ZERO));
        }
        let _counted = adapters.waiting.count(name, own);
        let wait = adapters.obtain(name, Wanted::Use, use_error);
        let adapter = match deadline {
            None => wait.await,
            Some(deadline) => {
                timeout_at(deadline.into(), wait).await.unwrap_or_else(|_| Err(ApiError::timeout()))
            }
        };
        Ok((adapter?, now().saturating_duration_since(began)))
    }
}

impl Adapters {
    /// The adapters of a registry, whose files are read by `background`. What needs room for an adapter waits for at
    /// most `max_wait` while requests and reads have all of it.
    pub fn new(registry: AdapterRegistry, background: Background, max_wait: Duration) -> Self {
        let queue = RoomQueue::new(registry.clone(), background.clone(), max_wait);
        Self {
            registry,
            background,
            models: Arc::default(),
            queue: Arc::new(queue),
            waiting: Arc::default(),
            closing: watch::Sender::default(),
        }
    }

    /// The registry.
    pub fn registry(&self) -> &AdapterRegistry {
        &self.registry
    }

    /// Names of the adapters for which requests wait.
    pub fn waiting(&self) -> Vec<String> {
        self.waiting.adapters()
    }

    /// Number of engine requests that wait for their adapter.
    pub fn num_waiting(&self) -> usize {
        self.waiting.totals().requests
    }

    /// Ends what waits for an adapter: the server shuts down, and no load is worth its time.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Loads an adapter under a name.
    ///
    /// # Errors
    /// 400 for an adapter that cannot be loaded and a name that is taken or impossible; 503 if there is no room in
    /// time, or if the files are not read in time.
    pub async fn load(
        &self,
        name: String,
        path: PathBuf,
        load_inplace: bool,
    ) -> Result<RequestAdapter, ApiError> {
        self.obtain(&name, Wanted::Load { path, load_inplace }, load_error).await
    }

    /// Unloads the adapter of a name. Requests that run with it are not affected.
    ///
    /// # Errors
    /// 404 for a name that no adapter has; 503 while its files are read and do not come.
    pub async fn unload(&self, name: String) -> Result<(), ApiError> {
        let granted = self.unless_closing(self.wait(&name, Wanted::Unload, load_error)).await?;
        // Nothing else is granted to that.
        let Grant::Name(turn) = granted else {
            return Err(ApiError::internal("the name of the adapter is not free"));
        };
        let (registry, own) = (self.registry.clone(), name.clone());
        // The memory of weights is given back there.
        let unloaded = self.background.run(0, move || {
            let _turn = turn;
            registry.unload(&own)
        });
        unloaded.await?.map_err(|why| load_error(&why))?;
        self.models().remove(&name);
        Ok(())
    }

    /// Waits in the queue, and reads the files if that is what is granted.
    async fn obtain(
        &self,
        name: &str,
        wanted: Wanted,
        error: fn(&RegistryError) -> ApiError,
    ) -> Result<RequestAdapter, ApiError> {
        self.unless_closing(async {
            match self.wait(name, wanted, error).await? {
                Grant::Ready(ready) => Ok(ready),
                Grant::Read(grant) => self.read(name, grant).await?.map_err(|why| error(&why)),
                // What is not unloaded is not granted that.
                Grant::Name(_) => Err(ApiError::internal("the adapter was not read")),
            }
        })
        .await
    }

    /// Waits in the queue.
    async fn wait(
        &self,
        name: &str,
        wanted: Wanted,
        error: fn(&RegistryError) -> ApiError,
    ) -> Result<Grant, ApiError> {
        let granted = match self.queue.enter(name, wanted, now()) {
            Ok(waiting) => waiting.granted().await,
            Err(why) => Err(why),
        };
        granted.map_err(|why| match why {
            Refusal::Registry(why) => error(&why),
            Refusal::NoTurn(within) => no_turn(within),
            Refusal::QueueFull { waiting, own } => queue_full(waiting, own.then_some(name)),
        })
    }

    /// Reads the files of an adapter in the background.
    async fn read(
        &self,
        name: &str,
        grant: ReadGrant,
    ) -> Result<Result<RequestAdapter, RegistryError>, ApiError> {
        let ReadGrant { read, seat, turn } = grant;
        let (background, queue) = (self.background.clone(), self.queue.clone());
        let (within, own) = (self.registry.options().load_timeout, name.to_owned());
        // A task of its own: it watches the read also if the client disconnects.
        let task = tokio::spawn(async move {
            // The turn ends with the thread, and not with the wait for it: a name whose files hang has one thread.
            let work = move || {
                let _turn = turn;
                read.read()
            };
            let done = background.load(seat, within, work).await;
            queue.poll(now());
            done.map_err(|why| match why {
                LoadError::TimedOut => too_slow(&own, within),
                LoadError::NoThread(why) => no_thread(&own, &why),
                LoadError::Panicked => ApiError::internal("the read of an adapter panicked"),
            })
        });
        task.await.map_err(|why| ApiError::internal(format!("slow work failed: {why}")))?
    }

    /// A wait that ends with an error when the server shuts down.
    async fn unless_closing<T>(
        &self,
        wait: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let mut closing = self.closing.subscribe();
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => Err(draining()),
            done = wait => done,
        }
    }

    /// The lane as a request sees it whose model is the adapter of this name.
    ///
    /// # Errors
    /// 404 for a name that no adapter has.
    pub fn lane(&self, lane: &ServedLane, name: &str) -> Result<ServedLane, ApiError> {
        if !self.registry.contains(name) {
            return Err(use_error(&RegistryError::NotFound { name: name.to_owned() }));
        }
        let mut lane = lane.clone();
        lane.generation.model = self.model(lane.model(), name);
        lane.generation.adapter =
            Some(NamedAdapter { adapters: self.clone(), name: name.to_owned() });
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
        RegistryError::TooMany { .. } => {
            ApiError::param("lora_name", message).with_code("too_many_adapters")
        }
        RegistryError::Full { .. } => unavailable(message, "adapters_busy"),
        RegistryError::TimedOut { .. } => unavailable(message, "adapter_timeout"),
        RegistryError::OutOfMemory { .. } => unavailable(message, "out_of_memory"),
    }
}

/// Error of a request that names an adapter as its model.
fn use_error(why: &RegistryError) -> ApiError {
    let message = sentence(why);
    match why {
        RegistryError::Full { .. } => unavailable(message, "adapters_busy"),
        RegistryError::TimedOut { .. } => unavailable(message, "adapter_timeout"),
        RegistryError::OutOfMemory { .. } => unavailable(message, "out_of_memory"),
        // An operator has to load it again. Nothing is wrong with the request.
        RegistryError::Load { .. } | RegistryError::Changed { .. } => {
            ApiError { retry_after: None, ..unavailable(message, "adapter_unavailable") }
        }
        RegistryError::Name { .. }
        | RegistryError::TooMany { .. }
        | RegistryError::NotFound { .. }
        | RegistryError::AlreadyLoaded { .. } => {
            let error = ApiError::not_found(message).with_code("model_not_found");
            ApiError { param: Some("model".into()), ..error }
        }
    }
}

/// Error of a read that takes too long.
fn too_slow(name: &str, within: Duration) -> ApiError {
    let seconds = within.as_secs_f64();
    use_error(&RegistryError::TimedOut { name: name.to_owned(), seconds })
}

/// Error of a read for which the system has no thread.
fn no_thread(name: &str, why: &std::io::Error) -> ApiError {
    let message = format!(
        "The system has no thread to read the LoRA adapter `{name}` with ({why}). Try again later, or give the server \
         more memory or threads."
    );
    unavailable(message, "out_of_memory")
}

/// Error of what waits behind reads of other adapters.
fn no_turn(within: Duration) -> ApiError {
    let seconds = within.as_secs_f64();
    let message = format!(
        "Other LoRA adapters are being read, and this one had no turn within {seconds} s. Try again later."
    );
    unavailable(message, "adapters_busy")
}

/// Error of what finds no place in the queue: of this adapter, or of all.
fn queue_full(waiting: usize, adapter: Option<&str>) -> ApiError {
    let what = adapter.map_or("LoRA adapters".into(), |name| format!("the LoRA adapter `{name}`"));
    let message = format!(
        "{waiting} requests and loads wait for {what}, which is the maximum. Try again later."
    );
    unavailable(message, "adapters_busy")
}

impl ApiError {
    /// The refusal of a request whose deadline passed while it waited for its adapter.
    pub fn late_for_adapter(self) -> Self {
        if self.code != Some(RefusalCode::DeadlineUnreachable.name()) {
            return self;
        }
        let message = "The deadline passed while the request waited for its LoRA adapter. Please retry later, or \
                       allow more time.";
        Self { message: message.into(), ..self }
    }
}

/// Error of whatever waits for an adapter when the server shuts down.
fn draining() -> ApiError {
    unavailable("The server is shutting down.", "draining")
}

/// Error of a request whose adapter failed while it ran. An operator has to act: nothing is wrong with the request, and
/// the same request would fail again.
pub fn failed(why: &AdapterFailure) -> ApiError {
    let message = format!(
        "{} Load a version that works under this name, or unload the adapter.",
        sentence(why)
    );
    let error = unavailable(message, "adapter_unavailable");
    ApiError { retry_after: None, ..error }
}

/// Error of a server without adapters.
pub fn disabled() -> ApiError {
    let message =
        "This server takes no LoRA adapters. Start it with --enable-lora, or with --lora-modules.";
    ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
        .with_code("lora_disabled")
}

/// An error as a sentence.
fn sentence(why: &impl ToString) -> String {
    let text = why.to_string();
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", chars.as_str())
}

#[cfg(test)]
mod fake_disk;
#[cfg(test)]
mod tests;
