//! What has been proven, so that it is not proven again: `course/proven.toml`.
//!
//! The gates of a layer are a function of its sources, tests, exercises and mutants, of the sources of the layers
//! below, and of what instruments them. The receipt holds a SHA-256 of all these for each layer, as it was when the
//! layer's gates were last run. A layer whose hash differs is *stale*. A receipt may be wrong, by mistake or by hand,
//! so one more layer is *drawn* by the commit's hash and proven whatever the receipt says: a false receipt is found
//! within a few commits.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::shell;
use crate::start::copy;
use crate::workspace::{Member, Workspace};

/// Where the receipt is, from the top of the workspace.
pub const PATH: &str = "course/proven.toml";

const HEADER: &str = "\
# What `cargo x proof` has proven: for each layer a SHA-256 of everything that its gates depend on.
# Written by `cargo x proof`. `cargo x proof --all` proves everything, whatever this file says.
";

/// What builds and judges the instrumented copy: a change of it makes every layer stale.
const INSTRUMENTS: [&str; 5] = [
    "course/marks/src",
    "course/marks/Cargo.toml",
    "course/src/proof/schemata.rs",
    "course/src/programs.rs",
    "course/src/programs",
];

/// What the build and the tests of every layer read.
const SHARED: [&str; 3] = ["Cargo.toml", "Cargo.lock", "fixtures"];

/// What has been proven.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// By the id of a layer, the hash of what was proven.
    #[serde(default)]
    layers: BTreeMap<String, String>,
}

impl Receipt {
    /// Reads the receipt of a workspace. Without a file nothing has been proven.
    ///
    /// # Errors
    /// A file that is no receipt.
    pub fn read(root: &Path) -> Result<Self> {
        super::read(root, PATH)
    }

    /// Whether the gates of a layer were run on exactly these inputs.
    pub fn covers(&self, layer: &str, hash: &str) -> bool {
        self.layers.get(layer).is_some_and(|proven| proven == hash)
    }

    /// Notes that the gates of a layer hold.
    pub fn add(&mut self, layer: &str, hash: String) {
        self.layers.insert(layer.into(), hash);
    }

    /// Writes the receipt of a workspace.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, root: &Path) -> Result<()> {
        let mut text = format!("{HEADER}\n[layers]\n");
        for (layer, hash) in &self.layers {
            text.push_str(&format!("{layer} = \"{hash}\"\n"));
        }
        copy::write_if_new(&root.join(PATH), text.as_bytes())
    }
}

/// What the gates of all layers depend on, as it is in a workspace now: a digest of each file. Layers share most of their
/// files, and each file is read once.
pub struct Inputs<'a> {
    workspace: &'a Workspace,
    digests: BTreeMap<PathBuf, [u8; 32]>,
}

