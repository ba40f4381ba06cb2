//! The block formats that a weight can keep, and how a unit of each lies in a panel.

use crate::weight::packed::{Line, PANEL};

/// A block-quantised format of llama.cpp: a row is cut into blocks of 32 or 256 weights, and a block has an integer code
/// for each weight and a few numbers that turn codes into weights.
///
/// The names are ggml's own. `d`, `m` and `dmin` are f16, all other letters integers.
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
}

impl BlockFormat {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// Name as ggml writes it.
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
        }
    }

    /// Number of weights in a block.
    pub const fn block_len(self) -> usize {
        self.shape().unit_len()
    }

    /// Size of a block in a GGUF file, in bytes.
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
        }
    }

    /// Size of a block in memory, in bytes: nested scales of 6 bits take a byte.
    pub const fn packed_bytes(self) -> usize {
        self.shape().unit_lines() * size_of::<Line>() / PANEL
    }

    /// What packing and `cpu::dequantize` need to know.
    pub(crate) const fn shape(self) -> Shape {
        let plain = Shape { bits: 4, zero: 0, group: 32, groups: 1, min: false, nested: false };
        let nested = Shape { groups: 8, min: true, nested: true, ..plain };
        match self {
            Self::Q8_0 => Shape { bits: 8, ..plain },
            Self::Q4_0 => Shape { zero: 8, ..plain },
            Self::Q4_1 => Shape { min: true, ..plain },
            Self::Q5_0 => Shape { bits: 5, zero: 16, ..plain },
            Self::Q5_1 => Shape { bits: 5, min: true, ..plain },
            Self::Q4_K => nested,
            Self::Q5_K => Shape { bits: 5, ..nested },
            Self::Q6_K => Shape { bits: 6, zero: 32, group: 16, groups: 16, min: false, ..nested },
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
/// d                        32 x f16                                     1 line
/// m or dmin                32 x f16                                     1 line, if the format has a minimum
/// sc of each group         groups x 32 x u8 (i8 in Q6_K)                groups / 2 lines, in formats with nested scales
/// mn of each group         groups x 32 x u8                             groups / 2 lines, if both
/// codes of 16 inputs       16 x 32 codes                                one line for each bit of a code
/// ...
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bits of a code. Codes of 8 bits are signed.
    pub(crate) bits: usize,
    /// Code that stands for zero.
    pub(crate) zero: i32,
    /// Number of inputs that share a scale.
    pub(crate) group: usize,
    /// Number of groups in a unit.
    pub(crate) groups: usize,
    /// Whether a minimum is added.
    pub(crate) min: bool,
    /// Whether the scale of a group is an integer, times the unit's `d`.
    pub(crate) nested: bool,
}

/// Inputs whose codes lie together.
pub(crate) const STEP: usize = 16;

impl Shape {
    /// Number of inputs in a unit.
    pub(crate) const fn unit_len(&self) -> usize {
        self.group * self.groups
    }

    /// Index of the first line with scales of the groups.
    pub(crate) const fn scale_line(&self) -> usize {
        1 + self.min as usize
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
