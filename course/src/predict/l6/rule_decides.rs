//! Which tripwire decides the lane of a request.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::l5::drawn::table;

pub const KIND: Kind = Kind {
    name: "rule-decides",
    about: "which tripwire decides, or none",
    chapter: "l6-ensemble/router.md",
    draw,
};

/// In the order in which they decide.
const REPORTS: [&str; 3] = ["sanitizer_report", "linker_error", "compiler_error"];

/// Each is of another lane.
const DENSITIES: [&str; 4] = ["concurrency_code", "memory_code", "stl_code", "algo_code"];

/// A tripwire and its strength, in quarters.
type Found = (&'static str, usize);

fn draw(draw: &mut Draw) -> Question {
    let quarters = |draw: &mut Draw| draw.between(2, 12);
    let mut reports: Vec<Found> = Vec::new();
    if draw.one_in(3) {
        let skip = draw.below(REPORTS.len());
        for name in REPORTS {
            if name != REPORTS[skip] {
                reports.push((name, draw.between(2, 8)));
            }
        }
    }
    let skip = draw.below(DENSITIES.len());
    let mut densities: Vec<Found> = Vec::new();
    for name in DENSITIES {
        if name != DENSITIES[skip] {
            densities.push((name, quarters(draw)));
        }
    }
    let margin = draw.pick(&[5, 6, 8]);

    let fired = |all: &[Found]| -> Vec<Found> {
        all.iter().copied().filter(|(_, strength)| *strength >= 4).collect()
    };
    let strongest = |all: &[Found]| all.iter().copied().max_by_key(|(_, strength)| *strength);
    let report = fired(&reports).first().copied();
    let dense = fired(&densities);
    let best = strongest(&dense);
    let clear = |best: Found, others: &[Found]| {
        let others = others.iter().filter(|other| other.0 != best.0);
        others
            .into_iter()
            .all(|(_, strength)| strength * margin <= best.1 * 4 && *strength < best.1)
    };
    let name =
        |found: Option<Found>| Answer::Name("", found.map_or("none", |(name, _)| name).to_owned());
    let right = report.or(best.filter(|best| clear(*best, &dense)));

    let all: Vec<Found> = reports.iter().chain(&densities).copied().collect();
    let shown = |quarters: usize| format!("{}", quarters as f64 / 4.0);
    let rows: Vec<Vec<String>> =
        all.iter().map(|(name, strength)| vec![(*name).to_owned(), shown(*strength)]).collect();
    let text = format!(
        "These tripwires found something in a request (reports come first, and each\n\
         density is of another lane). The margin is {}.\n\n{}\n\n\
         Which tripwire decides? (none, if it is left to the classifier)",
        shown(margin),
        table(&["tripwire", "strength"], &rows)
    );
    let mut explanation = String::from("Only a strength of 1 or more has fired.\n");
    explanation += &match (report, best) {
        (Some((name, _)), _) => format!("The first report that fired decides: {name}."),
        (None, None) => "None of them has, so none decides.".to_owned(),
        (None, Some((name, strength))) => format!(
            "The strongest density is {name} with {}.\n\
             To decide, it must be stronger than each other that fired,\n\
             and at least {} times as strong: {}.",
            shown(strength),
            shown(margin),
            if right.is_some() { "it is" } else { "it is not, so none decides" }
        ),
    };
    let facts = json!({ "found": all, "margin": margin });
    let question = Question::new(text, name(right), explanation, facts);
    question
        .mistake(name(strongest(&all)), "a report that fired decides before any density")
        .mistake(
            name(strongest(&fired(&reports))),
            "of several reports the first decides, however strong the others are",
        )
        .mistake(name(reports.first().copied()), "a strength below 1 has not fired")
        .mistake(name(best), "the strongest must be clear of the next one by the margin")
        .mistake(
            name(best.filter(|best| clear(*best, &densities))),
            "a density that has not fired is in no one's way",
        )
        .mistake(name(None), "it fired, and it is clear of the others by the margin")
}
