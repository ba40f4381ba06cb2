//! How many blocks fit.
//!
//! KvSpec::from_config(&ModelConfig, dtype, block_size): bytes_per_token_layer, bytes_per_token, bytes_per_block (what KvCache really takes, padding and scales included).
//! Budget: requested = total x utilisation - weights - measured peak activation - margin, or `--kv-memory` as it is. Display prints the arithmetic line by line.
//! Errors: model does not fit (missing bytes), max_model_len does not fit (missing bytes, longest that would). parse_bytes("10.55GiB", "512MiB", "1g"...).
