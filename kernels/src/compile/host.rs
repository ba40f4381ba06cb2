//! The host's C++ compiler: kernels for a CPU that stands in for a device.
//!
//! `shim/*.cpp` becomes the library that stands in for the driver. A file of `cu/` becomes a library of
//! its own: `shim/cuda.hpp` goes in front of it, so that CUDA's words mean something to g++, and behind it
//! goes, for every kernel, a function that takes its arguments as the driver's launch passes them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{HEADERS, Source, cache};
use crate::error::{Error, Result};

/// What the compiler is asked to build in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Sanitize {
    /// Nothing but traps for indices outside of arrays, addresses that are not aligned, shifts by more
    /// than there are bits.
    #[default]
    Off,
    /// AddressSanitizer: reads and writes outside of a variable end the process with a report. Its
    /// library has to be loaded first (`LD_PRELOAD`).
    Address,
}

impl Sanitize {
    /// As `STRATA_SHIM_SANITIZE` says: `address`, or nothing.
    ///
    /// # Errors
    /// [`Error::State`] for anything else.
    pub fn from_env() -> Result<Self> {
        match std::env::var("STRATA_SHIM_SANITIZE").as_deref() {
            Err(_) | Ok("" | "off") => Ok(Self::Off),
            Ok("address") => Ok(Self::Address),
            Ok(other) => Err(Error::State(format!(
                "STRATA_SHIM_SANITIZE={other} is neither address nor off"
            ))),
        }
    }
}

macro_rules! shim {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../shim/", $name)))),*]
    };
}

/// What the stand-in is made of; only the `.cpp` are compiled.
const LIBRARY: &[(&str, &str)] = shim!(
    "driver.cpp",
    "graphs.cpp",
    "modules.cpp",
    "memory.cpp",
    "launch.cpp",
    "runner.cpp",
    "collectives.cpp",
    "reports.cpp",
    "switch.cpp",
    "driver.hpp",
    "memory.hpp",
    "fibers.hpp",
    "runner.hpp",
    "switch.hpp",
    "runtime.hpp",
);

/// What is put in front of a kernel.
const LANGUAGE: &[(&str, &str)] = shim!("cuda.hpp", "warp.hpp", "ptx.hpp", "runtime.hpp");

/// One rounding for each operation that is written, as on a device without `-fmad`. An explicit `fmaf` is
/// one operation everywhere.
const COMMON: &[&str] = &[
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",
    "-pthread",
];

/// How dynamic shared memory is declared in `cu/`. C++ has no such thing, so the declaration is taken out,
/// and `dynamic_shared` is a macro.
const DYNAMIC: &str = "extern __shared__ STRATA_ALIGNED(16) unsigned char dynamic_shared[];";

/// Build (or find in the cache) the library that stands in for the driver.
///
/// # Errors
/// [`Error::NoCompiler`], [`Error::Compile`], [`Error::Cache`].
pub fn host_library() -> Result<PathBuf> {
    let compiler = compiler()?;
    let mut key = cache::Key::new("libcuda").with(&compiler.version);
    for flag in COMMON {
        key = key.with(flag);
    }
    for (name, text) in LIBRARY {
        key = key.with(name).with(text);
    }
    one_at_a_time("libcuda", || {
        cache::file(key, "so", |path| {
            let folder = Folder::new(path)?;
            folder.write(LIBRARY)?;
            let mut command = compiler.command();
            command.args(COMMON).arg("-Wl,-soname,libcuda.so");
            for (name, _) in LIBRARY.iter().filter(|(name, _)| name.ends_with(".cpp")) {
                command.arg(folder.0.join(name));
            }
            compiler.run(command.arg("-ldl").arg("-o").arg(path), "the shim")
        })
    })
}

/// What the stand-in's `cuModuleLoadData` wants: the path of a compiled file.
pub(super) fn image(source: &Source) -> Result<Vec<u8>> {
    let path = module(source.name, source.text, Sanitize::from_env()?)?;
    let mut image = b"strata shim module\n".to_vec();
    image.extend_from_slice(path.as_os_str().as_encoded_bytes());
    image.extend_from_slice(b"\n\0");
    Ok(image)
}

