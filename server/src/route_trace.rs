//! The way of a request to its lane, for the recording of `serve --ensemble --trace`.
//!
//! It is recorded when this is dropped: when an engine has the request, when it is refused, or when its client has
//! disconnected before. Nothing in it is text of the request.

use std::time::Instant;

use l5_scheduler::trace::{EnsembleRecorder, QuoteEvent, RefusedEvent, RouteEvent};
use l6_ensemble::quote::Quote;

use super::error::ApiError;
use super::lanes::Lanes;
use super::middleware::RequestContext;
use super::responses::ResponseStreams;
use super::routing::Routed;

/// The way of a request so far. Does nothing if the server records none.
pub struct RouteTrace(Option<Box<Recorded>>);

struct Recorded {
    recorder: EnsembleRecorder,
    event: RouteEvent,
}

impl RouteTrace {
    /// A request whose body has been parsed.
    pub fn begin(lanes: &Lanes, context: &RequestContext) -> Self {
        Self(lanes.trace().map(|recorder| {
            let event = RouteEvent {
                route: recorder.next_route(),
                arrived_us: recorder.us(context.arrived()),
                // Until it is known.
                decided_us: recorder.us(Instant::now()),
                ..RouteEvent::default()
            };
            Box::new(Recorded { recorder: recorder.clone(), event })
        }))
    }

    /// Number of the request, if it is recorded.
    pub fn number(&self) -> Option<u64> {
        self.0.as_ref().map(|own| own.event.route)
    }

    /// The router has decided, or has refused the request.
    pub fn routed(&mut self, lanes: &Lanes, routed: Result<&Routed, &ApiError>) {
        let Some(own) = &mut self.0 else { return };
        let Recorded { recorder, event } = &mut **own;
        event.decided_us = recorder.us(Instant::now());
        let routed = match routed {
            Ok(routed) => routed,
            Err(why) => return own.refused(None, why),
        };
        let name = |lane: usize| lanes[lane].model().name().to_owned();
        event.lane = Some(name(routed.lane));
        event.primary = Some(name(routed.first));
        event.by = routed.by.unwrap_or_default().to_owned();
        let Some(choice) = routed.choice.as_deref() else { return };
        event.what.clone_from(&choice.what);
        event.second = choice.second.map(name);
        // Without a classifier there are none.
        event.score = (!choice.scores.is_empty()).then(|| rounded(choice.score));
        let scores = choice.scores.iter();
        event.scores = scores.map(|(lane, score)| (lane.clone(), rounded(*score))).collect();
    }

    /// A lane has refused the request.
    pub fn refused(&mut self, lanes: &Lanes, lane: usize, why: &ApiError) {
        if let Some(own) = &mut self.0 {
            own.refused(Some(lanes[lane].model().name()), why);
        }
    }

    /// An engine has the request, by this route.
    pub fn admitted(&mut self, lanes: &Lanes, routed: &Routed, responses: &ResponseStreams) {
        let Some(own) = &mut self.0 else { return };
        let Recorded { recorder, event } = &mut **own;
        event.admitted_us = Some(recorder.us(Instant::now()));
        event.lane = Some(lanes[routed.lane].model().name().to_owned());
        event.by = routed.by.unwrap_or_default().to_owned();
        event.replica = Some(responses.replica().0);
        event.requests = responses.ids().map(|id| id.0).collect();
    }

    /// A lane is to have a shadow of the request.
    pub fn shadowed(&mut self, lanes: &Lanes, lane: usize) {
        if let Some(own) = &mut self.0 {
            own.event.shadow = Some(lanes[lane].model().name().to_owned());
        }
    }
}

impl Recorded {
    fn refused(&mut self, lane: Option<&str>, why: &ApiError) {
        self.event.lane = lane.map(str::to_owned).or(self.event.lane.take());
        self.event.refused.push(RefusedEvent {
            lane: lane.map(str::to_owned),
            at_us: self.recorder.us(Instant::now()),
            code: why.code.unwrap_or(why.kind).to_owned(),
            quote: why.refusal.as_ref().and_then(|own| own.quote.as_ref()).map(quote),
        });
    }
}

fn quote(quote: &Quote) -> QuoteEvent {
    let us = |time: std::time::Duration| time.as_nanos() as f64 / 1000.0;
    QuoteEvent {
        queue_us: us(quote.queue),
        first_token_us: us(quote.first_token),
        done_us: us(quote.done),
        done_late_us: us(quote.done_late),
    }
}

/// A probability to four digits. JSON has no infinity: what is not finite is written as 0.
fn rounded(score: f32) -> f32 {
    if score.is_finite() { (score * 1e4).round() / 1e4 } else { 0.0 }
}

impl Drop for RouteTrace {
    fn drop(&mut self) {
        if let Some(own) = self.0.take() {
            own.recorder.route(own.event);
        }
    }
}
