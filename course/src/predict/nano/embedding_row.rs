//! Where the residual stream of a token begins.

use serde_json::json;

use super::WORDS;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{joined, separated};

pub const KIND: Kind = Kind {
    name: "embedding-row",
    about: "the row of the embedding that a word reads",
    chapter: "one-token.md#station-1-a-word-becomes-a-row-of-numbers",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    // Another vocabulary in each instance: the words are known, their tokens are not.
    let mut left = WORDS[..8].to_vec();
    let vocabulary: Vec<&str> = (0..8).map(|_| left.swap_remove(draw.below(left.len()))).collect();
    let n = draw.between(4, 6);
    let tokens: Vec<usize> = (0..n).map(|_| draw.below(8)).collect();
    let position = draw.between(1, n - 1);
    let token = tokens[position];
    if token == position || token == tokens[position - 1] {
        return self::draw(draw);
    }

    let words: Vec<&str> = tokens.iter().map(|t| vocabulary[*t]).collect();
    let listed: Vec<String> =
        vocabulary.iter().enumerate().map(|(t, word)| format!("{t} {word}")).collect();
    let text = format!(
        "The vocabulary of a tiny model, each token with its word:\n\n{}\n\n\
         The prompt is `{}`.\n\
         Which row of the embedding is the residual stream of the token at position {position}\n\
         before the first layer? Rows and positions are counted from 0.",
        separated(&listed, "   "),
        joined(&words)
    );
    let explanation = format!(
        "The word at position {position} is `{}`, and its token is {token}. The embedding has a\n\
         row for each token of the vocabulary: it is row {token}, at every position.",
        words[position]
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({ "vocabulary": vocabulary, "prompt": joined(&words), "position": position });
    Question::new(text, whole(token), explanation, facts)
        .mistake(whole(position), "that is the position; the row is the one of the token")
        .mistake(whole(tokens[position - 1]), "that is the word before: positions begin at 0")
        .mistake(whole(token + 1), "tokens and rows are counted from 0")
        .mistake(whole(tokens[n - 1]), "that is the row of the last word of the prompt")
}
