//! What is left to choose from.

use serde_json::json;

use super::drawn::{ids, listed};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::commas;

pub const KIND: Kind = Kind {
    name: "may-be-chosen",
    about: "tokens that bans, ends and a guide leave",
    chapter: "l4-sampler/bans.md",
    draw,
};

const VOCAB: usize = 10;

fn draw(draw: &mut Draw) -> Question {
    let end = draw.pick(&[0, VOCAB - 1]);
    let allowed = draw.one_in(2).then(|| with(ids(draw, 6, VOCAB), end));
    let guide = (allowed.is_none() || draw.one_in(3)).then(|| with(ids(draw, 6, VOCAB), end));
    let banned = ids(draw, 2, VOCAB);
    // A push up and a push down: the first on a banned token sometimes, to see who wins.
    let up = if draw.one_in(2) { banned[draw.below(2)] } else { draw.below(VOCAB) };
    let down = (up + draw.between(1, VOCAB - 1)) % VOCAB;
    let never = draw.one_in(3);
    let min_tokens = draw.between(2, 5);
    let answered = (min_tokens + draw.below(2)).saturating_sub(draw.below(2));

    let too_early = answered < min_tokens;
    let said = Said { allowed, guide, banned, up, down, never, end, too_early };
    let left = said.left(Turn::Right);
    // An empty answer is an error of its own, and nothing to list.
    if left.is_empty() {
        return self::draw(draw);
    }

    let mut lines = vec![format!("banned_tokens  {}", commas(&said.banned))];
    if let Some(allowed) = &said.allowed {
        lines.push(format!("allowed_tokens {}", commas(allowed)));
    }
    let low = if said.never { "-inf" } else { "-3" };
    lines.push(format!("logit_bias     +50 for token {}, {low} for token {}", said.up, said.down));
    lines.push(format!("min_tokens     {min_tokens}; the answer has {answered}"));
    if let Some(guide) = &said.guide {
        lines.push(format!("guide          allows {}", commas(guide)));
    }
    let text = format!(
        "A vocabulary of {VOCAB} tokens, 0 to {}, of which {end} ends an answer. All logits are\n\
         finite. A request says:\n\n{}\n\n\
         Which tokens may be chosen next? In ascending order.",
        VOCAB - 1,
        lines.join("\n")
    );
    let mut why = Vec::new();
    if let Some(allowed) = &said.allowed {
        why.push(format!("allowed: {}", listed(allowed)));
    }
    if let Some(guide) = &said.guide {
        why.push(format!("the guide allows: {}", listed(guide)));
    }
    why.push(format!("banned, whatever their bias: {}", listed(&said.banned)));
    why.push(if said.never {
        format!("a bias of -inf is a ban: {}", said.down)
    } else {
        format!("a finite bias only makes a token rarer: {} is not banned by it", said.down)
    });
    why.push(if too_early {
        format!("{answered} < {min_tokens} tokens: {end} may not end the answer yet")
    } else {
        format!("{answered} tokens are enough for min_tokens {min_tokens}: {end} is as any other")
    });
    why.push(format!("A token must pass all of it; left are {}.", listed(&left)));
    let facts = json!({
        "vocab": VOCAB, "allowed": said.allowed, "guide": said.guide, "banned": said.banned,
        "up": said.up, "down": said.down, "never": said.never, "end": end,
        "min_tokens": min_tokens, "answered": answered,
    });
    let wrong = |turn: Turn| Answer::Rows(said.left(turn));
    Question::new(text, Answer::Rows(left), why.join("\n"), facts)
        .mistake(wrong(Turn::BiasWins), "a ban beats any bias: it is no matter of how much")
        .mistake(
            wrong(Turn::EndsFree),
            "before min_tokens no token may be chosen that ends the answer",
        )
        .mistake(wrong(Turn::EndsNever), "once there are min_tokens tokens, the end may be chosen")
        .mistake(wrong(Turn::LowIsBanned), "a finite bias bans nothing, it makes a token rarer")
        .mistake(wrong(Turn::LowIsFree), "a bias of -inf is a ban")
        .mistake(wrong(Turn::NoGuide), "what the guide does not allow cannot be chosen either")
        .mistake(wrong(Turn::NoBans), "banned tokens are out even where they are allowed")
        .mistake(wrong(Turn::NoAllowed), "allowed_tokens is the whole choice: nothing beside it")
}

/// The ids and the end token, so that it matters whether the answer may end.
fn with(mut ids: Vec<usize>, end: usize) -> Vec<usize> {
    ids.push(end);
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// A request, as far as it matters here.
struct Said {
    allowed: Option<Vec<usize>>,
    guide: Option<Vec<usize>>,
    banned: Vec<usize>,
    up: usize,
    down: usize,
    never: bool,
    end: usize,
    too_early: bool,
}

/// How a reader goes through it.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    Right,
    BiasWins,
    EndsFree,
    EndsNever,
    LowIsBanned,
    LowIsFree,
    NoGuide,
    NoBans,
    NoAllowed,
}

impl Said {
    fn left(&self, turn: Turn) -> Vec<i64> {
        let holds = |set: &Option<Vec<usize>>, id| set.as_ref().is_none_or(|s| s.contains(&id));
        let passes = |id: &usize| {
            let banned = self.banned.contains(id) && turn != Turn::NoBans;
            let low = *id == self.down
                && (self.never && turn != Turn::LowIsFree || turn == Turn::LowIsBanned);
            let ends = *id == self.end
                && (self.too_early && turn != Turn::EndsFree || turn == Turn::EndsNever);
            let free = !banned || turn == Turn::BiasWins && *id == self.up;
            free && !low
                && !ends
                && (turn == Turn::NoAllowed || holds(&self.allowed, *id))
                && (turn == Turn::NoGuide || holds(&self.guide, *id))
        };
        (0..VOCAB).filter(passes).map(|id| id as i64).collect()
    }
}
