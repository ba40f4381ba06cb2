//! Medusa: logits of every head, for rows alone and together.

use l1_tensor::{Precision, Tensor};
use l2_model::Tap;
use l2_model::draft_head::{DraftHead, MedusaHead, MedusaWorkspace};

use crate::judge;
use crate::support::{fixtures, golden, head_dir, ids, runtime, target, target_step};

const TARGET: &str = "tiny-llama-linear";

/// (directory, number of stored heads)
const MEDUSAS: [(&str, usize); 2] = [("medusa", 3), ("medusa-two-blocks", 1)];

fn all_logits(ws: &MedusaWorkspace, heads: usize) -> Vec<f32> {
    (0..heads).flat_map(|i| ws.logits(i).unwrap().to_vec_f32().unwrap()).collect()
}

#[test]
fn every_stored_medusa_head_has_torchs_logits() {
    let rt = runtime(Precision::F32, 2);
    let decoder = target(&rt, TARGET);
    let prompt = ids(&golden(&fixtures().join(TARGET)), "tokens");
    for (name, stored) in MEDUSAS {
        let DraftHead::Medusa(medusa) = DraftHead::open(&rt, &head_dir(name), &decoder).unwrap()
        else {
            panic!("{name} is a Medusa head");
        };
        assert_eq!(medusa.heads(), stored, "{name}: heads");
        let expected = golden(&head_dir(name)).tensor("logits").unwrap();
        let (dims, expected) = (expected.dims().to_vec(), expected.to_vec_f32().unwrap());
        let mut ws = MedusaWorkspace::new(&rt, &medusa, prompt.len()).unwrap();
        let of_target = target_step(&rt, &decoder, &prompt, medusa.taps());
        let of_transformers = golden(&fixtures().join(TARGET)).tensor("final_norm").unwrap();
        for (whose, rows) in [
            ("the target's", of_target.tapped(Tap::FinalNorm).unwrap()),
            ("transformers'", of_transformers.view()),
        ] {
            medusa.forward(rows, &mut ws).unwrap();
            let what = format!("logits of {name} over {whose} rows, in f32");
            judge::close(&what, &dims, &all_logits(&ws, stored), &expected, 2e-3);
        }
    }
}

#[test]
fn a_row_of_medusa_logits_has_the_same_bits_alone() {
    for precision in [Precision::F32, Precision::Bf16] {
        let (one, three) = (runtime(precision, 1), runtime(precision, 3));
        for (name, stored) in MEDUSAS {
            let medusa = MedusaHead::open(&one, &head_dir(name), &target(&one, TARGET)).unwrap();
            let rows = golden(&fixtures().join(TARGET)).tensor("final_norm").unwrap();
            let n = rows.dims()[0];
            let mut ws = MedusaWorkspace::new(&one, &medusa, n).unwrap();
            medusa.forward(rows.view(), &mut ws).unwrap();
            let mut alone = MedusaWorkspace::new(&three, &medusa, 1).unwrap();
            for row in [0, n / 2, n - 1] {
                medusa.forward(rows.view().narrow(0, row, 1).unwrap(), &mut alone).unwrap();
                for head in 0..stored {
                    let expected = ws.logits(head).unwrap().narrow(0, row, 1).unwrap();
                    let expected = expected.to_vec_f32().unwrap();
                    let what = format!("row {row} of head {head} of {name} in {precision}, alone");
                    let got = alone.logits(head).unwrap().to_vec_f32().unwrap();
                    judge::same_bits(&what, &[1, got.len()], &got, &expected);
                }
            }
        }
    }
}

#[test]
fn more_rows_than_the_workspace_holds_are_refused_and_none_are_nothing() {
    let rt = runtime(Precision::F32, 1);
    let medusa = MedusaHead::open(&rt, &head_dir("medusa"), &target(&rt, TARGET)).unwrap();
    let mut ws = MedusaWorkspace::new(&rt, &medusa, 2).unwrap();
    let rows = |n: usize, h: usize| Tensor::from_slice(&vec![0.0f32; n * h], &[n, h]).unwrap();
    judge::refused("three rows", "an error", medusa.forward(rows(3, 40).view(), &mut ws));
    judge::refused("rows of 39", "an error", medusa.forward(rows(2, 39).view(), &mut ws));
    medusa.forward(rows(0, 40).view(), &mut ws).unwrap();
    assert_eq!(ws.logits(0).unwrap().dims(), [0, 325]);
    judge::refused("a fourth head", "an error", ws.logits(3));
}
