//! LoRA adapters of the served model: a request that names one as its `model` runs with it.
//!
//! ```text
//! model name -> AdapterRegistry (l5) -> in memory: used at once
//!                                    -> evicted: read again on a background thread, while the request waits
//!                                    -> requests use all that may be in memory: the request waits for room
//! ```
//!
//! Every wait is bounded: for room, for a thread, and for the files. A shutdown ends all of them.
//!
//! A response to such a request has the adapter's name as `model`. Tokenizer, chat template, limits and metrics are those
//! of the model.

mod room;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use axum::http::StatusCode;
use l5_scheduler::adapters::{AdapterInfo, RegistryError};
use l5_scheduler::{AdapterFailure, AdapterRegistry, RequestAdapter};
use tokio::sync::watch;
use tokio::time::{sleep, timeout, timeout_at};

use super::background::{Background, LoadError};
use super::error::{ApiError, unavailable};
use super::lanes::ServedLane;
use super::model::ServedModel;
use room::{NameTurns, ROOM_POLL, RoomQueue};

/// The adapters of a server of one model. Clones share everything.
#[derive(Clone, Debug)]
pub struct Adapters {
    registry: AdapterRegistry,
    background: Background,
    /// The model under the name of each adapter.
    models: Arc<Mutex<HashMap<String, Arc<ServedModel>>>>,
    /// Maximum time that a request waits for room.
    max_wait: Duration,
    queue: Arc<RoomQueue>,
    turns: NameTurns,
    /// Whether the server shuts down.
    closing: watch::Sender<bool>,
}

impl Adapters {
    /// The adapters of a registry, whose files are read by `background`. A request for an adapter that is not in memory
    /// waits for at most `max_wait` while requests use all that may be.
    pub fn new(registry: AdapterRegistry, background: Background, max_wait: Duration) -> Self {
        Self {
            registry,
            background,
            models: Arc::default(),
            max_wait,
            queue: Arc::default(),
            turns: NameTurns::default(),
            closing: watch::Sender::default(),
        }
    }

    /// The registry.
    pub fn registry(&self) -> &AdapterRegistry {
        &self.registry
    }

    /// Names of the adapters for which requests wait until there is room.
    pub fn waiting(&self) -> Vec<String> {
        self.queue.adapters()
    }

    /// Ends what waits for an adapter: the server shuts down, and no load is worth its time.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Loads an adapter under a name.
    ///
    /// # Errors
    /// 400 for an adapter that cannot be loaded and a name that is taken or impossible; 503 if there is no room, or if
    /// the files are not read in time.
    pub async fn load(
        &self,
        name: String,
        path: PathBuf,
        load_inplace: bool,
    ) -> Result<RequestAdapter, ApiError> {
        let (registry, own) = (self.registry.clone(), name.clone());
        let loaded = self.read(&name, move || registry.load(&own, &path, load_inplace));
        loaded.await?.map_err(|why| load_error(&why))
    }

    /// Unloads the adapter of a name. Requests that run with it are not affected.
    ///
    /// # Errors
    /// 404 for a name that no adapter has; 503 while its files are read and do not come.
    pub async fn unload(&self, name: String) -> Result<(), ApiError> {
        let (registry, own) = (self.registry.clone(), name.clone());
        // It waits while the adapter is read.
        let unloaded = self.read(&name, move || registry.unload(&own)).await?;
        unloaded.map_err(|why| load_error(&why))?;
        self.models().remove(&name);
        Ok(())
    }

