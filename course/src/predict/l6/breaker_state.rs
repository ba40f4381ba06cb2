//! The state of a breaker after a verdict.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "breaker-state",
    about: "closed, open or on probation",
    chapter: "l6-ensemble/breaker.md",
    draw,
};

const TRIP: usize = 60;
const RESET: usize = 80;

struct Case {
    state: &'static str,
    since: usize,
    count: usize,
    passed: usize,
    min: usize,
    dwell: usize,
    probation: usize,
}

impl Case {
    /// The state after the last verdict.
    fn next(&self) -> &'static str {
        if self.count < self.min || self.since < self.dwell {
            return self.state;
        }
        let (low, high) = (self.low(TRIP), !self.low(RESET));
        match self.state {
            "closed" | "probation" if low => "open",
            "open" if high => "probation",
            "probation" if high && self.since >= self.probation => "closed",
            state => state,
        }
    }

    /// Whether the pass rate is below so many percent.
    fn low(&self, percent: usize) -> bool {
        self.passed * 100 < percent * self.count
    }
}

fn draw(draw: &mut Draw) -> Question {
    let state = draw.pick(&["closed", "open", "probation", "probation"]);
    let (min, dwell) = (10, draw.pick(&[30, 60, 90]));
    let probation = 2 * dwell;
    let count = draw.pick(&[5, 8, 10, 20, 20, 25]);
    let percent = draw.pick(&[20, 40, 50, 60, 70, 80, 80, 90, 100]);
    let passed = count * percent / 100;
    let since = dwell * draw.pick(&[5, 10, 12, 15, 20, 25, 30]) / 10;
    let case = Case { state, since, count, passed, min, dwell, probation };
    let right = case.next();

    let text = wrapped(&format!(
        "A breaker trips below {TRIP}% and resets from {RESET}% on, with at least {min} verdicts; its dwell is {dwell} s, its \
         probation {probation} s. It has been {} for {since} s, and since then {count} verdicts came, of which {passed} passed: \
         all in the first seconds but the last one, which comes now. Is it closed, open or on probation \
         after that? (answer closed, open or probation)",
        if state == "probation" { "on probation" } else { state }
    ));
    let rate = format!("{passed} of {count} is {:.0}%", 100.0 * passed as f64 / count as f64);
    let explanation = match () {
        () if count < min => format!("{count} verdicts are fewer than {min}: it stays {state}"),
        () if since < dwell => format!("{since} s are less than the dwell: it stays {state}"),
        () if state == "probation" && !case.low(RESET) && since < probation => {
            format!("{rate}, but {since} s are less than its probation: it stays so")
        }
        () if right == state => format!("{rate}: that changes nothing, it stays {state}"),
        () => format!("{rate}, and {since} s have passed: it is {right}"),
    };
    let name = |state: &str| Answer::Name("", state.to_owned());
    let with = |change: &dyn Fn(&mut Case)| {
        let mut case = Case { ..case };
        change(&mut case);
        name(case.next())
    };
    let facts = json!({
        "state": state, "since": since, "count": count, "passed": passed, "dwell": dwell,
    });
    let other = match right {
        "closed" => ["open", "probation"],
        "open" => ["probation", "closed"],
        _ => ["open", "closed"],
    };
    Question::new(text, name(right), explanation, facts)
        .mistake(with(&|case| case.min = 1), "there are too few verdicts for a rate")
        .mistake(with(&|case| case.since += case.dwell), "its dwell is not over")
        .mistake(with(&|case| case.probation = case.dwell), "its probation is not over")
        .mistake(
            with(&|case| case.passed += case.count / 4),
            "that rate is between the levels, and changes nothing",
        )
        .mistake(
            name(other[0]),
            "look at the state it is in: which rate leads out of it, and to where?",
        )
        .mistake(name(other[1]), "one verdict makes one transition, and only to a neighbour")
}
