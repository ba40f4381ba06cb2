//! Memory of packed weights, in huge pages.
//!
//! Each decode step reads all weights. With pages of 4 KiB the processor looks up an address for every 64 lines. So weights
//! lie in regions that the system is asked to back with huge pages (2 MiB on x86-64). A matrix of a small model is smaller
//! than such a page: weights that are loaded one after the other share a region. On a Xeon the matmuls of one row become
//! 1.13 times as fast.
//!
//! Where huge pages are off (`/sys/kernel/mm/transparent_hugepage/enabled` is `never`), or on another system than Linux,
//! a region has ordinary pages.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::slice;
use std::sync::{Arc, Mutex, Weak};

use memmap2::{MmapMut, MmapRaw};

use super::packed::Line;
use super::panels::lock;
use crate::storage::AlignedBytes;
use crate::{Error, Result};

/// Size of a huge page, in bytes.
const HUGE_PAGE: usize = 2 << 20;

/// Size of a region, in bytes, unless a weight needs more. What is not used of it takes no memory, but for its last huge
/// page.
const REGION: usize = 64 << 20;

/// Where the lines of the weights of this process are that share regions.
static REGIONS: Regions = Regions::new();

/// Where lines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a region, behind the weight that was loaded before: read faster. Most of it is only free again when the last
    /// weight of the region is dropped.
    Region,
    /// In memory of the allocator, free again when the weight is dropped.
    Own,
}

/// Lines of one weight.
pub(super) struct LineMemory(Memory);

enum Memory {
    Shared(SharedLines),
    Own(AlignedBytes),
}

impl LineMemory {
    /// Takes memory for `count` lines of zeros. No page of it has been touched, but perhaps the first and the last, so
    /// the threads that write the lines make the pages, in parallel.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(super) fn zeroed(place: Place, count: usize) -> Result<Self> {
        let oom = Error::OutOfMemory { bytes: usize::MAX };
        let bytes = count.checked_mul(size_of::<Line>()).ok_or(oom)?;
        Ok(Self(match place {
            Place::Region => Memory::Shared(REGIONS.take(bytes)?),
            Place::Own => Memory::Own(AlignedBytes::zeroed(bytes)?),
        }))
    }

    /// The first byte, and the number of bytes.
    fn bytes(&self) -> (*const u8, usize) {
        match &self.0 {
            Memory::Shared(lines) => (lines.region.at(lines.own.start), lines.own.len()),
            Memory::Own(bytes) => (bytes.as_slice().as_ptr(), bytes.as_slice().len()),
        }
    }

    /// As [`bytes`](Self::bytes), to write.
    fn bytes_mut(&mut self) -> (*mut u8, usize) {
        match &mut self.0 {
            Memory::Shared(lines) => (lines.region.at(lines.own.start), lines.own.len()),
            Memory::Own(bytes) => (bytes.as_mut_slice().as_mut_ptr(), bytes.as_slice().len()),
        }
    }
}

impl Deref for LineMemory {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        let (first, bytes) = self.bytes();
        // SAFETY: the bytes are this weight's alone, whole lines, initialised, and at a multiple of a line's size. Any
        // bytes are valid lines.
        unsafe { slice::from_raw_parts(first.cast(), bytes / size_of::<Line>()) }
    }
}

impl DerefMut for LineMemory {
    fn deref_mut(&mut self) -> &mut [Line] {
        let (first, bytes) = self.bytes_mut();
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { slice::from_raw_parts_mut(first.cast(), bytes / size_of::<Line>()) }
    }
}

impl fmt::Debug for LineMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lines", self.len())
    }
}

/// The bytes of one weight in a region.
struct SharedLines {
    region: Arc<Region>,
    /// Offsets in the region, multiples of a line's size.
    own: Range<usize>,
}

impl Drop for SharedLines {
    fn drop(&mut self) {
        // The last weight unmaps the region.
        if Arc::strong_count(&self.region) > 1 {
            self.region.release(self.own.clone());
        }
    }
}

/// The region with room for the next weight.
struct Regions(Mutex<Latest>);

struct Latest {
    /// A region lives as long as the weights in it.
    region: Weak<Region>,
    /// Number of its bytes that weights have, or had: each byte is given out once, so it is zero.
    used: usize,
}

impl Regions {
    const fn new() -> Self {
        Self(Mutex::new(Latest { region: Weak::new(), used: 0 }))
    }

    fn take(&self, bytes: usize) -> Result<SharedLines> {
        let mut latest = lock(&self.0);
        let used = latest.used;
        let roomy = latest.region.upgrade().filter(|region| bytes <= region.size() - used);
        let region = match roomy {
            Some(region) => region,
            None => {
                // Where there are no addresses for a whole region, the weight may still have its own.
                let new = Region::new(bytes.max(REGION)).or_else(|_| Region::new(bytes))?;
                let region = Arc::new(new);
                *latest = Latest { region: Arc::downgrade(&region), used: 0 };
                region
            }
        };
        let own = latest.used..latest.used + bytes;
        latest.used = own.end;
        Ok(SharedLines { region, own })
    }
}

