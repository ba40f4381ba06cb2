//! The real model's file, for the tests that need it.

use std::path::PathBuf;

/// What `STRATA_SMOLLM2` names; `None`, and a word about it, where it names nothing.
pub fn file() -> Option<PathBuf> {
    let path = std::env::var_os("STRATA_SMOLLM2").map(PathBuf::from);
    if path.is_none() {
        eprintln!(
            "needs SmolLM2: run `cargo x test --full`, or set STRATA_SMOLLM2 to its .gguf file"
        );
    }
    path
}
