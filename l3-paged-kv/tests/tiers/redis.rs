//! The tier on a server: a small one within the test, and a real one if `STRATA_REDIS_SERVER` names its program.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use l3_paged_kv::tier::{KvTier, Presence, RedisOptions, RedisTier, TierOutcome};

use crate::support::{ManualClock, bytes, get, key, put};

const LEN: usize = 5000;

/// What a server has, and what it does wrong.
#[derive(Default)]
struct State {
    values: HashMap<Vec<u8>, Vec<u8>>,
    commands: Vec<String>,
    connections: usize,
    /// Sent instead of the answer; then the connection ends.
    answer: Option<Vec<u8>>,
    password: Option<&'static str>,
}

#[derive(Clone)]
struct Server {
    state: Arc<Mutex<State>>,
    address: SocketAddr,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { state: Arc::default(), address: listener.local_addr().unwrap() };
        let of_thread = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                of_thread.state.lock().unwrap().connections += 1;
                let server = of_thread.clone();
                std::thread::spawn(move || server.serve(stream.unwrap()));
            }
        });
        server
    }

    fn set<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap())
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(command) = read_command(&mut reader) {
            let mut state = self.state.lock().unwrap();
            let mut name = String::from_utf8(command[0].clone()).unwrap();
            if name == "SET" {
                let key = String::from_utf8_lossy(&command[1]);
                name = format!("SET {}", key.rsplit(':').next().unwrap());
            }
            state.commands.push(name);
            if let Some(answer) = state.answer.clone() {
                let _ = stream.write_all(&answer);
                return;
            }
            let bulk = |value: Option<&Vec<u8>>| match value {
                Some(v) => [format!("${}\r\n", v.len()).as_bytes(), v, b"\r\n"].concat(),
                None => b"$-1\r\n".to_vec(),
            };
            let there = |state: &State| {
                command[1..].iter().filter(|name| state.values.contains_key(*name)).count()
            };
            let answer = match command[0].as_slice() {
                b"AUTH" if state.password.map(str::as_bytes) == Some(&command[1]) => {
                    b"+OK\r\n".to_vec()
                }
                b"AUTH" => b"-WRONGPASS invalid password\r\n".to_vec(),
                b"SET" => {
                    state.values.insert(command[1].clone(), command[2].clone());
                    b"+OK\r\n".to_vec()
                }
                b"EXISTS" => format!(":{}\r\n", there(&state)).into_bytes(),
                b"DEL" => {
                    let n = there(&state);
                    command[1..].iter().for_each(|name| _ = state.values.remove(name));
                    format!(":{n}\r\n").into_bytes()
                }
                b"MGET" => {
                    let values = command[1..].iter().flat_map(|name| bulk(state.values.get(name)));
                    let head = format!("*{}\r\n", command.len() - 1).into_bytes();
                    head.into_iter().chain(values).collect()
                }
                other => panic!("command {other:?}"),
            };
            drop(state);
            if stream.write_all(&answer).is_err() {
                return;
            }
        }
    }

    /// The names whose end is `part`.
    fn names(&self, part: &str) -> Vec<Vec<u8>> {
        let ends = |name: &&Vec<u8>| name.ends_with(part.as_bytes());
        self.set(|s| s.values.keys().filter(ends).cloned().collect())
    }
}

/// A command of a client; `None` at the end of the connection.
fn read_command(reader: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let number = |reader: &mut dyn BufRead| {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        line.trim_end().get(1..)?.parse::<usize>().ok()
    };
    let parts = number(reader)?;
    let mut command = Vec::new();
    for _ in 0..parts {
        let mut part = vec![0; number(reader)? + 2];
        reader.read_exact(&mut part).ok()?;
        part.truncate(part.len() - 2);
        command.push(part);
    }
    Some(command)
}

fn tier(address: SocketAddr) -> (RedisTier, ManualClock) {
    let clock = ManualClock::default();
    let tier = RedisTier::start(RedisOptions::new(address), Arc::new(clock.clone())).unwrap();
    (tier, clock)
}

/// Asks until the answer is known.
fn contains(tier: &mut RedisTier, n: u64) -> bool {
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        match tier.contains(&key(n)) {
            Presence::Present => return true,
            Presence::Absent => return false,
            Presence::Unknown => std::thread::yield_now(),
        }
    }
    panic!("no answer within 20 seconds");
}

