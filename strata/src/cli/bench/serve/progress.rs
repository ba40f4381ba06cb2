//! The progress bar of a run.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::client::Record;
use crate::cli::context::Context;

/// A bar on a terminal, and nothing elsewhere. Erased when dropped.
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for so many requests.
    pub(super) fn start(requests: usize, context: &Context) -> Self {
        if context.quiet || !stderr().is_terminal() {
            return Self { bar: ProgressBar::hidden() };
        }
        let total = Some(requests as u64);
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        // The template is a constant; an error in it must not fail the run.
        if let Ok(style) = ProgressStyle::with_template("[{wide_bar}] {pos}/{len} {elapsed} {msg}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar }
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

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
