//! Wraps streamed text into lines that end between words.
//!
//! A terminal breaks a line at its last column, in the middle of a word. Here a word is buffered until it is complete,
//! and goes to the next line if it does not fit on this one. The output depends on the text alone, not on its chunks.

use unicode_width::UnicodeWidthChar;

/// Columns from one tab stop to the next.
const TAB_COLUMNS: usize = 8;

/// Breaks a text into lines of at most `width` columns. Line ends of the text stay; lines that fit stay as they are.
#[derive(Debug)]
pub struct Wrap {
    width: usize,
    /// The column behind what was written.
    column: usize,
    /// White space before the word, which is dropped where a line is broken.
    space: String,
    /// The beginning of a word.
    word: String,
    word_width: usize,
    /// Whether the word continues one whose beginning was written, because it is longer than a line.
    continues: bool,
}

impl Wrap {
    /// Wraps for a terminal of `width` columns.
    pub fn new(width: usize) -> Self {
        Self {
            width: width.max(1),
            column: 0,
            space: String::new(),
            word: String::new(),
            word_width: 0,
            continues: false,
        }
    }

    /// Takes a chunk of the text, and returns the output so far.
    pub fn push(&mut self, chunk: &str) -> String {
        let mut out = String::with_capacity(chunk.len());
        for c in chunk.chars() {
            self.take(c, &mut out);
        }
        out
    }

    /// Ends the text, and returns what was buffered.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.write_word(&mut out);
        self.write_space(&mut out);
        (self.column, self.continues) = (0, false);
        out
    }

    fn take(&mut self, c: char, out: &mut String) {
        match c {
            '\n' => {
                out.push_str(&self.finish());
                out.push('\n');
            }
            ' ' | '\t' => {
                self.write_word(out);
                self.continues = false;
                self.space.push(c);
            }
            c => {
                let width = c.width().unwrap_or(0);
                // Scripts without spaces: a line may end between any two such characters.
                let wide = width > 1;
                if wide {
                    self.write_word(out);
                    self.continues = false;
                }
                self.word.push(c);
                self.word_width += width;
                // No line can hold the whole word, so it is not buffered.
                let too_long = self.word_width > self.width;
                if wide || too_long {
                    self.write_word(out);
                    self.continues = too_long;
                }
            }
        }
    }

    /// Writes the word, on the next line if it does not fit on this one.
    fn write_word(&mut self, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let end = self.end_of_space() + self.word_width;
        if end > self.width && self.column > 0 && !self.continues {
            self.space.clear();
            self.end_line(out);
        }
        self.write_space(out);
        for c in std::mem::take(&mut self.word).chars() {
            let width = c.width().unwrap_or(0);
            if self.column + width > self.width && self.column > 0 {
                self.end_line(out);
            }
            out.push(c);
            self.column += width;
        }
        self.word_width = 0;
    }

    /// Writes the white space, as far as it fits.
    fn write_space(&mut self, out: &mut String) {
        for c in std::mem::take(&mut self.space).chars() {
            let end = after(self.column, c);
            if end > self.width {
                break;
            }
            out.push(c);
            self.column = end;
        }
    }

    fn end_of_space(&self) -> usize {
        self.space.chars().fold(self.column, after)
    }

    fn end_line(&mut self, out: &mut String) {
        out.push('\n');
        self.column = 0;
    }
}

/// The column behind white space that begins at a column.
fn after(column: usize, c: char) -> usize {
    match c {
        '\t' => (column / TAB_COLUMNS + 1) * TAB_COLUMNS,
        _ => column + 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_width::UnicodeWidthStr;

    use super::*;

    fn wrapped(width: usize, text: &str) -> String {
        let mut wrap = Wrap::new(width);
        wrap.push(text) + &wrap.finish()
    }

    #[test]
    fn lines_end_between_words() {
        let text = "The sea is wide and deep.";
        assert_eq!(wrapped(10, text), "The sea is\nwide and\ndeep.");
        assert_eq!(wrapped(25, text), text);
        assert_eq!(wrapped(24, text), "The sea is wide and\ndeep.");
    }

    #[test]
    fn a_word_that_is_longer_than_a_line_fills_lines() {
        assert_eq!(wrapped(5, "a abcdefghijkl b"), "a\nabcde\nfghij\nkl b");
        assert_eq!(wrapped(1, "ab c"), "a\nb\nc");
    }

    #[test]
    fn lines_of_the_text_stay_with_their_indentation() {
        let code = "fn main() {\n    let x = 1;\n\n\tx;\n}\n";
        assert_eq!(wrapped(20, code), code);
        assert_eq!(wrapped(12, "    one two three"), "    one two\nthree");
        assert_eq!(wrapped(8, "ab cd   \nef"), "ab cd   \nef");
        // Spaces that have no room are not carried over to the next line.
        assert_eq!(wrapped(6, "ab cd     \nef"), "ab cd \nef");
        assert_eq!(wrapped(6, "ab cd     ef"), "ab cd\nef");
    }

    #[test]
    fn wide_characters_take_two_columns_and_need_no_space_between_them() {
        assert_eq!(wrapped(6, "日本語の文"), "日本語\nの文");
        assert_eq!(wrapped(5, "日本語"), "日本\n語");
        let mut wrap = Wrap::new(80);
        assert_eq!(wrap.push("日本"), "日本", "nothing is buffered");
        // An accent belongs to the letter before it.
        assert_eq!(wrapped(4, "cafe\u{301} au"), "cafe\u{301}\nau");
    }

    #[test]
    fn a_word_is_buffered_until_it_is_complete() {
        let mut wrap = Wrap::new(10);
        assert_eq!(wrap.push("one tw"), "one");
        assert_eq!(wrap.push("o thr"), " two");
        assert_eq!(wrap.push("ee"), "");
        assert_eq!(wrap.finish(), "\nthree");
        assert_eq!(wrap.push("again") + &wrap.finish(), "again", "a new text begins in column 0");
    }

    proptest! {
        #[test]
        fn the_output_does_not_depend_on_the_chunks(
            text in "([a-c]{0,6}|[ ]{1,3}|\n|\t|日|é|e\u{301}|👍){0,40}",
            width in 1usize..20,
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let chars: Vec<char> = text.chars().collect();
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(chars.len() + 1)).collect();
            at.extend([0, chars.len()]);
            at.sort_unstable();
            let mut wrap = Wrap::new(width);
            let chunks = at.windows(2).map(|ends| chars[ends[0]..ends[1]].iter().collect::<String>());
            let mut out: String = chunks.map(|chunk| wrap.push(&chunk)).collect();
            out += &wrap.finish();
            prop_assert_eq!(&out, &wrapped(width, &text));
            // No character is lost but white space, and no line is too long: a wide one alone may be.
            let solid = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(solid(&out), solid(&text));
            for line in out.lines().filter(|line| !line.contains('\t')) {
                prop_assert!(line.width() <= width.max(2), "{:?} in {} columns", line, width);
            }
        }
    }
}
