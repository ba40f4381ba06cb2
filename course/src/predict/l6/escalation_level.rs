//! The level of escalation after some observations.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::joined;

pub const KIND: Kind = Kind {
    name: "escalation-level",
    about: "the level after an overload",
    chapter: "l6-ensemble/escalation.md",
    draw,
};

const UP: usize = 5;
const DOWN: usize = 1;
const LEVELS: usize = 4;

/// Seconds between two observations.
const EVERY: usize = 10;

fn draw(draw: &mut Draw) -> Question {
    let (dwell_up, dwell_down) = (draw.pick(&[10, 20]), draw.pick(&[20, 30]));
    let over = draw.between(2, 6);
    let between = draw.between(0, 2);
    let calm = draw.between(1, 6);
    let mut loads: Vec<usize> = (0..over).map(|_| draw.between(UP + 1, 9)).collect();
    loads.extend((0..between).map(|_| draw.between(DOWN + 1, UP - 1)));
    loads.extend((0..calm).map(|_| 0));
    if draw.one_in(2) {
        loads.extend((0..draw.between(1, 3)).map(|_| draw.between(UP + 1, 9)));
    }
    let right = level(&loads, dwell_up, dwell_down, 0);

    let times: Vec<usize> = (0..loads.len()).map(|i| EVERY * i).collect();
    let columns = |numbers: &[usize]| {
        let cells: Vec<String> = numbers.iter().map(|n| format!("{n:>3}")).collect();
        joined(&cells)
    };
    let text = format!(
        "The busiest lane's wait is observed every {EVERY} s:\n\n\
         time (s) {}\nwait (s) {}\n\n\
         Overload is above {UP} s, calm below {DOWN} s; dwell_up is {dwell_up} s, dwell_down {dwell_down} s.\n\
         There are {LEVELS} levels above 0, where it begins. On which level does it end?",
        columns(&times),
        columns(&loads)
    );
    let levels: Vec<usize> =
        (1..=loads.len()).map(|n| level(&loads[..n], dwell_up, dwell_down, 0)).collect();
    let explanation = format!(
        "A run of overload begins with its first observation; each {dwell_up} s of it raise the\n\
         level by one, and each {dwell_down} s of calm lower it by one:\n\
         time (s) {}\nlevel    {}",
        columns(&times),
        columns(&levels)
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({ "loads": loads, "dwell_up": dwell_up, "dwell_down": dwell_down });
    let most = levels.iter().copied().max().unwrap_or(0);
    Question::new(text, whole(right), explanation, facts)
        .mistake(
            whole(level(&loads, dwell_up, dwell_down, EVERY)),
            "the clock of an overload or a calm begins with its first observation",
        )
        .mistake(
            whole(level(&loads, dwell_up, dwell_up, 0)),
            "going down takes dwell_down for each level",
        )
        .mistake(whole(most), "calm that lasts lowers the level again")
        .mistake(whole(0), "each level down takes a dwell of its own")
        .mistake(
            whole(level(&loads, EVERY, dwell_down, 0)),
            "each level up takes a dwell of its own",
        )
        .mistake(whole(LEVELS), "one level at a time, each after a dwell")
}

/// Level after the last load, if each run counts as so many seconds older than it is.
fn level(loads: &[usize], dwell_up: usize, dwell_down: usize, older: usize) -> usize {
    let kind = |load: usize| if load > UP { 1 } else { -i32::from(load < DOWN) };
    let (mut level, mut since, mut before) = (0, 0, 0);
    for (i, load) in loads.iter().enumerate() {
        let now = EVERY * i + older;
        if kind(*load) != before {
            (before, since) = (kind(*load), EVERY * i);
        }
        if before == 1 && level < LEVELS && now - since >= dwell_up {
            (level, since) = (level + 1, now);
        } else if before == -1 && level > 0 && now - since >= dwell_down {
            (level, since) = (level - 1, now);
        }
    }
    level
}
