//! The promise of batch invariance, for heads: the same bits however rows were fed.

use l1_tensor::{Precision, Tensor};
use l2_model::draft_head::{EagleHead, EagleWorkspace, Hidden};
use l2_model::{Batch, ContiguousState, SequenceState, Tap};

use crate::judge;
use crate::support::{
    CHUNK, Drafting, EAGLES, SPEC, cut, eagle, golden, head_dir, ids, rows_of_transformers, runtime,
};

#[test]
fn logits_of_an_eagle_head_have_the_same_bits_in_a_chunk_and_one_by_one() {
    for precision in [Precision::F32, Precision::Bf16] {
        let (one, three) = (runtime(precision, 1), runtime(precision, 3));
        for (name, target_name) in EAGLES {
            let head = eagle(&one, name, target_name);
            let tokens = &ids(&golden(&head_dir(name)), "tokens")[..CHUNK];
            let rows = rows_of_transformers(&head, target_name);
            let vocab = head.draft_vocab();
            let same = |how: &str, got: &[f32], expected: &[f32]| {
                let what = format!("logits of {name} in {precision}, {how}");
                judge::same_bits(&what, &[expected.len() / vocab, vocab], got, expected);
            };
            let all = cut(&rows, 0, CHUNK);
            let expected = Drafting::new(&one, &head).feed(tokens, Hidden::Target(&all), &[]);

            let mut drafting = Drafting::new(&three, &head);
            let mut feed = |from: usize, n: usize, taps: &[Tap]| {
                let part = cut(&rows, from, n);
                drafting.state.rollback(0, from).unwrap();
                drafting.feed(&tokens[from..from + n], Hidden::Target(&part), taps)
            };
            for i in 0..CHUNK {
                let expected = &expected[i * vocab..][..vocab];
                same(&format!("token {i} fed alone"), &feed(i, 1, &[]), expected);
            }
            let expected = &expected[5 * vocab..];
            same("in a chunk after a rollback", &feed(5, CHUNK - 5, &[]), expected);
            let taps = [Tap::Fused, Tap::Attn(0), Tap::Mlp(0), Tap::Residual(0), Tap::Logits];
            same("with taps", &feed(5, CHUNK - 5, &taps), expected);
        }
    }
}

/// Drafts of two sequences in one step, each from its own last row, are those of each alone.
#[test]
fn drafts_have_the_same_bits_beside_another_sequence() {
    let rt = runtime(Precision::Bf16, 2);
    for (name, target_name) in EAGLES {
        let head = eagle(&rt, name, target_name);
        let rows = rows_of_transformers(&head, target_name);
        let parts: [(&[u32], usize); 2] = [(&[3, 1, 4, 1, 5], 0), (&[9, 2, 6], 7)];
        let alone: Vec<Vec<f32>> = parts
            .iter()
            .map(|(tokens, from)| {
                let mut drafting = Drafting::new(&rt, &head);
                let hidden = cut(&rows, *from, tokens.len() - 1);
                let (last, before) = tokens.split_last().unwrap();
                drafting.feed(before, Hidden::Target(&hidden), &[]);
                let row = last_row(&drafting.ws, before.len());
                drafting.feed(&[*last], Hidden::Head(row.view()), &[])
            })
            .collect();
        let got = both(&rt, &head, &rows, parts);
        let what = format!("drafts of two sequences of {name} in bf16");
        judge::same_bits(&what, &[2, head.draft_vocab()], &got, &alone.concat());
    }
}

fn last_row(ws: &EagleWorkspace, tokens: usize) -> Tensor {
    let row = ws.tapped(Tap::Residual(0)).map_or_else(
        || ws.hidden().unwrap().narrow(0, tokens - 1, 1).unwrap().to_vec_f32().unwrap(),
        |rows| rows.narrow(0, tokens - 1, 1).unwrap().to_vec_f32().unwrap(),
    );
    Tensor::from_slice(&row, &[1, row.len()]).unwrap()
}

/// Both sequences up to their last token in one step, then the last token of both in another, in slots 2 and 0.
fn both(
    rt: &l1_tensor::Runtime,
    head: &EagleHead,
    rows: &[Tensor],
    parts: [(&[u32], usize); 2],
) -> Vec<f32> {
    let mut ws = EagleWorkspace::new(rt, head, SPEC).unwrap();
    let mut state = ContiguousState::new(head.config(), 3, 16, rt.activation_dtype()).unwrap();
    let [(a, from_a), (b, from_b)] = parts;
    let (a, last_a) = (&a[..a.len() - 1], a[a.len() - 1]);
    let (b, last_b) = (&b[..b.len() - 1], b[b.len() - 1]);
    let h = head.config().hidden;
    let stacked = |t: &Tensor| {
        let part = |from, n| t.view().narrow(0, from, n).unwrap().to_vec_f32().unwrap();
        let all = [part(from_a, a.len()), part(from_b, b.len())].concat();
        Tensor::from_slice(&all, &[a.len() + b.len(), h]).unwrap()
    };
    let stacked: Vec<Tensor> = rows.iter().map(stacked).collect();
    let hidden = cut(&stacked, 0, a.len() + b.len());
    let (na, n) = (a.len() as i32, (a.len() + b.len()) as i32);
    let first = Batch {
        tokens: &[a, b].concat(),
        positions: &(0..na).chain(0..n - na).collect::<Vec<_>>(),
        cu_seqlens_q: &[0, na, n],
        state_slots: &[2, 0],
        logit_rows: &[na as u32 - 1, n as u32 - 1],
        ..Batch::default()
    };
    head.forward(&first, Hidden::Target(&hidden), &mut state, &mut ws).unwrap();
    let second = Batch {
        tokens: &[last_a, last_b],
        positions: &[na, n - na],
        cu_seqlens_q: &[0, 1, 2],
        state_slots: &[2, 0],
        logit_rows: &[0, 1],
        ..Batch::default()
    };
    let logits = head.forward(&second, Hidden::Previous, &mut state, &mut ws).unwrap();
    logits.to_vec_f32().unwrap()
}
