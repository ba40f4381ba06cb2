//! Compiled kernels, kept under the hash of what they were made from.
//!
//! Nothing here is ever stale: a file's name says what went into it, so another source, another compiler
//! or another option is another file. A file appears under its name when it is whole (it is written
//! beside it and renamed), so two processes that make the same one at once both end up with a good one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Strata's cache directory: `STRATA_CACHE`, else `strata` in the user's own. `None`: the user has no home. A
/// directory for
/// temporary files does not do, since everybody on the machine could put machine code there.
pub(crate) fn directory() -> Option<PathBuf> {
    directory_of(|name| std::env::var_os(name).map(PathBuf::from), std::env::home_dir())
}

/// The same for an environment given as a function, and the home that the system knows.
fn directory_of(get: impl Fn(&str) -> Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let path = |name: &str| get(name).filter(|path| !path.as_os_str().is_empty());
    if let Some(given) = path("STRATA_CACHE") {
        return Some(given);
    }
    // A relative one is to be ignored, says the XDG specification.
    let xdg = path("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let home = || path("HOME").or(home);
    Some(xdg.or_else(|| Some(home()?.join(".cache")))?.join("strata"))
}

/// The folder `kernels` of the cache.
fn folder() -> Result<PathBuf> {
    let directory = directory().ok_or_else(|| Error::Cache {
        path: "kernels".into(),
        why: "there is no home directory to keep compiled kernels in: set HOME, or STRATA_CACHE to a directory of \
              your own"
            .into(),
    })?;
    let folder = directory.join("kernels");
    owned::folder(&folder)?;
    Ok(folder)
}

/// What a compiled file is made from: its name tells any two apart that differ in anything.
pub(crate) struct Key {
    name: String,
    hash: Sha256,
}

impl Key {
    /// Prefix of a key; `name` is there for a person who lists the directory.
    pub(crate) fn new(name: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(name.as_bytes());
        Self { name: name.into(), hash }
    }

    /// One more thing that went in. Lengths are hashed too, so `ab` and `c` are not `a` and `bc`.
    #[must_use]
    pub(crate) fn with(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        self.hash.update((part.len() as u64).to_le_bytes());
        self.hash.update(part);
        self
    }

    /// The name of its file.
    pub(crate) fn file(self, extension: &str) -> String {
        let hash: String =
            self.hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{hash}.{extension}", self.name)
    }
}

/// The file of this key in the cache's folder `kernels`. If it is not there, `make` is given a path to
/// write it to.
///
/// # Errors
/// Those of `make`; [`Error::Cache`] when the cache cannot be written.
pub(crate) fn file(
    key: Key,
    extension: &str,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    file_in(&folder()?, key, extension, make)
}

/// The bytes of this key. Where there is no cache, or it cannot be written, they are made each time.
///
/// # Errors
/// Those of `make`.
pub(crate) fn bytes(
    key: Key,
    extension: &str,
    make: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    match folder() {
        Ok(folder) => bytes_in(&folder, key, extension, make),
        Err(_) => make(),
    }
}

fn file_in(
    folder: &Path,
    key: Key,
    extension: &str,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let path = folder.join(key.file(extension));
    if owned::file(&path) {
        return Ok(path);
    }
    let failed = |path: &Path, e: std::io::Error| Error::Cache {
        path: path.into(),
        why: format!("{e}; STRATA_CACHE names another directory"),
    };
    fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
    let unfinished = Unfinished(beside(&path));
    make(&unfinished.0)?;
    owned::close(&unfinished.0).map_err(|e| failed(&path, e))?;
    fs::rename(&unfinished.0, &path).map_err(|e| failed(&path, e))?;
    Ok(path)
}

fn bytes_in(
    folder: &Path,
    key: Key,
    extension: &str,
    make: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let path = folder.join(key.file(extension));
    match fs::read(&path) {
        Ok(bytes) if !bytes.is_empty() && owned::file(&path) => return Ok(bytes),
        _ => {}
    }
    let made = make()?;
    let unfinished = Unfinished(beside(&path));
    // What could not be kept is made again the next time, and that is all.
    let _ = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&unfinished.0, &made))
        .and_then(|()| owned::close(&unfinished.0))
        .and_then(|()| fs::rename(&unfinished.0, &path));
    Ok(made)
}

/// Ownership of files and directories: machine code is executed, so no other user may have written it.
mod owned {
    use std::fs;
    use std::path::Path;

    use super::{Error, Result};

    /// Write permission of the group and of others.
    #[cfg(unix)]
    const NOT_ALONE: u32 = 0o022;

    #[cfg(unix)]
    unsafe extern "C" {
        // SAFETY: POSIX's geteuid takes nothing, cannot fail and has no effect.
        safe fn geteuid() -> u32;
    }

    /// Whether it belongs to this user, or to the administrator, who can do anything already.
    #[cfg(unix)]
    fn trusted(owner: u32) -> bool {
        owner == geteuid() || owner == 0
    }

