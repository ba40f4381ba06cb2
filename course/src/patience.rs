//! Runs a program with a time limit.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Result of a program.
pub struct Ended {
    /// Exit status; `None` if it was stopped at the limit.
    pub status: Option<ExitStatus>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Run a program and wait no longer than `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Result<Ended> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    // Both pipes are emptied while it runs; a full one would stop the program.
    let stdout = child.stdout.take().map(collect);
    let stderr = child.stderr.take().map(collect);
    let started = Instant::now();
    let mut pause = Duration::from_micros(200);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if started.elapsed() >= limit {
            // It may have ended just now, which is as good.
            let _ = child.kill();
            child.wait()?;
            break None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    Ok(Ended { status, stdout: text(stdout), stderr: text(stderr) })
}

/// Everything that comes out of a pipe, gathered on a thread of its own.
pub fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        // A broken pipe has no more output.
        let _ = pipe.read_to_end(&mut all);
        all
    })
}

/// What [`collect`] gathered.
pub fn text(collector: Option<JoinHandle<Vec<u8>>>) -> String {
    let bytes = collector.and_then(|c| c.join().ok()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell;

    #[test]
    fn a_program_that_ends_is_heard_to_its_end() {
        let ended = run(shell::cargo("--version").arg("--quiet"), Duration::from_secs(60)).unwrap();
        assert!(ended.status.is_some_and(|s| s.success()));
        assert!(ended.stdout.starts_with("cargo "), "{}", ended.stdout);
    }

    #[cfg(unix)]
    #[test]
    fn a_program_that_does_not_end_is_stopped_and_what_it_said_is_kept() {
        let mut endless = shell::program("sh");
        // The shell becomes the sleeper, so no process is left behind when it is stopped.
        endless.args(["-c", "echo before; exec sleep 1000"]);
        let started = Instant::now();
        let ended = run(&mut endless, Duration::from_millis(300)).unwrap();
        assert!(ended.status.is_none() && ended.stdout == "before\n", "{}", ended.stdout);
        assert!(started.elapsed() < Duration::from_secs(100));
    }
}
