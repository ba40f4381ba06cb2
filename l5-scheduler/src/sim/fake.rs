//! A fake model whose output is known beforehand.

use crate::{
    BySeat, Caps, Executor, FinishReason, MalformedOutput, RequestId, RowView, StepHandle,
    StepOutput, StepView,
};

/// Output that is known beforehand.
pub trait Script {
    /// The `n`-th output token, from 0. `None` behind the last.
    fn token(&self, n: usize) -> Option<u32>;

    /// Adds the drafts to `out` that are proposed when there are `n` output tokens.
    fn drafts(&self, n: usize, out: &mut Vec<u32>) {
        let _ = (n, out);
    }
}

impl Script for Vec<u32> {
    fn token(&self, n: usize) -> Option<u32> {
        self.get(n).copied()
    }
}

/// An executor that computes nothing: a row that samples gets the next token of its request's script, and one more for
/// each draft that equals the script. The number of output tokens decides which ones, so a request that was preempted
/// continues where it was.
#[derive(Debug)]
pub struct FakeModel<S> {
    scripts: BySeat<S>,
    /// Tokens of one row, and its drafts for the next step.
    tokens: Vec<u32>,
    drafts: Vec<u32>,
}

impl<S> Default for FakeModel<S> {
    fn default() -> Self {
        Self { scripts: BySeat::default(), tokens: Vec::new(), drafts: Vec::new() }
    }
}

impl<S: Script> FakeModel<S> {
    /// A request of a step that samples a token and whose script has none left.
    pub fn out_of_script(&self, step: &StepView<'_>) -> Option<RequestId> {
        let mut rows = step.rows().filter(|row| row.row.samples);
        let next = |row: &RowView<'_>| self.scripts.get(row.row.id)?.token(generated(row));
        rows.find(|row| next(row).is_none()).map(|row| row.row.id)
    }
}

impl<S: Script> Executor for FakeModel<S> {
    type Job = S;
    type Error = MalformedOutput;

    fn caps(&self) -> Caps {
        let (max_tokens, max_seqs) = (usize::MAX, usize::MAX);
        Caps { max_tokens, max_seqs, async_scheduling: true, ..Caps::default() }
    }

    fn begin(&mut self, id: RequestId, job: S) {
        self.scripts.insert(id, job);
    }

    fn collect(
        &mut self,
        _: StepHandle,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), MalformedOutput> {
        for (i, row) in step.rows().enumerate().filter(|(_, row)| row.row.samples) {
            let (id, before) = (row.row.id, generated(&row));
            let script = self.scripts.seated(row.row.seat, id);
            let Some((script, token)) =
                script.and_then(|s| s.token(before).map(|token| (s, token)))
            else {
                let why = format!(
                    "request {id} has no output tokens left: give it more, or lower its max_tokens"
                );
                return Err(MalformedOutput(why));
            };
            self.tokens.clear();
            self.tokens.push(token);
            for draft in row.drafts {
                // The newest token equals its draft, so the next one is verified, too.
                match script.token(before + self.tokens.len()) {
                    Some(next) if self.tokens.last() == Some(draft) => self.tokens.push(next),
                    _ => break,
                }
            }
            out.push(i, &self.tokens, None);
            self.drafts.clear();
            script.drafts(before + self.tokens.len(), &mut self.drafts);
            if !self.drafts.is_empty() {
                out.propose(i, &self.drafts);
            }
        }
        Ok(())
    }

    fn end(&mut self, id: RequestId, _reason: FinishReason) {
        self.scripts.remove(id);
    }
}

/// Number of output tokens that the request of a row has.
fn generated(row: &RowView<'_>) -> usize {
    row.request.num_tokens() - row.request.prompt_len()
}
