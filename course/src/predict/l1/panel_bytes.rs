//! How many bytes a packed weight takes, padding included.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::grouped;

pub const KIND: Kind = Kind {
    name: "panel-bytes",
    about: "bytes of a packed weight with its padding",
    chapter: "l1-tensors/weights.md",
    draw,
};

const PANEL: usize = 32;

fn draw(draw: &mut Draw) -> Question {
    let n: usize = draw.pick(&[20, 33, 40, 50, 65, 70, 96, 100, 130, 200]);
    let k = draw.between(2, 20);

    let (panels, pairs) = (n.div_ceil(PANEL), k.div_ceil(2));
    let bytes = |n: usize, k: usize| Answer::Bytes((n * k * 2) as i64);
    let (full_n, full_k) = (panels * PANEL, pairs * 2);
    let text = format!(
        "A weight [N, K] = [{n}, {k}] is packed in bf16: panels of 32 outputs, inputs in\n\
         pairs. How many bytes does it take?"
    );
    let explanation = format!(
        "{n} outputs fill {panels} panels of 32, with {} outputs of padding.\n\
         {k} inputs make {pairs} pairs{}.\n\
         {panels} panels * {pairs} pairs * 2 lines * 64 bytes = {} bytes",
        full_n - n,
        if full_k > k { ", the last one half empty" } else { "" },
        grouped((full_n * full_k * 2) as i64)
    );
    Question::new(text, bytes(full_n, full_k), explanation, json!({ "n": n, "k": k }))
        .mistake(bytes(n, k), "that is without the padding")
        .mistake(bytes(full_n, k), "an odd number of inputs is padded to whole pairs")
        .mistake(bytes(n, full_k), "outputs are padded to whole panels of 32")
        .mistake(bytes(n / PANEL * PANEL, full_k), "the outputs of the last panel are missing")
        .mistake(bytes(n.div_ceil(16) * 16, full_k), "a panel is 32 outputs: two lines of 16")
        .mistake(bytes(full_n, 2 * full_k), "bf16 takes two bytes, not four")
        .mistake(bytes(full_n, pairs), "bf16 takes two bytes, not one")
}
