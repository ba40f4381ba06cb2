//! Blocks of caches to the host and back.

use std::sync::Arc;

use kernels::{Buffer, Float, Gpu, Kv, KvMut, KvShape, PinnedBytes, PinnedPool, ops};

use crate::common::{gpu, under_every_order};
use crate::refused;

/// A byte that no cache starts with at this place.
const OUTSIDE: u8 = 0xaa;

/// A cache and its twin on the host: keys and values, each with bytes that tell all places apart.
struct Cache {
    shape: KvShape,
    device: [Buffer; 2],
    twin: [Vec<u8>; 2],
}

impl Cache {
    fn new(gpu: &Arc<Gpu>, shape: KvShape, seed: usize) -> Self {
        let twin = [seed, seed + 7].map(|seed| bytes(shape.bytes(), seed));
        let device = [0, 1].map(|half| Buffer::from_slice(gpu, &twin[half]).unwrap());
        Self { shape, device, twin }
    }

    fn view(&self) -> Kv<'_> {
        let [k, v] = &self.device;
        Kv::new(self.shape, k.view(), v.view()).unwrap()
    }

    fn view_mut(&mut self) -> KvMut<'_> {
        let [k, v] = &mut self.device;
        KvMut::new(self.shape, k.view_mut(), v.view_mut()).unwrap()
    }

    /// Number of bytes of a block's keys.
    fn run(&self) -> usize {
        self.shape.bytes() / self.shape.blocks
    }

    /// Bytes of blocks as the host has them: keys, then values, of each block in turn.
    fn exchanged(&self, blocks: &[u32]) -> Vec<u8> {
        let run =
            |half: &[u8], block: u32| half[block as usize * self.run()..][..self.run()].to_vec();
        let of = |block: &u32| [run(&self.twin[0], *block), run(&self.twin[1], *block)].concat();
        blocks.iter().flat_map(of).collect()
    }

    /// Stores such bytes in the twin, one block after the other.
    fn store(&mut self, blocks: &[u32], bytes: &[u8]) {
        let run = self.run();
        for (block, bytes) in blocks.iter().zip(bytes.chunks_exact(2 * run)) {
            for (half, bytes) in self.twin.iter_mut().zip(bytes.chunks_exact(run)) {
                half[*block as usize * run..][..run].copy_from_slice(bytes);
            }
        }
    }

    fn expect_equal(&self, what: &str) {
        for (device, twin) in self.device.iter().zip(&self.twin) {
            let device: Vec<u8> = device.to_vec().unwrap();
            let differs = device.iter().zip(twin).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{what}: a byte of {:?}", self.shape);
        }
    }
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + i / 251 + seed) * 131 % 241) as u8 % 0xa0).collect()
}

/// Shapes whose runs are multiples of 16 bytes, and others: of 2 and of 4, and of a few bytes.
fn shapes() -> impl Iterator<Item = KvShape> {
    let sizes = [(5, 16, 2, 64), (7, 3, 3, 18), (4, 16, 8, 128), (4, 1, 1, 1), (5, 8, 3, 18)];
    sizes.into_iter().flat_map(|(blocks, block_size, heads, dim)| {
        [Float::Bf16, Float::F32].map(|dtype| KvShape { blocks, block_size, heads, dim, dtype })
    })
}

/// A cache of each shape.
fn caches(gpu: &Arc<Gpu>) -> Vec<Cache> {
    shapes().enumerate().map(|(seed, shape)| Cache::new(gpu, shape, seed)).collect()
}

/// Host memory of both kinds, from whose first byte on a range begins at any address.
enum Memory {
    Pinned(PinnedBytes),
    Pageable(Vec<u8>),
}

impl Memory {
    fn both(gpu: &Arc<Gpu>, len: usize) -> [Self; 2] {
        let pinned = PinnedPool::new(gpu).alloc(len).unwrap();
        [Self::Pinned(pinned), Self::Pageable(vec![0; len])]
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Pinned(bytes) => bytes,
            Self::Pageable(bytes) => bytes,
        }
    }
}

/// Where each cache's bytes begin, with a gap after each, and the end of all.
fn places(caches: &[Cache], blocks: usize, gap: usize) -> (Vec<usize>, usize) {
    let mut end = gap;
    let starts = caches.iter().map(|cache| {
        let start = end;
        end += 2 * blocks * cache.run() + gap;
        start
    });
    (starts.collect(), end)
}

#[test]
fn blocks_of_all_layers_leave_keys_before_values_and_nothing_beside_them_is_written() {
    let Some(gpu) = gpu() else { return };
    let caches = caches(&gpu);
    for blocks in [&[3, 0, 1][..], &[2], &[1, 1], &[]] {
        for gap in [0, 1, 16] {
            let (starts, end) = places(&caches, blocks.len(), gap);
            let mut want = vec![OUTSIDE; end];
            for (cache, start) in caches.iter().zip(&starts) {
                let bytes = cache.exchanged(blocks);
                want[*start..][..bytes.len()].copy_from_slice(&bytes);
            }
            for (memory, from) in Memory::both(&gpu, end + 5).iter_mut().zip([0, 3]) {
                let out = &mut memory.bytes()[from..from + end];
                out.fill(OUTSIDE);
                let layers = caches.iter().map(Cache::view).zip(starts.iter().copied());
                ops::read_blocks(&gpu, layers, blocks, out).unwrap();
                assert!(out == want, "blocks {blocks:?}, {gap} bytes between layers");
            }
        }
    }
}

