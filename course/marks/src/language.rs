//! The two languages that exercises are written in.

use crate::Exercise;
use crate::edit::todo_message;

/// What a source file is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// `.rs`
    Rust,
    /// `.cu` and `.cuh`
    Cuda,
}

impl Language {
    /// Of a file, by its ending.
    pub fn of(path: &str) -> Self {
        match path.rsplit('.').next() {
            Some("cu" | "cuh") => Self::Cuda,
            _ => Self::Rust,
        }
    }

    /// What stands in the place of a body that was taken out. It ends whatever reaches it and says which
    /// exercise it is.
    pub fn todo(self, exercise: &Exercise) -> String {
        let message = todo_message(exercise);
        match self {
            Self::Rust => format!("todo!(\"{message}\")"),
            Self::Cuda => format!("STRATA_TODO(\"{message}\")"),
        }
    }

    /// Whether a `todo` may be the value of a block.
    pub fn has_block_values(self) -> bool {
        self == Self::Rust
    }

    /// The question whether a switch is on.
    pub fn switch(self, name: &str) -> String {
        match self {
            Self::Rust => format!("crate::schemata::on(\"{name}\")"),
            Self::Cuda => format!("strata_switch(\"{name}\")"),
        }
    }

    /// A statement: `then` if the switch is on.
    pub fn when(self, name: &str, then: &str) -> String {
        let on = self.switch(name);
        match self {
            Self::Rust => format!("if {on} {{ {then} }}"),
            Self::Cuda => format!("if ({on}) {{ {then}; }}"),
        }
    }

    /// The original, or the first of `wrong` (switch and text) that is on: a statement if the original is
    /// one, else an expression.
    pub fn choice(self, original: &str, wrong: &[(String, &str)]) -> String {
        let statement = original.trim_end().ends_with([';', '}']);
        let mut text = String::new();
        match (self, statement) {
            (Self::Rust, _) | (Self::Cuda, true) => {
                for (name, wrong) in wrong {
                    let on = self.switch(name);
                    let on = if self == Self::Rust { on } else { format!("({on})") };
                    text.push_str(&format!("if {on} {{ {wrong} }} else "));
                }
                text.push_str(&format!("{{ {original} }}"));
            }
            (Self::Cuda, false) => {
                for (name, wrong) in wrong {
                    text.push_str(&format!("{} ? ({wrong}) : ", self.switch(name)));
                }
                text.push_str(&format!("({original})"));
            }
        }
        // Statements stand for themselves; an expression may be part of a larger one.
        if statement { text } else { format!("({text})") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_its_language_by_its_ending() {
        assert_eq!(Language::of("src/ops/rope.rs"), Language::Rust);
        assert_eq!(Language::of("cu/rope.cu"), Language::Cuda);
        assert_eq!(Language::of("cu/reduce.cuh"), Language::Cuda);
    }

    #[test]
    fn a_choice_is_an_expression_where_the_original_is_one() {
        let wrong = [("l0#1".to_string(), "x")];
        assert_eq!(
            Language::Cuda.choice("x + 1", &wrong),
            "(strata_switch(\"l0#1\") ? (x) : (x + 1))"
        );
        let wrong = [("l0#2".to_string(), "")];
        assert_eq!(
            Language::Cuda.choice("barrier();", &wrong),
            "if (strata_switch(\"l0#2\")) {  } else { barrier(); }"
        );
    }
}
