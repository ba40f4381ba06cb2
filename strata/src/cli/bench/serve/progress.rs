//! The progress bar of a run.

use indicatif::ProgressBar;

use super::client::Record;
use crate::cli::context::Context;
use crate::cli::progress;

/// A bar on a terminal, and nothing elsewhere. Erased when dropped.
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for so many requests.
    pub(super) fn start(requests: usize, context: &Context) -> Self {
        Self { bar: progress::bar(requests, "[{wide_bar}] {pos}/{len} {elapsed} {msg}", context) }
    }

    /// Updates the bar.
    pub(super) fn show(&self, ended: &[Record], running: usize, chunks: u64, seconds: f64) {
        if self.bar.is_hidden() {
            return;
        }
        let failed = ended.iter().filter(|record| record.failure.is_some()).count();
        let rate = chunks as f64 / seconds.max(1e-9);
        self.bar.set_position(ended.len() as u64);
        self.bar.set_message(format!("{running} in flight, {failed} failed, {rate:.0} chunks/s"));
    }
}
