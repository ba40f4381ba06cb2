//! A server that answers every completion with the same bytes, for servers that relay to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

/// What a scripted server does after its response.
#[derive(Clone, Copy, PartialEq)]
pub enum Then {
    /// Closes the connection.
    Close,
    /// Keeps the connection open in silence.
    Hang,
    /// As [`Then::Hang`], and closes the connections of health checks from then on.
    Sicken,
    /// Ends, with all connections.
    Die,
    /// As [`Then::Die`], but keeps the connection open until [`Scripted::release`].
    DieLater,
}

/// A server that is healthy, and answers each completion with the same bytes.
pub struct Scripted {
    /// Its host and port.
    pub address: String,
    asked: Asked,
    released: Arc<(Mutex<bool>, Condvar)>,
}

/// First line and body of each completion that was asked for.
type Asked = Arc<Mutex<Vec<(String, String)>>>;

/// A stream that ends with its connection.
macro_rules! stream {
    ($($text:literal),*) => {
        concat!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n", $($text),*)
    };
}
pub(crate) use stream;

impl Scripted {
    pub fn new(bytes: &'static str, then: Then) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (asked, released) = (Asked::default(), Arc::default());
        let server = Self { address, asked: Asked::clone(&asked), released: Arc::clone(&released) };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if matches!(then, Then::Die | Then::DieLater) && !asked.lock().unwrap().is_empty() {
                    return;
                }
                let (stream, asked, released) = (stream.unwrap(), asked.clone(), released.clone());
                std::thread::spawn(move || {
                    let stream = answer(stream, bytes, then, &asked);
                    if then == Then::DieLater && stream.is_some() {
                        let (flag, told) = &*released;
                        drop(told.wait_while(flag.lock().unwrap(), |released| !*released).unwrap());
                    }
                });
            }
        });
        server
    }

    /// Closes the connections of [`Then::DieLater`].
    pub fn release(&self) {
        *self.released.0.lock().unwrap() = true;
        self.released.1.notify_all();
    }

    /// Number of completions that it was asked for.
    pub fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// First line and body of each.
    pub fn asked(&self) -> Vec<(String, String)> {
        self.asked.lock().unwrap().clone()
    }
}

/// First line and body of a request. What is missing of it is empty.
pub fn read_request(reader: &mut impl BufRead) -> (String, Vec<u8>) {
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        let (name, value) = line.split_once(':').unwrap();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok();
    (first, body)
}

/// Answers one request. Returns the connection of a completion.
fn answer(mut stream: TcpStream, bytes: &str, then: Then, asked: &Asked) -> Option<TcpStream> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (first, body) = read_request(&mut reader);
    if first.starts_with("GET") {
        if then != Then::Sicken || asked.lock().unwrap().is_empty() {
            let ok = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(ok.as_bytes()).ok();
        }
        return None;
    }
    asked.lock().unwrap().push((first, String::from_utf8_lossy(&body).into_owned()));
    stream.write_all(bytes.as_bytes()).ok();
    if matches!(then, Then::Hang | Then::Sicken) {
        // Until the other end closes it.
        reader.read_to_end(&mut Vec::new()).ok();
    }
    Some(stream)
}
