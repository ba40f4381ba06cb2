//! Which exercises of its layer an exercise builds on: `course/needs.toml`.
//!
//! `cargo x proof` measures it: an exercise needs another one if some gate of it fails while the other one is blank.
//! The file has direct needs only. If `c` needs `b` and `b` needs `a`, then `a` is not listed for `c`. Layers are not in
//! it, because an exercise never waits for another layer: what you have not written there uses the reference.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use course_marks::Layer;
use serde::Deserialize;

use crate::proof;
use crate::start::copy;

/// Path of the file in a workspace.
pub const PATH: &str = "course/needs.toml";

const HEADER: &str = "\
# Which exercises of its layer each exercise builds on: their gates fail without those.
# Measured and written by `cargo x proof`; the map of the exercises is drawn from it.
";

/// Direct needs of all exercises.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Needs {
    /// By layer and by exercise, both without the layer's prefix.
    layers: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

impl Needs {
    /// Reads the file of a workspace. Without a file, nothing is known.
    ///
    /// # Errors
    /// A file in another format.
    pub fn read(root: &Path) -> Result<Self> {
        proof::read(root, PATH)
    }

    /// Ids of the exercises that this one builds on directly, in the order of the course; `None` if they were never
    /// measured.
    pub fn of(&self, id: &str) -> Option<Vec<String>> {
        let (layer, name) = id.split_once('.')?;
        let needs = self.layers.get(layer)?.get(name)?;
        Some(needs.iter().map(|need| format!("{layer}.{need}")).collect())
    }

    /// Sets the needs of a layer. `measured` lists for each exercise, by its position, the positions of those without
    /// which its gates fail.
    pub fn set(&mut self, layer: &Layer, measured: &[BTreeSet<usize>]) {
        let name = |at: usize| {
            let id = layer.exercises[at].id.as_str();
            id.split_once('.').map_or(id, |(_, name)| name).to_string()
        };
        let direct = direct(measured);
        let needs = direct.iter().enumerate().map(|(at, needs)| {
            let needs: Vec<String> = needs.iter().map(|need| name(*need)).collect();
            (name(at), needs)
        });
        self.layers.insert(layer.id.clone(), needs.collect());
    }

    /// Takes over what another one says of a layer.
    pub fn take(&mut self, other: &Self, layer: &Layer) {
        if let Some(needs) = other.layers.get(&layer.id) {
            self.layers.insert(layer.id.clone(), needs.clone());
        }
    }

    /// Whether both say the same of a layer.
    pub fn agree(&self, other: &Self, layer: &Layer) -> bool {
        self.layers.get(&layer.id) == other.layers.get(&layer.id)
    }

    /// Writes the file of a workspace, in the order of the course.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write<'a>(&self, root: &Path, layers: impl Iterator<Item = &'a Layer>) -> Result<()> {
        let mut text = HEADER.to_string();
        for layer in layers {
            let Some(known) = self.layers.get(&layer.id) else { continue };
            text.push_str(&format!("\n[{}]\n", layer.id));
            for exercise in &layer.exercises {
                let (_, name) = exercise.id.split_once('.').unwrap_or_default();
                let Some(needs) = known.get(name) else { continue };
                let needs: Vec<String> = needs.iter().map(|need| format!("\"{need}\"")).collect();
                text.push_str(&format!("{name} = [{}]\n", needs.join(", ")));
            }
        }
        copy::write_if_new(&root.join(PATH), text.as_bytes())
    }
}

/// Leaves out what is needed through another one.
fn direct(measured: &[BTreeSet<usize>]) -> Vec<BTreeSet<usize>> {
    let direct = |needs: &BTreeSet<usize>| {
        let through = |need: &usize| {
            needs.iter().any(|other| other != need && measured[*other].contains(need))
        };
        needs.iter().copied().filter(|need| !through(need)).collect()
    };
    measured.iter().map(direct).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::workspace::Workspace;

    fn sets(needs: &[&[usize]]) -> Vec<BTreeSet<usize>> {
        needs.iter().map(|needs| needs.iter().copied().collect()).collect()
    }

    #[test]
    fn what_is_needed_through_another_exercise_is_left_out() {
        let measured = sets(&[&[], &[0], &[0, 1], &[0], &[0, 1, 2, 3]]);
        assert_eq!(direct(&measured), sets(&[&[], &[0], &[1], &[0], &[2, 3]]));
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("course")).unwrap();
        assert_eq!(Needs::read(dir.path()).unwrap(), Needs::default());
        let workspace = Workspace::open().unwrap();
        let layer = &workspace.member("l4").unwrap().layer;
        let mut measured = vec![BTreeSet::new(); layer.exercises.len()];
        measured[2] = BTreeSet::from([0, 1]);
        let mut needs = Needs::default();
        needs.set(layer, &measured);
        needs.write(dir.path(), workspace.members.iter().map(|m| &m.layer)).unwrap();
        let read = Needs::read(dir.path()).unwrap();
        assert_eq!(read, needs);
        let ids = |at: usize| layer.exercises[at].id.clone();
        assert_eq!(read.of(&ids(2)), Some(vec![ids(0), ids(1)]));
        assert_eq!((read.of(&ids(0)), read.of("l1.unknown")), (Some(vec![]), None));
        fs::write(dir.path().join(PATH), "l1 = 3").unwrap();
        assert!(Needs::read(dir.path()).unwrap_err().to_string().contains("cargo x proof --all"));
    }

    #[test]
    fn the_needs_of_every_exercise_were_measured() {
        let workspace = Workspace::open().unwrap();
        let needs = Needs::read(&workspace.root).unwrap();
        for member in &workspace.members {
            let ids: Vec<&str> = member.layer.exercises.iter().map(|e| e.id.as_str()).collect();
            assert_eq!(needs.layers[&member.layer.id].len(), ids.len(), "{}", member.layer.id);
            for (at, id) in ids.iter().enumerate() {
                let of_it = needs.of(id).unwrap_or_else(|| panic!("{id} is not in {PATH}"));
                let earlier = of_it.iter().all(|need| ids[..at].contains(&need.as_str()));
                assert!(earlier, "{id} needs {of_it:?}: the order of the exercises is wrong");
            }
        }
    }
}
