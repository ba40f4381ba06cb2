//! NVIDIA's run-time compiler.
//!
//! Its library is opened by an absolute path, which is why this does not go through cudarc; it needs no
//! GPU and no driver. Asked for a real architecture (`sm_90a`, not `compute_90`) it goes on to the
//! assembler, so what comes out is machine code: the driver has nothing to translate when it is loaded,
//! and what the assembler says of registers and spills is in the log.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;

use super::locate::{self, beginning_with, candidates};
use super::{HEADERS, Source, cache};
use crate::error::{Error, Result};

/// What came out of the compiler.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Machine code.
    pub cubin: Vec<u8>,
    /// What the compiler had to say: registers, spills and shared memory of every kernel, and warnings.
    pub log: String,
}

/// The least version: 12.0 brought `sm_90a`.
const LEAST: (i32, i32) = (12, 0);

/// What the compiler is told beside the architecture. Multiplications and additions are fused, as they
/// are by default; nothing else may change a result. Line numbers are for compute-sanitizer and
/// profilers, and cost nothing.
const OPTIONS: [&str; 4] =
    ["--std=c++17", "-default-device", "--generate-line-info", "--ptxas-options=-v"];

type Program = *mut c_void;
type Strings = *const *const c_char;

/// The library and what is called in it.
struct Nvrtc {
    path: PathBuf,
    version: (i32, i32),
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        Strings,
        Strings,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, Strings) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// Where NVRTC is on this machine.
///
/// It is looked for in what `STRATA_NVRTC` names (the library or its directory; then nowhere else);
/// where the system's loader looks; in `nvrtc` of Strata's cache, where `cargo x nvrtc` puts it; in CUDA
/// toolkits; in the packages of Pythons. The first that is of version 12.0 or later, and of no later major version than
/// the driver, is taken, and is the answer as long as the process runs.
///
/// # Errors
/// [`Error::NoCompiler`], saying where it was looked for.
pub fn find_nvrtc() -> Result<PathBuf> {
    Ok(library()?.path.clone())
}

/// The version of the compiler that [`find_nvrtc`] found, major and minor.
///
/// # Errors
/// As there.
pub fn nvrtc_version() -> Result<(i32, i32)> {
    Ok(library()?.version)
}

/// Compile a file of `cu/` for an architecture such as `sm_80` or `sm_90a`. Needs no GPU.
///
/// # Errors
/// [`Error::State`] for a file that there is not; [`Error::NoCompiler`], [`Error::Compile`].
pub fn nvrtc(file: &str, architecture: &str) -> Result<Compiled> {
    library()?.run(super::source(file)?, architecture)
}

/// Where `image` finds machine code without a compiler: `STRATA_KERNELS` names a directory with files
/// of these names. `cargo x gpu --carry` fills one for a machine that may have no compiler.
pub fn carried_name(source: &Source, architecture: &str) -> String {
    key(source, architecture).file("cubin")
}

/// The machine code of a file: carried along, or from the cache, or made now.
pub(super) fn image(source: &Source, architecture: &str) -> Result<Vec<u8>> {
    if let Some(folder) = std::env::var_os("STRATA_KERNELS") {
        let path = Path::new(&folder).join(carried_name(source, architecture));
        // One that is missing was carried for other sources or another device, so it is made.
        if let Ok(bytes) = std::fs::read(path) {
            return Ok(bytes);
        }
    }
    let nvrtc = library()?;
    let (major, minor) = nvrtc.version;
    let key = key(source, architecture).with(format!("NVRTC {major}.{minor}"));
    cache::bytes(key, "cubin", || Ok(nvrtc.run(source, architecture)?.cubin))
}

/// All that machine code is made from, but for the compiler.
fn key(source: &Source, architecture: &str) -> cache::Key {
    let mut key = cache::Key::new(source.name).with(source.text).with(architecture);
    for header in HEADERS {
        key = key.with(header.name).with(header.text);
    }
    OPTIONS.iter().fold(key, |key, option| key.with(option))
}

fn library() -> Result<&'static Nvrtc> {
    static FOUND: OnceLock<Result<Nvrtc>> = OnceLock::new();
    FOUND.get_or_init(find).as_ref().map_err(Clone::clone)
}

/// Directories with an NVRTC: what else NVIDIA's packages bring lies there, or near.
pub(crate) fn directories() -> Vec<PathBuf> {
    let get = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let files = candidates(get, cache::directory().as_deref()).files;
    files.iter().filter_map(|file| file.parent().map(Path::to_path_buf)).collect()
}

