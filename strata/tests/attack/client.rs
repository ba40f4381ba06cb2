//! A client on a bare socket: nothing that it does takes longer than its attack, and the bytes in flight are counted.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// No error is larger than this, whatever it complains about.
const LARGEST_ERROR: usize = 4096;

/// Bytes of a body that are kept to be looked at.
const KEPT: usize = 512 << 10;

/// Bytes written at once.
const PIECE: usize = 256 << 10;

/// The longest sleep between two looks at whether an attack is over.
const NAP: Duration = Duration::from_millis(50);

/// Bytes in flight: those of requests that are not answered, and those of responses that wait for their client.
#[derive(Default)]
pub struct Flight {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Flight {
    fn add(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(now, Ordering::Relaxed);
    }

    fn sub(&self, bytes: usize) {
        self.now.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Maximum so far.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }
}

/// What an attack has: whom it attacks, until when, and what came of it.
pub struct Scene {
    pub address: SocketAddr,
    /// The header line that shows the key, if a key is needed and shown.
    pub authorization: &'static str,
    pub until: Instant,
    pub flight: Flight,
    /// Whether errors without a body are fine: hyper's own, for what is no HTTP.
    pub bare: bool,
    ended: AtomicBool,
    tally: Mutex<BTreeMap<String, usize>>,
    wrong: Mutex<Vec<String>>,
}

/// What became of a request.
#[derive(Debug)]
pub enum Outcome {
    /// A response. `body` is its beginning, `bytes` its length.
    Response { status: u16, body: Vec<u8>, bytes: usize },
    /// The server closed without one.
    Closed,
    /// Nothing came before the attack was over.
    Late,
}

impl Outcome {
    /// What became of it, for a person.
    pub fn told(&self) -> String {
        match self {
            Self::Response { status, body, bytes } => {
                let start = String::from_utf8_lossy(&body[..body.len().min(200)]);
                format!("{status} with {bytes} bytes: {start}")
            }
            Self::Closed => "closed without a response".to_owned(),
            Self::Late => "no response in time".to_owned(),
        }
    }
}

impl Scene {
    pub fn new(address: &str, authorization: &'static str, lasts: Duration, bare: bool) -> Self {
        Self {
            address: address.parse().unwrap(),
            authorization,
            until: Instant::now() + lasts,
            flight: Flight::default(),
            bare,
            ended: AtomicBool::new(false),
            tally: Mutex::default(),
            wrong: Mutex::default(),
        }
    }

    /// Whether the attack is over.
    pub fn over(&self) -> bool {
        self.ended.load(Ordering::Relaxed) || Instant::now() >= self.until
    }

    /// End the attack before its time.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Sleep, but not longer than the attack lasts.
    pub fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.over() && Instant::now() < until {
            std::thread::sleep(NAP.min(until.saturating_duration_since(Instant::now())));
        }
    }

    /// A connection, if there is one to be had.
    pub fn open(&self) -> Option<Link<'_>> {
        let stream = TcpStream::connect_timeout(&self.address, self.left()).ok();
        if stream.is_none() {
            self.count("no connection");
        }
        let stream = stream?;
        let _ = stream.set_nodelay(true);
        Some(Link { stream, scene: self, counted: 0 })
    }

    /// The head of a request for JSON, after whose response the server is to close.
    pub fn head(&self, path: &str, length: usize) -> String {
        format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\n{}Connection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n",
            self.authorization
        )
    }

    /// Something happened.
    pub fn count(&self, what: &str) {
        *self.tally.lock().unwrap().entry(what.to_owned()).or_default() += 1;
    }

    /// Something happened that must not.
    pub fn wrong(&self, what: String) {
        let mut wrong = self.wrong.lock().unwrap();
        if wrong.len() < 3 {
            wrong.push(what);
        }
    }

    /// What happened how often, and what must not have happened.
    pub fn told(&self) -> (String, Vec<String>) {
        let tally = self.tally.lock().unwrap();
        let tally: Vec<_> = tally.iter().map(|(what, n)| format!("{what} x{n}")).collect();
        (tally.join(", "), self.wrong.lock().unwrap().clone())
    }

    /// Count what became of a request, and look at an error's shape.
    pub fn judge(&self, outcome: &Outcome) {
        let Outcome::Response { status, body, bytes } = outcome else {
            return self.count(if matches!(outcome, Outcome::Late) { "late" } else { "closed" });
        };
        self.count(&status.to_string());
        if *status < 400 || (self.bare && *bytes == 0) {
            return;
        }
        let start = String::from_utf8_lossy(&body[..body.len().min(80)]);
        if *bytes > LARGEST_ERROR {
            self.wrong(format!("{status} with {bytes} bytes: {start}"));
        } else if *status == 500 {
            self.wrong(format!("500: {start}"));
        } else {
            let error = serde_json::from_slice::<Value>(body).unwrap_or_default();
            let error = &error["error"];
            if !(error["message"].is_string() && error["type"].is_string()) {
                self.wrong(format!("{status} without a typed error: {start:?}"));
            }
        }
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }
}

