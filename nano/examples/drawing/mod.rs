//! The pictures of the chapter "One token, end to end", drawn from what the tiny model computes.

use course::svg::{BLUE, GOLD, GREEN, RED, Svg, WHITE};
use nano::generate::{generate, generate_without_cache};
use nano::model::add;
use nano::ops::{argmax, rms_norm, rope, softmax};
use nano::toy::Toy;
use nano::{Engine, KvMemory, Request};

const PROMPT: &str = "the cat sat on the";

/// All pictures, with their file names.
pub fn pictures(toy: &Toy) -> Vec<(&'static str, String)> {
    vec![
        ("one-token-path.svg", path(toy)),
        ("one-token-attention.svg", attention(toy)),
        ("one-token-logits.svg", logits(toy)),
        ("one-token-cache.svg", cache(toy)),
        ("one-token-batch.svg", batch(toy)),
        ("one-token-full.svg", full(toy)),
    ]
}

fn prompt(toy: &Toy) -> Vec<u32> {
    toy.encode(PROMPT).expect("words of the model")
}

/// A number as the pictures show it.
fn two_digits(x: f32) -> String {
    let text = format!("{x:.2}");
    if text == "-0.00" { "0.00".to_owned() } else { text }
}

/// The same number in hundredths. Lengths are made of these, so that they do not depend on the last bits of a number.
fn hundredths(x: f32) -> i32 {
    (two_digits(x).parse::<f64>().expect("a number") * 100.0).round() as i32
}

/// The cache behind the prompt, and its slots.
fn prefill(toy: &Toy) -> (KvMemory, Vec<usize>) {
    let tokens = prompt(toy);
    let (mut kv, slots) = (toy.model.kv_memory(tokens.len()), Vec::from_iter(0..tokens.len()));
    for (i, token) in tokens.iter().enumerate() {
        toy.model.forward(*token, &slots[..=i], &mut kv);
    }
    (kv, slots)
}

/// The residual stream of the last token of the prompt: its embedding, and what it is behind each addition.
fn stream(toy: &Toy) -> Vec<Vec<f32>> {
    let (model, (mut kv, slots)) = (&toy.model, prefill(toy));
    let mut rows = vec![model.embedding.row(prompt(toy)[4] as usize).to_vec()];
    let mut x = rows[0].clone();
    for layer in 0..model.layers.len() {
        let branch = model.attention(layer, &x, &slots, &mut kv);
        add(&mut x, &branch);
        rows.push(x.clone());
        let branch = model.mlp(layer, &x);
        add(&mut x, &branch);
        rows.push(x.clone());
    }
    rows
}

/// The row that the last norm makes, and the logits.
fn output(toy: &Toy) -> (Vec<f32>, Vec<f32>) {
    let rows = stream(toy);
    let normed = rms_norm(&rows[rows.len() - 1], &toy.model.norm, toy.model.eps);
    let logits = toy.model.lm_head.times(&normed);
    (normed, logits)
}

