//! What is learned from a response: verdicts about its code, how it agrees with its shadow, and the record of both in
//! the calibration stream. Nothing here delays the response.
//!
//! Primary, shadow and verdicts end in any order. Each holds a share of an [`Observed`], and the record is complete when
//! the last share is gone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use l5_scheduler::FinishReason;
use l5_scheduler::engine::ResponseTimes;
use l6_ensemble::calibration::{
    Agreement, CalibrationRecord, Response, ShadowResponse, Verdicts, normalized,
};
use l6_ensemble::shadow::ShadowReason;
use tokio::sync::oneshot;

use super::lanes::Lanes;

/// Maximum size of the text of a response that is kept, in bytes. A larger one is neither checked nor compared.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// A response that is complete, or becomes so.
#[derive(Clone, Debug, Default)]
pub struct Completed {
    text: String,
    /// Whether the text is too long to be kept.
    too_long: bool,
    /// Time to the first token.
    pub first: Option<Duration>,
    /// Time to the last token.
    pub total: Option<Duration>,
    /// Number of tokens.
    pub output_tokens: u64,
    /// Whether it ended by itself: one that was cut off does not compile, whatever wrote it.
    pub stopped: bool,
}

impl Completed {
    /// Adds text.
    pub fn push(&mut self, text: &str) {
        self.too_long |= self.text.len() + text.len() > MAX_TEXT_BYTES;
        if self.too_long {
            self.text = String::new();
        } else {
            self.text.push_str(text);
        }
    }

    /// The text, unless it is too long.
    fn text(&self) -> Option<&str> {
        (!self.too_long).then_some(&self.text)
    }

    fn response(&self, lane: String, verdicts: Verdicts) -> Response {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let (ttft_ms, total_ms) = (self.first.map(ms), self.total.map(ms));
        Response { lane, verdicts, ttft_ms, total_ms, output_tokens: Some(self.output_tokens) }
    }
}

/// What is known of a request and its shadow. Clones share it.
#[derive(Clone)]
pub struct Observed(Arc<Inner>);

struct Inner {
    lanes: Lanes,
    lane: usize,
    shadow_lane: Option<usize>,
    /// Whether the primary's verdict counts for the lane: the request is in the sample of the checker.
    sampled: bool,
    record: Option<CalibrationRecord>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    primary: Option<Completed>,
    shadow: Option<(ShadowReason, Completed)>,
    /// Verdicts about the two.
    verdicts: [Verdicts; 2],
}

/// Which of the two responses a verdict is about.
#[derive(Clone, Copy)]
enum Which {
    Primary,
    Shadow,
}

impl Observed {
    /// The request that lane `lane` serves, with the record of its route, if it is recorded. `None` if nothing would be
    /// learned from it. `checked`: its id, if its response may be checked.
    pub fn begin(
        lanes: &Lanes,
        lane: usize,
        shadow_lane: Option<usize>,
        record: Option<CalibrationRecord>,
        checked: Option<&str>,
    ) -> Option<Self> {
        let checker = lanes.checker().zip(checked);
        let sampled = checker.is_some_and(|(checker, request)| checker.samples(request));
        let learns = sampled || shadow_lane.is_some() || record.is_some();
        let (lanes, state) = (lanes.clone(), Mutex::default());
        learns.then(|| Self(Arc::new(Inner { lanes, lane, shadow_lane, sampled, record, state })))
    }

    /// The primary, whose end `done` reports.
    pub fn primary(&self, done: Option<oneshot::Sender<()>>) -> PrimaryResponse {
        let keeps_text = self.0.sampled || self.0.shadow_lane.is_some();
        PrimaryResponse {
            observed: self.clone(),
            completed: Completed::default(),
            keeps_text,
            done,
        }
    }

    /// The primary is complete.
    fn primary_completed(&self, completed: Completed) {
        let code = completed.text().filter(|_| completed.stopped).map(str::to_owned);
        self.0.lock().primary = Some(completed);
        if self.0.sampled || self.0.shadow_lane.is_some() {
            self.check(Which::Primary, code);
        }
    }

