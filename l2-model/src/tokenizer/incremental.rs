//! Ids to text, one token at a time.
//!
//! A token is not always whole characters: `é` may be two tokens of one byte each, an emoji four. A server
//! that decodes each token alone sends broken characters. One that decodes the whole output again after every
//! token does work that grows with the square of the output. [`Detokenizer`] keeps only the bytes that are
//! not yet text.
//!
//! Guarantee: the strings of all pushes and of [`Detokenizer::finish`], joined, are exactly
//! [`super::Tokenizer::decode`] of all ids, for any ids; and every returned string is whole code points.
//!
//! Text is held back as follows. With a byte-level vocabulary at most three bytes: the beginning of a UTF-8
//! sequence. With a SentencePiece vocabulary a run of byte tokens is held until it ends, since one invalid
//! byte turns the *whole* run into U+FFFD (the rule of Hugging Face's `ByteFallback` decoder).

use std::sync::Arc;

use super::error::Result;
use super::held::Held;
use super::pieces::{Joining, Piece, Pieces};

const REPLACEMENT: char = '\u{FFFD}';

/// Streaming decoder of one sequence, made by [`super::Tokenizer::detokenizer`]. It owns all that it needs,
/// so a request's state may hold it and move it between threads.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    pieces: Arc<Pieces>,
    skip_special: bool,
    /// Bytes received and not yet returned as text.
    held: Held,
    /// Text of the current push; its allocation is reused.
    text: String,
    /// Number of leading characters that may still be dropped.
    to_strip: usize,
}

impl Detokenizer {
    pub(super) fn new(pieces: Arc<Pieces>, skip_special: bool) -> Self {
        let to_strip = match *pieces.joining() {
            Joining::Pieces { strip: Some((_, count)), .. } => count,
            _ => 0,
        };
        Self { pieces, skip_special, held: Held::default(), text: String::new(), to_strip }
    }

    /// Takes the next token and returns the text that is now certain: often one word, empty while a character
    /// is incomplete. The returned text is valid until the next call.
    ///
    /// Cost: the token's own bytes and at most three more, amortised; nothing grows with what was pushed before.
    ///
    /// # Errors
    /// [`super::TokenizerError::IdOutOfRange`]; the state is then as before the call.
    pub fn push(&mut self, id: u32) -> Result<&str> {
        self.text.clear();
        self.take(id)?;
        Ok(&self.text)
    }

    /// Ends the sequence and returns the text that was held back; an incomplete character becomes U+FFFD.
    pub fn finish(mut self) -> String {
        self.text.clear();
        self.end();
        self.text
    }

    /// Number of held bytes that were read or moved so far, each time they were: the measure of work by which
    /// the test checks that it is linear. Counted in `held`.
    pub fn work(&self) -> u64 {
        self.held.touched()
    }

    /// Appends to `self.text` instead of replacing it; shared with the full decode.
    pub(super) fn take(&mut self, id: u32) -> Result<()> {
        // The table is shared and immutable; cloning the Arc would be an atomic per token, so borrow fields apart.
        let Self { pieces, held, text, to_strip, .. } = self;
        let piece = pieces.get(id)?;
        if self.skip_special && pieces.is_special(id) {
            return Ok(());
        }
        // exercise l2.detokenizer
        match (pieces.joining(), piece) {
            (Joining::ByteLevel, Piece::Bytes(bytes)) => {
                held.extend(bytes);
                lossy_prefix(held, text);
            }
            (_, Piece::Fallback(byte)) => held.push(byte),
            (Joining::Pieces { strip, .. }, Piece::Bytes(bytes)) => {
                let start = text.len();
                end_of_run(held, text);
                // Piece text comes from a String, so it is always valid UTF-8.
                text.push_str(&String::from_utf8_lossy(bytes));
                drop_leading(*strip, to_strip, text, start);
            }
        }
        Ok(())
        // end of exercise
    }

    /// Flushes into `self.text`.
    pub(super) fn end(&mut self) {
        let Self { pieces, held, text, to_strip, .. } = self;
        // exercise l2.detokenizer
        match *pieces.joining() {
            Joining::ByteLevel => {
                // Only the beginning of a sequence is ever left, and a truncated sequence is one U+FFFD.
                if !held.is_empty() {
                    text.push(REPLACEMENT);
                    held.clear();
                }
            }
            Joining::Pieces { strip, .. } => {
                let start = text.len();
                end_of_run(held, text);
                drop_leading(strip, to_strip, text, start);
            }
        }
        // end of exercise
    }

    /// The text collected by [`Self::take`] and [`Self::end`].
    pub(super) fn into_text(self) -> String {
        self.text
    }
}

/// Moves all of `held` that can no longer change into `text`, invalid sequences as U+FFFD by the "maximal
/// subpart" rule of the Unicode standard (section 3.9), which `String::from_utf8_lossy` follows too. At most
/// three bytes remain: a sequence that the next token may complete.
fn lossy_prefix(held: &mut Held, text: &mut String) {
    // exercise l2.detokenizer
    let bytes = held.look();
    let mut at = 0;
    let done = loop {
        match std::str::from_utf8(&bytes[at..]) {
            Ok(valid) => {
                text.push_str(valid);
                break bytes.len();
            }
            Err(error) => {
                let good = at + error.valid_up_to();
                // Valid by the error's own word; the lossy conversion only borrows.
                text.push_str(&String::from_utf8_lossy(&bytes[at..good]));
                match error.error_len() {
                    Some(bad) => {
                        text.push(REPLACEMENT);
                        at = good + bad;
                    }
                    None => break good,
                }
            }
        }
    };
    held.drop_first(done);
    // end of exercise
}

/// A finished run of byte tokens: its text if all of it is UTF-8, else one U+FFFD for each byte.
fn end_of_run(held: &mut Held, text: &mut String) {
    // exercise l2.detokenizer
    let run = held.look();
    match std::str::from_utf8(run) {
        Ok(valid) => text.push_str(valid),
        Err(_) => text.extend(std::iter::repeat_n(REPLACEMENT, run.len())),
    }
    held.clear();
    // end of exercise
}

/// Drops leading characters of the sequence: `text[start..]` is its next part, `left` the number that may
/// still be dropped.
fn drop_leading(strip: Option<(char, usize)>, left: &mut usize, text: &mut String, start: usize) {
    let Some((what, _)) = strip else { return };
    // exercise l2.detokenizer
    let fresh = &text[start..];
    let dropped = fresh.chars().take(*left).take_while(|&c| c == what).count();
    if dropped < fresh.chars().take(*left).count() {
        *left = 0; // A character that stays ends the stripping for good.
    } else {
        *left -= dropped;
    }
    text.drain(start..start + dropped * what.len_utf8());
    // end of exercise
}
