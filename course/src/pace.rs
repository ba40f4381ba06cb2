//! The learner's pace: the time that exercises took, compared with the minutes that they list.

/// Number of exercises from which a pace is measured.
const MIN_EXERCISES: usize = 3;

/// Seconds between two exercises below which both were found to pass by one command.
const MIN_SECONDS: u64 = 30;

/// Multiple of the listed time above which the learner was away.
const MAX_RATIO: u64 = 4;

/// A learner's pace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Time taken over time listed: 2 is twice as long.
    pub ratio: f64,
    /// Number of exercises that it was measured over.
    pub exercises: usize,
}

/// An exercise that the learner finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finished {
    /// Time at which its gates passed for the first time, in seconds.
    pub at: u64,
    /// Listed minutes.
    pub minutes: u32,
}

/// The pace over these exercises: each took the time since the one before it. Those that passed together with another
/// one, or behind a pause, are left out. `None` if too few are left.
pub fn pace(mut finished: Vec<Finished>) -> Option<Pace> {
    finished.sort_unstable();
    let took = finished.windows(2).filter_map(|pair| {
        let (seconds, listed) = (pair[1].at - pair[0].at, u64::from(pair[1].minutes) * 60);
        (MIN_SECONDS..=MAX_RATIO * listed).contains(&seconds).then_some((seconds, listed))
    });
    let took: Vec<(u64, u64)> = took.collect();
    let sum = |part: fn(&(u64, u64)) -> u64| took.iter().map(part).sum::<u64>() as f64;
    let ratio = sum(|(seconds, _)| *seconds) / sum(|(_, listed)| *listed);
    (took.len() >= MIN_EXERCISES).then_some(Pace { ratio, exercises: took.len() })
}

#[cfg(test)]
mod tests {
    use course_marks::marks::FAST_TRACK;

    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn the_listed_minutes_follow_the_length_of_the_exercises() {
        for member in &Workspace::open().unwrap().members {
            let sources = member.sources().unwrap();
            let a_line = if member.layer.id == FAST_TRACK { 2.5 } else { 1.0 };
            for exercise in &member.layer.exercises {
                let usual = 10.0 + a_line * sources.code_lines(&exercise.id) as f64;
                // Half more or less, and five minutes for rounding.
                let allowed = usual * 0.5 - 5.0..=usual * 1.5 + 5.0;
                let listed = f64::from(exercise.minutes);
                assert!(allowed.contains(&listed), "{}: {listed}, usual {usual}", exercise.id);
            }
        }
    }

    fn finished(all: &[(u64, u32)]) -> Vec<Finished> {
        all.iter().map(|&(minute, minutes)| Finished { at: minute * 60, minutes }).collect()
    }

    #[test]
    fn pauses_and_exercises_that_passed_together_do_not_count() {
        // 20, 40 and 60 minutes for what lists 10, 20 and 30.
        let steady = finished(&[(0, 15), (60, 20), (20, 10), (120, 30)]);
        assert_eq!(pace(steady.clone()), Some(Pace { ratio: 2.0, exercises: 3 }));
        // The next one was finished on the next day, and one more passed with it.
        let paused = [steady, finished(&[(1500, 30), (1500, 10)])].concat();
        assert_eq!(pace(paused), Some(Pace { ratio: 2.0, exercises: 3 }));
        assert_eq!(pace(finished(&[(0, 10), (10, 10), (20, 10)])), None, "too few");
        assert_eq!(pace(vec![]), None);
    }
}
