//! A device: its context, one stream, its compiled modules.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};

use crate::error::{Called, Error, Result};
use crate::exchange::Exchange;
use crate::{Scratch, compile, probe};

/// Properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Name, as the driver reports it.
    pub name: String,
    /// Compute capability, major and minor: 9 and 0 for Hopper.
    pub capability: (i32, i32),
    /// Number of streaming multiprocessors.
    pub multiprocessors: usize,
    /// Size of its memory, in bytes.
    pub memory: usize,
    /// Maximum size of the shared memory of a block of threads, in bytes.
    pub shared_memory: usize,
    /// Size of its L2 cache, in bytes.
    pub l2: usize,
}

/// A CUDA device, ready to run kernels. It has one stream, which runs all work in the order in which it was enqueued.
///
/// [`Gpu::open`] returns the same device for the same ordinal. All methods can be called from any thread; the work of
/// several threads is interleaved in the order of their calls.
pub struct Gpu {
    ordinal: usize,
    properties: Properties,
    context: sys::CUcontext,
    stream: sys::CUstream,
    copy_stream: sys::CUstream,
    emulated: bool,
    /// Whether a kernel may begin before the one before it has ended.
    begins_early: bool,
    modules: Mutex<HashMap<&'static str, Module>>,
    scratch: Mutex<Scratch>,
    pub(crate) exchange: Mutex<Option<Exchange>>,
    pub(crate) blas: crate::blas::Blas,
}

/// A compiled file and its functions. Modules stay loaded as long as the process runs.
struct Module {
    handle: sys::CUmodule,
    functions: HashMap<&'static str, Function>,
}

#[derive(Clone, Copy)]
struct Function {
    handle: sys::CUfunction,
    /// Maximum dynamic shared memory that the kernel is configured for, in bytes.
    shared: usize,
}

// SAFETY: the handles are the driver's, which may be used from any thread once the context is
// current there, and `bind` sees to that; the maps are behind locks.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

thread_local! {
    /// Context that is current for the thread, so that it is not set again before every call.
    static CURRENT: Cell<sys::CUcontext> = const { Cell::new(std::ptr::null_mut()) };
    /// For a thread that captures a graph: the device's context, and the stream that is captured.
    static RECORDING: Cell<Option<(sys::CUcontext, sys::CUstream)>> = const { Cell::new(None) };
}

/// Maximum size in bytes of a block's dynamic shared memory without a call that raises the limit.
const PLAIN_SHARED: usize = 48 << 10;

impl Gpu {
    /// Returns the device of this ordinal. The first call opens it; later calls return the same device.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::NoSuchDevice`], [`Error::TooOld`], or the driver's own.
    pub fn open(ordinal: usize) -> Result<Arc<Self>> {
        static OPEN: Mutex<Vec<Arc<Gpu>>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = open.iter().find(|gpu| gpu.ordinal == ordinal) {
            return Ok(Arc::clone(gpu));
        }
        let gpu = Arc::new(Self::new(ordinal)?);
        open.push(Arc::clone(&gpu));
        Ok(gpu)
    }

    fn new(ordinal: usize) -> Result<Self> {
        let cuda = probe()?;
        let count = cuda.device_count;
        if ordinal >= count {
            return Err(Error::NoSuchDevice { ordinal, count });
        }
        let device = result::device::get(ordinal as i32).called("cuDeviceGet")?;
        let properties = properties(device)?;
        let (major, minor) = properties.capability;
        if major < 8 {
            return Err(Error::TooOld { name: properties.name, major, minor });
        }
        // SAFETY: the device is there. The context is kept for the life of the process.
        let context =
            unsafe { result::primary_ctx::retain(device) }.called("cuDevicePrimaryCtxRetain")?;
        make_current(context)?;
        // Never the null stream: it cannot be captured, and it waits for every other one.
        let stream = || {
            result::stream::create(result::stream::StreamKind::NonBlocking).called("cuStreamCreate")
        };
        Ok(Self {
            ordinal,
            properties,
            context,
            stream: stream()?,
            copy_stream: stream()?,
            emulated: crate::is_emulated(),
            // Drivers capture such launches since 12.3. An emulated device takes the attribute and does nothing.
            begins_early: (major >= 9 && cuda.driver_version >= (12, 3)) || cuda.emulated,
            modules: Mutex::default(),
            scratch: Mutex::default(),
            exchange: Mutex::default(),
            blas: crate::blas::Blas::new(),
        })
    }

    /// Ordinal of the device.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Properties of the device.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Whether the device is emulated by the CPU (see [`emulate`](crate::emulate)).
    pub fn is_emulated(&self) -> bool {
        self.emulated
    }

