//! Mutants: small wrong versions of the reference, of the kind that people really write.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::{CourseError, Layer};

/// A wrong version: where it differs from the reference, and its story.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    /// Its number within its layer: what its file's name begins with.
    #[serde(skip)]
    pub number: u32,
    /// What is wrong, in a few words.
    pub title: String,
    /// The exercise whose gate must notice.
    pub exercise: String,
    /// The file, relative to the top of the workspace.
    pub file: String,
    /// What the reference says. Occurs exactly once in the file.
    pub original: String,
    /// What the mutant says instead.
    pub mutant: String,
    /// Why people write this, and what they see then. Told afterwards.
    pub story: String,
    /// What a user would notice. Told at once.
    pub symptom: String,
    /// Ids of exercises among which a diagnosis chooses; the right one is one of them.
    pub choices: Vec<String>,
}

impl Mutant {
    /// What switches it on in the copy made by [`schemata`](crate::schemata).
    pub fn switch(&self) -> String {
        format!("{}#{}", self.layer(), self.number)
    }

    /// The layer it is a mutant of.
    pub fn layer(&self) -> &str {
        self.exercise.split('.').next().unwrap_or_default()
    }

    /// Its file, relative to the directory of the layer's crate.
    pub fn file_in(&self, layer: &Layer) -> &str {
        let below = self.file.strip_prefix(layer.package.as_str());
        below.and_then(|f| f.strip_prefix('/')).unwrap_or(&self.file)
    }

    /// The mutants of a layer, by number: the TOML files in `mutants/<layer>/` of a workspace.
    /// A layer without that folder has none. `reference` is the directory of the layer's crate as
    /// the reference has it: every mutant must fit there.
    ///
    /// # Errors
    /// [`CourseError`] with the file and what to change.
    pub fn load_all(
        root: &Path,
        layer: &Layer,
        reference: &Path,
    ) -> Result<Vec<Self>, CourseError> {
        let dir = root.join("mutants").join(&layer.id);
        if !dir.is_dir() {
            return Ok(Vec::new());
        }
        let unreadable = |source| CourseError::Read { path: dir.clone(), source };
        let mut all = Vec::new();
        for entry in fs::read_dir(&dir).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.extension().is_some_and(|e| e == "toml") {
                all.push(Self::load(layer, reference, &path)?);
            }
        }
        all.sort_by_key(|m| m.number);
        for (i, mutant) in all.iter().enumerate() {
            if mutant.number as usize != i + 1 {
                let what = format!("mutants are numbered 1, 2, ..; there is no number {}", i + 1);
                return Err(CourseError::Catalogue { path: dir, what });
            }
        }
        Ok(all)
    }

    fn load(layer: &Layer, reference: &Path, path: &Path) -> Result<Self, CourseError> {
        let read = |path: &Path| {
            fs::read_to_string(path)
                .map_err(|source| CourseError::Read { path: path.into(), source })
        };
        let mut mutant: Self = toml::from_str(&read(path)?)
            .map_err(|source| CourseError::Toml { path: path.into(), source: Box::new(source) })?;
        let bad = |what: String| CourseError::Catalogue { path: path.into(), what };
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let number = stem.split('-').next().and_then(|n| n.parse().ok());
        mutant.number = number.ok_or_else(|| {
            bad("the name of the file must begin with a number: 07-name.toml".into())
        })?;
        // TOML's multi-line strings end with the line break before the closing quotes.
        for text in [&mut mutant.original, &mut mutant.mutant] {
            *text = text.trim_matches('\n').into();
        }
        if layer.exercise(&mutant.exercise).is_none() {
            return Err(bad(format!("`{}` is no exercise of {}", mutant.exercise, layer.id)));
        }
        if mutant.choices.len() < 3 || !mutant.choices.contains(&mutant.exercise) {
            return Err(bad("choices: at least three exercises, the right one among them".into()));
        }
        let times = read(&reference.join(mutant.file_in(layer)))?.matches(&mutant.original).count();
        if times != 1 {
            return Err(bad(format!(
                "`original` must occur once in {}, it occurs {times} times",
                mutant.file
            )));
        }
        Ok(mutant)
    }

    /// The text of its file with the mistake in it. `None` if the text is not the reference's.
    pub fn apply(&self, text: &str) -> Option<String> {
        (text.matches(&self.original).count() == 1)
            .then(|| text.replacen(&self.original, &self.mutant, 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "title = 'T'\nexercise = 'l1.a'\nfile = 'p/a.rs'\nstory = 's'\n\
        symptom = 'y'\nchoices = ['l1.a', 'l1.b', 'l1.c']\noriginal = '''\nx + 1\n'''\n\
        mutant = 'x + 2'\n";

    fn layer() -> Layer {
        let text = "layer = 'l1'\npackage = 'p'\ntitle = 'T'\n[[exercise]]\nid = 'l1.a'\n\
            title = 'A'\nchapter = 'c.md'\nminutes = 5\nhints = ['h']\ngates = ['f::t']\n";
        Layer::parse(text, Path::new("exercises.toml")).unwrap()
    }

    fn load(name: &str, text: &str) -> Result<Vec<Mutant>, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("mutants/l1")).unwrap();
        fs::create_dir_all(dir.path().join("p")).unwrap();
        fs::write(dir.path().join("p/a.rs"), "fn f(x: u8) -> u8 { x + 1 }").unwrap();
        fs::write(dir.path().join("mutants/l1").join(name), text).unwrap();
        Mutant::load_all(dir.path(), &layer(), &dir.path().join("p")).map_err(|e| e.to_string())
    }

    #[test]
    fn a_mutant_changes_one_place() {
        let all = load("01-t.toml", GOOD).unwrap();
        assert_eq!((all[0].number, all[0].switch().as_str()), (1, "l1#1"));
        assert_eq!(all[0].apply("f(x + 1)").as_deref(), Some("f(x + 2)"));
        assert_eq!(all[0].apply("f(x + 1 + x + 1)"), None);
        assert_eq!(all[0].apply("learner's own"), None);
    }

    #[test]
    fn what_is_wrong_with_a_mutant_is_said() {
        for (name, change, said) in [
            ("t.toml", ("", ""), "must begin with a number"),
            ("02-t.toml", ("", ""), "there is no number 1"),
            ("01-t.toml", ("x + 1", "x + 3"), "occurs 0 times"),
            ("01-t.toml", ("x + 1", "x"), "occurs 2 times"),
            ("01-t.toml", ("= 'l1.a'", "= 'l2.a'"), "`l2.a` is no exercise of l1"),
            ("01-t.toml", ("'l1.a', 'l1.b'", "'l1.d', 'l1.b'"), "choices"),
            ("01-t.toml", ("p/a.rs", "p/b.rs"), "b.rs"),
            ("01-t.toml", ("title", "titel"), "titel"),
        ] {
            let error = load(name, &GOOD.replace(change.0, change.1)).unwrap_err();
            assert!(error.contains(said), "{change:?}: {error}");
        }
    }

    #[test]
    fn a_layer_without_the_folder_has_no_mutants() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Mutant::load_all(dir.path(), &layer(), dir.path()).unwrap().is_empty());
    }
}
