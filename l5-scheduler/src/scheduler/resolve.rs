//! What came out of a step, and which of it counts.

use super::Scheduler;
use crate::requests::Entry;
use crate::{ExecuteError, FinishReason, RequestId, StepOutput};

/// Tokens that were chosen in a step, and who ends with them. Memory is used again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resolved {
    pub(super) tokens: Vec<u32>,
    pub(super) rows: Vec<ResolvedRow>,
}

/// One request's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResolvedRow {
    pub id: RequestId,
    pub place: u32,
    /// Its tokens end here.
    pub end: usize,
    pub finish: Option<FinishReason>,
}

impl Resolved {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.rows.clear();
    }

    /// Request by request, in the order of the step: place, name, tokens, and why it ends.
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
    /// Find out which tokens of a step's output count: those of requests that are still wanted, up to the one that ends
    /// them. Changes nothing.
    ///
    /// # Errors
    /// [`ExecuteError::Malformed`] for an output that does not fit the step.
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
                    // The executor's own reason came with its last token. What was chosen behind an end was never said.
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
