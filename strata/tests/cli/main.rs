//! The `strata` command as its users meet it: the built binary, on the tiny models, without a network.

mod adapters;
mod answers;
mod bad_input;
mod chat;
mod compare;
mod cuda;
mod ensemble_check;
mod ensemble_simulate;
mod golden;
mod guides;
mod kv;
mod logits;
mod prompts;
mod quantize;
mod router;
mod router_tune;
mod run_trace;
mod run_trace_ensemble;
mod sampling;
mod serve_offline;
mod simulate;
mod speculation;
mod strata;
mod sweep;
mod text;
mod trace;
