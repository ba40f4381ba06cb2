//! Numbers and lists as the questions print them.

use std::fmt::Display;

use crate::screen::wrap;

/// `131072` as `131,072`.
pub fn grouped(n: i64) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut out = String::from(if n < 0 { "-" } else { "" });
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Four significant digits, without zeros at the end.
pub fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor();
    if !(-5.0..9.0).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    let text = format!("{value:.*}", (3.0 - magnitude).max(0.0) as usize);
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').into();
    }
    text
}

/// `3 5 7`.
pub fn joined<T: Display>(items: &[T]) -> String {
    separated(items, " ")
}

/// `3, 5, 7`.
pub fn commas<T: Display>(items: &[T]) -> String {
    separated(items, ", ")
}

/// `3 + 5 + 7` and the like.
pub fn separated<T: Display>(items: &[T], between: &str) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    items.join(between)
}

/// Bytes in hexadecimal, sixteen to a line.
pub fn hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| {
        let bytes: Vec<String> = line.iter().map(|b| format!("{b:02x}")).collect();
        bytes.join(" ")
    };
    let lines: Vec<String> = bytes.chunks(16).map(line).collect();
    lines.join("\n")
}

/// A sentence cut into lines that fit a narrow terminal.
pub fn wrapped(sentence: &str) -> String {
    wrap(sentence, 78).join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_as_the_book_writes_them() {
        assert_eq!(
            [0, 999, 1000, 23_040, -1_234_567].map(grouped),
            ["0", "999", "1,000", "23,040", "-1,234,567"]
        );
        assert_eq!(
            [0.3, 2.0 / 3.0, 1.0, 123.456, 1e-7, 0.0, 12_345.6].map(significant),
            ["0.3", "0.6667", "1", "123.5", "1.000e-7", "0", "12346"]
        );
        assert_eq!(hex(&[0, 255]), "00 ff");
    }

    #[test]
    fn sentences_break_between_words() {
        assert_eq!(wrapped("a short one"), "a short one");
        let text = "word ".repeat(40);
        let lines = wrapped(text.trim_end());
        assert!(lines.lines().all(|l| l.len() <= 78 && l.ends_with("word")));
        assert_eq!(lines.split_whitespace().count(), 40);
    }
}
