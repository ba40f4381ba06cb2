//! `strata serve` as other people's programs meet it: OpenAI's clients in Python and JavaScript, schemathesis,
//! Prometheus, vLLM's bench client, a browser.
//!
//! Each test needs such a program, which an environment variable names; `cargo x test --full` installs them and sets
//! the variables. Where one is not set, its tests print that they are skipped.

mod clients;
mod ensemble;
mod page;
mod prometheus;
mod schemathesis;
#[path = "../server/served.rs"]
#[expect(dead_code, reason = "shared with the tests of the server, which use all of it")]
mod served;
mod vllm;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Path of a program or directory that a test needs; prints a note if the variable is not set.
pub fn wanted(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    if path.is_none() {
        eprintln!("NOT TESTED: {variable} is not set (`cargo x test --full` sets it)");
    }
    path
}

/// A file beside this one.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/outside").join(name)
}

/// Run a program to its end, which must be a good one, and return what it said. The bound is for programs that hang.
#[track_caller]
pub fn finish(command: &mut Command, within: Duration) -> String {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|why| panic!("{command:?}: {why}"));
    let out = drain(child.stdout.take().unwrap());
    let err = drain(child.stderr.take().unwrap());
    // Both pipes close when the program ends, for whatever reason.
    let said = out.recv_timeout(within);
    if said.is_err() {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    let (said, complained) = (said.unwrap_or_default(), err.recv().unwrap_or_default());
    assert!(status.success(), "{command:?}\nended with {status}\n{said}\n{complained}");
    said
}

fn drain(mut pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receive
}

/// A program that is killed when its test ends, however it ends.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
