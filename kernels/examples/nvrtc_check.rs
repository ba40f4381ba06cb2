//! Compile every kernel for the devices it must run on, and show what it takes of them. Needs no GPU:
//! `cargo run -p kernels --example nvrtc_check`, or `cargo x nvrtc`, which fetches the compiler first.
//!
//! With a directory as argument, the machine code is written there, for a machine without the compiler
//! (see `STRATA_KERNELS`).
//!
//! Ends with 1 when something does not compile or spills registers, with 3 when there is no compiler.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use kernels::compile::{self, KernelUse, SOURCES};

/// Ampere, the oldest that these kernels know, and Hopper with its own instructions.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90a"];

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => {
            println!("\n{failures} of these must be mended.");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(3)
        }
    }
}

fn run() -> Result<usize, Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let path = compile::find_nvrtc()?;
    let (major, minor) = compile::nvrtc_version()?;
    println!("NVRTC {major}.{minor}: {}\n", path.display());
    if let Some(folder) = &folder {
        std::fs::create_dir_all(folder)?;
    }
    let mut failures = 0;
    println!("{:>40}  {}", "", ARCHITECTURES.map(|a| format!("{a:<26}")).join("").trim_end());
    let columns = "regs   shared  spills     ".repeat(2);
    println!("{:<18}{:<22}  {}", "file", "kernel", columns.trim_end());
    for source in SOURCES {
        let started = Instant::now();
        let mut tables = Vec::new();
        for architecture in ARCHITECTURES {
            match compile::nvrtc(source.name, architecture) {
                Ok(compiled) => {
                    if let Some(folder) = &folder {
                        let name = compile::carried_name(source, architecture);
                        std::fs::write(folder.join(name), &compiled.cubin)?;
                    }
                    tables.push(compiled.kernels());
                    for warning in compiled.log.lines().filter(|line| line.contains("): warning")) {
                        println!("{warning}");
                    }
                }
                Err(e) => {
                    failures += 1;
                    println!("FAILED: {e}");
                }
            }
        }
        let Some(first) = tables.first() else { continue };
        for kernel in first {
            let of = |table: &Vec<KernelUse>| table.iter().find(|k| k.name == kernel.name).cloned();
            let uses: Vec<KernelUse> = tables.iter().filter_map(of).collect();
            let cells = uses
                .iter()
                .map(|k| format!("{:>4}  {:>6} B  {:>5} B    ", k.registers, k.shared, k.spills));
            let cells: String = cells.collect();
            let spills = uses.iter().any(|k| k.spills > 0);
            failures += usize::from(spills);
            let word = if spills { "  SPILLS" } else { "" };
            println!("{:<18}{:<22}  {}{word}", source.name, kernel.name, cells.trim_end());
        }
        if first.is_empty() {
            failures += 1;
            println!("FAILED: there is no kernel in {}.cu", source.name);
        }
        eprintln!("{:<18}{:.1} s", source.name, started.elapsed().as_secs_f64());
    }
    Ok(failures)
}
