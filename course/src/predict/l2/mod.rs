//! Questions about layer 2: a checkpoint becomes a model.

mod bos_ids;
mod gguf_offset;
mod held_bytes;
mod kv_bytes;
mod layer_weights;
mod logit_rows;
mod lora_parameters;
mod missing_tensor;
mod model_weights;
mod next_position;
mod quant_weight;
mod sequence_bytes;
mod sliding_layers;
mod stored_bytes;
mod unpermute_row;

use super::kind::Kind;

/// In the order of the chapters.
pub const KINDS: &[Kind] = &[
    layer_weights::KIND,
    model_weights::KIND,
    kv_bytes::KIND,
    sliding_layers::KIND,
    missing_tensor::KIND,
    gguf_offset::KIND,
    unpermute_row::KIND,
    quant_weight::KIND,
    stored_bytes::KIND,
    held_bytes::KIND,
    bos_ids::KIND,
    logit_rows::KIND,
    next_position::KIND,
    sequence_bytes::KIND,
    lora_parameters::KIND,
];
