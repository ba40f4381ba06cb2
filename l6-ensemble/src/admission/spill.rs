//! Spill: the second choice serves a request that the first one has no room for.

use super::{AdmissionRequest, ContextError, Decision, LaneView, Refusal, decide};
use crate::quote::Quote;

/// The router's second choice for a request.
#[derive(Clone, Copy, Debug)]
pub struct SecondChoice<'a> {
    /// The request as the second lane gets it: its tokenizer and template may be others.
    pub request: AdmissionRequest,
    /// The replica of the second lane.
    pub lane: LaneView<'a>,
    /// The router's score of the first choice, from 0 to 1.
    pub score: f64,
    /// Score of the first choice below which a request may spill. It is raised under load: then more requests may.
    pub spill_below: f64,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spill {
    /// The first choice admits it.
    Admit {
        /// What it can expect.
        quote: Quote,
    },
    /// The second choice admits it, after the first one refused it for load.
    Spill {
        /// What it can expect of the second choice.
        quote: Quote,
        /// The refusal of the first choice.
        refused: Refusal,
    },
    /// It is refused, by the first choice.
    Refuse(Refusal),
}

/// Decides whether a request goes to its first choice, spills to the second one, or is refused.
///
/// A request spills if the first choice refuses it for its load, the router was unsure enough (`score` below
/// `spill_below`), and the second choice admits it. The refusal that the client gets is that of the first choice,
/// whose queue is the one that it waits for.
///
/// # Errors
/// [`ContextError`] if the request does not fit the first choice. A second choice that it does not fit is no choice.
pub fn admit_or_spill(
    request: &AdmissionRequest,
    first: &LaneView<'_>,
    second: Option<&SecondChoice<'_>>,
) -> Result<Spill, ContextError> {
    // exercise l6.spill
    let refused = match decide(request, first)? {
        Decision::Admit { quote } => return Ok(Spill::Admit { quote }),
        Decision::Refuse(refused) => refused,
    };
    let second =
        second.filter(|second| second.score < second.spill_below && refused.code.is_load());
    match second.map(|second| decide(&second.request, &second.lane)) {
        Some(Ok(Decision::Admit { quote })) => Ok(Spill::Spill { quote, refused }),
        _ => Ok(Spill::Refuse(refused)),
    }
    // end of exercise
}
