//! Stop strings in text that comes in pieces.

use std::sync::Arc;

use super::automaton::{Automaton, ROOT};
use crate::error::ParamError;

/// Finds stop strings in text that comes in pieces. What could become a stop string is held back, so that no part of one
/// is ever shown; all else is shown at once. (With `include_stop_str` nothing needs to wait.)
///
/// The string that *ends* first wins: what comes after its end need not be known. Of those that end together it is the
/// one that begins first. The text is cut where that one begins (or ends, with `include_stop_str`), and nothing behind
/// the cut is ever shown.
///
/// Each byte of the text costs a constant, amortised; nothing is allocated once the buffer has grown to the longest
/// piece and the longest stop string. A clone shares what was built from the strings.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    automaton: Arc<Automaton>,
    include: bool,
    /// Where in the automaton the text so far has led.
    at: u32,
    /// The end of the text so far. `text[..given]` was returned before, `text[given..certain]` is returned next,
    /// `text[certain..]` is held back.
    text: String,
    given: usize,
    certain: usize,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// A matcher for these texts.
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

    /// The text goes on. Returns what may be shown now, behind what was returned before.
    pub fn push(&mut self, piece: &str) -> &str {
        self.take(piece, true)
    }

    /// As [`StopMatcher::push`], but a string that ends in this piece does not count. (One that begins in it and ends in a
    /// later one does.) For the beginning of a text: once strings count, they count.
    pub fn pass(&mut self, piece: &str) -> &str {
        self.take(piece, false)
    }

    /// No more text comes: what was held back for it. Nothing when a string was found.
    pub fn finish(&mut self) -> &str {
        self.certain = self.text.len();
        self.give()
    }

    /// What is held back.
    pub fn held(&self) -> &str {
        &self.text[self.certain..]
    }

    /// Which string was found.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// [`StopMatcher::push`] if what ends in this piece counts, else [`StopMatcher::pass`].
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

    /// What is certain and was not returned yet.
    fn give(&mut self) -> &str {
        let from = std::mem::replace(&mut self.given, self.certain);
        &self.text[from..self.certain]
    }

    /// Drops what was given out, unless moving what stays behind it would cost more than it did to bring it here.
    fn forget(&mut self) {
        if self.given >= self.text.len() - self.given {
            self.text.drain(..self.given);
            self.certain -= self.given;
            self.given = 0;
        }
    }
}
