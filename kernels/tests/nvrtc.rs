//! Every kernel, compiled by NVIDIA's own compiler. That needs no GPU, but the compiler's library, which
//! `cargo x nvrtc` fetches; without it these tests say that they did not run.

use std::collections::BTreeSet;
use std::thread;

use kernels::compile::{self, SOURCES, Source};

/// Whether there is a compiler. Where there is none, say so as loudly as a test can that passes.
fn compiler_is_here() -> bool {
    match compile::find_nvrtc() {
        Ok(_) => true,
        Err(why) => {
            eprintln!("\n*** SKIPPED: no kernel was compiled for a GPU. {why}\n");
            false
        }
    }
}

/// What is wrong with each file, the files shared among a few threads.
fn of_every_file(check: impl Fn(&Source) -> Vec<String> + Sync) -> Vec<String> {
    let check = &check;
    thread::scope(|scope| {
        let part = |which: usize| SOURCES.iter().skip(which).step_by(4).flat_map(check).collect();
        let threads: Vec<_> =
            (0..4).map(|which| scope.spawn(move || -> Vec<String> { part(which) })).collect();
        threads.into_iter().flat_map(|t| t.join().expect("no check panics")).collect()
    })
}

/// Names of the kernels as they stand in the text.
fn written(source: &Source) -> BTreeSet<String> {
    let parts = source.text.split("extern \"C\" __global__ void ").skip(1);
    let name = |part: &str| {
        let part = match part.strip_prefix("__launch_bounds__(") {
            Some(bounds) => bounds.split_once(')')?.1,
            None => part,
        };
        Some(part.split('(').next()?.trim().to_string())
    };
    parts.filter_map(name).collect()
}

#[test]
fn every_kernel_compiles_for_hopper_and_ampere_and_keeps_to_its_registers() {
    if !compiler_is_here() {
        return;
    }
    let wrong = of_every_file(|source| {
        let of = |architecture| -> Vec<String> {
            let compiled = match compile::nvrtc(source.name, architecture) {
                Ok(compiled) => compiled,
                Err(e) => return vec![e.to_string()],
            };
            let kernels = compiled.kernels();
            let names: BTreeSet<String> = kernels.iter().map(|k| k.name.clone()).collect();
            let mut wrong = Vec::new();
            if names != written(source) {
                wrong.push(format!("{}.cu: {names:?} were compiled", source.name));
            }
            for kernel in kernels.iter().filter(|kernel| kernel.spills > 0) {
                wrong.push(format!("{}.cu for {architecture}: {kernel:?} spills", source.name));
            }
            if !compiled.cubin.starts_with(b"\x7fELF") {
                wrong.push(format!("{}.cu for {architecture}: no machine code", source.name));
            }
            wrong
        };
        ["sm_80", "sm_90a"].into_iter().flat_map(of).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_unknown_architecture_is_an_error_with_the_compilers_words() {
    if !compiler_is_here() {
        return;
    }
    let error = compile::nvrtc("norm", "sm_1").unwrap_err();
    assert!(matches!(error, kernels::Error::Compile { .. }), "{error:?}");
    assert!(error.to_string().contains("norm.cu"), "{error}");
    assert!(error.to_string().contains("sm_1"), "{error}");
}

#[test]
fn a_file_that_there_is_not_is_an_error() {
    if compiler_is_here() {
        assert!(compile::nvrtc("no-such-kernel", "sm_80").is_err());
    }
}

#[test]
fn every_kernel_has_a_name_of_its_own() {
    let mut names = BTreeSet::new();
    for source in SOURCES {
        for name in written(source) {
            assert!(
                names.insert(name.clone()),
                "{name} stands in {}.cu a second time",
                source.name
            );
        }
    }
}

#[test]
fn machine_code_is_carried_under_a_name_that_tells_its_architecture_and_source() {
    let names: BTreeSet<String> = SOURCES
        .iter()
        .flat_map(|source| ["sm_80", "sm_90a"].map(|a| compile::carried_name(source, a)))
        .collect();
    assert_eq!(names.len(), 2 * SOURCES.len());
}
