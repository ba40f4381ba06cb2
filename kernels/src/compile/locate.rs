//! Where NVIDIA's run-time compiler may be.
//!
//! It comes with the CUDA toolkit, with PyTorch, with one pip package; each puts it elsewhere, and only
//! the first where the system's loader looks.

use std::fs;
use std::path::{Path, PathBuf};

/// Its names, the version that is preferred first.
pub(super) const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// Where it lies inside a Python's `site-packages`: NVIDIA's packages since CUDA 13, and before.
const IN_SITE_PACKAGES: [&str; 2] = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"];

/// What to try, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Candidates {
    /// Said by `STRATA_NVRTC`: then nothing else is tried.
    pub(super) given: Option<PathBuf>,
    /// Files that are there.
    pub(super) files: Vec<PathBuf>,
}

/// The candidates of an environment (a variable's value by its name) and a cache directory, if there is one.
pub(super) fn candidates(
    get: impl Fn(&str) -> Option<PathBuf>,
    cache: Option<&Path>,
) -> Candidates {
    let get = |name: &str| get(name).filter(|path| !path.as_os_str().is_empty());
    if let Some(given) = get("STRATA_NVRTC") {
        let files = if given.is_dir() { in_directory(&given) } else { vec![given.clone()] };
        return Candidates { given: Some(given), files };
    }
    let mut directories = Vec::new();
    // Where `cargo x nvrtc` puts it, then toolkits, then Pythons.
    let fetched = cache.map(|cache| cache.join("nvrtc"));
    directories
        .extend(fetched.iter().flat_map(|root| IN_SITE_PACKAGES.map(|place| root.join(place))));
    for variable in ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"] {
        directories.extend(get(variable).iter().flat_map(|root| of_toolkit(root)));
    }
    for root in beginning_with(Path::new("/usr/local"), "cuda") {
        directories.extend(of_toolkit(&root));
    }
    directories.extend(of_toolkit(Path::new("/opt/cuda")));
    for prefix in pythons(&get) {
        directories.push(prefix.join("lib"));
        for lib in beginning_with(&prefix.join("lib"), "python3") {
            for packages in ["site-packages", "dist-packages"] {
                directories.extend(IN_SITE_PACKAGES.map(|place| lib.join(packages).join(place)));
            }
        }
    }
    let mut files: Vec<PathBuf> = Vec::new();
    for file in directories.iter().flat_map(|directory| in_directory(directory)) {
        if !files.contains(&file) {
            files.push(file);
        }
    }
    Candidates { given: None, files }
}

fn of_toolkit(root: &Path) -> Vec<PathBuf> {
    let targets = beginning_with(&root.join("targets"), "");
    let libs = targets.into_iter().map(|target| target.join("lib"));
    [root.join("lib64"), root.join("lib")].into_iter().chain(libs).collect()
}

/// Prefixes under which Pythons keep their packages: active environments, the user's own, and every
/// one whose `python3` can be called.
fn pythons(get: &impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|v| get(v)).collect();
    prefixes.extend(get("HOME").map(|home| home.join(".local")));
    let path = get("PATH").unwrap_or_default();
    for bin in std::env::split_paths(&path).filter(|bin| bin.join("python3").exists()) {
        prefixes.extend(bin.parent().map(Path::to_path_buf));
    }
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    prefixes
}

/// The compiler's libraries in a directory, the preferred one first.
fn in_directory(directory: &Path) -> Vec<PathBuf> {
    let named = NAMES.iter().map(|name| directory.join(name));
    named.filter(|path| path.is_file()).collect()
}

/// Entries of a directory whose names begin so, later versions first.
pub(super) fn beginning_with(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Empty files in a directory of their own.
    fn tree(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        root
    }

    /// What is found below `root` with these variables, relative to it.
    fn found(root: &Path, variables: &[(&str, &str)]) -> Vec<String> {
        let get = |name: &str| {
            let value = variables.iter().find(|v| v.0 == name)?.1;
            Some(root.join(value))
        };
        let found = candidates(get, Some(&root.join("cache")));
        let below = found.files.iter().filter_map(|path| path.strip_prefix(root).ok());
        below.map(|path| path.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn packages_toolkits_and_the_cache_are_searched() {
        let places = [
            "cache/nvrtc/nvidia/cu13/lib/libnvrtc.so.13",
            "toolkit/targets/x86_64-linux/lib/libnvrtc.so.12",
            "venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
            "home/.local/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "opt/lib/python3.10/dist-packages/nvidia/cu13/lib/libnvrtc.so.13",
        ];
        let root = tree(&[&places[..], &["opt/bin/python3"]].concat());
        let variables = [
            ("CUDA_HOME", "toolkit"),
            ("VIRTUAL_ENV", "venv"),
            ("HOME", "home"),
            ("PATH", "opt/bin"),
        ];
        assert_eq!(found(root.path(), &variables), places);
    }

    #[test]
    fn what_was_named_is_all_that_is_tried() {
        let root = tree(&[
            "a/libnvrtc.so.12",
            "a/libnvrtc.so.13",
            "cache/nvrtc/nvidia/cu13/lib/libnvrtc.so.13",
        ]);
        let named = |value| found(root.path(), &[("STRATA_NVRTC", value)]);
        assert_eq!(named("a"), ["a/libnvrtc.so.13", "a/libnvrtc.so.12"]);
        assert_eq!(named("a/libnvrtc.so.12"), ["a/libnvrtc.so.12"]);
        assert_eq!(named("missing"), ["missing"]);
    }

    #[test]
    fn companions_are_not_taken_for_it() {
        let lib = "cache/nvrtc/nvidia/cu13/lib";
        let root = tree(&[
            &format!("{lib}/libnvrtc-builtins.so.13.0"),
            &format!("{lib}/libnvrtc.alt.so.13"),
        ]);
        assert_eq!(found(root.path(), &[]), [""; 0]);
    }
}
