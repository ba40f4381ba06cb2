//! Kernels under AddressSanitizer. A pointer into shared memory that runs past its array is seen by nothing
//! else: the address is a good one, only somebody else's.
//!
//! The sanitizer has to be there before the process starts, so the tests run this program again, with it.

mod common;

use std::process::{Command, Output};

use kernels::ops;
use kernels::{Args, Buffer, Float, Launch, Mat, MatMut};

const SHARED: &str = r#"
#include "types.cuh"

__device__ __noinline__ float read(const float* room, int at) {
    return room[at];
}

// The index is checked nowhere: `read` has a pointer only.
extern "C" __global__ void behind(float* out, int at) {
    __shared__ float room[8];
    __shared__ float next[8];
    if (threadIdx.x < 8) {
        room[threadIdx.x] = 1.0f;
        next[threadIdx.x] = 2.0f;
    }
    __syncthreads();
    out[threadIdx.x] = read(room, at) + read(next, 0);
}
"#;

/// Run one test of this program with the sanitizer loaded; `None` where there is no sanitizer.
fn under_the_sanitizer(test: &str) -> Option<Output> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
    let library = Command::new(compiler).arg("-print-file-name=libasan.so").output().ok()?;
    let library = String::from_utf8(library.stdout).ok()?;
    let library = std::path::PathBuf::from(library.trim());
    if !library.is_absolute() {
        eprintln!("skipped: this compiler has no libasan.so");
        return None;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD, test)
        .env("LD_PRELOAD", library)
        .env("STRATA_SHIM_SANITIZE", "address")
        // Leaks are not the question. A fault is the stand-in's own business.
        .env(
            "ASAN_OPTIONS",
            "detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_sigill=0:exitcode=99",
        )
        .output()
        .unwrap();
    Some(output)
}

/// Which of the children a process is.
const CHILD: &str = "STRATA_ASAN_CHILD";

/// In a process that another test started, under the sanitizer, what that one wants to see run; here, that
/// there is no sanitizer, so the others had to start one.
#[test]
fn child() {
    let sanitized = std::env::var_os("STRATA_SHIM_SANITIZE").is_some();
    match std::env::var(CHILD).as_deref() {
        Ok("reads_past_its_array") => reads_past_its_array(),
        Ok("runs_real_kernels") => runs_real_kernels(),
        Ok(other) => panic!("there is no {other}"),
        Err(_) => return assert!(!sanitized, "the sanitizer is for the children"),
    }
    println!("the child has run");
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

#[test]
fn one_past_a_shared_array_ends_the_process_with_a_report() {
    let Some(output) = under_the_sanitizer("reads_past_its_array") else { return };
    let text = text(&output);
    assert_eq!(output.status.code(), Some(99), "{text}");
    assert!(text.contains("AddressSanitizer: global-buffer-overflow"), "{text}");
    assert!(text.contains("behind") && text.contains("room"), "{text}");
}

#[test]
fn kernels_that_stay_within_their_arrays_are_clean() {
    let Some(output) = under_the_sanitizer("runs_real_kernels") else { return };
    let text = text(&output);
    assert!(output.status.success() && text.contains("the child has run"), "{text}");
}

fn reads_past_its_array() {
    let gpu = common::emulated();
    gpu.load_text("shared", SHARED).unwrap();
    let mut out = Buffer::zeroed(&gpu, 128).unwrap();
    for (at, what) in [(7, "within"), (8, "behind")] {
        let args = Args::new().view_mut(&out.view_mut()).int(at);
        // SAFETY: 32 elements of `out`; what lies behind the array is the sanitizer's business.
        unsafe { Launch::new("shared", "behind", 1, 32).enqueue(&gpu, args) }.unwrap();
        assert_eq!(out.to_vec::<f32>().unwrap()[..32], [3.0; 32]);
        println!("{what} was let pass");
    }
}

fn runs_real_kernels() {
    let gpu = common::emulated();
    // Rows of a width that is a multiple of everything, and of one that is of nothing; one row and many.
    for (rows, width) in [(1, 64), (3, 60), (20, 64), (5, 171)] {
        let zeros = |floats: usize| Buffer::zeroed(&gpu, floats * 4).unwrap();
        let (x, weight) = (zeros(rows * width), zeros(24 * width));
        let mut out = zeros(rows * width);
        let normed = MatMut::dense(out.view_mut(), Float::F32, rows, width).unwrap();
        let scale = weight.view().cast().part(0, width);
        let x_f32 = Mat::dense(x.view(), Float::F32, rows, width).unwrap();
        ops::rms_norm(&gpu, x_f32, scale, 1e-6, normed).unwrap();

        let mut best = zeros(rows);
        ops::argmax(&gpu, x_f32, best.view_mut().cast()).unwrap();

        let rule =
            ops::SampleRow { temperature: 1.0, top_p: 0.9, min_p: 0.01, uniform: 0.7, top_k: 20 };
        let rules = Buffer::from_slice(&gpu, &vec![rule; rows]).unwrap();
        ops::sample(&gpu, x_f32, rules.view().cast(), best.view_mut().cast()).unwrap();
        let (mut values, mut ids) = (zeros(rows * 5), zeros(rows * 5));
        let values = MatMut::dense(values.view_mut(), Float::F32, rows, 5).unwrap();
        ops::top_k(&gpu, x_f32, 5, values, ids.view_mut().cast()).unwrap();

        let x_bf16 = Mat::dense(x.view(), Float::Bf16, rows, width).unwrap();
        let weight = Mat::dense(weight.view(), Float::Bf16, 24, width).unwrap();
        for arithmetic in [ops::Arithmetic::Fast, ops::Arithmetic::BatchInvariant] {
            let mut product = zeros(rows * 24);
            let product = MatMut::dense(product.view_mut(), Float::F32, rows, 24).unwrap();
            let store = ops::Accumulate::Store;
            ops::linear(&gpu, x_bf16, weight, store, arithmetic, product).unwrap();
        }
    }
    gpu.synchronize().unwrap();
}
