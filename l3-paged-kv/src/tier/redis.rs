//! Chunks on a Redis or Valkey server, which several engines share.
//!
//! A chunk is two keys. The bytes are written first, the metadata second, so metadata say that the bytes are complete;
//! the server may evict either at any time, and one without the other is a miss:
//!
//! ```text
//! strata:kv:<key in hexadecimal>:bytes       the bytes
//! strata:kv:<key in hexadecimal>:metadata    the header of a chunk's file: length, key, checksum
//! ```
//!
//! A thread talks to the server over one connection. Lookups and reads go before writes.

mod resp;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::header::{HEADER_BYTES, header, is_sound};
use super::worker::Worker;
use super::{
    ChunkBytes, ChunkKey, Clock, KvTier, Presence, Ticket, Tickets, TierCompletion, TierError,
    TierOutcome, TierStats,
};
use resp::{Connection, Reply};

/// Maximum number of answers to lookups that are kept.
const MAX_LOOKUPS: usize = 1 << 16;

/// Time for which a chunk that was sent or received counts as stored, so that it is not sent again with each turn of a
/// conversation. If the server evicts it meanwhile, it is missed for so long.
const STORED_FOR: Duration = Duration::from_secs(60);

/// Limits of a [`RedisTier`].
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Address of the server.
    pub server: SocketAddr,
    /// Password, if the server wants one.
    pub password: Option<String>,
    /// Maximum time of a connect, and of one read or write of the connection.
    pub timeout: Duration,
    /// Time after a failed connect, or an operation that timed out, in which none is tried: all operations fail at once.
    pub reconnect_after: Duration,
    /// Time for which the answer to a lookup is believed.
    pub lookup_ttl: Duration,
    /// Maximum number of bytes of a chunk.
    pub max_chunk_bytes: usize,
    /// Maximum number of bytes that wait to be sent. A put beyond it is refused.
    pub max_queued_bytes: u64,
    /// Maximum number of lookups and of gets that wait. Those beyond it are refused.
    pub max_queued: usize,
}

impl RedisOptions {
    /// A second for everything, chunks of at most 512 MB (the server's own limit), 1 GiB and 1,024 operations that wait.
    pub fn new(server: SocketAddr) -> Self {
        Self {
            server,
            password: None,
            timeout: Duration::from_secs(1),
            reconnect_after: Duration::from_secs(1),
            lookup_ttl: Duration::from_secs(1),
            max_chunk_bytes: 512_000_000,
            max_queued_bytes: 1 << 30,
            max_queued: 1024,
        }
    }
}

enum Op {
    Lookup(ChunkKey),
    Get(Ticket, ChunkKey),
    Put(Ticket, ChunkKey, ChunkBytes),
}

enum News {
    Lookup(ChunkKey, Result<bool, String>),
    Get(Ticket, ChunkKey, Result<Found, String>),
    Put(Ticket, ChunkKey, u64, Result<(), String>),
}

enum Found {
    Bytes(Vec<u8>),
    Nothing { corrupt: bool },
}

/// A tier on a server. It has no bound of its own: set `maxmemory` and `maxmemory-policy allkeys-lru` there. There is no TLS:
/// keys and values travel as they are, and a client that can write to the server can change them, though not to another key's.
///
/// [`KvTier::contains`] is `Unknown` until the server has answered. While the server cannot be reached, lookups end as
/// `Absent`.
pub struct RedisTier {
    options: RedisOptions,
    clock: Arc<dyn Clock>,
    /// Answers, and when they came; `None` while the server is asked.
    lookups: HashMap<ChunkKey, Option<(bool, Duration)>>,
    /// When chunks were known to be on the server.
    stored: HashMap<ChunkKey, Duration>,
    failed_lookups: u64,
    queued_bytes: u64,
    queued_puts: usize,
    queued: usize,
    worker: Worker<Op, News>,
    tickets: Tickets,
    stats: TierStats,
}