fn find() -> Result<Nvrtc> {
    let get = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let candidates = candidates(get, cache::directory().as_deref());
    let mut refused = Vec::new();
    // A name without a directory goes through the loader's own search.
    let by_loader = locate::NAMES.iter().map(PathBuf::from);
    let by_loader = by_loader.filter(|_| candidates.given.is_none());
    let driver = crate::probe().ok().filter(|cuda| !cuda.emulated).map(|cuda| cuda.driver_version);
    for path in by_loader.chain(candidates.files) {
        match Nvrtc::open(&path) {
            // One that the user has named is taken in any case.
            Ok(nvrtc) => {
                match suits(nvrtc.version, driver.filter(|_| candidates.given.is_none())) {
                    Ok(()) => return Ok(nvrtc),
                    Err(why) => refused.push(format!("{}: {why}", path.display())),
                }
            }
            // The loader's search may fail: other places follow.
            Err(_) if path.parent() == Some(Path::new("")) => {}
            Err(why) => refused.push(format!("{}: {why}", path.display())),
        }
    }
    let why = match (&candidates.given, refused.is_empty()) {
        (Some(given), true) => {
            format!("STRATA_NVRTC is {}, where there is no libnvrtc.so", given.display())
        }
        (None, true) => "NVRTC (libnvrtc.so of CUDA 12 or 13) was found neither by the system's loader \
                         nor in a CUDA toolkit, nor among the packages of Python; `cargo x nvrtc` \
                         fetches it, `pip install nvidia-cuda-nvrtc` too, and STRATA_NVRTC names one that \
                         lies elsewhere"
            .into(),
        (_, false) => format!("NVRTC cannot be used: {}", refused.join("; ")),
    };
    Err(Error::NoCompiler { why })
}

/// Whether a driver, if there is one, loads the machine code of a compiler: within a major version of CUDA every driver
/// does, an older one refuses it ("CUDA Compatibility", minor version compatibility).
fn suits(compiler: (i32, i32), driver: Option<(u32, u32)>) -> std::result::Result<(), String> {
    let Some((major, minor)) = driver.filter(|(major, _)| compiler.0 > *major as i32) else {
        return Ok(());
    };
    let what = format!(
        "it is for drivers of CUDA {}, and this one is of CUDA {major}.{minor}",
        compiler.0
    );
    if (major as i32, 0) < LEAST {
        return Err(format!("{what}, too old for these kernels: update the driver"));
    }
    Err(format!("{what}: `pip install nvidia-cuda-nvrtc-cu{major}` brings a compiler that fits"))
}

