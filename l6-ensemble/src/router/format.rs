//! The file of a linear classifier.
//!
//! ```text
//! "STRATA-R"             magic, 8 bytes
//! u32                    version, 1; all numbers are little-endian
//! u8, u8                 bits, number of classes C
//! C x (u8, bytes)        names: length and UTF-8
//! C x f32, C x f32, f32  scale, bias, temperature
//! 2^bits x C x i8        weights
//! 32 bytes               SHA-256 of all that is before
//! ```

use std::collections::HashSet;

use sha2::{Digest, Sha256};

use super::linear::{BITS, LinearClassifier, MAX_CLASSES};

const MAGIC: &[u8; 8] = b"STRATA-R";
const VERSION: u32 = 1;
const DIGEST: usize = 32;

/// Why bytes are not a classifier.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The file begins with other bytes.
    #[error("this is not a router classifier: make one with `strata router train`")]
    Magic,
    /// A version that this program cannot read.
    #[error("the classifier has version {0}, this program reads version {VERSION}: train it again")]
    Version(u32),
    /// The file ends too soon.
    #[error("the classifier is cut off in its {0}: copy the file again")]
    Truncated(&'static str),
    /// The file goes on after its end.
    #[error("the classifier has {0} bytes after its end: copy the file again")]
    TrailingBytes(usize),
    /// A field of the header has a value that no classifier has.
    #[error("the classifier's {field} is invalid ({value}): train it again")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// The contents are not what was written.
    #[error("the classifier's checksum does not match its contents: copy the file again")]
    Checksum,
}

impl LinearClassifier {
    /// Writes the classifier as its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.weights.len() + 1024);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend([self.bits as u8, self.classes.len() as u8]);
        for class in &self.classes {
            out.push(class.len() as u8);
            out.extend(class.as_bytes());
        }
        for value in self.scale.iter().chain(&self.bias).chain([&self.temperature]) {
            out.extend(value.to_le_bytes());
        }
        out.extend(self.weights.iter().map(|w| *w as u8));
        let digest = Sha256::digest(&out);
        out.extend(digest);
        out
    }

    /// Reads the bytes of a file. Nothing is allocated that the file does not hold.
    ///
    /// # Errors
    /// [`FormatError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut rest = bytes;
        if take(&mut rest, MAGIC.len(), "magic").map_err(|_| FormatError::Magic)? != MAGIC {
            return Err(FormatError::Magic);
        }
        let version = u32::from_le_bytes(array(&mut rest, "header")?);
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        let [bits, count] = array(&mut rest, "header")?;
        let (bits, count) = (u32::from(bits), usize::from(count));
        if !BITS.contains(&bits) {
            return Err(invalid("number of bits", bits));
        }
        if !(2..=MAX_CLASSES).contains(&count) {
            return Err(invalid("number of classes", count));
        }
        let mut classes = Vec::with_capacity(count);
        let mut names = HashSet::new();
        for _ in 0..count {
            let [len] = array(&mut rest, "class names")?;
            let name = take(&mut rest, usize::from(len), "class names")?;
            let name = str::from_utf8(name).map_err(|e| invalid("class name", e))?;
            if name.is_empty() || !names.insert(name) {
                return Err(invalid(
                    "class name",
                    format!("{name:?}, which is empty or a duplicate"),
                ));
            }
            classes.push(name.to_owned());
        }
        let scale = floats(&mut rest, count, "scale", |x| x >= 0.0)?;
        let bias = floats(&mut rest, count, "bias", |_| true)?;
        let temperature = floats(&mut rest, 1, "temperature", |x| x > 0.0)?[0];
        let weights = take(&mut rest, count << bits, "weights")?;
        let weights = weights.iter().map(|b| *b as i8).collect();
        let digest = take(&mut rest, DIGEST, "checksum")?;
        if !rest.is_empty() {
            return Err(FormatError::TrailingBytes(rest.len()));
        }
        if Sha256::digest(&bytes[..bytes.len() - DIGEST])[..] != *digest {
            return Err(FormatError::Checksum);
        }
        Ok(Self { classes, bits, weights, scale, bias, temperature })
    }
}

fn invalid(field: &'static str, value: impl ToString) -> FormatError {
    FormatError::Field { field, value: value.to_string() }
}

fn take<'a>(rest: &mut &'a [u8], n: usize, what: &'static str) -> Result<&'a [u8], FormatError> {
    let (taken, left) = rest.split_at_checked(n).ok_or(FormatError::Truncated(what))?;
    *rest = left;
    Ok(taken)
}

