//! Bytes from many addresses of a device to one range of host memory, and back.
//!
//! A copy that the host enqueues costs some 3 us, whatever its size, and the keys of a block of one layer are some tens
//! of kilobytes: a bus of 50 GB/s moves those in less than 1 us. So a kernel (`cu/exchange.cu`) collects them in device
//! memory, and one copy moves what was collected. With 8 MiB at a time, the bus takes 160 us for a copy and the kernel
//! about 10 us before it.
//!
//! There are two buffers of that size. The list of the parts of one is written while the other one is under way. Memory
//! that is not pinned goes through pinned memory: the host copies one buffer while the bus moves the other.

use std::ffi::c_void;
use std::mem::size_of;
use std::sync::{Arc, PoisonError};

use cudarc::driver::{result, sys};

use crate::error::{Called, Error, Result};
use crate::scratch::Purpose;
use crate::{Args, Gpu, Launch, Mark, Pinned};

/// Maximum number of bytes that a buffer collects.
const ROOM: usize = 8 << 20;

/// Maximum number of parts of a buffer.
const MAX_PARTS: usize = 4096;

/// Maximum size of a part in bytes: 256 threads with four loads of 16 bytes each.
const PART: usize = 16 << 10;

const THREADS: usize = 256;

/// Bytes that lie behind each other on both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Address on the device.
    pub at: u64,
    /// First byte of the host's range.
    pub host: usize,
    pub bytes: usize,
}

/// The host's side.
pub(crate) enum Host<'a> {
    /// The device's bytes are copied to it.
    To(&'a mut [u8]),
    /// Its bytes are copied to the device.
    From(&'a [u8]),
}

impl Host<'_> {
    fn len(&self) -> usize {
        match self {
            Self::To(bytes) => bytes.len(),
            Self::From(bytes) => bytes.len(),
        }
    }

    /// Whether it is pinned. The driver knows no other address of the host.
    fn is_pinned(&self) -> bool {
        let at = match self {
            Self::To(bytes) => bytes.as_ptr(),
            Self::From(bytes) => bytes.as_ptr(),
        };
        let mut kind = 0u32;
        let mut wanted = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        let mut to: *mut c_void = (&raw mut kind).cast();
        // SAFETY: one attribute, which is an `unsigned int`. The driver only looks the address up, and an address that
        // it does not know is no error for this function.
        let done =
            unsafe { sys::cuPointerGetAttributes(1, &raw mut wanted, &raw mut to, at as u64) };
        done == sys::CUresult::CUDA_SUCCESS && kind == sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32
    }
}

/// Bytes that lie behind each other in a buffer and on the host.
#[derive(Clone, Copy, Debug)]
struct Span {
    buffer: usize,
    host: usize,
    bytes: usize,
}

/// Device memory for what is collected and for the list of its parts, and the host's side of both.
struct Buffer {
    /// Address of what is collected.
    data: u64,
    /// Address of the list on the device.
    list_there: u64,
    /// Two words for each part.
    list: Pinned<u64>,
    /// For host memory that is not pinned; allocated when there is some.
    pinned: Option<Pinned<u8>>,
    /// Behind the last use.
    mark: Mark,
    parts: usize,
    bytes: usize,
    spans: Vec<Span>,
}

/// The two buffers of a device. They stay allocated until the process ends, as its scratch memory does.
pub(crate) struct Exchange([Buffer; 2]);

/// Waits for the device when it is dropped. So no copy is under way when its memory is given back, whatever happened
/// between.
struct Wait<'a>(&'a Gpu);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let _ = self.0.synchronize();
    }
}