impl Nvrtc {
    /// Open a library; in words why not.
    fn open(path: &Path) -> std::result::Result<Self, String> {
        // It opens its builtins by their bare name: those beside it are found if they are there already.
        if let Some(directory) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            for builtins in beginning_with(directory, "libnvrtc-builtins.so") {
                // Both stay open for the life of the process. One of another version is of no use and
                // no harm.
                let _ = open(&builtins).map(Box::new).map(Box::leak);
            }
        }
        let library: &'static Library = Box::leak(Box::new(open(path)?));
        // SAFETY: this symbol has this type in every version of the library, as the next ones do in
        // all since 11.1 (nvrtc.h).
        let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
            unsafe { symbol(library, "nvrtcVersion") }?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: it writes two numbers.
        let status = unsafe { version(&mut major, &mut minor) };
        if status != 0 {
            return Err(format!("nvrtcVersion answers with error {status}"));
        }
        if (major, minor) < LEAST {
            return Err(format!("its version is {major}.{minor}, and 12.0 is the least"));
        }
        // SAFETY: as above.
        unsafe {
            Ok(Self {
                path: path.into(),
                version: (major, minor),
                create: symbol(library, "nvrtcCreateProgram")?,
                compile: symbol(library, "nvrtcCompileProgram")?,
                destroy: symbol(library, "nvrtcDestroyProgram")?,
                log_size: symbol(library, "nvrtcGetProgramLogSize")?,
                log: symbol(library, "nvrtcGetProgramLog")?,
                cubin_size: symbol(library, "nvrtcGetCUBINSize")?,
                cubin: symbol(library, "nvrtcGetCUBIN")?,
                error_string: symbol(library, "nvrtcGetErrorString")?,
            })
        }
    }

    fn run(&self, source: &Source, architecture: &str) -> Result<Compiled> {
        let file = format!("{}.cu", source.name);
        let failed = |what: &str, status: c_int, log: String| {
            let log = format!("{what}: {} (for {architecture})\n{log}", self.words(status));
            Error::Compile { file: file.clone(), log }
        };
        let c_string = |text: &str| {
            CString::new(text)
                .map_err(|e| Error::Compile { file: file.clone(), log: e.to_string() })
        };
        let c_strings =
            |texts: &[String]| texts.iter().map(|t| c_string(t)).collect::<Result<Vec<_>>>();
        let name = c_string(&file)?;
        let text = c_string(source.text)?;
        let texts: Vec<String> = HEADERS.iter().map(|header| header.text.into()).collect();
        let names: Vec<String> =
            HEADERS.iter().map(|header| format!("{}.cuh", header.name)).collect();
        let mut options = vec![format!("--gpu-architecture={architecture}")];
        options.extend(OPTIONS.map(String::from));
        let (texts, names, options) =
            (c_strings(&texts)?, c_strings(&names)?, c_strings(&options)?);
        let (text_ptrs, name_ptrs) = (pointers(&texts), pointers(&names));
        let option_ptrs = pointers(&options);

        let mut program = Open { nvrtc: self, program: ptr::null_mut() };
        // SAFETY: all strings outlive the call, and there is a name for each header.
        let status = unsafe {
            (self.create)(
                &mut program.program,
                text.as_ptr(),
                name.as_ptr(),
                HEADERS.len() as c_int,
                text_ptrs.as_ptr(),
                name_ptrs.as_ptr(),
            )
        };
        if status != 0 {
            return Err(failed("nvrtcCreateProgram", status, String::new()));
        }
        // SAFETY: the program was made above; the options outlive the call.
        let status = unsafe {
            (self.compile)(program.program, options.len() as c_int, option_ptrs.as_ptr())
        };
        let log = program.bytes(self.log_size, self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_string();
        if status != 0 {
            return Err(failed("nvrtcCompileProgram", status, log));
        }
        let cubin = program.bytes(self.cubin_size, self.cubin);
        let cubin = cubin.map_err(|status| failed("nvrtcGetCUBIN", status, log.clone()))?;
        if cubin.is_empty() {
            return Err(failed("nvrtcGetCUBIN gives nothing", 0, log));
        }
        Ok(Compiled { cubin, log })
    }

    /// The library's words for a status.
    fn words(&self, status: c_int) -> String {
        // SAFETY: any number has a text, which is static.
        let text = unsafe { (self.error_string)(status) };
        if text.is_null() {
            return format!("error {status}");
        }
        // SAFETY: the library's strings end with a zero.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// A program of the compiler's, destroyed with this value.
struct Open<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl Open<'_> {
    /// What one function measures and another one writes; or the status.
    fn bytes(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        write: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> std::result::Result<Vec<u8>, c_int> {
        let mut len = 0;
        // SAFETY: the program is alive; one number is written.
        let status = unsafe { size(self.program, &mut len) };
        if status != 0 {
            return Err(status);
        }
        let mut bytes = vec![0_u8; len];
        // SAFETY: `len` bytes are written, as the library itself said.
        let status = unsafe { write(self.program, bytes.as_mut_ptr().cast()) };
        if status == 0 { Ok(bytes) } else { Err(status) }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: made by `nvrtcCreateProgram`, destroyed once.
            unsafe { (self.nvrtc.destroy)(&mut self.program) };
        }
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

/// Open a library so that others, opened later, find it by its own name.
fn open(path: &Path) -> std::result::Result<Library, String> {
    #[cfg(unix)]
    {
        use libloading::os::unix::{Library as Unix, RTLD_GLOBAL, RTLD_NOW};
        // SAFETY: what these libraries do when they are loaded is set up their own state.
        let opened = unsafe { Unix::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        opened.map(Library::from).map_err(|e| e.to_string())
    }
    #[cfg(not(unix))]
    // SAFETY: as above.
    unsafe { Library::new(path) }.map_err(|e| e.to_string())
}

/// A function of a library.
///
/// # Safety
/// `T` must be the function's type.
unsafe fn symbol<T: Copy>(library: &'static Library, name: &str) -> std::result::Result<T, String> {
    // SAFETY: the caller's promise; the library is never closed.
    unsafe { library.get::<T>(name.as_bytes()) }
        .map(|symbol| *symbol)
        .map_err(|e| format!("{name} is missing ({e})"))
}

#[cfg(test)]
mod tests {
    use super::suits;

    #[test]
    fn a_compiler_must_not_be_of_a_later_major_version_than_the_driver() {
        for (compiler, driver) in [((12, 9), (12, 0)), ((12, 0), (13, 0)), ((13, 2), (13, 0))] {
            assert_eq!(suits(compiler, Some(driver)), Ok(()), "{compiler:?} with {driver:?}");
        }
        assert_eq!(suits((13, 0), None), Ok(()), "without a driver");
        let why = suits((13, 0), Some((12, 8))).unwrap_err();
        assert!(why.contains("CUDA 12.8") && why.contains("nvidia-cuda-nvrtc-cu12"), "{why}");
        let why = suits((12, 0), Some((11, 8))).unwrap_err();
        assert!(why.contains("update the driver"), "{why}");
    }
}
