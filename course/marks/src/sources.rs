//! The source files of a layer with their marks, held against its catalogue.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::marks::{self, Region};
use crate::{CATALOGUE, CourseError, Layer, MarkProblem};

/// A source file that has marks in it.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Relative to the directory of the crate, with forward slashes.
    pub path: String,
    /// What is in it.
    pub text: String,
    /// Its regions, in order.
    pub regions: Vec<Region>,
}

/// A layer and its marked source files.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The catalogue.
    pub layer: Layer,
    /// Files with at least one region, ordered by path.
    pub files: Vec<SourceFile>,
}

impl Sources {
    /// Read the catalogue and the marks of the crate in `dir` and hold them against each other.
    ///
    /// # Errors
    /// [`CourseError`]: an unreadable file, a malformed catalogue, a mark that is wrong or unknown,
    /// an exercise that is marked nowhere.
    pub fn load(dir: &Path) -> Result<Self, CourseError> {
        let layer = Layer::load(dir)?;
        let files = read_marked(dir)?;
        let mut marked = BTreeSet::new();
        for file in &files {
            for region in &file.regions {
                if layer.exercise(&region.id).is_none() {
                    return Err(CourseError::Mark {
                        path: dir.join(&file.path),
                        line: region.begin + 1,
                        problem: MarkProblem::Unknown(region.id.clone()),
                    });
                }
                marked.insert(region.id.as_str());
            }
        }
        if let Some(e) = layer.exercises.iter().find(|e| !marked.contains(e.id.as_str())) {
            return Err(CourseError::Catalogue {
                path: dir.join(CATALOGUE),
                what: format!("{} is marked nowhere in src/ or cu/", e.id),
            });
        }
        Ok(Self { layer, files })
    }

    /// The regions of one exercise, each with its file.
    pub fn of<'a>(&'a self, id: &'a str) -> impl Iterator<Item = (&'a SourceFile, &'a Region)> {
        self.files
            .iter()
            .flat_map(move |f| f.regions.iter().filter(move |r| r.id == id).map(move |r| (f, r)))
    }

    /// How many lines the reference spends on an exercise, comments and blank lines left out.
    pub fn code_lines(&self, id: &str) -> usize {
        self.of(id).map(|(file, region)| region.code_lines(&file.text)).sum()
    }
}

/// The marked files of the crate in `dir`, whatever its catalogue says.
///
/// # Errors
/// [`CourseError::Read`] or [`CourseError::Mark`].
fn read_marked(dir: &Path) -> Result<Vec<SourceFile>, CourseError> {
    let mut files = Vec::new();
    for path in source_files(dir)? {
        let text = fs::read_to_string(&path)
            .map_err(|source| CourseError::Read { path: path.clone(), source })?;
        let regions = marks::regions(&text).map_err(|(line, problem)| CourseError::Mark {
            path: path.clone(),
            line: line + 1,
            problem,
        })?;
        if !regions.is_empty() {
            let parts = path.strip_prefix(dir).unwrap_or(&path).components();
            let path: Vec<_> = parts.map(|p| p.as_os_str().to_string_lossy()).collect();
            files.push(SourceFile { path: path.join("/"), text, regions });
        }
    }
    Ok(files)
}

/// The sources of the crate in `dir`, in a fixed order: `.rs` below `src/`, and, where there are
/// kernels, `.cu` and `.cuh` below `cu/`.
///
/// # Errors
/// [`CourseError::Read`].
pub fn source_files(dir: &Path) -> Result<Vec<PathBuf>, CourseError> {
    let mut files = rust_files(&dir.join("src"))?;
    let kernels = dir.join("cu");
    if kernels.is_dir() {
        files.extend(files_ending(&kernels, &["cu", "cuh"])?);
    }
    Ok(files)
}

/// Every `.rs` file below a directory, in a fixed order.
///
/// # Errors
/// [`CourseError::Read`].
pub fn rust_files(dir: &Path) -> Result<Vec<PathBuf>, CourseError> {
    files_ending(dir, &["rs"])
}

fn files_ending(dir: &Path, endings: &[&str]) -> Result<Vec<PathBuf>, CourseError> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        let unreadable = |source| CourseError::Read { path: dir.clone(), source };
        for entry in fs::read_dir(&dir).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| endings.iter().any(|ending| e == *ending)) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CATALOGUE_OF_ONE: &str = "layer = 'l1'\npackage = 'p'\ntitle = 'T'\n[[exercise]]\n\
        id = 'l1.a'\ntitle = 'A'\nchapter = 'c.md'\nminutes = 5\nhints = ['h']\ngates = ['f::t']\n";

    fn load(source: &str) -> Result<Sources, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("src/ops")).unwrap();
        fs::write(dir.path().join(CATALOGUE), CATALOGUE_OF_ONE).unwrap();
        fs::write(dir.path().join("src/lib.rs"), "mod ops;\n").unwrap();
        fs::write(dir.path().join("src/ops/mod.rs"), source).unwrap();
        Sources::load(dir.path()).map_err(|e| e.to_string())
    }

    #[test]
    fn an_exercise_may_have_several_regions() {
        let one = "// exercise l1.a\nx();\n// end of exercise\n";
        let sources = load(&one.repeat(2)).unwrap();
        assert_eq!(sources.files.len(), 1);
        assert_eq!(sources.files[0].path, "src/ops/mod.rs");
        assert_eq!(sources.of("l1.a").count(), 2);
        assert_eq!(sources.code_lines("l1.a"), 2);
    }

    #[test]
    fn marks_and_catalogue_must_agree() {
        let said = load("fn f() {}\n").unwrap_err();
        assert!(said.contains("l1.a is marked nowhere"), "{said}");
        let said = load("\n// exercise l1.b\nx();\n// end of exercise\n").unwrap_err();
        assert!(said.contains("mod.rs:2: exercise l1.b is not in exercises.toml"), "{said}");
        let said = load("// exercise l1.a\nx();\n").unwrap_err();
        assert!(said.contains("mod.rs:1: exercise l1.a is never ended"), "{said}");
    }
}
