//! A recording of what happens to blocks, for the viewer: one JSON object a line.

mod op;

pub use op::{BlockObserver, BlockOp, Ending};
