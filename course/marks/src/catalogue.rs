//! What a layer says about its exercises: the file `exercises.toml` in its crate.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::{CourseError, Nudge, marks};

/// The name of the catalogue in the directory of a layer's crate.
pub const CATALOGUE: &str = "exercises.toml";

/// A layer of the course and its exercises, in the order of the curriculum.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// `l1`, `l2`, .., or that of the [fast track](marks::FAST_TRACK).
    #[serde(rename = "layer")]
    pub id: String,
    /// The crate, which is also the name of its folder.
    pub package: String,
    /// One or two words.
    pub title: String,
    /// At least one.
    #[serde(rename = "exercise")]
    pub exercises: Vec<Exercise>,
}

/// One exercise: an idea, in one or several marked regions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exercise {
    /// `l1.rms_norm`.
    pub id: String,
    /// A few words.
    pub title: String,
    /// The page that teaches it, below `book/src/`.
    pub chapter: String,
    /// About how long it takes.
    pub minutes: u32,
    /// Name of the side track that it belongs to, such as `gguf`. Without one it is on the main way.
    #[serde(default)]
    pub track: Option<String>,
    /// Hints for gates, shown in place of the first hint when one of them is the first that fails.
    #[serde(default)]
    pub nudges: Vec<Nudge>,
    /// One to three, from a nudge to nearly there.
    pub hints: Vec<String>,
    /// The tests that decide.
    pub gates: Vec<Gate>,
}

/// A test: which test program it is in, and its full name there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Gate {
    /// The integration test, or `lib` for the unit tests of the crate.
    pub target: String,
    /// As the test program lists it.
    pub test: String,
}

impl TryFrom<String> for Gate {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let plain = |s: &str| !s.is_empty() && !s.contains(char::is_whitespace);
        match text.split_once("::") {
            Some((target, test)) if plain(target) && plain(test) => {
                Ok(Self { target: target.into(), test: test.into() })
            }
            _ => Err(format!("`{text}` names no test; write `test_file::test_name`")),
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.target, self.test)
    }
}

impl Layer {
    /// Read and check the catalogue of the crate in `dir`.
    ///
    /// # Errors
    /// [`CourseError`], with the file and what to change.
    pub fn load(dir: &Path) -> Result<Self, CourseError> {
        let path = dir.join(CATALOGUE);
        let text = fs::read_to_string(&path)
            .map_err(|source| CourseError::Read { path: path.clone(), source })?;
        Self::parse(&text, &path)
    }

    /// Read and check a catalogue; `path` is for messages.
    ///
    /// # Errors
    /// As [`Layer::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, CourseError> {
        let layer: Self = toml::from_str(text)
            .map_err(|source| CourseError::Toml { path: path.into(), source: Box::new(source) })?;
        match layer.problem() {
            Some(what) => Err(CourseError::Catalogue { path: path.into(), what }),
            None => Ok(layer),
        }
    }

    /// The exercise with this id.
    pub fn exercise(&self, id: &str) -> Option<&Exercise> {
        self.exercises.iter().find(|e| e.id == id)
    }

    /// Its number: 1 for `l1`.
    pub fn number(&self) -> u32 {
        self.id.strip_prefix('l').and_then(|n| n.parse().ok()).unwrap_or(u32::MAX)
    }

    /// Position in the curriculum: the fast track, then by number, and `l0` last. The kernels are the lowest layer, but
    /// their chapters assume the layers above.
    pub fn turn(&self) -> u32 {
        match self.number() {
            _ if self.id == marks::FAST_TRACK => 0,
            0 => u32::MAX,
            number => number,
        }
    }

    fn problem(&self) -> Option<String> {
        if !marks::is_layer(&self.id) {
            let fast = marks::FAST_TRACK;
            return Some(format!("`{}` is no layer; they are called {fast}, l1, l2, ..", self.id));
        }
        if self.exercises.is_empty() {
            return Some("there is no exercise in it".into());
        }
        let mut seen = BTreeSet::new();
        self.exercises.iter().find_map(|e| {
            let id = &e.id;
            if !marks::is_id(id) || id.split('.').next() != Some(self.id.as_str()) {
                return Some(format!("`{id}` must look like `{}.name`", self.id));
            }
            if !seen.insert(id) {
                return Some(format!("{id} is there twice"));
            }
            let blank = |s: &String| s.trim().is_empty();
            if e.hints.is_empty() || e.hints.len() > 3 || e.hints.iter().any(blank) {
                return Some(format!(
                    "{id} has {} hints; it needs one to three, none of them empty",
                    e.hints.iter().filter(|h| !blank(h)).count()
                ));
            }
            if e.gates.is_empty() {
                return Some(format!("{id} has no gate: name the tests that decide"));
            }
            if let Some(problem) = Nudge::problem(&e.nudges, id, &e.gates) {
                return Some(problem);
            }
            if e.track.as_ref().is_some_and(blank) {
                return Some(format!("{id} has a track without a name"));
            }
            if blank(&e.title) || blank(&e.chapter) || e.minutes == 0 {
                return Some(format!("{id} needs a title, a chapter and its minutes"));
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogue(exercise: &str) -> Result<Layer, String> {
        let head = "layer = 'l1'\npackage = 'l1-tensor'\ntitle = 'Tensors'\n";
        let text = format!("{head}{exercise}");
        Layer::parse(&text, Path::new("exercises.toml")).map_err(|e| e.to_string())
    }

    fn entry(change: (&str, &str)) -> String {
        "[[exercise]]\nid = 'l1.a'\ntitle = 'A'\nchapter = 'c.md'\nminutes = 5\nhints = ['h']\n\
         gates = ['file::test']\n"
            .replace(change.0, change.1)
    }

    #[test]
    fn a_complete_catalogue_is_read() {
        let layer = catalogue(&entry(("", ""))).unwrap();
        assert_eq!((layer.number(), layer.exercises.len()), (1, 1));
        let gate = &layer.exercise("l1.a").unwrap().gates[0];
        assert_eq!((gate.target.as_str(), gate.test.as_str()), ("file", "test"));
        assert!(layer.exercise("l1.b").is_none());
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (change, said) in [
            (("['h']", "[]"), "l1.a has 0 hints"),
            (("['h']", "['h', ' ']"), "none of them empty"),
            (("['h']", "['a', 'b', 'c', 'd']"), "one to three"),
            (("['file::test']", "[]"), "l1.a has no gate"),
            (("file::test", "test"), "`test` names no test"),
            (("l1.a", "l2.a"), "`l2.a` must look like `l1.name`"),
            (("minutes = 5", "minutes = 0"), "its minutes"),
            (("title = 'A'\n", ""), "missing field `title`"),
            (("title", "titel"), "titel"),
        ] {
            let error = catalogue(&entry(change)).unwrap_err();
            assert!(error.contains(said), "{change:?}: {error}");
            assert!(error.starts_with("exercises.toml"), "{error}");
        }
        let twice = entry(("", "")).repeat(2);
        assert!(catalogue(&twice).unwrap_err().contains("l1.a is there twice"));
    }
}
