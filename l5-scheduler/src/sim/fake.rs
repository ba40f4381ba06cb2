//! A fake model whose output is known beforehand.

use crate::{Caps, ExecuteError, Executor, FinishReason, RequestId, StepOutput, StepView};

/// Output that is known beforehand.
pub trait Script {
    /// The `n`-th output token, from 0. `None` behind the last.
    fn token(&self, n: usize) -> Option<u32>;
}

impl Script for Vec<u32> {
    fn token(&self, n: usize) -> Option<u32> {
        self.get(n).copied()
    }
}

/// An executor that computes nothing: a row that samples gets the next token of its request's script. The number of
/// output tokens decides which one, so a request that was preempted continues where it was.
#[derive(Debug)]
pub struct FakeModel<S> {
    /// Scripts by table index.
    scripts: Vec<Option<S>>,
}

impl<S> Default for FakeModel<S> {
    fn default() -> Self {
        Self { scripts: Vec::new() }
    }
}

impl<S: Script> FakeModel<S> {
    /// A request of a step that samples a token and whose script has none left.
    pub fn out_of_script(&self, step: &StepView<'_>) -> Option<RequestId> {
        let mut rows = step.rows().filter(|row| row.row.samples);
        rows.find(|row| self.next(row).is_none()).map(|row| row.row.id)
    }

    fn next(&self, row: &crate::RowView<'_>) -> Option<u32> {
        let generated = row.request.num_tokens() - row.request.prompt_len();
        self.scripts.get(row.row.place as usize)?.as_ref()?.token(generated)
    }
}

impl<S: Script> Executor for FakeModel<S> {
    type Job = S;

    fn caps(&self) -> Caps {
        Caps { max_tokens: usize::MAX, max_seqs: usize::MAX, ..Caps::default() }
    }

    fn begin(&mut self, place: u32, _id: RequestId, job: S) {
        let place = place as usize;
        if self.scripts.len() <= place {
            self.scripts.resize_with(place + 1, || None);
        }
        self.scripts[place] = Some(job);
    }

    fn execute(&mut self, step: &StepView<'_>, out: &mut StepOutput) -> Result<(), ExecuteError> {
        for (i, row) in step.rows().enumerate().filter(|(_, row)| row.row.samples) {
            let Some(token) = self.next(&row) else {
                let id = row.row.id;
                let why = format!(
                    "request {id} has no output tokens left: give it more, or lower its max_tokens"
                );
                return Err(ExecuteError::Malformed(why));
            };
            out.push(i, &[token], None);
        }
        Ok(())
    }

    fn end(&mut self, place: u32, _id: RequestId, _reason: FinishReason) {
        if let Some(script) = self.scripts.get_mut(place as usize) {
            *script = None;
        }
    }
}
