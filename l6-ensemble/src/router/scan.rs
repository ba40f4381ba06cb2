//! Splitting text into tokens: words, numbers and punctuation, for rules and features alike.

/// A token of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// An identifier or a word: ASCII letters, digits and `_`, not beginning with a digit; or a run of bytes that are
    /// not ASCII.
    Word {
        /// Byte at which the word begins.
        at: usize,
        /// The word.
        text: &'a str,
    },
    /// A number, with what is attached to it (`0x1f`, `1e9`, `42u`). Its value is not evidence.
    Number,
    /// One character of punctuation.
    Punct(u8),
    /// The end of a line.
    Line,
}

/// Tokens of a text, in one pass. White space separates tokens and is dropped, except for the end of a line.
#[derive(Clone, Debug)]
pub struct Tokens<'a> {
    text: &'a str,
    at: usize,
}

/// Splits a text into tokens.
pub fn tokens(text: &str) -> Tokens<'_> {
    Tokens { text, at: 0 }
}

impl<'a> Tokens<'a> {
    /// The text after the last token.
    pub fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }
}

/// Class of a byte.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Byte {
    Space,
    Line,
    Digit,
    Letter,
    Other,
    Punct,
}

/// The class of each byte.
static BYTES: [Byte; 256] = {
    let mut table = [Byte::Punct; 256];
    let mut b = 0;
    while b < 256 {
        table[b] = match b as u8 {
            b'\n' => Byte::Line,
            0..=b' ' | 0x7f => Byte::Space,
            b'0'..=b'9' => Byte::Digit,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => Byte::Letter,
            0x80.. => Byte::Other,
            _ => Byte::Punct,
        };
        b += 1;
    }
    table
};

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            let at = self.at;
            self.at += 1;
            let run = |classes: &[Byte]| {
                let rest = &bytes[at..];
                at + rest
                    .iter()
                    .position(|b| !classes.contains(&BYTES[usize::from(*b)]))
                    .unwrap_or(rest.len())
            };
            match BYTES[usize::from(byte)] {
                Byte::Space => {}
                Byte::Line => return Some(Token::Line),
                Byte::Punct => return Some(Token::Punct(byte)),
                Byte::Digit => {
                    self.at = run(&[Byte::Digit, Byte::Letter]);
                    return Some(Token::Number);
                }
                Byte::Letter => {
                    self.at = run(&[Byte::Digit, Byte::Letter]);
                    return Some(Token::Word { at, text: &self.text[at..self.at] });
                }
                Byte::Other => {
                    self.at = run(&[Byte::Other]);
                    return Some(Token::Word { at, text: &self.text[at..self.at] });
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_numbers_and_punctuation_are_told_apart() {
        let word = |at, text| Token::Word { at, text };
        assert_eq!(
            tokens("std::x_1 =\n 0x1f;é").collect::<Vec<_>>(),
            [
                word(0, "std"),
                Token::Punct(b':'),
                Token::Punct(b':'),
                word(5, "x_1"),
                Token::Punct(b'='),
                Token::Line,
                Token::Number,
                Token::Punct(b';'),
                word(17, "é"),
            ]
        );
    }

    proptest! {
        #[test]
        fn every_word_is_where_it_says(text in "\\PC{0,60}") {
            let mut end = 0;
            for token in tokens(&text) {
                if let Token::Word { at, text: word } = token {
                    prop_assert!(at >= end && !word.is_empty());
                    prop_assert_eq!(&text[at..at + word.len()], word);
                    end = at + word.len();
                }
            }
        }
    }
}
