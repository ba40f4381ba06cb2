//! The client: sends a request and records the times of its response.
//!
//! It runs on one thread and keeps only times, as it shares the machine with the server that it measures; its own cost
//! is part of the report.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{RequestBuilder, Response};
use serde_json::Value;

use super::dataset::Endpoint;
use super::failure::{Failure, message_of};
use super::stream::{Event, Lines, Usage};

/// Maximum bytes that are read of an error response.
const LONGEST_REFUSAL: usize = 64 << 10;

/// A client of one server.
pub(in crate::cli::bench) struct Client {
    http: reqwest::Client,
    base: String,
    url: String,
    key: Option<String>,
    /// When the measurement began.
    began: Instant,
    /// Chunks that brought tokens so far, of all requests: for the progress bar.
    chunks: Arc<AtomicU64>,
}

/// Times and counts of a request. Times are seconds from the beginning of the measurement.
#[derive(Debug, Clone)]
pub(super) struct Record {
    /// Index in the dataset.
    pub index: usize,
    /// Time at which it was due. All latencies count from it, so that they include the wait for a busy client or
    /// server.
    pub due: f64,
    /// Time at which it was sent.
    pub sent: f64,
    /// Time of each chunk with tokens.
    pub chunks: Vec<f64>,
    /// Time of the last chunk of the response, or of the failure.
    pub end: f64,
    /// Tokens, if the server counted them.
    pub usage: Option<Usage>,
    /// Milliseconds in the server's queue, if the server reported them.
    pub queue_ms: Option<f64>,
    /// The server's request id.
    pub request_id: Option<String>,
    /// Failure, if it failed.
    pub failure: Option<Failure>,
}

impl Client {
    /// A client for a server.
    ///
    /// # Errors
    /// A TLS library that does not start.
    pub(in crate::cli::bench) fn new(
        base: &str,
        endpoint: Endpoint,
        key: Option<String>,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        // No proxy: it would be measured together with the server.
        let http = reqwest::Client::builder().no_proxy().http1_only().timeout(timeout);
        // A connection for each request, as different users have. Some servers close one that they have just answered
        // on without a word, and a request on its way then would be lost.
        let http = http.pool_max_idle_per_host(0);
        let http = http.redirect(reqwest::redirect::Policy::none()).build()?;
        // OpenAI's tools are given URLs that end in /v1, browsers those that end in a slash.
        let base = base.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches('/');
        let (base, url) = (base.to_owned(), format!("{base}{}", endpoint.path()));
        Ok(Self { http, base, url, key, began: Instant::now(), chunks: Arc::default() })
    }

    /// URL of the endpoint.
    pub(in crate::cli::bench) fn url(&self) -> &str {
        &self.url
    }

    /// Starts the clock.
    pub(in crate::cli::bench) fn begin(&mut self) {
        self.began = Instant::now();
        self.chunks.store(0, Ordering::Relaxed);
    }

