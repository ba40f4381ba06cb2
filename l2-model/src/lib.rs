//! l2-model
