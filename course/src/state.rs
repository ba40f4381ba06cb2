//! State that is kept between commands: hints shown, exercises revealed, exercises that passed.
//!
//! The file is `.strata/progress.json` of a learner's workspace. It is not trusted: running the gates decides whether
//! an exercise passes. A file that cannot be read is renamed, and a new one is begun.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use course_marks::{LEARNER_DIR, Language, sources};
use serde::{Deserialize, Serialize};

use super::workspace::{Member, Task, Workspace};

/// The version of the file that this program writes and reads.
const VERSION: u32 = 1;

/// What is remembered of one exercise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Number of its hints that were shown.
    pub hints: usize,
    /// Whether the reference's body was shown.
    pub revealed: bool,
    /// When all its gates passed for the first time, in seconds since 1970.
    pub first_green: Option<u64>,
    /// Whether they passed when they were last run.
    pub holds: bool,
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
struct File {
    version: u32,
    exercises: BTreeMap<String, Record>,
}

/// The state, and its file.
#[derive(Debug)]
pub struct State {
    /// `None`: no file is written. The reference workspace keeps no state, and a file that can be neither read nor renamed
    /// is not overwritten.
    path: Option<PathBuf>,
    exercises: BTreeMap<String, Record>,
}

impl State {
    /// Reads what is remembered in this workspace. Problems with the file are printed on stderr.
    pub fn load(workspace: &Workspace) -> Self {
        let nothing = Self { path: None, exercises: BTreeMap::new() };
        if workspace.learner.is_none() {
            return nothing;
        }
        let (state, complaint) =
            Self::read(&workspace.root.join(LEARNER_DIR).join("progress.json"));
        if let Some(complaint) = complaint {
            eprintln!("{complaint}\n");
        }
        state
    }

    fn read(path: &Path) -> (Self, Option<String>) {
        let fresh = |path| Self { path, exercises: BTreeMap::new() };
        let problem = match fs::read_to_string(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return (fresh(Some(path.into())), None);
            }
            Err(e) => e.to_string(),
            Ok(text) => match parse(&text) {
                Ok(exercises) => return (Self { path: Some(path.into()), exercises }, None),
                Err(problem) => problem,
            },
        };
        let shown = |p: &Path| {
            format!("{LEARNER_DIR}/{}", p.file_name().unwrap_or_default().to_string_lossy())
        };
        let name = shown(path);
        match put_aside(path) {
            Ok(aside) => {
                let complaint = format!(
                    "{name} cannot be read ({problem}).\nIt is kept as {}, and a new file is begun.\n\
                     Your code is not affected: `cargo x progress` checks again which exercises pass.",
                    shown(&aside)
                );
                (fresh(Some(path.into())), Some(complaint))
            }
            Err(e) => {
                let complaint = format!(
                    "{name} cannot be read ({problem}) and cannot be renamed ({e:#}). \
                     It is left as it is; no progress is saved until you move it."
                );
                (fresh(None), Some(complaint))
            }
        }
    }

    /// Whether state is kept in this workspace.
    pub fn is_kept(&self) -> bool {
        self.path.is_some()
    }

    /// What is remembered of an exercise.
    pub fn of(&self, id: &str) -> Record {
        self.exercises.get(id).cloned().unwrap_or_default()
    }

    /// Change what is remembered of an exercise.
    pub fn change(&mut self, id: &str, change: impl FnOnce(&mut Record)) {
        change(self.exercises.entry(id.into()).or_default());
    }

    /// Remember that the gates of an exercise passed, or that one did not.
    pub fn verified(&mut self, id: &str, holds: bool) {
        if !holds && !self.exercises.contains_key(id) {
            return;
        }
        self.change(id, |record| {
            record.holds = holds;
            if holds {
                record.first_green = record.first_green.or_else(now);
            }
        });
    }

    /// Writes the file, all or nothing.
    pub fn save(&self) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let file = File { version: VERSION, exercises: self.exercises.clone() };
        let text = serde_json::to_string_pretty(&file)? + "\n";
        let draft = path.with_extension(format!("json.new-{}", std::process::id()));
        let written = fs::File::create(&draft)
            .and_then(|mut f| f.write_all(text.as_bytes()).and_then(|()| f.sync_all()))
            .and_then(|()| fs::rename(&draft, path));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    /// The first exercise that is still blank, or did not pass when last checked. Reads the sources and builds nothing.
    /// `None` when all passed.
    pub fn first_open<'a>(&self, workspace: &'a Workspace) -> Result<Option<Task<'a>>> {
        for member in workspace.taught() {
            let blank = Blanks::of(member)?;
            let open = |t: &Task| blank.has(t) || !self.of(&t.exercise.id).holds;
            if let Some(task) = member.tasks().find(open) {
                return Ok(Some(task));
            }
        }
        Ok(None)
    }
}

