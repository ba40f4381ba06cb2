//! The access log: a line of JSON for each request, written when its response is over.
//!
//! A thread of its own writes the lines, so that a slow disk delays no request. When the disk is too slow for too long,
//! lines are lost, and the next line has their number.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::options::AccessLog;

/// Maximum number of lines that wait to be written.
const MAX_QUEUED_LINES: usize = 16 << 10;

/// Maximum time to write the last lines.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// One line. Times are in milliseconds; `null`: the request did not get that far.
#[derive(Clone, Debug, Serialize)]
pub struct Line<'a> {
    /// Arrival of the request, in UTC.
    pub time: String,
    /// Request id.
    pub request_id: &'a str,
    /// Address of the client.
    pub client: Option<IpAddr>,
    /// HTTP method.
    pub method: &'a str,
    /// Path, without the query, which may be confidential.
    pub path: &'a str,
    /// Status code of the response; 499 if the client disconnected before it.
    pub status: u16,
    /// Whether the response was sent completely.
    pub complete: bool,
    /// Code of the error, if the request was refused or failed with one.
    pub code: Option<&'a str>,
    /// Time from the head of the request to the end of the response.
    pub ms: f64,
    /// Name of the model that serves the request.
    pub model: Option<&'a str>,
    /// Why the router chose it, in an ensemble.
    pub route: Option<&'a str>,
    /// Name of the specialist for which a shadow of the request was planned.
    pub shadow: Option<&'a str>,
    /// Number of the replica.
    pub replica: Option<u32>,
    /// Time in the queue: until the first step.
    pub queue_ms: Option<f64>,
    /// Time from the head of the request to the first token.
    pub ttft_ms: Option<f64>,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Number of completion tokens.
    pub completion_tokens: usize,
    /// Number of prompt tokens that were cached.
    pub cached_tokens: usize,
    /// Number of those that were loaded from a tier.
    pub loaded_tokens: usize,
}

/// Message to the writer's thread.
enum Order {
    Line(Vec<u8>),
    Close,
}

/// Writes lines, or none. Clones write to the same log.
#[derive(Clone, Default)]
pub struct AccessLogger(Option<Arc<Writer>>);

struct Writer {
    orders: SyncSender<Order>,
    lost: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl AccessLogger {
    /// Opens a log.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open(to: &AccessLog) -> io::Result<Self> {
        let sink: Box<dyn Write + Send> = match to {
            AccessLog::Off => return Ok(Self(None)),
            AccessLog::Stderr => Box::new(io::stderr()),
            AccessLog::File(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                let named = |why: io::Error| {
                    io::Error::new(why.kind(), format!("the access log {}: {why}", path.display()))
                };
                Box::new(file.map_err(named)?)
            }
        };
        let (orders, taken) = sync_channel(MAX_QUEUED_LINES);
        let thread = std::thread::Builder::new().name("strata-access".into());
        let thread = thread.spawn(move || write_all(sink, &taken))?;
        let thread = Mutex::new(Some(thread));
        Ok(Self(Some(Arc::new(Writer { orders, lost: AtomicU64::new(0), thread }))))
    }

    /// Returns whether lines are written.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Queues a line.
    pub fn write(&self, line: &Line<'_>) {
        let Some(writer) = &self.0 else { return };
        // Strings, numbers and an address can be written.
        let Ok(mut bytes) = serde_json::to_vec(line) else { return };
        bytes.push(b'\n');
        let lost = writer.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let mut with_lost = format!("{{\"lost_lines\":{lost}}}\n").into_bytes();
            with_lost.append(&mut bytes);
            bytes = with_lost;
        }
        if writer.orders.try_send(Order::Line(bytes)).is_err() {
            writer.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }

    /// Waits until every line is written. No line may follow.
    pub fn close(&self) {
        let Some(writer) = &self.0 else { return };
        let thread = writer.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A disk or a reader that does not take the lines cannot keep the process from ending.
            let (began, mut requested) = (Instant::now(), false);
            while !thread.is_finished() && began.elapsed() < CLOSE_TIMEOUT {
                requested = requested || writer.orders.try_send(Order::Close).is_ok();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn write_all(sink: Box<dyn Write + Send>, orders: &Receiver<Order>) {
    let mut sink = BufWriter::new(sink);
    while let Ok(Order::Line(line)) = orders.recv() {
        // A full disk must not fail requests.
        let _ = sink.write_all(&line);
        loop {
            match orders.try_recv() {
                Ok(Order::Line(line)) => _ = sink.write_all(&line),
                Ok(Order::Close) => return drop(sink.flush()),
                Err(_) => break,
            }
        }
        let _ = sink.flush();
    }
}

/// Milliseconds, to the microsecond.
pub fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// A moment as RFC 3339 writes it, in UTC.
pub fn rfc3339(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years that begin in March have their odd day at their end, and 400 of them always have 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let milli = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_rfc3339() {
        let at = |seconds: u64| rfc3339(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 7));
        assert_eq!(at(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.007Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.007Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59.007Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.007Z");
    }

    #[test]
    fn every_line_is_there_when_the_log_is_closed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = AccessLogger::open(&AccessLog::File(file.path().into())).unwrap();
        let line = Line {
            time: rfc3339(UNIX_EPOCH),
            request_id: "a",
            client: None,
            method: "GET",
            path: "/\"",
            status: 200,
            complete: true,
            code: None,
            ms: ms(Duration::from_micros(1_500)),
            model: None,
            route: None,
            shadow: None,
            replica: None,
            queue_ms: None,
            ttft_ms: None,
            prompt_tokens: 0,
            completion_tokens: 0,
            cached_tokens: 0,
            loaded_tokens: 0,
        };
        (0..100).for_each(|_| log.write(&line));
        log.close();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines =
            text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        assert_eq!(lines.filter(|line| line["path"] == "/\"" && line["ms"] == 1.5).count(), 100);
    }

    #[test]
    fn a_log_that_cannot_be_written_is_an_error_at_once() {
        let nowhere = AccessLog::File("/nowhere/at/all".into());
        let why = AccessLogger::open(&nowhere).err().unwrap().to_string();
        assert!(why.contains("/nowhere/at/all"), "{why}");
    }
}
