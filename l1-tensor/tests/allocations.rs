//! A steady step allocates nothing: one decoder layer and the end of a model, counted by an
//! allocator that counts.

#[path = "support/counting.rs"]
mod counting;
mod support;

use counting::fewest_allocations;
use l1_tensor::cpu::Isa;
use l1_tensor::ops::*;
use l1_tensor::{DType, Device, Error, PackedBf16, Result, RowOrder, Runtime, Tensor, Weight};
use support::{noise, runtime};

const HIDDEN: usize = 96;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const D: usize = 24;
const PACKED: usize = (HEADS + 2 * KV_HEADS) * D;
const INNER: usize = 160;
const VOCAB: usize = 500;
const K: usize = 40;

fn weight(rt: &Runtime, n: usize, k: usize, order: RowOrder) -> Result<Weight> {
    let fill = |i: usize, out: &mut [f32]| -> Result<()> {
        out.copy_from_slice(&noise(k, i as u64));
        Ok(())
    };
    Ok(Weight::Bf16(PackedBf16::pack::<Error>(rt.pool(), n, k, order, &fill)?))
}

/// Weights, and buffers for `t` tokens: all that a step may use.
struct Model {
    table: Weight,
    qkv_w: Weight,
    out_w: Weight,
    gate_up_w: Weight,
    down_w: Weight,
    norm_w: Tensor,
    head_norm_w: Tensor,
    rope: RopeTable,
    tokens: Vec<u32>,
    positions: Vec<i32>,
    slots: Vec<i64>,
    x: Tensor,
    h: Tensor,
    cos: Tensor,
    sin: Tensor,
    qkv: Tensor,
    attended: Tensor,
    inner: Tensor,
    gate_up: Tensor,
    last: Tensor,
    logits: Tensor,
    weights: Tensor,
    cache: KvCache,
    attention: AttentionScratch,
    best: [u32; 1],
    top: ([f32; K], [u32; K], TopKScratch),
}