/// A connection.
pub struct Link<'a> {
    stream: TcpStream,
    scene: &'a Scene,
    counted: usize,
}

impl Link<'_> {
    /// Send bytes as they are; false when the server does not take them.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        for piece in bytes.as_ref().chunks(PIECE) {
            let _ = self.stream.set_write_timeout(Some(self.scene.left()));
            self.count(piece.len());
            if self.stream.write_all(piece).is_err() {
                return false;
            }
        }
        true
    }

    /// Send a whole request; false when the server does not take it.
    pub fn post(&mut self, path: &str, body: &[u8]) -> bool {
        let head = self.scene.head(path, body.len());
        self.send(head) && self.send(body)
    }

    /// What comes next, at most so many bytes; empty when the server has closed or the attack is over.
    pub fn read(&mut self, most: usize) -> Vec<u8> {
        let _ = self.stream.set_read_timeout(Some(self.scene.left()));
        let mut bytes = vec![0; most];
        let n = self.stream.read(&mut bytes).unwrap_or(0);
        bytes.truncate(n);
        bytes
    }

    /// No more will be sent.
    pub fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Read a response. `unread` says that it waited for its reader, so that its bytes were in flight.
    pub fn response(&mut self, unread: bool) -> Outcome {
        let (mut all, mut bytes, mut head) = (Vec::new(), 0, None);
        let mut buffer = vec![0; 64 << 10];
        loop {
            let _ = self.stream.set_read_timeout(Some(self.scene.left()));
            let n = match self.stream.read(&mut buffer) {
                Ok(n) => n,
                Err(_) if self.scene.over() => return Outcome::Late,
                Err(_) => 0,
            };
            let (status, length) = match head {
                None => {
                    all.extend_from_slice(&buffer[..n]);
                    match parse(&all) {
                        Some((from, 100, _)) => {
                            all.drain(..from);
                            continue;
                        }
                        Some((from, status, length)) => {
                            all.drain(..from);
                            bytes = all.len();
                            self.count(length.unwrap_or(0));
                            head = Some((status, length));
                            (status, length)
                        }
                        None if n == 0 => return Outcome::Closed,
                        None => continue,
                    }
                }
                Some(head) => {
                    bytes += n;
                    all.extend_from_slice(&buffer[..n.min(KEPT.saturating_sub(all.len()))]);
                    head
                }
            };
            if length.is_none() && unread {
                self.count(n);
            }
            if n == 0 || length.is_some_and(|length| bytes >= length) {
                return Outcome::Response { status, body: all, bytes };
            }
        }
    }

    fn count(&mut self, bytes: usize) {
        self.counted += bytes;
        self.scene.flight.add(bytes);
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        self.scene.flight.sub(self.counted);
    }
}

/// Where a response's head ends, its status, and how long its body is if it says so.
fn parse(bytes: &[u8]) -> Option<(usize, u16, Option<usize>)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    Some((end, status, length.and_then(|length| length.trim().parse().ok())))
}
