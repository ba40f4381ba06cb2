//! Picking rows, out of a packed table and out of a batch.

mod linear_common;

use l1_tensor::cpu::Isa;
use l1_tensor::ops::{embedding, gather_rows};
use l1_tensor::{DType, Error, RowOrder, Tensor, f16};
use linear_common::{
    SAME_BITS, activations, assert_close, numbers, rounded, runtime, weight, zeros,
};

#[test]
fn an_embedding_is_the_tables_row_for_each_token() {
    for (v, h, order) in
        [(50, 33, RowOrder::Plain), (1, 1, RowOrder::Plain), (8, 6, RowOrder::GateUp)]
    {
        let values = numbers(1, v * h);
        let rt = runtime(Isa::best(), 3);
        let table = weight(&rt, &values, v, h, order);
        let tokens: Vec<u32> = (0..77u32).map(|i| i * 31 % v as u32).collect();
        let mut out = zeros(tokens.len(), h, DType::F32);
        embedding(&rt, &table, &tokens, out.view_mut()).unwrap();
        let values = rounded(&values);
        let want: Vec<f32> =
            tokens.iter().flat_map(|t| values[*t as usize * h..][..h].to_vec()).collect();
        let what = format!("embedding, 77 tokens, a table [{v}, {h}], {order:?}");
        assert_close(what, &[77, h], &out.to_vec_f32().unwrap(), &want, SAME_BITS);
    }
}

#[test]
fn an_unknown_token_is_an_error_before_anything_is_written() {
    let rt = runtime(Isa::best(), 1);
    let table = weight(&rt, &numbers(1, 20), 5, 4, RowOrder::Plain);
    let mut out = zeros(2, 4, DType::F32);
    let e = embedding(&rt, &table, &[1, 5], out.view_mut()).unwrap_err();
    assert!(matches!(e, Error::OutOfRange { op: "embedding", index: 5, limit: 5, .. }), "{e}");
    assert!(e.to_string().contains("token id 5"), "{e}");
    assert_eq!(out.to_vec_f32().unwrap(), [0.0; 8]);

    let m = embedding(&rt, &table, &[1], out.view_mut()).unwrap_err().to_string();
    assert!(m.contains("[2, 4]") && m.contains("[1]"), "{m}");
    let mut narrow = zeros(1, 3, DType::F32);
    let m = embedding(&rt, &table, &[1], narrow.view_mut()).unwrap_err().to_string();
    assert!(m.contains("[1, 3]") && m.contains("[5, 4]"), "{m}");
    let mut none = zeros(0, 4, DType::F32);
    embedding(&rt, &table, &[], none.view_mut()).unwrap();
}

#[test]
fn a_row_that_is_not_there_is_an_error_before_anything_is_written() {
    let rt = runtime(Isa::best(), 1);
    let x = activations(&numbers(3, 12), 3, 4, DType::F32);
    for rows in [[0u32, 3], [3, 0], [1, u32::MAX]] {
        let mut out = zeros(2, 4, DType::F32);
        let e = gather_rows(&rt, x.view(), &rows, out.view_mut());
        let e = e.expect_err("rows 0 to 2 are there");
        assert!(matches!(e, Error::OutOfRange { op: "gather_rows", limit: 3, .. }), "{e}");
        let got = out.to_vec_f32().unwrap();
        assert_eq!(got, [0.0; 8], "the output after rows {rows:?} of 3 were refused");
    }
    let mut out = zeros(4, 4, DType::F32);
    let e = gather_rows(&rt, x.view(), &[1, 7, 5, 9], out.view_mut()).expect_err("rows 0 to 2");
    assert!(matches!(e, Error::OutOfRange { index: 7, .. }), "the first of rows 7, 5 and 9: {e}");
    let mut out = zeros(3, 4, DType::F32);
    let e = gather_rows(&rt, x.view(), &[0, 1], out.view_mut()).expect_err("two rows for three");
    assert!(matches!(e, Error::ShapeMismatch { op: "gather_rows", .. }), "{e}");
}

#[test]
fn gathering_copies_the_rows_asked_for_in_the_order_asked() {
    let rt = runtime(Isa::best(), 2);
    let (t, h) = (9, 7);
    let values = rounded(&numbers(2, t * (h + 2)));
    let rows = [8u32, 0, 0, 3];
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let x = match dtype {
            DType::F16 => {
                let v: Vec<f16> = values.iter().map(|v| f16::from_f32(*v)).collect();
                Tensor::from_slice(&v, &[t, h + 2]).unwrap()
            }
            _ => activations(&values, t, h + 2, dtype),
        };
        let view = x.view().narrow(1, 1, h).unwrap();
        let mut out = zeros(rows.len(), h, dtype);
        gather_rows(&rt, view, &rows, out.view_mut()).unwrap();
        let all = view.to_vec_f32().unwrap();
        let want: Vec<f32> =
            rows.iter().flat_map(|r| all[*r as usize * h..][..h].to_vec()).collect();
        let what = format!("gather_rows of {dtype}, rows {rows:?} of {t}");
        assert_close(what, &[rows.len(), h], &out.to_vec_f32().unwrap(), &want, SAME_BITS);

        // Into columns 2 to 8 of a wider output, whose other columns stay as they are.
        let mut wide = zeros(rows.len(), h + 5, dtype);
        let columns = wide.view_mut().narrow(1, 2, h).unwrap();
        gather_rows(&rt, view, &rows, columns).unwrap();
        let mut around = vec![0.0; rows.len() * (h + 5)];
        for (row, want) in around.chunks_mut(h + 5).zip(want.chunks(h)) {
            row[2..][..h].copy_from_slice(want);
        }
        let what = format!("gather_rows of {dtype} into columns, rows {rows:?} of {t}");
        let got = wide.to_vec_f32().unwrap();
        assert_close(what, &[rows.len(), h + 5], &got, &around, SAME_BITS);
    }
    let x = activations(&values, t, h + 2, DType::F32);
    let mut out = zeros(1, h + 2, DType::F32);
    let e = gather_rows(&rt, x.view(), &[9], out.view_mut()).unwrap_err();
    assert!(matches!(e, Error::OutOfRange { op: "gather_rows", index: 9, limit: 9, .. }), "{e}");
    let mut other = zeros(1, h + 2, DType::BF16);
    assert!(gather_rows(&rt, x.view(), &[1], other.view_mut()).is_err());
    let mut short = zeros(1, h, DType::F32);
    let m = gather_rows(&rt, x.view(), &[1], short.view_mut()).unwrap_err().to_string();
    assert!(m.contains("[9, 9]") && m.contains("[1, 7]"), "{m}");
}
