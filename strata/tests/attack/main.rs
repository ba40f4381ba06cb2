//! Hostile clients against the built server: whatever they send, memory, `/health` and other clients' streams stay
//! within bounds.
//!
//! `table.rs` lists the attacks, `bodies.rs` and `raw.rs` make what they send, `watch.rs` measures beside them, and
//! `hostile.rs` holds the measurements against the bounds. `soak.rs` mixes all kinds of clients for a longer time, and
//! `shutdown.rs` ends a server that is under attack.
//!
//! A normal run has a few small attacks and asserts no time. `STRATA_LONG` runs the whole table against the time bounds
//! as well; `STRATA_SOAK=SECONDS` sets the length of the soak. `STRATA_ATTACKED=PATH` names another binary to attack,
//! and
//! `STRATA_ATTACKS=WORD,WORD` runs the attacks whose names contain one of these words.

#[path = "../server/served.rs"]
#[expect(dead_code, reason = "shared with the tests of the server, which use all of it")]
mod served;
#[path = "../server/metrics/text.rs"]
mod text;

mod bodies;
mod client;
mod crowd;
mod hostile;
mod raw;
mod server;
mod shutdown;
mod soak;
mod table;
mod watch;

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether this is the long version, which asserts times.
pub fn long() -> bool {
    std::env::var_os("STRATA_LONG").is_some()
}

/// One test at a time: each measures a whole machine.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Print a line although the test passes.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
