//! The command among the arguments of a call, in streamed text.

use serde_json::{Map, Value};

use super::bounded;

/// Maximum number of bytes of arguments that are read.
const MAX_ARGUMENTS_BYTES: usize = 8192;

/// Arguments whose value is a command, or other code. The first one that is there counts.
const COMMANDS: [&str; 3] = ["command", "cmd", "code"];

/// Arguments of a call, as far as they have arrived.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    text: String,
    complete: bool,
}

impl Arguments {
    pub(super) fn push(&mut self, text: &str) {
        if self.complete {
            return;
        }
        let room = text.floor_char_boundary(MAX_ARGUMENTS_BYTES - self.text.len());
        self.text.push_str(&text[..room]);
        let cut = room < text.len();
        self.complete = cut || self.text.trim_end().ends_with('}') && read(&self.text).is_some();
    }

    /// Whether text that follows is not read.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// The command. Arguments without an end have been cut off, most likely in the longest one, which is the command.
    pub(super) fn command(self) -> Option<String> {
        let closed = |end: &str| read(&format!("{}{end}", self.text));
        let arguments = ["", "}", "\"}"].iter().find_map(|end| closed(end))?;
        COMMANDS.iter().find_map(|name| bounded(&in_a_line(arguments.get(*name)?)?))
    }
}

fn read(text: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(text).ok()
}

/// The command of an argument: a text, or a program with its arguments. What `bash -c` runs is a command itself.
fn in_a_line(argument: &Value) -> Option<String> {
    match argument {
        Value::String(command) => Some(command.clone()),
        Value::Array(words) => {
            let words = words.iter().map(Value::as_str).collect::<Option<Vec<&str>>>()?;
            match words[..] {
                [_, "-c" | "-lc", command] => Some(command.to_owned()),
                _ => Some(words.join(" ")),
            }
        }
        _ => None,
    }
}
