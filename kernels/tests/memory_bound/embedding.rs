//! Rows by their numbers.

use half::bf16;
use kernels::{Buffer, Float, ops};

use crate::common::{bytes, gpu, under_every_order};
use crate::field::{Field, Layout, numbers};
use crate::{bits, refused};

const WIDTHS: [usize; 6] = [1, 60, 171, 576, 2051, 4900];
const IDS: [u32; 7] = [4, 0, 4, 5, u32::MAX, 1, 3];

fn expected(table: &[f32], count: usize, width: usize, ids: &[u32]) -> Vec<f32> {
    let mut out = Vec::new();
    for id in ids {
        let at = *id as usize * width;
        if (*id as usize) < count {
            out.extend_from_slice(&table[at..at + width]);
        } else {
            out.extend(std::iter::repeat_n(0.0, width));
        }
    }
    out
}

#[test]
fn tokens_become_rows_and_those_beyond_the_table_become_zeros() {
    let Some(gpu) = gpu() else { return };
    let ids = Buffer::from_slice(&gpu, &IDS).unwrap();
    for width in WIDTHS {
        let round = |v: f32| bf16::from_f32(v).to_f32();
        let table: Vec<f32> = numbers(1, 5 * width).into_iter().map(round).collect();
        let want = expected(&table, 5, width, &IDS);
        for (from, to) in [(0, 0), (1, 1), (2, 2), (0, 2)] {
            let weight = Field::new(&gpu, Float::Bf16, Layout::all(5, width)[from], &table);
            let mut out = Field::unwritten(&gpu, Float::F32, Layout::all(IDS.len(), width)[to]);
            ops::embedding(&gpu, weight.mat(), ids.view().cast(), out.mat_mut()).unwrap();
            assert_eq!(bits(&out.read()), bits(&want), "{width}, {from} to {to}");
        }
    }
}

#[test]
fn rows_are_gathered_as_they_are() {
    let Some(gpu) = gpu() else { return };
    let ids = Buffer::from_slice(&gpu, &IDS).unwrap();
    for width in WIDTHS {
        for dtype in [Float::F32, Float::Bf16] {
            let mut x: Vec<f32> =
                numbers(2, 5 * width).iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
            x[0] = f32::INFINITY;
            let want = expected(&x, 5, width, &IDS);
            for (from, to) in [(0, 0), (1, 1), (2, 2), (2, 0)] {
                let source = Field::new(&gpu, dtype, Layout::all(5, width)[from], &x);
                let mut out = Field::unwritten(&gpu, dtype, Layout::all(IDS.len(), width)[to]);
                ops::gather_rows(&gpu, source.mat(), ids.view().cast(), out.mat_mut()).unwrap();
                assert_eq!(bits(&out.read()), bits(&want), "{width}, {from} to {to}");
            }
        }
    }
}

#[test]
fn no_rows_and_a_table_without_rows_are_allowed() {
    let Some(gpu) = gpu() else { return };
    let ids = Buffer::from_slice(&gpu, &[0u32, 7]).unwrap();
    let empty = Field::new(&gpu, Float::F32, Layout::dense(0, 60), &[]);
    let mut none = Field::new(&gpu, Float::F32, Layout::dense(0, 60), &[]);
    ops::gather_rows(&gpu, empty.mat(), ids.view().cast().part(0, 0), none.mat_mut()).unwrap();
    let mut out = Field::unwritten(&gpu, Float::F32, Layout::dense(2, 60));
    ops::gather_rows(&gpu, empty.mat(), ids.view().cast(), out.mat_mut()).unwrap();
    assert_eq!(out.read(), [0.0; 120]);
}

#[test]
fn no_order_of_threads_changes_a_gathered_row() {
    let Some(gpu) = gpu() else { return };
    let ids = Buffer::from_slice(&gpu, &IDS).unwrap();
    let x = numbers(3, 5 * 171);
    under_every_order(|| {
        let source = Field::new(&gpu, Float::F32, Layout::dense(5, 171), &x);
        let mut out = Field::unwritten(&gpu, Float::F32, Layout::dense(IDS.len(), 171));
        ops::gather_rows(&gpu, source.mat(), ids.view().cast(), out.mat_mut()).unwrap();
        bytes(&out.read())
    });
}

#[test]
fn shapes_that_do_not_fit_are_named_with_their_numbers() {
    let Some(gpu) = gpu() else { return };
    let ids = Buffer::from_slice(&gpu, &[0u32, 1]).unwrap();
    let table = Field::unwritten(&gpu, Float::Bf16, Layout::dense(5, 8));
    let ids = ids.view().cast::<u32>();
    let mut out = Field::unwritten(&gpu, Float::F32, Layout::dense(3, 8));
    refused(ops::embedding(&gpu, table.mat(), ids, out.mat_mut()), &["2 numbers", "3 rows"]);
    refused(ops::gather_rows(&gpu, table.mat(), ids, out.mat_mut()), &["F32", "Bf16"]);
    let mut out = Field::unwritten(&gpu, Float::F32, Layout::dense(2, 9));
    refused(ops::embedding(&gpu, table.mat(), ids, out.mat_mut()), &["of 8", "of 9"]);
    let table = Field::unwritten(&gpu, Float::F32, Layout::dense(5, 9));
    refused(ops::embedding(&gpu, table.mat(), ids, out.mat_mut()), &["F32", "Bf16"]);
}
