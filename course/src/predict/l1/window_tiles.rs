//! Which tiles of the cache a query reads.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "window-tiles",
    about: "the tiles of the cache that a step reads",
    chapter: "l1-tensors/attention-tiles.md",
    draw,
};

const TILE: usize = 16;

fn draw(draw: &mut Draw) -> Question {
    let window = draw.between(3, 60);
    let kv_len = draw.between(window + 5, 200);
    let q_len = if draw.one_in(2) { 1 } else { draw.between(2, 40.min(kv_len - 1)) };

    let first_query = kv_len - q_len;
    let lo = (first_query + 1).saturating_sub(window);
    let hi = kv_len - 1;
    let step = if q_len == 1 { "1 query".into() } else { format!("{q_len} queries") };
    let text = format!(
        "A sequence has {kv_len} keys, those of this step included; the step is {step}.\n\
         The sliding window is {window}, tiles hold 16 tokens.\n\
         Which are the first and the last tile of the sequence that the step reads\n\
         (counted from 0)?"
    );
    let explanation = format!(
        "The first query's position is {kv_len} - {q_len} = {first_query}, its lowest key\n\
         max(0, {first_query} + 1 - {window}) = {lo}; tile {lo} / 16 = {}, rounded down.\n\
         The last query's position is {hi}; tile {hi} / 16 = {}.\n\
         A tile is read whole: keys stay in the lane that their index gives them.",
        lo / TILE,
        hi / TILE
    );
    let tiles = |a: usize, b: usize| Answer::List(vec![(a / TILE) as i64, (b / TILE) as i64]);
    let facts = json!({ "kv_len": kv_len, "q_len": q_len, "window": window });
    Question::new(text, tiles(lo, hi), explanation, facts)
        .mistake(tiles(0, hi), "the window lets the first tiles be")
        .mistake(
            tiles(kv_len.saturating_sub(window), hi),
            "that is the window of the last query; the first one sees further back",
        )
        .mistake(tiles(lo, kv_len), "the last key is kv_len - 1")
        .mistake(
            tiles(first_query.saturating_sub(window), hi),
            "a window of n is n keys, the query's own among them",
        )
        .mistake(
            Answer::List(vec![(lo / TILE) as i64 + 1, (hi / TILE) as i64 + 1]),
            "tiles are counted from 0",
        )
        .mistake(Answer::List(vec![lo as i64, hi as i64]), "those are keys; divide by 16 for tiles")
}
