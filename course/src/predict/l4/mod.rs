//! Questions about layer 4: from logits to a token.

mod drafts_accepted;
mod drawn;
mod drawn_token;
mod expected_tokens;
mod filter_survivors;
mod greedy_token;
mod guide_allows;
mod may_be_chosen;
mod penalised_logit;
mod residual_share;
mod row_logprob;
mod same_number;
mod scanned_blocks;
mod stop_wins;
mod temperature_ratio;
mod text_shown;
mod top_p_kept;

use super::kind::Kind;

/// In the order of the chapters.
pub const KINDS: &[Kind] = &[
    same_number::KIND,
    may_be_chosen::KIND,
    penalised_logit::KIND,
    temperature_ratio::KIND,
    top_p_kept::KIND,
    filter_survivors::KIND,
    drawn_token::KIND,
    scanned_blocks::KIND,
    greedy_token::KIND,
    row_logprob::KIND,
    text_shown::KIND,
    stop_wins::KIND,
    guide_allows::KIND,
    drafts_accepted::KIND,
    residual_share::KIND,
    expected_tokens::KIND,
];
