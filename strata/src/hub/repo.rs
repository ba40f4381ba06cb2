//! Downloads a model from the hub into the shared cache: lists its files, chooses, and fetches those that are missing.

use std::fs;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use serde::Deserialize;
use ureq::http::{Response, StatusCode};
use ureq::typestate::WithoutBody;
use ureq::{Agent, Body, RequestBuilder};

use super::choose::{self, Choice};
use super::progress::{Meter, note};
use super::snapshot::{self, Snapshots};
use super::spec::{HubId, safe_name, safe_path};
use super::store::{Expected, FetchLock, Partial};
use super::transfer::{self, Target, limits};
use super::{HubError, ModelSource, Options};

/// Maximum length of a list of files, in bytes; the longest on the hub have a few megabytes.
const MAX_LISTING_BYTES: u64 = 32 << 20;

/// Gets the current commit of the revision from the hub, downloads the files of the model that are not in the cache,
/// and returns their path.
///
/// The listing has sizes and hashes, so the sha256 of each large file is checked as it arrives. Files are requested by
/// the commit of the listing, not by the branch: a push in between cannot mix two versions.
///
/// # Errors
/// [`HubError::Unreachable`], [`HubError::Unauthorized`], [`HubError::Forbidden`], [`HubError::RepoNotFound`],
/// [`HubError::RevisionNotFound`], [`HubError::FileNotFound`]; the errors of choosing ([`HubError::NoWeights`],
/// [`HubError::AmbiguousGguf`], [`HubError::NoSuchQuant`]) and of writing ([`HubError::DiskFull`],
/// [`HubError::WrongHash`], [`HubError::Interrupted`], [`HubError::Io`]).
pub fn fetch_repo(id: &HubId, options: &Options) -> Result<ModelSource, HubError> {
    if options.offline {
        return Err(HubError::Offline { what: id.to_string() });
    }
    let listing = list(id, options)?;
    let fetch = Fetch {
        id,
        options,
        agent: transfer::agent(options),
        snapshots: Snapshots::of(id, options)?,
        listing,
    };
    let names: Vec<&str> =
        fetch.listing.siblings.iter().map(|file| file.rfilename.as_str()).collect();
    let dir = fetch.snapshots.directory(&fetch.listing.sha);
    let source = match choose::choose(id, &names)? {
        Choice::Gguf(file) => {
            fetch.all(std::slice::from_ref(&file))?;
            ModelSource::Gguf(dir.join(file))
        }
        Choice::Safetensors { files, sharded } => {
            fetch.all(&files)?;
            if sharded {
                fetch.all(&shards(id, &dir.join(choose::INDEX))?)?;
            }
            ModelSource::HfDir(dir)
        }
    };
    fetch.snapshots.point_at(&fetch.listing.sha)?;
    Ok(source)
}

/// Listing of a repository at a revision (`GET /api/models/ID/revision/REV?blobs=true`).
#[derive(Debug, Deserialize)]
struct Listing {
    /// The commit.
    sha: String,
    siblings: Vec<Sibling>,
}

/// One file of a listing. Fields are missing if they were not requested, or if a mirror does not have them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

/// Properties of a file in git LFS.
#[derive(Debug, Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Sibling {
    fn size(&self) -> Option<u64> {
        self.lfs.as_ref().map(|lfs| lfs.size).or(self.size)
    }

    /// Name of the blob in the cache, if the listing has it.
    fn etag(&self) -> Option<&str> {
        let etag = self.lfs.as_ref().map(|lfs| lfs.sha256.as_str()).or(self.blob_id.as_deref());
        etag.filter(|etag| safe_name(etag))
    }
}

/// The repository in `hf-hub`, which has the addresses and the token.
fn api(id: &HubId, revision: &str, options: &Options) -> Result<ApiRepo, HubError> {
    let api = ApiBuilder::from_cache(Cache::new(options.hf_cache()?.to_path_buf()))
        .with_endpoint(options.endpoint.clone())
        .with_token(options.token.clone())
        .with_progress(false)
        .build()
        .map_err(|e| HubError::Unreachable {
            endpoint: options.endpoint.clone(),
            reason: e.to_string(),
        })?;
    Ok(api.repo(Repo::with_revision(id.repo.clone(), RepoType::Model, revision.to_string())))
}

