//! From `cu/*.cu` to machine code, at run time.
//!
//! The sources are part of the binary. [`image`] compiles one for a device, with NVRTC or, where a CPU
//! stands in for the device, with the host's C++ compiler; what came out is kept in the user's cache
//! directory, under the hash of everything it was made from.

mod cache;
mod host;
mod locate;
mod nvrtc;
mod usage;

pub use host::{Sanitize, host_library};
pub(crate) use nvrtc::directories as nvrtc_directories;
pub use nvrtc::{Compiled, carried_name, find_nvrtc, nvrtc, nvrtc_version};
pub use usage::KernelUse;

use crate::error::{Error, Result};

/// A file of `cu/`.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its name without the ending.
    pub name: &'static str,
    /// What is in it.
    pub text: &'static str,
}

macro_rules! sources {
    ($ending:literal: $($name:literal),* $(,)?) => {
        &[$(Source { name: $name, text: include_str!(concat!("../../cu/", $name, $ending)) }),*]
    };
}

/// Files with kernels.
pub const SOURCES: &[Source] = sources!(".cu":
    "elementwise", "embedding", "norm", "rope", "gated", "kv_cache", "exchange",
    "attention_decode", "attention_prefill", "attention_rows",
    "gemv", "gemv_nvfp4", "nvfp4", "gemm", "argmax", "top_k", "sample",
);

/// Files that these include.
pub const HEADERS: &[Source] = sources!(".cuh":
    "types", "reduce", "ptx", "quads", "linear", "nvfp4", "gemv", "row_scan", "select", "boundary",
    "attention",
);

/// The source of this name.
///
/// # Errors
/// [`Error::State`] when there is none.
pub fn source(name: &str) -> Result<&'static Source> {
    let found = SOURCES.iter().find(|source| source.name == name);
    found.ok_or_else(|| Error::State(format!("there is no {name}.cu")))
}

/// What a device of this compute capability is compiled for. Hopper's own instructions need the `a`.
pub fn architecture((major, minor): (i32, i32)) -> String {
    let own = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("sm_{major}{minor}{own}")
}

/// The machine code of a file, for `cuModuleLoadData`.
///
/// # Errors
/// [`Error::NoCompiler`], [`Error::Compile`], [`Error::Cache`].
pub fn image(file: &str, capability: (i32, i32), emulated: bool) -> Result<Vec<u8>> {
    image_of(source(file)?, capability, emulated)
}

/// The same for any text.
pub(crate) fn image_of(source: &Source, capability: (i32, i32), emulated: bool) -> Result<Vec<u8>> {
    if emulated {
        return host::image(source);
    }
    nvrtc::image(source, &architecture(capability))
}

#[cfg(test)]
mod tests {
    use super::SOURCES;

    /// Name and body of every kernel of a text.
    fn kernels(text: &str) -> impl Iterator<Item = (&str, &str)> {
        text.split("extern \"C\" __global__ ").skip(1).filter_map(|rest| {
            let (head, rest) = rest.split_once(") {\n")?;
            let (body, _) = rest.split_once("\n}\n")?;
            // Behind `void`, and behind __launch_bounds__(..) where there is one.
            let (_, last) = head.split_once("void ")?;
            let last = match last.strip_prefix("__launch_bounds__") {
                Some(bounds) => bounds.split_once(')')?.1.trim_start(),
                None => last,
            };
            Some((last.split_once('(')?.0, body))
        })
    }

    /// launch.rs lets them begin before the kernel before them has ended.
    #[test]
    fn every_kernel_waits_for_the_one_before_it_first_of_all() {
        let mut count = 0;
        for source in SOURCES {
            for (name, body) in kernels(source.text) {
                count += 1;
                // These read ahead what no kernel writes, and wait then.
                let reads_ahead = source.name.starts_with("gemv") && name != "gemv_f32";
                let body = if reads_ahead {
                    assert!(body.contains("plain<") || body.contains("gated<"), "{name}: {body}");
                    let sums = source.text.split_once("void sums(").map_or("", |s| s.1);
                    // How the reading of the weights ends, and what reads inputs.
                    let (weights, inputs) = match source.name {
                        "gemv" => ("load_weights(i, begin);\n", "load_inputs(i, begin)"),
                        _ => ("load_weights(round, begin + round * ROUND);\n", "eight("),
                    };
                    let (before, after) = sums.split_once(weights).unwrap_or((inputs, ""));
                    assert!(!before.contains(inputs), "{name} reads its inputs first");
                    after.trim_start_matches([' ', '}', '\n'])
                } else {
                    body
                };
                let first = body.lines().map(str::trim).find(|line| !line.starts_with("//"));
                assert_eq!(first, Some("wait_for_previous();"), "{}.cu: {name}", source.name);
            }
        }
        let all = SOURCES.iter().map(|source| source.text.matches(" __global__ ").count());
        assert_eq!(count, all.sum::<usize>(), "kernels whose body was found, and all");
    }
}