impl Model {
    fn new(rt: &Runtime, t: usize) -> Result<Self> {
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, Device::Cpu);
        let (f32, narrow) = (DType::F32, rt.activation_dtype());
        Ok(Self {
            table: weight(rt, VOCAB, HIDDEN, RowOrder::Plain)?,
            qkv_w: weight(rt, PACKED, HIDDEN, RowOrder::Plain)?,
            out_w: weight(rt, HIDDEN, HEADS * D, RowOrder::Plain)?,
            gate_up_w: weight(rt, 2 * INNER, HIDDEN, RowOrder::Plain)?,
            down_w: weight(rt, HIDDEN, INNER, RowOrder::Plain)?,
            norm_w: Tensor::from_slice(&[1.0f32; HIDDEN], &[HIDDEN])?,
            head_norm_w: Tensor::from_slice(&[1.0f32; D], &[D])?,
            rope: RopeTable::new(D, 1e4, &RopeScaling::None)?,
            tokens: (0..t as u32).map(|i| i * 7 % VOCAB as u32).collect(),
            positions: (0..t as i32).collect(),
            slots: (0..t as i64).collect(),
            x: zeros(&[t, HIDDEN], f32)?,
            h: zeros(&[t, HIDDEN], narrow)?,
            cos: zeros(&[t, D / 2], f32)?,
            sin: zeros(&[t, D / 2], f32)?,
            qkv: zeros(&[t, PACKED], f32)?,
            attended: zeros(&[t, HEADS * D], narrow)?,
            inner: zeros(&[t, INNER], narrow)?,
            gate_up: zeros(&[t, 2 * INNER], f32)?,
            last: zeros(&[1, HIDDEN], narrow)?,
            logits: zeros(&[1, VOCAB], f32)?,
            weights: zeros(&[1, VOCAB], f32)?,
            cache: KvCache::new(1, t.next_multiple_of(TILE), KV_HEADS, D, narrow)?,
            attention: AttentionScratch::new(rt, t, t, HEADS, D)?,
            best: [0],
            top: ([0.0; K], [0; K], TopKScratch::new(K)),
        })
    }

    fn step(&mut self, rt: &Runtime) -> Result<()> {
        let t = self.tokens.len();
        embedding(rt, &self.table, &self.tokens, self.x.view_mut())?;
        self.rope.angles(rt, &self.positions, self.cos.view_mut(), self.sin.view_mut())?;
        rms_norm(rt, self.x.view(), self.norm_w.view(), 1e-5, self.h.view_mut())?;
        let qkv = self.qkv.view_mut();
        linear(rt, self.h.view(), &self.qkv_w, None, Epilogue::Store, qkv)?;

        let turned = HEADS + KV_HEADS;
        let qk = self.qkv.view_mut().narrow(1, 0, turned * D)?.reshape(&[t, turned, D])?;
        rms_norm_in_place(rt, qk, self.head_norm_w.view(), 1e-6)?;
        let qk = self.qkv.view_mut().narrow(1, 0, turned * D)?.reshape(&[t, turned, D])?;
        rope(rt, qk, self.cos.view(), self.sin.view())?;

        let heads = self.qkv.view().reshape(&[t, HEADS + 2 * KV_HEADS, D])?;
        let q = heads.narrow(1, 0, HEADS)?;
        let k = heads.narrow(1, HEADS, KV_HEADS)?;
        let v = heads.narrow(1, turned, KV_HEADS)?;
        self.cache.write(rt, &self.slots, k, v)?;
        let sequences = Sequences {
            cu_seqlens_q: &[0, t as i32],
            seq_lens_kv: &[t as i32],
            block_table: &[0],
            max_blocks: 1,
            device: None,
        };
        let params = AttentionParams { scale: 0.2, window: None };
        let (scratch, out) = (&mut self.attention, self.attended.view_mut());
        attention(rt, q, &self.cache, sequences, params, scratch, out)?;
        let residual = self.x.view_mut();
        linear(rt, self.attended.view(), &self.out_w, None, Epilogue::Add, residual)?;

        rms_norm(rt, self.x.view(), self.norm_w.view(), 1e-5, self.h.view_mut())?;
        let both = self.gate_up.view_mut();
        linear(rt, self.h.view(), &self.gate_up_w, None, Epilogue::Store, both)?;
        let gate = self.gate_up.view().narrow(1, 0, INNER)?;
        let up = self.gate_up.view().narrow(1, INNER, INNER)?;
        gelu_mul(rt, Gelu::Tanh, gate, up, self.inner.view_mut())?;
        silu_mul(rt, gate, up, self.inner.view_mut())?;
        linear(rt, self.inner.view(), &self.down_w, None, Epilogue::Add, self.x.view_mut())?;
        scale(rt, self.x.view_mut(), 0.5)?;

        let norm = self.norm_w.view();
        layer_norm(rt, self.x.view(), norm, Some(norm), 1e-5, self.h.view_mut())?;
        gather_rows(rt, self.h.view(), &[t as u32 - 1], self.last.view_mut())?;
        let logits = self.logits.view_mut();
        linear(rt, self.last.view(), &self.table, None, Epilogue::Store, logits)?;
        argmax(rt, self.logits.view(), &mut self.best)?;
        softmax(rt, self.logits.view(), self.weights.view_mut())?;
        add_in_place(rt, self.weights.view_mut(), self.logits.view())?;
        log_softmax(rt, self.logits.view(), self.weights.view_mut())?;
        let (values, indices, scratch) = &mut self.top;
        top_k(self.logits.view().reshape(&[VOCAB])?, values, indices, scratch)?;
        Ok(())
    }
}

#[test]
fn a_steady_step_allocates_nothing_on_any_number_of_threads() {
    for isa in Isa::available() {
        for threads in [1, 2] {
            // One token, and enough that every op shares its rows among threads.
            for t in [1, 400] {
                let rt = runtime(isa, threads);
                let mut model = Model::new(&rt, t).unwrap();
                model.step(&rt).unwrap();
                let first = model.best;
                let made = fewest_allocations(5, || {
                    model.step(&rt).unwrap();
                    model.step(&rt).unwrap();
                });
                assert_eq!(made, 0, "{t} tokens on {rt}");
                assert_eq!(model.best, first, "the same step has the same result");
            }
        }
    }
}
