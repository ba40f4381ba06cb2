//! Resolving a step: which of the sampled tokens count.

use super::Scheduler;
use crate::requests::Entry;
use crate::{ExecuteError, FinishReason, RequestId, StepOutput};

/// Tokens that a step adds to requests, and which requests end with them. The memory is reused.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resolved {
    pub(super) tokens: Vec<u32>,
    pub(super) rows: Vec<ResolvedRow>,
}

/// Tokens of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResolvedRow {
    pub id: RequestId,
    pub place: u32,
    /// Index in the token list behind the last token of this row.
    pub end: usize,
    pub finish: Option<FinishReason>,
}

impl Resolved {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.rows.clear();
    }

    /// Row by row, in the order of the step: table index, request id, tokens, and the finish reason if the request
    /// ends.
    pub fn rows(
        &self,
    ) -> impl Iterator<Item = (u32, RequestId, &[u32], Option<FinishReason>)> + '_ {
        self.rows.iter().enumerate().map(|(i, row)| {
            let start = i.checked_sub(1).map_or(0, |before| self.rows[before].end);
            (row.place, row.id, &self.tokens[start..row.end], row.finish)
        })
    }
}

impl Scheduler {
    /// Finds which tokens of an output count: those of requests that were not aborted, up to the token that ends them.
    /// Changes nothing.
    ///
    /// # Errors
    /// [`ExecuteError::Malformed`] if the output does not fit the step.
    pub fn resolve(
        &self,
        output: &StepOutput,
        resolved: &mut Resolved,
    ) -> Result<(), ExecuteError> {
        resolved.clear();
        let rows = &self.step.rows;
        let mut due = (0..rows.len()).filter(|row| rows[*row].samples);
        for (row, tokens, finish) in output.rows() {
            if due.next() != Some(row) || (tokens.is_empty() && finish.is_none()) {
                let why =
                    format!("row {row} of a step came with {} tokens, out of turn", tokens.len());
                return Err(ExecuteError::Malformed(why));
            }
            let row = rows[row];
            let entry = self.requests.at(row.place);
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
            let (id, place, end) = (row.id, row.place, resolved.tokens.len());
            resolved.rows.push(ResolvedRow { id, place, end, finish });
            // end of exercise
        }
        match due.next() {
            None => Ok(()),
            Some(row) => {
                Err(ExecuteError::Malformed(format!("row {row} of a step has chosen no token")))
            }
        }
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