impl<'a> Inputs<'a> {
    /// Reads the files.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(workspace: &'a Workspace) -> Result<Self> {
        let mut digests = BTreeMap::new();
        for file in copy::tree(&workspace.root)? {
            if workspace.members.iter().any(|member| depends_on(workspace, member, &file)) {
                let bytes = fs::read(workspace.root.join(&file))
                    .with_context(|| file.display().to_string())?;
                // Git may give a text other line ends elsewhere.
                let text: Vec<u8> = bytes.into_iter().filter(|byte| *byte != b'\r').collect();
                digests.insert(file, Sha256::digest(&text).into());
            }
        }
        Ok(Self { workspace, digests })
    }

    /// The hash of all that the gates of a layer depend on.
    pub fn hash(&self, member: &Member) -> String {
        let mut hasher = Sha256::new();
        for (file, digest) in &self.digests {
            if depends_on(self.workspace, member, file) {
                let name = file.to_string_lossy().replace('\\', "/");
                hasher.update((name.len() as u64).to_le_bytes());
                hasher.update(name.as_bytes());
                hasher.update(digest);
            }
        }
        hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Whether the gates of a layer depend on a file.
fn depends_on(workspace: &Workspace, member: &Member, file: &Path) -> bool {
    let is_below = |other: &Member| {
        let package = &other.layer.package;
        let inside = file.strip_prefix(package);
        other.layer.id < member.layer.id
            && inside.is_ok_and(|path| {
                let apart = ["tests", "benches", "examples"].iter().any(|d| path.starts_with(d));
                !apart || is_shared_by_tests(&workspace.root.join(package), path)
            })
    };
    file.starts_with(&member.layer.package)
        || file.starts_with(Path::new("mutants").join(&member.layer.id))
        || INSTRUMENTS.iter().chain(&SHARED).any(|path| file.starts_with(path))
        || workspace.members.iter().any(is_below)
}

/// Whether a file of a package is a module of tests and not a test program: tests of the layers above may include it by
/// its path. Such a module lies in a folder of `tests/` that has no `main.rs`.
fn is_shared_by_tests(package: &Path, file: &Path) -> bool {
    let mut parts = file.iter();
    match (parts.next(), parts.next(), parts.next()) {
        (Some(tests), Some(folder), Some(_)) if tests == "tests" => {
            !package.join("tests").join(folder).join("main.rs").exists()
        }
        _ => false,
    }
}

/// What is to be proven now.
pub struct Due<'a> {
    /// Layers whose inputs are not those of the receipt.
    pub stale: Vec<&'a Member>,
    /// The layer that the commit's hash draws.
    pub drawn: &'a Member,
}

impl<'a> Due<'a> {
    /// Compares a workspace with its receipt.
    ///
    /// # Errors
    /// As [`Receipt::read`] and [`Inputs::read`].
    pub fn of(workspace: &'a Workspace) -> Result<Self> {
        let receipt = Receipt::read(&workspace.root)?;
        let inputs = Inputs::read(workspace)?;
        let covers = |member: &Member| receipt.covers(&member.layer.id, &inputs.hash(member));
        let stale = workspace.members.iter().filter(|member| !covers(member)).collect();
        let mut git = Command::new("git");
        let commit =
            shell::quiet_output(git.args(["rev-parse", "HEAD"]).current_dir(&workspace.root));
        let at = draw(commit.unwrap_or_default().trim(), workspace.members.len());
        let drawn = workspace.members.get(at).context("there is no layer")?;
        Ok(Self { stale, drawn })
    }

