//! What the environment says to the stand-in. It is read once in a process, so each case is a process of
//! its own: this program again, with [`child`] told which of the functions below it is.

mod common;

use std::process::{Command, Output};

use kernels::{Args, Buffer, Launch, ProbeError};

fn again(test: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]);
    for name in ["STRATA_CUDA", "STRATA_SHIM_ORDER", "STRATA_SHIM_MEMORY", "STRATA_SCHEMATA"] {
        command.env_remove(name);
    }
    command.env(CHILD, test).envs(environment.iter().copied()).output().unwrap()
}

fn passes(test: &str, environment: &[(&str, &str)]) {
    let output = again(test, environment);
    let ran = String::from_utf8_lossy(&output.stdout).contains(&format!("{test} has run"));
    assert!(
        output.status.success() && ran,
        "{test} with {environment:?}:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_environment_can_put_the_cpu_in_the_devices_place() {
    passes("child_finds_a_device", &[("STRATA_CUDA", "emulated")]);
}

#[test]
fn without_a_compiler_the_reason_is_told() {
    let nothing = [("STRATA_CUDA", "emulated"), ("CXX", "/nowhere/g++")];
    passes("child_finds_no_compiler", &nothing);
}

#[test]
fn the_order_and_the_memory_are_what_the_environment_says() {
    let backward = [("STRATA_SHIM_ORDER", "backward"), ("STRATA_SHIM_MEMORY", "3")];
    passes("child_runs_backward_in_three_mib", &backward);
}

#[test]
fn mistakes_can_be_switched_on_by_name() {
    passes("child_makes_the_mistake", &[("STRATA_SCHEMATA", "another,the-mistake")]);
    passes("child_makes_no_mistake", &[("STRATA_SCHEMATA", "the-mistakes,the")]);
    passes("child_makes_no_mistake", &[]);
}

/// Which of the children a process is.
const CHILD: &str = "STRATA_ENV_CHILD";

const CHILDREN: [(&str, fn()); 5] = [
    ("child_finds_a_device", child_finds_a_device),
    ("child_finds_no_compiler", child_finds_no_compiler),
    ("child_runs_backward_in_three_mib", child_runs_backward_in_three_mib),
    ("child_makes_the_mistake", child_makes_the_mistake),
    ("child_makes_no_mistake", child_makes_no_mistake),
];

/// In a process that another test started, what that one wants to know; here, that nobody asks for a child
/// there is not.
#[test]
fn child() {
    let Ok(name) = std::env::var(CHILD) else {
        let asked = include_str!("shim_env.rs").matches("passes(\"").count();
        assert!(asked >= CHILDREN.len(), "a child is never asked for");
        return;
    };
    let found = CHILDREN.iter().find(|(child, _)| *child == name);
    let (_, run) = found.unwrap_or_else(|| panic!("there is no {name}"));
    run();
    println!("{name} has run");
}

fn child_finds_a_device() {
    let cuda = kernels::probe().unwrap();
    assert!(cuda.emulated && kernels::is_emulated());
    assert_eq!(cuda.to_string(), "1 CUDA device, emulated on the CPU (driver CUDA 13.0)");
    assert!(kernels::Gpu::open(0).unwrap().is_emulated());
}

fn child_finds_no_compiler() {
    let error = kernels::probe().unwrap_err();
    assert!(matches!(error, ProbeError::NotEmulated(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("/nowhere/g++") && text.contains("CXX"), "{text}");
    assert!(kernels::emulate().is_err());
    assert!(!kernels::is_emulated());
}

const TEXT: &str = r#"
#include "types.cuh"

// Whoever comes last stays.
extern "C" __global__ void last_one(int* out) {
    out[0] = threadIdx.x;
}

extern "C" __global__ void mistaken(int* out) {
    out[0] = strata_switch("the-mistake") ? 1 : 2;
}
"#;

fn first(kernel: &'static str) -> i32 {
    let gpu = common::emulated();
    gpu.load_text("env", TEXT).unwrap();
    let mut out = Buffer::zeroed(&gpu, 16).unwrap();
    let args = Args::new().view_mut(&out.view_mut());
    // SAFETY: one element of `out`.
    unsafe { Launch::new("env", kernel, 1, 32).enqueue(&gpu, args) }.unwrap();
    out.to_vec::<i32>().unwrap()[0]
}

fn child_runs_backward_in_three_mib() {
    assert_eq!(first("last_one"), 0);
    kernels::shim_order(Some(kernels::Order::Forward));
    assert_eq!(first("last_one"), 31);
    assert_eq!(common::emulated().properties().memory, 3 << 20);
}

fn child_makes_the_mistake() {
    assert_eq!(first("mistaken"), 1);
}

fn child_makes_no_mistake() {
    assert_eq!(first("mistaken"), 2);
}
