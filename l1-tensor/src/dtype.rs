//! Element types: what one number in a tensor is stored as.

use std::fmt;

pub use half::{bf16, f16};

/// The type of one stored element.
///
/// The float types take part in ops. The integer types and `F8E4M3` are storage: indices, and the
/// codes and scales of block-quantised weights (4-bit codes travel two to a `U8`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision: 8 exponent bits, 23 of mantissa.
    F32,
    /// The upper half of an F32: its range, 7 bits of mantissa.
    BF16,
    /// IEEE half precision: 5 exponent bits, 10 of mantissa.
    F16,
    /// 8-bit float, 4 exponent bits and 3 of mantissa: block scales of NVFP4.
    F8E4M3,
    /// Bytes, or packed 4-bit codes.
    U8,
    /// Signed 8-bit codes.
    I8,
    /// Positions, sequence offsets.
    I32,
    /// Token ids.
    U32,
    /// Slot mappings.
    I64,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::U8 | DType::I8 | DType::F8E4M3 => 1,
            DType::BF16 | DType::F16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::I64 => 8,
        }
    }

    /// The name safetensors files use.
    pub const fn as_str(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::BF16 => "BF16",
            DType::F16 => "F16",
            DType::F8E4M3 => "F8_E4M3",
            DType::U8 => "U8",
            DType::I8 => "I8",
            DType::I32 => "I32",
            DType::U32 => "U32",
            DType::I64 => "I64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that a [`DType`] stands for. Sealed: every implementor is plain old data, valid for
/// any bit pattern, which is what makes viewing bytes as elements sound.
pub trait Element: Copy + Send + Sync + sealed::Sealed + 'static {
    /// The matching tag.
    const DTYPE: DType;
}

macro_rules! element {
    ($($t:ty => $d:ident),* $(,)?) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$d;
        }
    )*};
}
element!(f32 => F32, bf16 => BF16, f16 => F16, u8 => U8, i8 => I8, i32 => I32, u32 => U32, i64 => I64);