    /// Stale and drawn layers, each once, in the order of the course.
    pub fn layers(&self, workspace: &'a Workspace) -> Vec<&'a Member> {
        let due = |member: &&Member| {
            let same = |other: &Member| other.layer.id == member.layer.id;
            same(self.drawn) || self.stale.iter().any(|stale| same(stale))
        };
        workspace.members.iter().filter(due).collect()
    }

    /// Why these layers, for the screen.
    pub fn explain(&self) -> String {
        let stale: Vec<&str> = self.stale.iter().map(|member| member.layer.id.as_str()).collect();
        let stale = match stale.as_slice() {
            [] => format!("{PATH} covers every layer"),
            stale => format!("{PATH} does not cover {}", stale.join(", ")),
        };
        format!("{stale}; the commit draws {}", self.drawn.layer.id)
    }
}

/// The layer, of `layers`, that is proven whatever the receipt says. Without a commit it is the first.
fn draw(commit: &str, layers: usize) -> usize {
    let digest = Sha256::digest(commit.as_bytes());
    let number = digest.iter().take(8).fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    (number % layers.max(1) as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const CATALOGUE: &str = "layer = 'L'\npackage = 'P'\ntitle = 'T'\n[[exercise]]\nid = 'L.a'\n\
        title = 'A'\nchapter = 'c.md'\nminutes = 5\nhints = ['h']\ngates = ['f::t']\n";

    /// A workspace of two layers, without git.
    fn workspace() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (layer, package) in [("l1", "one"), ("l2", "two")] {
            let text = CATALOGUE.replace('L', layer).replace('P', package);
            write(&format!("{package}/exercises.toml"), &text);
            let source = format!("// exercise {layer}.a\nx();\n// end of exercise\n");
            write(&format!("{package}/src/lib.rs"), &source);
            write(&format!("{package}/tests/f.rs"), "t");
            write(&format!("mutants/{layer}/01-m.toml"), "m");
        }
        write("course/marks/src/lib.rs", "c");
        write("README.md", "r");
        dir
    }

    fn hashes(dir: &Path) -> (String, String) {
        let workspace = Workspace::at(dir).unwrap();
        let inputs = Inputs::read(&workspace).unwrap();
        let of = |layer| inputs.hash(workspace.member(layer).unwrap());
        (of("l1"), of("l2"))
    }

    #[test]
    fn a_hash_depends_on_what_gates_depend_on() {
        let dir = workspace();
        let before = hashes(dir.path());
        for (file, one, two) in [
            ("README.md", false, false),
            ("one/tests/f.rs", true, false),
            ("one/src/lib.rs", true, true),
            ("one/Cargo.toml", true, true),
            ("two/src/new.rs", false, true),
            ("two/tests/f.rs", false, true),
            ("mutants/l2/02-n.toml", false, true),
            ("course/marks/src/lib.rs", true, true),
            ("Cargo.lock", true, true),
            ("fixtures/tiny/config.json", true, true),
            // Tests of the layers above may include a module by its path, and no test program.
            ("one/tests/support/counting.rs", true, true),
            ("one/tests/program/main.rs", true, false),
            ("two/tests/support/counting.rs", false, true),
        ] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let old = fs::read(&path).ok();
            let text = [old.clone().unwrap_or_default(), b"\n// changed\n".to_vec()].concat();
            fs::write(&path, text).unwrap();
            let now = hashes(dir.path());
            assert_eq!((before.0 != now.0, before.1 != now.1), (one, two), "{file}");
            match old {
                Some(old) => fs::write(&path, old).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
        }
        let lines = fs::read_to_string(dir.path().join("one/src/lib.rs")).unwrap();
        fs::write(dir.path().join("one/src/lib.rs"), lines.replace('\n', "\r\n")).unwrap();
        assert_eq!(hashes(dir.path()), before, "line ends");
    }

    #[test]
    fn what_the_receipt_does_not_cover_is_stale() {
        let dir = workspace();
        let stale = || {
            let workspace = Workspace::at(dir.path()).unwrap();
            let due = Due::of(&workspace).unwrap();
            due.stale.iter().map(|member| member.layer.id.clone()).collect::<Vec<_>>()
        };
        assert_eq!(stale(), ["l1", "l2"]);
        let (one, two) = hashes(dir.path());
        let mut receipt = Receipt::default();
        receipt.add("l1", one);
        receipt.add("l2", two);
        receipt.write(dir.path()).unwrap();
        assert_eq!(Receipt::read(dir.path()).unwrap(), receipt);
        assert_eq!(stale(), Vec::<String>::new());
        fs::write(dir.path().join("two/src/new.rs"), "new").unwrap();
        assert_eq!(stale(), ["l2"]);
        let workspace = Workspace::at(dir.path()).unwrap();
        let due = Due::of(&workspace).unwrap();
        assert!(due.layers(&workspace).iter().any(|member| member.layer.id == "l2"));
        assert!(due.explain().contains("does not cover l2"), "{}", due.explain());
    }

    #[test]
    fn a_receipt_that_cannot_be_read_says_what_to_do() {
        let dir = workspace();
        fs::write(dir.path().join(PATH), "layers = 3").unwrap();
        let error = Receipt::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("cargo x proof --all"), "{error}");
    }

    #[test]
    fn commits_draw_every_layer() {
        let mut drawn = [0; 6];
        (0..600).for_each(|n| drawn[draw(&format!("{n:040x}"), 6)] += 1);
        assert!(drawn.iter().all(|times| *times > 50), "{drawn:?}");
        assert_eq!(draw("abc", 6), draw("abc", 6));
        assert_eq!(draw("", 1), 0);
    }
}
