//! l2-model

pub mod checkpoint;
pub mod chat_template;
pub mod tokenizer;