    /// Free and total device memory, in bytes.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.bind()?;
        result::mem_get_info().called("cuMemGetInfo")
    }

    /// Whether kernels are launched so that each may begin before the one before it has ended.
    pub(crate) fn begins_early(&self) -> bool {
        self.begins_early
    }

    /// Makes the device's context current for the calling thread. Every method calls this.
    pub(crate) fn bind(&self) -> Result<()> {
        make_current(self.context)
    }

    /// The device's stream; while the calling thread captures a graph, the stream that is captured.
    pub(crate) fn stream(&self) -> sys::CUstream {
        match RECORDING.get() {
            Some((context, stream)) if context == self.context => stream,
            _ => self.stream,
        }
    }

    /// Enqueues the calling thread's work on a separate stream meanwhile, for capture: the work of other threads is not
    /// captured.
    pub(crate) fn recording<T>(&self, work: impl FnOnce(sys::CUstream) -> T) -> Result<T> {
        /// A stream that is destroyed also after an error or a panic.
        struct Own(sys::CUstream);
        impl Drop for Own {
            fn drop(&mut self) {
                RECORDING.set(None);
                // SAFETY: made below, destroyed once.
                let _ = unsafe { result::stream::destroy(self.0) };
            }
        }
        self.bind()?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        let own = Own(stream.called("cuStreamCreate")?);
        RECORDING.set(Some((self.context, own.0)));
        Ok(work(own.0))
    }

    /// A second stream, for copies beside the first.
    pub(crate) fn copy_stream(&self) -> sys::CUstream {
        self.copy_stream
    }

    /// Waits until all work enqueued so far has run.
    ///
    /// # Errors
    /// Errors of the driver. Errors in a kernel are reported here at the latest.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.stream()) }.called("cuStreamSynchronize")
    }

    /// Waits for copies to the device that run beside its stream.
    pub(crate) fn finish_copies(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.copy_stream) }.called("cuStreamSynchronize")
    }

    /// Memory between two kernels of one op: see [`Scratch`].
    pub(crate) fn scratch<T>(&self, work: impl FnOnce(&mut Scratch) -> Result<T>) -> Result<T> {
        work(&mut self.scratch.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Size in bytes of the scratch memory of all ops, which stays allocated until the process ends.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner).bytes()
    }

    /// Compiles all kernels, so that no step waits for it.
    ///
    /// # Errors
    /// As [`compile::image`].
    pub fn compile_all(&self) -> Result<()> {
        compile::SOURCES.iter().try_for_each(|source| self.load(source.name).map(|_| ()))
    }

    /// Compiles and loads the smallest file of kernels: whether this driver takes what the compiler makes for this
    /// device.
    ///
    /// # Errors
    /// As [`compile::image`]; errors of the driver, which refuses machine code of a compiler that is newer than itself.
    pub fn try_kernels(&self) -> Result<()> {
        self.load("elementwise")
    }

    fn load(&self, file: &'static str) -> Result<()> {
        if self.modules().contains_key(file) {
            return Ok(());
        }
        self.load_source(compile::source(file)?)
    }

    /// Compiles and loads a source from outside this crate, for tests of launching. Its kernels are launched under its
    /// name.
    ///
    /// # Errors
    /// As [`compile::image`].
    #[doc(hidden)]
    pub fn load_text(&self, name: &'static str, text: &'static str) -> Result<()> {
        self.load_source(&compile::Source { name, text })
    }

    fn load_source(&self, source: &compile::Source) -> Result<()> {
        let file = source.name;
        let image = compile::image_of(source, self.properties.capability, self.emulated)?;
        self.bind()?;
        // SAFETY: the image was made by the compiler for this device.
        let handle = unsafe { result::module::load_data(image.as_ptr().cast()) };
        let handle = handle.called("cuModuleLoadData")?;
        self.modules().entry(file).or_insert(Module { handle, functions: HashMap::new() });
        Ok(())
    }

    fn modules(&self) -> std::sync::MutexGuard<'_, HashMap<&'static str, Module>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A kernel of a file, configured for that much dynamic shared memory.
    pub(crate) fn function(
        &self,
        file: &'static str,
        name: &'static str,
        shared: usize,
    ) -> Result<sys::CUfunction> {
        self.load(file)?;
        let mut modules = self.modules();
        let Some(module) = modules.get_mut(file) else {
            return Err(Error::State(format!("{file} is not loaded")));
        };
        let function = match module.functions.get_mut(name) {
            Some(function) => function,
            None => {
                let c_name = CString::new(name).map_err(|e| Error::State(e.to_string()))?;
                // SAFETY: the module is loaded.
                let handle = unsafe { result::module::get_function(module.handle, c_name) }
                    .called("cuModuleGetFunction")?;
                module.functions.entry(name).or_insert(Function { handle, shared: PLAIN_SHARED })
            }
        };
        if shared > function.shared {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to a loaded module.
            unsafe {
                result::function::set_function_attribute(function.handle, most, shared as i32)
            }
            .called("cuFuncSetAttribute")?;
            function.shared = shared;
        }
        Ok(function.handle)
    }
}

/// Makes a device's context current for the calling thread. No other code may do so: [`CURRENT`] relies on it.
fn make_current(context: sys::CUcontext) -> Result<()> {
    if CURRENT.get() != context {
        // SAFETY: contexts live as long as the process.
        unsafe { result::ctx::set_current(context) }.called("cuCtxSetCurrent")?;
        CURRENT.set(context);
    }
    Ok(())
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu")
            .field("ordinal", &self.ordinal)
            .field("properties", &self.properties)
            .finish_non_exhaustive()
    }
}

fn properties(device: sys::CUdevice) -> Result<Properties> {
    use sys::CUdevice_attribute as A;
    let get = |attribute| {
        // SAFETY: the device is there.
        unsafe { result::device::get_attribute(device, attribute) }.called("cuDeviceGetAttribute")
    };
    Ok(Properties {
        name: result::device::get_name(device).called("cuDeviceGetName")?,
        capability: (
            get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: get(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        // SAFETY: the device is there.
        memory: unsafe { result::device::total_mem(device) }.called("cuDeviceTotalMem")?,
        shared_memory: get(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
        l2: get(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
    })
}
