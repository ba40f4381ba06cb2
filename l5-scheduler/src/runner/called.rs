//! Notes the tool that an output calls, for the retention.
//!
//! The text is decoded once, from the tokens of an output that is complete: a step that ends no request does nothing
//! for it, and no text is kept.

use l2_model::tokenizer::Tokenizer;
use l4_sampler::output::{Called, CalledTool};
use l4_sampler::stop::TextStream;

use super::ModelRunner;
use super::choice::CallSource;
use crate::{FinishReason, Note, StepOutput, StepView};

/// Number of the prompt's last tokens by which it is known whether the prompt opens the reasoning, and how the text of
/// the output continues it.
const PROMPT_END_TOKENS: usize = 16;

impl ModelRunner {
    /// Notes the tools that the outputs call which end with this step, of requests that are steps of jobs.
    pub(super) fn note_tools(&self, step: &StepView<'_>, out: &mut StepOutput) {
        let Some(tokenizer) = &self.tokenizer else { return };
        let finished = out.rows().filter(|(_, _, finish)| {
            matches!(finish, Some(FinishReason::Stop | FinishReason::Length))
        });
        let mut rows = step.rows().enumerate();
        let note = |(number, new, _): (usize, &[u32], _)| {
            let (_, row) = rows.find(|(at, _)| *at == number)?;
            row.request.job()?;
            let choice = self.choices.get_seated(row.row.seat, row.row.id)?;
            let (prompt, output) = row.request.tokens().split_at(row.request.prompt_len());
            let Called { tool, command } =
                called_tool(tokenizer, &choice.called, prompt, [output, new])?;
            Some((number, Note { tool: Some(tool), command }))
        };
        // Without an end there is nothing to collect, and nothing is allocated.
        let notes: Vec<(usize, Note)> = finished.filter_map(note).collect();
        notes.into_iter().for_each(|(row, note)| out.note(row, note));
    }
}

/// What an output calls, by its tokens.
fn called_tool(
    tokenizer: &Tokenizer,
    source: &CallSource,
    prompt: &[u32],
    output: [&[u32]; 2],
) -> Option<Called> {
    let prompt_end = &prompt[prompt.len().saturating_sub(PROMPT_END_TOKENS)..];
    let format = source.format.as_deref().cloned().unwrap_or_default();
    let mut called =
        CalledTool::new(&format, &tokenizer.decode(prompt_end, false).unwrap_or_default());
    let mut text = match source.continues {
        true => TextStream::continuing(Some(tokenizer), prompt_end, source.special),
        false => TextStream::answering(Some(tokenizer), source.special),
    };
    for id in output.into_iter().flatten() {
        if called.push(text.push(*id)) {
            return called.finish();
        }
    }
    called.push(&text.finish());
    called.finish()
}
