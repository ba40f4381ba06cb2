//! Incremental JSON scanner: the start and end of keys and values, and the first byte that is not JSON.
//!
//! A model writes a call token by token, and the server sends its arguments as output deltas. So the scanner
//! must know at every byte whether that byte is still within the arguments; a parser of the whole text would
//! be too late.

/// A reader of one JSON value, byte by byte. It is strict (RFC 8259) about everything but pairs of surrogates.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Scanner {
    /// Open lists and objects, outermost first: true for an object.
    open: Vec<bool>,
    state: State,
}

/// Effect of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Continues a key, a value or whitespace.
    Within,
    /// Quote before a key.
    KeyStart,
    /// Quote behind a key.
    KeyEnd,
    /// First byte of a value.
    ValueStart,
    /// Last byte of a value. (The end of a number is known only at the next byte, so a number has no such
    /// mark.)
    ValueEnd,
}

/// Error of a byte that cannot be part of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoJson;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Expects a value.
    #[default]
    Value,
    /// Expects a value or the list's end.
    FirstItem,
    /// Expects a key or the object's end.
    FirstKey,
    /// Expects a key.
    Key,
    /// Expects a colon.
    Colon,
    /// Expects a comma, or the end of the innermost list or object.
    Comma,
    /// In a string.
    Text { key: bool },
    /// Behind a backslash.
    Escape { key: bool },
    /// Expects so many hexadecimal digits of an escape.
    Hex { key: bool, left: u8 },
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
    /// In a number.
    Number(Number),
}

/// Position in a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

impl Scanner {
    /// Number of open lists and objects.
    pub(super) fn depth(&self) -> usize {
        self.open.len()
    }

    /// Whether the value (a list or an object) has ended.
    pub(super) fn done(&self) -> bool {
        self.open.is_empty() && self.state == State::Comma
    }

    /// Reads a byte.
    ///
    /// # Errors
    /// [`NoJson`] if the byte cannot be part of the value. No byte may be read after an error or after the
    /// end.
    pub(super) fn read(&mut self, byte: u8) -> Result<Mark, NoJson> {
        let blank = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match self.state {
            State::Text { key } => return self.text(byte, key),
            State::Escape { key } => {
                self.state = match byte {
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => State::Text { key },
                    b'u' => State::Hex { key, left: 4 },
                    _ => return Err(NoJson),
                };
            }
            State::Hex { key, left } if byte.is_ascii_hexdigit() => {
                let text = State::Text { key };
                self.state = if left > 1 { State::Hex { key, left: left - 1 } } else { text };
            }
            State::Word([next, rest @ ..]) if *next == byte => {
                self.state = if rest.is_empty() { State::Comma } else { State::Word(rest) };
                return Ok(if rest.is_empty() { Mark::ValueEnd } else { Mark::Within });
            }
            State::Number(number) => match number.read(byte)? {
                Some(number) => self.state = State::Number(number),
                None => {
                    self.state = State::Comma;
                    return self.read(byte);
                }
            },
            _ if blank && !matches!(self.state, State::Hex { .. } | State::Word(_)) => {}
            State::Value => return self.value(byte),
            State::FirstItem if byte == b']' => return Ok(self.close()),
            State::FirstItem => return self.value(byte),
            State::FirstKey if byte == b'}' => return Ok(self.close()),
            State::FirstKey | State::Key if byte == b'"' => {
                self.state = State::Text { key: true };
                return Ok(Mark::KeyStart);
            }
            State::Colon if byte == b':' => self.state = State::Value,
            State::Comma => return self.comma(byte),
            _ => return Err(NoJson),
        }
        Ok(Mark::Within)
    }

    fn text(&mut self, byte: u8, key: bool) -> Result<Mark, NoJson> {
        match byte {
            b'"' => {
                self.state = if key { State::Colon } else { State::Comma };
                return Ok(if key { Mark::KeyEnd } else { Mark::ValueEnd });
            }
            b'\\' => self.state = State::Escape { key },
            0..0x20 => return Err(NoJson),
            _ => {}
        }
        Ok(Mark::Within)
    }

