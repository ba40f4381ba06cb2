//! A model hub small enough to read: std's TCP, one request per connection, and faults on demand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::json;
use sha2::{Digest, Sha256};
use strata::hub::Options;

/// What a client asked.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    pub headers: Vec<(String, String)>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The first byte asked for by a `Range: bytes=N-` header.
    pub fn range_start(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.split('-').next()?.parse().ok()
    }
}

/// What the server says to it.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Close the connection after so many bytes of the body, which Content-Length still announces in full.
    pub cut: Option<usize>,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Reply { status, headers: Vec::new(), body: Vec::new(), cut: None }
    }

    pub fn body(body: impl Into<Vec<u8>>) -> Self {
        Reply { body: body.into(), ..Reply::status(200) }
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_string(), value.to_string()));
        self
    }

    pub fn cut_after(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }
}

/// A server that lives as long as the test process.
pub struct Server {
    pub url: String,
    log: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (log.clone(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer) = (seen.clone(), answer.clone());
                thread::spawn(move || serve(stream, &seen, &*answer));
            }
        });
        Server { url, log }
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }

    /// How many requests so far had a path with `part` in it.
    pub fn count(&self, part: &str) -> usize {
        self.requests().iter().filter(|request| request.path.contains(part)).count()
    }
}

fn serve(mut stream: TcpStream, seen: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request) -> Reply) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let path = first.split(' ').nth(1).unwrap_or("").to_string();
    let headers = lines.take_while(|line| !line.is_empty());
    let headers = headers
        .filter_map(|line| line.split_once(": ").map(|(k, v)| (k.to_string(), v.to_string())));
    let request = Request { path, headers: headers.collect() };
    seen.lock().unwrap().push(request.clone());

    let reply = answer(&request);
    let mut head = format!(
        "HTTP/1.1 {} X\r\nConnection: close\r\nContent-Length: {}\r\n",
        reply.status,
        reply.body.len()
    );
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let body = &reply.body[..reply.cut.unwrap_or(reply.body.len())];
    // A client that has heard enough hangs up; that is its right.
    let _ =
        stream.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| stream.write_all(body));
}

/// A repository on the small hub.
#[derive(Debug, Clone)]
pub struct Site {
    pub id: String,
    pub commit: String,
    pub files: BTreeMap<String, Vec<u8>>,
    /// Only requests with this token are served.
    pub token: Option<String>,
}

impl Site {
    pub fn new(id: &str, files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect();
        Site {
            id: id.to_string(),
            commit: "0123456789abcdef0123456789abcdef01234567".to_string(),
            files,
            token: None,
        }
    }

    /// Answers as the hub does: `/api/models/ID/revision/REV` and `/ID/resolve/REV/FILE`, revisions being `main` and
    /// the commit.
    pub fn answer(&self, request: &Request) -> Reply {
        let refused = |status, code: &str| Reply::status(status).with("x-error-code", code);
        let owed = self.token.as_ref().map(|token| format!("Bearer {token}"));
        if owed.is_some() && request.header("authorization") != owed.as_deref() {
            return refused(401, "GatedRepo");
        }
        let path = request.path.split('?').next().unwrap_or("");
        let known = |revision: &str| revision == "main" || revision == self.commit;
        if let Some(revision) = path.strip_prefix(&format!("/api/models/{}/revision/", self.id)) {
            return if known(revision) { self.listing() } else { refused(404, "RevisionNotFound") };
        }
        let Some((revision, file)) = path
            .strip_prefix(&format!("/{}/resolve/", self.id))
            .and_then(|rest| rest.split_once('/'))
        else {
            return refused(404, "RepoNotFound");
        };
        match self.files.get(file) {
            _ if !known(revision) => refused(404, "RevisionNotFound"),
            None => refused(404, "EntryNotFound"),
            Some(bytes) => ranged(request, bytes)
                .with("x-repo-commit", &self.commit)
                .with("etag", &format!("\"{}\"", sha256(bytes))),
        }
    }

    fn listing(&self) -> Reply {
        let siblings: Vec<_> = self
            .files
            .iter()
            .map(|(name, bytes)| {
                let sha256 = sha256(bytes);
                let mut file =
                    json!({"rfilename": name, "size": bytes.len(), "blobId": &sha256[..40]});
                if name.ends_with(".safetensors") || name.ends_with(".gguf") {
                    file["lfs"] =
                        json!({"sha256": sha256, "size": bytes.len(), "pointerSize": 134});
                }
                file
            })
            .collect();
        Reply::body(json!({"id": self.id, "sha": self.commit, "siblings": siblings}).to_string())
    }

    pub fn serve(self) -> Server {
        Server::start(move |request| self.answer(request))
    }
}

/// The file, or from the byte asked for on.
pub fn ranged(request: &Request, bytes: &[u8]) -> Reply {
    match request.range_start() {
        Some(start) if start < bytes.len() => {
            let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
            Reply { status: 206, ..Reply::body(&bytes[start..]) }.with("content-range", &range)
        }
        Some(_) => Reply::status(416),
        None => Reply::body(bytes),
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Options that use only `dir` and `endpoint`.
pub fn options(dir: &Path, endpoint: &str) -> Options {
    let mut options = Options::from_vars(|_| None);
    options.cache_dir = Some(dir.join("strata"));
    options.hf_cache = Some(dir.join("hub"));
    options.endpoint = endpoint.to_string();
    options.token = None;
    options.quiet = true;
    options.python.clear();
    options
}

/// Every file under `dir` that is neither a lock, a stamp nor a directory, by its path in it, sorted.
pub fn files_under(dir: &Path) -> Vec<String> {
    fn walk(dir: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, root, found);
            } else if !path.extension().is_some_and(|e| e == "lock" || e == "stamp") {
                found.push(path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/"));
            }
        }
    }
    let mut found = Vec::new();
    walk(dir, dir, &mut found);
    found.sort();
    found
}
