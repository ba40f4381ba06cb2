//! What was made is gone when it is dropped. Alone in its program: the device counts for all tests at once.

mod common;

use kernels::{Buffer, Float, Graph, Kv, KvShape, Pinned, PinnedPool, Timer, Uploader, ops};

#[test]
fn nothing_is_left_when_everything_was_dropped() {
    let gpu = common::emulated();
    // The buffers through which blocks move stay.
    let one = Buffer::zeroed(&gpu, 64).unwrap();
    let shape = KvShape { blocks: 4, block_size: 1, heads: 1, dim: 4, dtype: Float::F32 };
    let cache = Kv::new(shape, one.view(), one.view()).unwrap();
    let exchange = |out: &mut [u8]| ops::read_blocks(&gpu, [(cache, 0)], &[3], out).unwrap();
    exchange(&mut [0; 32]);
    let live = || kernels::shim_live_allocations().unwrap();
    let (before, (free, _)) = (live(), gpu.memory().unwrap());
    for _ in 0..3 {
        let mut x = Buffer::from_slice(&gpu, &[1.0f32; 100]).unwrap();
        let y = Buffer::zeroed(&gpu, 0).unwrap();
        assert_eq!(live(), before + 2);
        assert!(gpu.memory().unwrap().0 < free);
        let pinned = Pinned::<u32>::zeroed(&gpu, 10).unwrap();
        let (pool, kept) = (PinnedPool::new(&gpu), PinnedPool::new(&gpu).alloc(10).unwrap());
        drop(pool.alloc(10).unwrap());
        let mut uploader = Uploader::new(&gpu).unwrap();
        uploader.upload::<kernels::Error>(&mut x.view_mut(), 4, |_, _| Ok(())).unwrap();
        exchange(&mut [0; 32]);
        exchange(&mut pool.alloc(32).unwrap());
        let timer = Timer::new(&gpu).unwrap();
        let graph = Graph::capture(&gpu, || x.view_mut().clear(&gpu)).unwrap();
        drop((graph, timer, uploader, pinned, pool, kept, y, x));
        assert_eq!(live(), before);
        assert_eq!(gpu.memory().unwrap().0, free);
    }
}
