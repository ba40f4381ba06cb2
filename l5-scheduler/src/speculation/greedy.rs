//! The likeliest token of each row, for drafters that run a network.

use l1_tensor::ops::argmax;
use l1_tensor::{Device, Runtime, TensorRef};
use l4_sampler::draft::CLASSES;

/// Writes the likeliest token of each row of `logits`, f32 `[R, V]`, to `out`, with its confidence class: its
/// probability, in equal parts. On a device the class is one in the middle for all, since rows stay there. `chosen` is
/// memory for the tokens.
pub(super) fn likeliest(
    rt: &Runtime,
    logits: TensorRef<'_>,
    chosen: &mut Vec<u32>,
    mut out: impl FnMut(usize, u32, u8),
) -> l2_model::Result<()> {
    chosen.clear();
    chosen.resize(logits.dims()[0], 0);
    argmax(rt, logits, chosen)?;
    let on_cpu = logits.device() == Device::Cpu;
    let rows = on_cpu.then(|| logits.rows::<f32>("a draft")).transpose()?;
    for (row, token) in chosen.iter().enumerate() {
        let class = rows.map_or(CLASSES as u8 / 2, |rows| class(rows.row(row), *token));
        out(row, *token, class);
    }
    Ok(())
}

fn class(logits: &[f32], token: u32) -> u8 {
    let most = logits[token as usize];
    let sum: f32 = logits.iter().map(|x| (x - most).exp()).sum();
    ((CLASSES as f32 / sum) as u8).min(CLASSES as u8 - 1)
}
