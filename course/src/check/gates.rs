//! Whether the tests are still those that came with the course.

use std::process::Command;

use course_marks::Gate;

use super::places;
use crate::shell;
use crate::start::copy;
use crate::workspace::{Member, Workspace};

/// Files of the gates of a layer that are not as `cargo x start` wrote them, by their path in the
/// workspace. In the reference workspace every file is as it should be.
pub fn changed(workspace: &Workspace, member: &Member) -> Vec<String> {
    let Some(manifest) = &workspace.learner else { return Vec::new() };
    let folder = format!("{}/", member.layer.package);
    // What is gone, or cannot be read, is not as it was.
    let differs = |file: &String, was: &String| {
        copy::hash(&workspace.root.join(file)).map_or(true, |now| now != *was)
    };
    let of_member = manifest.gates.iter().filter(|(file, _)| file.starts_with(&folder));
    of_member.filter(|(file, hash)| differs(file, hash)).map(|(file, _)| file.clone()).collect()
}

/// Those among the changed files that may decide about these gates: the files that they are in, and
/// what tests share.
pub fn that_matter(changed: &[String], member: &Member, gates: &[Gate]) -> Vec<String> {
    let package = &member.layer.package;
    let own: Vec<String> = gates.iter().flat_map(places::candidates).collect();
    let matters = |file: &&String| {
        let inside = file.strip_prefix(package.as_str()).and_then(|f| f.strip_prefix('/'));
        inside.is_some_and(|f| {
            let shared = f.strip_prefix("tests/").is_some_and(|f| f.contains('/'));
            shared || own.iter().any(|o| o == f)
        })
    };
    changed.iter().filter(matters).cloned().collect()
}

/// The command that brings files back as they were at the start.
pub fn remedy(workspace: &Workspace, files: &[String]) -> String {
    let mut first = Command::new("git");
    first.args(["rev-list", "--max-parents=0", "--abbrev-commit", "HEAD"]);
    first.current_dir(&workspace.root);
    match shell::quiet_output(&mut first) {
        // Of the first commit, since the change may have been committed.
        Ok(said) => {
            let commit = said.lines().last().unwrap_or("HEAD").trim();
            format!("git restore --source {commit} {}", files.join(" "))
        }
        Err(_) => "copy it from the clone of Strata".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use course_marks::Layer;

    use super::*;
    use crate::workspace::Manifest;

    fn workspace(root: &std::path::Path) -> Workspace {
        let text = "layer = 'l1'\npackage = 'p'\ntitle = 'T'\n[[exercise]]\nid = 'l1.a'\n\
            title = 'A'\nchapter = 'c.md'\nminutes = 5\nhints = ['h']\ngates = ['f::t']\n";
        let layer = Layer::parse(text, std::path::Path::new("exercises.toml")).unwrap();
        let dir = root.join("p");
        fs::create_dir_all(dir.join("tests/support")).unwrap();
        let mut gates = BTreeMap::new();
        for file in ["p/tests/f.rs", "p/tests/g.rs", "p/tests/support/mod.rs"] {
            fs::write(root.join(file), file).unwrap();
            let hash = copy::hash(&root.join(file)).unwrap();
            gates.insert(file.to_string(), hash);
        }
        let learner = Some(Manifest { version: 1, layers: vec!["l1".into()], gates });
        let members = vec![Member { layer, reference: dir.clone(), dir }];
        Workspace { root: root.into(), members, learner }
    }

    #[test]
    fn edited_and_missing_files_are_found_and_matter_where_they_are_used() {
        let root = tempfile::tempdir().unwrap();
        let workspace = workspace(root.path());
        let member = &workspace.members[0];
        assert_eq!(changed(&workspace, member), Vec::<String>::new());
        fs::write(root.path().join("p/tests/f.rs"), "edited").unwrap();
        fs::write(root.path().join("p/tests/support/mod.rs"), "edited").unwrap();
        fs::remove_file(root.path().join("p/tests/g.rs")).unwrap();
        let all = changed(&workspace, member);
        assert_eq!(all, ["p/tests/f.rs", "p/tests/g.rs", "p/tests/support/mod.rs"]);
        let gates = &member.layer.exercises[0].gates;
        let these = that_matter(&all, member, gates);
        assert_eq!(these, ["p/tests/f.rs", "p/tests/support/mod.rs"], "g is another's gate");
    }

    #[test]
    fn in_the_reference_workspace_tests_may_be_edited() {
        let root = tempfile::tempdir().unwrap();
        let mut workspace = workspace(root.path());
        fs::write(root.path().join("p/tests/f.rs"), "edited").unwrap();
        workspace.learner = None;
        assert_eq!(changed(&workspace, &workspace.members[0]), Vec::<String>::new());
    }
}
