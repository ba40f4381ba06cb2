//! Durations as text, for configurations and reports: `"300ms"`, `"2s"`, `"5m"`, `"24h"`.
//!
//! The grammar is the one of the server's flags: a number with `ms`, `s`, `m` or `h`, or a number of seconds. For
//! serde, name the module on a field: `#[serde(with = "l6_ensemble::duration_text")]`, or `#[serde(default, with =
//! "l6_ensemble::duration_text::option")]` for an `Option<Duration>`.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use l6_ensemble::duration_text;
//!
//! assert_eq!(duration_text::parse("300ms")?, Duration::from_millis(300));
//! assert_eq!(duration_text::format(Duration::from_secs(300)), "5m");
//! # Ok::<(), duration_text::DurationError>(())
//! ```

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

/// Longest duration: a year, which fits every clock.
pub const MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// No number, or an unknown unit.
    #[error(
        "{0:?} is not a duration: write a number with ms, s, m or h, such as \"300ms\" or \"2s\""
    )]
    Syntax(String),
    /// Negative, not finite, or longer than [`MAX`].
    #[error("the duration {0:?} is out of range: it must be from 0 to a year")]
    Range(String),
}

/// Parses a duration.
///
/// # Errors
/// [`DurationError`] for any other text.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let syntax = || DurationError::Syntax(shortened(text));
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..).unwrap_or_default() {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(syntax()),
    };
    let number: f64 = digits.trim().parse().map_err(|_| syntax())?;
    match Duration::try_from_secs_f64(number * unit) {
        Ok(duration) if duration <= MAX => Ok(duration),
        _ => Err(DurationError::Range(shortened(text))),
    }
}

/// Formats a duration in the largest unit that needs no fraction; a part of a millisecond is a fraction of `ms`.
pub fn format(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds, duration.subsec_nanos()) {
        (0, 0) => "0s".into(),
        (_, 0) if seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
        (_, 0) if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        (_, 0) => format!("{seconds}s"),
        (_, nanos) if nanos % 1_000_000 == 0 => format!("{}ms", duration.as_millis()),
        _ => format!("{}ms", duration.as_secs_f64() * 1e3),
    }
}

/// The beginning of a text, for an error.
fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Writes a duration as text.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format(*duration))
}

/// Reads a duration from text.
///
/// # Errors
/// A value that is no text, or [`DurationError`].
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    from.deserialize_str(Text)
}

/// Reads a duration; an error says what a duration looks like.
struct Text;

impl de::Visitor<'_> for Text {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"500ms\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
        parse(text).map_err(E::custom)
    }
}

/// The same for a duration that may be absent.
pub mod option {
    use super::{Deserialize, Deserializer, Duration, Serializer, deserialize as read, format};

    /// Writes a duration as text, or nothing.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => to.serialize_some(&format(*duration)),
            None => to.serialize_none(),
        }
    }

    /// Reads a duration from text, or nothing.
    ///
    /// # Errors
    /// A value that is no text, or [`super::DurationError`].
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        #[derive(Deserialize)]
        struct Text(#[serde(deserialize_with = "read")] Duration);
        Ok(Option::<Text>::deserialize(from)?.map(|Text(duration)| duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_duration_has_a_unit_or_is_in_seconds() {
        for (text, ms) in [
            ("0", 0),
            ("30", 30_000),
            ("0.5s", 500),
            ("300ms", 300),
            ("2 m", 120_000),
            ("24h", 86_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn other_text_is_an_error_that_shows_the_form() {
        for text in ["", "s", "1d", "1h1m", "µs", "nan", "inf"] {
            assert_eq!(parse(text), Err(DurationError::Syntax(text.into())), "{text}");
        }
        for text in ["-1s", "1e30h", "9000h"] {
            assert_eq!(parse(text), Err(DurationError::Range(text.into())), "{text}");
        }
        assert!(parse(&"x".repeat(1 << 16)).unwrap_err().to_string().len() < 200);
    }

    proptest! {
        #[test]
        fn what_is_formatted_parses_to_the_same(micros in 0_u64..366 * 24 * 3600 * 1_000_000) {
            for duration in [
                Duration::from_micros(micros % 10_000_000),
                Duration::from_millis(micros / 1000),
                Duration::from_secs(micros / 1_000_000),
            ] {
                let text = format(duration);
                let parsed = parse(&text).unwrap();
                prop_assert!(parsed.abs_diff(duration) < Duration::from_nanos(1000), "{}", text);
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,20}") {
            let _ = parse(&text);
        }
    }
}
