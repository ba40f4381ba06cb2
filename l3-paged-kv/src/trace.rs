//! A recording of what happens to blocks, for the viewer: one JSON object a line.
//!
//! A [`Recorder`] given to a manager writes every [`BlockOp`]; [`read`] goes through such a file
//! [`Frame`] by frame and keeps the [`PoolState`] that it tells. `strata trace blocks` makes a
//! page of it.
//!
//! The first line says what was made, every other is an op:
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