/// Copies runs, after everything enqueued so far, and waits. No two runs share a byte of the side that is written.
///
/// # Safety
/// Each run is memory of the device that nothing else uses meanwhile, outside of its stream.
///
/// # Errors
/// [`Error::Shape`] for a run beyond the host's range; errors of the driver. Earlier runs may have been copied; nothing
/// is under way.
pub(crate) unsafe fn exchange(
    gpu: &Arc<Gpu>,
    mut host: Host<'_>,
    runs: impl IntoIterator<Item = Run>,
) -> Result<()> {
    gpu.bind()?;
    let mut buffers = gpu.exchange.lock().unwrap_or_else(PoisonError::into_inner);
    let buffers = match &mut *buffers {
        Some(Exchange(buffers)) => buffers,
        none => &mut none.insert(Exchange::new(gpu)?).0,
    };
    let pinned = host.len() == 0 || host.is_pinned();
    for buffer in &mut *buffers {
        if !pinned && buffer.pinned.is_none() {
            buffer.pinned = Some(Pinned::zeroed(gpu, ROOM)?);
        }
        buffer.reset();
    }
    // Dropped before `buffers` and `host`.
    let wait = Wait(gpu);
    let mut pass = Pass { gpu, host: &mut host, pinned };
    let [mut this, mut other] = buffers.each_mut();
    for mut run in runs {
        if run.host.checked_add(run.bytes).is_none_or(|end| end > pass.host.len()) {
            let Run { host, bytes, .. } = run;
            let why = format!("{bytes} bytes at {host} of {}", pass.host.len());
            return Err(Error::shape("exchange", why));
        }
        while run.bytes > 0 {
            if this.is_full() {
                pass.enqueue(this)?;
                pass.finish(other)?;
                (this, other) = (other, this);
            }
            this.take(&mut run);
        }
    }
    pass.enqueue(this)?;
    pass.finish(other)?;
    pass.finish(this)?;
    drop(wait);
    gpu.synchronize()
}

impl Exchange {
    fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        const LIST: usize = MAX_PARTS * 2 * size_of::<u64>();
        let region = |purpose, bytes| gpu.scratch(|scratch| scratch.region(gpu, purpose, bytes));
        let data = region(Purpose::Exchange, 2 * ROOM)?;
        let lists = region(Purpose::ExchangeLists, 2 * LIST)?;
        let buffer = |nth: u64| -> Result<Buffer> {
            Ok(Buffer {
                data: data + nth * ROOM as u64,
                list_there: lists + nth * LIST as u64,
                list: Pinned::zeroed(gpu, 2 * MAX_PARTS)?,
                pinned: None,
                mark: Mark::new(gpu)?,
                parts: 0,
                bytes: 0,
                spans: Vec::new(),
            })
        };
        Ok(Self([buffer(0)?, buffer(1)?]))
    }
}

impl Buffer {
    fn reset(&mut self) {
        (self.parts, self.bytes) = (0, 0);
        self.spans.clear();
    }

    fn is_full(&self) -> bool {
        self.parts == MAX_PARTS || self.bytes == ROOM
    }

    /// Takes the next part off a run. The buffer is not full, and its list is not under way.
    fn take(&mut self, run: &mut Run) {
        let bytes = run.bytes.min(PART).min(ROOM - self.bytes);
        // In the order of the kernel's `Part`: a device is little-endian, as every host that has one.
        let sizes = self.bytes as u64 | (bytes as u64) << 32;
        self.list.as_mut_slice()[2 * self.parts..][..2].copy_from_slice(&[run.at, sizes]);
        // In the buffer a part always begins where the last one ends.
        match self.spans.last_mut() {
            Some(last) if last.host + last.bytes == run.host => last.bytes += bytes,
            _ => self.spans.push(Span { buffer: self.bytes, host: run.host, bytes }),
        }
        self.parts += 1;
        self.bytes += bytes;
        *run = Run { at: run.at + bytes as u64, host: run.host + bytes, bytes: run.bytes - bytes };
    }
}

/// One call of [`exchange`].
struct Pass<'a, 'h> {
    gpu: &'a Arc<Gpu>,
    host: &'a mut Host<'h>,
    pinned: bool,
}

impl Pass<'_, '_> {
    /// Enqueues what a buffer has, and marks the end of it.
    fn enqueue(&mut self, buffer: &mut Buffer) -> Result<()> {
        if buffer.parts == 0 {
            return Ok(());
        }
        let stream = self.gpu.stream();
        let list = &buffer.list.as_slice()[..2 * buffer.parts];
        // SAFETY: the region has room for a whole list. The list is written again only after the buffer's mark.
        unsafe { result::memcpy_htod_async(buffer.list_there, list, stream) }
            .called("cuMemcpyHtoDAsync")?;
        match self.host {
            Host::To(_) => {
                self.launch("exchange_gather", buffer)?;
                self.fetch(buffer)?;
            }
            Host::From(_) => {
                self.send(buffer)?;
                self.launch("exchange_scatter", buffer)?;
            }
        }
        buffer.mark.set()
    }

    fn launch(&self, name: &'static str, buffer: &Buffer) -> Result<()> {
        let args = Args::new().ptr(buffer.list_there).ptr(buffer.data);
        // SAFETY: a block of threads copies one part of the list. All parts lie within the buffer's room, and within
        // runs, for which the caller of `exchange` answers.
        unsafe { Launch::new("exchange", name, buffer.parts, THREADS).enqueue(self.gpu, args) }
    }

