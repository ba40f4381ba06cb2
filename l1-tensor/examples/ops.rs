//! A walk through layer 1: views, a norm, the rotary turn, softmax, and the promise about bits.
//!
//!     cargo run --release -p l1-tensor --example ops

use l1_tensor::ops::{
    RopeScaling, RopeTable, TopKScratch, rms_norm, rms_norm_in_place, rms_norm_reference, rope,
    softmax, top_k,
};
use l1_tensor::{DType, Device, Result, Runtime, RuntimeOptions, Tensor};

fn main() -> Result<()> {
    let rt = Runtime::new(RuntimeOptions::cpu())?;
    println!("Running on {rt}.\n");

    // 1. A tensor owns memory; a view is a layout over it. Attention's projections come out of one
    //    matmul as [tokens, q + k + v]. Cutting the heads out moves nothing.
    let (tokens, heads, d) = (4, 2, 8);
    let numbers: Vec<f32> = (0..tokens * 3 * heads * d).map(|i| (i as f32 * 0.7).sin()).collect();
    let mut packed = Tensor::from_slice(&numbers, &[tokens, 3 * heads * d])?;
    let keys = packed.view().narrow(1, heads * d, heads * d)?.reshape(&[tokens, heads, d])?;
    println!("1. the packed buffer is {}, its keys are {}", packed.layout(), keys.layout());

    // 2. Normalise the keys where they lie, and compare with the loop in the book.
    let weight = Tensor::from_slice(&vec![1.0f32; d], &[d])?;
    let mut expected = vec![0.0; d];
    rms_norm_reference(&keys.to_vec_f32()?[..d], &vec![1.0; d], 1e-6, &mut expected);
    let keys = packed.view_mut().narrow(1, heads * d, heads * d)?.reshape(&[tokens, heads, d])?;
    rms_norm_in_place(&rt, keys, weight.view(), 1e-6)?;
    let got = packed.view().narrow(1, heads * d, d)?.to_vec_f32()?;
    let worst = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("2. rms_norm of the first key: largest difference to the reference {worst:e}");

    // 3. Rotary embedding: one vector at every position, as query and as key. Scores depend on how
    //    far apart the two stand, so the table has one number to a diagonal.
    println!("3. scores of a vector with itself, query position down, key position across:");
    let table = RopeTable::new(d, 10_000.0, &RopeScaling::None)?;
    let positions: Vec<i32> = (0..tokens as i32).collect();
    let mut cos = Tensor::zeros(&[tokens, d / 2], DType::F32, Device::Cpu)?;
    let mut sin = Tensor::zeros(&[tokens, d / 2], DType::F32, Device::Cpu)?;
    table.angles(&rt, &positions, cos.view_mut(), sin.view_mut())?;
    let mut turned = Tensor::from_slice(&expected.repeat(tokens), &[tokens, 1, d])?;
    rope(&rt, turned.view_mut(), cos.view(), sin.view())?;
    let rows = turned.to_vec_f32()?;
    let mut scores = Vec::new();
    for q in rows.chunks(d) {
        scores.extend(rows.chunks(d).map(|k| q.iter().zip(k).map(|(a, b)| a * b).sum::<f32>()));
        println!("   {:7.3?}", &scores[scores.len() - tokens..]);
    }

    // 4. Softmax makes weights of scores, and top-k says which are the largest.
    let scores = Tensor::from_slice(&scores, &[tokens, tokens])?;
    let mut weights = Tensor::zeros(&[tokens, tokens], DType::F32, Device::Cpu)?;
    softmax(&rt, scores.view(), weights.view_mut())?;
    let (mut values, mut indices) = ([0.0; 2], [0; 2]);
    let last = weights.view().narrow(0, tokens - 1, 1)?.reshape(&[tokens])?;
    top_k(last, &mut values, &mut indices, &mut TopKScratch::new(2))?;
    println!("4. the last token looks most at tokens {indices:?}, with weights {values:.3?}");

    // 5. The promise: a row alone and the same row in a batch agree to the last bit.
    let (rows, width) = (300, 576);
    let numbers: Vec<f32> = (0..rows * width).map(|i| (i as f32 * 0.37).cos()).collect();
    let batch = Tensor::from_slice(&numbers, &[rows, width])?;
    let weight = Tensor::from_slice(&vec![0.5f32; width], &[width])?;
    let mut together = Tensor::zeros(&[rows, width], DType::F32, Device::Cpu)?;
    rms_norm(&rt, batch.view(), weight.view(), 1e-5, together.view_mut())?;
    let mut alone = Tensor::zeros(&[1, width], DType::F32, Device::Cpu)?;
    let row = batch.view().narrow(0, 217, 1)?;
    rms_norm(&rt, row, weight.view(), 1e-5, alone.view_mut())?;
    let same = alone.to_vec_f32()? == together.view().narrow(0, 217, 1)?.to_vec_f32()?;
    println!("5. row 217 of {rows}, alone and in the batch: same bits: {same}");

    // 6. And when something does not fit, the error says what.
    let wrong = Tensor::zeros(&[5], DType::F32, Device::Cpu)?;
    if let Err(e) = rms_norm(&rt, batch.view(), wrong.view(), 1e-5, together.view_mut()) {
        println!("6. {e}");
    }
    Ok(())
}