impl RedisTier {
    /// Starts the thread. It connects with the first operation, so a server that is not there is no error here.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(options: RedisOptions, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let mut client = Client {
            options: options.clone(),
            clock: Arc::clone(&clock),
            connection: None,
            failed: None,
        };
        let worker = Worker::start("kv-redis", move |op| Some(client.execute(op)))?;
        Ok(Self {
            options,
            clock,
            lookups: HashMap::new(),
            stored: HashMap::new(),
            failed_lookups: 0,
            queued_bytes: 0,
            queued_puts: 0,
            queued: 0,
            worker,
            tickets: Tickets::default(),
            stats: TierStats::default(),
        })
    }

    /// Waits until everything is sent, and ends the thread. A tier that is dropped instead gives up what waits.
    pub fn close(self) {
        self.worker.close();
    }

    fn take_news(&mut self, news: News) {
        let failed = |stats: &mut TierStats, why| {
            stats.failed += 1;
            TierOutcome::Failed(TierError::Io(why))
        };
        match news {
            News::Lookup(key, answer) => {
                self.queued -= 1;
                self.stats.failed += u64::from(answer.is_err());
                self.failed_lookups += u64::from(answer.is_err());
                let found = answer.unwrap_or(false);
                if found {
                    self.note_stored(key);
                }
                self.lookups.insert(key, Some((found, self.clock.now())));
            }
            News::Get(ticket, key, found) => {
                self.queued -= 1;
                let outcome = match found {
                    Ok(Found::Bytes(bytes)) => {
                        self.stats.hits += 1;
                        self.stats.loaded_bytes += bytes.len() as u64;
                        self.note_stored(key);
                        TierOutcome::Hit(bytes.into())
                    }
                    Ok(Found::Nothing { corrupt }) => {
                        self.stats.misses += 1;
                        self.stats.corrupt += u64::from(corrupt);
                        self.stored.remove(&key);
                        TierOutcome::Miss
                    }
                    Err(why) => failed(&mut self.stats, why),
                };
                self.tickets.end(ticket, outcome);
            }
            News::Put(ticket, key, bytes, result) => {
                self.queued_bytes -= bytes;
                self.queued_puts -= 1;
                let outcome = match result {
                    Ok(()) => {
                        self.stats.stored += 1;
                        self.stats.stored_bytes += bytes;
                        self.note_stored(key);
                        TierOutcome::Stored
                    }
                    Err(why) => failed(&mut self.stats, why),
                };
                self.tickets.end(ticket, outcome);
            }
        }
    }

    /// The server has a chunk.
    fn note_stored(&mut self, key: ChunkKey) {
        let now = self.clock.now();
        if self.stored.len() >= MAX_LOOKUPS {
            self.stored.retain(|_, at| now.saturating_sub(*at) < STORED_FOR);
        }
        if self.stored.len() < MAX_LOOKUPS {
            self.stored.insert(key, now);
        }
    }

    /// Takes what has arrived.
    fn update(&mut self) {
        while let Some(news) = self.worker.news() {
            self.take_news(news);
        }
    }
}

impl KvTier for RedisTier {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn contains(&mut self, key: &ChunkKey) -> Presence {
        self.update();
        let now = self.clock.now();
        match self.lookups.get(key) {
            Some(None) => return Presence::Unknown,
            Some(Some((found, at))) if now.saturating_sub(*at) < self.options.lookup_ttl => {
                return if *found { Presence::Present } else { Presence::Absent };
            }
            _ => {}
        }
        if self.queued >= self.options.max_queued {
            self.stats.refused += 1;
            return Presence::Absent;
        }
        if self.lookups.len() >= MAX_LOOKUPS {
            self.lookups.retain(|_, answer| answer.is_none());
        }
        self.queued += 1;
        self.lookups.insert(*key, None);
        self.worker.queue().push_urgent(Op::Lookup(*key));
        Presence::Unknown
    }

    fn needs(&mut self, key: &ChunkKey) -> bool {
        self.update();
        let now = self.clock.now();
        let stored = self.stored.get(key);
        stored.is_none_or(|at| now.saturating_sub(*at) >= STORED_FOR)
            && self.contains(key) != Presence::Present
    }