/// What any server does.
fn stores_and_finds(address: SocketAddr) {
    let (mut first, clock) = tier(address);
    assert_eq!(first.contains(&key(1)), Presence::Unknown, "the server must be asked");
    assert!(!contains(&mut first, 1));
    assert_eq!(get(&mut first, 1), TierOutcome::Miss);
    // Bytes that look like the protocol, and none at all.
    for (n, chunk) in
        [(1, bytes(1, LEN)), (2, b"\r\n$-1\r\n*2\r\n".to_vec().into()), (3, vec![].into())]
    {
        let ticket = first.put(&key(n), chunk);
        assert_eq!(crate::support::wait(&mut first, ticket), TierOutcome::Stored);
    }
    assert!(!contains(&mut first, 1), "an answer is believed for a while");
    clock.advance(Duration::from_secs(1));
    assert!(contains(&mut first, 1));
    // Another engine.
    let (mut second, _) = tier(address);
    assert_eq!(get(&mut second, 1), TierOutcome::Hit(bytes(1, LEN)));
    assert_eq!(get(&mut second, 2), TierOutcome::Hit(b"\r\n$-1\r\n*2\r\n".to_vec().into()));
    assert_eq!(get(&mut second, 3), TierOutcome::Hit(vec![].into()));
    assert_eq!(put(&mut second, 4, 3_000_000), TierOutcome::Stored);
    assert_eq!(get(&mut first, 4), TierOutcome::Hit(bytes(4, 3_000_000)), "a large one");
    let stats = second.stats();
    assert_eq!((stats.hits, stats.stored, stats.failed), (3, 1, 0));
    first.close();
}

#[test]
fn engines_share_what_is_on_a_server() {
    let server = Server::start();
    stores_and_finds(server.address);
    let sets: Vec<_> = server.names("bytes");
    assert_eq!((sets.len(), server.names("metadata").len()), (4, 4), "two keys for each chunk");
}

#[test]
fn a_chunk_that_was_sent_is_not_sent_again_with_each_turn() {
    let server = Server::start();
    let (mut tier, clock) = tier(server.address);
    assert!(tier.needs(&key(1)));
    put(&mut tier, 1, LEN);
    clock.advance(Duration::from_secs(59));
    assert!(!tier.needs(&key(1)), "and the server is not asked");
    clock.advance(Duration::from_secs(1));
    assert!(contains(&mut tier, 1));
    assert!(!tier.needs(&key(1)), "the server has said so");
    // Another engine's chunk, when it was read.
    let (mut other, _) = self::tier(server.address);
    get(&mut other, 1);
    assert!(!other.needs(&key(1)));
    let name = server.names("bytes").remove(0);
    server.set(|s| s.values.remove(&name));
    get(&mut other, 1);
    assert!(other.needs(&key(1)), "the server has evicted it");
}

#[test]
fn one_key_without_the_other_is_a_miss() {
    for lost in ["bytes", "metadata"] {
        let server = Server::start();
        let (mut tier, _) = tier(server.address);
        put(&mut tier, 1, LEN);
        let name = server.names(lost).remove(0);
        server.set(|s| s.values.remove(&name));
        assert!(!contains(&mut tier, 1), "without {lost}");
        assert_eq!(get(&mut tier, 1), TierOutcome::Miss, "without {lost}");
        assert_eq!(tier.stats().corrupt, 0, "the server may evict either");
    }
}

#[test]
fn bytes_are_written_before_metadata() {
    let server = Server::start();
    let (mut tier, _) = tier(server.address);
    put(&mut tier, 1, LEN);
    // A server that ends the connection after the first command has the bytes only.
    assert_eq!(server.set(|s| s.commands.clone()), ["SET bytes", "SET metadata"]);
    let full = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    server.set(|s| s.answer = Some(full.to_vec()));
    let outcome = put(&mut tier, 2, LEN);
    assert!(
        matches!(&outcome, TierOutcome::Failed(e) if e.to_string().contains("OOM")),
        "{outcome:?}"
    );
    let sent = server.set(|s| s.commands.len());
    assert_eq!(sent, 3, "no metadata are sent for bytes that were refused");
}

#[test]
fn damaged_chunks_are_misses_and_are_removed() {
    for part in ["bytes", "metadata"] {
        let server = Server::start();
        let (mut tier, _) = tier(server.address);
        put(&mut tier, 1, LEN);
        let name = server.names(part).remove(0);
        server.set(|s| s.values.get_mut(&name).unwrap()[40] ^= 1);
        assert_eq!(get(&mut tier, 1), TierOutcome::Miss, "another bit in the {part}");
        assert_eq!(tier.stats().corrupt, 1);
        assert!(server.set(|s| s.values.is_empty()), "both keys are removed");
    }
}