/// The sources of a layer, to see which exercises still have their `todo!`.
pub struct Blanks {
    text: String,
}

impl Blanks {
    /// Of the crate that is built and tested.
    pub fn of(member: &Member) -> Result<Self> {
        let mut text = String::new();
        for path in sources::source_files(&member.dir)? {
            // The compiler reports a file that is incomplete or not text.
            text.push_str(&fs::read_to_string(path).unwrap_or_default());
        }
        Ok(Self { text })
    }

    /// Whether the exercise's `todo!` is still somewhere.
    pub fn has(&self, task: &Task) -> bool {
        let said = [Language::Rust, Language::Cuda].map(|language| language.todo(task.exercise));
        said.iter().any(|todo| self.text.contains(todo))
    }
}

fn parse(text: &str) -> Result<BTreeMap<String, Record>, String> {
    // The version first: a later one may look different.
    let value: serde_json::Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    match value["version"].as_u64() {
        Some(v) if v == u64::from(VERSION) => {}
        Some(v) => {
            return Err(format!("it has version {v}, but this program reads version {VERSION}"));
        }
        None => return Err("it names no version".into()),
    }
    let file: File = serde_json::from_value(value).map_err(|e| e.to_string())?;
    Ok(file.exercises)
}

/// Rename to the first free one of `progress.json.broken`, `progress.json.broken.2`, ..
fn put_aside(path: &Path) -> Result<PathBuf> {
    let broken = format!("{}.broken", path.display());
    let candidates = (1..).map(|n| match n {
        1 => PathBuf::from(&broken),
        n => PathBuf::from(format!("{broken}.{n}")),
    });
    let mut free = candidates.filter(|p| fs::symlink_metadata(p).is_err());
    let aside = free.next().context("no free name")?;
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn now() -> Option<u64> {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("progress.json");
        (dir, path)
    }

    #[test]
    fn what_is_written_is_read_again() {
        let (_dir, path) = place();
        let (mut state, complaint) = State::read(&path);
        assert_eq!(complaint, None, "no file is no trouble");
        state.change("l1.a", |r| r.hints = 2);
        state.verified("l1.b", true);
        state.save().unwrap();
        let (mut again, complaint) = State::read(&path);
        assert_eq!((complaint, again.of("l1.a").hints), (None, 2));
        let first = again.of("l1.b").first_green;
        assert!(first.is_some() && again.of("l1.b").holds && !again.of("l1.a").holds);
        again.verified("l1.b", false);
        assert_eq!((again.of("l1.b").first_green, again.of("l1.b").holds), (first, false));
        assert_eq!(again.of("l1.unknown"), Record::default());
        let names = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(names, 1, "no draft is left behind");
    }

    #[test]
    fn a_file_that_cannot_be_used_is_kept_and_never_overwritten() {
        let (_dir, path) = place();
        let bad =
            ["{ not json", "[]", "{\"version\": 99}", "{\"version\": 1, \"exercises\": 3}", "\0"];
        for (n, bad) in bad.iter().enumerate() {
            fs::write(&path, bad).unwrap();
            let (state, complaint) = State::read(&path);
            let complaint = complaint.unwrap();
            let suffix = if n == 0 { String::new() } else { format!(".{}", n + 1) };
            let aside = PathBuf::from(format!("{}.broken{suffix}", path.display()));
            let name = aside.file_name().unwrap().to_string_lossy();
            assert!(complaint.contains(&*name), "{complaint}");
            assert_eq!(fs::read_to_string(&aside).unwrap(), *bad);
            state.save().unwrap();
            assert_eq!(State::read(&path).1, None, "the new one is fine");
        }
        for (n, bad) in bad.iter().enumerate().skip(1) {
            let kept = fs::read_to_string(format!("{}.broken.{}", path.display(), n + 1));
            assert_eq!(kept.unwrap(), *bad, "earlier ones are still there");
        }
    }

    #[test]
    fn a_newer_version_is_said_to_be_newer() {
        let (_dir, path) = place();
        fs::write(&path, "{\"version\": 7, \"exercises\": {}}").unwrap();
        assert!(
            State::read(&path).1.unwrap().contains("version 7, but this program reads version 1")
        );
    }

    #[test]
    fn a_file_that_is_no_file_is_moved_too() {
        let (_dir, path) = place();
        fs::create_dir(&path).unwrap();
        let (state, complaint) = State::read(&path);
        assert!(complaint.is_some());
        state.save().unwrap();
        assert!(path.is_file());
    }
}
