//! Getting llama.cpp, or a build that exists.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::pip;
use course::shell::{exists, program, run, target_dir};

/// File name of the list with the Python package whose source distribution contains llama.cpp.
const SDIST: &str = "llama-cpp.txt";
/// File name of the list of build tools: CMake, Ninja, and the packages with which pip reads that
/// package's metadata.
const BUILD_TOOLS: &str = "cmake.txt";
/// Path of llama.cpp's source inside the package.
const VENDORED: &str = "llama_cpp_python-0.3.36/vendor/llama.cpp";

/// Targets that are built. The first two measure the model, the last one the server.
const TOOLS: [&str; 4] = ["llama-bench", "llama-batched-bench", "llama-quantize", "llama-server"];

/// Build options: a native CPU build without parts that these tools do not need.
const CMAKE_OPTIONS: [&str; 15] = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DGGML_CCACHE=OFF",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_COMMON=ON",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-Wno-dev",
];

/// A project that is measured beside Strata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Project {
    /// llama.cpp.
    LlamaCpp,
    /// ik_llama.cpp, a fork of it.
    IkLlama,
}

impl Project {
    /// Programs that every comparison needs. llama.cpp's also make the files that all read.
    fn tools(self) -> &'static [&'static str] {
        match self {
            Project::LlamaCpp => &TOOLS[..3],
            Project::IkLlama => &TOOLS[..2],
        }
    }
}

impl fmt::Display for Project {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Project::LlamaCpp => "llama.cpp",
            Project::IkLlama => "ik_llama.cpp",
        })
    }
}

/// A build of a project.
pub struct Peer {
    pub project: Project,
    bin: PathBuf,
}

impl Peer {
    /// An existing build: the directory of the programs, or of the build, or of the source.
    pub fn in_directory(project: Project, dir: &Path) -> Result<Self> {
        let dir = dir.canonicalize().with_context(|| dir.display().to_string())?;
        let places = [dir.clone(), dir.join("bin"), dir.join("build/bin")];
        let tools = project.tools();
        match places.into_iter().find(|bin| tools.iter().all(|tool| bin.join(tool).is_file())) {
            Some(bin) => Ok(Self { project, bin }),
            None => {
                let tools = tools.join(", ");
                bail!("{} has no {tools} of {project} (nor in bin or build/bin)", dir.display())
            }
        }
    }

    /// The build of llama.cpp in the target directory, made if it does not exist.
    pub fn built() -> Result<Self> {
        let peers = peers_dir()?;
        let source = peers.join(VENDORED);
        if let Ok(peer) = Self::in_directory(Project::LlamaCpp, &source) {
            return Ok(peer);
        }
        let python = ["python3", "python"].into_iter().find(|python| exists(python));
        let python = python.context(
            "building llama.cpp needs Python (its source comes from a Python package); \
             or give a build of your own with --llama-cpp",
        )?;
        let venv = peers.join("venv");
        run(program(python).args(["-I", "-m", "venv"]).arg(&venv))?;
        let tool = |name: &str| venv.join("bin").join(name);
        run(&mut pip::wheels(tool("python"), "install", &pip::requirements(BUILD_TOOLS)))?;
        let mut download = pip::sources(tool("python"), "download", &pip::requirements(SDIST));
        run(download.args(["--no-deps", "--dest"]).arg(&peers))?;
        let archive = find_archive(&peers)?;
        run(program("tar").arg("xzf").arg(&archive).arg("-C").arg(&peers))?;
        let build = source.join("build");
        let mut configure = program(tool("cmake"));
        configure.arg("-S").arg(&source).arg("-B").arg(&build).args(["-G", "Ninja"]);
        configure.arg(format!("-DCMAKE_MAKE_PROGRAM={}", tool("ninja").display()));
        run(configure.args(CMAKE_OPTIONS))?;
        let mut make = program(tool("cmake"));
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        make.arg("--build").arg(&build).args(["--parallel", &cores.to_string()]);
        run(make.arg("--target").args(TOOLS))?;
        Self::in_directory(Project::LlamaCpp, &source)
    }

    /// An error unless its build has this program.
    pub fn require(&self, name: &str) -> Result<()> {
        let path = self.tool(name);
        if path.is_file() {
            return Ok(());
        }
        bail!("{} does not exist: build {name} of {} as well", path.display(), self.project)
    }

    /// Path of one of its programs.
    pub fn tool(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }
}

/// Directory of builds, models, and whatever the other projects' programs write beside them.
pub fn peers_dir() -> Result<PathBuf> {
    let dir = target_dir()?.join("peers");
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    Ok(dir)
}

fn find_archive(dir: &Path) -> Result<PathBuf> {
    let names = fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut archives = names.filter(|path| path.to_string_lossy().ends_with(".tar.gz"));
    archives.next().context("pip did not leave a source archive")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_looked_for_below_the_version_that_is_fetched() {
        let list = fs::read_to_string(pip::requirements(SDIST)).unwrap();
        let fetched = list.lines().find_map(|line| line.strip_prefix("llama-cpp-python=="));
        let version = fetched.and_then(|line| line.split(' ').next()).unwrap();
        assert_eq!(VENDORED, format!("llama_cpp_python-{version}/vendor/llama.cpp"));
    }

    #[test]
    fn a_directory_without_the_tools_is_refused_by_name() {
        for (project, tool) in
            [(Project::LlamaCpp, "llama-quantize"), (Project::IkLlama, "llama-batched-bench")]
        {
            let here = Path::new(env!("CARGO_MANIFEST_DIR"));
            let error = Peer::in_directory(project, here).err().unwrap().to_string();
            assert!(error.contains(tool) && error.contains(&project.to_string()), "{error}");
        }
    }
}
