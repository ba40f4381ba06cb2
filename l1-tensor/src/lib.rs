//! l1-tensor
