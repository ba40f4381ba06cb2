//! Numbers as people write them: `131_072`, `1/3`, `1e-3`, `2*30*3*64*2`, `3 * 100^(-2/8)`.
//!
//! The idea is what is asked for, not the multiplication, so an answer may be the arithmetic
//! itself. A small recursive descent:
//!
//! ```text
//! sum     = product { ("+" | "-") product }
//! product = signed { ("*" | "/") signed }
//! signed  = "-" signed | power
//! power   = atom [ "^" signed ]
//! atom    = number | "(" sum ")" | ("sqrt" | "ln" | "exp") "(" sum ")"
//! ```

/// The longest text that is read; it also bounds how deep brackets can nest.
const LONGEST: usize = 200;

/// The value of an arithmetic expression.
///
/// # Errors
/// What is wrong with it, for the person who typed it.
pub fn evaluate(text: &str) -> Result<f64, String> {
    if text.len() > LONGEST {
        return Err("that is too long for a number".into());
    }
    let text = text.replace(['×', '·'], "*").replace('−', "-").to_lowercase();
    let mut reader = Reader { rest: &text };
    let value = reader.sum()?;
    match reader.peek() {
        None if value.is_finite() => Ok(value),
        None => Err(format!("`{}` has no finite value", text.trim())),
        Some(',') => Err("write a decimal point, and no commas".into()),
        Some(_) => Err(format!("`{}` is not part of a number", reader.rest.trim())),
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let there = self.peek() == Some(wanted);
        if there {
            self.rest = &self.rest[wanted.len_utf8()..];
        }
        there
    }

    fn sum(&mut self) -> Result<f64, String> {
        let mut value = self.product()?;
        loop {
            if self.eat('+') {
                value += self.product()?;
            } else if self.eat('-') {
                value -= self.product()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<f64, String> {
        let mut value = self.signed()?;
        loop {
            if self.eat('*') {
                value *= self.signed()?;
            } else if self.eat('/') {
                value /= self.signed()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn signed(&mut self) -> Result<f64, String> {
        if self.eat('-') {
            return Ok(-self.signed()?);
        }
        self.eat('+');
        let base = self.atom()?;
        if self.eat('^') {
            return Ok(base.powf(self.signed()?));
        }
        Ok(base)
    }

    fn atom(&mut self) -> Result<f64, String> {
        for (name, of) in
            [("sqrt", f64::sqrt as fn(f64) -> f64), ("ln", f64::ln), ("exp", f64::exp)]
        {
            self.peek();
            if let Some(rest) = self.rest.strip_prefix(name) {
                self.rest = rest;
                if !self.eat('(') {
                    return Err(format!("write {name}(..), with brackets"));
                }
                return Ok(of(self.closed()?));
            }
        }
        if self.eat('(') {
            return self.closed();
        }
        self.number()
    }

    fn closed(&mut self) -> Result<f64, String> {
        let value = self.sum()?;
        if self.eat(')') { Ok(value) } else { Err("a bracket is not closed".into()) }
    }

    fn number(&mut self) -> Result<f64, String> {
        self.peek();
        let bytes = self.rest.as_bytes();
        let digits = |from: usize| {
            bytes[from..].iter().take_while(|b| b.is_ascii_digit() || **b == b'_').count()
        };
        let mut end = digits(0);
        if bytes.get(end) == Some(&b'.') {
            end += 1 + digits(end + 1);
        }
        if bytes.get(end) == Some(&b'e') {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let exponent = digits(end + 1 + sign);
            if exponent > 0 {
                end += 1 + sign + exponent;
            }
        }
        let (number, rest) = self.rest.split_at(end);
        let value = number.replace('_', "").parse();
        let here = if self.rest.is_empty() { "the end" } else { self.rest };
        let value = value.map_err(|_| format!("a number is expected where `{here}` stands"))?;
        self.rest = rest;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_people_write_them() {
        for (text, value) in [
            ("131_072", 131_072.0),
            (" 1/3 ", 1.0 / 3.0),
            ("0.333", 0.333),
            (".5", 0.5),
            ("1e-3", 1e-3),
            ("2.5E2", 250.0),
            ("-3", -3.0),
            ("2 × 30 * 3*64", 11_520.0),
            ("3 * 10000^(-2/8)", 0.3),
            ("2^3^2", 512.0),
            ("-2^2", -4.0),
            ("1 - 2 - 3", -4.0),
            ("(1+2)*3", 9.0),
            ("3/sqrt(12.25)", 3.0 / 3.5),
            ("exp(ln(2))", 2.0),
        ] {
            let got = evaluate(text).unwrap();
            assert!((got - value).abs() < 1e-12 * value.abs().max(1.0), "{text} gave {got}");
        }
    }

    #[test]
    fn what_is_no_number_says_why() {
        for (text, why) in [
            ("", "a number is expected where `the end` stands"),
            ("abc", "a number is expected where `abc` stands"),
            ("3 apples", "`apples` is not part of a number"),
            ("0,5", "write a decimal point"),
            ("1/0", "no finite value"),
            ("sqrt(-1)", "no finite value"),
            ("(1", "a bracket is not closed"),
            ("sqrt 2", "with brackets"),
            ("1..2", "not part of a number"),
            ("é", "a number is expected"),
        ] {
            let got = evaluate(text).unwrap_err();
            assert!(got.contains(why), "{text:?} gave {got:?}");
        }
        assert!(evaluate(&"(".repeat(100_000)).unwrap_err().contains("too long"));
        assert!(evaluate(&"(".repeat(LONGEST)).is_err());
        assert!(evaluate(&"-".repeat(LONGEST)).is_err());
    }
}
