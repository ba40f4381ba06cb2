//! Questions about layer 5: which requests run in the next step.

mod abandoned_step;
mod admitted_now;
mod answer_length;
mod arrival_verdict;
mod budget_shares;
mod chunk_steps;
mod computed_after;
mod draft_speed_up;
mod drafts;
pub(super) mod drawn;
mod fed_tokens;
mod first_token_time;
mod free_after_step;
mod gives_way;
mod kv_exhausted;
mod lease_cost;
mod leased_blocks;
mod leased_gaps;
mod longest_rest;
mod queue_order;
mod recomputed_tokens;
mod replayable_steps;
mod returning_step;
mod rows_ahead;
mod sampled_rows;
mod seat;
mod shared_prompt;
mod step_time;
mod strict_room;

use super::kind::Kind;

/// In the order of the chapters.
pub const KINDS: &[Kind] = &[
    arrival_verdict::KIND,
    queue_order::KIND,
    gives_way::KIND,
    budget_shares::KIND,
    chunk_steps::KIND,
    seat::KIND,
    admitted_now::KIND,
    answer_length::KIND,
    computed_after::KIND,
    free_after_step::KIND,
    kv_exhausted::KIND,
    recomputed_tokens::KIND,
    abandoned_step::KIND,
    drafts::KIND,
    draft_speed_up::KIND,
    rows_ahead::KIND,
    strict_room::KIND,
    replayable_steps::KIND,
    leased_blocks::KIND,
    leased_gaps::KIND,
    returning_step::KIND,
    lease_cost::KIND,
    longest_rest::KIND,
    fed_tokens::KIND,
    sampled_rows::KIND,
    shared_prompt::KIND,
    first_token_time::KIND,
    step_time::KIND,
];