fn array<const N: usize>(rest: &mut &[u8], what: &'static str) -> Result<[u8; N], FormatError> {
    let (taken, left) = rest.split_first_chunk().ok_or(FormatError::Truncated(what))?;
    *rest = left;
    Ok(*taken)
}

/// Reads `n` finite numbers that pass a check.
fn floats(
    rest: &mut &[u8],
    n: usize,
    what: &'static str,
    valid: impl Fn(f32) -> bool,
) -> Result<Vec<f32>, FormatError> {
    let mut values = Vec::with_capacity(n);
    for _ in 0..n {
        let value = f32::from_le_bytes(array(rest, what)?);
        if !value.is_finite() || !valid(value) {
            return Err(invalid(what, value));
        }
        values.push(value);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn small() -> LinearClassifier {
        LinearClassifier {
            classes: vec!["a".into(), "reject".into()],
            bits: 8,
            weights: (0..512).map(|i| (i * 7 % 255 - 127) as i8).collect(),
            scale: vec![0.5, 0.25],
            bias: vec![-1.0, 1.0],
            temperature: 1.5,
        }
    }

    /// Bytes with a checksum that matches, so that the check behind it is what fails.
    fn signed(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.truncate(bytes.len() - DIGEST);
        let digest = Sha256::digest(&bytes);
        bytes.extend(digest);
        bytes
    }

    #[test]
    fn a_written_classifier_is_read_back() {
        assert_eq!(LinearClassifier::from_bytes(&small().to_bytes()), Ok(small()));
    }

    #[test]
    fn a_file_cut_off_anywhere_is_rejected() {
        let bytes = small().to_bytes();
        for len in 0..bytes.len() {
            let error = LinearClassifier::from_bytes(&bytes[..len]).unwrap_err();
            let expected = matches!(error, FormatError::Magic | FormatError::Truncated(_));
            assert!(expected, "{len} bytes: {error}");
        }
    }

    #[test]
    fn bytes_after_the_end_are_rejected() {
        let mut bytes = small().to_bytes();
        bytes.push(0);
        assert_eq!(LinearClassifier::from_bytes(&bytes), Err(FormatError::TrailingBytes(1)));
    }

    #[test]
    fn hostile_headers_are_rejected_before_anything_is_allocated() {
        let with = |at: usize, value: &[u8]| {
            let mut bytes = small().to_bytes();
            bytes[at..at + value.len()].copy_from_slice(value);
            LinearClassifier::from_bytes(&signed(bytes)).unwrap_err()
        };
        assert_eq!(with(0, b"GGUF"), FormatError::Magic);
        assert_eq!(with(8, &[9]), FormatError::Version(9));
        let field = |error: FormatError| match error {
            FormatError::Field { field, .. } => field,
            other => panic!("{other}"),
        };
        assert_eq!(field(with(12, &[25])), "number of bits");
        assert_eq!(field(with(12, &[255])), "number of bits");
        assert_eq!(field(with(13, &[1])), "number of classes");
        assert_eq!(field(with(13, &[255])), "number of classes");
        assert_eq!(field(with(15, &[0xff])), "class name");
        let numbers = 14 + 2 + 7;
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(field(with(numbers, &bad.to_le_bytes())), "scale");
            assert_eq!(field(with(numbers + 8, &bad.to_le_bytes())), "bias");
        }
        for bad in [0.0, -1.0, f32::NAN] {
            assert_eq!(field(with(numbers + 16, &f32::to_le_bytes(bad))), "temperature");
        }
        // 2^24 buckets are announced, 512 bytes are there.
        assert_eq!(with(12, &[24]), FormatError::Truncated("weights"));
        let twice = LinearClassifier { classes: vec!["a".into(); 2], ..small() };
        let error = LinearClassifier::from_bytes(&twice.to_bytes()).unwrap_err();
        assert_eq!(field(error), "class name");
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_noticed(at in 0..590usize, value: u8) {
            let mut bytes = small().to_bytes();
            let at = at % bytes.len();
            prop_assume!(bytes[at] != value);
            bytes[at] = value;
            prop_assert!(LinearClassifier::from_bytes(&bytes).is_err());
        }

        #[test]
        fn any_bytes_give_a_classifier_or_an_error(tail in prop::collection::vec(any::<u8>(), 0..700)) {
            let bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &tail].concat();
            prop_assert!(LinearClassifier::from_bytes(&bytes).is_err());
        }
    }
}