#[test]
fn bytes_come_to_their_blocks_and_other_blocks_stay() {
    let Some(gpu) = gpu() else { return };
    // Of a block that is written twice, the last bytes stay.
    for blocks in [&[3, 0, 1][..], &[2], &[1, 3, 1, 1, 3], &[]] {
        for gap in [0, 2] {
            for kind in [0, 1] {
                let mut caches = caches(&gpu);
                let (starts, end) = places(&caches, blocks.len(), gap);
                let mut memory = Memory::both(&gpu, end + 1);
                let sent = &mut memory[kind].bytes()[kind..][..end];
                sent.copy_from_slice(&bytes(end, 1000 + gap));
                let layers = caches.iter_mut().map(Cache::view_mut).zip(starts.iter().copied());
                ops::write_blocks(&gpu, layers, blocks, sent).unwrap();
                for (cache, start) in caches.iter_mut().zip(starts) {
                    cache.store(blocks, &sent[start..]);
                    cache.expect_equal(&format!("blocks {blocks:?}, {gap} bytes between layers"));
                }
            }
        }
    }
}

/// More bytes than the two buffers of 8 MiB take, or more than their 4,096 parts; runs that end in the middle of a
/// buffer.
#[test]
fn more_than_the_buffers_hold_moves_in_turns() {
    let Some(gpu) = gpu() else { return };
    let large = KvShape { blocks: 70, block_size: 16, heads: 9, dim: 48, dtype: Float::F32 };
    let small = KvShape { blocks: 3001, block_size: 1, heads: 1, dim: 9, dtype: Float::Bf16 };
    for (shape, layers) in [(large, 7), (small, 3)] {
        let blocks: Vec<u32> = (0..shape.blocks as u32 - 1).rev().collect();
        for kind in [0, 1] {
            let mut caches: Vec<_> =
                (0..layers).map(|seed| Cache::new(&gpu, shape, seed)).collect();
            let (starts, end) = places(&caches, blocks.len(), 0);
            assert!(end > 3 * (8 << 20) || 2 * blocks.len() * layers > 3 * 4096);
            let mut memory = Memory::both(&gpu, end);
            let memory = memory[kind].bytes();

            let layers = caches.iter().map(Cache::view).zip(starts.iter().copied());
            ops::read_blocks(&gpu, layers, &blocks, memory).unwrap();
            let want: Vec<u8> = caches.iter().flat_map(|c| c.exchanged(&blocks)).collect();
            assert!(memory == want, "{shape:?} to the host");

            memory.copy_from_slice(&bytes(end, 5));
            let layers = caches.iter_mut().map(Cache::view_mut).zip(starts.iter().copied());
            ops::write_blocks(&gpu, layers, &blocks, memory).unwrap();
            for (cache, start) in caches.iter_mut().zip(starts) {
                cache.store(&blocks, &memory[start..]);
                cache.expect_equal("more than the buffers hold");
            }
        }
    }
}

#[test]
fn no_order_of_threads_changes_what_moves() {
    let Some(gpu) = gpu() else { return };
    let blocks = [2, 0];
    for shape in shapes() {
        under_every_order(|| {
            let mut cache = Cache::new(&gpu, shape, 3);
            let mut out = vec![0; 4 * cache.run()];
            ops::read_blocks(&gpu, [(cache.view(), 0)], &blocks, &mut out).unwrap();
            ops::write_blocks(&gpu, [(cache.view_mut(), 0)], &[1, 3], &out).unwrap();
            let [k, v] = cache.device.each_ref().map(|half| half.to_vec::<u8>().unwrap());
            [out, k, v].concat()
        });
    }
}

#[test]
fn blocks_and_bytes_that_do_not_exist_are_named_and_nothing_moves() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape { blocks: 4, block_size: 2, heads: 2, dim: 8, dtype: Float::Bf16 };
    let (mut cache, mut beside) = (Cache::new(&gpu, shape, 0), Cache::new(&gpu, shape, 9));
    let mut out = vec![OUTSIDE; 256];
    let mut both = |blocks: &[u32], start: usize, words: &[&str]| {
        let layers = [(beside.view(), 0), (cache.view(), start)];
        refused(ops::read_blocks(&gpu, layers, blocks, &mut out), words);
        let layers = [(beside.view_mut(), 0), (cache.view_mut(), start)];
        refused(ops::write_blocks(&gpu, layers, blocks, &out), words);
    };
    both(&[3, 4], 0, &["block 4", "4 blocks"]);
    both(&[u32::MAX], 0, &["block 4294967295"]);
    both(&[3], 129, &["1 blocks of 128 bytes at 129 of 256"]);
    both(&[3, 1], 1, &["2 blocks of 128 bytes at 1"]);
    both(&[3], usize::MAX, &["at 18446744073709551615"]);
    assert!(out.iter().all(|byte| *byte == OUTSIDE));
    cache.expect_equal("refused");
    beside.expect_equal("refused");
}
