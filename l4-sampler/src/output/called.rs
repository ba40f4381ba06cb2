//! The tool that an output calls: its name, and the shell command that it would run.
//!
//! An agent's next request comes when the tool that the last output called is done, so how long a job's blocks will be
//! unused depends on the tool. Agents let models call tools in two ways, and [`CalledTool`] reads both:
//!
//! * a call in a model's own format: the name of the function, and its argument `command`, `cmd` or `code`;
//! * a fenced block of shell commands, as in ```` ```bash ````: the first command ([`command_name`]), and the block.
//!
//! Reasoning is left out: what a model considers is not what it calls. A call takes precedence over a fence, and of
//! several the first one counts.

mod arguments;
mod fence;
mod shell;

use super::{OutputEvent, ReasoningFormat, ReasoningParser, ToolParser};
use arguments::Arguments;
use fence::Fence;
pub use shell::{COMMAND_PREFIXES, command_name, is_assignment};

/// Maximum number of bytes of a tool's name. A longer one is left out: models write what they like.
pub const MAX_TOOL_NAME_BYTES: usize = 256;

/// Maximum number of bytes of a command. The end of a longer one is left out.
pub const MAX_COMMAND_BYTES: usize = 1024;

/// What an output calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// Name of the function, or of the first command.
    pub tool: String,
    /// Shell commands, or other code, that the tool would run: at most [`MAX_COMMAND_BYTES`]. `None` for a function
    /// without such an argument.
    pub command: Option<String>,
}

/// How the outputs of a request call tools. The default suits every model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallFormat {
    /// Parser of the reasoning, at the beginning of the output. `None`: `<think>` tags, which the prompt may have
    /// opened.
    pub reasoning: Option<ReasoningParser>,
    /// Parser of the tool calls. `None`: calls of all formats of [`ToolFormat`](super::ToolFormat), to any function.
    pub tools: Option<ToolParser>,
}

/// Finds the tool that an output calls, while its text arrives.
///
/// ```
/// use l4_sampler::output::{CallFormat, Called, CalledTool};
///
/// let called = |text| {
///     let mut called = CalledTool::new(&CallFormat::default(), "");
///     called.push(text);
///     called.finish()
/// };
/// let call = r#"<tool_call>{"name": "search", "arguments": {"query": "Rust"}}</tool_call>"#;
/// assert_eq!(called(call), Some(Called { tool: "search".into(), command: None }));
/// let block = "<think>I could use ```grep```.</think>\n```bash\ncd src && ls -la\n```";
/// assert_eq!(called(block), Some(Called { tool: "ls".into(), command: Some("cd src && ls -la".into()) }));
/// assert_eq!(called("Done."), None);
/// ```
#[derive(Clone, Debug)]
pub struct CalledTool {
    reasoning: ReasoningParser,
    tools: Vec<ToolParser>,
    fence: Fence,
    /// First call, and the parser that found it.
    call: Option<(usize, Call)>,
    /// Reused between texts.
    events: Vec<OutputEvent>,
}

/// A call of a function.
#[derive(Clone, Debug)]
struct Call {
    name: String,
    index: usize,
    arguments: Arguments,
}

impl CalledTool {
    /// Creates the parser of one output. `prompt_end`: the end of the prompt's text, by which the default format knows
    /// whether the output begins within reasoning.
    pub fn new(format: &CallFormat, prompt_end: &str) -> Self {
        let think_tags = || ReasoningParser::new(ReasoningFormat::ThinkTags, prompt_end);
        Self {
            reasoning: format.reasoning.clone().unwrap_or_else(think_tags),
            tools: format.tools.clone().map_or_else(ToolParser::any, |own| vec![own]),
            fence: Fence::default(),
            call: None,
            events: Vec::new(),
        }
    }

    /// Reads the next text. Returns whether the call is certain: the text that follows cannot change it.
    pub fn push(&mut self, text: &str) -> bool {
        if !self.is_certain() && !text.is_empty() {
            let content = self.reasoning.push(text).content;
            self.read(&content);
        }
        self.is_certain()
    }

    /// Ends the output, and returns what it calls.
    pub fn finish(mut self) -> Option<Called> {
        if !self.is_certain() {
            let rest = self.reasoning.finish().content;
            self.read(&rest);
            for parser in 0..self.tools.len() {
                self.tools[parser].finish(&mut self.events);
                self.take_call(parser);
            }
        }
        let (tool, command) = match self.call {
            Some((_, call)) => (call.name, call.arguments.command()),
            None => self.fence.finish().map(|(name, block)| (name, Some(block)))?,
        };
        (!tool.is_empty() && tool.len() <= MAX_TOOL_NAME_BYTES).then_some(Called { tool, command })
    }

    fn is_certain(&self) -> bool {
        self.call.as_ref().is_some_and(|(_, call)| call.arguments.is_complete())
    }

    fn read(&mut self, content: &str) {
        for parser in 0..self.tools.len() {
            self.tools[parser].push(content, &mut self.events);
            self.take_call(parser);
        }
        self.fence.push(content);
    }