    fn value(&mut self, byte: u8) -> Result<Mark, NoJson> {
        self.state = match byte {
            b'{' => State::FirstKey,
            b'[' => State::FirstItem,
            b'"' => State::Text { key: false },
            b't' => State::Word(b"rue"),
            b'f' => State::Word(b"alse"),
            b'n' => State::Word(b"ull"),
            b'-' => State::Number(Number::Minus),
            b'0' => State::Number(Number::Zero),
            b'1'..=b'9' => State::Number(Number::Digits),
            _ => return Err(NoJson),
        };
        if matches!(byte, b'{' | b'[') {
            self.open.push(byte == b'{');
        }
        Ok(Mark::ValueStart)
    }

    fn comma(&mut self, byte: u8) -> Result<Mark, NoJson> {
        match (self.open.last(), byte) {
            (Some(true), b',') => self.state = State::Key,
            (Some(false), b',') => self.state = State::Value,
            (Some(true), b'}') | (Some(false), b']') => return Ok(self.close()),
            _ => return Err(NoJson),
        }
        Ok(Mark::Within)
    }

    fn close(&mut self) -> Mark {
        self.open.pop();
        self.state = State::Comma;
        Mark::ValueEnd
    }
}

impl Number {
    /// Next position in the number; `None` if the byte is not part of the number.
    fn read(self, byte: u8) -> Result<Option<Self>, NoJson> {
        let next = match (self, byte) {
            (Self::Minus, b'0') => Self::Zero,
            (Self::Minus, b'1'..=b'9') | (Self::Digits, b'0'..=b'9') => Self::Digits,
            (Self::Zero | Self::Digits, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Zero | Self::Digits | Self::Fraction, b'e' | b'E') => Self::E,
            (Self::E, b'+' | b'-') => Self::Sign,
            (Self::E | Self::Sign | Self::Exponent, b'0'..=b'9') => Self::Exponent,
            (Self::Zero | Self::Digits | Self::Fraction | Self::Exponent, _) => return Ok(None),
            _ => return Err(NoJson),
        };
        Ok(Some(next))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Returns the number of bytes that are read before the value ends or is no longer JSON, and whether it
    /// ended.
    fn scan(text: &str) -> (usize, bool) {
        let mut scanner = Scanner::default();
        for (at, byte) in text.bytes().enumerate() {
            if scanner.read(byte).is_err() {
                return (at, false);
            }
            if scanner.done() {
                return (at + 1, true);
            }
        }
        (text.len(), false)
    }

    #[test]
    fn a_value_ends_where_it_ends() {
        for text in [
            "{}",
            "[]",
            r#"{"a": [1, -0.5e+7, true, null, "x\"}]\u00e9"], "b": {}}"#,
            " { \"a\\\\\" : \"\" } ",
            "[[[[]]]]",
        ] {
            let end = text.trim_end().len();
            assert_eq!(scan(&format!("{text}}}]")), (end, true), "{text}");
            assert!(serde_json::from_str::<Value>(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_told_at_its_first_byte() {
        for (text, at) in [
            ("{'a': 1}", 1),
            ("{\"a\" 1}", 5),
            ("{\"a\": 01}", 7),
            ("{\"a\": 1,}", 8),
            ("[1 2]", 3),
            ("[1,]", 3),
            ("{\"a\": tru }", 9),
            ("{\"a\": \"\n\"}", 7),
            ("{\"a\": \"\\x\"}", 8),
            ("{\"a\": \"\\u00g\"}", 11),
            ("{\"a\": 1.}", 8),
            ("{]", 1),
            ("[1}", 2),
            ("x", 0),
        ] {
            assert_eq!(scan(text), (at, false), "{text}");
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_parser_that_sees_the_whole(text in r#"[\[{]([\[\]{},: "\\0-9aeE+.\-]|"a"|"b":|true|null|\\u00e9){0,12}[\]}]?"#) {
            let whole = serde_json::from_str::<Value>(&text).is_ok();
            let (read, done) = scan(&text);
            let rest_is_blank = text[read..].trim().is_empty();
            prop_assert_eq!(whole, done && rest_is_blank, "{}", text);
        }
    }
}
