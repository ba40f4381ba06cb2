//! Labelled requests, for training and evaluation.

use std::io::BufRead;

use serde::{Deserialize, Serialize};

use super::input::{Part, PartKind};

/// Bytes of a line that [`read_examples`] accepts.
const MAX_LINE: usize = 4 << 20;

/// A request and the class that serves it best. Its JSON is one line of a corpus.
///
/// # Example
///
/// ```
/// use l6_ensemble::router::read_examples;
///
/// let line = r#"{"label":"stl","package":"hand","parts":[{"kind":"user","text":"Sort this."}]}"#;
/// let examples = read_examples(line.as_bytes())?;
/// assert_eq!(examples[0].label, "stl");
/// # Ok::<(), l6_ensemble::router::ExampleError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Example {
    /// Class of the request, or [`REJECT`](super::REJECT).
    pub label: String,
    /// Package of which the text was made. A corpus is split by it.
    pub package: String,
    /// Declared intent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<String>,
    /// Parts of the request, oldest first.
    pub parts: Vec<ExamplePart>,
}

/// A part of an [`Example`], which owns its text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExamplePart {
    /// Kind of the part.
    pub kind: PartKind,
    /// Text of the part.
    pub text: String,
    /// Path of a snippet, name of a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Example {
    /// The parts as the router takes them.
    pub fn borrowed(&self) -> Vec<Part<'_>> {
        self.parts.iter().map(ExamplePart::as_part).collect()
    }
}

impl ExamplePart {
    /// The part as the router takes it.
    pub fn as_part(&self) -> Part<'_> {
        Part { kind: self.kind, text: &self.text, name: self.name.as_deref() }
    }
}

/// Why a corpus cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExampleError {
    /// The file cannot be read.
    #[error("cannot read the corpus: {0}")]
    Read(#[from] std::io::Error),
    /// A line is not an example.
    #[error(
        "line {line} of the corpus is no example: {reason}; a line is \
        {{\"label\": .., \"package\": .., \"parts\": [{{\"kind\": \"user\", \"text\": ..}}]}}"
    )]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

/// Reads a corpus: one JSON object a line. Empty lines are skipped.
///
/// # Errors
/// [`ExampleError`] for the first line that is no example, or is longer than 4 MiB.
pub fn read_examples(mut reader: impl BufRead) -> Result<Vec<Example>, ExampleError> {
    let mut examples = Vec::new();
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let limit = MAX_LINE as u64 + 1;
        if std::io::Read::take(&mut reader, limit).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        if bytes.len() > MAX_LINE {
            let reason = format!("it is longer than {MAX_LINE} bytes");
            return Err(ExampleError::Line { line, reason });
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        let example = serde_json::from_slice(&bytes)
            .map_err(|e| ExampleError::Line { line, reason: e.to_string() })?;
        examples.push(example);
    }
    Ok(examples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_line() {
        let good = r#"{"label":"stl","package":"p","parts":[]}"#;
        let text = format!("{good}\n\n{good}\n{{\"label\":1}}\n");
        let error = read_examples(text.as_bytes()).unwrap_err();
        assert!(matches!(error, ExampleError::Line { line: 4, .. }), "{error}");
        assert_eq!(read_examples(format!("{good}\n\n{good}").as_bytes()).unwrap().len(), 2);
    }

    #[test]
    fn a_line_without_an_end_is_not_read_whole() {
        let endless = std::io::BufReader::new(std::io::repeat(b'x'));
        let error = read_examples(endless).unwrap_err();
        assert!(matches!(error, ExampleError::Line { line: 1, .. }), "{error}");
    }
}
