//! When an answer ends, and what of its text may be shown: against the definitions, applied to the whole text at once.

mod answers;
mod naive;
mod rules;
mod state;
mod strings;