/// The whole way of the last token.
fn path(toy: &Toy) -> String {
    let (tokens, rows, (normed, logits)) = (prompt(toy), stream(toy), output(toy));
    let words: Vec<&str> = PROMPT.split(' ').collect();
    let mut svg = Svg::new(918);
    let numbers = |svg: &mut Svg, x: i32, y: i32, row: &[f32]| {
        for (i, number) in row.iter().enumerate() {
            svg.label([x + 62 * i as i32, y, 62, 30], BLUE, &two_digits(*number));
        }
    };

    for layer in 0..2 {
        svg.panel([8, 170 + 286 * layer, 764, 274]);
    }
    svg.line((140, 112), (140, 742), 6.0, "#9bb8dc");

    for (i, word) in words.iter().enumerate() {
        let fill = if i == 4 { GOLD } else { GREEN };
        svg.label([16 + 50 * i as i32, 20, 46, 28], fill, word);
    }
    svg.arrow(&[(239, 48), (239, 78)]);
    svg.note(250, 68, &format!("token {}", tokens[4]));
    svg.station([16, 80, 248, 32], 1, &format!("embedding, row {}", tokens[4]));
    svg.legend(380, 23, GOLD, "the token that is followed");
    svg.legend(380, 55, GREEN, "tokens before it, already computed");
    svg.line((380, 98), (402, 98), 6.0, "#9bb8dc");
    svg.text(410, 103, "residual stream: four numbers");
    numbers(&mut svg, 16, 128, &rows[0]);
    svg.note(276, 148, "embedding");

    for layer in 0..2 {
        let top = 170 + 286 * layer;
        let row = 1 + 2 * layer as usize;
        svg.title(24, top + 28, &format!("layer {layer}"));
        // Attention.
        svg.end(552, top + 29, "keys and values of");
        for (i, word) in words.iter().enumerate() {
            let (x, fill) = (562 + 40 * i as i32, if i == 4 { GOLD } else { GREEN });
            svg.label([x, top + 12, 38, 24], fill, word);
            svg.arrow(&[(x + 19, top + 36), (x + 19, top + 51)]);
        }
        let y = top + 52;
        svg.arrow(&[(140, y + 16), (283, y + 16)]);
        svg.station([284, y, 78, 32], 2, "norm");
        svg.arrow(&[(362, y + 16), (377, y + 16)]);
        svg.station([378, y, 168, 32], 3, "query, key, value");
        svg.arrow(&[(546, y + 16), (561, y + 16)]);
        svg.station([562, y, 198, 32], 4, "attention");
        svg.arrow(&[(661, y + 32), (661, y + 50), (150, y + 50)]);
        svg.plus((140, y + 50));
        numbers(&mut svg, 16, top + 120, &rows[row]);
        svg.note(276, top + 140, &format!("layer {layer}, + attention"));
        // MLP.
        let y = top + 166;
        svg.arrow(&[(140, y + 16), (283, y + 16)]);
        svg.station([284, y, 78, 32], 2, "norm");
        svg.arrow(&[(362, y + 16), (377, y + 16)]);
        svg.station([378, y, 168, 32], 5, "MLP");
        svg.arrow(&[(462, y + 32), (462, y + 48), (150, y + 48)]);
        svg.plus((140, y + 48));
        numbers(&mut svg, 16, top + 232, &rows[row + 1]);
        svg.note(276, top + 252, &format!("layer {layer}, + MLP"));
    }

    svg.station([101, 742, 78, 32], 2, "norm");
    svg.arrow(&[(179, 758), (215, 758)]);
    numbers(&mut svg, 216, 743, &normed);
    svg.arrow(&[(464, 758), (499, 758)]);
    svg.station([500, 742, 112, 32], 6, "logits");
    svg.arrow(&[(556, 774), (556, 793)]);
    svg.panel([8, 794, 764, 60]);
    let best = argmax(&logits);
    for (i, (word, logit)) in toy.words.iter().zip(&logits).enumerate() {
        let (x, fill) = (17 + 83 * i as i32, if i == best { GREEN } else { BLUE });
        svg.rect([x, 800, 82, 48], fill);
        svg.middle(x + 41, 819, word);
        svg.middle(x + 41, 839, &two_digits(*logit));
    }
    let x = 17 + 83 * best as i32 + 41;
    svg.arrow(&[(x, 848), (x, 871)]);
    svg.station([x - 100, 872, 200, 32], 7, "choice: the largest");
    svg.arrow(&[(x + 100, 888), (x + 123, 888)]);
    svg.label([x + 124, 872, 60, 32], GREEN, &toy.words[best]);
    let shown = |row: &[f32]| row.iter().map(|x| two_digits(*x)).collect::<Vec<_>>().join(", ");
    svg.finish(
        "The way of one token through the model",
        &format!(
            "The last word of \"{PROMPT}\" is token {}. Station 1, embedding, gives four numbers, the residual stream: \
             {}. Layer 0 and layer 1 each add the output of attention (norm, station 2; query, key and value, \
             station 3; attention over the keys and values of all five words, station 4) and of an MLP \
             (norm, station 2; MLP, station 5). Behind layer 1 the stream is {}. A last norm makes {}. Station 6, \
             logits: one number for each of nine words, the largest is {} for {}. Station 7 chooses it.",
            tokens[4],
            shown(&rows[0]),
            shown(&rows[4]),
            shown(&normed),
            two_digits(logits[best]),
            toy.words[best],
        ),
    )
}

