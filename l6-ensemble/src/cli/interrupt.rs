//! Ctrl-C: ends an answer in a chat, and the program everywhere else.

use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hub::abandon_downloads;

/// An answer is being written that a signal may end.
static ANSWERING: AtomicBool = AtomicBool::new(false);
/// It shall end.
static STOP: AtomicBool = AtomicBool::new(false);

/// Signals are somebody else's.
static HANDED_OVER: AtomicBool = AtomicBool::new(false);

/// What a shell reports for a program that Ctrl-C ended: 128 + SIGINT.
const INTERRUPTED: i32 = 130;

/// Sets the handler, which runs on a thread of its own and so may take locks and delete files.
pub fn install() {
    // Without it the system's own rule holds, which ends the program too: no reason not to start.
    let _ = ctrlc::set_handler(|| {
        if HANDED_OVER.load(Ordering::SeqCst) {
            return;
        }
        let first = ANSWERING.load(Ordering::SeqCst) && !STOP.swap(true, Ordering::SeqCst);
        if !first {
            abandon_downloads();
            exit(INTERRUPTED);
        }
    });
}

/// From here on signals mean nothing here: whoever calls this has handlers of its own, as a server has.
pub fn hand_over() {
    HANDED_OVER.store(true, Ordering::SeqCst);
}

/// While this value lives, the first signal only sets [`Answering::stopped`]. A second one ends the program: an
/// answer that does not stop must not hold anybody up.
pub struct Answering(());

impl Answering {
    /// From here on a signal ends the answer.
    pub fn begin() -> Self {
        STOP.store(false, Ordering::SeqCst);
        ANSWERING.store(true, Ordering::SeqCst);
        Answering(())
    }

    /// Was there a signal?
    pub fn stopped(&self) -> bool {
        STOP.load(Ordering::SeqCst)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        ANSWERING.store(false, Ordering::SeqCst);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn the_first_signal_during_an_answer_ends_only_the_answer() {
        install();
        let answering = Answering::begin();
        assert!(!answering.stopped());
        let me = std::process::id().to_string();
        assert!(Command::new("kill").args(["-INT", &me]).status().unwrap().success());
        let started = Instant::now();
        while !answering.stopped() {
            assert!(started.elapsed() < Duration::from_secs(10), "the signal never came");
            std::thread::sleep(Duration::from_millis(1));
        }
        // The next answer starts with a clean slate.
        drop(answering);
        assert!(!Answering::begin().stopped());
    }
}
