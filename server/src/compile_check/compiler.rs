//! A C++ compiler in its sandbox.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::extract::{self, Code};
use super::sandbox::{End, Sandbox, SandboxMode};
use super::verdict::{Inconclusive, Verdict};
use super::{CompileCheckError, CompileCheckOptions, classify, directives};

/// Directories and files that compilers and the dynamic loader read on Linux distributions.
const SYSTEM: [&str; 12] = [
    "/usr/include",
    "/usr/local/include",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/bin",
    "/bin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
];

/// Headers that a fragment is compiled with, since it includes none.
const PRELUDE: [&str; 24] = [
    "algorithm",
    "array",
    "atomic",
    "chrono",
    "cstdint",
    "cstring",
    "deque",
    "functional",
    "iostream",
    "map",
    "memory",
    "mutex",
    "numeric",
    "optional",
    "set",
    "sstream",
    "stdexcept",
    "string",
    "thread",
    "tuple",
    "type_traits",
    "unordered_map",
    "utility",
    "vector",
];

/// Family of a compiler, which decides its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompilerKind {
    /// GCC's `g++`.
    Gcc,
    /// LLVM's `clang++`.
    Clang,
}

/// A compiler that has been tried.
#[derive(Debug)]
pub struct Compiler {
    program: PathBuf,
    kind: CompilerKind,
    sandbox: Sandbox,
    standard: String,
    max_source_bytes: usize,
}

impl Compiler {
    /// Finds the compiler, sets up its sandbox, and tries both on a valid and an invalid program.
    ///
    /// # Errors
    /// [`CompileCheckError`].
    pub fn open(options: &CompileCheckOptions) -> Result<Self, CompileCheckError> {
        let program = find(&options.compiler)
            .ok_or_else(|| CompileCheckError::NotFound(options.compiler.clone()))?;
        let sandbox = Sandbox::new(&program, options.limits, &options.directory)?;
        Self::with(program, sandbox, options)
    }

    /// As [`open`](Self::open), in a given sandbox.
    pub(super) fn with(
        program: PathBuf,
        sandbox: Sandbox,
        options: &CompileCheckOptions,
    ) -> Result<Self, CompileCheckError> {
        let mut compiler = Self {
            program,
            kind: CompilerKind::Gcc,
            sandbox,
            standard: options.standard.clone(),
            max_source_bytes: options.max_source_bytes,
        };
        let version = compiler.ask(&["--version"])?;
        if version.contains("clang") {
            compiler.kind = CompilerKind::Clang;
        }
        let roots = compiler.roots()?;
        compiler.sandbox.restrict_files(&compiler.program, &roots)?;
        compiler.try_on(
            "a program that is valid",
            "#include <vector>\nint main() { std::vector<int> x; }\n",
            |verdict| *verdict == Verdict::Pass,
        )?;
        compiler.try_on(
            "a program that is not valid",
            "#include <vector>\nint main() { std::vector<int> x }\n",
            |verdict| matches!(verdict, Verdict::Fail { .. }),
        )?;
        Ok(compiler)
    }

    /// Path of the compiler.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Family of the compiler.
    pub fn kind(&self) -> CompilerKind {
        self.kind
    }

    /// Layers of the sandbox.
    pub fn mode(&self) -> SandboxMode {
        self.sandbox.mode()
    }

    /// Checks the code of a response. Blocks for up to the sandbox's wall-clock limit, or twice that for a fragment, or
    /// until `stop` is set.
    pub fn check(&self, response: &str, stop: &AtomicBool) -> Verdict {
        match extract::cpp(response) {
            None => Verdict::NoCode,
            Some(code) if !code.closed => Inconclusive::Truncated.into(),
            Some(code) => self.check_code(code, stop),
        }
    }

    fn check_code(&self, code: Code<'_>, stop: &AtomicBool) -> Verdict {
        if code.text.len() > self.max_source_bytes {
            return Inconclusive::TooLarge.into();
        }
        if let Err(what) = directives::check(code.text) {
            return Inconclusive::Refused(what.to_owned()).into();
        }
        let fragment = code.is_fragment();
        let verdict = self.compile(&[code.text.as_bytes()], fragment, stop);
        if !fragment || !matches!(verdict, Verdict::Fail { .. }) {
            return verdict;
        }
        // A fragment may be the statements of a function.
        let parts = [b"void fragment() {\n#line 1\n", code.text.as_bytes(), b"\n}\n"];
        match self.compile(&parts, fragment, stop) {
            Verdict::Fail { .. } => verdict,
            within => within,
        }
    }