    fn failed_lookups(&self) -> u64 {
        self.failed_lookups
    }

    fn get(&mut self, key: &ChunkKey) -> Ticket {
        if self.queued >= self.options.max_queued {
            self.stats.refused += 1;
            return self.tickets.ended(TierOutcome::Refused);
        }
        self.queued += 1;
        let ticket = self.tickets.issue();
        self.worker.queue().push_urgent(Op::Get(ticket, *key));
        ticket
    }

    fn put(&mut self, key: &ChunkKey, bytes: ChunkBytes) -> Ticket {
        let len = bytes.len() as u64;
        if bytes.len() > self.options.max_chunk_bytes
            || self.queued_bytes.saturating_add(len) > self.options.max_queued_bytes
        {
            self.stats.refused += 1;
            return self.tickets.ended(TierOutcome::Refused);
        }
        self.queued_bytes += len;
        self.queued_puts += 1;
        let ticket = self.tickets.issue();
        self.worker.queue().push(Op::Put(ticket, *key, bytes));
        ticket
    }

    fn poll(&mut self, ended: &mut Vec<TierCompletion>) {
        self.update();
        ended.append(&mut self.tickets.ended);
    }

    /// What the server has is not counted: `chunks` and `bytes` are 0.
    fn stats(&self) -> TierStats {
        self.stats
    }

    fn num_unwritten(&self) -> usize {
        self.queued_puts
    }
}

/// The thread's half.
struct Client {
    options: RedisOptions,
    clock: Arc<dyn Clock>,
    connection: Option<Connection>,
    /// When the last connect failed, or the server did not answer in time, and why.
    failed: Option<(Duration, String)>,
}

impl Client {
    fn execute(&mut self, op: Op) -> News {
        match op {
            Op::Lookup(key) => News::Lookup(key, self.attempt(|c| lookup(c, &key))),
            Op::Get(ticket, key) => News::Get(ticket, key, self.attempt(|c| get(c, &key))),
            Op::Put(ticket, key, bytes) => {
                let result = self.attempt(|c| put(c, &key, &bytes));
                News::Put(ticket, key, bytes.len() as u64, result)
            }
        }
    }

    /// Runs something over the connection, which is made if there is none, and given up after an error.
    fn attempt<R>(
        &mut self,
        f: impl FnOnce(&mut Connection) -> io::Result<R>,
    ) -> Result<R, String> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(connect(&self.options, &*self.clock, &mut self.failed)?),
        };
        let result = f(connection);
        if let Err(e) = &result {
            self.connection = None;
            if matches!(e.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) {
                // A server that hangs takes connections. What waits must not take the time-out one after the other.
                self.failed = Some((self.clock.now(), e.to_string()));
            }
        }
        result.map_err(|e| e.to_string())
    }
}

fn connect(
    options: &RedisOptions,
    clock: &dyn Clock,
    failed: &mut Option<(Duration, String)>,
) -> Result<Connection, String> {
    let now = clock.now();
    if let Some((at, why)) = failed
        && now.saturating_sub(*at) < options.reconnect_after
    {
        return Err(why.clone());
    }
    let open = || {
        let max_len = options.max_chunk_bytes.max(HEADER_BYTES);
        let mut connection = Connection::open(options.server, options.timeout, max_len)?;
        if let Some(password) = &options.password {
            connection.call(&[b"AUTH", password.as_bytes()])?;
        }
        Ok(connection)
    };
    let opened = open().map_err(|e: io::Error| format!("{}: {e}", options.server));
    *failed = opened.as_ref().err().map(|why| (clock.now(), why.clone()));
    opened
}

/// Names of the bytes and of the metadata.
fn names(key: &ChunkKey) -> [Vec<u8>; 2] {
    ["bytes", "metadata"].map(|part| format!("strata:kv:{key}:{part}").into_bytes())
}