    /// Works on the files of an adapter in the background, once nothing else does.
    async fn read<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let (background, turns) = (self.background.clone(), self.turns.clone());
        let within = self.registry.options().load_timeout;
        let own = name.to_owned();
        // A task of its own: it watches the read also if the client disconnects.
        let task = tokio::spawn(async move {
            let turn = timeout(within, turns.take(&own)).await;
            let turn = turn.map_err(|_| too_slow(&own, within))?;
            // The turn ends with the thread, and not with the wait for it: a name whose files hang has one thread.
            let work = move || {
                let _turn = turn;
                work()
            };
            background.load(within, work).await.map_err(|why| match why {
                LoadError::NoSeat => too_busy(within),
                LoadError::TimedOut => too_slow(&own, within),
                LoadError::Panicked(why) => ApiError::internal(why),
            })
        });
        self.unless_closing(async {
            task.await.map_err(|why| ApiError::internal(format!("slow work failed: {why}")))?
        })
        .await
    }

    /// A wait that ends with an error when the server shuts down.
    async fn unless_closing<T>(
        &self,
        wait: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let mut closing = self.closing.subscribe();
        tokio::select! {
            done = wait => done,
            _ = closing.wait_for(|closing| *closing) => Err(draining()),
        }
    }

    /// The lane as a request sees it whose model is the adapter of this name. An evicted adapter is read again; if
    /// requests use all that may be in memory, the request waits for one of them to end.
    ///
    /// # Errors
    /// 404 for a name that no adapter has; 503 for an adapter that cannot be used now, and if the wait is over; 504 if
    /// the request's own time is.
    pub async fn lane(
        &self,
        lane: &ServedLane,
        name: &str,
        arrived: Instant,
    ) -> Result<ServedLane, ApiError> {
        let adapter = match self.resident(name)? {
            Some(adapter) => adapter,
            None => {
                let timeout = lane.generation.admission.request_timeout();
                let used = self.wait_within(name, timeout.map(|within| arrived + within));
                used.await?
            }
        };
        let mut lane = lane.clone();
        lane.generation.model = self.model(lane.model(), name);
        lane.generation.adapter = Some(adapter);
        Ok(lane)
    }

    fn resident(&self, name: &str) -> Result<Option<RequestAdapter>, ApiError> {
        self.registry.get_resident(name).map_err(|why| use_error(&why))
    }

    /// Reads an adapter again, before the deadline of its request.
    async fn wait_within(
        &self,
        name: &str,
        deadline: Option<Instant>,
    ) -> Result<RequestAdapter, ApiError> {
        let read = self.read_again(name);
        match deadline {
            None => read.await,
            Some(deadline) => {
                timeout_at(deadline.into(), read).await.unwrap_or_else(|_| Err(ApiError::timeout()))
            }
        }
    }

    async fn read_again(&self, name: &str) -> Result<RequestAdapter, ApiError> {
        // Behind those that wait: otherwise later requests would get all the room.
        if self.queue.is_empty()
            && let Some(read) = self.try_read(name).await?
        {
            return Ok(read);
        }
        let full =
            || use_error(&RegistryError::Full { max: self.registry.options().max_cpu_loras });
        let Some(_waiting) = self.queue.enter(name) else { return Err(full()) };
        self.unless_closing(async {
            let waited = timeout(self.max_wait, self.wait_for_room(name)).await;
            // Room that is there now was never this request's: those before it have their files read.
            let why = || if self.registry.has_room() { no_turn(self.max_wait) } else { full() };
            waited.unwrap_or_else(|_| Err(why()))
        })
        .await
    }

    /// Waits for the request's turn, and then for room.
    async fn wait_for_room(&self, name: &str) -> Result<RequestAdapter, ApiError> {
        let turn = self.queue.turn.lock();
        tokio::pin!(turn);
        let _turn = loop {
            tokio::select! {
                biased;
                turn = &mut turn => break turn,
                () = sleep(ROOM_POLL) => {}
            }
            // A request before it may have had the same adapter read.
            if let Some(ready) = self.resident(name)? {
                return Ok(ready);
            }
        };
        loop {
            if let Some(ready) = self.resident(name)? {
                return Ok(ready);
            }
            if self.registry.has_room()
                && let Some(read) = self.try_read(name).await?
            {
                return Ok(read);
            }
            sleep(ROOM_POLL).await;
        }
    }

    /// Reads an adapter again. `None`: there is no room.
    async fn try_read(&self, name: &str) -> Result<Option<RequestAdapter>, ApiError> {
        let (registry, own) = (self.registry.clone(), name.to_owned());
        match self.read(name, move || registry.get(&own)).await? {
            Ok(adapter) => Ok(Some(adapter)),
            Err(RegistryError::Full { .. }) => Ok(None),
            Err(why) => Err(use_error(&why)),
        }
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
    }
}

