//! How many of those who wait begin in a step.

use serde_json::json;

use super::drawn::{blocks, counted};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{commas, wrapped};

pub const KIND: Kind = Kind {
    name: "admitted-now",
    about: "how many waiting requests begin in a step",
    chapter: "l5-scheduler/admission.md",
    draw,
};

#[derive(Clone, Copy)]
struct State {
    block_size: usize,
    free: usize,
    running: usize,
    seats: usize,
    budget: usize,
    /// Blocks that stay free beside others.
    keep: usize,
}

/// What stops the queue.
#[derive(Clone, Copy, PartialEq)]
enum Limit {
    Nothing,
    Tokens,
    Seats,
    Blocks,
}

impl State {
    /// How many begin, and what stops the next one. `overtakes`: whether those behind are asked
    /// all the same.
    fn admit(self, prompts: &[usize], overtakes: bool) -> (usize, Limit, Vec<String>) {
        let Self { block_size, mut free, running, seats, mut budget, keep } = self;
        let (mut n, mut limit, mut lines) = (0, Limit::Nothing, Vec::new());
        for (i, prompt) in prompts.iter().enumerate() {
            let whole = blocks(*prompt, block_size);
            let keep = if running + n == 0 { 0 } else { keep };
            let stops = match () {
                () if budget == 0 => Limit::Tokens,
                () if running + n == seats => Limit::Seats,
                () if whole + keep > free => Limit::Blocks,
                () => Limit::Nothing,
            };
            if stops == Limit::Nothing {
                let len = (*prompt).min(budget);
                let takes = blocks(len, block_size);
                lines.push(format!(
                    "prompt {i}: {whole} of {free} free blocks{}, and {len} of {budget} tokens",
                    if takes < whole {
                        format!(" must be there, it takes {takes}")
                    } else {
                        String::new()
                    }
                ));
                (free, budget, n) = (free - takes, budget - len, n + 1);
                continue;
            }
            let why = match stops {
                Limit::Tokens => "no tokens are left".into(),
                Limit::Seats => "no seat is left".into(),
                _ if keep > 0 => format!("{whole} + {keep} blocks, and {free} are free"),
                _ => format!("{whole} blocks, and {free} are free"),
            };
            if limit == Limit::Nothing {
                lines.push(format!("prompt {i}: {why}; so it waits, and all behind it"));
                limit = stops;
            }
            if !overtakes {
                break;
            }
        }
        (n, limit, lines)
    }
}

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 8]);
    let running = draw.between(0, 3);
    let held = if running == 0 { 0 } else { running + draw.between(0, 3) };
    let free = draw.between(4, 12);
    let state = State {
        block_size,
        free,
        running,
        seats: running + draw.between(2, 5),
        budget: (running + draw.between(3, 8) * block_size).max(held * block_size + 3),
        keep: if draw.one_in(3) { draw.between(1, 3) } else { 0 },
    };
    // Those who run write a token each, into blocks that they have.
    let after = State { budget: state.budget - running, ..state };
    let n = draw.between(3, 5);
    let prompts: Vec<usize> = (0..n).map(|_| draw.between(3, 4 * block_size)).collect();
    let (right, limit, lines) = after.admit(&prompts, false);

    let watermark = match state.keep {
        0 => String::new(),
        k => format!(" The watermark keeps {} free.", counted(k, "block")),
    };
    let writes = match running {
        0 => "No request runs.".into(),
        1 => "One request runs; it writes a token, for which it has room.".into(),
        n => format!("{n} requests run; each writes a token, for which it has room."),
    };
    let text = format!(
        "{}\n\nprompts that wait: {}\n\nHow many of them are admitted in the next step?",
        wrapped(&format!(
            "Blocks of {block_size} tokens, {free} of them free; {} seats, {} tokens a step, fcfs, chunked prefill, \
             scheduler_reserve_full_isl.{watermark} {writes} Nothing is cached.",
            state.seats, state.budget
        )),
        commas(&prompts)
    );
    let mut explanation = match running {
        0 => String::new(),
        n => format!("Those who run take {n} of {} tokens.\n", state.budget),
    };
    explanation += &lines.join("\n");
    explanation += &format!("\nadmitted: {right}");
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "block_size": block_size, "free": free, "running": running, "held": held,
        "seats": state.seats, "budget": state.budget, "keep": state.keep, "prompts": prompts,
    });
    let of = |state: State, overtakes: bool| whole(state.admit(&prompts, overtakes).0);
    Question::new(text, whole(right), explanation, facts)
        .mistake(
            of(after, true),
            "no overtaking: a request that does not fit holds up those behind",
        )
        .mistake(of(State { keep: 0, ..after }, false), "the watermark stays free beside others")
        .mistake(of(State { seats: usize::MAX, ..after }, false), "there are no more seats")
        .mistake(of(State { free: usize::MAX, ..after }, false), "there are no more blocks")
        .mistake(
            of(State { budget: usize::MAX, ..after }, false),
            "when a step's tokens are used up, no other request begins",
        )
        .mistake(
            whole(right.saturating_sub(1)),
            match limit {
                Limit::Tokens => "the last one begins, with the tokens that are left",
                _ => "one more begins: it has blocks, a seat and tokens",
            },
        )
        .mistake(whole(prompts.len()), "not all of them fit")
}
