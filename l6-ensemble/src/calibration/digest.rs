//! The digest that stands for a request's input.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};

/// Salted SHA-256 of a request's input. Its text is 64 hexadecimal digits.
///
/// Equal inputs have equal digests under one salt, so that repetitions can be counted. Short prompts could be guessed
/// from a digest without a salt. With a random salt for each process nothing can be guessed; a salt from the
/// configuration makes digests of several processes comparable, and must then be kept secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InputDigest([u8; 32]);

impl InputDigest {
    /// Digest of the parts of an input. Lengths are hashed too, so that other divisions of the same text differ.
    pub fn new<'a>(salt: &[u8], parts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        add(salt);
        parts.into_iter().for_each(|part| add(part.as_bytes()));
        Self(hash.finalize().into())
    }

    /// Whether the request is in a sample of this fraction of all requests. The draw for a `purpose` depends on the
    /// digest only: the same input is always in the sample or never, a larger fraction contains a smaller one, and
    /// samples for different purposes are independent.
    pub fn sampled(&self, purpose: &str, fraction: f64) -> bool {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(purpose.as_bytes());
        let bytes: [u8; 32] = hash.finalize().into();
        let [a, b, c, d, e, f, ..] = bytes;
        // 48 bits, which an f64 holds exactly, so that a fraction of 1 is every request.
        let draw = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) as f64;
        draw < fraction * (1_u64 << 48) as f64
    }
}

impl fmt::Display for InputDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text that is no digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an input digest is 64 hexadecimal digits")]
pub struct InvalidDigest;

impl FromStr for InputDigest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Err(InvalidDigest);
        }
        for (i, byte) in bytes.iter_mut().enumerate() {
            let digits = text.get(2 * i..2 * i + 2).ok_or(InvalidDigest)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| InvalidDigest)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for InputDigest {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for InputDigest {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}