/// The weights of the last token of the prompt in layer 0, for each head.
fn weights(toy: &Toy) -> Vec<Vec<f32>> {
    let (model, (kv, slots), x) = (&toy.model, prefill(toy), &stream(toy)[0]);
    let (layer, dim) = (&model.layers[0], model.heads.dim);
    let mut q = layer.q.times(&rms_norm(x, &layer.attn_norm, model.eps));
    let (keys, _) = kv.load(0, &slots);
    let mut heads = Vec::new();
    for (head, q) in q.chunks_exact_mut(dim).enumerate() {
        rope(q, slots.len() - 1, model.rope_theta);
        let from = model.heads.kv_head(head) * dim;
        let dot = |k: &[f32]| q.iter().zip(&k[from..from + dim]).map(|(q, k)| q * k).sum::<f32>();
        let mut weights: Vec<f32> = keys.iter().map(|k| dot(k) / (dim as f32).sqrt()).collect();
        softmax(&mut weights);
        heads.push(weights);
    }
    heads
}

/// What the last token reads in layer 0.
fn attention(toy: &Toy) -> String {
    let mut svg = Svg::new(418);
    let mut description =
        "The last \"the\" reads the five words, with these weights in layer 0.".to_owned();
    for (head, weights) in weights(toy).iter().enumerate() {
        let top = 12 + 200 * head as i32;
        svg.panel([8, top, 764, 194]);
        svg.title(24, top + 38, &format!("layer 0, head {head}"));
        svg.note(24, top + 60, "weights");
        let best = argmax(weights);
        for (i, (word, weight)) in PROMPT.split(' ').zip(weights).enumerate() {
            let x = 160 + 122 * i as i32;
            let width = (f64::from(hundredths(*weight)) * 0.17).max(1.0);
            let (from, to) = ((662 + 20 * i as i32, top + 146), (x + 54, top + 66));
            svg.curve(from, top + 132 - 13 * i as i32, to, width);
            svg.rect([x, top + 16, 108, 50], if i == best { GREEN } else { BLUE });
            svg.middle(x + 54, top + 37, word);
            svg.middle(x + 54, top + 57, &two_digits(*weight));
        }
        svg.label([648, top + 146, 108, 34], GOLD, "the (query)");
        let shown: Vec<String> = weights.iter().map(|weight| two_digits(*weight)).collect();
        description += &format!(" Head {head}: {}.", shown.join(", "));
    }
    svg.finish("Attention of the last token in layer 0", &description)
}

/// The logits and the probabilities behind the prompt.
fn logits(toy: &Toy) -> String {
    let (_, logits) = output(toy);
    let mut probabilities = logits.clone();
    softmax(&mut probabilities);
    let best = argmax(&logits);
    let mut svg = Svg::new(326);
    svg.title(24, 34, "word");
    svg.title(100, 34, "logit");
    svg.title(560, 34, "probability");
    svg.line((330, 46), (330, 312), 1.0, "#444");
    svg.line((634, 46), (634, 312), 1.0, "#444");
    svg.note_middle(330, 34, "0");
    let mut description = format!("Logit and probability of the word behind \"{PROMPT}\".");
    for (i, word) in toy.words.iter().enumerate() {
        let (y, fill) = (50 + 29 * i as i32, if i == best { GREEN } else { BLUE });
        let length = hundredths(logits[i]) * 20 / 100;
        svg.text(24, y + 17, word);
        svg.end(140, y + 17, &two_digits(logits[i]));
        if length != 0 {
            svg.rect([330 + length.min(0), y, length.abs(), 23], fill);
        }
        let percent = format!("{:.1} %", 100.0 * probabilities[i]);
        svg.end(620, y + 17, &percent);
        let length = hundredths(probabilities[i]) * 120 / 100;
        if length != 0 {
            svg.rect([634, y, length, 23], fill);
        }
        description += &format!(" {word}: {}, {percent}.", two_digits(logits[i]));
    }
    svg.finish("Nine logits and their softmax", &description)
}

