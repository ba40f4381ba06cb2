//! The first layer answers its own questions.

use l1_tensor::ops::{
    AttentionParams, AttentionShape, RopeScaling, RopeTable, TILE, argmax_reference,
    attention::reference, rms_norm_reference, rope_reference, softmax, softmax_reference,
};
use l1_tensor::{
    DType, Error, Layout, PackedBf16, RowOrder, Runtime, RuntimeOptions, Tensor, bf16,
    cpu::ThreadPool,
};
use serde_json::Value;

use super::{agree, agree_closely, number, numbers, reals};

#[test]
fn whole_numbers_round_as_bf16_does() {
    agree(("l1", "bf16-round"), 200, number, |facts| {
        bf16::from_f32(number(&facts["x"]) as f32).to_f32() as usize
    });
}

#[test]
fn elements_lie_where_layouts_put_them() {
    agree(("l1", "layout-element"), 200, number, |facts| {
        let narrow = numbers(&facts["narrow"]);
        let mut view = Layout::contiguous(&numbers(&facts["buffer"]))
            .and_then(|l| l.narrow(narrow[0], narrow[1], narrow[2]))
            .and_then(|l| l.reshape(&numbers(&facts["reshape"])))
            .unwrap();
        if facts["transposed"] == true {
            view = view.transpose(0, 1).unwrap();
        }
        let index = numbers(&facts["element"]);
        view.offset() + index.iter().zip(view.strides()).map(|(i, s)| i * s).sum::<usize>()
    });
}

#[test]
fn views_reshape_when_layouts_say_so() {
    agree(
        ("l1", "reshape-view"),
        200,
        |answer| answer.as_bool().unwrap(),
        |facts| {
            let mut view = Layout::contiguous(&numbers(&facts["base"])).unwrap();
            if let Some(narrow) = facts["narrow"].as_array() {
                let [d, start, len] = [0, 1, 2].map(|i| number(&narrow[i]));
                view = view.narrow(d, start, len).unwrap();
            }
            if facts["transposed"] == true {
                view = view.transpose(0, 1).unwrap();
            }
            assert_eq!(
                view.strides(),
                numbers(&facts["strides"]),
                "the strides the question shows"
            );
            view.reshape(&numbers(&facts["wanted"])).is_ok()
        },
    );
}

#[test]
fn rows_are_normalised_as_the_op_does_it() {
    agree_closely(("l1", "rms-norm"), |facts| {
        let (x, weight) = (reals(&facts["x"]), reals(&facts["weight"]));
        let mut y = vec![0.0; x.len()];
        rms_norm_reference(&x, &weight, facts["eps"].as_f64().unwrap() as f32, &mut y);
        y[number(&facts["i"])]
    });
}

#[test]
fn pairs_turn_by_the_angle_of_the_table() {
    agree_closely(("l1", "rope-angle"), |facts| {
        let theta = facts["theta"].as_f64().unwrap();
        let table = RopeTable::new(number(&facts["d"]), theta, &RopeScaling::None).unwrap();
        table.inv_freq()[number(&facts["pair"])] * number(&facts["position"]) as f32
    });
}

#[test]
fn an_element_turns_into_its_partner() {
    agree(("l1", "rope-partner"), 100, number, |facts| {
        let rotary = number(&facts["rotary_dim"]);
        let element = number(&facts["element"]);
        let mut x = vec![0.0; rotary];
        x[element] = 1.0;
        // A quarter of a turn moves all of it to the other element of the pair.
        rope_reference(&mut x, &vec![0.0; rotary / 2], &vec![1.0; rotary / 2]);
        let moved: Vec<usize> = (0..rotary).filter(|i| x[*i] != 0.0).collect();
        assert_eq!(moved.len(), 1, "one element has it all");
        moved[0]
    });
}

#[test]
fn weights_of_masked_rows_are_those_of_softmax() {
    agree_closely(("l1", "softmax-mask"), |facts| {
        let scores: Vec<f32> = reals(&facts["parts"]).iter().map(|part| part.ln()).collect();
        let mut weights = vec![0.0; scores.len()];
        softmax_reference(&scores, &mut weights);
        weights[number(&facts["i"])]
    });
}

#[test]
fn ties_and_nans_go_as_argmax_says() {
    agree(("l1", "argmax-tie"), 200, number, |facts| {
        let row = facts["row"].as_array().unwrap();
        let row: Vec<f32> = row.iter().map(|v| v.as_f64().map_or(f32::NAN, |v| v as f32)).collect();
        argmax_reference(&row) as usize
    });
}

