//! The block formats that a weight can keep, and how a unit of each lies in a panel.

use crate::e4m3;
use crate::weight::packed::{Line, PANEL};

/// A block-quantised format: a row is cut into blocks of 16 to 256 weights, and a block has a code for each weight and
/// a few numbers that turn codes into weights.
///
/// The names are ggml's own, but for the last. `d`, `m` and `dmin` are f16, `e` is a power of two in eight bits, `s` a
/// float in eight bits, all other letters are integers.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// `d * q`, codes of 8 bits, 32 weights a block.
    Q8_0,
    /// `d * (q - 8)`, codes of 4 bits.
    Q4_0,
    /// `d * q + m`, codes of 4 bits.
    Q4_1,
    /// `d * (q - 16)`, codes of 5 bits.
    Q5_0,
    /// `d * q + m`, codes of 5 bits.
    Q5_1,
    /// `(d * sc) * q - (dmin * mn)`, codes of 4 bits; 256 weights a block, `sc` and `mn` for 32.
    Q4_K,
    /// The same with codes of 5 bits.
    Q5_K,
    /// `(d * sc) * (q - 32)`, codes of 6 bits; 256 weights a block, `sc` for 16.
    Q6_K,
    /// `d * level[q]`, codes of 4 bits for 16 uneven levels, 32 weights a block.
    IQ4_NL,
    /// `2^(e - 127) * e2m1(q)`, codes that are floats of 4 bits, 32 weights a block.
    MXFP4,
    /// `s * e2m1(q)`, 64 weights a block, `s` for 16.
    NVFP4,
    /// The same as a safetensors file has it: the codes of a row in one tensor, its scales in another, 16 weights a
    /// block ([`StoredRow`](super::StoredRow)).
    NVFP4_SPLIT,
}

impl BlockFormat {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::MXFP4,
        Self::NVFP4,
        Self::NVFP4_SPLIT,
    ];

    /// Name as ggml writes it. Both forms of NVFP4 have one.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
            Self::IQ4_NL => "IQ4_NL",
            Self::MXFP4 => "MXFP4",
            Self::NVFP4 | Self::NVFP4_SPLIT => "NVFP4",
        }
    }

    /// Number of weights in a block.
    pub const fn block_len(self) -> usize {
        self.unit_len() / self.unit_blocks()
    }

    /// Number of weights in a unit: a row that stays packed must be a whole number of units. It is one block, or two
    /// where the scales of one would not fill a line.
    pub const fn unit_len(self) -> usize {
        self.shape().unit_len()
    }

    /// Number of blocks in a unit.
    pub(crate) const fn unit_blocks(self) -> usize {
        match self {
            Self::MXFP4 | Self::NVFP4_SPLIT => 2,
            _ => 1,
        }
    }

    /// Size of a block in a file, in bytes.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ4_NL => 18,
            Self::MXFP4 => 17,
            Self::NVFP4 => 36,
            Self::NVFP4_SPLIT => 9,
        }
    }

    /// Size of a block's scales that stand apart from its codes, in bytes.
    pub(crate) const fn scale_bytes(self) -> usize {
        match self {
            Self::NVFP4_SPLIT => 1,
            _ => 0,
        }
    }

    /// Size of a block in memory, in bytes: nested scales of 6 bits take a byte.
    pub const fn packed_bytes(self) -> usize {
        self.shape().unit_lines() * size_of::<Line>() / PANEL / self.unit_blocks()
    }

    /// What packing and `cpu::dequantize` need to know.
    pub(crate) const fn shape(self) -> Shape {
        let plain = Shape {
            bits: 4,
            zero: 0,
            levels: Levels::Integers,
            scale: Scale::F16,
            group: 32,
            groups: 1,
            min: false,
            nested: false,
        };
        let nested = Shape { groups: 8, min: true, nested: true, ..plain };
        let floats = Shape { levels: Levels::E2m1, nested: true, ..plain };
        let nvfp4 = Shape { scale: Scale::E4m3, group: 16, ..floats };
        match self {
            Self::Q8_0 => Shape { bits: 8, ..plain },
            Self::Q4_0 => Shape { zero: 8, ..plain },
            Self::Q4_1 => Shape { min: true, ..plain },
            Self::Q5_0 => Shape { bits: 5, zero: 16, ..plain },
            Self::Q5_1 => Shape { bits: 5, min: true, ..plain },
            Self::Q4_K => nested,
            Self::Q5_K => Shape { bits: 5, ..nested },
            Self::Q6_K => Shape { bits: 6, zero: 32, group: 16, groups: 16, min: false, ..nested },
            Self::IQ4_NL => Shape { levels: Levels::Iq4Nl, ..plain },
            Self::MXFP4 => Shape { scale: Scale::E8m0, groups: 2, ..floats },
            Self::NVFP4 => Shape { groups: 4, ..nvfp4 },
            Self::NVFP4_SPLIT => Shape { groups: 2, ..nvfp4 },
        }
    }
}

