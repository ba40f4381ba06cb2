//! One request, watched from outside.
//!
//! Everything happens on one thread, and of what comes only its moments are kept: the client shares the machine with the
//! server it measures, and what it costs is part of the report.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{RequestBuilder, Response};
use serde_json::Value;

use super::dataset::Endpoint;
use super::failure::{Failure, told};
use super::stream::{Event, Lines, Usage};

/// Bodies of refusals are not read beyond this.
const LONGEST_REFUSAL: usize = 64 << 10;

/// Talks to one server.
pub(super) struct Client {
    http: reqwest::Client,
    base: String,
    url: String,
    key: Option<String>,
    /// When the measurement began.
    began: Instant,
    /// Chunks that brought tokens so far, of all requests: for the progress bar.
    chunks: Arc<AtomicU64>,
}

/// What was seen of a request. Moments are seconds from the beginning of the measurement.
#[derive(Debug, Clone)]
pub(super) struct Record {
    /// Which one of the dataset.
    pub index: usize,
    /// When it should have been sent: what all latencies count from, so that a request that had to wait because the
    /// client or the server was busy is not flattered.
    pub due: f64,
    /// When it was.
    pub sent: f64,
    /// When each chunk that brought tokens came.
    pub chunks: Vec<f64>,
    /// When the last chunk of the answer came; of a failure, when it was known.
    pub end: f64,
    /// Tokens, if the server counted them.
    pub usage: Option<Usage>,
    /// Milliseconds that it waited in the server, if the server said so.
    pub queue_ms: Option<f64>,
    /// The server's name for it.
    pub request_id: Option<String>,
    /// How it ended.
    pub failure: Option<Failure>,
}

impl Client {
    /// A client for a server.
    ///
    /// # Errors
    /// A TLS library that does not start.
    pub(super) fn new(
        base: &str,
        endpoint: Endpoint,
        key: Option<String>,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        // A proxy would be measured with the server.
        let http = reqwest::Client::builder().no_proxy().http1_only().timeout(timeout);
        // A connection for each request, as different users have. Some servers close one that they have just answered on
        // without a word, and a request on its way then would be lost.
        let http = http.pool_max_idle_per_host(0);
        let http = http.redirect(reqwest::redirect::Policy::none()).build()?;
        // OpenAI's tools are given URLs that end in /v1, browsers those that end in a slash.
        let base = base.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches('/');
        let (base, url) = (base.to_owned(), format!("{base}{}", endpoint.path()));
        Ok(Self { http, base, url, key, began: Instant::now(), chunks: Arc::default() })
    }

    /// Where requests go.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The clock starts.
    pub(super) fn begin(&mut self) {
        self.began = Instant::now();
        self.chunks.store(0, Ordering::Relaxed);
    }

    /// Its zero.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// Seconds since the clock started.
    pub(super) fn now(&self) -> f64 {
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
    pub(super) async fn model(&self) -> anyhow::Result<String> {
        let url = format!("{}/v1/models", self.base);
        let ask = "name the model with --model if the server is there";
        let answer = self.authorized(self.http.get(&url)).send().await;
        let answer = answer.map_err(|e| anyhow::anyhow!("{url}: {}; {ask}", cause(&e)))?;
        let status = answer.status();
        let body = answer.bytes().await.with_context(|| format!("reading {url}"))?;
        anyhow::ensure!(
            status.is_success(),
            "{url}: {}; {ask}",
            Failure::status(status.as_u16(), None, &body)
        );
        let list: Value = serde_json::from_slice(&body).with_context(|| url.clone())?;
        let id = list.pointer("/data/0/id").and_then(Value::as_str);
        Ok(id.with_context(|| format!("{url} names no model; {ask}"))?.to_owned())
    }

    /// One GET: what it took, if it went well.
    pub(super) async fn get(&self, path: &str) -> Option<Duration> {
        let began = Instant::now();
        let request = self.authorized(self.http.get(format!("{}{path}", self.base)));
        let answer = request.send().await.ok()?;
        let good = answer.status().is_success();
        answer.bytes().await.ok()?;
        good.then(|| began.elapsed())
    }

    /// Send a request and watch its answer to the end.
    pub(super) async fn ask(&self, index: usize, body: Bytes, due: f64) -> Record {
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
        let mut answer = request.send().await.map_err(|e| broken(&e))?;
        record.queue_ms =
            header(answer.headers(), "x-strata-queue-ms").and_then(|v| v.parse().ok());
        record.request_id = header(answer.headers(), "x-request-id").map(str::to_owned);
        if !answer.status().is_success() {
            return Err(refusal(answer).await);
        }
        let kind = header(answer.headers(), CONTENT_TYPE.as_str()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return Err(Failure::Unreadable(format!("the content type is `{kind}`")));
        }
        let mut watched = Watched::default();
        let mut lines = Lines::default();
        // To the end of the body, behind [DONE]: only then can the connection be used again.
        while let Some(bytes) = answer.chunk().await.map_err(|e| broken(&e))? {
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

/// How a stream comes along.
#[derive(Default)]
struct Watched {
    /// Events that brought tokens since somebody looked.
    brought: u64,
    /// `[DONE]` came.
    done: bool,
    /// A reason for the end came. Some servers end without `[DONE]`.
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
            self.failure.get_or_insert(Failure::Event(told(error)));
        }
        if event.of_answer() {
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

/// A response that is no answer.
async fn refusal(mut answer: Response) -> Failure {
    let status = answer.status().as_u16();
    let retry_after = header(answer.headers(), RETRY_AFTER.as_str()).map(str::to_owned);
    let mut body = Vec::new();
    while body.len() < LONGEST_REFUSAL
        && let Ok(Some(bytes)) = answer.chunk().await
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
