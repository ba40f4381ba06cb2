//! Launching a kernel: its arguments and its grid.

use std::ffi::c_void;

use cudarc::driver::sys;

use crate::error::{Called, Error, Result};
use crate::{Gpu, Pod, View, ViewMut, compile};

/// Maximum number of arguments of a kernel.
const MOST: usize = 32;

/// A kernel's arguments, in order. The types must be the kernel's own: a device pointer, `int`, `long long`,
/// `float`.
#[derive(Clone, Debug)]
pub struct Args {
    values: [u64; MOST],
    len: usize,
}

impl Default for Args {
    fn default() -> Self {
        Self { values: [0; MOST], len: 0 }
    }
}

impl Args {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    fn push(mut self, bits: u64) -> Self {
        // An argument too many makes the launch fail.
        if let Some(value) = self.values.get_mut(self.len) {
            *value = bits;
        }
        self.len += 1;
        self
    }

    /// Adds a pointer by its address; 0 for none.
    #[must_use]
    pub fn ptr(self, address: u64) -> Self {
        self.push(address)
    }

    /// Adds a pointer to elements.
    #[must_use]
    pub fn view<T: Pod>(self, view: View<'_, T>) -> Self {
        self.push(view.ptr())
    }

    /// Adds a pointer to elements that the kernel writes.
    #[must_use]
    pub fn view_mut<T: Pod>(self, view: &ViewMut<'_, T>) -> Self {
        self.push(view.ptr())
    }

    /// Adds an `int`: a size. A size that does not fit makes the launch fail.
    #[must_use]
    pub fn int(self, value: usize) -> Self {
        match i32::try_from(value) {
            Ok(value) => self.push(u64::from(value as u32)),
            Err(_) => Self { len: MOST + 1, ..self },
        }
    }

    /// Adds an `int`: a number with a sign.
    #[must_use]
    pub fn signed(self, value: i32) -> Self {
        self.push(u64::from(value as u32))
    }

    /// Adds a `long long`: a stride or an offset.
    #[must_use]
    pub fn long(self, value: usize) -> Self {
        self.push(value as u64)
    }

    /// Adds a `float`.
    #[must_use]
    pub fn float(self, value: f32) -> Self {
        self.push(u64::from(value.to_bits()))
    }
}

/// A kernel and the shape of its launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// File in `cu/`, without the extension.
    pub file: &'static str,
    /// Name of the `extern "C"` function.
    pub name: &'static str,
    /// Number of blocks of threads.
    pub grid: [usize; 3],
    /// Number of threads of a block.
    pub block: [usize; 3],
    /// Number of bytes of dynamic shared memory.
    pub shared: usize,
}

impl Launch {
    /// A one-dimensional launch.
    pub fn new(file: &'static str, name: &'static str, blocks: usize, threads: usize) -> Self {
        Self { file, name, grid: [blocks, 1, 1], block: [threads, 1, 1], shared: 0 }
    }

    /// The same with a grid of several dimensions.
    #[must_use]
    pub fn grid(self, grid: [usize; 3]) -> Self {
        Self { grid, ..self }
    }

    /// The same with dynamic shared memory.
    #[must_use]
    pub fn shared(self, bytes: usize) -> Self {
        Self { shared: bytes, ..self }
    }

    /// Enqueues the kernel. A grid without blocks is done at once.
    ///
    /// # Safety
    /// The arguments are those of the kernel, and what it reads and writes for a grid of this shape lies
    /// within memory that lives until it has run.
    ///
    /// # Errors
    /// [`Error::Shape`] for sizes no launch can have; errors of the compilation; errors of the driver.
    pub unsafe fn enqueue(self, gpu: &Gpu, mut args: Args) -> Result<()> {
        if self.grid.contains(&0) {
            return Ok(());
        }
        let bad = |why: String| Err(Error::shape(self.name, why));
        if args.len > MOST {
            return bad("an argument is too large for a 32-bit int".into());
        }
        let threads: usize = self.block.iter().product();
        let [x, y, z] = self.grid;
        if threads == 0 || threads > 1024 || x > i32::MAX as usize || y > 65_535 || z > 65_535 {
            return bad(format!("{:?} blocks of {:?} threads", self.grid, self.block));
        }
        if self.shared > gpu.properties().shared_memory {
            let most = gpu.properties().shared_memory;
            return bad(format!("{} bytes of shared memory, but a block has {most}", self.shared));
        }
        let function = gpu.function(self.file, self.name, self.shared)?;
        gpu.bind()?;
        let mut params = [std::ptr::null_mut::<c_void>(); MOST];
        for (param, value) in params.iter_mut().zip(&mut args.values[..args.len]) {
            *param = std::ptr::from_mut(value).cast();
        }
        let [[gx, gy, gz], [bx, by, bz]] = [self.grid, self.block].map(|d| d.map(|n| n as u32));
        let mut early = begins_early();
        let config = sys::CUlaunchConfig {
            gridDimX: gx,
            gridDimY: gy,
            gridDimZ: gz,
            blockDimX: bx,
            blockDimY: by,
            blockDimZ: bz,
            sharedMemBytes: self.shared as u32,
            hStream: gpu.stream(),
            attrs: &raw mut early,
            // Only kernels that wait by themselves for the one before them may begin early: those of this crate do.
            numAttrs: u32::from(gpu.begins_early() && compile::source(self.file).is_ok()),
        };
        // SAFETY: the caller's promise; the driver copies the arguments and the configuration before it returns.
        unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                function,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
        .called(self.name)
    }
}

/// Attribute of a launch: the kernel may begin before the one before it in the stream has ended, as soon as that one
/// allows it ("programmatic stream serialization"). See `wait_for_previous` in `cu/ptx.cuh`.
fn begins_early() -> sys::CUlaunchAttribute {
    sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    }
}
