use std::sync::Mutex;

use super::*;
use crate::RuntimeOptions;

/// The ranges that [`for_rows`] hands out, sorted.
fn dealt(threads: usize, n: usize, len: usize) -> Vec<Range<usize>> {
    let options = RuntimeOptions { threads: Some(threads), ..RuntimeOptions::cpu() };
    let all = Mutex::new(Vec::new());
    for_rows(&Runtime::new(options).unwrap(), n, len, |rows| all.lock().unwrap().push(rows));
    let mut all = all.into_inner().unwrap();
    all.sort_by_key(|rows| rows.start);
    all
}

#[test]
fn small_work_stays_in_one_piece() {
    for (threads, n, len) in [(1, 1000, 1000), (3, 1, 100_000), (3, 10, 10), (3, 0, 5), (3, 5, 0)] {
        let got = dealt(threads, n, len);
        let whole = std::slice::from_ref(&(0..n)).to_vec();
        assert_eq!(got, whole, "{n} rows of {len} for {threads} threads");
    }
}

#[test]
fn large_work_is_dealt_in_pieces_that_hold_every_row_once() {
    for (threads, n, len) in [(2, 65, 777), (3, 2, 40_000), (2, 1001, 64), (3, 7, 1 << 20)] {
        let got = dealt(threads, n, len);
        let what = format!("{n} rows of {len} for {threads} threads: {got:?}");
        assert!(got.len() > 1, "all in one piece, {what}");
        assert!(got.len() <= 4 * threads, "more pieces than four for each thread, {what}");
        assert!(got.iter().all(|rows| !rows.is_empty()), "a piece without rows, {what}");
        let rows: Vec<usize> = got.into_iter().flatten().collect();
        assert_eq!(rows, (0..n).collect::<Vec<_>>(), "the rows of all pieces, {what}");
    }
}

#[test]
fn a_row_begins_where_its_layout_says() {
    // [4, 3, 2, 5], then columns cut off and dimensions swapped: nothing folds.
    let dense = Layout::contiguous(&[4, 3, 2, 5]).unwrap();
    let cut = dense.narrow(3, 1, 3).unwrap().narrow(1, 1, 2).unwrap();
    for layout in [dense, cut, cut.transpose(0, 2).unwrap(), cut.transpose(0, 1).unwrap()] {
        let map = RowMap::new("test", &layout).unwrap();
        let (dims, strides) = (layout.dims(), layout.strides());
        for row in 0..map.n {
            let index = [row / (dims[1] * dims[2]), row / dims[2] % dims[1], row % dims[2]];
            let want: usize = index.iter().zip(strides).map(|(i, s)| i * s).sum();
            assert_eq!(map.start(row), want, "where row {row} of {layout} begins");
        }
    }
}
