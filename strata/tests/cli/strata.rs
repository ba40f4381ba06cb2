//! Running the binary, and the files it is run on.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

#[path = "../support/command.rs"]
mod world;

/// How a run ended.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// stdout as the one JSON value it must be.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// stdout of a run that went well.
    #[track_caller]
    pub fn text(&self) -> &str {
        assert_eq!(self.code, 0, "{self:?}");
        &self.stdout
    }
}

/// The binary in a world without hub, cache, configuration and GPU. What it says is kept.
pub fn command() -> Command {
    let mut command = world::command();
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn strata<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    end(command().args(args).spawn().unwrap())
}

/// The binary with a CUDA device: a CPU that stands in for one or, with `STRATA_TEST_DEVICE=cuda`, a real one. Its
/// kernels are compiled once and kept where those of other tests are.
pub fn with_cuda() -> Command {
    let mut command = command();
    command.env_remove("STRATA_CACHE");
    if std::env::var_os("STRATA_TEST_DEVICE").is_some_and(|device| device == "cuda") {
        command.env_remove("CUDA_VISIBLE_DEVICES");
    } else {
        command.env("STRATA_CUDA", "emulated");
    }
    command
}

pub fn strata_reading<S: AsRef<OsStr>>(stdin: &[u8], args: impl IntoIterator<Item = S>) -> Ran {
    let mut child = command().args(args).stdin(Stdio::piped()).spawn().unwrap();
    // A program that fails before it reads closes the pipe: that is its right.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    end(child)
}

pub fn end(child: Child) -> Ran {
    let output = child.wait_with_output().unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

/// The path of a fixture, as an argument.
pub fn fixture(name: &str) -> String {
    fixtures().join(name).to_str().unwrap().to_owned()
}

/// A tiny model's directory that a test may change.
pub fn copy_of(name: &str) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixtures().join(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// A path as an argument.
pub fn arg(path: impl AsRef<Path>) -> String {
    path.as_ref().to_str().unwrap().to_owned()
}

pub fn json_of(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// `1,2,3`
pub fn comma(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

pub fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}
