//! The digest of a model: 32 bytes that identify config and weights.
//!
//! Keys and values that are kept outside of a process, or are shared between processes, belong to one model only. An
//! architecture is no name for it: every Llama has the same one. The digest is
//!
//! ```text
//! sha256 of   config (without the tokens that begin and end a text)
//!             for each tensor, by name:   name | format | shape | bytes
//! ```
//!
//! where of a tensor of more than [`WINDOWS`] windows of [`WINDOW`] bytes only that many windows are hashed, spread
//! evenly, the first and the last bytes included. So the cost depends on the number of tensors and not on their size: at
//! most 16 KiB each. Training changes every matrix nearly everywhere, so two trainings of one architecture differ.
//!
//! What it does not see is an edit by hand of a few numbers between the windows. A model that is edited so must be given
//! another name, or its stored keys and values must be deleted.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::ModelConfig;
use crate::checkpoint::Checkpoint;

/// Number of windows of a large tensor that are hashed.
pub const WINDOWS: usize = 16;
/// Number of bytes of a window.
pub const WINDOW: usize = 1024;

/// Digest of a model's config and weights. Displayed in hexadecimal.
///
/// It is the same in every run and on every machine, for the same files. The same weights in another format, such as a
/// quantised one, have another digest: their keys and values differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelDigest(pub [u8; 32]);

impl ModelDigest {
    /// Digest of a checkpoint that is run with this config. Reads at most 16 KiB of each tensor, and gives the mapped
    /// pages back.
    pub fn of(config: &ModelConfig, checkpoint: &Checkpoint) -> Self {
        let mut hash = begin(config);
        let mut tensors = checkpoint.tensors();
        tensors.sort_by(|a, b| a.0.cmp(&b.0));
        hash.update((tensors.len() as u64).to_le_bytes());
        for (name, tensor) in tensors {
            field(&mut hash, name.as_bytes());
            field(&mut hash, tensor.ty.name().as_bytes());
            hash.update((tensor.shape.len() as u64).to_le_bytes());
            tensor.shape.iter().for_each(|n| hash.update((*n as u64).to_le_bytes()));
            hash.update((tensor.bytes.len() as u64).to_le_bytes());
            windows(tensor.bytes).for_each(|window| hash.update(window));
            checkpoint.release(&name);
        }
        Self(hash.finalize().into())
    }

    /// Namespace of keys that leave the process: a name that people know, and half of the digest, which is enough to
    /// tell models apart.
    pub fn namespace(&self, name: &str) -> String {
        let digits = self.to_string();
        format!("{name}@{}", &digits[..32])
    }
}

/// A hash of all that decides keys and values beside the weights.
fn begin(config: &ModelConfig) -> Sha256 {
    let config = ModelConfig { bos: None, eos: Vec::new(), ..config.clone() };
    let mut hash = Sha256::new();
    field(&mut hash, b"strata model 1");
    field(&mut hash, format!("{config:?}").as_bytes());
    hash
}

/// Bytes with their length in front, so that no two lists of fields have the same bytes.
pub(crate) fn field(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

/// A digest in hexadecimal.
pub(crate) fn hex(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The parts of a tensor's bytes that are hashed.
fn windows(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (n, len) = match bytes.len() > WINDOWS * WINDOW {
        true => (WINDOWS, WINDOW),
        false => (1, bytes.len()),
    };
    let last = bytes.len() - len;
    (0..n).map(move |i| {
        let start = (last as u128 * i as u128 / (n - 1).max(1) as u128) as usize;
        &bytes[start..start + len]
    })
}

impl fmt::Display for ModelDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for ModelDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
