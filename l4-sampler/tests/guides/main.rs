//! Guides: whatever a model thinks, what it writes under one has the shape that was asked for.

#![allow(missing_docs)]

mod ahead;
mod cache;
mod choices;
mod ends;
mod lark;
mod refusals;
mod regexes;
mod rollback;
mod schemas;
mod support;
mod words;
