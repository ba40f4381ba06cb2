//! GGUF metadata: a flat list of keys with typed values.

use super::cursor::{Cursor, Span};
use super::error::{Found, GgufError};

/// The longest key the format allows, bytes.
const MAX_KEY: u64 = 65_535;
/// How deep arrays may nest; llama.cpp's files do not nest them at all.
const MAX_DEPTH: usize = 4;
/// The least a metadata pair can take: key length, type, a value of one byte.
const MIN_PAIR: usize = 8 + 4 + 1;

/// The thirteen value types; the discriminants are the format's.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [ValueType; 13] = {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64]
    };

    fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(id as usize).copied()
    }

    /// A name for messages, e.g. `"u32"`.
    pub const fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }

    /// Bytes per value, `None` where it depends on the value.
    const fn size(self) -> Option<u64> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }
}

/// One metadata value. Strings and arrays are views into the file.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Promised to be UTF-8 by the format; checked by [`Metadata::str`] and its kin.
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array value: elements of one type, decoded as they are asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    element: ValueType,
    len: usize,
    bytes: &'a [u8],
}

/// Why a value cannot be read; the caller adds the key.
enum Bad {
    Type(u32),
    Depth,
    Bool,
    Bytes(GgufError),
}

impl From<GgufError> for Bad {
    fn from(error: GgufError) -> Self {
        Bad::Bytes(error)
    }
}

impl Bad {
    fn at_key(self, key: &[u8]) -> GgufError {
        let key = String::from_utf8_lossy(key).into_owned();
        match self {
            Bad::Type(id) => GgufError::UnknownValueType { key, id },
            Bad::Depth => GgufError::NestedTooDeep { key, most: MAX_DEPTH },
            Bad::Bool => GgufError::BadBool { key },
            Bad::Bytes(error) => error,
        }
    }
}

impl<'a> Value<'a> {
    /// Reads one value, and so checks it: the same code validates a file and decodes it later.
    fn read(cursor: &mut Cursor<'a>, ty: ValueType, depth: usize) -> Result<Self, Bad> {
        const WHAT: &str = "metadata value";
        Ok(match ty {
            ValueType::String => Value::String(cursor.string("metadata string")?),
            ValueType::Array => Value::Array(Array::read(cursor, depth)?),
            fixed => {
                let size = fixed.size().unwrap_or(8);
                let mut raw = [0u8; 8];
                raw[..size as usize].copy_from_slice(cursor.take(size, WHAT)?);
                // Little-endian: the low bytes come first, whatever the width.
                let bits = u64::from_le_bytes(raw);
                match fixed {
                    ValueType::U8 => Value::U8(bits as u8),
                    ValueType::I8 => Value::I8(bits as i8),
                    ValueType::U16 => Value::U16(bits as u16),
                    ValueType::I16 => Value::I16(bits as i16),
                    ValueType::U32 => Value::U32(bits as u32),
                    ValueType::I32 => Value::I32(bits as i32),
                    ValueType::F32 => Value::F32(f32::from_bits(bits as u32)),
                    ValueType::I64 => Value::I64(bits as i64),
                    ValueType::F64 => Value::F64(f64::from_bits(bits)),
                    ValueType::Bool if bits > 1 => return Err(Bad::Bool),
                    ValueType::Bool => Value::Bool(bits == 1),
                    _ => Value::U64(bits),
                }
            }
        })
    }

    /// What kind of value this is.
    pub fn kind(&self) -> Found {
        Found::One(match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(a) => return Found::ArrayOf(a.element),
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        })
    }

    /// The number, if this is an integer of any width.
    pub fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// The number, if this is a floating-point value of either width.
    pub fn float(&self) -> Option<f32> {
        match *self {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }
}

impl<'a> Array<'a> {
    fn read(cursor: &mut Cursor<'a>, depth: usize) -> Result<Self, Bad> {
        if depth >= MAX_DEPTH {
            return Err(Bad::Depth);
        }
        let id = cursor.u32("array element type")?;
        let element = ValueType::from_id(id).ok_or(Bad::Type(id))?;
        let count = cursor.u64("array length")?;
        // A string takes 8 bytes at least, an inner array 12.
        let least = element.size().unwrap_or(8);
        let len = cursor.check_count("array length", count, least as usize)?;
        let start = cursor.at();
        match element.size() {
            Some(size) => {
                let bytes = cursor.take(count * size, "array")?;
                if element == ValueType::Bool && bytes.iter().any(|b| *b > 1) {
                    return Err(Bad::Bool);
                }
            }
            None => {
                for _ in 0..len {
                    Value::read(cursor, element, depth + 1)?;
                }
            }
        }
        let bytes = &cursor.file()[start..cursor.at()];
        Ok(Array { element, len, bytes })
    }

    /// The type of the elements.
    pub fn element(&self) -> ValueType {
        self.element
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let mut cursor = Cursor::new(self.bytes);
        let element = self.element;
        // The bytes were read once already, so no read here comes back empty-handed.
        (0..self.len).map_while(move |_| Value::read(&mut cursor, element, 0).ok())
    }
}

/// Where a key and its value are.
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
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let at = cursor.at();
        let key = cursor.short_string("metadata key", MAX_KEY)?;
        let what = "metadata key";
        std::str::from_utf8(key.of(file)).map_err(|_| GgufError::NameNotUtf8 { what, at })?;
        let id = cursor.u32("metadata type")?;
        let ty = ValueType::from_id(id).ok_or_else(|| Bad::Type(id).at_key(key.of(file)))?;
        let value =
            cursor.span(|c| Value::read(c, ty, 0).map_err(|bad| bad.at_key(key.of(file))))?;
        entries.push(Entry { key, ty, value });
    }
    entries.sort_unstable_by_key(|e| e.key.of(file));
    match entries.windows(2).find(|pair| pair[0].key.of(file) == pair[1].key.of(file)) {
        Some(twice) => Err(GgufError::DuplicateKey {
            key: String::from_utf8_lossy(twice[0].key.of(file)).into_owned(),
        }),
        None => Ok(entries),
    }
}

/// The metadata of a file, with getters that say which key is wrong and how.
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

    /// How many keys there are.
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

    /// The value of a key, if there is one.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        let at = self.entries.binary_search_by(|e| e.key.of(self.file).cmp(key.as_bytes())).ok()?;
        decode(self.file, &self.entries[at])
    }

    fn need(&self, key: &str) -> Result<Value<'a>, GgufError> {
        self.get(key).ok_or_else(|| GgufError::MissingKey { key: key.into() })
    }

    /// Turns "no such key" into `None` and leaves every other error:
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
            Value::Array(array) if fits(array.element) => Ok(array),
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
