//! Whether a request has a shadow, and for which reason.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "shadow-reason",
    about: "why a request has a shadow, or none",
    chapter: "l6-ensemble/shadows.md",
    draw,
};

#[derive(Clone, Copy)]
struct Case {
    tools: bool,
    choices: usize,
    up: bool,
    scale: usize,
    high_stakes: bool,
    demoted: bool,
    fresh: bool,
    score: usize,
    below: usize,
    wait: usize,
}

impl Case {
    fn decision(&self) -> &'static str {
        let reason = match () {
            () if self.tools => return "tools",
            () if self.choices > 1 => return "several_choices",
            () if !self.up => return "no_second_lane",
            () if self.scale == 0 => return "escalation",
            () if self.high_stakes => "high_stakes",
            () if self.demoted => "demoted",
            () if self.score < self.below => "low_score",
            () if self.fresh => "fresh",
            () => return "confident",
        };
        if self.wait > 1 { "second_lane_busy" } else { reason }
    }
}

fn draw(draw: &mut Draw) -> Question {
    let case = Case {
        tools: draw.one_in(8),
        choices: if draw.one_in(8) { draw.between(2, 3) } else { 1 },
        up: !draw.one_in(9),
        scale: draw.pick(&[0, 1, 1, 1, 1, 1, 1, 1]),
        high_stakes: draw.one_in(4),
        demoted: draw.one_in(4),
        fresh: draw.one_in(3),
        score: draw.between(1, 19),
        below: draw.pick(&[6, 10, 18]),
        wait: draw.pick(&[0, 0, 0, 0, 2, 5]),
    };
    let right = case.decision();

    let not = |yes: bool, text: &str| if yes { text.to_owned() } else { String::new() };
    let text = wrapped(&format!(
        "A request with {} is routed with a score of {}; shadow_below is {}.{}{} The second choice {}{}{}, and \
             a request would wait {} s there; max_queue is 1 s. Both fractions are 1, and the \
             escalation's shadow_scale is {}. What is the decision: which reason for a shadow \
             (high_stakes, demoted, low_score, fresh), or which against it (tools, several_choices, \
             no_second_lane, escalation, confident, second_lane_busy)?",
        if case.choices > 1 { format!("n = {}", case.choices) } else { "one choice".into() },
        case.score as f64 / 20.0,
        case.below as f64 / 20.0,
        not(case.tools, " It has tools."),
        not(case.high_stakes, " Its client flagged it as high-stakes."),
        if case.up { "runs" } else { "is down" },
        not(case.demoted, ", is demoted"),
        not(case.fresh, ", is fresh"),
        case.wait,
        case.scale,
    ));
    let explanation = format!(
        "Asked in this order: tools, choices, the second lane, the escalation; then the\n\
         reasons high_stakes, demoted, low_score, fresh; last whether the second lane\n\
         has time. So: {right}."
    );
    let name = |decision: &str| Answer::Name("", decision.to_owned());
    let with = |change: &dyn Fn(&mut Case)| {
        let mut case = case;
        change(&mut case);
        name(case.decision())
    };
    let facts = json!({
        "tools": case.tools, "n": case.choices, "up": case.up, "scale": case.scale,
        "high_stakes": case.high_stakes, "demoted": case.demoted, "fresh": case.fresh,
        "score": case.score, "below": case.below, "wait": case.wait,
    });
    Question::new(text, name(right), explanation, facts)
        .mistake(with(&|case| case.tools = false), "a call of a tool could be executed twice")
        .mistake(
            with(&|case| case.choices = 1),
            "with several choices there is no pair of responses to compare",
        )
        .mistake(with(&|case| case.up = true), "no engine of the second lane lives")
        .mistake(with(&|case| case.scale = 1), "the escalation has turned shadows off")
        .mistake(with(&|case| case.wait = 0), "the second lane would be delayed by it")
        .mistake(with(&|case| case.high_stakes = false), "what a client flags is the first reason")
        .mistake(with(&|case| case.demoted = false), "a demoted lane comes before the score")
        .mistake(
            with(&|case| case.score = 19 - usize::from(case.score < case.below)),
            "compare the score with the threshold",
        )
        .mistake(with(&|case| case.score = 0), "its score is not below the threshold")
        .mistake(with(&|case| case.fresh = false), "a fresh lane is watched")
        .mistake(name("confident"), "there is a reason, or something that forbids it")
        .mistake(name("low_score"), "go through the list from its beginning")
}
