//! Converts conversations to prompts.

pub mod prompt;
