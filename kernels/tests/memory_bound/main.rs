//! The kernels that only move memory: each against scalar loops, for rows of any width at any address.

#[path = "../common/mod.rs"]
mod common;

mod elementwise;
mod embedding;
mod exchange;
mod field;
mod gated;
mod kv_cache;
mod norm;
mod rope;

use kernels::Error;

/// A launcher must refuse, and say each of these.
fn refused(result: kernels::Result<()>, words: &[&str]) {
    match result {
        Err(Error::Shape { op, why }) => {
            let text = format!("{op}: {why}");
            for word in words {
                assert!(text.contains(word), "{word:?} is not in {text:?}");
            }
        }
        other => panic!("refused it should be, not {other:?}"),
    }
}

fn close(got: f32, want: f64, relative: f64, absolute: f64) -> bool {
    let got = f64::from(got);
    if want.is_nan() || got.is_nan() {
        return want.is_nan() && got.is_nan();
    }
    got == want || (got - want).abs() <= relative * want.abs() + absolute
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}
