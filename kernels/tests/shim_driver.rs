//! The stand-in keeps the driver's rules: memory, copies, captures, events.

mod common;

use std::sync::Arc;
use std::time::Duration;

use kernels::{Args, Buffer, Error, Gpu, Graph, Launch, Pinned, PinnedPool, Timer, Uploader, View};

const STEPS: &str = r#"
#include "types.cuh"

extern "C" __global__ void add(float* x, const float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        x[i] += y[i];
    }
}

extern "C" __global__ void spin(float* out, int rounds) {
    float x = 1.0f;
    for (int i = 0; i < rounds; ++i) {
        x = x * 1.0001f + 1e-6f;
    }
    out[threadIdx.x] = x;
}
"#;

fn gpu() -> Arc<Gpu> {
    let gpu = common::emulated();
    gpu.load_text("steps", STEPS).unwrap();
    gpu
}

fn add(gpu: &Gpu, x: &mut Buffer, y: &Buffer) -> kernels::Result<()> {
    let n = x.len() / 4;
    let args = Args::new().view_mut(&x.view_mut()).view(y.view()).int(n);
    // SAFETY: the kernel's arguments; both have n elements.
    unsafe { Launch::new("steps", "add", n.div_ceil(32), 32).enqueue(gpu, args) }
}

fn code(result: kernels::Result<impl Sized>) -> u32 {
    match result.err() {
        Some(Error::Driver { code, .. }) => code,
        other => panic!("expected the driver to refuse, got {other:?}"),
    }
}

const INVALID_VALUE: u32 = 1;
const CAPTURE_UNSUPPORTED: u32 = 900;

#[test]
fn the_device_says_what_it_is() {
    let gpu = gpu();
    let cuda = kernels::probe().unwrap();
    assert_eq!((cuda.device_count, cuda.driver_version), (1, (13, 0)));
    assert_eq!(cuda.emulated, gpu.is_emulated());
    assert!(cuda.to_string().contains("emulated on the CPU"));
    assert_eq!(gpu.properties().capability, (8, 0));
    assert!(Arc::ptr_eq(&gpu, &Gpu::open(0).unwrap()));
    assert!(matches!(Gpu::open(1), Err(Error::NoSuchDevice { ordinal: 1, count: 1 })));
    kernels::emulate().unwrap();
}

#[test]
fn a_replay_reads_its_buffers_again() {
    let gpu = gpu();
    let mut x = Buffer::from_slice(&gpu, &[1.0f32; 40]).unwrap();
    let mut y = Buffer::from_slice(&gpu, &[2.0f32; 40]).unwrap();
    add(&gpu, &mut x, &y).unwrap();
    let mut graph = Graph::capture(&gpu, || {
        add(&gpu, &mut x, &y)?;
        add(&gpu, &mut x, &y)
    })
    .unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [3.0; 40], "recording runs nothing");
    // SAFETY: both buffers are alive.
    unsafe { graph.replay() }.unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [7.0; 40]);
    y.view_mut().cast::<f32>().copy_from(&gpu, &[-1.0; 40]).unwrap();
    // SAFETY: as above.
    unsafe { graph.replay() }.unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [5.0; 40]);
}

#[test]
fn a_replay_fetches_from_pinned_memory_again() {
    let gpu = gpu();
    let mut pinned = Pinned::<f32>::zeroed(&gpu, 8).unwrap();
    let mut x = Buffer::zeroed(&gpu, 32).unwrap();
    // SAFETY: the graph goes before both, and each replay is waited for (`to_vec`) before the memory is written again.
    let copy = || unsafe { pinned.enqueue_copy(&mut x.view_mut().cast()) };
    let mut graph = Graph::capture(&gpu, copy).unwrap();
    for round in 1..3 {
        pinned.as_mut_slice().fill(round as f32);
        // SAFETY: the buffer and the pinned memory are alive.
        unsafe { graph.replay() }.unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [round as f32; 8]);
    }
}

