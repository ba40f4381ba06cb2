//! Finds stop strings in streamed text.

use std::sync::Arc;

use super::automaton::{Automaton, ROOT};
use crate::error::ParamError;

/// Finds stop strings in streamed text. Text that could become a stop string is held back, so that no part of one is
/// ever shown; all other text is returned at once. (With `include_stop_str` nothing is held back.)
///
/// The string that *ends* first wins, so that the matcher never waits for text behind it. Of strings that end together,
/// the one that begins first wins. The text is cut where that string begins (or ends, with `include_stop_str`), and
/// nothing behind the cut is ever shown.
///
/// Each byte of the text costs a constant, amortised; nothing is allocated once the buffer has grown to the longest
/// piece and the longest stop string. A clone shares what was built from the strings.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    automaton: Arc<Automaton>,
    include: bool,
    /// Node of the automaton for the text so far.
    at: u32,
    /// The end of the text so far. `text[..given]` was returned before, `text[given..certain]` is returned next,
    /// `text[certain..]` is held back.
    text: String,
    given: usize,
    certain: usize,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// Creates a matcher for these stop strings.
    ///
    /// # Errors
    /// [`ParamError::EmptyStop`].
    pub fn new(strings: &[String], include_stop_str: bool) -> Result<Self, ParamError> {
        if strings.iter().any(String::is_empty) {
            return Err(ParamError::EmptyStop);
        }
        Ok(Self {
            automaton: Arc::new(Automaton::new(strings)),
            include: include_stop_str,
            at: ROOT,
            text: String::new(),
            given: 0,
            certain: 0,
            stopped: None,
        })
    }

    /// Adds text. Returns the text that can be shown now, which follows the text returned before.
    pub fn push(&mut self, piece: &str) -> &str {
        self.take(piece, true)
    }

    /// As [`StopMatcher::push`], but a string that ends in this text does not count. (One that begins in it and ends in
    /// a later text does.) For the beginning of an output: not to be called after [`StopMatcher::push`].
    pub fn pass(&mut self, piece: &str) -> &str {
        self.take(piece, false)
    }

    /// Ends the text and returns what was held back; nothing if a string was found.
    pub fn finish(&mut self) -> &str {
        self.certain = self.text.len();
        self.give()
    }

    /// Text that is held back.
    pub fn held(&self) -> &str {
        &self.text[self.certain..]
    }

    /// Index of the string that was found.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// [`StopMatcher::push`] if strings that end in this text count, else [`StopMatcher::pass`].
    pub(super) fn take(&mut self, piece: &str, counts: bool) -> &str {
        if self.stopped.is_some() {
            return "";
        }
        self.forget();
        let start = self.text.len();
        self.text.push_str(piece);
        self.read(start, counts);
        self.give()
    }

    /// Reads `text[start..]`: moves `at` along it, and then `certain` to where the held text begins. Ends with the
    /// first string that is found, if they count, by cutting the text: at the string's beginning, or at its end.
    fn read(&mut self, start: usize, counts: bool) {
        // exercise l4.stop
        for end in start + 1..=self.text.len() {
            self.at = self.automaton.step(self.at, self.text.as_bytes()[end - 1]);
            if let Some(found) = self.automaton.found(self.at).filter(|_| counts) {
                let cut = if self.include { end } else { end - found.len as usize };
                self.text.truncate(cut);
                self.certain = cut;
                self.stopped = Some(found.number as usize);
                return;
            }
        }
        // A string that is shown anyway need not be waited for.
        let held = if self.include { 0 } else { self.automaton.open(self.at, counts) };
        self.certain = self.text.len() - held;
        // end of exercise
    }

    /// Text that is certain and was not returned yet.
    fn give(&mut self) -> &str {
        let from = std::mem::replace(&mut self.given, self.certain);
        &self.text[from..self.certain]
    }

    /// Drops text that was returned, once it is at least as long as the text behind it, which must be moved. So each
    /// byte is moved a constant number of times, amortised.
    fn forget(&mut self) {
        if self.given >= self.text.len() - self.given {
            self.text.drain(..self.given);
            self.certain -= self.given;
            self.given = 0;
        }
    }
}
