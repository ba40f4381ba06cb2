//! The fast CPU side: which instructions there are, the threads, and the kernels.

mod isa;
mod pool;

pub use isa::Isa;
pub use pool::ThreadPool;