    /// Compiles a text, without the textual check.
    pub(super) fn compile(&self, source: &[&[u8]], fragment: bool, stop: &AtomicBool) -> Verdict {
        match self.sandbox.run(&self.program, &self.options(fragment), source, stop) {
            Ok(run) => classify::verdict(&run, fragment, self.mode().restricts_files()),
            Err(why) => Inconclusive::Sandbox(why.to_string()).into(),
        }
    }

    /// Options of the compiler.
    fn options(&self, fragment: bool) -> Vec<OsString> {
        let mut options: Vec<OsString> =
            ["-x", "c++", "-fsyntax-only", "-w", "-ftemplate-depth=256"].map(Into::into).into();
        options.push(format!("-std={}", self.standard).into());
        let own: &[&str] = match self.kind {
            CompilerKind::Gcc => &[
                "-fmax-errors=1",
                "-fconstexpr-depth=256",
                "-fconstexpr-loop-limit=1048576",
                "-fconstexpr-ops-limit=10000000",
                // The line of the code would be read from the file that a `#line` names.
                "-fno-diagnostics-show-caret",
            ],
            CompilerKind::Clang => &[
                "-ferror-limit=1",
                "-fconstexpr-depth=256",
                "-fconstexpr-steps=10000000",
                "-fno-caret-diagnostics",
                "-fno-crash-diagnostics",
            ],
        };
        options.extend(own.iter().map(Into::into));
        if fragment {
            options.extend(PRELUDE.iter().flat_map(|header| ["-include".into(), (*header).into()]));
        }
        options.push("-".into());
        options
    }

    /// What the compiler prints about itself.
    fn ask(&self, arguments: &[&str]) -> Result<String, CompileCheckError> {
        let failed =
            |why: String| CompileCheckError::NotACompiler { program: self.program.clone(), why };
        let arguments: Vec<OsString> = arguments.iter().map(Into::into).collect();
        let run = self.sandbox.run(&self.program, &arguments, &[], &AtomicBool::new(false))?;
        match run.end {
            End::Exited(0) => Ok(String::from_utf8_lossy(&run.output).into_owned()),
            End::Exited(status) => Err(failed(format!("status {status}"))),
            End::Signalled(signal) => Err(failed(format!("signal {signal}"))),
            End::TimedOut | End::Stopped => Err(failed("it does not end".to_owned())),
        }
    }

    /// Directories that the compiler may read: the system's, its own, and those that it names.
    fn roots(&self) -> Result<Vec<PathBuf>, CompileCheckError> {
        let mut roots: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
        let real = self.program.canonicalize().ok();
        roots.extend(
            [Some(self.program.clone()), real]
                .into_iter()
                .flatten()
                .filter_map(|p| Some(p.parent()?.to_owned())),
        );
        // install: DIRECTORY, programs: =LIST, libraries: =LIST
        for line in self.ask(&["-print-search-dirs"])?.lines() {
            if let Some((_, list)) = line.split_once(": ") {
                roots.extend(list.trim_start_matches('=').split(':').map(PathBuf::from));
            }
        }
        let search = self.ask(&["-E", "-v", "-x", "c++", "-"])?;
        let lines = search.lines().skip_while(|line| !line.starts_with("#include <...>"));
        roots.extend(
            lines
                .skip(1)
                .take_while(|line| line.starts_with(' '))
                .map(|line| PathBuf::from(line.trim())),
        );
        // A root of `/` would allow everything.
        roots.retain(|root| {
            root.is_absolute() && root.canonicalize().is_ok_and(|real| real.parent().is_some())
        });
        roots.sort();
        roots.dedup();
        Ok(roots)
    }

    fn try_on(
        &self,
        what: &'static str,
        code: &str,
        expected: impl Fn(&Verdict) -> bool,
    ) -> Result<(), CompileCheckError> {
        let verdict = self.compile(&[code.as_bytes()], false, &AtomicBool::new(false));
        if expected(&verdict) {
            return Ok(());
        }
        Err(CompileCheckError::SelfTest { program: self.program.clone(), what, verdict })
    }
}

/// The absolute path of a program, which is looked up in `PATH` if it is a plain name. Links are kept: a program may
/// behave by the name under which it is called.
fn find(name: &Path) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    if name.as_os_str().as_bytes().contains(&b'/') {
        return std::path::absolute(name).ok().filter(is_program);
    }
    let search =
        std::env::var_os("PATH").unwrap_or_else(|| OsString::from_vec(b"/usr/bin:/bin".to_vec()));
    std::env::split_paths(&search)
        .filter(|path| path.is_absolute())
        .map(|path| path.join(name))
        .find(is_program)
}
