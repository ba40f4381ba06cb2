//! Tiers: what is got is what was put, bounds hold, and whatever fails is a miss.

#[path = "../../../l2-model/tests/judge/mod.rs"]
mod judge;
mod support;

mod breaker;
mod chunks;
mod disk;
mod dram;
mod keys;
mod properties;
mod redis;
