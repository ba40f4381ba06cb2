//! Bytes of every token, and the rule that turns a run of tokens into text.
//!
//! In Hugging Face's `tokenizers`, decoding is a chain of string rewrites over the whole id list. Nearly
//! every decoder-only model uses one of two chains, and both are simple on the **bytes** of each token:
//!
//! * *byte-level* (GPT-2 and its descendants, Llama 3, Qwen): a token is spelled in an alphabet of 256 printable
//!   characters, one per byte. Map them back, join, and read the result as UTF-8 with U+FFFD for what is not.
//! * *SentencePiece* (Llama 1 and 2, Mistral): a token is text in which `▁` stands for a space; what the vocabulary
//!   cannot spell is written as byte tokens `<0x00>`..`<0xFF>`. A run of byte tokens that is valid UTF-8 is that
//!   text, and one that is not becomes one U+FFFD **per byte**. The very first space is dropped again.
//!
//! The table is built once; [`super::Detokenizer`] and [`super::Tokenizer::decode`] both use it.

use serde_json::Value;

use super::error::{Result, TokenizerError};

const SUPPORTED_DECODERS: &str =
    "ByteLevel; Sequence of Replace (string pattern), ByteFallback, Fuse, Strip (leading)";

/// Rule by which the bytes of consecutive tokens become text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Joining {
    /// All bytes in a row are one UTF-8 stream; invalid sequences are replaced as by
    /// `String::from_utf8_lossy`.
    ByteLevel,
    /// Text tokens unchanged; runs of byte tokens all or nothing; then up to `count` leading `what` are
    /// dropped.
    Pieces { byte_fallback: bool, strip: Option<(char, usize)> },
}

/// A decoder read from `tokenizer.json`: first a rewrite of each token's spelling, then the joining.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DecodeRule {
    /// `(pattern, replacement)`, in order.
    pub replace: Vec<(String, String)>,
    /// Rule for the tokens after these rewrites.
    pub joining: Joining,
}

impl DecodeRule {
    /// GPT-2's rule.
    pub fn byte_level() -> Self {
        Self { replace: Vec::new(), joining: Joining::ByteLevel }
    }

    /// The rule of Llama 2's tokenizer. `prefix_space`: encoding adds a leading space, so decoding drops one.
    pub fn sentencepiece(prefix_space: bool) -> Self {
        Self {
            replace: vec![("▁".into(), " ".into())],
            joining: Joining::Pieces {
                byte_fallback: true,
                strip: prefix_space.then_some((' ', 1)),
            },
        }
    }

    /// Reads the `decoder` entry of a tokenizer.json.
    ///
    /// # Errors
    /// [`TokenizerError::Unsupported`] names the first step that is neither of the two chains.
    pub fn from_json(decoder: &Value) -> Result<Self> {
        let steps = match (kind(decoder), decoder.get("decoders")) {
            ("Sequence", Some(Value::Array(steps))) => steps.as_slice(),
            _ => std::slice::from_ref(decoder),
        };
        if let [only] = steps
            && kind(only) == "ByteLevel"
        {
            return Ok(Self::byte_level());
        }
        let (mut replace, mut byte_fallback, mut fused, mut strip) =
            (Vec::new(), false, false, None);
        for step in steps {
            // Each step rewrites the output of the one before, so the order matters.
            let text = |key: &str| step.get(key).and_then(Value::as_str);
            let number = |key: &str| step.get(key).and_then(Value::as_u64);
            match kind(step) {
                "Replace" if !byte_fallback && !fused && strip.is_none() => {
                    let pattern = step.pointer("/pattern/String").and_then(Value::as_str);
                    match (pattern, text("content")) {
                        (Some(from), Some(to)) if !from.is_empty() => {
                            replace.push((from.to_owned(), to.to_owned()))
                        }
                        _ => return Err(unsupported("Replace with a regex")),
                    }
                }
                "ByteFallback" if !byte_fallback && !fused && strip.is_none() => {
                    byte_fallback = true
                }
                "Fuse" if strip.is_none() => fused = true,
                "Strip" if fused && strip.is_none() && number("stop") == Some(0) => {
                    let what = text("content").and_then(|s| s.chars().next());
                    match (what, number("start")) {
                        (Some(what), Some(count)) => {
                            strip = Some((what, usize::try_from(count).unwrap_or(usize::MAX)))
                        }
                        _ => return Err(unsupported("Strip without content and start")),
                    }
                }
                other => return Err(unsupported(other)),
            }
        }
        Ok(Self { replace, joining: Joining::Pieces { byte_fallback, strip } })
    }
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or("none")
}

fn unsupported(found: &str) -> TokenizerError {
    TokenizerError::Unsupported {
        part: "decoder",
        found: found.to_owned(),
        supported: SUPPORTED_DECODERS,
    }
}

