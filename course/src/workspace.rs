//! A workspace: its layers, and whether it is the reference or a learner's.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use course_marks::{CATALOGUE, Exercise, LEARNER_DIR, Layer, Sources};
use serde::{Deserialize, Serialize};

use crate::shell;

/// A workspace and its layers, in the order of the curriculum.
pub struct Workspace {
    /// The directory of the workspace.
    pub root: PathBuf,
    /// The layers that have exercises.
    pub members: Vec<Member>,
    /// Record of `cargo x start`; `None` in the reference workspace.
    pub learner: Option<Manifest>,
}

/// A workspace member that is a layer with exercises: its catalogue and its sources.
pub struct Member {
    /// Catalogue of the layer, as the reference has it.
    pub layer: Layer,
    /// The crate that is built and tested: the learner's, if there is one.
    pub dir: PathBuf,
    /// The crate with all bodies; the same as `dir` where nothing was taken out.
    pub reference: PathBuf,
}

/// An exercise in its place in the curriculum.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    /// The layer it belongs to.
    pub member: &'a Member,
    /// Its entry in the catalogue.
    pub exercise: &'a Exercise,
    /// Position in its layer, from 1.
    pub number: usize,
}

/// `l1.rms_norm, exercise 5 of 14: Root mean square norm, about 30 min`.
impl fmt::Display for Task<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, exercise, number } = self;
        let of = member.layer.exercises.len();
        let (id, title, minutes) = (&exercise.id, &exercise.title, exercise.minutes);
        write!(f, "{id}, exercise {number} of {of}: {title}, about {minutes} min")
    }
}

/// `.strata/course.json`: record of what `cargo x start` made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format.
    pub version: u32,
    /// The layers whose exercises were taken out.
    pub layers: Vec<String>,
    /// SHA-256 of every file that belongs to a gate, by its path in the workspace.
    pub gates: BTreeMap<String, String>,
}

impl Manifest {
    /// The version that this program writes and reads.
    pub const VERSION: u32 = 1;

    /// Path of the manifest in a workspace.
    pub fn path(root: &Path) -> PathBuf {
        root.join(LEARNER_DIR).join("course.json")
    }

    fn read(root: &Path) -> Result<Option<Self>> {
        if !root.join(LEARNER_DIR).is_dir() {
            return Ok(None);
        }
        let path = Self::path(root);
        let repair = || {
            format!(
                "{} cannot be read; restore it with `git checkout -- {LEARNER_DIR}/course.json`",
                path.display()
            )
        };
        let text = fs::read_to_string(&path).with_context(repair)?;
        let manifest: Self = serde_json::from_str(&text).with_context(repair)?;
        if manifest.version != Self::VERSION {
            bail!(
                "{} has version {}, but this program reads version {}",
                path.display(),
                manifest.version,
                Self::VERSION
            );
        }
        Ok(Some(manifest))
    }
}

impl Workspace {
    /// The workspace that this program belongs to.
    pub fn open() -> Result<Self> {
        Self::at(shell::root())
    }

    /// The workspace in a directory.
    pub fn at(root: &Path) -> Result<Self> {
        let learner = Manifest::read(root)?;
        let mut members = Vec::new();
        for entry in fs::read_dir(root).with_context(|| root.display().to_string())? {
            let dir = entry?.path();
            let copy = reference_dir(root, &dir.file_name().unwrap_or_default().to_string_lossy());
            let reference = if copy.is_dir() { copy } else { dir.clone() };
            if reference.join(CATALOGUE).is_file() {
                members.push(Member { layer: Layer::load(&reference)?, dir, reference });
            }
        }
        members.sort_by_key(|f| f.layer.turn());
        if members.is_empty() {
            bail!("there is no layer with an {CATALOGUE} below {}", root.display());
        }
        Ok(Self { root: root.into(), members, learner })
    }

    /// The layer with this id (`l1`) or with this name of its crate.
    pub fn member(&self, name: &str) -> Result<&Member> {
        let found = self.members.iter().find(|f| f.layer.id == name || f.layer.package == name);
        found.with_context(|| {
            let known: Vec<&str> = self.members.iter().map(|f| f.layer.id.as_str()).collect();
            format!("there is no layer `{name}`; the layers are {}", known.join(", "))
        })
    }

    /// The layers whose exercises the learner writes in this workspace; in the reference workspace, all layers.
    pub fn taught(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|f| match &self.learner {
            Some(manifest) => manifest.layers.contains(&f.layer.id),
            None => true,
        })
    }

    /// An exercise by its id, in its place.
    pub fn task(&self, id: &str) -> Result<Task<'_>> {
        let all = || self.members.iter().flat_map(Member::tasks);
        if let Some(found) = all().find(|t| t.exercise.id == id) {
            return Ok(found);
        }
        let name = id.rsplit('.').next().unwrap_or(id);
        let near = all().map(|t| t.exercise.id.as_str()).min_by_key(|known| {
            let known_name = known.rsplit('.').next().unwrap_or(known);
            edit_distance(known_name, name)
        });
        bail!(
            "there is no exercise `{id}`;{} `cargo x progress` lists them all",
            near.map(|n| format!(" did you mean {n}?")).unwrap_or_default()
        )
    }
}

impl Member {
    /// Its exercises in order.
    pub fn tasks(&self) -> impl Iterator<Item = Task<'_>> {
        let numbered = self.layer.exercises.iter().enumerate();
        numbered.map(|(n, exercise)| Task { member: self, exercise, number: n + 1 })
    }

    /// The reference's source with its marks.
    pub fn sources(&self) -> Result<Sources> {
        Ok(Sources::load(&self.reference)?)
    }
}

/// Where the reference of a crate lies in a learner's workspace.
pub fn reference_dir(root: &Path, package: &str) -> PathBuf {
    root.join(LEARNER_DIR).join("reference").join(package)
}

/// Number of letters to insert, delete or replace to turn one word into the other (Levenshtein, 1966).
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_nearest_to_a_typo_are_few_letters_away() {
        assert_eq!(edit_distance("rope", "rope"), 0);
        assert_eq!(edit_distance("rope", "roep"), 2);
        assert_eq!(edit_distance("softmax", "sofmax"), 1);
        assert_eq!(edit_distance("", "abc"), 3);
    }
}
