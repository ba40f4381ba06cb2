//! What does not go on a device, or not together.

use l1_tensor::{DType, Precision};
use l3_paged_kv::{BlockTable, ForwardMeta, KvError, PagedKv, PagedOptions, PagedState};

use crate::judge;
use crate::models::{device, host, load};

#[test]
fn blocks_in_eight_bits_are_refused_on_a_device() {
    let rt = device(Precision::Bf16);
    let decoder = load("tiny-llama", &host(Precision::F32));
    let options = PagedOptions::new(1, 16, 4, DType::F8E4M3);
    let made = PagedState::new_on(rt.device(), decoder.config(), options).map(|_| ());
    let error = judge::refused("blocks in eight bits", "an error that names bf16", made);
    assert!(error.to_string().contains("bf16"), "{error}");
}

#[test]
fn a_step_that_was_not_staged_is_refused_where_another_was() {
    let rt = device(Precision::F32);
    let decoder = load("tiny-llama", &host(Precision::F32));
    let mut kv = PagedKv::new_on(rt.device(), decoder.config(), 4, 4, DType::F32).unwrap();
    let table = BlockTable::from_blocks(4, &[2]);
    let mut meta = ForwardMeta::new(8, 2, 2, 4);
    meta.push(&table, 0, 2).unwrap();
    kv.stage(&rt, &meta, false).unwrap();
    meta.clear();
    meta.push(&table, 0, 3).unwrap();
    let rows = l1_tensor::Tensor::zeros(&[3, 2, 16], DType::F32, rt.device()).unwrap();
    let refused = kv.write(&rt, 0, &meta, rows.view(), rows.view());
    let error = judge::fails_with!("a step that was not staged", refused, KvError::Malformed(_));
    assert!(error.to_string().contains("stage"), "{error}");
}

#[test]
fn saved_blocks_of_a_cpu_are_refused_on_a_device() {
    let rt = device(Precision::F32);
    let decoder = load("tiny-llama", &host(Precision::F32));
    let mut there = PagedKv::new_on(rt.device(), decoder.config(), 4, 4, DType::F32).unwrap();
    let here = PagedKv::new(decoder.config(), 4, 4, DType::F32).unwrap();
    let loaded = there.load(&[1], &here.save(&[2]).unwrap());
    judge::fails_with!("saved blocks of a CPU", loaded, KvError::Malformed(_));
}
