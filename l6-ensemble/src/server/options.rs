//! What an operator decides about the server. What concerns the engine is in [`l5_scheduler::EngineOptions`].

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

/// Where the server listens, who may ask, and how long anything may take.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address to listen on.
    pub host: IpAddr,
    /// The port; 0 takes any that is free.
    pub port: u16,
    /// Keys of which a client must show one. Empty: everybody may ask.
    pub api_keys: Vec<String>,
    /// Names beside loopback's own that `Host` may have where the server listens on loopback (`*` for any).
    pub allowed_hosts: Vec<String>,
    /// Whether requests of one key find cached blocks of another's. What is cached can be told from `cached_tokens` and
    /// from times, so this confirms guesses of what others asked.
    pub share_prefix_cache: bool,
    /// The lowest (most urgent) priority that requests may have: lower ones count as this.
    pub min_priority: i64,
    /// Whether an object whose schema declares properties has no others, where neither the schema nor the request says so:
    /// [`l4_sampler::guide::GuideSpec::ClosedJsonSchema`].
    pub disable_additional_properties: bool,
    /// Origins whose pages may ask from a browser (`*` for all). Empty: none, which is a browser's own rule.
    pub allowed_origins: Vec<String>,
    /// What nobody may exceed.
    pub limits: Limits,
    /// How long requests that are under way may go on after SIGTERM.
    pub shutdown_grace: Duration,
    /// Where one line of JSON a request goes.
    pub access_log: AccessLog,
}

/// Where one line of JSON a request goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessLog {
    /// Nowhere.
    #[default]
    Off,
    /// To stderr.
    Stderr,
    /// To the end of this file.
    File(PathBuf),
}

/// What a client may not exceed. Every limit has an error of its own.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// From a connection's first byte of a request to the end of its head.
    pub head_timeout: Duration,
    /// From the end of the head to the end of the body.
    pub body_timeout: Duration,
    /// From a request's arrival to the end of its answer.
    pub request_timeout: Option<Duration>,
    /// Connections at once.
    pub connections: usize,
    /// Tokens of prompts that wait together; more are refused. `None`: any number.
    pub queued_tokens: Option<usize>,
    /// Tokens of a chat's completion where the request does not say how many. `None`: what the context leaves.
    pub default_chat_tokens: Option<usize>,
    /// Answers to one request: `n`, or prompts times `n`.
    pub answers: usize,
    /// The most likely tokens that are told beside each.
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
            answers: 128,
            logprobs: 20,
        }
    }
}
