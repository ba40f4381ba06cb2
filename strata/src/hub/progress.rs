//! A progress bar on stderr, or one plain line if it is not a terminal.

use std::io::{IsTerminal, Write, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Options;
use server::words::size;

/// Progress of a download; erased when dropped, so that the output starts on a clean line.
pub(super) struct Meter {
    bar: ProgressBar,
}

impl Meter {
    /// Announces `what` (from `source`) of `total` bytes (0: unknown).
    ///
    /// On a terminal this is a bar, elsewhere one line: in a log file a bar would take a thousand.
    pub(super) fn start(options: &Options, what: &str, source: &str, total: u64) -> Self {
        if options.quiet || !stderr().is_terminal() {
            let known = if total > 0 { format!(" ({})", size(total)) } else { String::new() };
            note(options, &format!("fetching {what}{known} from {source}"));
            return Meter { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let template = if total > 0 {
            "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}"
        } else {
            "{spinner} {msg} {bytes} {bytes_per_sec}"
        };
        // The templates are constants; an error in one must not fail the download.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(format!("{what} from {source}"));
        Meter { bar }
    }

    /// Sets the number of bytes; a restarted transfer goes back.
    pub(super) fn set(&self, n: u64) {
        self.bar.set_position(n);
    }

    /// Bytes counted so far.
    pub(super) fn position(&self) -> u64 {
        self.bar.position()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Prints one line on stderr, or logs an event if there is a log, as in a server.
pub(super) fn note(options: &Options, line: &str) {
    match options.quiet {
        true => {}
        false if tracing::dispatcher::has_been_set() => {
            tracing::info!(target: server::LOG, "{line}");
        }
        false => _ = writeln!(stderr(), "strata: {line}"),
    }
}