/// One token as the detokenizer uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Bytes that are the same at every position.
    Bytes(&'a [u8]),
    /// One byte of a byte-fallback run.
    Fallback(u8),
}

/// The bytes of all tokens, end to end in one allocation.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// `starts[id]..starts[id + 1]` are the bytes of `id`; one more entry than there are ids.
    starts: Vec<usize>,
    flags: Vec<u8>,
    joining: Joining,
}

const SPECIAL: u8 = 1;
const FALLBACK: u8 = 2;

impl Pieces {
    /// Builds the table for ids `0..count`. `spelling(id)` returns the vocabulary's string and whether the
    /// token is special; `None` is an unused id, which decodes to nothing.
    pub fn build(
        rule: DecodeRule,
        count: usize,
        spelling: impl Fn(u32) -> Option<(String, bool)>,
    ) -> Self {
        let DecodeRule { replace, joining } = rule;
        let mut table = Self {
            bytes: Vec::with_capacity(count * 8),
            starts: Vec::with_capacity(count + 1),
            flags: Vec::with_capacity(count),
            joining,
        };
        let alphabet = ByteAlphabet::new();
        table.starts.push(0);
        for id in 0..count as u32 {
            // exercise l2.pieces
            let mut flags = 0;
            if let Some((mut text, special)) = spelling(id) {
                if special {
                    flags |= SPECIAL;
                }
                for (from, to) in &replace {
                    if text.contains(from.as_str()) {
                        text = text.replace(from.as_str(), to);
                    }
                }
                match table.joining {
                    Joining::ByteLevel => alphabet.append(&text, &mut table.bytes),
                    Joining::Pieces { byte_fallback, .. } => {
                        match fallback_byte(&text).filter(|_| byte_fallback) {
                            Some(byte) => {
                                flags |= FALLBACK;
                                table.bytes.push(byte);
                            }
                            None => table.bytes.extend_from_slice(text.as_bytes()),
                        }
                    }
                }
            }
            table.flags.push(flags);
            table.starts.push(table.bytes.len());
            // end of exercise
        }
        table
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.flags.len()
    }

    pub fn joining(&self) -> &Joining {
        &self.joining
    }

    /// Token of `id`.
    pub fn get(&self, id: u32) -> Result<Piece<'_>> {
        let bytes = self.bytes(id)?;
        Ok(match (self.flags[id as usize] & FALLBACK != 0, bytes) {
            (true, &[byte]) => Piece::Fallback(byte),
            _ => Piece::Bytes(bytes),
        })
    }

    /// Bytes of token `id`.
    pub fn bytes(&self, id: u32) -> Result<&[u8]> {
        let i = id as usize;
        if i >= self.len() {
            return Err(TokenizerError::IdOutOfRange { id, vocab_size: self.len() });
        }
        Ok(&self.bytes[self.starts[i]..self.starts[i + 1]])
    }

    /// Whether `id` is a special token. False out of range.
    pub fn is_special(&self, id: u32) -> bool {
        self.flags.get(id as usize).is_some_and(|flags| flags & SPECIAL != 0)
    }
}

/// `<0xE2>` is the byte 0xE2.
fn fallback_byte(text: &str) -> Option<u8> {
    // exercise l2.pieces
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    // Asked for digits, since `from_str_radix` would read a sign too: `+F`.
    let digits = hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    digits.then(|| u8::from_str_radix(hex, 16).ok()).flatten()
    // end of exercise
}

/// GPT-2's printable stand-ins for the 256 bytes (`bytes_to_unicode` in its `encoder.py`): printable bytes
/// stand for themselves, the other 68 are U+0100, U+0101, ... in order. So `Ġ` is the space and `Ċ` the
/// newline.
pub(super) struct ByteAlphabet {
    /// Byte of U+0000..=U+0143; `None` where the character stands for no byte.
    bytes: [Option<u8>; 0x144],
}

impl ByteAlphabet {
    pub fn new() -> Self {
        // exercise l2.pieces
        let mut bytes = [None; 0x144];
        let mut spare = 0x100;
        for byte in 0..=255u8 {
            let prints = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
            let stand_in = if prints { usize::from(byte) } else { spare };
            spare += usize::from(!prints);
            bytes[stand_in] = Some(byte);
        }
        Self { bytes }
        // end of exercise
    }

    fn byte(&self, c: char) -> Option<u8> {
        self.bytes.get(c as usize).copied().flatten()
    }

    /// Appends the bytes `text` stands for. Text with any character outside the alphabet (an added token such as
    /// `<｜user｜>`) stands for itself.
    pub fn append(&self, text: &str, out: &mut Vec<u8>) {
        // exercise l2.pieces
        let before = out.len();
        for c in text.chars() {
            match self.byte(c) {
                Some(byte) => out.push(byte),
                None => {
                    out.truncate(before);
                    out.extend_from_slice(text.as_bytes());
                    return;
                }
            }
        }
        // end of exercise
    }
}
