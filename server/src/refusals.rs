//! What a client is told when the door of a lane refuses its request.

use std::time::Duration;

use l6_ensemble::admission::{Margins, Refusal, RefusalCode};
use l6_ensemble::quote::Quote;

/// What a refusal depends on, beside its quote.
#[derive(Clone, Copy, Debug)]
pub struct RefusalFacts {
    /// Time to the deadline.
    pub left: Option<Duration>,
    /// The request's priority number.
    pub priority: i64,
    /// Largest priority number that the lane accepts.
    pub priority_floor: Option<i64>,
    /// Margins of the decision.
    pub margins: Margins,
    /// Maximum number of requests that wait.
    pub max_num_waiting: usize,
    /// Whether the queue is full. If not, `queue_full` says that too few steps were measured to promise a deadline.
    pub is_full: bool,
}

/// Message about a full queue in which `most` requests may wait.
pub fn queue_full(most: usize) -> String {
    let requests = if most == 1 { "request" } else { "requests" };
    format!("The queue is full: at most {most} {requests} may wait for a seat. Please retry later.")
}

/// Message about a refusal.
pub fn message(refusal: &Refusal, facts: &RefusalFacts) -> String {
    match refusal.code {
        RefusalCode::DeadlineUnreachable => {
            let left = facts.left.unwrap_or_default();
            late(refusal, left, facts.margins.deadline)
        }
        RefusalCode::WouldHarm => {
            "A request in flight would miss its deadline, or wait longer than it was promised, because of this one. \
             Please retry later."
                .to_owned()
        }
        RefusalCode::PriorityFloor => format!(
            "Only requests whose `priority` is at most {} are accepted at the moment, and this one has {}: a lower \
             number is more urgent. Please retry later, or with a lower `priority` number.",
            facts.priority_floor.unwrap_or(i64::MAX),
            facts.priority
        ),
        RefusalCode::QueueFull if facts.is_full => queue_full(facts.max_num_waiting),
        RefusalCode::QueueFull => {
            "The server is busy, and has measured too few steps to promise a deadline. Please retry later, or without \
             `deadline_ms`."
                .to_owned()
        }
    }
}

/// Message about a deadline that cannot be met.
fn late(refusal: &Refusal, left: Duration, margin: f64) -> String {
    let (left_ms, percent) = (left.as_millis(), (margin * 100.0).round());
    let Quote { alone, done_late, .. } = refusal.quote;
    let with_margin = |time: Duration| {
        let time = Duration::try_from_secs_f64(time.as_secs_f64() * (1.0 + margin));
        time.unwrap_or(Duration::MAX).as_millis()
    };
    if left.is_zero() && alone.is_zero() {
        // Before rates were measured.
        "The deadline had passed before the request could be admitted. Please allow more time."
            .to_owned()
    } else if refusal.hopeless {
        format!(
            "The deadline cannot be met: even without other requests, the response would be complete in about {} ms, \
             with a margin of {percent}% in {} ms, and {left_ms} ms are left. A retry does not help: allow more time, or \
             reduce `max_tokens`.",
            alone.as_millis(),
            with_margin(alone)
        )
    } else {
        format!(
            "The deadline cannot be met: the response would be complete in about {} ms, with a margin of {percent}% in \
             {} ms, and {left_ms} ms are left. Please retry later, or allow more time.",
            done_late.as_millis(),
            with_margin(done_late)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn facts() -> RefusalFacts {
        RefusalFacts {
            left: Some(MS(19_999)),
            priority: 7,
            priority_floor: Some(3),
            margins: Margins::default(),
            max_num_waiting: 1,
            is_full: true,
        }
    }

    fn told(code: RefusalCode, facts: &RefusalFacts) -> String {
        told_of(code, false, facts)
    }

    fn told_of(code: RefusalCode, hopeless: bool, facts: &RefusalFacts) -> String {
        let quote = Quote { done_late: MS(18_583), alone: MS(4_000), ..Quote::default() };
        message(&Refusal { code, quote, retry_after: 1, hopeless }, facts)
    }

    #[test]
    fn a_late_request_is_told_the_time_that_was_compared_with_its_deadline() {
        let message = told(RefusalCode::DeadlineUnreachable, &facts());
        for part in
            ["about 18583 ms", "margin of 10% in 20441 ms", "19999 ms are left", "retry later"]
        {
            assert!(message.contains(part), "{part} is not in {message}");
        }
    }

    #[test]
    fn a_deadline_that_an_idle_lane_misses_is_told_that_no_retry_helps() {
        let of = |left, hopeless| {
            let facts = RefusalFacts { left: Some(MS(left)), ..facts() };
            told_of(RefusalCode::DeadlineUnreachable, hopeless, &facts)
        };
        let never = of(4_100, true);
        for part in ["about 4000 ms", "10% in 4400 ms", "4100 ms are left. A retry does not help"] {
            assert!(never.contains(part), "{part} is not in {never}");
        }
        assert!(of(4_500, false).contains("Please retry later"), "an idle lane may do it");
        assert!(of(0, true).contains("and 0 ms are left. A retry does not help"));
        let (code, quote) = (RefusalCode::DeadlineUnreachable, Quote::default());
        let unmeasured = Refusal { code, quote, retry_after: 1, hopeless: false };
        assert!(late(&unmeasured, Duration::ZERO, 0.1).contains("had passed"));
    }

    #[test]
    fn a_floor_and_a_full_queue_are_named_with_their_numbers() {
        let message = told(RefusalCode::PriorityFloor, &facts());
        assert!(message.contains("at most 3") && message.contains("this one has 7"), "{message}");
        assert_eq!(told(RefusalCode::QueueFull, &facts()), queue_full(1));
        assert!(queue_full(1).contains("at most 1 request may wait"));
        assert!(queue_full(2).contains("at most 2 requests may wait"));
        let unmeasured = RefusalFacts { is_full: false, ..facts() };
        assert!(told(RefusalCode::QueueFull, &unmeasured).contains("too few steps"));
    }
}