#[test]
fn elements_come_to_the_device_and_back_each_to_its_place() {
    let gpu = gpu();
    let mut pinned = Pinned::<u32>::zeroed(&gpu, 6).unwrap();
    pinned.as_mut_slice().copy_from_slice(&[1, 2, 3, 4, 5, 6]);
    let mut x = Buffer::zeroed(&gpu, 16).unwrap();
    // SAFETY: nothing is touched before the device was waited for.
    unsafe { pinned.enqueue_copy(&mut x.view_mut().cast()) }.unwrap();
    pinned.wait().unwrap();
    assert_eq!(x.to_vec::<u32>().unwrap(), [1, 2, 3, 4]);
    for at in [2, 0] {
        // SAFETY: as above; the two copies are one behind the other.
        unsafe { pinned.enqueue_fetch(at, x.view().cast::<u32>().part(0, 2)) }.unwrap();
    }
    pinned.wait().unwrap();
    assert_eq!(pinned.as_slice(), [1, 2, 1, 2, 5, 6]);
    for at in [5, usize::MAX] {
        // SAFETY: as above; it is refused.
        let refused = unsafe { pinned.enqueue_fetch(at, x.view().cast::<u32>().part(0, 2)) };
        assert!(matches!(refused, Err(Error::Shape { .. })), "{refused:?}");
    }
    let mut longer = Buffer::zeroed(&gpu, 32).unwrap();
    // SAFETY: as above; it is refused.
    let refused = unsafe { pinned.enqueue_copy(&mut longer.view_mut().cast()) };
    assert!(matches!(refused, Err(Error::Shape { .. })), "{refused:?}");
}

#[test]
fn what_may_not_happen_while_recording_is_refused() {
    let gpu = gpu();
    let mut x = Buffer::from_slice(&gpu, &[1.0f32; 8]).unwrap();
    let refused = |work: &mut dyn FnMut() -> kernels::Result<()>| {
        assert_eq!(code(Graph::capture(&gpu, work)), CAPTURE_UNSUPPORTED);
    };
    refused(&mut || Buffer::zeroed(&gpu, 64).map(drop));
    refused(&mut || gpu.synchronize());
    refused(&mut || x.view_mut().cast::<f32>().copy_from(&gpu, &[0.0; 8]));
    refused(&mut || x.to_vec::<f32>().map(drop));
    // Even when the work does not notice, nothing was recorded.
    let unnoticed = Graph::capture(&gpu, || -> kernels::Result<()> {
        let _ = gpu.synchronize();
        Ok(())
    });
    assert_eq!(code(unnoticed), 901);
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 8]);
    // And afterwards all is as before.
    Graph::capture(&gpu, || x.view_mut().clear(&gpu)).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 8]);
}

#[test]
fn a_replay_that_would_use_freed_memory_is_an_error() {
    let gpu = gpu();
    let mut x = Buffer::zeroed(&gpu, 64).unwrap();
    let y = Buffer::zeroed(&gpu, 64).unwrap();
    let mut graph = Graph::capture(&gpu, || add(&gpu, &mut x, &y)).unwrap();
    drop(y);
    // SAFETY: not kept, and caught.
    let error = unsafe { graph.replay() }.unwrap_err().to_string();
    assert!(error.contains("no address of the device's memory"), "{error}");
}

#[test]
fn copies_stay_within_an_allocation() {
    let gpu = gpu();
    let mut x = Buffer::zeroed(&gpu, 64).unwrap();
    let foreign = [0u8; 64];
    let y = Buffer::zeroed(&gpu, 64).unwrap();
    let gone: View<'_, u8> = {
        let view = y.view();
        // A view cannot outlive its buffer; what it points to can be wrong all the same.
        view.part(0, 64)
    };
    assert!(x.view_mut().copy_within_device(&gpu, gone).is_ok());
    assert!(x.view_mut().copy_from(&gpu, &foreign).is_ok());
    assert!(matches!(x.view_mut().copy_from(&gpu, &foreign[..3]), Err(Error::Shape { .. })));
    let args = Args::new().ptr(foreign.as_ptr() as u64).ptr(x.view().ptr()).int(1);
    // SAFETY: refused: the first is memory of the host.
    let result = unsafe { Launch::new("steps", "add", 1, 32).enqueue(&gpu, args) };
    assert_eq!(code(result), 700);
}

#[test]
fn launches_that_no_device_could_do_are_refused() {
    let gpu = gpu();
    let mut x = Buffer::zeroed(&gpu, 64).unwrap();
    let args = || Args::new().ptr(0).ptr(0).int(0);
    let launch = Launch::new("steps", "add", 1, 32);
    // SAFETY: with a length of 0 it touches nothing.
    unsafe {
        assert!(matches!(
            Launch::new("steps", "add", 1, 2048).enqueue(&gpu, args()),
            Err(Error::Shape { .. })
        ));
        assert!(matches!(launch.shared(1 << 20).enqueue(&gpu, args()), Err(Error::Shape { .. })));
        launch.shared(100 << 10).enqueue(&gpu, args()).unwrap();
        launch.grid([0, 1, 1]).enqueue(&gpu, args()).unwrap();
        assert_eq!(code(Launch::new("steps", "nothing", 1, 32).enqueue(&gpu, args())), 500);
        // An empty view at the end of a buffer is a pointer that nobody follows.
        let end = x.view_mut().part(64, 0);
        launch.enqueue(&gpu, Args::new().view_mut(&end).view(x.view()).int(0)).unwrap();
        let beyond = Args::new().ptr(x.view().ptr() + 65).ptr(0).int(0);
        assert_eq!(code(launch.enqueue(&gpu, beyond)), 700);
        let mut large = launch;
        large.block = [1, 1, 128];
        assert_eq!(code(large.enqueue(&gpu, args())), INVALID_VALUE);
    }
}

