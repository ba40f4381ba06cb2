//! Each change to a row of logits on its own, as one reads it in a paper.
