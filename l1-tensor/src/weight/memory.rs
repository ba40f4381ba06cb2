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
use crate::{Error, Result};

/// Size of a huge page, in bytes.
const HUGE_PAGE: usize = 2 << 20;

/// Minimum size of a region, in bytes. What is not used of it takes no memory, but for its last huge page.
const REGION: usize = 64 << 20;

/// Where the lines of all weights of this process are.
static REGIONS: Regions = Regions::new();

/// Lines of one weight. Their pages go back to the system when this is dropped.
pub(super) struct LineMemory {
    region: Arc<Region>,
    /// The bytes of the region that are this weight's.
    own: Range<usize>,
}

impl LineMemory {
    /// Takes memory for `count` lines of zeros. No page of it has been touched yet, so the threads that write the lines
    /// make the pages, in parallel.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(super) fn zeroed(count: usize) -> Result<Self> {
        REGIONS.take(count)
    }
}

impl Deref for LineMemory {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        let (first, len) = (self.region.at(self.own.start), self.own.len() / size_of::<Line>());
        // SAFETY: `own` is inside of the region, which lives as long as this, and begins at a multiple of a line's size
        // behind the bound of a page. No other memory has these bytes, and they were zeros at first: any bytes are
        // valid lines.
        unsafe { slice::from_raw_parts(first.cast(), len) }
    }
}

impl DerefMut for LineMemory {
    fn deref_mut(&mut self) -> &mut [Line] {
        let (first, len) = (self.region.at(self.own.start), self.own.len() / size_of::<Line>());
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { slice::from_raw_parts_mut(first.cast(), len) }
    }
}

impl Drop for LineMemory {
    fn drop(&mut self) {
        self.region.release(self.own.clone());
    }
}

impl fmt::Debug for LineMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lines", self.len())
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

    fn take(&self, count: usize) -> Result<LineMemory> {
        let bytes =
            count.checked_mul(size_of::<Line>()).ok_or(Error::OutOfMemory { bytes: usize::MAX })?;
        let mut latest = lock(&self.0);
        let used = latest.used;
        let roomy = latest.region.upgrade().filter(|region| bytes <= region.size() - used);
        let region = match roomy {
            Some(region) => region,
            None => {
                let region = Arc::new(Region::new(bytes.max(REGION))?);
                *latest = Latest { region: Arc::downgrade(&region), used: 0 };
                region
            }
        };
        let own = latest.used..latest.used + bytes;
        latest.used = own.end;
        Ok(LineMemory { region, own })
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

    /// Gives back the pages that are wholly in a range which nothing reads any more. So an adapter that is evicted
    /// frees its memory, though others in its region stay.
    fn release(&self, range: Range<usize>) {
        /// The largest size of an ordinary page.
        const PAGE: usize = 64 << 10;
        let (first, end) = (range.start.next_multiple_of(PAGE), range.end / PAGE * PAGE);
        #[cfg(unix)]
        if first < end {
            let dont_need = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: no other memory has bytes of these pages, and these are given out once.
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

    /// Number of lines of a page of any size.
    const PAGE_LINES: usize = (64 << 10) / size_of::<Line>();

    #[test]
    fn weights_lie_one_behind_the_other_and_begin_with_a_huge_page() {
        let regions = Regions::new();
        let (mut a, mut b) = (regions.take(3).unwrap(), regions.take(5).unwrap());
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
        let small = regions.take(1).unwrap();
        let large = regions.take(2 * most).unwrap();
        assert!(large.as_ptr().addr().is_multiple_of(HUGE_PAGE));
        let region = Arc::downgrade(&large.region);
        assert!(!Arc::ptr_eq(&small.region, &large.region));
        drop(large);
        assert!(region.upgrade().is_none());
        assert_eq!(regions.take(0).unwrap().len(), 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_weight_that_is_dropped_gives_its_pages_back_and_nothing_of_its_neighbours() {
        let regions = Regions::new();
        let mut all = [3, 4 * PAGE_LINES, 3].map(|count| regions.take(count).unwrap());
        for memory in &mut all {
            memory.fill(Line([7; 16]));
        }
        let [before, dropped, after] = all;
        let (region, own) = (Arc::clone(&before.region), dropped.own.clone());
        drop(dropped);
        // SAFETY: the region is alive, and nothing else reads or writes these bytes.
        let left =
            unsafe { slice::from_raw_parts(region.at(own.start).cast::<Line>(), 4 * PAGE_LINES) };
        let kept = left.iter().filter(|line| line.0 == [7; 16]).count();
        assert!(kept <= PAGE_LINES, "{kept} lines: more than the edges");
        assert!(before.iter().chain(after.iter()).all(|line| line.0 == [7; 16]));
    }

    #[test]
    fn what_no_machine_has_is_an_error() {
        for count in [usize::MAX, usize::MAX / size_of::<Line>(), 1 << 55] {
            assert!(
                matches!(Regions::new().take(count), Err(Error::OutOfMemory { .. })),
                "{count}"
            );
        }
    }
}
