//! What a question asks for, how an answer is read, and when it is right.

use serde_json::{Value, json};

use super::arithmetic::evaluate;
use super::show::{grouped, joined, significant};

/// The largest whole number an `f64` tells from its neighbours: what is read must be below it.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// An answer, of the kind the question asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A count or an index.
    Whole(i64),
    /// A whole number of bytes: `128 KiB` is understood.
    Bytes(i64),
    /// A real number, of which three significant digits are asked.
    Real(f64),
    /// Yes or no.
    Yes(bool),
    /// Whole numbers in order, as many as the question says.
    List(Vec<i64>),
    /// Whole numbers in order; how many is part of what is asked.
    Rows(Vec<i64>),
    /// A name; case and a common beginning (first field) may be left out.
    Name(&'static str, String),
}

/// An answer as it was read.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// For [`Answer::Whole`], [`Answer::Bytes`] and [`Answer::Real`].
    Number(f64),
    /// For [`Answer::Yes`].
    Yes(bool),
    /// For [`Answer::List`] and [`Answer::Rows`].
    List(Vec<i64>),
    /// For [`Answer::Name`].
    Name(String),
}

impl Answer {
    /// What to type, in words.
    pub fn form(&self) -> String {
        match self {
            Self::Whole(_) => "a whole number".into(),
            Self::Bytes(_) => "the exact number of bytes; 128 KiB is a way to write one".into(),
            Self::Real(_) => "a number; three significant digits, or a fraction".into(),
            Self::Yes(_) => "yes or no".into(),
            Self::List(list) => format!("{} whole numbers with spaces between them", list.len()),
            Self::Rows(_) => "whole numbers with spaces between them".into(),
            Self::Name(..) => "a name".into(),
        }
    }

    /// Reads typed text as an answer of this kind.
    ///
    /// # Errors
    /// Why it cannot be one.
    pub fn read(&self, text: &str) -> Result<Given, String> {
        let text = text.trim();
        match self {
            Self::Whole(_) => whole(text).map(Given::Number),
            Self::Bytes(_) => bytes(text).map(Given::Number),
            Self::Real(_) => evaluate(text).map(Given::Number),
            Self::Yes(_) => match text.to_lowercase().as_str() {
                "yes" | "y" | "true" => Ok(Given::Yes(true)),
                "no" | "n" | "false" => Ok(Given::Yes(false)),
                _ => Err(format!("yes or no is asked for, not `{text}`")),
            },
            Self::List(wanted) => match list(text)? {
                list if list.len() == wanted.len() => Ok(Given::List(list)),
                list => {
                    let (n, came) = (wanted.len(), list.len());
                    Err(format!("{n} whole numbers are asked for, and this is {came}"))
                }
            },
            Self::Rows(_) => list(text).map(Given::List),
            Self::Name(..) if text.is_empty() => Err("a name is asked for".into()),
            Self::Name(..) => Ok(Given::Name(text.trim_matches(['`', '"', '\'']).into())),
        }
    }

    /// Whether what was given is this answer.
    pub fn is(&self, given: &Given) -> bool {
        match (self, given) {
            (Self::Whole(a) | Self::Bytes(a), Given::Number(b)) => *a as f64 == *b,
            (Self::Real(a), Given::Number(b)) => (a - b).abs() <= third_digit(*a),
            (Self::Yes(a), Given::Yes(b)) => a == b,
            (Self::List(a) | Self::Rows(a), Given::List(b)) => a == b,
            (Self::Name(prefix, a), Given::Name(b)) => {
                let (a, b) = (a.to_lowercase(), b.to_lowercase());
                let short = |name: &str| name.strip_prefix(prefix).unwrap_or(name).to_string();
                short(&a) == short(&b)
            }
            _ => false,
        }
    }

    /// This answer, as read from a person who gives exactly it.
    pub fn given(&self) -> Given {
        match self {
            Self::Whole(n) | Self::Bytes(n) => Given::Number(*n as f64),
            Self::Real(v) => Given::Number(*v),
            Self::Yes(yes) => Given::Yes(*yes),
            Self::List(list) | Self::Rows(list) => Given::List(list.clone()),
            Self::Name(_, name) => Given::Name(name.clone()),
        }
    }

    /// For tests and work sheets.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Whole(n) | Self::Bytes(n) => json!(n),
            Self::Real(v) => json!(v),
            Self::Yes(yes) => json!(yes),
            Self::List(list) | Self::Rows(list) => json!(list),
            Self::Name(_, name) => json!(name),
        }
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(n) => f.write_str(&grouped(*n)),
            Self::Bytes(n) => write!(f, "{} bytes", grouped(*n)),
            Self::Real(v) => f.write_str(&significant(*v)),
            Self::Yes(yes) => f.write_str(if *yes { "yes" } else { "no" }),
            Self::List(list) | Self::Rows(list) => f.write_str(&joined(list)),
            Self::Name(_, name) => f.write_str(name),
        }
    }
}

/// One unit in the third significant digit: generous enough for an answer that was cut off in
/// place of rounded.
fn third_digit(value: f64) -> f64 {
    if value == 0.0 { 1e-9 } else { 10f64.powf(value.abs().log10().floor() - 2.0) * 1.000_001 }
}

fn whole(text: &str) -> Result<f64, String> {
    let value = match thousands(text) {
        Some(digits) => evaluate(&digits)?,
        None => evaluate(text)?,
    };
    // `3 * 100^(1/2)` is a whole number on paper, and only nearly one in floating point.
    let nearest = value.round();
    if nearest.abs() >= EXACT {
        return Err("that is larger than anything in this course".into());
    }
    if (value - nearest).abs() > 1e-9 * nearest.abs().max(1.0) {
        return Err(format!("a whole number is asked for, and this is {}", significant(value)));
    }
    Ok(nearest)
}

