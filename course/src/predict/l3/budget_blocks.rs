//! How many blocks fit what a device has left.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::grouped;

pub const KIND: Kind = Kind {
    name: "budget-blocks",
    about: "how many blocks fit a device",
    chapter: "l3-paged-kv/sizing.md",
    draw,
};

const MIB: usize = 1 << 20;

fn draw(draw: &mut Draw) -> Question {
    // All in MiB. Utilisation in percent; of these totals it leaves whole MiB.
    let total = draw.pick(&[8, 16, 24, 40, 80]) * 1000;
    let percent = draw.pick(&[80, 85, 90, 95]);
    let requested = total * percent / 100;
    let weights = requested * draw.between(25, 60) / 100;
    let peak = draw.between(2, 12) * 100;
    let margin = draw.pick(&[64, 128, 256]);
    let block = draw.pick(&[2, 3, 4, 6]);
    let left = requested - weights - peak - margin;
    // Never a whole number of blocks: what does not fill one is lost, and that is the point.
    let (left, peak) = if left.is_multiple_of(block) { (left - 1, peak + 1) } else { (left, peak) };

    let blocks = left / block;
    let text = format!(
        "A device with {} MiB, of which {percent} % may be used. Weights: {} MiB.\n\
         Activations at their peak: {peak} MiB; margin: {margin} MiB. A block takes {block} MiB.\n\
         How many blocks does the pool get, the null block included?",
        grouped(total as i64),
        grouped(weights as i64)
    );
    let explanation = format!(
        "requested:  {} * {percent} / 100 = {} MiB\n\
         for KV:     {} - {} - {peak} - {margin} = {} MiB\n\
         blocks:     {} / {block}, rounded down, = {}",
        grouped(total as i64),
        grouped(requested as i64),
        grouped(requested as i64),
        grouped(weights as i64),
        grouped(left as i64),
        grouped(left as i64),
        grouped(blocks as i64)
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "total": total * MIB, "percent": percent, "weights": weights * MIB, "peak": peak * MIB,
        "margin": margin * MIB, "block_bytes": block * MIB,
    });
    let of = |mib: usize| whole(mib / block);
    Question::new(text, whole(blocks), explanation, facts)
        .mistake(whole(blocks + 1), "part of a block is none: round down")
        .mistake(whole(blocks - 1), "the null block takes memory like any other and is counted")
        .mistake(
            of((total - weights - peak - margin) * percent / 100),
            "utilisation is of the whole device, before anything is subtracted",
        )
        .mistake(of(total - weights - peak - margin), "not all of the device may be used")
        .mistake(of(requested - weights - margin), "activations need their place, too")
        .mistake(of(requested - weights - peak), "the margin stays free")
        .mistake(of(requested - weights), "activations and margin are to be subtracted, too")
        .mistake(whole(left), "those are MiB; a block takes several")
}
