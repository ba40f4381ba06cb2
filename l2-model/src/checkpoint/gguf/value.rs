//! GGUF values: thirteen types, nested arrays included.

use super::cursor::Cursor;
use super::error::{Found, GgufError};

/// Maximum nesting depth of arrays; llama.cpp's files do not nest them.
const MAX_DEPTH: usize = 4;

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

    pub(super) fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(id as usize).copied()
    }

    /// Name for messages, e.g. `"u32"`.
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
    /// UTF-8 according to the format; checked by [`Metadata::str`](super::Metadata::str) and the like.
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array value: elements of one type, decoded on access.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    element: ValueType,
    len: usize,
    bytes: &'a [u8],
}

/// Reason why a value cannot be read; the caller adds the key.
pub(super) enum Bad {
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
    pub(super) fn at_key(self, key: &[u8]) -> GgufError {
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
    /// Reads one value, and so validates it: the same code validates a file and decodes values later.
    pub(super) fn read(cursor: &mut Cursor<'a>, ty: ValueType, depth: usize) -> Result<Self, Bad> {
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

    /// Type of this value.
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
        // A string takes at least 8 bytes, an inner array 12.
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

    /// Number of elements.
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
        // The bytes were read once already, so no read here fails.
        (0..self.len).map_while(move |_| Value::read(&mut cursor, element, 0).ok())
    }
}
