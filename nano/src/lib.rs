//! The fast track: a whole engine in a thousand lines of plain Rust, without SIMD, threads or files of its own.
//!
//! ```text
//! ops         RMS norm, matrix times vector, RoPE, softmax, SwiGLU      what a model is made of
//! attention   one query over the keys and values of the tokens so far
//! model       a Llama: layers, and the forward pass of one token
//! kv          keys and values of tokens, by slot
//! generate    greedy generation, with and without a KV cache
//! blocks      a pool of KV blocks, and block tables
//! scheduler   continuous batching: which requests run in a step
//! engine      the loop: plan, compute, choose tokens
//! ```
//!
//! All of it is `f32`, one row at a time, in the order of the formulas: it is written to be read. The layers `l1-tensor` to
//! `l5-scheduler` do the same with speed, safety and every option, and their results are compared with those of this crate.

#![warn(missing_docs)]

pub mod attention;
pub mod blocks;
pub mod engine;
pub mod generate;
pub mod kv;
pub mod load;
pub mod model;
pub mod ops;
pub mod scheduler;
pub mod toy;

pub use attention::Heads;
pub use blocks::{BlockPool, BlockTable};
pub use engine::Engine;
pub use kv::KvMemory;
pub use model::{Layer, Model};
pub use ops::Matrix;
pub use scheduler::{Request, Row, Scheduler};