fn list(id: &HubId, options: &Options) -> Result<Listing, HubError> {
    let bad = |reason: String| HubError::MalformedResponse { id: id.repo.clone(), reason };
    let repo = api(id, id.revision(), options)?;
    let code = |response: &Response<Body>| {
        response
            .headers()
            .get("x-error-code")
            .and_then(|value| value.to_str().ok())
            .map(str::to_string)
    };
    let send = |request: RequestBuilder<WithoutBody>| {
        limits!(request.config(), options)
            .build()
            .call()
            .map_err(|e| transfer::unreachable(options, &e))
    };
    let mut response = send(repo.info_request().query("blobs", "true"))?;
    // The hub sends a code with every 404. A plain file server behind HF_ENDPOINT does not, and may not support the
    // query.
    if response.status() == StatusCode::NOT_FOUND && code(&response).is_none() {
        response = send(repo.info_request())?;
    }
    let target = Target { id: &id.repo, revision: id.revision(), file: None };
    transfer::check(
        response.status(),
        code(&response).as_deref(),
        &options.endpoint,
        target,
        options,
    )?;
    let text = response.body_mut().with_config().limit(MAX_LISTING_BYTES).read_to_string();
    let text = text.map_err(|e| bad(format!("the list of files is incomplete: {e}")))?;
    let listing: Listing = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    // Names become paths on this disk: they must not leave the cache.
    if !safe_name(&listing.sha) {
        return Err(bad("its commit hash is malformed".to_string()));
    }
    Ok(listing)
}

/// The shards that an index names.
fn shards(id: &HubId, index: &Path) -> Result<Vec<String>, HubError> {
    let bytes = fs::read(index).map_err(|e| HubError::io("read", index, e))?;
    let bad = |reason| HubError::MalformedResponse {
        id: id.repo.clone(),
        reason: format!("{}: {reason}", choose::INDEX),
    };
    snapshot::shards_of(&bytes).map_err(bad)
}

/// One run of [`fetch_repo`].
struct Fetch<'a> {
    id: &'a HubId,
    options: &'a Options,
    agent: Agent,
    snapshots: Snapshots,
    listing: Listing,
}

impl Fetch<'_> {
    /// Downloads those of `files` that are not in the snapshot yet, with one progress bar.
    fn all(&self, files: &[String]) -> Result<(), HubError> {
        let dir = self.snapshots.directory(&self.listing.sha);
        let missing: Vec<&String> = files.iter().filter(|file| !dir.join(file).exists()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let sizes: Option<Vec<u64>> =
            missing.iter().map(|file| self.sibling(file)?.size()).collect();
        let total = sizes.map_or(0, |sizes| sizes.iter().sum());
        let what = match missing[..] {
            [one] => format!("{}/{one}", self.id.repo),
            _ => format!("{} files of {}", missing.len(), self.id.repo),
        };
        let meter = Meter::start(self.options, &what, &self.options.endpoint, total);
        missing.into_iter().try_for_each(|file| self.one(file, &dir.join(file), &meter))
    }

    fn sibling(&self, file: &str) -> Option<&Sibling> {
        self.listing.siblings.iter().find(|sibling| sibling.rfilename == file)
    }

    fn one(&self, file: &str, pointer: &Path, meter: &Meter) -> Result<(), HubError> {
        let revision = self.id.revision();
        let target = Target { id: &self.id.repo, revision, file: Some(file) };
        let sibling = self.sibling(file).filter(|_| safe_path(file)).ok_or_else(|| {
            HubError::FileNotFound {
                id: self.id.repo.clone(),
                revision: revision.to_string(),
                file: file.to_string(),
            }
        })?;
        // Without an etag the blob has no name; the file is then in the snapshot itself.
        let etag = sibling.etag();
        let dest: PathBuf = etag.map_or(pointer.to_path_buf(), |etag| self.snapshots.blob(etag));
        let lock_name = etag.map_or_else(|| file.replace('/', "--"), str::to_string);
        let lock = self.snapshots.lock(&lock_name);
        let _lock = FetchLock::acquire(&lock, &dest, || {
            note(self.options, &format!("waiting for another process that downloads {file}"));
        })?;
        if !dest.exists() {
            let expected = Expected {
                size: sibling.size(),
                sha256: sibling.lfs.as_ref().map(|l| l.sha256.clone()),
            };
            let partial = Partial::create(&dest, expected, "HF_HOME")?;
            let url = api(self.id, self.commit_or_revision(), self.options)?.url(file);
            transfer::download(&self.agent, &url, partial, target, self.options, meter)?;
        }
        if etag.is_some() { snapshot::link(&dest, pointer) } else { Ok(()) }
    }

    /// The commit, which pins the version. A mirror with made-up commits accepts only the revision.
    fn commit_or_revision(&self) -> &str {
        let sha = &self.listing.sha;
        let real = sha.len() == 40 && sha.bytes().all(|b| b.is_ascii_hexdigit());
        if real { sha } else { self.id.revision() }
    }
}
