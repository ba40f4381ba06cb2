//! `strata serve` as its clients meet it: the built binary over loopback, on the tiny models.
//!
//! One file for each subject; `served.rs` starts a server and asks it.

#[path = "../../../l5-scheduler/tests/engine/counting.rs"]
mod counting;

mod abuse;
mod adapter_waits;
mod adapters;
mod bench_agents;
mod bench_serve;
mod chat;
mod cli;
mod completions;
mod door;
mod doors;
mod ensemble;
mod ensemble_trace;
mod formats;
mod jobs;
mod lifecycle;
mod limits;
mod llama_server;
mod load;
mod metrics;
mod openapi;
mod operate;
mod reasoning;
mod reload;
mod remote;
mod remote_failover;
mod sampling;
mod scripted;
mod served;
mod shadows;
mod speculation;
mod tiers;
mod tokens;
mod tools;
mod wire;
