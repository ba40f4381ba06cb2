//! What can be measured of prose: its length, how easy it is to read, and words that this book avoids.

use std::collections::BTreeMap;

use pulldown_cmark::{Event, Tag, TagEnd};

use crate::math::{is_formula, line_of, markdown};

/// Words a minute, of a text that must be understood.
pub const WORDS_A_MINUTE: usize = 150;

/// Words for which the book has another one (CONTRIBUTING.md, "Words"), or which are no term of the field. Some are
/// right in another sense ("in place", "an agent's job"), so they are counted and not forbidden.
pub const AVOIDED: [&str; 34] = [
    "answer",
    "answered",
    "answers",
    "gave way",
    "give way",
    "gives way",
    "giving way",
    "haste",
    "job",
    "jobs",
    "law",
    "laws",
    "life",
    "may be said",
    "news",
    "piece",
    "pieces",
    "place",
    "places",
    "pressure",
    "question",
    "questions",
    "seam",
    "seams",
    "send away",
    "sends away",
    "telling",
    "throw out",
    "thrown out",
    "throws out",
    "told",
    "was said",
    "word",
    "words",
];

/// Words that no page may have, except in a quotation.
pub const BANNED: [&str; 6] = ["everybody", "for now", "nobody", "somebody", "the seam", "whoever"];

/// What a text belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A paragraph, or an item of a list.
    Prose,
    /// A heading, a cell of a table, or what stands for a picture.
    Other,
}

/// Text without markup. A code span is the word `code`, a formula is `x`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// What it is.
    pub kind: Kind,
    /// Line where it begins, counted from 1.
    pub line: usize,
    /// Its text, in one line.
    pub text: String,
}

/// Figures of a page.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// Words of prose: no code, tables or headings.
    pub words: usize,
    /// Flesch's reading ease: 60 is plain English, and more is easier.
    pub ease: f64,
    /// Words and phrases of [`AVOIDED`] in all text, each with how often it occurs.
    pub avoided: BTreeMap<&'static str, usize>,
}

impl Figures {
    /// Minutes to read the prose, rounded up.
    pub fn minutes(&self) -> usize {
        self.words.div_ceil(WORDS_A_MINUTE)
    }
}

/// The texts of a page, without code.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut kind = Kind::Prose;
    let mut code = false;
    // Whether the next text begins another block.
    let mut begin = true;
    for (event, range) in markdown(page).into_offset_iter() {
        let text = match event {
            Event::Start(Tag::CodeBlock(_)) => {
                code = true;
                continue;
            }
            Event::End(TagEnd::CodeBlock) => {
                code = false;
                begin = true;
                continue;
            }
            Event::Start(Tag::Heading { .. } | Tag::TableCell | Tag::Image { .. }) => {
                kind = Kind::Other;
                begin = true;
                continue;
            }
            Event::End(TagEnd::Heading(_) | TagEnd::TableCell | TagEnd::Image) => {
                kind = Kind::Prose;
                begin = true;
                continue;
            }
            Event::Start(Tag::Paragraph | Tag::Item)
            | Event::End(TagEnd::Paragraph | TagEnd::Item) => {
                begin = true;
                continue;
            }
            Event::Text(text) if !code => text.into_string(),
            Event::Code(_) => match is_formula(page, &range) {
                Ok(true) => "x".to_string(),
                _ => "code".to_string(),
            },
            Event::SoftBreak | Event::HardBreak => " ".to_string(),
            _ => continue,
        };
        if begin {
            let line = line_of(page, range.start);
            blocks.push(Block { kind, line, text: String::new() });
            begin = false;
        }
        if let Some(block) = blocks.last_mut() {
            block.text.push_str(&text);
        }
    }
    blocks
}

/// Figures of a page.
pub fn figures(page: &str) -> Figures {
    let blocks = blocks(page);
    let mut words = 0;
    let mut syllables_of_all = 0;
    let mut sentences = 0;
    let mut avoided = BTreeMap::new();
    for block in &blocks {
        let of_block = words_of(&block.text);
        for (phrase, count) in counts(&of_block, &AVOIDED) {
            *avoided.entry(phrase).or_default() += count;
        }
        if block.kind == Kind::Prose {
            words += of_block.len();
            syllables_of_all += of_block.iter().map(|word| syllables(word)).sum::<usize>();
            sentences += sentences_of(&block.text);
        }
    }
    let ease = if words == 0 {
        0.0
    } else {
        let a_sentence = words as f64 / sentences.max(1) as f64;
        206.835 - 1.015 * a_sentence - 84.6 * syllables_of_all as f64 / words as f64
    };
    Figures { words, ease, avoided }
}

/// The [`BANNED`] words of a page that are in no quotation, each behind its line.
pub fn banned(page: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for block in blocks(page) {
        let own: String = block.text.split('"').step_by(2).collect::<Vec<_>>().join(" ; ");
        let phrases = counts(&words_of(&own), &BANNED);
        found.extend(phrases.into_iter().map(|(phrase, _)| (block.line, phrase)));
    }
    found
}

/// Words in lower case. One begins with a letter; hyphens and apostrophes are part of it.
fn words_of(text: &str) -> Vec<String> {
    let part = |c: char| c.is_ascii_alphabetic() || c == '\'' || c == '-';
    let words = text.split(|c: char| !part(c));
    let words = words.map(|w| w.trim_matches(['\'', '-']).to_ascii_lowercase());
    words.filter(|w| !w.is_empty()).collect()
}

/// How often each phrase occurs, without those that do not.
fn counts(words: &[String], phrases: &[&'static str]) -> Vec<(&'static str, usize)> {
    let count = |phrase: &&'static str| {
        let wanted: Vec<&str> = phrase.split(' ').collect();
        let here = |window: &&[String]| window.iter().zip(&wanted).all(|(a, b)| a == b);
        let count = words.windows(wanted.len()).filter(here).count();
        (count > 0).then_some((*phrase, count))
    };
    phrases.iter().filter_map(count).collect()
}

/// Sentences: what ends with a mark before a space, or with the text, and has a letter.
fn sentences_of(text: &str) -> usize {
    let mut count = 0;
    let mut letter = false;
    let mut marked = false;
    for c in text.chars() {
        if marked && c.is_whitespace() && letter {
            count += 1;
            letter = false;
        }
        marked = ".!?:;".contains(c) || marked && "\")".contains(c);
        letter |= c.is_alphabetic();
    }
    count + usize::from(letter)
}

/// Syllables of a word: groups of vowels, without a silent `e` at its end.
fn syllables(word: &str) -> usize {
    let vowel = |c: char| "aeiouy".contains(c);
    let groups = word.split(|c| !vowel(c)).filter(|group| !group.is_empty()).count();
    let silent = word.ends_with('e') && !word.ends_with("le") && groups > 1;
    (groups - usize::from(silent)).max(1)
}
