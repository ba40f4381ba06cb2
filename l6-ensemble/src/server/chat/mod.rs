//! What stands between a conversation and tokens: the prompt it becomes, and what an answer's text holds beside text.

pub mod prompt;
pub mod reasoning;
pub mod tools;
