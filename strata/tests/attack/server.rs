//! The server under attack: a tiny model, with or without keys, and what the system knows of its process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::client::{Outcome, Scene};
use crate::served::{Served, command, fixture};

/// The key that clients show to a server with keys.
const KEY: &str = "the-right-key";

/// How long the server may take to tell its metrics.
const PATIENCE: Duration = Duration::from_secs(5);

/// A server under attack.
pub struct Target {
    pub served: Served,
    /// The line that a client sends with a request, with its line end; nothing where no key is needed.
    pub authorization: &'static str,
}

impl Target {
    /// Start one. It has a chat template that writes tools out.
    pub fn start(keyed: bool, more: &[&str]) -> Self {
        let template = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/server/templates/thinks-and-calls.jinja");
        let mut command = binary();
        command.args(["--quiet", "serve", "--port", "0", "--served-model-name", "tiny", "--model"]);
        command.arg(fixture("tiny-qwen3")).arg("--chat-template").arg(template);
        command.args(["--tool-call-parser", "hermes"]).args(more);
        if keyed {
            command.args(["--api-key", KEY]);
        }
        let authorization = if keyed { "Authorization: Bearer the-right-key\r\n" } else { "" };
        Self { served: Served::run(command), authorization }
    }

    /// Memory that the process has, in bytes; none when it has ended.
    pub fn memory(&self) -> usize {
        memory(self.served.pid())
    }

    /// Files that the process has open.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.served.pid())).map_or(0, Iterator::count)
    }

    /// Whether the process has not ended.
    pub fn lives(&self) -> bool {
        memory(self.served.pid()) > 0
    }

    /// The sum of a metric's samples; not a number when the server does not tell in time.
    pub fn metric(&self, name: &str) -> f64 {
        let Some(text) = self.metrics() else { return f64::NAN };
        let samples = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
        });
        samples.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// Requests that run or wait.
    pub fn requests(&self) -> f64 {
        self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting")
    }

    fn metrics(&self) -> Option<String> {
        let scene = Scene::new(self.served.address(), "", PATIENCE, true);
        let mut link = scene.open()?;
        link.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        match link.response(false) {
            Outcome::Response { status: 200, body, .. } => String::from_utf8(body).ok(),
            _ => None,
        }
    }

    /// Wait until something is so; false when it is not in time or the server has ended.
    pub fn until(&self, within: Duration, mut is_so: impl FnMut() -> bool) -> bool {
        let began = Instant::now();
        while self.lives() {
            if is_so() {
                return true;
            }
            if began.elapsed() > within {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

/// The binary under attack, with the environment that all tests give it.
fn binary() -> Command {
    let mut usual = command();
    // The server takes what begins with STRATA_ for settings of its own.
    for variable in ["STRATA_ATTACKED", "STRATA_ATTACKS", "STRATA_LONG", "STRATA_SOAK"] {
        usual.env_remove(variable);
    }
    let Some(other) = std::env::var_os("STRATA_ATTACKED").filter(|path| !path.is_empty()) else {
        return usual;
    };
    let mut command = Command::new(PathBuf::from(other));
    for (name, value) in usual.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(std::process::Stdio::null());
    command
}

/// A process's resident memory in bytes.
pub fn memory(pid: u32) -> usize {
    status(pid, "VmRSS:")
}

/// Maximum resident memory of a process since [`forget_peak`].
pub fn peak(pid: u32) -> usize {
    status(pid, "VmHWM:")
}

/// Begin a new peak; false where the system does not let us.
pub fn forget_peak(pid: u32) -> bool {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").is_ok()
}

fn status(pid: u32, field: &str) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap_or(0) << 10
}

/// Files that this process may have open.
pub fn files_allowed() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    soft.unwrap_or(1024)
}