impl std::fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Shape of a format: which codes and scales a block has.
///
/// A *unit* is one block of each of a panel's 32 outputs, in lines of 64 bytes:
///
/// ```text
/// d                        32 x f16                                     1 line, unless groups have scales of their own
/// m or dmin                32 x f16                                     1 line, if the format has a minimum
/// sc, s or e of each group groups x 32 x u8 (i8 in Q6_K)                groups / 2 lines, if scales are nested
/// mn of each group         groups x 32 x u8                             groups / 2 lines, if both
/// codes of 16 inputs       16 x 32 codes                                one line for each bit of a code
/// ...
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bits of a code. Codes of 8 bits are signed.
    pub(crate) bits: usize,
    /// Code that stands for zero, of integers.
    pub(crate) zero: i32,
    /// What codes stand for.
    pub(crate) levels: Levels,
    /// What scales are.
    pub(crate) scale: Scale,
    /// Number of inputs that share a scale.
    pub(crate) group: usize,
    /// Number of groups in a unit.
    pub(crate) groups: usize,
    /// Whether a minimum is added.
    pub(crate) min: bool,
    /// Whether a group has a scale of one byte: an integer, times the unit's `d`, or a float.
    pub(crate) nested: bool,
}

/// What codes stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Levels {
    /// Themselves.
    Integers,
    /// The levels of IQ4_NL.
    Iq4Nl,
    /// Floats of four bits, with a negative zero.
    E2m1,
}

impl Levels {
    /// The numbers that codes of four bits stand for.
    pub(crate) const fn table(self) -> [f32; 16] {
        let mut table = [0.0; 16];
        match self {
            Levels::Integers => {
                let mut i = 0;
                while i < 16 {
                    table[i] = i as f32;
                    i += 1;
                }
            }
            Levels::Iq4Nl => {
                table = [
                    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0,
                    38.0, 53.0, 69.0, 89.0, 113.0,
                ];
            }
            Levels::E2m1 => {
                table = [
                    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0,
                    -4.0, -6.0,
                ];
            }
        }
        table
    }
}

/// What scales are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// f16: one for a block, or `d`, which integers of groups multiply.
    F16,
    /// E4M3, not negative: one for a group.
    E4m3,
    /// A power of two, biased by 127: one for a group.
    E8m0,
}

impl Scale {
    /// What a scale must not be.
    pub(crate) const fn unusable(self) -> &'static str {
        match self {
            Scale::F16 => "infinite or not a number",
            Scale::E4m3 => "negative or not a number",
            Scale::E8m0 => "too large or not a number",
        }
    }

    /// The number that a byte stands for.
    pub(crate) fn of_byte(self, byte: u8) -> f32 {
        match self {
            Scale::F16 => f32::from(byte),
            Scale::E4m3 => e4m3::to_f32(byte),
            // 2^-127 is subnormal: half of the smallest normal number.
            Scale::E8m0 => f32::from_bits((u32::from(byte) << 23).max(1 << 22)),
        }
    }
}

/// Inputs whose codes lie together.
pub(crate) const STEP: usize = 16;

impl Shape {
    /// The number that a code, less the one that stands for zero, is multiplied as.
    pub(crate) fn number(&self, code: i32) -> f32 {
        match self.levels {
            Levels::Integers => code as f32,
            levels => levels.table()[(code & 15) as usize],
        }
    }

    /// Whether no weight needs rounding to bf16.
    pub(crate) const fn is_exact(&self) -> bool {
        matches!(self.levels, Levels::E2m1)
    }

    /// Number of inputs in a unit.
    pub(crate) const fn unit_len(&self) -> usize {
        self.group * self.groups
    }

    /// Index of the first line with scales of the groups.
    pub(crate) const fn scale_line(&self) -> usize {
        matches!(self.scale, Scale::F16) as usize + self.min as usize
    }

    /// Index of the first line with minima of the groups.
    pub(crate) const fn min_line(&self) -> usize {
        self.scale_line() + self.groups / 2
    }

    /// Index of the first line with codes.
    pub(crate) const fn code_line(&self) -> usize {
        match (self.nested, self.min) {
            (false, _) => self.scale_line(),
            (true, false) => self.min_line(),
            (true, true) => self.min_line() + self.groups / 2,
        }
    }

    /// Number of lines of a unit.
    pub(crate) const fn unit_lines(&self) -> usize {
        self.code_line() + self.unit_len() / STEP * self.bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_takes_as_much_memory_as_space_in_a_file() {
        for format in BlockFormat::ALL {
            let (stored, packed) = (format.block_bytes(), format.packed_bytes());
            assert!(
                packed >= stored && packed * 100 <= stored * 103,
                "{format}: {stored}, {packed}"
            );
        }
    }
}
