//! A server of one's own, and a small HTTP client.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::NamedTempFile;

#[path = "../support/command.rs"]
mod world;

pub use world::command;

/// A running `strata serve`. Dropped, it is killed.
pub struct Served {
    child: Child,
    line: String,
    url: String,
}

/// A response, read to its end.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

impl Served {
    /// A server of a tiny model, named `tiny`.
    pub fn start<S: AsRef<OsStr>>(model: &str, args: impl IntoIterator<Item = S>) -> Self {
        let mut command = command();
        command.args(["--quiet", "serve", "--port", "0", "--served-model-name", "tiny", "--model"]);
        command.arg(fixture(model)).args(args);
        Self::run(command)
    }

    /// A server of the ensemble of a file with this text; `configure` adds to its command.
    pub fn ensemble(text: &str, configure: impl FnOnce(&mut Command)) -> Self {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let mut command = command();
        command.args(["--quiet", "serve", "--port", "0", "--ensemble"]).arg(file.path());
        configure(&mut command);
        // The file has been read when the server tells its URL.
        Self::run(command)
    }

    /// A server as a command starts it. Its standard output is read for the line that tells its URL, and then on.
    pub fn run(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.by_ref().map(|line| line.unwrap()).find(|line| line.contains("http://"));
        let line = line.expect("the server ended before it told its URL");
        let url = line.split_whitespace().find(|word| word.starts_with("http://"));
        let url = url.unwrap().to_owned();
        // The pipe must be read, or a server that prints would block.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, line, url }
    }

    /// The line with the URL.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// What it writes to stderr, if the command has a pipe for that.
    pub fn stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().unwrap()
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// `127.0.0.1:port`, for sockets.
    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn get(&self, path: &str) -> Response {
        Response::of(agent().get(self.url(path)).call())
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.post_bytes(path, body.to_string().as_bytes())
    }

    pub fn post_bytes(&self, path: &str, body: &[u8]) -> Response {
        let request = agent().post(self.url(path)).header("content-type", "application/json");
        Response::of(request.send(body))
    }

    /// With the API key `secret`: a POST if there is a body.
    pub fn with_key(&self, path: &str, body: Option<&Value>) -> Response {
        let key = ("authorization", "Bearer secret");
        let sent = match body {
            None => agent().get(self.url(path)).header(key.0, key.1).call(),
            Some(body) => agent()
                .post(self.url(path))
                .header(key.0, key.1)
                .header("content-type", "application/json")
                .send(body.to_string().as_bytes()),
        };
        Response::of(sent)
    }

    /// Send a signal, as `kill` names it.
    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// Wait for its end.
    pub fn ended(&mut self, within: Duration) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < within, "the server did not end within {within:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).build().new_agent()
}

impl Response {
    pub fn of(result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Self {
        let response = result.unwrap();
        let status = response.status().as_u16();
        let text = |value: &ureq::http::HeaderValue| value.to_str().unwrap_or("?").to_owned();
        let headers =
            response.headers().iter().map(|(name, value)| (name.to_string(), text(value)));
        let headers = headers.collect();
        let mut body = Vec::new();
        response.into_body().into_reader().read_to_end(&mut body).unwrap();
        Self { status, headers, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    #[track_caller]
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The JSON of a response that went well.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.value()
    }

    /// The JSON of every event. A stream ends with `[DONE]`, or it was cut off.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        let mut events: Vec<&str> = self.text().split("\n\n").filter(|e| !e.is_empty()).collect();
        assert_eq!(events.pop(), Some("data: [DONE]"), "{}", self.text());
        let json =
            |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        events.into_iter().map(json).collect()
    }
}
