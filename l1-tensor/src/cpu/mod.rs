//! The fast CPU side: which instructions there are, the threads, and the kernels.

#[cfg(target_arch = "x86_64")]
mod amx;
pub(crate) mod attention;
mod dequantize;
mod isa;
pub mod lanes;
pub mod machine;
pub(crate) mod matmul;
mod pool;
pub(crate) mod simd;

pub use isa::Isa;
pub use pool::ThreadPool;
