//! Who goes with a request that is freed in the middle of a step.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::commas;

pub const KIND: Kind = Kind {
    name: "replanned",
    about: "who must be planned again with a victim",
    chapter: "l3-paged-kv/steps.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let requests = draw.between(4, 6);
    // Whose blocks each one hits; request 1 computes all of its own.
    let mut parents: Vec<Option<usize>> = vec![None];
    for r in 2..=requests {
        let fresh = r > 2 && draw.one_in(4);
        parents.push((!fresh).then(|| draw.between(1, r - 1)));
    }
    let depends = |r: usize, on: usize| {
        let mut at = r;
        while let Some(parent) = parents[at - 1] {
            if parent == on {
                return true;
            }
            at = parent;
        }
        false
    };
    // At least one request depends on the victim: request 2 on request 1.
    let with_some: Vec<usize> =
        (1..requests).filter(|v| (1..=requests).any(|r| depends(r, *v))).collect();
    let victim = draw.pick(&with_some);

    let gone: Vec<usize> = (1..=requests).filter(|r| depends(*r, victim)).collect();
    let (mut lines, mut why) = (String::new(), String::new());
    for (r, parent) in (1..).zip(&parents) {
        lines += &match parent {
            Some(p) => format!("request {r} hits every block of request {p}'s prompt\n"),
            None => format!("request {r} hits nothing\n"),
        };
        if gone.contains(&r) {
            let p = parent.unwrap_or_default();
            why += &format!("request {r} counts on blocks of request {p}\n");
        }
    }
    let text = format!(
        "One step admits these requests, and each computes two more blocks of its own:\n\n{lines}\n\
         Before the step runs, request {victim} is freed. Which others are freed with it\n\
         and must be planned again?"
    );
    let explanation = format!(
        "Request {victim}'s blocks will not be computed, so requests that share them cannot\n\
         run, nor can those that share theirs.\n{why}So {}.",
        commas(&gone)
    );
    let rows = |requests: Vec<usize>| Answer::Rows(requests.iter().map(|r| *r as i64).collect());
    let facts = json!({ "parents": parents, "victim": victim });
    let direct = (1..=requests).filter(|r| parents[r - 1] == Some(victim)).collect();
    let mut itself = vec![victim];
    itself.extend(&gone);
    let up: Vec<usize> = (1..=requests).filter(|r| depends(victim, *r)).collect();
    let later = (victim + 1..=requests).collect();
    Question::new(text, rows(gone), explanation, facts)
        .mistake(rows(direct), "and those who hit blocks of these, and so on")
        .mistake(rows(later), "who counts on none of its blocks stays")
        .mistake(rows(itself), "the others are asked for; it was freed itself")
        .mistake(rows(vec![]), "a pending block is not computed when its request is freed")
        .mistake(rows(up), "those are the ones it counts on; their blocks are computed")
}
