//! The binary under test, away from everything that is on this machine.

use std::process::{Command, Stdio};

/// The binary in a world without hub, cache, configuration and GPU.
pub fn command() -> Command {
    let nowhere = std::env::temp_dir().join("strata-tests-without-a-cache");
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    command
        .env("HF_HUB_OFFLINE", "1")
        .env("HF_HOME", &nowhere)
        .env("STRATA_CACHE", &nowhere)
        .env_remove("HF_HUB_CACHE")
        .env_remove("STRATA_CUDA")
        .env("CUDA_VISIBLE_DEVICES", "")
        .stdin(Stdio::null());
    command
}
