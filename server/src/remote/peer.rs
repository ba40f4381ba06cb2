//! The server behind a remote replica: its addresses, its state, and a request to it.

use std::error::Error;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use l2_model::tokenizer::Tokenizer;
use l5_scheduler::FinishReason;
use l5_scheduler::engine::RelayOutput;
use l6_ensemble::RemoteConfig;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Response, StatusCode};
use tokio::time::timeout;

use super::cooldown::Cooldown;
use super::error::{RemoteError, StartRemoteError};
use super::events::EventReader;
use super::wire::{Event, Wire, message, wire};
use crate::error::quoted;

/// Maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum time of a health check.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time of a health check after a connection has failed, for which a request waits.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which nothing is sent to a server that has just failed a request.
const PAUSE: Duration = Duration::from_millis(200);

/// Maximum time to wait for the end of a stream whose request has ended here. A server that ends it at the same token
/// does so at once, and the connection can serve another request.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Maximum number of bytes that are read of an error.
const MAX_ERROR_BYTES: usize = 16 << 10;

/// Receives whether the server is up.
pub type UpGauge = Box<dyn Fn(bool) + Send + Sync>;

/// Receives why the server has gone down.
pub(super) type OnDown = Box<dyn Fn(&str) + Send + Sync>;

/// The server behind a remote replica.
pub(super) struct Peer {
    http: Client,
    url: String,
    health: String,
    /// Address of its completions.
    completions: String,
    /// Its API.
    pub wire: Box<dyn Wire>,
    /// Name of the model there.
    pub model: String,
    timeout: Duration,
    /// Name of the replica in the log.
    title: String,
    state: Mutex<State>,
    gauge: UpGauge,
    /// Called with the reason when the server goes down.
    on_down: OnceLock<OnDown>,
}

/// Whether the server is up.
struct State {
    /// Why it is down.
    down: Option<String>,
    /// Health checks in a row that have failed.
    failures: u32,
    /// How often it was found down.
    breaks: u64,
    /// When it last failed a request that may be sent again.
    failed_at: Option<Instant>,
    /// What its last requests say about it.
    cooldown: Cooldown,
    /// Whether the log has its state.
    logged: bool,
}

/// How many health checks in a row must fail, unless there is no connection: a busy server may be late once.
const MAX_FAILURES: u32 = 2;

