//! What `quantize::to_nvfp4` refuses.

use std::path::Path;

use l2_model::Error;
use l2_model::quantize::{QuantizeError, QuantizeOptions, to_nvfp4};

fn failed(input: &Path, output: &Path, force: bool) -> Error {
    let options = QuantizeOptions { lm_head: false, force };
    crate::judge::refused(input.display(), "an error", to_nvfp4(input, output, options))
}

/// Its own error; any other one fails the test.
#[track_caller]
pub fn refused(input: &Path, output: &Path, force: bool) -> QuantizeError {
    match failed(input, output, force) {
        Error::Quantize(error) => error,
        other => panic!("{}: {other:?}", input.display()),
    }
}

/// Tensor, indices and number of an input that is refused because of them. Nothing is written.
#[track_caller]
pub fn not_finite(input: &Path, output: &Path) -> (String, Vec<usize>, f32) {
    let error = failed(input, output, false);
    assert!(!output.exists(), "{}: a refusal writes nothing", input.display());
    match error {
        Error::NotFinite { tensor, at, value } => (tensor, at, value),
        other => panic!("{}: {other:?}", input.display()),
    }
}
