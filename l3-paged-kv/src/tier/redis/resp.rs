//! As much of the Redis protocol (RESP 2) as a tier needs.
//!
//! A command is an array of strings, `*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`. A reply is one of five kinds, known by its first byte.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A reply of the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// `+OK`.
    Simple,
    /// `:2`.
    Integer(i64),
    /// `$5`; `None` for a key that is not there.
    Bulk(Option<Vec<u8>>),
    /// `*2`. Its elements are not arrays.
    Array(Vec<Reply>),
}

/// Maximum length of a line: errors are longer than numbers.
const MAX_LINE: u64 = 1024;
/// Maximum number of elements of an array: no command here has more.
const MAX_ARRAY: usize = 16;

/// A connection to a server.
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
    /// Maximum length of a string of the server.
    max_len: usize,
}

impl Connection {
    /// Connects. No read or write of the connection waits longer than `timeout`.
    pub(super) fn open(server: SocketAddr, timeout: Duration, max_len: usize) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&server, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), max_len })
    }

    /// Sends a command and reads its reply. After an error the connection is of no use.
    pub(super) fn call(&mut self, command: &[&[u8]]) -> io::Result<Reply> {
        let stream = self.stream.get_mut();
        let mut head = format!("*{}\r\n", command.len()).into_bytes();
        for part in command {
            head.extend(format!("${}\r\n", part.len()).into_bytes());
            stream.write_all(&head)?;
            stream.write_all(part)?;
            head = b"\r\n".to_vec();
        }
        stream.write_all(&head)?;
        self.reply(true)
    }

    fn reply(&mut self, arrays: bool) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(&line))?;
        match kind {
            "+" => Ok(Reply::Simple),
            "-" => Err(io::Error::other(format!("the server answers: {rest}"))),
            ":" => Ok(Reply::Integer(number(rest)?)),
            "$" => match number(rest)? {
                -1 => Ok(Reply::Bulk(None)),
                len => Ok(Reply::Bulk(Some(self.bytes(len)?))),
            },
            "*" if arrays => {
                let len = usize::try_from(number(rest)?).ok().filter(|len| *len <= MAX_ARRAY);
                let len = len.ok_or_else(|| malformed(&line))?;
                (0..len).map(|_| self.reply(false)).collect::<io::Result<_>>().map(Reply::Array)
            }
            _ => Err(malformed(&line)),
        }
    }

    /// A line without its end.
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        (&mut self.stream).take(MAX_LINE).read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None if line.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            None => Err(malformed(&line)),
        }
    }

    /// A string of this length, and the end of its line.
    fn bytes(&mut self, len: i64) -> io::Result<Vec<u8>> {
        let len = usize::try_from(len).ok().filter(|len| *len <= self.max_len);
        let len =
            len.ok_or_else(|| io::Error::other("the server sends a string that is too long"))?;
        // Memory grows with what arrives, not with what is announced.
        let mut bytes = Vec::new();
        (&mut self.stream).take(len as u64 + 2).read_to_end(&mut bytes)?;
        if bytes.len() != len + 2 || !bytes.ends_with(b"\r\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.truncate(len);
        Ok(bytes)
    }
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| malformed(text))
}

fn malformed(line: &str) -> io::Error {
    let line: String = line.chars().take(80).collect();
    io::Error::other(format!("this is no reply of a Redis server: {line:?}"))
}
