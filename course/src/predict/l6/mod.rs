//! Questions about layer 6: which lane and replica serve a request, and whether it is admitted.

mod breaker_state;
mod door_code;
mod escalation_level;
mod latency_percentile;
mod quotes_wrong;
mod replica_choice;
mod retry_after;
mod route_verdict;
mod rule_decides;
mod shadow_reason;

use super::kind::Kind;

/// In the order of the chapters.
pub const KINDS: &[Kind] = &[
    rule_decides::KIND,
    route_verdict::KIND,
    replica_choice::KIND,
    quotes_wrong::KIND,
    door_code::KIND,
    retry_after::KIND,
    latency_percentile::KIND,
    breaker_state::KIND,
    escalation_level::KIND,
    shadow_reason::KIND,
];