    /// Refuses a folder that another user owns. From one that is this user's, others lose the permission to write.
    pub(super) fn folder(path: &Path) -> Result<()> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt, PermissionsExt};
            // One that is not there yet is made with the permissions that the user's mask leaves, and looked at then.
            if fs::create_dir_all(path).is_err() {
                return Ok(());
            }
            let refused = |why: &str| Error::Cache {
                path: path.into(),
                why: format!(
                    "{why}, who could exchange compiled kernels; set STRATA_CACHE to a directory of your own"
                ),
            };
            let Ok(meta) = fs::metadata(path) else { return Ok(()) };
            if !trusted(meta.uid()) {
                return Err(refused("it belongs to another user"));
            }
            let mode = meta.permissions().mode();
            if mode & NOT_ALONE != 0 {
                let alone = fs::Permissions::from_mode(mode & !NOT_ALONE);
                fs::set_permissions(path, alone)
                    .map_err(|_| refused("it can be written by others"))?;
            }
        }
        #[cfg(not(unix))]
        let _ = path;
        Ok(())
    }

    /// Whether a file is there that no other user can have written.
    pub(super) fn file(path: &Path) -> bool {
        let Ok(meta) = fs::metadata(path) else { return false };
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            meta.is_file() && trusted(meta.uid()) && meta.mode() & NOT_ALONE == 0
        }
        #[cfg(not(unix))]
        meta.is_file()
    }

    /// Takes from others the permission to write to a file that was made here.
    pub(super) fn close(path: &Path) -> std::io::Result<()> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(path)?.permissions().mode();
            if mode & NOT_ALONE != 0 {
                fs::set_permissions(path, fs::Permissions::from_mode(mode & !NOT_ALONE))?;
            }
        }
        #[cfg(not(unix))]
        let _ = path;
        Ok(())
    }
}

/// A name in the same directory that no other process or thread uses.
fn beside(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{number}.part", std::process::id()));
    name.into()
}

/// A file that is removed unless it was renamed.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new("norm").with("source").with("sm_80")
    }

    #[test]
    fn what_was_made_once_is_not_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("kernels");
        let first = bytes_in(&folder, key(), "cubin", || Ok(vec![1, 2, 3])).unwrap();
        let again = bytes_in(&folder, key(), "cubin", || panic!("it is in the cache")).unwrap();
        assert_eq!((first, again), (vec![1, 2, 3], vec![1, 2, 3]));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing unfinished is left");
    }

    #[test]
    fn whatever_differs_is_another_file() {
        let names = [
            key().file("cubin"),
            key().file("so"),
            key().with("").file("cubin"),
            Key::new("rope").with("source").with("sm_80").file("cubin"),
            Key::new("norm").with("source").with("sm_90a").file("cubin"),
            Key::new("norm").with("sources").with("m_80").file("cubin"),
        ];
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name}");
        }
        assert_eq!(key().file("cubin"), names[0]);
    }

    #[test]
    fn a_failure_is_told_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let fails = |path: &Path| {
            fs::write(path, "half").unwrap();
            Err(Error::State("the compiler was killed".into()))
        };
        assert!(file_in(folder.path(), key(), "so", fails).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let made = file_in(folder.path(), key(), "so", |path| {
            fs::write(path, "whole").unwrap();
            Ok(())
        });
        assert_eq!(fs::read(made.unwrap()).unwrap(), b"whole");
    }

    #[test]
    fn an_empty_file_is_no_kernel() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(key().file("cubin")), "").unwrap();
        assert_eq!(bytes_in(folder.path(), key(), "cubin", || Ok(vec![7])).unwrap(), [7]);
    }

    #[test]
    fn a_cache_that_cannot_be_written_costs_time_and_not_the_kernel() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let folder = file.path().join("below-a-file");
        assert_eq!(bytes_in(&folder, key(), "cubin", || Ok(vec![7])).unwrap(), [7]);
        let error = file_in(&folder, key(), "so", |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("STRATA_CACHE"), "{error}");
    }

    #[test]
    fn the_directory_is_the_one_that_was_named() {
        fn of(vars: &[(&str, &str)]) -> PathBuf {
            directory_of(|name| vars.iter().find(|v| v.0 == name).map(|v| v.1.into()), None)
                .unwrap()
        }
        let home = ("HOME", "/home/ada");
        assert_eq!(of(&[("STRATA_CACHE", "/s"), home]), Path::new("/s"));
        assert_eq!(of(&[("STRATA_CACHE", ""), home]), Path::new("/home/ada/.cache/strata"));
        assert_eq!(of(&[("XDG_CACHE_HOME", "/x"), home]), Path::new("/x/strata"));
        assert_eq!(of(&[("XDG_CACHE_HOME", "x"), home]), Path::new("/home/ada/.cache/strata"));
    }
    #[test]
    fn without_a_home_there_is_no_directory() {
        assert_eq!(directory_of(|_| None, None), None);
        let home = Some(PathBuf::from("/home/ada"));
        assert_eq!(directory_of(|_| None, home).unwrap(), Path::new("/home/ada/.cache/strata"));
    }

    #[test]
    #[cfg(unix)]
    fn a_kernel_that_others_could_have_written_is_made_again() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let path = folder.path().join(key().file("cubin"));
        fs::write(&path, b"planted").unwrap();
        for open in [0o666, 0o664, 0o646] {
            mode(&path, open);
            let made = bytes_in(folder.path(), key(), "cubin", || Ok(b"made".to_vec())).unwrap();
            assert_eq!(made, b"made", "mode {open:o}");
            // What is kept now is this user's alone.
            let kept = bytes_in(folder.path(), key(), "cubin", || panic!("it is in the cache"));
            assert_eq!(kept.unwrap(), b"made");
        }
        mode(&path, 0o666);
        let made = file_in(folder.path(), key(), "cubin", |path| {
            fs::write(path, "again").unwrap();
            mode(path, 0o666);
            Ok(())
        });
        let made = made.unwrap();
        assert_eq!(fs::read(&made).unwrap(), b"again");
        assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o022, 0);
    }

    #[test]
    #[cfg(unix)]
    fn others_lose_the_permission_to_write_to_the_folder() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let kernels = folder.path().join("kernels");
        fs::create_dir(&kernels).unwrap();
        fs::set_permissions(&kernels, fs::Permissions::from_mode(0o777)).unwrap();
        owned::folder(&kernels).unwrap();
        assert_eq!(fs::metadata(&kernels).unwrap().permissions().mode() & 0o777, 0o755);
    }
}
