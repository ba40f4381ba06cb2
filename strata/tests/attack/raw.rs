//! Clients that are slow, broken or gone.

use std::thread;
use std::time::Duration;

use crate::bodies::{self, MIB};
use crate::client::{Link, Outcome, Scene};
use crate::server::files_allowed;

const COMPLETIONS: &str = "/v1/completions";

/// Between two bytes of a slow client.
const SLOW: Duration = Duration::from_millis(100);

/// So many connections, or fewer where this process may not have the files for them.
fn connections(scene: &Scene, count: usize) -> Vec<Link<'_>> {
    let most = files_allowed().saturating_sub(200);
    (0..count.min(most)).map_while(|_| scene.open()).collect()
}

/// Send a byte on every connection now and then, until the attack is over; then leave.
fn drip(scene: &Scene, links: &mut Vec<Link<'_>>) {
    while !scene.over() {
        links.retain_mut(|link| link.send(b"x"));
        scene.sleep(SLOW);
    }
    scene.count(&format!("open until the end: {}", links.len()));
}

/// Heads that never end.
pub fn slow_heads(scene: &Scene) {
    let mut links = connections(scene, 300);
    links.retain_mut(|link| {
        link.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    });
    drip(scene, &mut links);
}

/// Bodies that hardly begin.
pub fn slow_bodies(scene: &Scene) {
    let mut links = connections(scene, 300);
    let head = scene.head(COMPLETIONS, 16 * MIB);
    links.retain_mut(|link| link.send(&head) && link.send(b"{\"prompt\": \""));
    drip(scene, &mut links);
}

/// Large bodies of which all but the end comes.
pub fn stuck_bodies(scene: &Scene) {
    let mut links = connections(scene, 16);
    let head = scene.head(COMPLETIONS, 8 * MIB);
    let body = vec![b' '; 8 * MIB - 1];
    links.retain_mut(|link| link.send(&head) && link.send(&body));
    scene.sleep(Duration::from_millis(500));
    scene.count(&format!("stuck: {}", links.len()));
}

/// Connections on which nothing comes.
pub fn idle(scene: &Scene) {
    let links = connections(scene, 2000);
    scene.count(&format!("open: {}", links.len()));
    scene.sleep(Duration::from_secs(1));
}

/// Bodies in chunks that stop in the middle of one.
pub fn half_chunks(scene: &Scene) {
    let mut links = connections(scene, 100);
    let head = chunked(scene);
    links.retain_mut(|link| link.send(&head) && link.send("400\r\n{\"prompt\": \"On"));
    scene.sleep(Duration::from_millis(500));
    for link in &links {
        link.finish();
    }
    for mut link in links {
        scene.judge(&link.response(false));
    }
}

/// A large body in chunks of one byte.
pub fn chunks_of_one(scene: &Scene) {
    let mut body = "1\r\n \r\n".repeat(MIB);
    let end = "{\"prompt\": \"Once\", \"max_tokens\": 2}";
    body.push_str(&format!("{:x}\r\n{end}\r\n0\r\n\r\n", end.len()));
    together(4, || {
        let Some(mut link) = scene.open() else { return };
        link.send(chunked(scene));
        link.send(&body);
        scene.judge(&link.response(false));
    });
}

/// A head for a body in chunks.
fn chunked(scene: &Scene) -> String {
    scene.head(COMPLETIONS, 7).replace("Content-Length: 7", "Transfer-Encoding: chunked")
}

/// Requests by the thousand on one connection, whose responses are read late.
pub fn pipelines(scene: &Scene) {
    let health = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1000);
    let body = r#"{"prompt": [5, 6, 7], "max_tokens": 1}"#;
    let head = scene.head(COMPLETIONS, body.len()).replace("Connection: close\r\n", "");
    let posts = format!("{head}{body}").repeat(300);
    together(16, || {
        for requests in [&health, &posts] {
            let Some(mut link) = scene.open() else { return };
            link.send(requests);
            scene.sleep(Duration::from_millis(200));
            link.finish();
            let mut came = 0;
            loop {
                let piece = link.read(64 << 10);
                came += piece.windows(12).filter(|twelve| twelve == b"HTTP/1.1 200").count();
                if piece.is_empty() {
                    break;
                }
            }
            scene.count(if came > 0 { "answered" } else { "not answered" });
        }
    });
}

/// Long streams whose clients send one byte too much, which a server does not read while it answers, and vanish.
/// Nothing but that byte keeps the server from detecting the disconnect.
pub fn vanish_behind_a_byte(scene: &Scene) {
    let body = bodies::lengthy();
    together(8, || {
        let Some(mut link) = scene.open() else { return };
        link.send(scene.head(COMPLETIONS, body.len()).replace("Connection: close\r\n", ""));
        link.send(&body);
        link.send(b"G");
        // Until the response begins, so that it is the stream that the client leaves.
        let began = link.read(15);
        scene.count(if began.starts_with(b"HTTP/1.1 200") { "left a stream" } else { "refused" });
    });
}

/// The same before there is a response: whole answers that take long.
pub fn vanish_before_the_response(scene: &Scene) {
    let body = String::from_utf8(bodies::lengthy())
        .unwrap()
        .replace("\"stream\":true", "\"stream\":false");
    together(8, || {
        let Some(mut link) = scene.open() else { return };
        link.send(scene.head(COMPLETIONS, body.len()).replace("Connection: close\r\n", ""));
        link.send(&body);
        link.send(b"G");
        scene.sleep(Duration::from_millis(200));
        scene.count("left");
    });
}

