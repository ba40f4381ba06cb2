//! GGUF metadata: a flat list of keys with typed values.

use super::cursor::{Cursor, Span};
use super::error::GgufError;
use super::value::{Array, Bad, Value, ValueType};

/// Maximum length of a key in the format, in bytes.
const MAX_KEY: u64 = 65_535;
/// Minimum size of a metadata pair: key length, type, a value of one byte.
const MIN_PAIR: usize = 8 + 4 + 1;

/// Position of a key and its value.
#[derive(Debug)]
pub(super) struct Entry {
    key: Span,
    ty: ValueType,
    value: Span,
}

/// Reads and checks `count` pairs; the result is sorted by key.
pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Entry>, GgufError> {
    let count = cursor.check_count("metadata count", count, MIN_PAIR)?;
    let file = cursor.file();
    let mut entries: Vec<Entry> = Vec::with_capacity(count);
    for _ in 0..count {
        // exercise l2.gguf
        let at = cursor.at();
        let key = cursor.short_string("metadata key", MAX_KEY)?;
        let what = "metadata key";
        std::str::from_utf8(key.of(file)).map_err(|_| GgufError::NameNotUtf8 { what, at })?;
        let id = cursor.u32("metadata type")?;
        let ty = ValueType::from_id(id).ok_or_else(|| Bad::Type(id).at_key(key.of(file)))?;
        let value =
            cursor.span(|c| Value::read(c, ty, 0).map_err(|bad| bad.at_key(key.of(file))))?;
        entries.push(Entry { key, ty, value });
        // end of exercise
    }
    entries.sort_unstable_by_key(|e| e.key.of(file));
    match entries.windows(2).find(|pair| pair[0].key.of(file) == pair[1].key.of(file)) {
        Some(twice) => Err(GgufError::DuplicateKey {
            key: String::from_utf8_lossy(twice[0].key.of(file)).into_owned(),
        }),
        None => Ok(entries),
    }
}

/// Metadata of a file, with getters whose errors name the key and the reason.
///
/// Writers disagree about integer widths, so integers of any width are accepted wherever the
/// value fits; an f64 is accepted for an f32.
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    file: &'a [u8],
    entries: &'a [Entry],
}

impl<'a> Metadata<'a> {
    pub(super) fn new(file: &'a [u8], entries: &'a [Entry]) -> Self {
        Metadata { file, entries }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys and values, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let file = self.file;
        self.entries.iter().filter_map(move |e| {
            let key = std::str::from_utf8(e.key.of(file)).ok()?;
            Some((key, decode(file, e)?))
        })
    }

    /// Value of a key, if the key exists.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        let at = self.entries.binary_search_by(|e| e.key.of(self.file).cmp(key.as_bytes())).ok()?;
        decode(self.file, &self.entries[at])
    }

    fn need(&self, key: &str) -> Result<Value<'a>, GgufError> {
        self.get(key).ok_or_else(|| GgufError::MissingKey { key: key.into() })
    }

    /// Turns "no such key" into `None` and returns every other error:
    /// `metadata.optional("llama.rope.freq_base", Metadata::f32)?`.
    ///
    /// # Errors
    /// Those of `getter`, but for [`GgufError::MissingKey`].
    pub fn optional<T>(
        &self,
        key: &str,
        getter: impl FnOnce(&Self, &str) -> Result<T, GgufError>,
    ) -> Result<Option<T>, GgufError> {
        match getter(self, key) {
            Ok(value) => Ok(Some(value)),
            Err(GgufError::MissingKey { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// An integer of any width, if it is not negative.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], [`GgufError::WrongType`], [`GgufError::OutOfRange`].
    pub fn u64(&self, key: &str) -> Result<u64, GgufError> {
        integer(key, self.need(key)?, "an unsigned integer")
    }

    /// A floating-point number.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], [`GgufError::WrongType`].
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        let value = self.need(key)?;
        value.float().ok_or_else(|| wrong(key, "a float", value))
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], [`GgufError::WrongType`].
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        match self.need(key)? {
            Value::Bool(value) => Ok(value),
            other => Err(wrong(key, "a bool", other)),
        }
    }

    /// A string.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], [`GgufError::WrongType`], [`GgufError::NotUtf8`].
    pub fn str(&self, key: &str) -> Result<&'a str, GgufError> {
        text(key, self.need(key)?, None)
    }

    /// An array of any element type.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], [`GgufError::WrongType`].
    pub fn array(&self, key: &str) -> Result<Array<'a>, GgufError> {
        match self.need(key)? {
            Value::Array(array) => Ok(array),
            other => Err(wrong(key, "an array", other)),
        }
    }

    /// An array of strings, borrowed from the file.
    ///
    /// # Errors
    /// As [`Metadata::str`], naming the element.
    pub fn str_array(&self, key: &str) -> Result<Vec<&'a str>, GgufError> {
        let array = self.array_of(key, "an array of strings", |e| e == ValueType::String)?;
        let texts = array.iter().enumerate();
        texts.map(|(i, v)| text(key, v, Some(i))).collect()
    }

    /// An array of integers of any width.
    ///
    /// # Errors
    /// As [`Metadata::u64`].
    pub fn i32_array(&self, key: &str) -> Result<Vec<i32>, GgufError> {
        const EXPECTED: &str = "an array of i32";
        let whole = |e| {
            use ValueType::*;
            matches!(e, U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64)
        };
        let array = self.array_of(key, EXPECTED, whole)?;
        array.iter().map(|v| integer(key, v, EXPECTED)).collect()
    }

    /// An array of floating-point numbers.
    ///
    /// # Errors
    /// As [`Metadata::f32`].
    pub fn f32_array(&self, key: &str) -> Result<Vec<f32>, GgufError> {
        let float = |e| matches!(e, ValueType::F32 | ValueType::F64);
        let array = self.array_of(key, "an array of f32", float)?;
        Ok(array.iter().filter_map(|v| v.float()).collect())
    }

    fn array_of(
        &self,
        key: &str,
        expected: &'static str,
        fits: impl Fn(ValueType) -> bool,
    ) -> Result<Array<'a>, GgufError> {
        match self.need(key)? {
            Value::Array(array) if fits(array.element()) => Ok(array),
            other => Err(wrong(key, expected, other)),
        }
    }
}

fn decode<'a>(file: &'a [u8], entry: &Entry) -> Option<Value<'a>> {
    Value::read(&mut Cursor::new(entry.value.of(file)), entry.ty, 0).ok()
}

fn wrong(key: &str, expected: &'static str, found: Value<'_>) -> GgufError {
    GgufError::WrongType { key: key.into(), expected, found: found.kind() }
}

fn integer<T: TryFrom<i128>>(
    key: &str,
    value: Value<'_>,
    expected: &'static str,
) -> Result<T, GgufError> {
    let value = value.integer().ok_or_else(|| wrong(key, expected, value))?;
    T::try_from(value).map_err(|_| GgufError::OutOfRange { key: key.into(), value, expected })
}

fn text<'a>(key: &str, value: Value<'a>, index: Option<usize>) -> Result<&'a str, GgufError> {
    match value {
        Value::String(bytes) => {
            std::str::from_utf8(bytes).map_err(|_| GgufError::NotUtf8 { key: key.into(), index })
        }
        other => Err(wrong(key, "a string", other)),
    }
}