    /// The shadow is complete. It is right by the compile check if that is on, or else if its text is the primary's.
    pub(super) fn shadow(&self, reason: ShadowReason, completed: Completed) {
        let code = completed.text().filter(|_| completed.stopped).map(str::to_owned);
        let mut state = self.0.lock();
        let texts = (state.primary.as_ref().and_then(Completed::text), completed.text());
        let equal = match texts {
            (Some(primary), Some(shadow)) => Some(normalized(primary) == normalized(shadow)),
            _ => None,
        };
        state.shadow = Some((reason, completed));
        drop(state);
        if self.0.lanes.checker().is_some() {
            self.check(Which::Shadow, code);
        } else if let Some(equal) = equal {
            self.0.verdict(self.0.lane, None);
            self.0.shadow_lane.into_iter().for_each(|lane| self.0.verdict(lane, Some(equal)));
        }
    }

    /// Has code checked, some time. `None`: the response was cut off, or is too long.
    fn check(&self, which: Which, code: Option<String>) {
        let Some(checker) = self.0.lanes.checker() else { return };
        let Some(code) = code else { return checker.inconclusive() };
        let own = self.clone();
        checker.check(code, Box::new(move |pass| own.checked(which, pass)));
    }

    fn checked(&self, which: Which, pass: bool) {
        let inner = &self.0;
        inner.lock().verdicts[which as usize].compiles = Some(pass);
        match which {
            Which::Primary => {
                if inner.sampled {
                    inner.lanes[inner.lane].metrics().slo().compile_checked(pass);
                    if let Some(ensemble) = inner.lanes.router() {
                        ensemble.observe(inner.lane, pass);
                    }
                }
                inner.verdict(inner.lane, None);
            }
            Which::Shadow => {
                inner.shadow_lane.into_iter().for_each(|lane| inner.verdict(lane, Some(pass)));
            }
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a verdict about a lane for its freshness and, if it is about a shadow, for the breaker of a lane that is
    /// demoted or on probation: its own samples decide for a lane that serves.
    fn verdict(&self, lane: usize, shadow: Option<bool>) {
        let Some(ensemble) = self.lanes.router() else { return };
        ensemble.count_verdict(lane);
        if let Some(pass) = shadow.filter(|_| ensemble.is_watched(lane)) {
            ensemble.observe(lane, pass);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(mut record) = self.record.take() else { return };
        let Some(stream) = self.lanes.calibration() else { return };
        let name = |lane: usize| self.lanes[lane].model().name().to_owned();
        let State { primary, shadow, verdicts } =
            std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        let [first, second] = verdicts;
        if let Some(primary) = &primary {
            record.primary = primary.response(name(self.lane), first);
        }
        if let (Some(primary), Some((reason, shadow)), Some(lane)) =
            (&primary, &shadow, self.shadow_lane)
        {
            let response = shadow.response(name(lane), second);
            let texts = primary.text().zip(shadow.text());
            let agreement = texts.map(|(a, b)| Agreement::of((&first, a), (&second, b)));
            let agreement = agreement.unwrap_or_default();
            record.shadow = Some(ShadowResponse { reason: *reason, response, agreement });
        }
        stream.push(record);
    }
}

/// The primary's response on its way to the client. Dropped before its end, it does not complete.
pub struct PrimaryResponse {
    observed: Observed,
    completed: Completed,
    keeps_text: bool,
    done: Option<oneshot::Sender<()>>,
}

impl PrimaryResponse {
    /// Adds output.
    pub fn push(&mut self, text: &str, tokens: usize) {
        self.completed.output_tokens += tokens as u64;
        if self.keeps_text {
            self.completed.push(text);
        }
    }

    /// The response has ended.
    pub fn end(self, finish: FinishReason, times: Option<ResponseTimes>) {
        let Self { observed, mut completed, done, .. } = self;
        if !matches!(finish, FinishReason::Stop | FinishReason::Length) {
            return;
        }
        completed.stopped = finish == FinishReason::Stop;
        if let Some(times) = times {
            let since = |at: std::time::Instant| at.saturating_duration_since(times.submitted);
            (completed.first, completed.total) = (times.first.map(since), times.last.map(since));
        }
        observed.primary_completed(completed);
        // The task of the shadow may be gone.
        let _ = done.map(|done| done.send(()));
    }
}