fn list(text: &str) -> Result<Vec<i64>, String> {
    let parts = text.trim_matches(['[', ']', '(', ')']);
    let parts = parts.split(|c: char| c.is_whitespace() || c == ',' || c == ';');
    parts.filter(|p| !p.is_empty()).map(|p| whole(p).map(|v| v as i64)).collect()
}

/// `131,072` without its commas; `None` for anything else, such as `0,5` or `1,23`.
fn thousands(text: &str) -> Option<String> {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (first, rest) = unsigned.split_once(',')?;
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let right = (1..=3).contains(&first.len()) && digits(first) && !first.starts_with('0');
    let groups = rest.split(',').all(|group| group.len() == 3 && digits(group));
    (right && groups).then(|| text.replace(',', ""))
}

/// A number with a unit behind it or without.
fn bytes(text: &str) -> Result<f64, String> {
    const UNITS: [(&str, f64); 10] = [
        ("kib", 1024.0),
        ("mib", 1_048_576.0),
        ("gib", 1_073_741_824.0),
        ("kb", 1e3),
        ("mb", 1e6),
        ("gb", 1e9),
        ("bytes", 1.0),
        ("byte", 1.0),
        ("bits", 0.125),
        ("b", 1.0),
    ];
    let lower = text.to_lowercase();
    for (unit, size) in UNITS {
        if let Some(number) = lower.strip_suffix(unit) {
            let number = number.trim_end();
            let number = thousands(number).unwrap_or(number.into());
            return whole(&format!("({number}) * {size}"));
        }
    }
    whole(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(answer: &Answer, text: &str) -> Result<bool, String> {
        answer.read(text).map(|given| answer.is(&given))
    }

    #[test]
    fn whole_numbers_may_have_separators_or_be_arithmetic() {
        let answer = Answer::Whole(131_072);
        for text in ["131072", "131_072", "131,072", " 2^17 ", "128*1024", "131072.0", "1.31072e5"]
        {
            assert_eq!(right(&answer, text), Ok(true), "{text}");
        }
        assert_eq!(right(&answer, "131,073"), Ok(false));
        assert_eq!(right(&Answer::Whole(-3), "-3"), Ok(true));
        assert!(right(&answer, "0,131").unwrap_err().contains("decimal point"));
        assert!(right(&answer, "10/3").unwrap_err().contains("this is 3.333"));
        assert!(right(&answer, "1e300").unwrap_err().contains("larger"));
        assert!(right(&answer, "128 KiB").unwrap_err().contains("not part of a number"));
    }

    #[test]
    fn bytes_may_have_a_unit() {
        let answer = Answer::Bytes(131_072);
        for text in ["131072", "128 KiB", "128kib", "0.125 MiB", "131,072 bytes", "131072 B"] {
            assert_eq!(right(&answer, text), Ok(true), "{text}");
        }
        assert_eq!(right(&answer, "1,048,576 bits"), Ok(true));
        assert_eq!(right(&answer, "128 kB"), Ok(false));
        assert!(right(&answer, "KiB").is_err());
    }

    #[test]
    fn three_digits_suffice_rounded_or_cut_off_and_two_do_not() {
        let answer = Answer::Real(2.0 / 3.0);
        for text in ["0.667", "0.666", "2/3", "0.66667", "6.67e-1"] {
            assert_eq!(right(&answer, text), Ok(true), "{text}");
        }
        for text in ["0.67", "0.66", "0.669", "-0.667"] {
            assert_eq!(right(&answer, text), Ok(false), "{text}");
        }
        assert_eq!(right(&Answer::Real(0.0), "0"), Ok(true));
        assert_eq!(right(&Answer::Real(0.0), "0.01"), Ok(false));
        assert_eq!(right(&Answer::Real(0.3), "3 * 10000^(-2/8)"), Ok(true));
    }

    #[test]
    fn lists_are_counted_and_may_have_brackets() {
        let answer = Answer::List(vec![3, 5]);
        for text in ["3 5", "3, 5", "[3,5]", "(3; 5)"] {
            assert_eq!(right(&answer, text), Ok(true), "{text}");
        }
        assert_eq!(right(&answer, "5 3"), Ok(false));
        assert!(right(&answer, "3").unwrap_err().contains("2 whole numbers are asked for"));
        assert!(right(&answer, "3 x").is_err());
        // Where the number of numbers is part of the question, a wrong one is a wrong answer.
        assert_eq!(right(&Answer::Rows(vec![3, 5]), "3 4 5"), Ok(false));
        assert_eq!(right(&Answer::Rows(vec![3, 5]), "[3, 5]"), Ok(true));
    }

    #[test]
    fn a_name_may_lack_the_beginning_that_all_have() {
        let answer = Answer::Name("model.", "model.norm.weight".into());
        for text in ["model.norm.weight", "`norm.weight`", "Model.Norm.weight"] {
            assert_eq!(right(&answer, text), Ok(true), "{text}");
        }
        assert_eq!(right(&answer, "norm"), Ok(false));
        assert!(right(&answer, " ").is_err());
    }

    #[test]
    fn yes_and_no_are_told_from_everything_else() {
        assert_eq!(right(&Answer::Yes(true), "Y"), Ok(true));
        assert_eq!(right(&Answer::Yes(true), "no"), Ok(false));
        assert!(right(&Answer::Yes(true), "perhaps").is_err());
    }
}
