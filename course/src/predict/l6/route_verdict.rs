//! Which lane the classifier gives a request, or that it rejects it.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::l5::drawn::table;

pub const KIND: Kind = Kind {
    name: "route-verdict",
    about: "the lane that the classifier chooses, or none",
    chapter: "l6-ensemble/router.md",
    draw,
};

const LANES: [&str; 3] = ["stl", "memory", "debug"];

fn draw(draw: &mut Draw) -> Question {
    // Each class has the lane of its name; a fourth one is served by one of those.
    let (percents, home, min) = loop {
        let percents: Vec<usize> = (0..4).map(|_| draw.between(3, 34)).collect();
        let home = draw.below(LANES.len());
        let min = draw.pick(&[20, 25, 30, 40]);
        let lanes = added(&percents, home);
        let mut sorted = lanes.clone();
        sorted.sort_unstable();
        let rest = 100_usize.saturating_sub(percents.iter().sum());
        let clear = |a: usize, b: usize| a.abs_diff(b) > 1;
        // No sum may be at a threshold: it would depend on how numbers are rounded.
        if rest > 2
            && clear(sorted[2], sorted[1])
            && clear(sorted[2], rest)
            && clear(sorted[2], min)
        {
            break (percents, home, min);
        }
    };
    let rest = 100 - percents.iter().sum::<usize>();
    let lanes = added(&percents, home);
    let best = (0..3).max_by_key(|i| lanes[*i]).unwrap_or(0);
    let served = lanes[best] >= min && lanes[best] > rest;

    let mut rows: Vec<Vec<String>> = LANES
        .iter()
        .zip(&percents)
        .map(|(class, p)| vec![(*class).to_owned(), (*class).to_owned(), format!("{p}%")])
        .collect();
    rows.push(vec!["algo".to_owned(), LANES[home].to_owned(), format!("{}%", percents[3])]);
    rows.push(vec!["reject".to_owned(), "-".to_owned(), format!("{rest}%")]);
    let text = format!(
        "No rule decides. The classifier's probabilities are\n\n{}\n\n\
         and min_score is {min}%. Which lane serves the request, or is it rejected?",
        table(&["class", "lane", "probability"], &rows)
    );
    let explanation = format!(
        "The classes of a lane are added: {} {}%, {} {}%, {} {}%.\n\
         The best is {} with {}%; min_score is {min}%.\n\
         Text that no lane serves has {rest}%.\n\
         So {}.",
        LANES[0],
        lanes[0],
        LANES[1],
        lanes[1],
        LANES[2],
        lanes[2],
        LANES[best],
        lanes[best],
        if served { format!("{} serves it", LANES[best]) } else { "it is rejected".to_owned() },
    );
    let name = |name: &str| Answer::Name("", name.to_owned());
    let right = name(if served { LANES[best] } else { "rejected" });
    let single = (0..3).max_by_key(|i| percents[*i]).unwrap_or(0);
    let facts = json!({ "percents": percents, "home": home, "reject": rest, "min": min });
    Question::new(text, right, explanation, facts)
        .mistake(
            name(LANES[best]),
            if lanes[best] < min {
                "its probability is below min_score"
            } else {
                "text that no lane serves is more probable than the best lane"
            },
        )
        .mistake(name(LANES[single]), "the probabilities of the classes of a lane are added")
        .mistake(
            name("rejected"),
            "the best lane has enough, and more than text that no lane serves",
        )
}

/// Percent of each lane, when the fourth class is served by lane `home`.
fn added(percents: &[usize], home: usize) -> Vec<usize> {
    (0..3).map(|i| percents[i] + if i == home { percents[3] } else { 0 }).collect()
}
