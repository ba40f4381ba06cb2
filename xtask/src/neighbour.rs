//! A busy process beside the one that is measured, as on a shared machine.

use std::hint::black_box;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// What `cargo x neighbour` does: arithmetic on one core, for ever.
pub fn be_busy() -> Result<()> {
    let mut x = 1.0f64;
    loop {
        for _ in 0..1_000_000 {
            x = black_box(x * 1.000_000_1 + 1e-9);
        }
        x = x.fract();
    }
}

/// A running neighbour; it ends when this is dropped.
pub struct Neighbour(Child);

impl Neighbour {
    /// Start one: this program again, with another command.
    pub fn start() -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("neighbour");
        Self::of(command)
    }

    fn of(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null());
        Ok(Self(command.spawn().context("cannot start a busy neighbour")?))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // It may have died already; then there is nothing to end and nothing to report.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_ends_when_it_is_dropped() {
        let mut sleeper = Command::new("sleep");
        sleeper.arg("600");
        let neighbour = Neighbour::of(sleeper).unwrap();
        let pid = neighbour.0.id();
        drop(neighbour);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
