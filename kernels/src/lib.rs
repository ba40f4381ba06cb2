//! CUDA for Strata: kernels to be read, and what compiles, launches and captures them.
//!
//! * [`probe`] says whether CUDA can be used here, and if not, why not.
//! * [`Gpu`] is a device: memory, one stream, compiled modules. [`Buffer`] is its memory, [`Mat`],
//!   [`Heads`] and [`Kv`] are shapes over it.
//! * [`ops`] holds a typed launcher for each kernel of `cu/`: it checks shapes, then enqueues.
//! * [`Graph`] is a sequence of launches, recorded once and replayed with one call.
//! * [`compile`] turns `cu/*.cu` into machine code at run time, and keeps it.
//! * [`emulate`] puts a CPU in the place of the device: the same `.cu` files, compiled by the host's
//!   C++ compiler, run behind the driver's own interface. That is how they are tested where there is
//!   no GPU, and how a learner without one runs them.
//!
//! CUDA is loaded at run time: a build of Strata needs no toolkit, and the same binary runs on a
//! machine with a GPU and on one without. This crate knows nothing of the layers above.
//!
//! ```
//! match kernels::probe() {
//!     Ok(cuda) => println!("{cuda}"),
//!     Err(why) => println!("no CUDA: {why}"),
//! }
//! ```

#![warn(missing_docs)]

mod blas;
pub mod compile;
mod error;
mod exchange;
mod gpu;
mod graph;
mod launch;
mod mark;
mod memory;
mod nvfp4;
pub mod ops;
mod pinned;
mod pinned_pool;
mod probe;
mod scratch;
mod shapes;
mod shim;
mod timer;
mod weights;

pub use blas::gemm_library;
pub use error::{Error, Result};
pub use gpu::{Gpu, Properties};
pub use graph::Graph;
pub use launch::{Args, Launch};
pub use mark::Mark;
pub use memory::{Buffer, Pod, View, ViewMut};
pub use nvfp4::Nvfp4;
pub use pinned::{Pinned, Uploader};
pub use pinned_pool::{PinnedBytes, PinnedPool};
pub use probe::{Cuda, ProbeError, probe};
pub use scratch::Scratch;
pub use shapes::{Float, Heads, HeadsMut, Kv, KvMut, KvShape, Mat, MatMut};
pub use shim::{Order, emulate, is_emulated, shim_live_allocations, shim_order, shim_report};
pub use timer::Timer;
pub use weights::{Factors, Weights};
