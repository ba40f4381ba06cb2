use super::*;

/// The places of all elements, in row-major order of their indices: the one rule of a layout,
/// spelt out.
fn places(l: &Layout) -> Vec<usize> {
    let mut all = vec![l.offset()];
    for (dim, stride) in l.dims().iter().zip(l.strides()) {
        all = all.iter().flat_map(|at| (0..*dim).map(move |i| at + i * stride)).collect();
    }
    all
}

/// Dimensions and strides in words. (A layout's own `Display` leaves out the strides of a dense one,
/// which is for `is_contiguous` to say, and that may be what is wrong.)
fn shown(l: &Layout) -> String {
    format!("{:?} with strides {:?}", l.dims(), l.strides())
}

/// Shapes of 1 to 3 dimensions with sizes from 0 to 4, and everything that a transposition or a
/// slice makes of them.
fn layouts() -> Vec<Layout> {
    let mut shapes: Vec<Vec<usize>> = vec![vec![]];
    let mut all = Vec::new();
    for _ in 0..3 {
        let longer = |s: &Vec<usize>| (0..=4).map(|n| [&s[..], &[n]].concat()).collect::<Vec<_>>();
        shapes = shapes.iter().flat_map(longer).collect();
        all.extend(shapes.iter().map(|s| Layout::contiguous(s).unwrap()));
    }
    for d in 0..3 {
        for i in 0..all.len() {
            let l = all[i];
            if d < l.rank() && l.dims()[d] > 2 {
                all.push(l.narrow(d, 1, l.dims()[d] - 2).unwrap());
            }
            if d + 1 < l.rank() {
                all.push(l.transpose(d, d + 1).unwrap());
            }
        }
    }
    all
}

#[test]
fn a_dense_layout_counts_strides_from_the_last_dimension() {
    for (shape, strides) in [
        (&[5][..], &[1][..]),
        (&[2, 3], &[3, 1]),
        (&[3, 2, 4], &[8, 4, 1]),
        (&[], &[]),
        // A size of 0 counts as 1.
        (&[4, 0, 3], &[3, 3, 1]),
        (&[4, 2, 0], &[2, 1, 1]),
    ] {
        let l = Layout::contiguous(shape).unwrap();
        assert_eq!(l.strides(), strides, "the strides of a dense {shape:?}");
        assert!(l.is_contiguous(), "a dense {shape:?} has no gaps");
    }
    for l in layouts() {
        let dense = places(&l).iter().enumerate().all(|(i, at)| *at == l.offset() + i);
        // Where there are no elements there are no gaps between them.
        assert_eq!(l.is_contiguous(), dense, "whether {} has no gaps", shown(&l));
    }
}

#[test]
fn a_column_slice_of_a_matrix_splits_into_heads_without_moving_data() {
    // [T = 3, 24] -> columns 8..24 -> [3, 4 heads, 4]
    let qkv = Layout::contiguous(&[3, 24]).unwrap();
    let heads = qkv.narrow(1, 8, 16).unwrap().reshape(&[3, 4, 4]).unwrap();
    assert_eq!(heads.strides(), [24, 4, 1], "strides of the heads");
    assert_eq!(heads.offset(), 8, "offset of the heads");
    assert_eq!(heads.end(), 2 * 24 + 8 + 16, "end of the heads");
    assert!(heads.as_rows().is_none(), "rows of one token touch, tokens do not");
    assert!(heads.reshape(&[12, 4]).is_err());
}

#[test]
fn transposing_twice_is_the_identity_and_once_is_not_contiguous() {
    let l = Layout::contiguous(&[2, 3]).unwrap();
    let t = l.transpose(0, 1).unwrap();
    assert_eq!(places(&t), [0, 3, 1, 4, 2, 5], "where a transposed [2, 3] has its elements");
    assert!(!t.is_contiguous());
    assert_eq!(t.transpose(0, 1).unwrap(), l, "a [2, 3] transposed twice");
}

#[test]
fn sizes_that_overflow_are_refused() {
    let most = isize::MAX as usize / 8;
    for shape in [
        &[usize::MAX, 2][..],
        &[2, usize::MAX / 2, 3],
        // Eight bytes each, and no address for the last one.
        &[most + 1],
        &[2, most / 2 + 1],
        // A size of 0 counts as 1, so these are too large without having an element.
        &[usize::MAX, 2, 0],
        &[0, usize::MAX, 2],
        &[1, 1, 1, 1, 1],
    ] {
        assert!(Layout::contiguous(shape).is_err(), "{shape:?} has no layout, and got one");
    }
    assert!(Layout::contiguous(&[most]).is_ok(), "[{most}] is not too large, and was refused");
}

#[test]
fn narrowing_past_the_end_is_an_error() {
    let l = Layout::contiguous(&[4]).unwrap();
    assert!(l.narrow(0, 3, 2).is_err());
    assert!(l.narrow(0, usize::MAX, 2).is_err());
    assert_eq!(l.narrow(0, 4, 0).unwrap().elem_count(), 0, "elements of 4..4");
    let m = Layout::contiguous(&[3, 4]).unwrap();
    let inner = m.narrow(1, 1, 2).unwrap().narrow(0, 1, 2).unwrap();
    assert_eq!(places(&inner), [5, 6, 9, 10], "rows 1..3, columns 1..3 of a [3, 4]");
}

