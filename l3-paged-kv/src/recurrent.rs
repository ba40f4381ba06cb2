//! State that belongs to a sequence, not to its tokens: what Mamba or DeltaNet layers will keep.

/// `bytes per layer` for each sequence, all slots allocated once; snapshot, restore, drop, bytes; rollback = restore of a snapshot.
pub struct RecurrentStore { }