/// Streams of which a byte is read now and then.
pub fn slow_readers(scene: &Scene) {
    let body = br#"{"prompt": [5, 6, 7], "max_tokens": 480, "ignore_eos": true, "stream": true, "logprobs": 20, "n": 2}"#;
    let mut links = connections(scene, 50);
    links.retain_mut(|link| link.post(COMPLETIONS, body));
    while !scene.over() {
        links.retain_mut(|link| !link.read(1).is_empty());
        scene.sleep(SLOW);
    }
    scene.count(&format!("open until the end: {}", links.len()));
}

/// Streams that end in a reset, which is what leaving with unread bytes is.
pub fn resets(scene: &Scene) {
    let body = bodies::lengthy();
    together(8, || {
        for _ in 0..5 {
            let Some(mut link) = scene.open() else { return };
            link.post(COMPLETIONS, &body);
            link.read(1);
            scene.sleep(Duration::from_millis(20));
            scene.count("reset");
        }
    });
}

/// `Expect: 100-continue` from clients that then send nothing, or too much.
pub fn expectations(scene: &Scene) {
    let head = |length: usize| {
        scene.head(COMPLETIONS, length).replace("Host", "Expect: 100-continue\r\nHost")
    };
    let mut silent = connections(scene, 100);
    silent.retain_mut(|link| link.send(head(16 * MIB)));
    for length in [100 * MIB, 1 << 40] {
        let Some(mut link) = scene.open() else { return };
        link.send(head(length));
        scene.judge(&link.response(false));
    }
    scene.sleep(Duration::from_millis(500));
    scene.count(&format!("silent: {}", silent.len()));
}

/// Lengths that are not those of the bodies, and bodies larger than any may be.
pub fn lies(scene: &Scene) {
    let head = |length: &str| scene.head(COMPLETIONS, 7).replace("Content-Length: 7", length);
    let small = br#"{"prompt": "Once", "max_tokens": 1}"#;
    let none = String::new();
    let lies: [(String, &[u8]); 9] = [
        (head("Content-Length: 10"), &vec![b'x'; MIB]),
        (head("Content-Length: 16777216"), small),
        (head("Content-Length: 35\r\nContent-Length: 36"), small),
        (head("Content-Length: 35\r\nTransfer-Encoding: chunked"), small),
        (head("Content-Length: -1"), small),
        (head("Content-Length: 99999999999999999999999"), small),
        (head("Transfer-Encoding: gzip, chunked"), small),
        (head("X-No-Length: 1"), small),
        (none, small),
    ];
    together(4, || {
        for (head, body) in &lies {
            let Some(mut link) = scene.open() else { return };
            link.send(head);
            link.send(body);
            link.finish();
            scene.judge(&link.response(false));
        }
    });
}

/// Bodies of 40 MiB, where 16 may be.
pub fn too_large(scene: &Scene) {
    let body = vec![b'['; 40 * MIB];
    together(4, || {
        let Some(mut link) = scene.open() else { return };
        link.post(COMPLETIONS, &body);
        scene.judge(&link.response(false));
    });
}

/// What is no request, or a head that is much too large.
pub fn rubbish(scene: &Scene) {
    let head = |middle: &str| format!("GET /health{middle}\r\n\r\n");
    let lines = "X-Line: a\r\n".repeat(10_000);
    let rubbish = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03".repeat(50),
        vec![0; MIB],
        vec![b'\n'; MIB],
        vec![b'G'; MIB],
        b"GET\r\n\r\n".repeat(1000),
        head(&format!(" HTTP/1.1\r\nHost: localhost\r\n{lines}")).into_bytes(),
        head(&format!("?{} HTTP/1.1\r\nHost: localhost\r\nConnection: close", "q".repeat(50_000)))
            .into_bytes(),
        head(&format!("?{} HTTP/1.1\r\nHost: localhost", "q".repeat(MIB))).into_bytes(),
        head(&format!(" HTTP/1.1\r\nHost: localhost\r\nX-Long: {}", "x".repeat(MIB))).into_bytes(),
        head(&format!(
            " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: {}",
            "x".repeat(60_000)
        ))
        .into_bytes(),
        format!(
            "GET /v1/models/{} HTTP/1.1\r\nHost: localhost\r\n{}Connection: close\r\n\r\n",
            "m".repeat(60_000),
            scene.authorization
        )
        .into_bytes(),
        format!(
            "GET /{} HTTP/1.1\r\nHost: localhost\r\n{}Connection: close\r\n\r\n",
            "p".repeat(60_000),
            scene.authorization
        )
        .into_bytes(),
        format!(
            "{} / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            "M".repeat(60_000)
        )
        .into_bytes(),
    ];
    together(4, || {
        for bytes in &rubbish {
            let Some(mut link) = scene.open() else { return };
            link.send(bytes);
            link.finish();
            scene.judge(&link.response(false));
        }
    });
}

/// Pages that cost the server something and need no key.
pub fn scrapes(scene: &Scene) {
    together(8, || {
        for _ in 0..40 {
            for path in ["/metrics", "/strata/state", "/openapi.json", "/"] {
                let Some(mut link) = scene.open() else { return };
                link.send(format!(
                    "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                ));
                let outcome = link.response(false);
                if let Outcome::Response { status: 200, .. } = outcome {
                    scene.count("200");
                } else {
                    scene.judge(&outcome);
                }
            }
        }
    });
}

/// So many threads that all do this.
pub fn together(threads: usize, work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 0..threads {
            let thread = thread::Builder::new().stack_size(512 << 10);
            thread.spawn_scoped(scope, &work).unwrap();
        }
    });
}
