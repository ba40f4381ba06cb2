//! Calls of a model that was not trained to call tools, forced by a guide.
//!
//! If the request names the function, the output is its arguments. Otherwise the output is, as in vLLM, a list of
//! objects with `name` and `parameters`.

use crate::output::event::{OutputEvent, emit};

/// Parser of an output that is the arguments of one call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Arguments {
    name: String,
    begun: bool,
}

impl Arguments {
    /// Creates the parser for a call of this function.
    pub(super) fn of(name: &str) -> Self {
        Self { name: name.to_owned(), begun: false }
    }

    pub(super) fn push(&mut self, text: &str, events: &mut Vec<OutputEvent>) {
        if text.is_empty() {
            return;
        }
        if !std::mem::replace(&mut self.begun, true) {
            events.push(OutputEvent::ToolCallStart { index: 0, name: self.name.clone() });
        }
        emit(events, OutputEvent::ToolCallArguments { index: 0, arguments: text.to_owned() });
    }
}
