//! Which instruction set the kernels use, decided once at run time.

use std::fmt;
use std::str::FromStr;

#[cfg(target_arch = "x86_64")]
use super::amx;
use crate::{Error, Result};

/// An instruction set the kernels know, from narrow to wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, whatever the compiler makes of it. Also what aarch64 runs (unverified there).
    Portable,
    /// x86-64 with AVX2, FMA and F16C: 8 floats a vector.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL: 16 floats a vector.
    Avx512,
    /// AVX-512 with the bf16 pair dot product `vdpbf16ps`.
    Avx512Bf16,
    /// The same, and tiles that multiply bf16 matrices (AMX): most of Intel's Xeons since 2023, on Linux, which is asked
    /// for the permission of this process.
    Amx,
}

impl Isa {
    /// All of them, narrow to wide.
    pub const ALL: [Isa; 5] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];

    /// Whether this processor (and its operating system) can run it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Isa::Avx512.is_available() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512Bf16.is_available() && amx::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Those this processor can run, narrow to wide: what a property test loops over.
    pub fn available() -> impl Iterator<Item = Isa> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// The widest one this processor can run.
    pub fn best() -> Isa {
        Self::available().last().unwrap_or(Isa::Portable)
    }

    /// The one `STRATA_CPU` names, else the best.
    ///
    /// # Errors
    /// [`Error::BadParameter`] for an unknown name or one this processor lacks.
    pub fn from_env() -> Result<Isa> {
        match std::env::var("STRATA_CPU") {
            Ok(name) if !name.is_empty() => {
                let bad = |why| Error::BadParameter { op: "STRATA_CPU", why };
                name.parse::<Isa>().map_err(bad)?.require()
            }
            _ => Ok(Isa::best()),
        }
    }

    /// Itself, if this processor can run it.
    ///
    /// # Errors
    /// [`Error::BadParameter`] listing what it can run instead.
    pub fn require(self) -> Result<Isa> {
        if self.is_available() {
            return Ok(self);
        }
        let have: Vec<_> = Self::available().map(|i| i.to_string()).collect();
        Err(Error::BadParameter {
            op: "instruction set",
            why: format!("this processor cannot run {self}; it can run {}", have.join(", ")),
        })
    }

    /// Whether it multiplies bf16 pairs in one instruction.
    pub fn has_bf16_dot(self) -> bool {
        self >= Isa::Avx512Bf16
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
        })
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        Self::ALL.into_iter().find(|isa| isa.to_string() == s).ok_or_else(|| {
            format!(
                "`{s}` is not an instruction set: use portable, avx2, avx512, avx512bf16 or amx"
            )
        })
    }
}
