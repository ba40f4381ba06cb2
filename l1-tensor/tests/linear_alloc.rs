//! A steady step allocates nothing: counted, by an allocator that counts.

#[path = "support/counting.rs"]
mod counting;
mod linear_common;

use std::sync::{Mutex, PoisonError};

use counting::fewest_allocations;
use l1_tensor::cpu::Isa;
use l1_tensor::ops::{Epilogue, embedding, gather_rows, linear, linear_low_rank};
use l1_tensor::{BlockFormat, BlockPart, DType, Error, LowRank, RowOrder, Weight};
use linear_common::{activations, numbers, runtime, weight, zeros};

/// Held by a test that counts: the other one allocates.
static COUNTING: Mutex<()> = Mutex::new(());

#[test]
fn weights_in_block_formats_are_multiplied_without_an_allocation() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    for isa in Isa::available() {
        let rt = runtime(isa, 2);
        for format in [BlockFormat::Q4_1, BlockFormat::Q6_K] {
            let (n, k) = (34, 512);
            let blocks = vec![0x11; k / format.block_len() * format.block_bytes()];
            let parts = [BlockPart { rows: n, format }];
            let row = |_: usize| Ok::<_, Error>(blocks.as_slice());
            let w = Weight::load_blocks(&rt, k, RowOrder::Plain, &parts, &row).unwrap();
            for dtype in [DType::F32, DType::BF16] {
                for t in [1, 40, 140] {
                    let x = activations(&numbers(4, t * k), t, k, dtype);
                    let (mut out, mut embedded) = (zeros(t, n, dtype), zeros(t, k, DType::F32));
                    let ids = vec![7u32; t];
                    let mut step = || {
                        linear(&rt, x.view(), &w, None, Epilogue::Store, out.view_mut()).unwrap();
                        embedding(&rt, &w, &ids, embedded.view_mut()).unwrap();
                    };
                    step();
                    let made = fewest_allocations(5, step);
                    assert_eq!(made, 0, "{isa} {format} {dtype}, {t} rows");
                }
            }
        }
    }
}

#[test]
fn steady_calls_allocate_nothing() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    for isa in Isa::available() {
        let rt = runtime(isa, 2);
        let (k, n) = (50, 90);
        let w = weight(&rt, &numbers(1, n * k), n, k, RowOrder::GateUp);
        let side = LowRank {
            a: weight(&rt, &numbers(2, 4 * k), 4, k, RowOrder::Plain),
            b: weight(&rt, &numbers(3, n * 4), n, 4, RowOrder::Plain),
            scale: 1.0,
        };
        for dtype in [DType::F32, DType::BF16] {
            for t in [1, 8, 40, 140] {
                let x = activations(&numbers(4, t * k), t, k, dtype);
                let mut out = zeros(t, n, DType::F32);
                let mut folded = zeros(t, n / 2, dtype);
                let mut scratch = zeros(t, 4, dtype);
                let mut embedded = zeros(t, k, DType::F32);
                let mut picked = zeros(t, k, dtype);
                let ids = vec![0u32; t];
                let mut step = || {
                    linear(&rt, x.view(), &w, None, Epilogue::Add, out.view_mut()).unwrap();
                    linear(&rt, x.view(), &w, None, Epilogue::SiluMul, folded.view_mut()).unwrap();
                    linear_low_rank(&rt, x.view(), &side, scratch.view_mut(), out.view_mut())
                        .unwrap();
                    embedding(&rt, &w, &ids, embedded.view_mut()).unwrap();
                    gather_rows(&rt, x.view(), &ids, picked.view_mut()).unwrap();
                };
                step();
                let made = fewest_allocations(5, step);
                assert_eq!(made, 0, "{isa} {dtype}, {t} rows");
            }
        }
    }
}
