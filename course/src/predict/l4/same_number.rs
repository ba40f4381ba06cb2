//! What names a random number.

use serde_json::json;

use super::drawn::Table;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "same-number",
    about: "whether two draws get the same number",
    chapter: "l4-sampler/philox.md",
    draw,
};

/// What a number is for, in the order of the generator's purposes.
const PURPOSES: [&str; 4] = ["draw", "accept", "residual", "bonus"];

/// A random number that a question asks for, with its context.
#[derive(Clone, Copy)]
struct Wanted {
    seed: usize,
    sample: usize,
    prompt: usize,
    answered: usize,
    purpose: usize,
    rows: usize,
    row: usize,
    temperature: &'static str,
}

impl Wanted {
    fn position(&self) -> usize {
        self.prompt + self.answered
    }

    fn key(&self) -> [usize; 4] {
        [self.seed, self.sample, self.position(), self.purpose]
    }
}

fn draw(draw: &mut Draw) -> Question {
    let first = Wanted {
        seed: draw.between(1, 99),
        sample: draw.below(3),
        prompt: draw.between(8, 30),
        answered: draw.between(3, 9),
        purpose: draw.pick(&[0, 0, 1, 2, 3]),
        rows: 1,
        row: 0,
        temperature: "0.7",
    };
    let mut second = first;
    // What no key holds may always differ.
    second.rows = draw.between(2, 8);
    second.row = draw.below(second.rows);
    second.temperature = draw.pick(&["0.7", "1", "1.3"]);
    let moved = draw.between(1, 3);
    match draw.below(9) {
        0 => second.seed += draw.between(1, 5),
        1 => second.sample += 1,
        2 => second.answered -= moved,
        3 => second.prompt += moved,
        4 => second.purpose = (first.purpose + draw.between(1, 3)) % 4,
        // Another prompt, another token of the answer, and the same place in the sequence.
        5 | 6 => {
            second.prompt += moved;
            second.answered -= moved;
        }
        _ => {}
    }

    let same = first.key() == second.key();
    let both = [first, second];
    let table = Table::new()
        .row("", &["first", "second"])
        .row("seed", &both.map(|w| w.seed))
        .row("sample", &both.map(|w| w.sample))
        .row("tokens of the prompt", &both.map(|w| w.prompt))
        .row("tokens answered before", &both.map(|w| w.answered))
        .row("purpose", &both.map(|w| PURPOSES[w.purpose]))
        .row("temperature", &both.map(|w| w.temperature))
        .row("row in the batch", &both.map(|w| format!("{} of {}", w.row, w.rows)));
    let text = format!("Two random numbers are looked up:\n\n{table}\n\nIs it the same number?");
    let why = match (0..4).find(|field| first.key()[*field] != second.key()[*field]) {
        None => "All four are the same. Who else is in the batch, the temperature, and how much\n\
             of the position is prompt are in no key."
            .to_string(),
        Some(field) => {
            let name = ["seed", "sample", "position", "purpose"][field];
            format!("The {name} differs: the numbers have nothing to do with each other.")
        }
    };
    let explanation = format!(
        "A number's key is seed, sample, position and purpose; the position is the\n\
         place in the sequence: {} + {} = {} and {} + {} = {}.\n{}",
        first.prompt,
        first.answered,
        first.position(),
        second.prompt,
        second.answered,
        second.position(),
        why
    );
    let facts = json!({
        "seeds": both.map(|w| w.seed), "samples": both.map(|w| w.sample),
        "positions": both.map(|w| w.position()), "purposes": both.map(|w| w.purpose),
    });
    let mistake = match (same, first.prompt == second.prompt) {
        (true, true) => "only seed, sample, position and purpose name a number",
        (true, false) => "the position counts from the beginning of the prompt: it is the same",
        (false, _) => "seed, sample, position and purpose must all be the same",
    };
    Question::new(text, Answer::Yes(same), explanation, facts).mistake(Answer::Yes(!same), mistake)
}