/// The library of a file of `cu/`.
fn module(name: &str, text: &str, sanitize: Sanitize) -> Result<PathBuf> {
    let compiler = compiler()?;
    let flags = kernel_flags(compiler, sanitize);
    let generated = generate(name, text)?;
    let mut key = cache::Key::new(name).with(&compiler.version).with(&generated);
    for flag in COMMON.iter().chain(&flags) {
        key = key.with(flag);
    }
    for (name, text) in LANGUAGE {
        key = key.with(name).with(text);
    }
    for header in HEADERS {
        key = key.with(header.name).with(header.text);
    }
    one_at_a_time(name, || {
        cache::file(key, "so", |path| {
            let folder = Folder::new(path)?;
            folder.write(LANGUAGE)?;
            for header in HEADERS {
                folder.write(&[(&format!("{}.cuh", header.name), &plain(header.text))])?;
            }
            let file = format!("{name}.cu.cpp");
            folder.write(&[(&file, &generated)])?;
            let mut command = compiler.command();
            command.args(COMMON).args(&flags).arg("-include").arg(folder.0.join("cuda.hpp"));
            command.arg("-I").arg(&folder.0).arg(folder.0.join(&file)).arg("-o").arg(path);
            compiler.run(&mut command, &format!("{name}.cu (for a CPU)"))
        })
    })
}

fn kernel_flags(compiler: &Compiler, sanitize: Sanitize) -> Vec<&'static str> {
    let mut flags = vec!["-DSTRATA_SHIM", "-w", "-fstack-clash-protection"];
    match sanitize {
        Sanitize::Off => flags.extend([
            "-fsanitize=bounds,alignment,shift-exponent,return,unreachable",
            "-fsanitize-undefined-trap-on-error",
        ]),
        Sanitize::Address => flags.extend(["-fsanitize=address", "-DSTRATA_SHIM_ASAN", "-g1"]),
    }
    // Two modules may have a template with the same shared memory, and each has to have its own.
    if !compiler.version.contains("clang") {
        flags.push("-fno-gnu-unique");
    }
    flags.extend(processor_flags());
    flags
}

/// Instructions of this processor that are worth having: without them every `fmaf` is a call.
fn processor_flags() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
        return &["-mavx2", "-mfma"];
    }
    &[]
}

/// The text without what only a device's compiler understands.
fn plain(text: &str) -> String {
    text.replace(DYNAMIC, "")
}

/// A kernel's name and how many threads it is compiled for, as it is written.
#[derive(Debug, PartialEq, Eq)]
struct Entry<'a> {
    name: &'a str,
    bounds: Option<&'a str>,
}

/// Every `extern "C" __global__ void NAME(`, with or without `__launch_bounds__(..)`.
fn entries(text: &str) -> Vec<Entry<'_>> {
    let mut found = Vec::new();
    for part in text.split("extern \"C\" __global__").skip(1) {
        let mut rest = part.trim_start();
        let mut bounds = None;
        loop {
            let end = rest.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
            let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
            let after = after.trim_start();
            match word {
                "" => break,
                "__launch_bounds__" => {
                    let Some(inside) = parenthesised(after) else { break };
                    bounds = Some(inside);
                    rest = after[inside.len() + 2..].trim_start();
                }
                "void" | "static" | "inline" => rest = after,
                name => {
                    if after.starts_with('(') {
                        found.push(Entry { name, bounds });
                    }
                    break;
                }
            }
        }
    }
    found
}

/// What is between the parenthesis at the start and the one that closes it.
fn parenthesised(text: &str) -> Option<&str> {
    let mut depth = 0usize;
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return text.get(1..i);
                }
            }
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// The file that g++ compiles.
fn generate(name: &str, text: &str) -> Result<String> {
    let mut out =
        format!("#line 1 \"{name}.cu\"\n{}\n#line 1 \"entry points of {name}.cu\"\n", plain(text));
    let export = "extern \"C\" __attribute__((visibility(\"default\")))";
    for Entry { name, bounds } in entries(text) {
        // Of two bounds the first is the one of threads.
        let most = match bounds {
            Some(bounds) => format!("strata_first_of({bounds})"),
            None => "0".into(),
        };
        let _ = writeln!(
            out,
            "{export} void strata_entry_{name}(void* const* args) {{ strata_call({name}, args); }}\n\
             {export} const char* strata_signature_{name}() {{ return strata_signature({name}); }}\n\
             {export} int strata_most_threads_{name}() {{ return {most}; }}"
        );
    }
    let _ =
        writeln!(out, "#ifdef STRATA_SHIM_ASAN\n{export} void strata_one_thread() {{}}\n#endif");
    if plain(text).contains("extern __shared__") {
        let log = format!("dynamic shared memory must be declared as\n{DYNAMIC}");
        return Err(Error::Compile { file: format!("{name}.cu"), log });
    }
    Ok(out)
}

