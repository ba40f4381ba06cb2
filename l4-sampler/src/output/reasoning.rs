//! Separates reasoning from content in a model's output.
//!
//! Reasoning models write `<think>` ... `</think>` before the content. Some chat templates put the opening tag into the
//! prompt, so that the output begins within the reasoning. Only reasoning at the beginning of an output is recognised;
//! later tags are content. Line ends beside the tags belong to the tags, as in the templates that write them.

/// Format of a model's reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// No reasoning is recognised: the whole output is content.
    #[default]
    None,
    /// Reasoning is between `<think>` and `</think>`.
    ThinkTags,
}

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

impl ReasoningFormat {
    /// Detects the format of a model by its chat template.
    pub fn detect(template: &str) -> Self {
        if template.contains(CLOSE) { Self::ThinkTags } else { Self::None }
    }
}

/// A part of the output, separated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Text of the reasoning.
    pub reasoning: String,
    /// Text of the content.
    pub content: String,
}

/// State of the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only white space so far: reasoning may begin.
    Start,
    /// Right behind `<think>`: line ends belong to the tag.
    Opened,
    /// In the reasoning.
    Reasoning,
    /// Right behind `</think>`: line ends belong to the tag.
    Closed,
    /// In the content, up to the end.
    Content,
}

/// Separates reasoning from content in streamed text.
#[derive(Clone, Debug, PartialEq)]
pub struct ReasoningParser {
    state: State,
    /// Text that could still become a tag, or belong to one.
    held: String,
}

impl ReasoningParser {
    /// Creates the parser of one output. The end of `prompt` decides whether the output begins within the reasoning.
    pub fn new(format: ReasoningFormat, prompt: &str) -> Self {
        let state = match format {
            ReasoningFormat::None => State::Content,
            ReasoningFormat::ThinkTags if prompt.trim_end().ends_with(OPEN) => State::Opened,
            ReasoningFormat::ThinkTags if prompt.trim_end().ends_with(CLOSE) => State::Closed,
            ReasoningFormat::ThinkTags => State::Start,
        };
        Self { state, held: String::new() }
    }

    /// Creates a parser for the rest of an output that begins with `begun`.
    pub fn within(format: ReasoningFormat, begun: &str) -> Self {
        let mut parser = Self::new(format, "");
        parser.push(begun);
        // A tag may be complete only with the text that follows. Other text that is held back is part of the prompt.
        if matches!(parser.state, State::Reasoning | State::Content) {
            parser.held.clear();
        }
        parser
    }

    /// Whether the rest of the output may have reasoning.
    pub(super) fn may_find_reasoning(&self) -> bool {
        self.state != State::Content
    }

    /// Parses the next text. Text that could still become a tag is held back.
    pub fn push(&mut self, text: &str) -> Split {
        let mut split = Split::default();
        if self.state == State::Content {
            split.content.push_str(text);
            return split;
        }
        self.held.push_str(text);
        while self.step(&mut split) {}
        split
    }

    /// Ends the output: text that was held back is reasoning or content, by the state.
    pub fn finish(&mut self) -> Split {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Opened | State::Reasoning => {
                Split { reasoning: held.trim_end_matches('\n').to_owned(), ..Split::default() }
            }
            State::Closed => Split::default(),
            State::Start | State::Content => Split { content: held, ..Split::default() },
        }
    }

    /// Makes one transition, if the held text allows it. Returns whether another one may follow.
    fn step(&mut self, split: &mut Split) -> bool {
        match self.state {
            State::Start => {
                let begun = self.held.trim_start();
                if let Some(rest) = begun.strip_prefix(OPEN) {
                    self.go(State::Opened, rest.to_owned())
                } else if OPEN.starts_with(begun) {
                    false
                } else {
                    self.state = State::Content;
                    true
                }
            }
            State::Opened | State::Closed => {
                let rest = self.held.trim_start_matches('\n').to_owned();
                if rest.is_empty() {
                    self.held.clear();
                    return false;
                }
                let next =
                    if self.state == State::Opened { State::Reasoning } else { State::Content };
                self.go(next, rest)
            }
            State::Reasoning => {
                if let Some((thought, rest)) = self.held.split_once(CLOSE) {
                    split.reasoning.push_str(thought.trim_end_matches('\n'));
                    let rest = rest.to_owned();
                    return self.go(State::Closed, rest);
                }
                let sure = sure(&self.held);
                split.reasoning.push_str(&self.held[..sure]);
                self.held.drain(..sure);
                false
            }
            State::Content => {
                split.content.push_str(&self.held);
                self.held.clear();
                false
            }
        }
    }

    fn go(&mut self, state: State, held: String) -> bool {
        self.state = state;
        self.held = held;
        true
    }
}

