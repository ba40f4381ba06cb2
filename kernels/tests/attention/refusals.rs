//! What does not fit is refused before anything runs.

use kernels::{Error, Float, Heads};

use crate::case::{Case, Prepared, batch};
use crate::common::gpu;

/// The launcher's words after `change` to a batch that was right.
fn refused(change: impl FnOnce(&mut Prepared<'_>)) -> String {
    let gpu = gpu().unwrap();
    let case = Case::new(2, 2, 16, Float::F32);
    let mut prepared = Prepared::new(&case, &gpu, &batch(&[(1, 20), (2, 5)]));
    change(&mut prepared);
    words(prepared.attend())
}

fn words(result: Result<Vec<f32>, Error>) -> String {
    match result {
        Err(e @ Error::Shape { .. }) => e.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn lengths_that_do_not_belong_to_one_batch_are_refused() {
    let starts = refused(|p| p.starts.push(9));
    assert!(starts.contains("4 starts of queries for 2 sequences"), "{starts}");
    let table = refused(|p| p.table.truncate(3));
    assert!(table.contains("a table of 3 blocks for 2 sequences of 2"), "{table}");
    let keys = refused(|p| p.max_kv_len = 33);
    assert!(keys.contains("33 keys in 2 blocks of 16"), "{keys}");
}

#[test]
fn scales_and_windows_without_meaning_are_refused() {
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let scale = refused(|p| p.scale = scale);
        assert!(scale.contains("scores are multiplied by"), "{scale}");
    }
    let gpu = gpu().unwrap();
    let case = Case { window: Some(0), ..Case::new(1, 1, 16, Float::F32) };
    let window = words(Prepared::new(&case, &gpu, &batch(&[(1, 1)])).attend());
    assert!(window.contains("a window of 0 keys"), "{window}");
}

#[test]
fn queries_and_outputs_of_another_shape_are_refused() {
    let gpu = gpu().unwrap();
    let case = Case::new(2, 2, 16, Float::F32);
    let p = Prepared::new(&case, &gpu, &batch(&[(1, 20), (2, 5)]));
    let heads =
        |dtype, heads, dim| Heads::new(p.q.view(), dtype, [3, heads, dim], p.q_stride).unwrap();
    for (q, width, why) in [
        (heads(Float::Bf16, 4, 16), 64, "queries are Bf16"),
        (heads(Float::F32, 4, 15), 60, "queries of 15 elements, keys of 16"),
        (heads(Float::F32, 3, 16), 48, "3 query heads over 2 KV heads"),
        (heads(Float::F32, 4, 16), 63, "output is [3, 63], not [3, 64]"),
    ] {
        let said = words(p.attend_to(q, width));
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_batch_of_nothing_is_done_at_once() {
    let gpu = gpu().unwrap();
    let case = Case::new(2, 2, 64, Float::Bf16);
    assert_eq!(case.attend(&gpu, &[]), [0.0; 0]);
    assert_eq!(case.attend(&gpu, &batch(&[(0, 20), (0, 0)])), [0.0; 0]);
}