/// The second output token, without and with a cache.
fn cache(toy: &Toy) -> String {
    let (tokens, stop) = (prompt(toy), [toy.stop()]);
    let with = generate(&toy.model, &tokens, 10, &stop);
    let without = generate_without_cache(&toy.model, &tokens, 10, &stop);
    let all = [&tokens[..], &with.tokens].concat();
    let mut svg = Svg::new(286);
    svg.line((390, 16), (390, 234), 1.0, "#bbb");
    let columns = [("without a KV cache", without.passes), ("with a KV cache", with.passes)];
    for (column, (title, passes)) in columns.into_iter().enumerate() {
        let left = 14 + 386 * column as i32;
        svg.title(left, 34, title);
        let mut counts = Vec::new();
        for i in 0..with.tokens.len() {
            let (y, known) = (74 + 76 * i as i32, tokens.len() + i);
            // With a cache only the tokens behind the previous output are computed.
            let read = if column == 1 && i > 0 { known - 1 } else { 0 };
            counts.push(known - read);
            svg.note(left, y - 8, &format!("output token {}", i + 1));
            for (j, token) in all[..known].iter().enumerate() {
                let fill = if j < read { BLUE } else { GREEN };
                let at = [left + 47 * j as i32, y, 43, 32];
                svg.label(at, fill, &toy.words[*token as usize]);
            }
            let x = left + 47 * known as i32;
            svg.arrow(&[(x - 4, y + 16), (x + 19, y + 16)]);
            svg.label([x + 20, y, 43, 32], GOLD, &toy.words[all[known] as usize]);
        }
        assert_eq!(counts.iter().sum::<usize>(), passes, "the passes that are drawn");
        let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
        svg.title(left, 216, &format!("{} = {passes} passes", counts.join(" + ")));
    }
    svg.legend(14, 248, GREEN, "computed");
    svg.legend(150, 248, BLUE, "keys and values read from the cache");
    svg.legend(480, 248, GOLD, "output token");
    svg.finish(
        "Two output tokens, without and with a KV cache",
        &format!(
            "The prompt is \"{PROMPT}\". Without a cache its {} words are computed for the first output token, and \
             {} words for the second one: {} passes. With a cache only the new word is computed for the second one, \
             and the keys and values of the others are read: {} passes.",
            tokens.len(),
            tokens.len() + 1,
            without.passes,
            with.passes
        ),
    )
}

/// What a request does in a step.
enum Work {
    /// The tokens that are computed, and the one that is chosen.
    Computes {
        words: String,
        chosen: String,
        blocks: Vec<usize>,
        stored: usize,
    },
    Preempted,
    Waits,
    Ended,
}

/// The requests "the cat" and "the dog" in a pool of so many blocks of 4 slots: for each step the work of both.
fn steps(toy: &Toy, blocks: usize) -> Vec<[Work; 2]> {
    let mut engine = Engine::new(toy.model.clone(), blocks, 4, 64);
    engine.stop = vec![toy.stop()];
    for (id, text) in ["the cat", "the dog"].into_iter().enumerate() {
        engine.add(Request::new(id, toy.encode(text).expect("words of the model"), 10));
    }
    let mut steps = Vec::new();
    loop {
        // The plan of the next step, made by a copy: behind the step the blocks may be free again.
        let mut planned = engine.scheduler.clone();
        let rows = planned.plan();
        if rows.is_empty() {
            return steps;
        }
        let preempts = planned.preemptions > engine.scheduler.preemptions;
        let (_, ended) = engine.step();
        steps.push([0, 1].map(|id| {
            let row = rows.iter().find(|row| planned.running[row.request].id == id);
            let Some(row) = row else {
                let waits = planned.waiting.iter().any(|request| request.id == id);
                return match (waits, preempts) {
                    (false, _) => Work::Ended,
                    (true, false) => Work::Waits,
                    (true, true) => Work::Preempted,
                };
            };
            let request = &planned.running[row.request];
            let stored = request.computed + row.tokens;
            let after = engine.scheduler.running.iter().chain(&ended).find(|r| r.id == id);
            Work::Computes {
                words: toy.decode(&request.tokens[request.computed..stored]),
                chosen: toy.decode(&after.expect("it is there").tokens[stored..]),
                blocks: request.table.blocks().to_vec(),
                stored,
            }
        }));
    }
}

/// Colour and name of the requests.
const REQUESTS: [(&str, &str, &str); 2] = [(BLUE, "A", "the cat"), (GOLD, "B", "the dog")];