    /// Reads the events of a parser.
    fn take_call(&mut self, parser: usize) {
        for event in self.events.drain(..) {
            match (&mut self.call, event) {
                (None, OutputEvent::ToolCallStart { name, index }) => {
                    self.call =
                        Some((parser, Call { name, index, arguments: Arguments::default() }));
                }
                (Some((found_by, call)), OutputEvent::ToolCallArguments { index, arguments })
                    if *found_by == parser && call.index == index =>
                {
                    call.arguments.push(&arguments);
                }
                _ => {}
            }
        }
    }
}

/// The beginning of a command, without white space around it. `None` if nothing is left.
fn bounded(command: &str) -> Option<String> {
    let command = command.trim();
    let end = command.floor_char_boundary(MAX_COMMAND_BYTES);
    (!command.is_empty()).then(|| command[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::{ToolChoice, ToolDefinition, ToolFormat};
    use super::*;

    /// The call of a text, which must be the same however the text is cut.
    #[track_caller]
    fn called_by(format: &CallFormat, prompt_end: &str, text: &str) -> Option<Called> {
        let chars: Vec<char> = text.chars().collect();
        let read = |size| {
            let mut called = CalledTool::new(format, prompt_end);
            for piece in chars.chunks(size) {
                called.push(&piece.iter().collect::<String>());
            }
            called.finish()
        };
        let whole = read(chars.len().max(1));
        for size in 1..chars.len() {
            assert_eq!(read(size), whole, "{text:?} in pieces of {size}");
        }
        whole
    }

    /// The tool of a text.
    #[track_caller]
    fn named_by(format: &CallFormat, prompt_end: &str, text: &str) -> Option<String> {
        called_by(format, prompt_end, text).map(|called| called.tool)
    }

    /// The command of a text.
    #[track_caller]
    fn command(text: &str) -> Option<String> {
        called_by(&CallFormat::default(), "", text)?.command
    }

    fn named(text: &str) -> Option<String> {
        named_by(&CallFormat::default(), "", text)
    }

    fn parser(format: ToolFormat, choice: &ToolChoice) -> CallFormat {
        let tools = ["get_weather", "now"].map(|name| ToolDefinition { name, parameters: None });
        CallFormat { reasoning: None, tools: Some(ToolParser::new(format, &tools, choice)) }
    }

    const HERMES: &str =
        "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"q\": 1}}\n</tool_call>";

    #[test]
    fn calls_of_every_format_name_their_function() {
        for (text, name) in [
            (HERMES, "search"),
            ("I will look.\n<tool_call>{\"name\": \"ls\"", "none"),
            ("{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Ulm\"}}", "get_weather"),
            ("<|python_tag|>{\"name\": \"now\", \"parameters\": {}}", "now"),
            ("[{\"name\": \"now\", \"parameters\": {}}]", "now"),
            ("{\"name\": \"Ulm\", \"inhabitants\": 128000}", "none"),
            ("The answer is 7.", "none"),
            ("", "none"),
        ] {
            assert_eq!(named(text).as_deref().unwrap_or("none"), name, "{text}");
        }
    }

    #[test]
    fn the_requests_own_parser_decides_what_a_call_is() {
        let auto = parser(ToolFormat::Llama3Json, &ToolChoice::Auto);
        let call = |name: &str| format!("{{\"name\": \"{name}\", \"parameters\": {{}}}}");
        assert_eq!(named_by(&auto, "", &call("now")).as_deref(), Some("now"));
        assert_eq!(named_by(&auto, "", &call("later")), None, "no tool of the request");
        // The whole output is the arguments of the function that the request names.
        let forced = parser(ToolFormat::None, &ToolChoice::Named("now".into()));
        assert_eq!(named_by(&forced, "", "{\"zone\": \"UTC\"}").as_deref(), Some("now"));
        let required = parser(ToolFormat::None, &ToolChoice::Required);
        assert_eq!(named_by(&required, "", &format!("[{}]", call("now"))).as_deref(), Some("now"));
    }

    #[test]
    fn a_block_of_shell_commands_names_its_first_command() {
        for (text, name) in [
            ("Let me look.\n\n```bash\nls -la\n```\n", "ls"),
            ("```bash\ncd /testbed && python3 reproduce.py\n```", "python3"),
            ("```sh\n\n# All of them.\ngrep -rn foo . | head\n```", "grep"),
            ("   ```bash\nls\n   ```", "ls"),
            ("````bash\ncat <<'EOF'\n```\nEOF\n````", "cat"),
            // Cut off by a stop string, or by the length.
            ("```bash\nsed -i s/a/b/ f.py\n", "sed"),
            ("```bash\npytest", "pytest"),
            ("```bash\n```\nNothing.", "none"),
            ("```python\nls = 3\n```", "none"),
            ("```python\nx = 1\n```\nand\n```bash\nmake\n```", "make"),
            ("```bash\nls\n```\n```bash\ncat f\n```", "ls"),
            ("Use `ls` or ```bash ls```.", "none"),
        ] {
            assert_eq!(named(text).as_deref().unwrap_or("none"), name, "{text}");
        }
    }

    #[test]
    fn what_a_model_considers_is_not_what_it_calls() {
        let block = "```bash\nrm -r build\n```";
        assert_eq!(named(&format!("<think>\n{block}\n{HERMES}</think>\nNo.")), None);
        let call = format!("<think>\n{block}\n</think>\n\n```bash\nls\n```");
        assert_eq!(named(&call).as_deref(), Some("ls"));
        // The template has opened the reasoning, and its end tag may be missing.
        let opened = |text: &str| named_by(&CallFormat::default(), "assistant\n<think>\n", text);
        assert_eq!(opened(&format!("{block}\n</think>\n```bash\nls\n```")).as_deref(), Some("ls"));
        assert_eq!(opened(block), None);
    }

    #[test]
    fn a_call_takes_precedence_over_a_block() {
        assert_eq!(named(&format!("```bash\nls\n```\n{HERMES}")).as_deref(), Some("search"));
    }

    #[test]
    fn a_name_that_is_too_long_is_left_out() {
        let long = "x".repeat(MAX_TOOL_NAME_BYTES);
        let block = |name: &str| format!("```bash\n{name} -l\n```");
        let mut called = CalledTool::new(&CallFormat::default(), "");
        called.push(&block(&long));
        assert_eq!(called.finish().map(|called| called.tool), Some(long.clone()));
        let mut called = CalledTool::new(&CallFormat::default(), "");
        called.push(&block(&format!("{long}x")));
        assert_eq!(called.finish(), None);
    }

    #[test]
    fn a_call_is_certain_as_soon_as_its_arguments_are_complete() {
        let mut called = CalledTool::new(&CallFormat::default(), "");
        assert!(!called.push("```bash\nls\n```\n"), "a call may follow");
        assert!(!called.push("<tool_call>{\"name\": \"f\", \"arguments\": "));
        assert!(!called.push("{\"command\": \"make"), "the command goes on");
        assert!(called.push(" all\"}"));
        let expected = Called { tool: "f".to_owned(), command: Some("make all".to_owned()) };
        assert_eq!(called.finish(), Some(expected));
    }

    #[test]
    fn a_call_that_runs_commands_has_its_command() {
        let hermes = |arguments: &str| {
            let text =
                format!("<tool_call>{{\"name\": \"run\", \"arguments\": {arguments}}}</tool_call>");
            command(&text).unwrap_or_else(|| "none".to_owned())
        };
        for (arguments, expected) in [
            (r#"{"command": "cd src && ls"}"#, "cd src && ls"),
            (r#"{"timeout": 5, "cmd": " grep \"a\" f\n"}"#, "grep \"a\" f"),
            (r#"{"code": "import os"}"#, "import os"),
            (r#"{"command": ["bash", "-lc", "make test"]}"#, "make test"),
            (r#"{"command": ["git", "status"]}"#, "git status"),
            (r#"{"command": "", "code": "x = 1"}"#, "x = 1"),
            (r#"{"command": 7}"#, "none"),
            (r#"{"query": "ls"}"#, "none"),
            ("[1]", "none"),
        ] {
            assert_eq!(hermes(arguments), expected, "{arguments}");
        }
        let llama = r#"{"name": "run", "parameters": {"command": "cat f"}}"#;
        assert_eq!(command(llama).as_deref(), Some("cat f"));
        let two = format!("{llama}; {}", r#"{"name": "run", "parameters": {"command": "make"}}"#);
        assert_eq!(command(&two).as_deref(), Some("cat f"), "that of the first call");
        // Cut off by the length.
        let cut = r#"<tool_call>{"name": "run", "arguments": {"command": "sleep 60 && l"#;
        assert_eq!(command(cut).as_deref(), Some("sleep 60 && l"));
    }

    #[test]
    fn a_block_of_shell_commands_is_the_command() {
        for (text, expected) in [
            ("So:\n```bash\n\n# Both.\ncd src\nls -la  \n```\nand more", "# Both.\ncd src\nls -la"),
            ("```sh\ncat > f <<EOF\n  a\nEOF", "cat > f <<EOF\n  a\nEOF"),
            ("```bash\n# nothing\n```\n```bash\nmake\n```\n```bash\nls\n```", "make"),
            ("```python\nx = 1\n```", "none"),
        ] {
            assert_eq!(command(text).as_deref().unwrap_or("none"), expected, "{text}");
        }
    }

    #[test]
    fn the_end_of_a_long_command_is_left_out() {
        let long = format!("echo {}", "é".repeat(MAX_COMMAND_BYTES));
        let kept = format!("echo {}", "é".repeat((MAX_COMMAND_BYTES - 5) / 2));
        let mut called = CalledTool::new(&CallFormat::default(), "");
        called.push(&format!("```bash\n{long}\n```"));
        assert_eq!(called.finish().unwrap().command.as_ref(), Some(&kept));
        let mut called = CalledTool::new(&CallFormat::default(), "");
        let more = "x".repeat(9 * MAX_COMMAND_BYTES);
        let call = format!(
            "<tool_call>{{\"name\": \"run\", \"arguments\": {{\"command\": \"{long}{more}\"}}}}"
        );
        assert!(called.push(&call), "what follows is not read");
        assert_eq!(called.finish().unwrap().command, Some(kept));
    }
}
