//! What a CPU that stands in for a device sees, and a device often lets pass.

mod common;

use std::sync::Arc;

use kernels::{Args, Buffer, Error, Gpu, Launch, Order};

const WRONG: &str = r#"
#include "types.cuh"
#include "ptx.cuh"

// Each thread gives its number to its neighbour. The barrier between is there only if asked for.
extern "C" __global__ void pass_on(int* out, int with_barrier) {
    __shared__ int room[256];
    const int i = threadIdx.x;
    room[i] = i;
    if (with_barrier) {
        __syncthreads();
    }
    out[i] = room[(i + 1) % blockDim.x];
}

extern "C" __global__ void parted(int* out, int from) {
    if (threadIdx.x < from) {
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}

extern "C" __global__ void two_places(int* out) {
    if (threadIdx.x % 2 == 0) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}

extern "C" __global__ void wrong_mask(int* out, int mask, int lanes) {
    if (threadIdx.x < lanes) {
        out[threadIdx.x] = __shfl_xor_sync(static_cast<u32>(mask), 1, 1);
    }
}

extern "C" __global__ void parted_lanes(int* out) {
    if (threadIdx.x % 2 == 0) {
        out[threadIdx.x] = __shfl_xor_sync(ALL_LANES, 1, 1);
    } else {
        out[threadIdx.x] = __shfl_xor_sync(ALL_LANES, 2, 1);
    }
}

extern "C" __global__ void reads_far_lane(int* out) {
    if (threadIdx.x < 16) {
        out[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
    }
}

extern "C" __global__ void reads(const float* x, float* out, long long at) {
    if (threadIdx.x == 3 && blockIdx.x == 2) {
        out[0] = x[at];
    }
}

extern "C" __global__ void writes(float* x, long long at) {
    x[at] = 1.0f;
}

extern "C" __global__ void shared_index(float* out, int at) {
    __shared__ float room[32];
    room[threadIdx.x] = 1.0f;
    out[0] = room[at];
}

extern "C" __global__ void dynamic_index(float* out, int at) {
    extern __shared__ STRATA_ALIGNED(16) unsigned char dynamic_shared[];
    reinterpret_cast<float*>(dynamic_shared)[at] = 1.0f;
    out[0] = 1.0f;
}

extern "C" __global__ void shifts(int* out, int by) {
    out[0] = static_cast<int>(1u << by);
}

extern "C" __global__ void not_aligned(const float* x, float* out) {
    out[0] = reinterpret_cast<const float4*>(x + 1)->x;
}

// Nobody writes any of these.
extern "C" __global__ void unwritten(float* out, unsigned* halves) {
    extern __shared__ STRATA_ALIGNED(16) unsigned char dynamic_shared[];
    __shared__ float room[2];
    __shared__ bf16 narrow_room[2];
    out[0] = room[0];
    out[1] = reinterpret_cast<float*>(dynamic_shared)[3];
    out[2] = to_f32(narrow_room[1]);
    room[0] = 1.0f;
    reinterpret_cast<float*>(dynamic_shared)[3] = 1.0f;
    narrow_room[1] = bf16{0};
}

// A row of four floats to each thread, by a copy that runs by itself.
extern "C" __global__ void fetched(const float* x, float* out, int waits) {
    __shared__ STRATA_ALIGNED(16) float room[32 * 4];
    const int i = threadIdx.x;
    copy_async_16(room + 4 * i, x + 4 * i, i % 2 == 0);
    copy_async_commit();
    if (waits) {
        copy_async_wait<0>();
    }
    __syncthreads();
    for (int j = 0; j < 4; ++j) {
        out[4 * i + j] = room[(4 * i + j + 4) % 128];
    }
}

extern "C" __global__ void deep(float* out, int n) {
    volatile char much[200000];
    much[n] = 1;
    much[0] = 2;
    out[0] = much[n];
}

extern "C" __global__ void missing(float* out) {
    if (threadIdx.x == 1) {
        STRATA_TODO("exercise l0.missing, chapter kernels/none.md");
    }
    out[threadIdx.x] = 1.0f;
}

extern "C" __global__ void __launch_bounds__(64) bounded(float* out) {
    out[threadIdx.x] = 1.0f;
}
"#;

fn gpu() -> Arc<Gpu> {
    let gpu = common::emulated();
    gpu.load_text("wrong", WRONG).unwrap();
    gpu
}

/// Room for results, and a launch of one kernel with it as the first of its arguments.
struct Run {
    gpu: Arc<Gpu>,
    out: Buffer,
}

impl Run {
    fn new() -> Self {
        let gpu = gpu();
        let out = Buffer::zeroed(&gpu, 4096).unwrap();
        Self { gpu, out }
    }

    fn launch(
        &mut self,
        name: &'static str,
        threads: usize,
        rest: impl FnOnce(Args) -> Args,
    ) -> kernels::Result<()> {
        let args = rest(Args::new().view_mut(&self.out.view_mut()));
        // SAFETY: the kernels above write at most 256 elements of `out`, or are caught.
        unsafe { Launch::new("wrong", name, 1, threads).enqueue(&self.gpu, args) }
    }

    /// The report of a launch that must go wrong, with the driver's number.
    fn fails(
        &mut self,
        name: &'static str,
        threads: usize,
        rest: impl FnOnce(Args) -> Args,
    ) -> (u32, String) {
        report(self.launch(name, threads, rest))
    }

    fn ints(&self) -> Vec<i32> {
        self.out.to_vec().unwrap()
    }
}

fn report(result: kernels::Result<()>) -> (u32, String) {
    match result.expect_err("this must go wrong") {
        Error::Driver { code, hint, .. } => (code, hint),
        other => panic!("{other}"),
    }
}

const ILLEGAL_ADDRESS: u32 = 700;
const LAUNCH_FAILED: u32 = 719;

#[test]
fn a_missing_barrier_shows_in_some_order() {
    let mut run = Run::new();
    let mut results = Vec::new();
    for with_barrier in [1, 0] {
        for order in [Order::Forward, Order::Backward, Order::Random(3)] {
            kernels::shim_order(Some(order));
            run.launch("pass_on", 256, |args| args.int(with_barrier)).unwrap();
            results.push(run.ints()[..256].to_vec());
        }
    }
    kernels::shim_order(None);
    let right: Vec<i32> = (0..256).map(|i| (i + 1) % 256).collect();
    assert!(results[..3].iter().all(|result| *result == right));
    assert!(results[3..].iter().all(|result| *result != right), "each order sees it here");
    assert!(results[3].contains(&-1), "forward reads what nobody has written");
}

#[test]
#[should_panic(expected = "changes the result")]
fn the_helper_for_tests_notices_a_missing_barrier() {
    let mut run = Run::new();
    common::under_every_order(|| {
        run.launch("pass_on", 256, |args| args.int(0)).unwrap();
        run.out.to_vec().unwrap()
    });
}

#[test]
fn threads_that_part_at_a_barrier_are_told() {
    let mut run = Run::new();
    let (code, text) = run.fails("parted", 64, |args| args.int(40));
    assert_eq!(code, LAUNCH_FAILED);
    assert!(text.contains("kernel parted") && text.contains("divergent barrier"), "{text}");
    assert!(text.contains("has ended") || text.contains("have ended"), "{text}");
    let (_, text) = run.fails("two_places", 64, |args| args);
    assert!(text.contains("divergent barrier") && text.contains("wrong.cu:"), "{text}");
    // The next launch is not harmed.
    run.launch("parted", 64, |args| args.int(64)).unwrap();
    assert_eq!(run.ints()[..64], [1; 64]);
}

#[test]
fn a_mask_that_names_lanes_which_do_not_come_is_told() {
    let mut run = Run::new();
    let (code, text) = run.fails("wrong_mask", 32, |args| args.signed(-1).int(16));
    assert_eq!(code, LAUNCH_FAILED);
    assert!(text.contains("__shfl_xor_sync"), "{text}");
    let (_, text) = run.fails("wrong_mask", 32, |args| args.signed(0xff).int(16));
    assert!(text.contains("without its own lane"), "{text}");
    let (_, text) = run.fails("wrong_mask", 20, |args| args.signed(-1).int(32));
    assert!(text.contains("not in the block"), "{text}");
    let (_, text) = run.fails("parted_lanes", 32, |args| args);
    assert!(
        text.contains("divergent") && text.matches("16 at __shfl_xor_sync").count() == 2,
        "{text}"
    );
    let (_, text) = run.fails("reads_far_lane", 32, |args| args);
    assert!(text.contains("not in the mask"), "{text}");
    run.launch("wrong_mask", 32, |args| args.signed(0xffff).int(16)).unwrap();
}

#[test]
fn memory_of_others_is_an_error_and_no_crash() {
    let mut run = Run::new();
    let x = Buffer::from_slice(&run.gpu, &[1.0f32; 64]).unwrap();
    let read = |run: &mut Run, at: i64| {
        let args = Args::new().view(x.view()).view_mut(&run.out.view_mut()).long(at as usize);
        // SAFETY: what lies outside is caught.
        unsafe { Launch::new("wrong", "reads", 3, 32).enqueue(&run.gpu, args) }
    };
    for at in [64, 65, 1000, -1 - 4096, 1 << 40] {
        let (code, text) = report(read(&mut run, at));
        assert_eq!(code, ILLEGAL_ADDRESS, "{at}");
        assert!(text.contains("thread (3, 0, 0) of block (2, 0, 0)"), "{text}");
        assert!(text.contains("kernel reads"), "{text}");
    }
    read(&mut run, 63).unwrap();
    assert_eq!(run.out.to_vec::<f32>().unwrap()[0], 1.0);
    let (code, _) = run.fails("writes", 1, |args| args.long(1024));
    assert_eq!(code, ILLEGAL_ADDRESS);
    // In front of it there is room that belongs to nobody.
    let mut small = Buffer::zeroed(&run.gpu, 64).unwrap();
    let args = Args::new().view_mut(&small.view_mut()).long(-1i64 as usize);
    // SAFETY: caught.
    let result = unsafe { Launch::new("wrong", "writes", 1, 1).enqueue(&run.gpu, args) };
    let (code, text) = report(result);
    assert_eq!(code, ILLEGAL_ADDRESS);
    assert!(text.contains("just in front of"), "{text}");
}

#[test]
fn shared_memory_ends_where_it_ends() {
    let mut run = Run::new();
    run.launch("shared_index", 32, |args| args.int(31)).unwrap();
    let (code, text) = run.fails("shared_index", 32, |args| args.int(32));
    assert_eq!(code, LAUNCH_FAILED);
    assert!(text.contains("outside of its array"), "{text}");
    let gpu = Arc::clone(&run.gpu);
    let mut dynamic = |at: usize| {
        let args = Args::new().view_mut(&run.out.view_mut()).int(at);
        // SAFETY: what lies outside is caught.
        unsafe { Launch::new("wrong", "dynamic_index", 1, 1).shared(64).enqueue(&gpu, args) }
    };
    dynamic(15).unwrap();
    let (code, text) = report(dynamic(16));
    assert_eq!(code, ILLEGAL_ADDRESS);
    assert!(text.contains("behind the dynamic shared memory"), "{text}");
}

#[test]
fn an_address_that_is_not_aligned_is_told() {
    let mut run = Run::new();
    let args = |run: &mut Run| Args::new().view(run.out.view()).view_mut(&run.out.view_mut());
    let args = args(&mut run);
    // SAFETY: within `out`; the address is caught.
    let result = unsafe { Launch::new("wrong", "not_aligned", 1, 1).enqueue(&run.gpu, args) };
    let (code, text) = report(result);
    assert_eq!(code, LAUNCH_FAILED);
    assert!(text.contains("not aligned"), "{text}");
}

#[test]
fn a_shift_by_all_bits_is_told() {
    // A device gives 0, this processor something else: whoever relies on it is wrong on one of them.
    let mut run = Run::new();
    run.launch("shifts", 1, |args| args.int(31)).unwrap();
    assert_eq!(run.ints()[0], i32::MIN);
    assert_eq!(run.fails("shifts", 1, |args| args.int(32)).0, LAUNCH_FAILED);
}

#[test]
fn what_nobody_has_written_is_no_number() {
    let mut run = Run::new();
    let gpu = Arc::clone(&run.gpu);
    // Twice, and two blocks each: what one block leaves behind is not there for the next.
    for _ in 0..2 {
        let args = Args::new().view_mut(&run.out.view_mut()).ptr(0);
        // SAFETY: three elements of `out`.
        unsafe { Launch::new("wrong", "unwritten", 2, 1).shared(16).enqueue(&gpu, args) }.unwrap();
        let got = run.out.to_vec::<f32>().unwrap();
        assert!(got[..3].iter().all(|x| x.is_nan()), "{:?}", &got[..3]);
    }
}

#[test]
fn a_copy_that_nobody_waits_for_has_not_happened() {
    let mut run = Run::new();
    let x: Vec<f32> = (0..128).map(|i| i as f32).collect();
    let x = Buffer::from_slice(&run.gpu, &x).unwrap();
    let mut fetch = |waits: usize| {
        let args = Args::new().view(x.view()).view_mut(&run.out.view_mut()).int(waits);
        // SAFETY: 128 elements each.
        unsafe { Launch::new("wrong", "fetched", 1, 32).enqueue(&run.gpu, args) }.unwrap();
        run.out.to_vec::<f32>().unwrap()[..128].to_vec()
    };
    let right: Vec<f32> = (0..128)
        .map(|i| (i + 4) % 128)
        .map(|i| if i / 4 % 2 == 0 { i as f32 } else { 0.0 })
        .collect();
    let waited = common::under_every_order(|| common::bytes(&fetch(1)));
    assert_eq!(waited, common::bytes(&right));
    assert!(fetch(0).iter().all(|x| x.is_nan()));
}

#[test]
fn a_stack_that_overflows_is_told() {
    let mut run = Run::new();
    let (code, text) = run.fails("deep", 1, |args| args.int(5));
    assert_eq!(code, ILLEGAL_ADDRESS);
    assert!(text.contains("kernel deep"), "{text}");
}

#[test]
fn an_exercise_that_is_not_done_says_which() {
    let mut run = Run::new();
    let (code, text) = run.fails("missing", 32, |args| args);
    assert_eq!(code, LAUNCH_FAILED);
    assert_eq!(text, ": not yet implemented: exercise l0.missing, chapter kernels/none.md");
}

#[test]
fn arguments_that_are_not_the_kernels_are_refused() {
    let mut run = Run::new();
    let (_, text) = run.fails("parted", 32, |args| args);
    assert!(text.contains("1 arguments, but it takes 2"), "{text}");
    let (_, text) = run.fails("parted", 32, |args| args.int(32).int(1));
    assert!(text.contains("more than the 2"), "{text}");
    let (_, text) = run.fails("parted", 32, |args| args.long(1 << 40));
    assert!(text.contains("has 64 bits"), "{text}");
    let args = Args::new().int(3).int(32);
    // SAFETY: refused.
    let result = unsafe { Launch::new("wrong", "parted", 1, 32).enqueue(&run.gpu, args) };
    let (_, text) = report(result);
    assert!(text.contains("no address of the device's memory"), "{text}");
}

#[test]
fn limits_of_a_launch_are_those_of_a_device() {
    let mut run = Run::new();
    run.launch("bounded", 64, |args| args).unwrap();
    let (code, text) = run.fails("bounded", 65, |args| args);
    assert_eq!(code, 701);
    assert!(text.contains("__launch_bounds__"), "{text}");
}
