//! What a page holds, held against what was recorded.
