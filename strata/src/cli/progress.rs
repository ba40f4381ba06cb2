//! The progress bar of a command that takes long.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

use super::context::Context;

/// A bar of `length` units on a terminal, and nothing elsewhere. Erased when dropped.
///
/// Nothing draws it but the calls that change it: a thread of its own would take time from what is measured.
pub fn bar(length: usize, template: &'static str, context: &Context) -> ProgressBar {
    if context.quiet || !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let target = ProgressDrawTarget::stderr();
    let bar = ProgressBar::with_draw_target(Some(length as u64), target);
    // Templates are constants; an error in one must not fail the run.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.with_finish(ProgressFinish::AndClear)
}
