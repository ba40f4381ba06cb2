//! Drafts by lookup: compared with vLLM's proposer, and with searches that read all of a text.

mod ngram;
mod ngram_drafter;
mod proposed;
mod suffix;
mod suffix_model;