/// Two requests in one batch.
fn batch(toy: &Toy) -> String {
    let steps = steps(toy, 8);
    let mut svg = Svg::new(308);
    let mut description = "Requests A, \"the cat\", and B, \"the dog\".".to_owned();
    for (row, (_, name, text)) in REQUESTS.into_iter().enumerate() {
        let y = 50 + 96 * row as i32;
        svg.title(16, y + 23, &format!("request {name}"));
        svg.note(16, y + 43, text);
    }
    svg.title(16, 263, "tokens");
    for (i, step) in steps.iter().enumerate() {
        let x = 118 + 132 * i as i32;
        svg.panel([x, 10, 124, 266]);
        svg.note_middle(x + 62, 34, &format!("step {}", i + 1));
        description += &format!(" Step {}:", i + 1);
        let mut tokens = 0;
        for (row, (work, (fill, name, _))) in step.iter().zip(REQUESTS).enumerate() {
            let y = 50 + 96 * row as i32;
            let Work::Computes { words, chosen, .. } = work else { continue };
            tokens += words.split(' ').count();
            svg.label([x + 8, y, 108, 32], fill, words);
            svg.arrow(&[(x + 62, y + 32), (x + 62, y + 47)]);
            svg.label([x + 32, y + 48, 60, 28], GREEN, chosen);
            description += &format!(" {name} computes \"{words}\" and gets \"{chosen}\".");
        }
        svg.middle(x + 62, 263, &tokens.to_string());
    }
    svg.note(118, 296, "upper box: words computed in this step; green: the word that is chosen");
    svg.finish("Two requests in one batch", &description)
}

/// The same in a pool of three blocks.
fn full(toy: &Toy) -> String {
    let (blocks, steps) = (3, steps(toy, 3));
    let mut svg = Svg::new(372);
    let mut description =
        "A pool of three blocks of four slots; requests A, \"the cat\", and B, \"the dog\"."
            .to_owned();
    for block in 0..blocks {
        svg.title(16, 67 + 40 * block, &format!("block {block}"));
    }
    for (row, (_, name, text)) in REQUESTS.into_iter().enumerate() {
        let y = 182 + 74 * row as i32;
        svg.title(16, y + 24, name);
        svg.note(16, y + 44, text);
    }
    for (i, step) in steps.iter().enumerate() {
        let x = 84 + 99 * i as i32;
        svg.panel([x, 10, 95, 314]);
        svg.note_middle(x + 47, 34, &format!("step {}", i + 1));
        description += &format!(" Step {}:", i + 1);
        for block in 0..blocks {
            for slot in 0..4 {
                svg.rect([x + 6 + 21 * slot, 50 + 40 * block, 20, 26], WHITE);
            }
        }
        for (row, (work, (fill, name, _))) in step.iter().zip(REQUESTS).enumerate() {
            let y = 182 + 74 * row as i32;
            let at = [x + 4, y, 87, 58];
            let (fill, lines) = match work {
                Work::Preempted => (RED, vec!["preempted".to_owned()]),
                Work::Waits => (WHITE, vec!["waits".to_owned()]),
                Work::Ended => (WHITE, vec!["ended".to_owned()]),
                Work::Computes { words, blocks, stored, .. } => {
                    for p in 0..*stored {
                        let (block, slot) = (blocks[p / 4] as i32, (p % 4) as i32);
                        svg.label([x + 6 + 21 * slot, 50 + 40 * block, 20, 26], fill, name);
                    }
                    description +=
                        &format!(" {name} has blocks {blocks:?} and computes \"{words}\".");
                    let words: Vec<&str> = words.split(' ').collect();
                    (fill, words.chunks(2).map(|words| words.join(" ")).collect())
                }
            };
            if let [line] = &lines[..]
                && !matches!(work, Work::Computes { .. })
            {
                description += &format!(" {name}: {line}.");
            }
            svg.rect(at, fill);
            for (j, line) in lines.iter().enumerate() {
                let y = y + 34 - 9 * (lines.len() as i32 - 1) + 18 * j as i32;
                svg.middle(x + 47, y, line);
            }
        }
    }
    svg.note(
        84,
        350,
        "above: the slots of each block, by request; below: the words computed in the step",
    );
    svg.finish("Two requests in a pool that is too small", &description)
}