/// A C++ compiler.
struct Compiler {
    words: Vec<String>,
    version: String,
}

/// The one that `CXX` names, else the first of the usual ones. Looked for once.
fn compiler() -> Result<&'static Compiler> {
    static FOUND: OnceLock<Result<Compiler>> = OnceLock::new();
    FOUND.get_or_init(find_compiler).as_ref().map_err(Clone::clone)
}

fn find_compiler() -> Result<Compiler> {
    let named = std::env::var("CXX").ok().filter(|words| !words.trim().is_empty());
    let candidates: Vec<String> = match named {
        Some(words) => vec![words],
        None => ["g++", "c++", "clang++"].map(String::from).to_vec(),
    };
    let mut tried = Vec::new();
    for candidate in candidates {
        let words: Vec<String> = candidate.split_whitespace().map(String::from).collect();
        let mut found = Compiler { words, version: String::new() };
        match found.command().arg("--version").output() {
            Ok(output) if output.status.success() => {
                found.version = format!("{candidate}\n{}", String::from_utf8_lossy(&output.stdout));
                return Ok(found);
            }
            Ok(output) => tried.push(format!("{candidate}: {}", output.status)),
            Err(e) => tried.push(format!("{candidate}: {e}")),
        }
    }
    let why = format!(
        "a CPU can stand in for the device if there is a C++ compiler, and there is none ({}); install g++ \
         (Debian, Ubuntu: apt install g++) or name one in CXX",
        tried.join("; ")
    );
    Err(Error::NoCompiler { why })
}

impl Compiler {
    fn command(&self) -> Command {
        let mut words = self.words.iter();
        let mut command = Command::new(words.next().map_or("g++", String::as_str));
        command.args(words);
        // A sanitizer that was preloaded into this process is not meant for the compiler.
        command.env_remove("LD_PRELOAD");
        command
    }

    fn run(&self, command: &mut Command, what: &str) -> Result<()> {
        let output = command.output().map_err(|e| Error::NoCompiler {
            why: format!("{} does not run: {e}", self.words.join(" ")),
        })?;
        if output.status.success() {
            return Ok(());
        }
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(Error::Compile { file: what.into(), log })
    }
}

/// A directory beside a file that is being made, gone when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(beside: &Path) -> Result<Self> {
        let mut name = beside.as_os_str().to_owned();
        name.push(".d");
        let folder = Self(name.into());
        fs::create_dir_all(&folder.0).map_err(|e| folder.failed(&e))?;
        Ok(folder)
    }

    fn write(&self, files: &[(&str, &str)]) -> Result<()> {
        for (name, text) in files {
            fs::write(self.0.join(name), text).map_err(|e| self.failed(&e))?;
        }
        Ok(())
    }

    fn failed(&self, e: &std::io::Error) -> Error {
        Error::Cache { path: self.0.clone(), why: e.to_string() }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Threads of this process that want the same file get it from the first of them.
fn one_at_a_time<T>(name: &str, work: impl FnOnce() -> T) -> T {
    static LOCKS: Mutex<BTreeMap<String, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
    let lock = {
        let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(locks.entry(name.into()).or_default())
    };
    let _lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<(&str, Option<&str>)> {
        entries(text).into_iter().map(|entry| (entry.name, entry.bounds)).collect()
    }

    #[test]
    fn kernels_are_found_by_how_they_are_written() {
        let text = "extern \"C\" __global__ void one(int n) {}\n\
                    extern \"C\" __global__ void __launch_bounds__(max_of(2, 3), 1) two(\n    int n) {}\n\
                    extern \"C\" __global__ __launch_bounds__(256) void three(int n) {}\n\
                    __device__ void not_one(int n) {}\n";
        let expected = [("one", None), ("two", Some("max_of(2, 3), 1")), ("three", Some("256"))];
        assert_eq!(names(text), expected);
    }

    #[test]
    fn a_cut_text_has_no_kernels_and_does_no_harm() {
        for text in
            ["", "extern \"C\" __global__", "extern \"C\" __global__ void __launch_bounds__(3"]
        {
            assert_eq!(names(text), []);
        }
    }

    #[test]
    fn shared_memory_that_is_declared_otherwise_is_refused_with_the_rule() {
        let error = generate("x", "extern __shared__ float room[];").unwrap_err();
        assert!(error.to_string().contains(DYNAMIC), "{error}");
    }
}
