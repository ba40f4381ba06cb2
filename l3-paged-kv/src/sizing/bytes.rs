//! Sizes as people write them.
//!
//! | unit | is |
//! | --- | --- |
//! | `KiB MiB GiB TiB`, and the letters alone as capitals: `K M G T` | powers of 1024 |
//! | `KB MB GB TB`, and the letters alone in lower case: `k m g t` | powers of 1000 |
//! | `B`, or none | bytes |
//!
//! Letters alone are read as vLLM reads them; units of two and three letters may be written in either
//! case.

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Displayed in binary units with two decimals: `10.55 GiB`, `2 MiB`, `4096 B`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A size given by a user, and its precision.
///
/// `10.55GiB` is rarely 11,327,976,243.2 bytes: it is a number that was rounded to two decimals. So the number of
/// blocks in it is rounded too, to the nearest instead of down, as
/// long as that stays within what rounding left open (half of the last decimal). 10.55 GiB in blocks of
/// 2 MiB is then 5,402 blocks, which are in turn displayed as 10.55 GiB, and not 5,401 and most of
/// another. Sizes without a decimal point are exact and never exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    bytes: u64,
    /// Half of the last decimal, in bytes.
    slack: u64,
}

impl Budget {
    /// Exact budget: `bytes`, never exceeded.
    pub fn exact(bytes: u64) -> Self {
        Self { bytes, slack: 0 }
    }

    /// Size as given.
    pub fn bytes(self) -> Bytes {
        Bytes(self.bytes)
    }

    /// Number of pieces of `size` bytes that the budget holds.
    pub fn pieces_of(self, size: u64) -> u64 {
        if size == 0 {
            return 0;
        }
        // exercise l3.sizing
        let (whole, rest) = (self.bytes / size, self.bytes % size);
        let missing = size - rest;
        let nearer = missing <= rest && missing <= self.slack;
        whole + u64::from(nearer)
        // end of exercise
    }
}

/// Error of parsing a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a size: {why}; write a number and a unit, such as 10.55GiB, 512MiB or 2GB (KiB MiB GiB TiB or \
     K M G T count in 1024s, KB MB GB TB or k m g t in 1000s, no unit means bytes)"
)]
pub struct ParseBytesError {
    text: String,
    why: &'static str,
}

/// Parses a size: see [`Budget`] for what `10.55GiB` means.
///
/// # Errors
/// [`ParseBytesError`] for text that is not a number, has an unknown unit, or is too large.
pub fn parse_bytes(text: &str) -> Result<Bytes, ParseBytesError> {
    text.parse()
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, ParseBytesError> {
        Ok(text.parse::<Budget>()?.bytes())
    }
}

/// More decimals than any size needs.
const DECIMALS: usize = 12;

impl FromStr for Budget {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, ParseBytesError> {
        let error = |why| ParseBytesError { text: text.chars().take(80).collect(), why };
        let trimmed = text.trim();
        let end = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.'));
        let (number, unit) = trimmed.split_at(end.unwrap_or(trimmed.len()));
        let unit = unit_of(unit.trim_start()).ok_or_else(|| error("there is no such unit"))?;

        // Digits with the point taken out, over a power of ten: no float rounds anything here.
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && decimals.is_empty() {
            return Err(error("it does not begin with a number"));
        }
        if decimals.contains('.') {
            return Err(error("a number has one decimal point"));
        }
        if decimals.len() > DECIMALS {
            return Err(error("a number has at most 12 decimals"));
        }
        let too_large = || error("it is larger than any memory");
        let digits = format!("0{whole}{decimals}").parse::<u128>().map_err(|_| too_large())?;
        let ten = 10u128.pow(decimals.len() as u32);
        let bytes = digits.checked_mul(unit).ok_or_else(too_large)? / ten;
        let bytes = u64::try_from(bytes).map_err(|_| too_large())?;
        let slack = if decimals.is_empty() { 0 } else { unit / ten / 2 };
        Ok(Self { bytes, slack: slack as u64 })
    }
}

fn unit_of(text: &str) -> Option<u128> {
    let power = |letter: char| "bkmgt".find(letter.to_ascii_lowercase()).map(|p| p as u32);
    let mut letters = text.chars();
    let Some(letter) = letters.next() else { return Some(1) };
    let power = power(letter)?;
    let rest = letters.as_str();
    let base: u128 = match () {
        () if rest.is_empty() && (letter.is_ascii_uppercase() || power == 0) => 1024,
        () if rest.is_empty() || (rest.eq_ignore_ascii_case("b") && power > 0) => 1000,
        () if rest.eq_ignore_ascii_case("ib") && power > 0 => 1024,
        () => return None,
    };
    Some(base.pow(power))
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Four digits of bytes are still read at a glance, and exact.
        if self.0 < 10 * 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut unit = 1u128 << 10;
        let mut name = "KiB";
        for (power, larger) in [(20, "MiB"), (30, "GiB"), (40, "TiB")] {
            // From 1023.995 on, two decimals say 1024.00.
            if hundredths(self.0, unit) >= 102_400 {
                (unit, name) = (1 << power, larger);
            }
        }
        let hundredths = hundredths(self.0, unit);
        let (whole, decimals) = (hundredths / 100, hundredths % 100);
        f.pad(&match u128::from(self.0) % unit {
            0 => format!("{whole} {name}"),
            _ => format!("{whole}.{decimals:02} {name}"),
        })
    }
}

/// Hundredths of a unit, rounded to the nearest.
fn hundredths(bytes: u64, unit: u128) -> u128 {
    (u128::from(bytes) * 100 + unit / 2) / unit
}