fn lookup(connection: &mut Connection, key: &ChunkKey) -> io::Result<bool> {
    let [bytes, metadata] = names(key);
    match connection.call(&[b"EXISTS", &bytes, &metadata])? {
        Reply::Integer(n) => Ok(n == 2),
        reply => Err(unexpected(&reply)),
    }
}

fn get(connection: &mut Connection, key: &ChunkKey) -> io::Result<Found> {
    let [bytes, metadata] = names(key);
    let reply = connection.call(&[b"MGET", &metadata, &bytes])?;
    let Reply::Array(parts) = reply else { return Err(unexpected(&reply)) };
    match <[Reply; 2]>::try_from(parts) {
        Ok([Reply::Bulk(Some(head)), Reply::Bulk(Some(found))]) => {
            if is_sound(key, &head, &found) {
                return Ok(Found::Bytes(found));
            }
            connection.call(&[b"DEL", &metadata, &bytes])?;
            Ok(Found::Nothing { corrupt: true })
        }
        Ok([Reply::Bulk(_), Reply::Bulk(_)]) => Ok(Found::Nothing { corrupt: false }),
        Ok([reply, _]) => Err(unexpected(&reply)),
        Err(parts) => Err(unexpected(&Reply::Array(parts))),
    }
}

/// Bytes before metadata: who sees the metadata finds the bytes.
fn put(connection: &mut Connection, key: &ChunkKey, chunk: &[u8]) -> io::Result<()> {
    let [bytes, metadata] = names(key);
    // exercise l3.publish
    let head = header(key, chunk);
    for (name, value) in [(bytes, chunk), (metadata, &head[..])] {
        match connection.call(&[b"SET", &name, value])? {
            Reply::Simple => {}
            reply => return Err(unexpected(&reply)),
        }
    }
    Ok(())
    // end of exercise
}

fn unexpected(reply: &Reply) -> io::Error {
    let kind = match reply {
        Reply::Simple => "a simple string",
        Reply::Integer(_) => "a number",
        Reply::Bulk(_) => "a string",
        Reply::Array(_) => "an array",
    };
    io::Error::other(format!("the server answers with {kind}, which fits no such command"))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::thread::{JoinHandle, spawn};

    use super::*;

    /// A server that sends these replies, one for each command. Returns the names that were written.
    fn server(replies: &'static [&'static str]) -> (Connection, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let mut names = Vec::new();
            for reply in replies {
                let Some(command) = command(&mut stream) else { break };
                names.push(command[1].rsplit(':').next().unwrap_or_default().to_owned());
                stream.get_mut().write_all(reply.as_bytes()).unwrap();
            }
            names
        });
        (Connection::open(address, Duration::from_secs(20), 1000).unwrap(), served)
    }

    /// The parts of a command; `None` at the end of the connection.
    fn command(stream: &mut BufReader<std::net::TcpStream>) -> Option<Vec<String>> {
        let number = |stream: &mut BufReader<std::net::TcpStream>| {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            line.trim_end().get(1..)?.parse::<usize>().ok()
        };
        let parts = number(stream)?;
        (0..parts)
            .map(|_| {
                let mut part = vec![0; number(stream)? + 2];
                stream.read_exact(&mut part).ok()?;
                Some(String::from_utf8_lossy(&part[..part.len() - 2]).into_owned())
            })
            .collect()
    }

    const KEY: ChunkKey = ChunkKey([7; 32]);

    #[test]
    fn the_metadata_of_a_chunk_are_written_behind_its_bytes() {
        let (mut connection, served) = server(&["+OK\r\n", "+OK\r\n"]);
        let result = put(&mut connection, &KEY, b"keys and values");
        drop(connection);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(served.join().unwrap(), ["bytes", "metadata"]);
    }

    #[test]
    fn a_chunk_whose_bytes_were_refused_gets_no_metadata() {
        let (mut connection, served) = server(&["-OOM\r\n", "+OK\r\n"]);
        let result = put(&mut connection, &KEY, b"keys and values");
        drop(connection);
        assert!(result.is_err());
        assert_eq!(served.join().unwrap(), ["bytes"]);
    }
}
