//! Calls that a guide forces on a model of which nothing is known but that it can be guided.
//!
//! A call that was named needs no name: the answer is its arguments. One of several is written as vLLM has it, a list of
//! objects with `name` and `parameters`.

use super::{ToolEvent, emit};

/// The answer is the arguments of one call.
#[derive(Clone, Debug)]
pub(super) struct Arguments {
    name: String,
    begun: bool,
}

impl Arguments {
    /// Of a call of this function.
    pub(super) fn of(name: &str) -> Self {
        Self { name: name.to_owned(), begun: false }
    }

    pub(super) fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        if text.is_empty() {
            return;
        }
        if !std::mem::replace(&mut self.begun, true) {
            events.push(ToolEvent::Begin { index: 0, name: self.name.clone() });
        }
        emit(events, ToolEvent::Arguments { index: 0, delta: text.to_owned() });
    }
}
