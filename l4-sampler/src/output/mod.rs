//! Output events: from the text of a choice to the parts that a client receives.
//!
//! A model writes one stream of text; a client wants reasoning, text and tool calls apart, the reason why the output
//! ended, and how many tokens it took. [`OutputParser`] turns the text of one choice into [`OutputEvent`]s, delta by
//! delta:
//!
//! * [`ReasoningParser`]: reasoning between `<think>` tags;
//! * [`ToolParser`]: tool calls, in the format ([`ToolFormat`]) that the model was trained on;
//! * [`tools::guide()`]: the grammar of an output that must call a tool.
//!
//! [`CalledTool`] finds the tool that an output calls and its command, for those who only want that.
//!
//! Stop strings are found before ([`crate::stop`]), so all text that the parsers get is part of the output.
//!
//! [`ChoiceState`] comes first: the state machine of one choice, from sampled tokens to the text that the parser reads.

mod called;
mod choice;
mod event;
mod finish;
mod parser;
pub mod reasoning;
pub mod tools;

pub use called::{
    COMMAND_PREFIXES, CallFormat, Called, CalledTool, MAX_COMMAND_BYTES, MAX_TOOL_NAME_BYTES,
    command_name, is_assignment,
};
pub use choice::{ChoiceEnd, ChoiceSpec, ChoiceState, NewTokens};
pub use event::{OutputEvent, OutputUsage};
pub use finish::FinishReason;
pub use parser::{OutputDelta, OutputParser};
pub use reasoning::{ReasoningFormat, ReasoningParser};
pub use tools::{ToolChoice, ToolDefinition, ToolError, ToolFormat, ToolParser};