/// A range of addresses that begins at the bound of a huge page.
struct Region {
    map: MmapRaw,
    /// Number of bytes of the map before that bound.
    skip: usize,
}

impl Region {
    /// Maps at least `size` bytes, all zero.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn new(size: usize) -> Result<Self> {
        let oom = || Error::OutOfMemory { bytes: size };
        let mapped = size.checked_add(HUGE_PAGE).ok_or_else(oom)?;
        let map = MmapRaw::from(MmapMut::map_anon(mapped).map_err(|_| oom())?);
        let skip = map.as_ptr().align_offset(HUGE_PAGE);
        // A hint: without it weights are where they are, and only slower to read.
        #[cfg(target_os = "linux")]
        let _ = map.advise_range(memmap2::Advice::HugePage, skip, mapped - skip);
        Ok(Self { map, skip })
    }

    fn size(&self) -> usize {
        self.map.len() - self.skip
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.map.as_mut_ptr().wrapping_add(self.skip + offset)
    }

    /// Gives back the huge pages that are wholly in a range which nothing reads any more. (Of a huge page that others
    /// read too, Linux would soon make a whole one again, with zeros for what was given back.)
    fn release(&self, range: Range<usize>) {
        let (first, end) =
            (range.start.next_multiple_of(HUGE_PAGE), range.end / HUGE_PAGE * HUGE_PAGE);
        #[cfg(unix)]
        if first < end {
            let dont_need = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: no other memory has bytes of these pages, which no page of the system exceeds, and they are given
            // out once.
            let _ = unsafe {
                self.map.unchecked_advise_range(dont_need, self.skip + first, end - first)
            };
        }
        #[cfg(not(unix))]
        let _ = (first, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(regions: &Regions, count: usize) -> LineMemory {
        LineMemory(Memory::Shared(regions.take(count * size_of::<Line>()).unwrap()))
    }

    fn region(memory: &LineMemory) -> &Arc<Region> {
        match &memory.0 {
            Memory::Shared(lines) => &lines.region,
            Memory::Own(_) => panic!("it has no region"),
        }
    }

    #[test]
    fn weights_lie_one_behind_the_other_and_begin_with_a_huge_page() {
        let regions = Regions::new();
        let (mut a, mut b) = (take(&regions, 3), take(&regions, 5));
        assert_eq!((a.len(), b.len()), (3, 5));
        assert!(a.as_ptr().addr().is_multiple_of(HUGE_PAGE));
        assert_eq!(a.as_ptr_range().end, b.as_ptr());
        for (memory, value) in [(&mut a, 1), (&mut b, 2)] {
            assert!(memory.iter().all(|line| line.0 == [0; 16]));
            memory.fill(Line([value; 16]));
        }
        assert!(a.iter().all(|line| line.0 == [1; 16]) && b.iter().all(|line| line.0 == [2; 16]));
    }

    #[test]
    fn what_does_not_fit_begins_a_region_and_an_empty_region_is_unmapped() {
        let regions = Regions::new();
        let most = REGION / size_of::<Line>();
        let (small, large) = (take(&regions, 1), take(&regions, 2 * most));
        assert!(large.as_ptr().addr().is_multiple_of(HUGE_PAGE));
        assert!(!Arc::ptr_eq(region(&small), region(&large)));
        let gone = Arc::downgrade(region(&large));
        drop(large);
        assert!(gone.upgrade().is_none());
        assert_eq!(take(&regions, 0).len(), 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_weight_that_is_dropped_gives_its_huge_pages_back_and_nothing_of_its_neighbours() {
        let (regions, page) = (Regions::new(), HUGE_PAGE / size_of::<Line>());
        let [mut before, mut dropped, mut after] =
            [3, 3 * page, 3].map(|count| take(&regions, count));
        for memory in [&mut before, &mut dropped, &mut after] {
            memory.fill(Line([7; 16]));
        }
        let (region, first) = (Arc::clone(region(&before)), dropped.as_ptr());
        drop(dropped);
        // SAFETY: the region is alive, and nothing else reads or writes these bytes.
        let left = unsafe { slice::from_raw_parts(first, 3 * page) };
        let kept = left.iter().filter(|line| line.0 == [7; 16]).count();
        assert_eq!(kept, page, "the ends, which share huge pages");
        assert!(before.iter().chain(after.iter()).all(|line| line.0 == [7; 16]));
        drop(region);
    }

    #[test]
    fn what_no_machine_has_is_an_error() {
        for place in [Place::Region, Place::Own] {
            for count in [usize::MAX, usize::MAX / size_of::<Line>(), 1 << 55] {
                let refused = LineMemory::zeroed(place, count);
                assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{place:?} {count}");
            }
        }
    }
}
