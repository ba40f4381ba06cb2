//! The operator's settings of the server. Those of the engine are in [`l5_scheduler::EngineOptions`].

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

/// Settings of the server: address, access and limits.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port; 0 for any free one.
    pub port: u16,
    /// API keys, of which a client must present one. Empty: no key is needed.
    pub api_keys: Vec<String>,
    /// Names beside loopback's own that `Host` may have where the server listens on loopback (`*` for any).
    pub allowed_hosts: Vec<String>,
    /// Whether the prefix cache is shared between keys. `cached_tokens` and response times then reveal which prompts
    /// others have sent.
    pub share_prefix_cache: bool,
    /// Lowest (most urgent) priority of a request: a lower one counts as this.
    pub min_priority: i64,
    /// Whether an object whose schema declares properties has no others, where neither the schema nor the request
    /// says so: [`l4_sampler::guide::GuideSpec::ClosedJsonSchema`].
    pub disable_additional_properties: bool,
    /// Origins that CORS allows (`*` for all). Empty: none.
    pub allowed_origins: Vec<String>,
    /// Limits of requests.
    pub limits: Limits,
    /// Maximum time that requests in flight may continue after SIGTERM.
    pub shutdown_grace: Duration,
    /// Destination of the access log, one line of JSON per request.
    pub access_log: AccessLog,
}

/// Destination of the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessLog {
    /// No log.
    #[default]
    Off,
    /// Standard error.
    Stderr,
    /// Appended to this file.
    File(PathBuf),
}

/// Limits of connections and requests. Each has its own error.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of bytes of a request body.
    pub body_bytes: usize,
    /// Maximum number of bytes of a request's head.
    pub head_bytes: usize,
    /// Maximum time from the first byte of a request to the end of its head.
    pub head_timeout: Duration,
    /// Maximum time from the end of the head to the end of the body.
    pub body_timeout: Duration,
    /// Maximum time from a request's arrival to the end of its response.
    pub request_timeout: Option<Duration>,
    /// Maximum number of open connections.
    pub connections: usize,
    /// Maximum number of waiting prompt tokens. `None`: no limit.
    pub queued_tokens: Option<usize>,
    /// Default of `max_completion_tokens`. `None`: what the context leaves.
    pub default_chat_tokens: Option<usize>,
    /// Maximum number of choices of a request: `n`, or prompts times `n`.
    pub choices: usize,
    /// Maximum number of likeliest tokens that are returned at each position.
    pub logprobs: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8000,
            api_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            share_prefix_cache: false,
            min_priority: i64::MIN,
            disable_additional_properties: true,
            allowed_origins: Vec::new(),
            limits: Limits::default(),
            shutdown_grace: Duration::from_secs(30),
            access_log: AccessLog::Off,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 16 << 20,
            head_bytes: 64 << 10,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            request_timeout: None,
            connections: 4096,
            queued_tokens: Some(1 << 20),
            default_chat_tokens: Some(4096),
            choices: 128,
            logprobs: 20,
        }
    }
}