#[test]
fn narrowing_to_nothing_keeps_the_offset() {
    let all = Layout::contiguous(&[4, 6]).unwrap();
    let below = all.narrow(0, 1, 3).unwrap();
    for (what, l, offset) in [("a [4, 6]", all, 0), ("rows 1..4 of a [4, 6]", below, 6)] {
        for (d, start) in [(1, 6), (1, 2), (0, l.dims()[0]), (0, 0)] {
            let none = l.narrow(d, start, 0).unwrap();
            let what = format!("{what}, narrowed to {start}..{start} of dimension {d}");
            assert_eq!(none.offset(), offset, "offset of {what}");
            assert_eq!(none.strides(), l.strides(), "strides of {what}");
            assert_eq!(none.end(), 0, "end of {what}");
        }
    }
}

#[test]
fn reshaping_finds_every_element_where_it_was_or_refuses() {
    let mut refused = 0;
    for l in layouts() {
        let n = l.elem_count();
        for a in (1..=n).filter(|a| n % a == 0) {
            for b in (1..=n / a).filter(|b| (n / a) % b == 0) {
                let shape = [a, b, n / a / b];
                let old = places(&l);
                let what = || format!("{} reshaped to {shape:?}", shown(&l));
                match l.reshape(&shape) {
                    Ok(new) => assert_eq!(places(&new), old, "places of {}", what()),
                    Err(_) => {
                        // Then there must be no strides that would do. Neighbours tell the only
                        // ones that could.
                        let step =
                            |d: usize, by: usize| if shape[d] > 1 { old[by] - old[0] } else { 0 };
                        let up = old.iter().all(|at| *at >= old[0]);
                        let s = [step(0, shape[1] * shape[2]), step(1, shape[2]), step(2, 1)];
                        let at = |i: usize| {
                            let inner = shape[1] * shape[2];
                            let (x, y, z) = (i / inner, i % inner / shape[2], i % shape[2]);
                            old[0] + x * s[0] + y * s[1] + z * s[2]
                        };
                        let possible = up && (0..n).all(|i| at(i) == old[i]);
                        assert!(!possible, "{} is refused, but strides {s:?} would do", what());
                        refused += 1;
                    }
                }
            }
        }
        assert!(l.reshape(&[n + 1]).is_err(), "{} has no {} elements", shown(&l), n + 1);
    }
    assert!(refused > 100, "only {refused} reshapes were refused");
    let none = Layout::contiguous(&[0, 3]).unwrap();
    assert_eq!(none.reshape(&[5, 0]).unwrap().dims(), [5, 0], "nothing in another shape");
}

#[test]
fn rows_are_found_where_one_stride_leads_to_all_of_them() {
    for l in layouts().into_iter().filter(|l| l.elem_count() > 0) {
        let len = *l.dims().last().unwrap();
        let old = places(&l);
        let starts: Vec<usize> = old.iter().step_by(len).copied().collect();
        let dense = old.iter().enumerate().all(|(i, at)| *at == starts[i / len] + i % len);
        let even = starts.windows(3).all(|w| w[1] + w[1] == w[0] + w[2]);
        let rising = starts.windows(2).all(|w| w[1] > w[0]);
        let what = format!("rows of {}", shown(&l));
        match l.as_rows() {
            Some((n, row_len, stride)) => {
                assert_eq!((n, row_len), (starts.len(), len), "number and length of the {what}");
                let got: Vec<usize> = (0..n).map(|i| l.offset() + i * stride).collect();
                assert_eq!(got, starts, "where to find the {what}");
                assert!(dense, "there are gaps inside of the {what}");
            }
            None => assert!(!(dense && even && rising), "the {what} are refused"),
        }
    }
    let scalar = Layout::contiguous(&[]).unwrap().as_rows();
    assert_eq!(scalar, Some((1, 1, 1)), "a scalar as rows");
}

#[test]
fn without_elements_there_are_rows_whatever_the_leading_strides() {
    let dense = |shape: &[usize]| Layout::contiguous(shape).unwrap();
    let columns = dense(&[2, 3, 4]).narrow(2, 1, 2).unwrap();
    for (l, rows, why) in [
        (dense(&[0, 4]), (0, 4, 4), "no rows of 4"),
        (dense(&[2, 3, 0]), (6, 0, 1), "rows of nothing are rows, one stride apart"),
        (columns.narrow(1, 1, 0).unwrap(), (0, 2, 2), "no stride leads past a dimension of size 0"),
        (dense(&[2, 3, 0]).transpose(0, 1).unwrap(), (0, 0, 0), "strides 1 and 3 do not fold"),
    ] {
        let what = shown(&l);
        assert_eq!(l.as_rows(), Some(rows), "{what} as (rows, row_len, row_stride): {why}");
    }
    for l in layouts().into_iter().filter(|l| l.elem_count() == 0) {
        let (len, stride) = (*l.dims().last().unwrap(), *l.strides().last().unwrap());
        let what = format!("rows of {}", shown(&l));
        match l.as_rows() {
            Some((n, row_len, _)) => {
                assert_eq!(row_len, len, "length of the {what}");
                assert_eq!(n * row_len, 0, "elements in the {what}");
            }
            None => assert!(len > 1 && stride != 1, "the {what} are refused"),
        }
    }
}
