//! A connection whose every byte a test decides, and what can be seen of a server from outside.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::served::Served;

/// No test waits longer for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a server.
pub struct Wire(TcpStream);

impl Wire {
    pub fn open(server: &Served) -> Self {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Send bytes as they are. A server may close before it has read all.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.0.write_all(bytes.as_ref());
    }

    /// Send a request with a body, after which the server is to close.
    pub fn post(&mut self, path: &str, body: &Value) {
        let body = body.to_string();
        self.send(head(path, body.len()) + &body);
    }

    /// What comes next, at most so many bytes; empty when the server has closed.
    pub fn read(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most];
        let n = self.0.read(&mut bytes).unwrap_or(0);
        bytes.truncate(n);
        bytes
    }

    /// Read until this has come. Returns all that came.
    #[track_caller]
    pub fn read_until(&mut self, text: &str) -> String {
        let mut all = Vec::new();
        loop {
            let came = self.read(4096);
            all.extend_from_slice(&came);
            let told = String::from_utf8_lossy(&all).into_owned();
            if told.contains(text) {
                return told;
            }
            assert!(!came.is_empty(), "closed before {text:?}: {told}");
        }
    }

    /// All that comes until the server closes.
    pub fn rest(&mut self) -> String {
        let mut all = Vec::new();
        match self.0.read_to_end(&mut all) {
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("the server neither answers nor closes: {}", String::from_utf8_lossy(&all))
            }
            _ => String::from_utf8_lossy(&all).into_owned(),
        }
    }

    /// No more will be sent, but something may be read.
    pub fn finish(&mut self) {
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

/// The head of a request whose body has so many bytes.
pub fn head(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
}

/// The status of a response that was read as it came.
#[track_caller]
pub fn status(response: &str) -> u16 {
    let status = response.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.unwrap_or_else(|| panic!("no response: {response:?}"))
}

/// Wait until something is so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "still not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Served {
    /// The sum of a metric's samples.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text().to_owned();
        let samples = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
        });
        samples.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// No request runs or waits, and no block is in use.
    pub fn is_idle(&self) -> bool {
        let names =
            ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"];
        names.iter().all(|name| self.metric(name) == 0.0)
    }

    /// Files that the process has open.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Memory that the process has, in bytes.
    pub fn memory(&self) -> usize {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }
}