#[test]
fn more_memory_than_there_is_says_how_much_is_free() {
    let gpu = gpu();
    let (_, total) = gpu.memory().unwrap();
    let error = Buffer::zeroed(&gpu, total + 1).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { bytes, .. } if bytes == total + 1), "{error}");
    assert_eq!(total, gpu.properties().memory);
}

#[test]
fn something_large_is_cleared_to_its_edges() {
    let gpu = gpu();
    let len = (3 << 20) + 40;
    let ones = vec![1u8; len];
    let mut x = Buffer::from_slice(&gpu, &ones).unwrap();
    x.view_mut().part(7, len - 20).clear(&gpu).unwrap();
    let got: Vec<u8> = x.to_vec().unwrap();
    assert_eq!((&got[..7], &got[len - 13..]), (&ones[..7], &ones[..13]));
    assert!(got[7..len - 13].iter().all(|byte| *byte == 0));
}

#[test]
fn an_upload_in_pieces_is_the_whole() {
    let gpu = gpu();
    let mut uploader = Uploader::new(&gpu).unwrap();
    // More than one piece, and not a multiple of a row.
    let row = 5000;
    let rows = uploader.most() / row + 3;
    let value = |i: usize| (i / row * 31 + i % row) as u8;
    let mut there = Buffer::zeroed(&gpu, rows * row).unwrap();
    let mut calls = 0;
    uploader
        .upload::<Error>(&mut there.view_mut(), row, |offset, piece| {
            calls += 1;
            assert_eq!((offset % row, piece.len() % row), (0, 0));
            piece.iter_mut().enumerate().for_each(|(i, byte)| *byte = value(offset + i));
            Ok(())
        })
        .unwrap();
    uploader.finish().unwrap();
    assert_eq!(calls, 2);
    let got: Vec<u8> = there.to_vec().unwrap();
    assert!(got.iter().enumerate().all(|(i, byte)| *byte == value(i)));
}

#[test]
fn pinned_buffers_are_used_again_by_their_length() {
    let gpu = gpu();
    let pool = PinnedPool::new(&gpu);
    let mut first = pool.alloc(100).unwrap();
    first.fill(7);
    let at = first.as_ptr();
    drop(first);
    assert_eq!((pool.num_unused(), pool.alloc(99).unwrap().as_ptr() == at), (1, false));
    let again = pool.alloc(100).unwrap();
    assert_eq!((again.as_ptr(), &again[..]), (at, &[7; 100][..]));
    let many: Vec<_> = (0..40).map(|_| pool.alloc(100).unwrap()).collect();
    std::thread::spawn(move || drop(many)).join().unwrap();
    assert_eq!(pool.num_unused(), 41, "the other thread gives no memory back");
    let _one = pool.alloc(100).unwrap();
    assert_eq!(pool.num_unused(), 16);
    drop(pool);
    assert_eq!(again[0], 7, "a buffer outlives its pool");
}

#[test]
fn a_timer_measures_what_runs_between_its_marks() {
    let gpu = gpu();
    let mut out = Buffer::zeroed(&gpu, 128).unwrap();
    let mut timer = Timer::new(&gpu).unwrap();
    let mut spin = |rounds: usize| {
        timer
            .time::<Error>(&gpu, || {
                let args = Args::new().view_mut(&out.view_mut()).int(rounds);
                // SAFETY: 32 elements of `out`.
                unsafe { Launch::new("steps", "spin", 1, 32).enqueue(&gpu, args) }
            })
            .unwrap()
    };
    spin(1);
    let (short, long) = (spin(1), spin(100_000));
    assert!(long > short && long > Duration::from_micros(100), "{short:?} {long:?}");
}

#[test]
fn threads_of_the_host_may_all_use_the_device() {
    let gpu = gpu();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let gpu = &gpu;
            scope.spawn(move || {
                let y = Buffer::from_slice(gpu, &[thread as f32; 100]).unwrap();
                let mut x = Buffer::from_slice(gpu, &[0.0f32; 100]).unwrap();
                for _ in 0..50 {
                    add(gpu, &mut x, &y).unwrap();
                }
                assert_eq!(x.to_vec::<f32>().unwrap(), [50.0 * thread as f32; 100]);
            });
        }
    });
}
