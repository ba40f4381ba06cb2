//! Questions about layer 1: tensors and ops.

mod argmax_tie;
mod bf16_round;
mod gqa_head;
mod lane_of;
mod layout_element;
mod linear_bytes;
mod linear_intensity;
mod mask_row;
mod panel_bytes;
mod reshape_view;
mod rms_norm;
mod rope_angle;
mod rope_partner;
mod softmax_mask;
mod window_tiles;

use super::kind::Kind;

/// In the order of the chapters.
pub const KINDS: &[Kind] = &[
    bf16_round::KIND,
    layout_element::KIND,
    reshape_view::KIND,
    rms_norm::KIND,
    rope_angle::KIND,
    rope_partner::KIND,
    softmax_mask::KIND,
    argmax_tie::KIND,
    panel_bytes::KIND,
    lane_of::KIND,
    mask_row::KIND,
    gqa_head::KIND,
    window_tiles::KIND,
    linear_bytes::KIND,
    linear_intensity::KIND,
];
