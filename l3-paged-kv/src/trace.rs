//! A recording of what happens to blocks, for the viewer: one JSON object a line.
//!
//! A [`Recorder`] that observes a manager writes every [`BlockOp`]; [`read`] reads such a file [`Frame`] by frame and
//! keeps the [`PoolState`]. `strata trace blocks` converts a recording to a web page.
//!
//! The first line is the header, every other line is an op:
//!
//! ```json
//! {"strata_block_trace":1,"num_blocks":17,"block_size":4,"namespace":"tiny-llama"}
//! {"op":"step_begins"}
//! {"op":"sequence_begins","seq":"0.0","label":"a"}
//! {"op":"pop","block":1}
//! ```

mod op;
mod read;
mod recorder;
mod state;

pub use op::{BlockObserver, BlockOp, Ending};
pub use read::{Frame, Reader, TraceError, read};
pub use recorder::Recorder;
pub use state::{Contradiction, Hashed, PoolState, TableState};
