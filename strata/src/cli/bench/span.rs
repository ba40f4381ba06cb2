//! A range of numbers, as the command line says it.

use std::str::FromStr;

/// Numbers from one to another, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The smallest, at least 1.
    pub(super) from: usize,
    /// The largest.
    pub(super) to: usize,
}

impl FromStr for Span {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let number =
            |s: &str| s.trim().parse::<usize>().map_err(|e| format!("{e}: write 100,1024"));
        let (from, to) = match s.split_once(',') {
            Some((from, to)) => (number(from)?, number(to)?),
            None => (number(s)?, number(s)?),
        };
        if from == 0 || from > to {
            return Err("must be two numbers A,B with 1 <= A <= B".to_owned());
        }
        Ok(Self { from, to })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_two_numbers_in_order_or_one() {
        assert_eq!("3,9".parse(), Ok(Span { from: 3, to: 9 }));
        assert_eq!("5".parse(), Ok(Span { from: 5, to: 5 }));
        for wrong in ["0,4", "9,3", "a", "1,b", ""] {
            assert!(wrong.parse::<Span>().is_err(), "{wrong}");
        }
    }
}
