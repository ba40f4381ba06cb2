//! Pool, tables, hashes, cache and manager: everything that is numbers.

mod ahead;
mod chain;
mod events;
mod free_list;
mod hash;
mod manager;
mod manager_events;
mod oracle;
mod poisoning;
mod pool;
mod prefix_cache;
mod sizing;
mod table;
mod trace;
mod vllm_traces;
