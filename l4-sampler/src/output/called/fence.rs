//! Finds the first fenced block of shell commands, in streamed text.

use super::{MAX_COMMAND_BYTES, bounded, command_name};

/// Maximum number of bytes of a line that are read: the rest of a longer one cannot change what it begins with.
const MAX_LINE_BYTES: usize = 4096;

/// Languages of a fence whose block is shell commands.
const SHELLS: [&str; 5] = ["bash", "sh", "shell", "zsh", "console"];

/// Reads text line by line.
#[derive(Clone, Debug, Default)]
pub(super) struct Fence {
    /// Beginning of the current line.
    line: String,
    block: Option<Block>,
    /// Command that the first block which has one begins with.
    name: Option<String>,
    /// Lines of that block.
    commands: String,
    /// Whether the block has ended.
    ended: bool,
}

/// A block that is open.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Number of backticks that opened it: as many end it, or more.
    ticks: usize,
    shell: bool,
}

impl Fence {
    pub(super) fn push(&mut self, text: &str) {
        for piece in text.split_inclusive('\n') {
            if self.ended {
                return;
            }
            let (piece, ends) = match piece.strip_suffix('\n') {
                Some(piece) => (piece, true),
                None => (piece, false),
            };
            let room = piece.floor_char_boundary(MAX_LINE_BYTES.saturating_sub(self.line.len()));
            self.line.push_str(&piece[..room]);
            if ends {
                self.end_line();
            }
        }
    }

    /// The name of the first command, and the block. A block without an end has been cut off, and counts.
    pub(super) fn finish(mut self) -> Option<(String, String)> {
        if !self.ended {
            self.end_line();
        }
        Some((self.name?, bounded(&self.commands)?))
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let text = line.trim();
        let ticks = text.len() - text.trim_start_matches('`').len();
        match self.block {
            None if ticks >= 3 => {
                let language = text[ticks..].split_whitespace().next().unwrap_or_default();
                let shell = SHELLS.iter().any(|shell| shell.eq_ignore_ascii_case(language));
                // Backticks behind it: code within a line of text.
                if !text[ticks..].contains('`') {
                    self.block = Some(Block { ticks, shell });
                }
            }
            None => {}
            Some(block) if ticks >= block.ticks && text.len() == ticks => {
                self.block = None;
                self.ended = self.name.is_some();
                if !self.ended {
                    self.commands.clear();
                }
            }
            Some(Block { shell: true, .. }) => {
                if self.name.is_none() {
                    self.name = command_name(text).map(str::to_owned);
                }
                if self.commands.len() <= MAX_COMMAND_BYTES {
                    self.commands.push_str(&line);
                    self.commands.push('\n');
                }
            }
            Some(_) => {}
        }
    }
}