#[test]
fn replies_that_make_no_sense_are_failures_and_the_next_connection_works() {
    let huge = b"*2\r\n$88\r\n".to_vec();
    let answers: [&[u8]; 9] = [
        b"",
        b"hello\r\n",
        b"+OK\r\n",
        b"*3\r\n$-1\r\n$-1\r\n$-1\r\n",
        b"*2\r\n$-1\r\n*0\r\n",
        b"*99999999999\r\n",
        b"*2\r\n$99999999999999\r\nx",
        b"$-2\r\n",
        &huge,
    ];
    let server = Server::start();
    let (mut tier, _) = tier(server.address);
    put(&mut tier, 1, LEN);
    for answer in answers {
        server.set(|s| s.answer = Some(answer.to_vec()));
        let outcome = get(&mut tier, 1);
        let what = String::from_utf8_lossy(answer);
        assert!(matches!(outcome, TierOutcome::Failed(_)), "{what:?}: {outcome:?}");
        server.set(|s| s.answer = None);
        assert_eq!(get(&mut tier, 1), TierOutcome::Hit(bytes(1, LEN)), "after {what:?}");
    }
    assert_eq!(tier.stats().failed, 9);
}

#[test]
fn a_server_that_is_not_there_fails_at_once_and_is_tried_again_later() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (mut tier, clock) = tier(address);
    assert!(!contains(&mut tier, 1));
    assert!(matches!(put(&mut tier, 1, LEN), TierOutcome::Failed(_)));
    let listener = TcpListener::bind(address).unwrap();
    assert!(matches!(get(&mut tier, 1), TierOutcome::Failed(_)), "it is not tried again yet");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "no connection was tried");
    drop(listener);
    assert_eq!(tier.stats().failed, 3);
    clock.advance(Duration::from_secs(1));
    assert!(matches!(get(&mut tier, 1), TierOutcome::Failed(_)));
}

#[test]
fn a_password_is_sent_first() {
    let server = Server::start();
    server.set(|s| s.password = Some("secret"));
    for (password, works) in [("secret", true), ("other", false)] {
        let password = Some(password.to_owned());
        let options = RedisOptions { password, ..RedisOptions::new(server.address) };
        let mut tier = RedisTier::start(options, Arc::new(ManualClock::default())).unwrap();
        assert_eq!(put(&mut tier, 1, LEN) == TierOutcome::Stored, works);
        let first = server.set(|s| std::mem::take(&mut s.commands)).remove(0);
        assert_eq!(first, "AUTH");
    }
}

#[test]
fn what_is_too_large_or_too_much_is_refused() {
    let server = Server::start();
    let options = RedisOptions { max_chunk_bytes: LEN, ..RedisOptions::new(server.address) };
    let mut tier = RedisTier::start(options, Arc::new(ManualClock::default())).unwrap();
    assert_eq!(put(&mut tier, 1, LEN + 1), TierOutcome::Refused);
    assert_eq!(put(&mut tier, 1, LEN), TierOutcome::Stored);
    let options =
        RedisOptions { max_queued: 0, max_queued_bytes: 10, ..RedisOptions::new(server.address) };
    let mut tier = RedisTier::start(options, Arc::new(ManualClock::default())).unwrap();
    assert_eq!(tier.contains(&key(1)), Presence::Absent);
    assert_eq!(
        [get(&mut tier, 1), put(&mut tier, 1, 11)],
        [TierOutcome::Refused, TierOutcome::Refused]
    );
    assert_eq!(tier.stats().refused, 3);
}

/// A real server, which is started and ended here. Set `STRATA_REDIS_SERVER=redis-server` to run it.
#[test]
fn a_real_server_stores_and_finds() {
    let Ok(program) = std::env::var("STRATA_REDIS_SERVER") else {
        eprintln!("not run: STRATA_REDIS_SERVER does not name a redis-server or valkey-server");
        return;
    };
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let port = address.port().to_string();
    let mut server = std::process::Command::new(&program)
        .args(["--port", &port, "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    let began = std::time::Instant::now();
    while TcpStream::connect(address).is_err() && began.elapsed() < Duration::from_secs(20) {
        std::thread::yield_now();
    }
    let result = std::panic::catch_unwind(|| stores_and_finds(address));
    server.kill().unwrap();
    server.wait().unwrap();
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}