    /// Start of the clock.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// Seconds since the clock started.
    pub(in crate::cli::bench) fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Chunks that brought tokens, of all requests together.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks.load(Ordering::Relaxed)
    }

    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// The first model that the server names.
    ///
    /// # Errors
    /// A server that cannot be reached, or that names none.
    pub(in crate::cli::bench) async fn model(&self) -> anyhow::Result<String> {
        let url = format!("{}/v1/models", self.base);
        let hint = "if the server is running, set --model";
        let response = self.authorized(self.http.get(&url)).send().await;
        let response = response.map_err(|e| anyhow::anyhow!("{url}: {}; {hint}", cause(&e)))?;
        let status = response.status();
        let body = response.bytes().await.with_context(|| format!("reading {url}"))?;
        anyhow::ensure!(
            status.is_success(),
            "{url}: {}; {hint}",
            Failure::status(status.as_u16(), None, &body)
        );
        let list: Value = serde_json::from_slice(&body).with_context(|| url.clone())?;
        let id = list.pointer("/data/0/id").and_then(Value::as_str);
        Ok(id.with_context(|| format!("{url} names no model; {hint}"))?.to_owned())
    }

    /// Latency of one GET; `None` if it failed.
    pub(super) async fn get(&self, path: &str) -> Option<Duration> {
        let began = Instant::now();
        let request = self.authorized(self.http.get(format!("{}{path}", self.base)));
        let response = request.send().await.ok()?;
        let good = response.status().is_success();
        response.bytes().await.ok()?;
        good.then(|| began.elapsed())
    }

    /// Body of one GET.
    ///
    /// # Errors
    /// No connection, or a status that is an error.
    pub(in crate::cli::bench) async fn text(&self, path: &str) -> Result<String, Failure> {
        let request = self.authorized(self.http.get(format!("{}{path}", self.base)));
        let response = request.send().await.map_err(|e| broken(&e))?;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        response.text().await.map_err(|e| broken(&e))
    }

    /// Sends a request whose response is not streamed, and reads it.
    ///
    /// # Errors
    /// Every way to fail of [`Client::send`], but those of streams.
    pub(in crate::cli::bench) async fn post(&self, body: Bytes) -> Result<Value, Failure> {
        let request = self.authorized(self.http.post(&self.url));
        let request = request.header(CONTENT_TYPE, "application/json").body(body);
        let response = request.send().await.map_err(|e| broken(&e))?;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        let body = response.bytes().await.map_err(|e| broken(&e))?;
        serde_json::from_slice(&body).map_err(|e| Failure::NotJson(e.to_string()))
    }

    /// Sends a request and reads its response to the end.
    pub(super) async fn send(&self, index: usize, body: Bytes, due: f64) -> Record {
        let sent = self.now();
        let mut record = Record {
            index,
            due,
            sent,
            chunks: Vec::new(),
            end: sent,
            usage: None,
            queue_ms: None,
            request_id: None,
            failure: None,
        };
        if let Err(failure) = self.watch(body, &mut record).await {
            record.failure = Some(failure);
            record.end = self.now();
        }
        record
    }

    async fn watch(&self, body: Bytes, record: &mut Record) -> Result<(), Failure> {
        let request = self.authorized(self.http.post(&self.url));
        let request = request.header(CONTENT_TYPE, "application/json").body(body);
        let mut response = request.send().await.map_err(|e| broken(&e))?;
        record.queue_ms =
            header(response.headers(), "x-strata-queue-ms").and_then(|v| v.parse().ok());
        record.request_id = header(response.headers(), "x-request-id").map(str::to_owned);
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        let kind = header(response.headers(), CONTENT_TYPE.as_str()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return Err(Failure::Unreadable(format!("the content type is `{kind}`")));
        }
        let mut watched = Watched::default();
        let mut lines = Lines::default();
        // To the end of the body, behind [DONE]: only then can the connection be used again.
        while let Some(bytes) = response.chunk().await.map_err(|e| broken(&e))? {
            let now = self.now();
            let fed = lines.feed(&bytes, |data| watched.event(data, now, record));
            fed.map_err(|_| Failure::Unreadable("a line without an end".to_owned()))?;
            self.chunks.fetch_add(std::mem::take(&mut watched.brought), Ordering::Relaxed);
            if let Some(failure) = watched.failure.take() {
                return Err(failure);
            }
        }
        match (watched.done || watched.finished, record.chunks.is_empty()) {
            (false, _) => Err(Failure::CutOff),
            (true, true) => Err(Failure::Empty),
            (true, false) => Ok(()),
        }
    }
}

/// State of a response stream.
#[derive(Default)]
struct Watched {
    /// Events with tokens since the last check.
    brought: u64,
    /// Whether `[DONE]` was received.
    done: bool,
    /// Whether a finish reason was received. Some servers end without `[DONE]`.
    finished: bool,
    failure: Option<Failure>,
}

impl Watched {
    fn event(&mut self, data: &[u8], now: f64, record: &mut Record) {
        if data == b"[DONE]" {
            self.done = true;
            return;
        }
        let event = match serde_json::from_slice::<Event>(data) {
            Ok(event) => event,
            Err(e) => {
                let text = String::from_utf8_lossy(data.get(..80).unwrap_or(data)).into_owned();
                self.failure.get_or_insert(Failure::Unreadable(format!("{e}: {text}")));
                return;
            }
        };
        if let Some(error) = &event.error {
            self.failure.get_or_insert(Failure::Event(message_of(error)));
        }
        if event.has_tokens() {
            record.end = now;
            self.finished |= event.finished();
        }
        if event.brings() {
            record.chunks.push(now);
            self.brought += 1;
        }
        record.usage = event.usage.or(record.usage);
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The failure of an error response.
async fn refusal(mut response: Response) -> Failure {
    let status = response.status().as_u16();
    let retry_after = header(response.headers(), RETRY_AFTER.as_str()).map(str::to_owned);
    let mut body = Vec::new();
    while body.len() < LONGEST_REFUSAL
        && let Ok(Some(bytes)) = response.chunk().await
    {
        body.extend_from_slice(&bytes);
    }
    Failure::status(status, retry_after.as_deref(), &body)
}

fn broken(error: &reqwest::Error) -> Failure {
    if error.is_timeout() {
        Failure::Timeout
    } else if error.is_connect() {
        Failure::Connect(cause(error))
    } else {
        Failure::Broken(cause(error))
    }
}

/// The innermost cause: those around it only say that something failed.
fn cause(error: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
