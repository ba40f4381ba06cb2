//! Ops: one file each.
