//! Repeats a command whenever a source file changes.
//!
//! It polls all files a few times a second: a few hundred calls of `stat`, which cost little, work on every file
//! system, and need no library.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::Result;

use super::screen;

/// Time between two polls.
const PERIOD: Duration = Duration::from_millis(300);
/// Time without a change after which a change counts: editors write in several steps.
const QUIET: Duration = Duration::from_millis(120);

/// Every source file with its time and size.
type Snapshot = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

/// Run `work` now and after every change below `root`, until Ctrl-C.
pub fn run(root: &Path, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    repeat(work, &mut |seen| Some(wait(root, seen)), &mut || look(root))
}

/// Run `work` again and again; between runs `next` waits for a snapshot that differs from the one
/// taken before the run. Ends when `next` has nothing more to give.
fn repeat<S>(
    work: &mut dyn FnMut() -> Result<()>,
    next: &mut dyn FnMut(&S) -> Option<S>,
    look: &mut dyn FnMut() -> S,
) -> Result<()> {
    // Taken before the work, so that what is saved while it runs is not missed.
    let mut seen = look();
    loop {
        if io::stdout().is_terminal() {
            screen::print("\x1b[2J\x1b[H");
        }
        // An error may be gone after the next change: a file half saved, a folder moved.
        if let Err(error) = work() {
            screen::print(&format!("error: {error:#}\n"));
        }
        screen::print("\nwatching for changes; Ctrl-C ends it\n");
        match next(&seen) {
            Some(change) => seen = change,
            None => return Ok(()),
        }
    }
}

/// Wait until something is different, and then until nothing changes any more.
fn wait(root: &Path, seen: &Snapshot) -> Snapshot {
    loop {
        let mut now = look(root);
        if now != *seen {
            loop {
                thread::sleep(QUIET);
                let later = look(root);
                if later == now {
                    return now;
                }
                now = later;
            }
        }
        thread::sleep(PERIOD);
    }
}

/// The sources of every crate of the workspace. What cannot be read is as if it were not there.
fn look(root: &Path) -> Snapshot {
    let mut found = Snapshot::new();
    note(&root.join("Cargo.toml"), &mut found);
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let package = entry.path();
        note(&package.join("Cargo.toml"), &mut found);
        for folder in ["src", "tests", "cu"] {
            walk(&package.join(folder), &mut found);
        }
    }
    found
}

fn walk(dir: &Path, found: &mut Snapshot) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        // What a link leads to is looked at, but not walked through: it might lead back here.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&path, found),
            _ if path.extension().is_some_and(|e| e == "rs" || e == "cu" || e == "cuh") => {
                note(&path, found);
            }
            _ => {}
        }
    }
}

fn note(path: &Path, found: &mut Snapshot) {
    if let Ok(data) = fs::metadata(path)
        && data.is_file()
    {
        found.insert(path.into(), (data.modified().ok(), data.len()));
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn work_is_done_once_and_after_every_change_and_survives_errors() {
        let mut runs = 0;
        let mut work = || {
            runs += 1;
            if runs == 2 { bail!("half a file") } else { Ok(()) }
        };
        let mut changes = [1, 2, 3].into_iter();
        repeat(&mut work, &mut |_| changes.next(), &mut || 0).unwrap();
        assert_eq!(runs, 4);
    }

    #[test]
    fn a_change_during_the_work_counts_as_one_after_it() {
        // Time is the number of polls; a change is whatever differs.
        let now = std::cell::Cell::new(0);
        let mut work = || {
            now.set(now.get() + 1);
            Ok(())
        };
        let mut compared = Vec::new();
        let mut next = |seen: &i32| {
            compared.push((*seen, now.get()));
            if compared.len() < 3 { Some(now.get()) } else { None }
        };
        repeat(&mut work, &mut next, &mut || now.get()).unwrap();
        assert_eq!(compared, [(0, 1), (1, 2), (2, 3)], "seen is always older than the work");
    }

    #[test]
    fn edits_new_files_and_deleted_ones_are_changes_and_build_products_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let put = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("a/src/deep/x.rs", "1");
        put("a/tests/t.rs", "1");
        let first = look(root);
        assert_eq!(first.len(), 2);
        put("target/debug/x.rs", "1");
        put("a/src/notes.txt", "1");
        put(".strata/progress.json", "{}");
        assert_eq!(look(root), first);
        put("a/src/deep/x.rs", "22");
        let edited = look(root);
        assert_ne!(edited, first);
        put("a/src/y.rs", "");
        assert_ne!(look(root), edited);
        fs::remove_dir_all(root.join("a")).unwrap();
        assert_eq!(look(root), Snapshot::new());
        assert_eq!(look(&root.join("nowhere")), Snapshot::new());
    }

    #[test]
    fn a_change_is_noticed_and_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a/src/x.rs");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "1").unwrap();
        let seen = look(dir.path());
        let writer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            fs::write(&file, "two").unwrap();
        });
        let changed = wait(dir.path(), &seen);
        writer.join().unwrap();
        assert_eq!(changed.values().next().unwrap().1, 3);
    }
}
