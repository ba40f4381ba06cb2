//! The locks of `stream.rs`. They have a file of their own because the model checker puts its own in
//! their place: see `tests/loom_events.rs`.

pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
