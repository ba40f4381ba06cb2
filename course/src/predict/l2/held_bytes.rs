//! What an incremental detokenizer holds back.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::hex;

pub const KIND: Kind = Kind {
    name: "held-bytes",
    about: "what a stream of text holds back",
    chapter: "l2-model/tokenizers.md",
    draw,
};

/// One to four bytes each.
const CHARACTERS: [&str; 10] = [
    "a",
    "K",
    "!",
    "\u{e9}",
    "\u{df}",
    "\u{4e16}",
    "\u{754c}",
    "\u{20ac}",
    "\u{1f600}",
    "\u{1f980}",
];

fn draw(draw: &mut Draw) -> Question {
    let mut bytes: Vec<u8> = Vec::new();
    let count = draw.between(3, 5);
    for _ in 0..count {
        let from = if draw.one_in(3) { &CHARACTERS[..3] } else { &CHARACTERS[3..] };
        let c = draw.pick(from);
        bytes.extend(c.as_bytes());
    }
    if draw.one_in(3) {
        // A model may stop in the middle of a character.
        bytes.pop();
    }
    let mut tokens: Vec<Vec<u8>> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let n = draw.between(1, 3).min(bytes.len() - at);
        tokens.push(bytes[at..at + n].to_vec());
        at += n;
    }

    let mut lines = String::new();
    let mut why = Vec::new();
    let (mut held, mut seen) = (Vec::new(), Vec::new());
    for (i, token) in tokens.iter().enumerate() {
        seen.extend(token);
        let waits = unfinished(&seen);
        lines += &format!("token {i}: {}\n", hex(token));
        let head = &seen[seen.len() - waits..];
        why.push(match waits {
            0 => format!("after token {i}: all of it is whole characters, 0 held"),
            n => format!(
                "after token {i}: {} begins a character of {} bytes, {n} held",
                hex(head),
                length(head[0])
            ),
        });
        held.push(waits as i64);
    }
    let text = format!(
        "A byte-level tokenizer; the model makes tokens of these bytes:\n\n{lines}\n\
         The detokenizer sends whole characters as soon as it has them. How many bytes\n\
         does it hold back after each token?"
    );
    let explanation = format!(
        "The first byte of a character says how long it is: 00 to 7f one byte, c2 to df\n\
         two, e0 to ef three, f0 to f4 four; 80 to bf go on with one.\n{}",
        why.join("\n")
    );
    let list = |held: Vec<i64>| Answer::List(held);
    let facts = json!({ "tokens": tokens, "held": held });
    let zeros = vec![0; tokens.len()];
    // Decoding each token alone, and keeping what is not a character in it.
    let alone: Vec<i64> = tokens
        .iter()
        .map(|token| std::str::from_utf8(token).map_or(token.len() as i64, |_| 0))
        .collect();
    let (mut sent, mut missing) = (Vec::new(), Vec::new());
    for (i, waits) in held.iter().enumerate() {
        let seen = tokens[..=i].concat();
        let head = seen.get(seen.len() - *waits as usize);
        sent.push(seen.len() as i64 - waits);
        missing.push(head.map_or(0, |first| length(*first) as i64 - waits));
    }
    Question::new(text, list(held), explanation, facts)
        .mistake(list(zeros), "a token may end in the middle of a character")
        .mistake(
            list(alone),
            "a character may begin in one token and end in the next: join the bytes",
        )
        .mistake(list(sent), "those are the bytes that were sent")
        .mistake(list(missing), "those are the bytes that the character still lacks")
}

/// How many bytes at the end are the head of a character that is not complete.
fn unfinished(bytes: &[u8]) -> usize {
    let tail = bytes.iter().rev().take_while(|b| **b & 0xc0 == 0x80).count();
    match bytes.len().checked_sub(tail + 1) {
        Some(first) if length(bytes[first]) > tail + 1 => tail + 1,
        _ => 0,
    }
}

/// How long a character is, by its first byte.
fn length(first: u8) -> usize {
    match first {
        0x00..=0x7f => 1,
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        _ => 4,
    }
}
