//! A CPU in the place of a device.
//!
//! CUDA's driver is a library that is loaded by its name, `libcuda.so`. A library of our own that is loaded
//! before under that name is what every later load of that name gets. So everything above it is the same
//! code as on a device: what is launched, copied, captured and waited for.

use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::{compile, probe};

/// The order in which a CPU runs the threads of a block, as far as they do not wait for each other, and
/// the blocks of a grid. Results must not depend on it: where they do, a barrier is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The first one that can go on.
    Forward,
    /// The last one that can.
    Backward,
    /// Any, drawn from this seed. Asynchronous copies arrive early or late.
    Random(u64),
}

/// The functions of the stand-in that CUDA does not have.
#[derive(Clone, Copy)]
struct Extra {
    set_order: unsafe extern "C" fn(i32, u64),
    last_report: unsafe extern "C" fn(*mut u8, usize) -> usize,
    live_allocations: unsafe extern "C" fn() -> usize,
}

static LOADED: Mutex<Option<Extra>> = Mutex::new(None);

fn loaded() -> std::sync::MutexGuard<'static, Option<Extra>> {
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Let a CPU stand in for CUDA, in this process, from now on: [`probe`](crate::probe) finds one device,
/// and its kernels are those of `cu/`, compiled by the host's C++ compiler. Must come before anything
/// else here is used (a probe that found no driver does no harm); asked for again, it does nothing.
/// `STRATA_CUDA=emulated` asks for it from outside.
///
/// # Errors
/// [`Error::NoCompiler`] and the like when the stand-in cannot be built; [`Error::State`] when CUDA itself
/// is in use already, or on a system that is not Linux.
pub fn emulate() -> Result<()> {
    probe::emulate()
}

/// Load the stand-in if it is not there yet. Only [`probe`](crate::probe) knows whether it may.
pub(crate) fn load_once() -> Result<()> {
    let mut loaded = loaded();
    if loaded.is_none() {
        *loaded = Some(load()?);
    }
    Ok(())
}

/// Whether a CPU stands in for CUDA.
pub fn is_emulated() -> bool {
    loaded().is_some()
}

/// Run what the calling thread launches in this order from now on; `None` for what `STRATA_SHIM_ORDER`
/// says (`forward`, `backward` or `random:SEED`; `forward` if it says nothing). Nothing happens where no CPU
/// stands in.
pub fn shim_order(order: Option<Order>) {
    let Some(extra) = *loaded() else { return };
    let (kind, seed) = match order {
        None => (-1, 0),
        Some(Order::Forward) => (0, 0),
        Some(Order::Backward) => (1, 0),
        Some(Order::Random(seed)) => (2, seed),
    };
    // SAFETY: it stores two numbers.
    unsafe { (extra.set_order)(kind, seed) };
}

/// Allocations of device memory that have not been freed; `None` where no CPU stands in.
pub fn shim_live_allocations() -> Option<usize> {
    let extra = (*loaded())?;
    // SAFETY: it reads a number.
    Some(unsafe { (extra.live_allocations)() })
}

/// What went wrong in the calling thread's last call of the driver, in words: which kernel, block and
/// thread, and what it did. [`Error::Driver`] has it too. `None` where no CPU stands in, and when there is
/// nothing to tell.
pub fn shim_report() -> Option<String> {
    let extra = (*loaded())?;
    let mut text = vec![0u8; 2048];
    // SAFETY: it writes at most as many bytes as it is told.
    let len = unsafe { (extra.last_report)(text.as_mut_ptr(), text.len()) };
    text.truncate(len.min(2047));
    (len > 0).then(|| String::from_utf8_lossy(&text).into_owned())
}

#[cfg(target_os = "linux")]
fn load() -> Result<Extra> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

    let path = compile::host_library()?;
    let failed = |e: libloading::Error| Error::Cache { path: path.clone(), why: e.to_string() };
    // SAFETY: our own library; loading it runs nothing but the C++ runtime's own constructors. Kernels find
    // its functions because it is global.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }.map_err(failed)?;
    // Fibers and handlers live in it, so it stays.
    let library: &'static Library = Box::leak(Box::new(library));
    // SAFETY: driver.cpp defines the three with these types.
    unsafe {
        Ok(Extra {
            set_order: *library.get(b"strata_shim_set_order\0").map_err(failed)?,
            last_report: *library.get(b"strata_shim_last_report\0").map_err(failed)?,
            live_allocations: *library.get(b"strata_shim_live_allocations\0").map_err(failed)?,
        })
    }
}

#[cfg(not(target_os = "linux"))]
fn load() -> Result<Extra> {
    let _ = compile::host_library;
    Err(Error::State("a CPU can stand in for the device on Linux only".into()))
}
