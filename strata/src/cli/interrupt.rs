//! Ctrl-C: stops a response of a chat or a benchmark run, and ends the program everywhere else.

use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hub::abandon_downloads;

/// Whether the next signal ends the current work only.
static INTERRUPTIBLE: AtomicBool = AtomicBool::new(false);
/// Whether a signal has asked that work to stop.
static STOP_REQUESTED: AtomicBool = AtomicBool::new(false);

/// Whether another component handles signals.
static HANDED_OVER: AtomicBool = AtomicBool::new(false);

/// Exit code after Ctrl-C: 128 + SIGINT, as shells report it.
const INTERRUPTED_EXIT_CODE: i32 = 130;

/// Sets the handler, which runs on a thread of its own and so may take locks and delete files.
pub fn install() {
    // Without it the system's default ends the program too.
    let _ = ctrlc::set_handler(|| {
        if HANDED_OVER.load(Ordering::SeqCst) {
            return;
        }
        let first =
            INTERRUPTIBLE.load(Ordering::SeqCst) && !STOP_REQUESTED.swap(true, Ordering::SeqCst);
        if !first {
            abandon_downloads();
            exit(INTERRUPTED_EXIT_CODE);
        }
    });
}

/// Leaves signals to the caller's own handlers from now on, as a server has.
pub fn hand_over() {
    HANDED_OVER.store(true, Ordering::SeqCst);
}

/// Work that a signal can stop. While this value exists, the first signal only sets [`Interruptible::stopped`]; a
/// second one ends the program, in case the work does not stop.
pub struct Interruptible(());

impl Interruptible {
    /// Begins work that a signal stops.
    pub fn begin() -> Self {
        STOP_REQUESTED.store(false, Ordering::SeqCst);
        INTERRUPTIBLE.store(true, Ordering::SeqCst);
        Interruptible(())
    }

    /// Returns whether there was a signal.
    pub fn stopped(&self) -> bool {
        STOP_REQUESTED.load(Ordering::SeqCst)
    }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        INTERRUPTIBLE.store(false, Ordering::SeqCst);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn the_first_signal_stops_only_the_current_work() {
        install();
        let work = Interruptible::begin();
        assert!(!work.stopped());
        let me = std::process::id().to_string();
        assert!(Command::new("kill").args(["-INT", &me]).status().unwrap().success());
        let started = Instant::now();
        while !work.stopped() {
            assert!(started.elapsed() < Duration::from_secs(10), "the signal was not received");
            std::thread::sleep(Duration::from_millis(1));
        }
        // A signal does not carry over to the next work.
        drop(work);
        assert!(!Interruptible::begin().stopped());
    }
}