    /// Enqueues copies of what a buffer has collected to the host.
    fn fetch(&mut self, buffer: &mut Buffer) -> Result<()> {
        let (data, stream) = (buffer.data, self.gpu.stream());
        let copy = |to: &mut [u8], from: u64| {
            // SAFETY: as many bytes lie within the buffer's room. `to` is part of the host's range or of the buffer's
            // pinned memory, which are borrowed or kept until `exchange` has waited.
            unsafe { result::memcpy_dtoh_async(to, from, stream) }.called("cuMemcpyDtoHAsync")
        };
        match (&mut *self.host, &mut buffer.pinned) {
            (Host::To(out), _) if self.pinned => buffer
                .spans
                .iter()
                .try_for_each(|s| copy(&mut out[s.host..][..s.bytes], data + s.buffer as u64)),
            (Host::To(_), Some(pinned)) => copy(&mut pinned.as_mut_slice()[..buffer.bytes], data),
            _ => Ok(()),
        }
    }

    /// Enqueues copies from the host to where a buffer's parts are taken from.
    fn send(&mut self, buffer: &mut Buffer) -> Result<()> {
        let (data, stream) = (buffer.data, self.gpu.stream());
        let copy = |to: u64, from: &[u8]| {
            // SAFETY: as in `fetch`.
            unsafe { result::memcpy_htod_async(to, from, stream) }.called("cuMemcpyHtoDAsync")
        };
        match (&*self.host, &mut buffer.pinned) {
            (Host::From(bytes), _) if self.pinned => buffer
                .spans
                .iter()
                .try_for_each(|s| copy(data + s.buffer as u64, &bytes[s.host..][..s.bytes])),
            (Host::From(bytes), Some(pinned)) => {
                let pinned = &mut pinned.as_mut_slice()[..buffer.bytes];
                for s in &buffer.spans {
                    pinned[s.buffer..][..s.bytes].copy_from_slice(&bytes[s.host..][..s.bytes]);
                }
                copy(data, pinned)
            }
            _ => Ok(()),
        }
    }

    /// Waits for a buffer, and empties it: bytes for memory that is not pinned go there now.
    fn finish(&mut self, buffer: &mut Buffer) -> Result<()> {
        if buffer.parts == 0 {
            return Ok(());
        }
        buffer.mark.wait()?;
        if let (Host::To(out), Some(pinned), false) = (&mut *self.host, &buffer.pinned, self.pinned)
        {
            for s in &buffer.spans {
                let from = &pinned.as_slice()[s.buffer..][..s.bytes];
                out[s.host..][..s.bytes].copy_from_slice(from);
            }
        }
        buffer.reset();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, PinnedPool};

    #[test]
    fn memory_is_pinned_only_where_the_driver_has_pinned_it() {
        let gpu = crate::emulate().and_then(|()| Gpu::open(0)).unwrap();
        let mut pinned = PinnedPool::new(&gpu).alloc(100).unwrap();
        assert!(Host::From(&pinned).is_pinned() && Host::From(&pinned[99..]).is_pinned());
        assert!(Host::To(&mut pinned[1..]).is_pinned());
        assert!(!Host::From(&[0; 100]).is_pinned() && !Host::To(&mut [0; 100]).is_pinned());
    }

    #[test]
    fn after_an_error_in_the_middle_the_next_call_starts_anew() {
        let gpu = crate::emulate().and_then(|()| Gpu::open(0)).unwrap();
        let data: Vec<u8> = (0..ROOM + 1000).map(|i| (i % 251) as u8).collect();
        let there = Buffer::from_slice(&gpu, &data).unwrap();
        let at = there.view().ptr();
        let mut out = vec![0; data.len()];
        let runs =
            [Run { at, host: 0, bytes: data.len() }, Run { at, host: out.len() - 3, bytes: 4 }];
        // SAFETY: the runs lie within `there`.
        let failed = unsafe { exchange(&gpu, Host::To(&mut out), runs) };
        assert!(matches!(failed, Err(Error::Shape { .. })), "{failed:?}");
        let mut out = [0; 8];
        let runs = [Run { at: at + 5, host: 2, bytes: 4 }];
        // SAFETY: as above.
        unsafe { exchange(&gpu, Host::To(&mut out), runs) }.unwrap();
        assert_eq!(out, [0, 0, 5, 6, 7, 8, 0, 0]);
    }
}