/// Number of bytes that certainly belong to the reasoning: all but a beginning of the closing tag at the end, and the
/// line ends before it.
fn sure(held: &str) -> usize {
    let tag = (1..CLOSE.len()).rev().find(|n| held.ends_with(&CLOSE[..*n])).unwrap_or(0);
    held[..held.len() - tag].trim_end_matches('\n').len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut parser: ReasoningParser, pieces: impl IntoIterator<Item = String>) -> Split {
        let mut whole = Split::default();
        for split in pieces.into_iter().map(|piece| parser.push(&piece)).collect::<Vec<_>>() {
            whole.reasoning.push_str(&split.reasoning);
            whole.content.push_str(&split.content);
        }
        let last = parser.finish();
        whole.reasoning.push_str(&last.reasoning);
        whole.content.push_str(&last.content);
        whole
    }

    #[track_caller]
    fn expect(parser: &ReasoningParser, text: &str, reasoning: &str, content: &str) {
        let expected = Split { reasoning: reasoning.into(), content: content.into() };
        let chars: Vec<char> = text.chars().collect();
        for size in 1..=chars.len().max(1) {
            let pieces = chars.chunks(size).map(|chunk| chunk.iter().collect::<String>());
            assert_eq!(read(parser.clone(), pieces), expected, "{text:?} in pieces of {size}");
        }
    }

    fn think(prompt: &str) -> ReasoningParser {
        ReasoningParser::new(ReasoningFormat::ThinkTags, prompt)
    }

    #[test]
    fn a_thought_comes_before_the_answer_however_the_text_is_cut() {
        let parser = think("<|im_start|>assistant\n");
        expect(&parser, "<think>\nHm.\n\nYes.\n</think>\n\nGrüße!", "Hm.\n\nYes.", "Grüße!");
        expect(&parser, "\n<think>a</thin</think>b", "a</thin", "b");
        expect(&parser, "<think>\n\n</think>\n\nNo thought.", "", "No thought.");
        expect(&parser, "<thin air", "", "<thin air");
        expect(&parser, "  plain", "", "  plain");
        expect(&parser, "", "", "");
    }

    #[test]
    fn an_answer_may_begin_within_its_thought() {
        let parser = think("<|im_start|>assistant\n<think>\n");
        expect(&parser, "Hm.\n</think>\n\nYes.", "Hm.", "Yes.");
        expect(&parser, "cut off\n</thi", "cut off\n</thi", "");
        expect(&parser, "cut off\n\n", "cut off", "");
    }

    #[test]
    fn what_a_user_says_about_tags_opens_none() {
        let parser = think("<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n");
        expect(&parser, "A tag.", "", "A tag.");
    }

    #[test]
    fn a_template_that_closes_the_thought_leaves_only_the_answer() {
        expect(&think("assistant\n<think>\n\n</think>\n\n"), "Yes <think>.", "", "Yes <think>.");
    }

    #[test]
    fn tags_after_the_thought_are_text() {
        let parser = think("");
        expect(&parser, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>");
        expect(&parser, "b <think>c</think>", "", "b <think>c</think>");
    }

    #[test]
    fn an_answer_that_was_begun_goes_on_where_it_was() {
        let within = |begun| ReasoningParser::within(ReasoningFormat::ThinkTags, begun);
        expect(&within("<think>\nHm"), "m.</think>Yes", "m.", "Yes");
        expect(&within("<think>Hm</think>"), "Yes</think>", "", "Yes</think>");
        expect(&within("Hm"), " yes", "", " yes");
    }

    #[test]
    fn without_a_format_everything_is_said() {
        let parser = ReasoningParser::new(ReasoningFormat::None, "<think>");
        expect(&parser, "<think>a</think>\n\nb", "", "<think>a</think>\n\nb");
    }
}