/// Error of a request that names an adapter as its model.
fn use_error(why: &RegistryError) -> ApiError {
    let message = sentence(why);
    match why {
        RegistryError::Full { .. } => unavailable(message, "adapters_busy"),
        RegistryError::TimedOut { .. } => unavailable(message, "adapter_timeout"),
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

/// Error of a read that does not begin in time.
fn too_busy(within: Duration) -> ApiError {
    let seconds = within.as_secs_f64();
    let message = format!(
        "Other LoRA adapters are being read, and none of them within {seconds} s. Try again later."
    );
    unavailable(message, "adapters_busy")
}

/// Error of a request that waits behind reads of other adapters.
fn no_turn(within: Duration) -> ApiError {
    let seconds = within.as_secs_f64();
    let message = format!(
        "Other LoRA adapters are being read, and this one had no turn within {seconds} s. Try again later."
    );
    unavailable(message, "adapters_busy")
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
mod tests {
    use std::path::Path;
    use std::sync::mpsc::channel;

    use l5_scheduler::adapters::AdapterOptions;
    use l5_scheduler::engine::EngineModel;

    use super::*;

    #[tokio::test]
    async fn a_name_whose_files_hang_has_one_thread_until_that_ends() {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama");
        let model = EngineModel::open(&tiny, Default::default()).unwrap();
        let load_timeout = Duration::from_millis(50);
        let options = AdapterOptions { load_timeout, ..AdapterOptions::default() };
        let registry = AdapterRegistry::new(&model, options);
        let adapters = Adapters::new(registry, Background::default(), Duration::ZERO);
        let (end, ended) = channel::<()>();
        let stuck = adapters.read("a", move || _ = ended.recv()).await.unwrap_err();
        assert_eq!(stuck.code, Some("adapter_timeout"));
        let next = adapters.read("a", || 6).await;
        assert_eq!(next.unwrap_err().code, Some("adapter_timeout"));
        assert_eq!(adapters.read("b", || 7).await.unwrap(), 7, "other names are read");
        drop(end);
        let again = async {
            loop {
                if let Ok(read) = adapters.read("a", || 8).await {
                    break read;
                }
            }
        };
        assert_eq!(again.await, 8, "the name is free when the thread has ended");
    }

    #[tokio::test]
    async fn a_request_behind_a_read_is_told_so_and_not_that_there_is_no_room() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
        let model = EngineModel::open(&fixtures.join("tiny-llama"), Default::default()).unwrap();
        let options = AdapterOptions { max_cpu_loras: 1, ..AdapterOptions::default() };
        let registry = AdapterRegistry::new(&model, options);
        let files = fixtures.join("adapters/tiny-llama-all");
        registry.load("a", &files, false).unwrap();
        let b = registry.load("b", &files, false).unwrap();
        let wait = Duration::from_millis(50);
        let adapters = Adapters::new(registry, Background::default(), wait);
        let _first = adapters.queue.enter("b").expect("there is room in the queue");
        let _turn = adapters.queue.turn.lock().await;
        let full = adapters.read_again("a").await.unwrap_err();
        assert!(full.message.contains("requests use all"), "{}", full.message);
        drop(b);
        let behind = adapters.read_again("a").await.unwrap_err();
        assert!(behind.message.contains("are being read"), "{}", behind.message);
    }
}