/// What a weight of ones takes when it is packed.
fn packed_bytes(n: usize, k: usize) -> usize {
    let ones = |_: usize, row: &mut [f32]| -> Result<(), Error> {
        row.fill(1.0);
        Ok(())
    };
    PackedBf16::pack(&ThreadPool::new(1), n, k, RowOrder::Plain, &ones).unwrap().bytes()
}

#[test]
fn packed_weights_take_the_bytes_said() {
    agree(("l1", "panel-bytes"), 100, number, |facts| {
        packed_bytes(number(&facts["n"]), number(&facts["k"]))
    });
    agree(("l1", "linear-bytes"), 5, number, |facts| {
        let shapes = facts["shapes"].as_array().unwrap();
        shapes.iter().map(|s| packed_bytes(number(&s[0]), number(&s[1]))).sum()
    });
}

/// The keys with weight of query `i`, head `h`, when all scores are equal: values are one-hot, so
/// that the output shows the weights.
fn seen(shape: AttentionShape, window: Option<usize>) -> Vec<Vec<usize>> {
    let AttentionShape { q_len, kv_len, head_dim: d, .. } = shape;
    let (q, k) = (vec![0.0; q_len * d], vec![0.0; kv_len * d]);
    let mut v = vec![0.0; kv_len * d];
    for j in 0..kv_len {
        v[j * d + j] = 1.0;
    }
    let mut out = vec![0.0; q_len * d];
    reference(shape, AttentionParams { scale: 1.0, window }, &q, &k, &v, &mut out);
    out.chunks(d).map(|row| (0..d).filter(|j| row[*j] > 0.0).collect()).collect()
}

fn one_head(facts: &Value) -> Vec<Vec<usize>> {
    let (q_len, kv_len) = (number(&facts["q_len"]), number(&facts["kv_len"]));
    let shape = AttentionShape { q_len, kv_len, q_heads: 1, kv_heads: 1, head_dim: kv_len };
    seen(shape, facts["window"].as_u64().map(|w| w as usize))
}

#[test]
fn queries_see_the_keys_that_attention_gives_weight() {
    agree(("l1", "mask-row"), 200, numbers, |facts| {
        let keys = &one_head(facts)[number(&facts["i"])];
        vec![keys[0], keys[keys.len() - 1]]
    });
}

#[test]
fn tiles_are_those_of_the_keys_that_are_seen() {
    agree(("l1", "window-tiles"), 40, numbers, |facts| {
        let keys = one_head(facts).concat();
        let tile = |key: Option<&usize>| key.unwrap() / TILE;
        vec![tile(keys.iter().min()), tile(keys.iter().max())]
    });
}

#[test]
fn query_heads_read_the_kv_head_that_attention_gives_them() {
    agree(("l1", "gqa-head"), 100, number, |facts| {
        let (q_heads, kv_heads) = (number(&facts["q_heads"]), number(&facts["kv_heads"]));
        let shape = AttentionShape { q_len: 1, kv_len: 1, q_heads, kv_heads, head_dim: 1 };
        // The value of each KV head is its own number.
        let v: Vec<f32> = (0..kv_heads).map(|h| h as f32).collect();
        let mut out = vec![0.0; q_heads];
        let params = AttentionParams { scale: 1.0, window: None };
        reference(shape, params, &vec![0.0; q_heads], &vec![0.0; kv_heads], &v, &mut out);
        out[number(&facts["head"])] as usize
    });
}

/// Whether elements `i` and `j` of a row are added to each other before `other` joins them.
///
/// `other` is 1, and the two are so small that 1 swallows each of them alone, but not their sum.
fn meet_before(rt: &Runtime, n: usize, i: usize, j: usize, other: usize) -> bool {
    let small = (0.75f32 * (-24f32).exp2()).ln();
    let mut row = vec![f32::NEG_INFINITY; n];
    (row[i], row[j], row[other]) = (small, small, 0.0);
    let row = Tensor::from_slice(&row, &[1, n]).unwrap();
    let mut weights = Tensor::zeros(&[1, n], DType::F32, rt.device()).unwrap();
    softmax(rt, row.view(), weights.view_mut()).unwrap();
    weights.to_vec_f32().unwrap()[other] < 1.0
}

#[test]
fn elements_meet_in_the_lanes_said() {
    let rt = Runtime::new(RuntimeOptions::default()).unwrap();
    agree(("l1", "lane-of"), 50, number, |facts| {
        let [n, i, folds] = ["n", "i", "folds"].map(|key| number(&facts[key]));
        let left = 16 >> folds;
        // The place of i is the one whose own element it meets before it meets any other's.
        let is_place =
            |at: &usize| (0..left).filter(|o| o != at).all(|o| meet_before(&rt, n, i, *at, o));
        (0..left).find(is_place).unwrap()
    });
}
