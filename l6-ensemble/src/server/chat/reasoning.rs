//! Telling a model's thoughts from its answer.
//!
//! Models that think write `<think>` ... `</think>` before they answer; some templates write the opening tag into the
//! prompt, so that an answer begins in the midst of a thought. Only a thought at the beginning of an answer is one: later
//! tags are text. Line ends beside the tags belong to the tags, as in the templates that write them.

/// How a model sets its thoughts apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// It does not.
    #[default]
    None,
    /// `<think>` and `</think>`.
    ThinkTags,
}

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

impl ReasoningFormat {
    /// What a chat template shows of it.
    pub fn detect(template: &str) -> Self {
        if template.contains(CLOSE) { Self::ThinkTags } else { Self::None }
    }
}

/// A piece of text, told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// What is thought.
    pub reasoning: String,
    /// What is said.
    pub content: String,
}

/// Where in an answer we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing but white space came: a thought may begin.
    Start,
    /// Right behind `<think>`: line ends belong to the tag.
    Opened,
    /// In the thought.
    Thought,
    /// Right behind `</think>`: line ends belong to the tag.
    Closed,
    /// What is said, to the end.
    Said,
}

/// Tells thoughts from answer in text that comes in pieces.
#[derive(Clone, Debug)]
pub struct ReasoningParser {
    place: Place,
    /// What could still become a tag, or belong to one.
    held: String,
}

impl ReasoningParser {
    /// For one answer to `prompt`, whose end tells whether the answer begins within a thought.
    pub fn new(format: ReasoningFormat, prompt: &str) -> Self {
        let place = match format {
            ReasoningFormat::None => Place::Said,
            ReasoningFormat::ThinkTags if prompt.trim_end().ends_with(OPEN) => Place::Opened,
            ReasoningFormat::ThinkTags if prompt.trim_end().ends_with(CLOSE) => Place::Closed,
            ReasoningFormat::ThinkTags => Place::Start,
        };
        Self { place, held: String::new() }
    }

    /// For an answer of which this much is there already.
    pub fn within(format: ReasoningFormat, begun: &str) -> Self {
        let mut parser = Self::new(format, "");
        parser.push(begun);
        // The rest of a tag would be the first to come. What is held back of text was told with the prompt.
        if matches!(parser.place, Place::Thought | Place::Said) {
            parser.held.clear();
        }
        parser
    }

    /// The next piece of text. What could still become a tag is held back.
    pub fn push(&mut self, text: &str) -> Split {
        let mut split = Split::default();
        if self.place == Place::Said {
            split.content.push_str(text);
            return split;
        }
        self.held.push_str(text);
        while self.step(&mut split) {}
        split
    }

    /// There is no more text: what was held back is what it looks like.
    pub fn finish(&mut self) -> Split {
        let held = std::mem::take(&mut self.held);
        match self.place {
            Place::Opened | Place::Thought => {
                Split { reasoning: held.trim_end_matches('\n').to_owned(), ..Split::default() }
            }
            Place::Closed => Split::default(),
            Place::Start | Place::Said => Split { content: held, ..Split::default() },
        }
    }

    /// Go on from one place to the next, as far as what is held allows; whether there may be more to do.
    fn step(&mut self, split: &mut Split) -> bool {
        match self.place {
            Place::Start => {
                let begun = self.held.trim_start();
                if let Some(rest) = begun.strip_prefix(OPEN) {
                    self.go(Place::Opened, rest.to_owned())
                } else if OPEN.starts_with(begun) {
                    false
                } else {
                    self.place = Place::Said;
                    true
                }
            }
            Place::Opened | Place::Closed => {
                let rest = self.held.trim_start_matches('\n').to_owned();
                if rest.is_empty() {
                    self.held.clear();
                    return false;
                }
                let next = if self.place == Place::Opened { Place::Thought } else { Place::Said };
                self.go(next, rest)
            }
            Place::Thought => {
                if let Some((thought, rest)) = self.held.split_once(CLOSE) {
                    split.reasoning.push_str(thought.trim_end_matches('\n'));
                    let rest = rest.to_owned();
                    return self.go(Place::Closed, rest);
                }
                let sure = sure(&self.held);
                split.reasoning.push_str(&self.held[..sure]);
                self.held.drain(..sure);
                false
            }
            Place::Said => {
                split.content.push_str(&self.held);
                self.held.clear();
                false
            }
        }
    }

    fn go(&mut self, place: Place, held: String) -> bool {
        self.place = place;
        self.held = held;
        true
    }
}

/// How much of a thought is surely one: all but what may begin the closing tag, and the line ends before that.
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