impl Peer {
    /// The server of this configuration, which counts as down before it was checked. `tokenizer` is that of its model.
    ///
    /// # Errors
    /// [`StartRemoteError`].
    pub fn new(
        config: &RemoteConfig,
        tokenizer: Option<Tokenizer>,
        title: String,
        gauge: UpGauge,
    ) -> Result<Self, StartRemoteError> {
        let mut headers = HeaderMap::new();
        if let Some(name) = &config.api_key_env {
            let key = std::env::var(name).ok().filter(|key| !key.is_empty());
            let key = key.ok_or_else(|| StartRemoteError::NoKey(name.clone()))?;
            let value = HeaderValue::from_str(&format!("Bearer {key}"));
            let mut value = value.map_err(|_| StartRemoteError::InvalidKey(name.clone()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let http = Client::builder()
            .no_proxy()
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .default_headers(headers)
            .build()?;
        gauge(false);
        let wire = wire(config.api, tokenizer);
        let root = config.url.strip_suffix("/v1").unwrap_or(&config.url);
        Ok(Self {
            http,
            url: config.url.clone(),
            // Beside the API, not within it.
            health: format!("{root}/health"),
            completions: wire.completions(&config.url, root),
            wire,
            model: config.model.clone(),
            timeout: Duration::from_secs_f64(config.timeout_seconds),
            title,
            state: Mutex::new(State {
                down: Some("it was not checked yet".into()),
                failures: 0,
                breaks: 0,
                failed_at: None,
                cooldown: Cooldown::default(),
                logged: false,
            }),
            gauge,
            on_down: OnceLock::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the server is down; `None` while it is up.
    pub fn down(&self) -> Option<String> {
        self.lock().down.clone()
    }

    /// The server has answered a health check that began after `breaks` breaks. One that began before the last break
    /// says nothing.
    fn set_up(&self, breaks: u64) {
        let mut state = self.lock();
        if state.breaks != breaks || !state.cooldown.is_over(Instant::now()) {
            return;
        }
        (state.failures, state.logged) = (0, true);
        if state.down.take().is_some() {
            (self.gauge)(true);
            tracing::info!(target: crate::LOG, "{}: {} is up", self.title, self.url);
        }
    }

    /// The server cannot be reached.
    pub fn set_down(&self, why: &str) {
        let mut state = self.lock();
        state.breaks += 1;
        let was_up = state.down.replace(why.to_owned()).is_none();
        if was_up || !std::mem::replace(&mut state.logged, true) {
            tracing::warn!(target: crate::LOG, "{}: {} is down: {why}", self.title, self.url);
        }
        if !was_up {
            return;
        }
        (self.gauge)(false);
        drop(state);
        if let Some(on_down) = self.on_down.get() {
            on_down(why);
        }
    }

    /// Sets what is called with the reason when the server goes down: once.
    pub fn set_on_down(&self, on_down: OnDown) {
        let _ = self.on_down.set(on_down);
    }

    /// A connection has failed: the server is down, unless it answers a health check at once.
    pub async fn verify(&self, why: &RemoteError) {
        if !matches!(timeout(VERIFY_TIMEOUT, self.healthy()).await, Ok(Ok(()))) {
            self.set_down(&why.to_string());
        }
    }

    /// The server has failed a request that may be sent again.
    pub fn failed(&self) {
        self.lock().failed_at = Some(Instant::now());
    }

    /// The server has served a request.
    pub fn served(&self) {
        self.lock().cooldown.served();
    }

    /// The server has failed a request. After some in a row it is down for a while, whatever its health checks say.
    pub fn count_failure(&self, why: &RemoteError) {
        if !why.is_the_servers() {
            return;
        }
        let pause = self.lock().cooldown.failed(Instant::now());
        if let Some(pause) = pause {
            let seconds = pause.as_secs();
            self.set_down(&format!("it fails requests, and gets none for {seconds} s: {why}"));
        }
    }

    /// Time to wait before the next request, if the server has just failed one.
    pub fn pause(&self) -> Option<Duration> {
        self.lock().failed_at.and_then(|at| PAUSE.checked_sub(at.elapsed()))
    }

    /// Checks the server's health, and changes its state.
    pub async fn check(&self) {
        let breaks = self.lock().breaks;
        match self.healthy().await {
            Ok(()) => self.set_up(breaks),
            Err(why) => {
                let failures = {
                    let mut state = self.lock();
                    state.failures += 1;
                    state.failures
                };
                if failures >= MAX_FAILURES || matches!(why, RemoteError::Connection(_)) {
                    self.set_down(&why.to_string());
                }
            }
        }
    }

    async fn healthy(&self) -> Result<(), RemoteError> {
        if self.down().is_some() {
            self.admits().await?;
        }
        let models = format!("{}/models", self.url);
        for url in [&self.health, &models] {
            let sent = timeout(HEALTH_TIMEOUT, self.http.get(url).send()).await;
            let seconds = HEALTH_TIMEOUT.as_secs_f64();
            let phase = "before its response";
            let status = sent.map_err(|_| RemoteError::Silent { seconds, phase })?;
            match status.map_err(broken)?.status() {
                status if status.is_success() => return Ok(()),
                // Not every server has this address.
                StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED if *url != models => {}
                status => {
                    let message = "it is not healthy".to_owned();
                    return Err(RemoteError::Status { status: status.as_u16(), message });
                }
            }
        }
        Ok(())
    }

    /// Whether the server accepts the API key. Its health often needs none.
    async fn admits(&self) -> Result<(), RemoteError> {
        let models = self.http.get(format!("{}/models", self.url)).send();
        let Ok(sent) = timeout(HEALTH_TIMEOUT, models).await else { return Ok(()) };
        let status = sent.map_err(broken)?.status().as_u16();
        if matches!(status, 401 | 403) {
            let message = "it rejects the API key: check `api_key_env`".to_owned();
            return Err(RemoteError::Status { status, message });
        }
        Ok(())
    }

    /// Sends a request, whose tokens go to `output`. `begun` is set with the first byte of its response. Returns the
    /// end that the server reports, or `None` if the request has ended here; and the rest of the stream.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn relay(
        &self,
        body: Bytes,
        max_tokens: usize,
        output: &mut RelayOutput,
        begun: &mut bool,
    ) -> Result<(Option<FinishReason>, Rest), RemoteError> {
        let request = self.http.post(&self.completions).body(body);
        let sent = request.header(CONTENT_TYPE, "application/json").send();
        let sent = timeout(self.timeout, sent).await;
        let response = sent.map_err(|_| self.silent(*begun))?.map_err(broken)?;
        if response.status() != StatusCode::OK {
            return Err(self.refused(response).await);
        }
        self.read(response, max_tokens, output, begun).await
    }

    async fn read(
        &self,
        mut response: Response,
        max_tokens: usize,
        output: &mut RelayOutput,
        begun: &mut bool,
    ) -> Result<(Option<FinishReason>, Rest), RemoteError> {
        let mut reader = EventReader::new(self.wire.decoder(), max_tokens);
        let mut events = Vec::new();
        loop {
            let chunk = timeout(self.timeout, response.chunk()).await;
            let Some(chunk) = chunk.map_err(|_| self.silent(*begun))?.map_err(broken)? else {
                return Err(RemoteError::Malformed("it stopped before its end".into()));
            };
            *begun = true;
            let read = reader.push(&chunk, &mut events);
            let mut events = events.drain(..);
            while let Some(event) = events.next() {
                let Event::Tokens(tokens, finish) = event else {
                    return Err(RemoteError::Malformed("it has no finish reason".into()));
                };
                let ended = if tokens.is_empty() { None } else { output.push(&tokens) };
                if ended == Some(FinishReason::Failed) {
                    let what = "it has tokens that the model does not have";
                    return Err(RemoteError::Malformed(what.into()));
                }
                if ended.is_some() {
                    let goes_on = events.any(|event| event.has_tokens());
                    return Ok((None, Rest { response, reader, goes_on }));
                }
                if let Some(finish) = finish {
                    let rest = Rest { response, reader, goes_on: false };
                    return Ok((Some(finish), rest));
                }
            }
            read?;
        }
    }

    fn silent(&self, begun: bool) -> RemoteError {
        let phase = if begun { "within its response" } else { "before its response" };
        RemoteError::Silent { seconds: self.timeout.as_secs_f64(), phase }
    }

    /// The error of a response with an error status.
    async fn refused(&self, mut response: Response) -> RemoteError {
        let status = response.status().as_u16();
        let mut body = Vec::new();
        let read = async {
            while body.len() < MAX_ERROR_BYTES
                && let Ok(Some(chunk)) = response.chunk().await
            {
                body.extend_from_slice(&chunk[..chunk.len().min(MAX_ERROR_BYTES - body.len())]);
            }
        };
        // Whatever has arrived by then is the message.
        let _ = timeout(self.timeout, read).await;
        let message = match serde_json::from_slice(&body) {
            Ok(json) => message(&json),
            Err(_) => quoted(&String::from_utf8_lossy(&body)),
        };
        RemoteError::Status { status, message }
    }
}

/// Rest of a stream whose request has ended.
pub(super) struct Rest {
    response: Response,
    reader: EventReader,
    /// Whether the server has sent tokens behind the end.
    goes_on: bool,
}

impl Rest {
    /// Reads the stream to its end, so that its connection can serve another request; unless the server goes on: then
    /// the connection is closed, which aborts the request there.
    pub async fn read(self) {
        let Self { mut response, mut reader, goes_on } = self;
        if goes_on {
            return;
        }
        let rest = async {
            let mut events = Vec::new();
            while let Ok(Some(chunk)) = response.chunk().await {
                let read = reader.push(&chunk, &mut events);
                if read.is_err() || events.drain(..).any(|event| event.has_tokens()) {
                    return;
                }
            }
        };
        let _ = timeout(LAST_WORDS, rest).await;
    }
}

/// An error of the connection, without the address.
fn broken(error: reqwest::Error) -> RemoteError {
    let error = error.without_url();
    let mut cause: &dyn Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    RemoteError::Connection(cause.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use l6_ensemble::RemoteApi;

    use super::*;

    #[test]
    fn a_health_check_that_began_before_a_break_does_not_bring_the_server_back() {
        let config = RemoteConfig {
            url: "http://localhost:1/v1".into(),
            api: RemoteApi::OpenAi,
            model: "m".into(),
            api_key_env: None,
            max_num_seqs: 1,
            timeout_seconds: 1.0,
        };
        let peer = Peer::new(&config, None, "replica 0".into(), Box::new(|_| {})).unwrap();
        let downs = Arc::new(AtomicUsize::new(0));
        let count = downs.clone();
        peer.set_on_down(Box::new(move |_| _ = count.fetch_add(1, Ordering::Relaxed)));
        peer.set_up(0);
        assert_eq!(peer.down(), None);
        peer.set_down("broken");
        peer.set_down("still broken");
        assert_eq!(downs.load(Ordering::Relaxed), 1, "it goes down once");
        peer.set_up(0);
        assert_eq!(peer.down().as_deref(), Some("still broken"));
        peer.set_up(2);
        assert_eq!(peer.down(), None);
        assert_eq!(peer.pause(), None);
        peer.failed();
        assert!(peer.pause().is_some_and(|pause| pause <= PAUSE));
    }
}
