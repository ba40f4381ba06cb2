//! Resolving a step: which of the sampled tokens count.

use super::Scheduler;
use crate::requests::Entry;
use crate::token_lists::TokenLists;
use crate::{FinishReason, MalformedOutput, Note, RequestId, Seat, StepOutput, StepRow};

/// Tokens that a step adds to requests, and which requests end with them. The memory is reused.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resolved {
    pub(super) tokens: Vec<u32>,
    pub(super) rows: Vec<ResolvedRange>,
    /// Drafts for the next step of each request.
    proposals: TokenLists<(RequestId, Seat)>,
    /// Notes of the executor, by seat.
    pub(super) notes: Vec<(Seat, Note)>,
}

/// What a step adds to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedRow<'a> {
    /// Request id.
    pub id: RequestId,
    /// Seat that the request had in the step.
    pub seat: Seat,
    /// Tokens that count.
    pub tokens: &'a [u32],
    /// Finish reason, if the request ends with these tokens.
    pub finish: Option<FinishReason>,
}

/// Tokens of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResolvedRange {
    pub id: RequestId,
    pub seat: Seat,
    /// Index in the token list behind the last token of this row.
    pub end: usize,
    pub finish: Option<FinishReason>,
}

impl Resolved {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.rows.clear();
        self.notes.clear();
        self.proposals.clear();
    }

    /// Iterates over the requests that have new drafts.
    pub(super) fn drafts(&self) -> impl Iterator<Item = (RequestId, Seat, &[u32])> + '_ {
        self.proposals.iter().map(|((id, seat), drafts)| (id, seat, drafts))
    }

    /// Iterates over the rows that got tokens or ended, in the order of the step.
    pub fn rows(&self) -> impl Iterator<Item = ResolvedRow<'_>> + '_ {
        self.rows.iter().enumerate().map(|(i, row)| {
            let start = i.checked_sub(1).map_or(0, |before| self.rows[before].end);
            let ResolvedRange { id, seat, end, finish } = *row;
            ResolvedRow { id, seat, tokens: &self.tokens[start..end], finish }
        })
    }
}

impl Scheduler {
    /// Finds which tokens of the output of the step that is [due](Scheduler::due) count: those of requests that were not
    /// aborted, up to the token that ends them. Changes nothing.
    ///
    /// # Errors
    /// [`MalformedOutput`] if the output does not fit the step.
    pub fn resolve(
        &self,
        output: &StepOutput,
        resolved: &mut Resolved,
    ) -> Result<(), MalformedOutput> {
        resolved.clear();
        let rows = &self.due_step().rows;
        let mut due = (0..rows.len()).filter(|row| rows[*row].samples);
        for (row, tokens, finish) in output.rows() {
            if due.next() != Some(row) || (tokens.is_empty() && finish.is_none()) {
                let why =
                    format!("row {row} of a step came with {} tokens, out of turn", tokens.len());
                return Err(MalformedOutput(why));
            }
            let row = rows[row];
            let entry = self.requests.at(self.seats.owner(row.seat));
            // exercise l5.resolve
            if entry.aborted {
                continue;
            }
            let mut finish = finish;
            for (nth, token) in (1..).zip(tokens) {
                resolved.tokens.push(*token);
                if let Some(reason) = self.ends(entry, *token, nth) {
                    // The executor's reason belongs to its last token. Tokens behind the end do not count.
                    let cut = nth < tokens.len();
                    finish = if cut { Some(reason) } else { finish.or(Some(reason)) };
                    break;
                }
            }
            let (StepRow { id, seat, .. }, end) = (row, resolved.tokens.len());
            resolved.rows.push(ResolvedRange { id, seat, end, finish });
            // end of exercise
        }
        if let Some(row) = due.next() {
            return Err(MalformedOutput(format!("row {row} of a step has chosen no token")));
        }
        for (row, note) in output.notes() {
            let Some(StepRow { seat, .. }) = rows.get(row) else {
                return Err(MalformedOutput(format!("a note on row {row}, which the step lacks")));
            };
            resolved.notes.push((*seat, note.clone()));
        }
        self.resolve_drafts(output, resolved)
    }

    /// Copies the drafts that were proposed for the next step.
    fn resolve_drafts(
        &self,
        output: &StepOutput,
        resolved: &mut Resolved,
    ) -> Result<(), MalformedOutput> {
        let rows = &self.due_step().rows;
        let mut due = (0..rows.len()).filter(|row| rows[*row].samples);
        for (row, drafts) in output.proposals() {
            if !due.any(|due| due == row) {
                let why =
                    format!("row {row} of a step came with {} drafts, out of turn", drafts.len());
                return Err(MalformedOutput(why));
            }
            resolved.proposals.push((rows[row].id, rows[row].seat), drafts);
        }
        Ok(())
    }

    /// Whether a request ends with a token, the `nth` of this step, and why.
    fn ends(&self, entry: &Entry, token: u32, nth: usize) -> Option<FinishReason> {
        // exercise l5.resolve
        if entry.eos.contains(&token) || entry.stop_token_ids.contains(&token) {
            return Some(FinishReason::Stop);
        }
        let long = entry.chain.len() + nth >= self.config.max_model_len;
        (long || entry.generated() + nth >= entry.max_tokens).then_some(FinishReason::Length)
        // end of exercise
    }
}
