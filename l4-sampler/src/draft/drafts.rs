//! Drafts of one step, and what is asked for.

use std::ops::Range;

/// Number of confidence classes of a drafted token.
pub const CLASSES: usize = 16;

/// A request that wants a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftRow {
    /// Slot that the request has begun with.
    pub slot: u32,
    /// Maximum number of tokens of the draft.
    pub most: usize,
}

/// Hidden rows of one request in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenSpan {
    /// Slot that the request has begun with.
    pub slot: u32,
    /// Position in prompt and output of the token that the first row belongs to.
    pub first: usize,
    /// Indices of the rows among those of the step.
    pub rows: Range<usize>,
    /// Maximum number of drafts that the request is asked for behind this step; 0 if for none.
    pub most: usize,
}

/// Drafts of the rows of one step, in flat vectors that keep their memory from step to step.
///
/// Every token has a *class*, a number below [`CLASSES`] that says how sure the drafter is. What a class is worth (the
/// share of its tokens that are accepted) differs between models and texts, so it is measured where drafts are
/// verified.
///
/// ```
/// use l4_sampler::draft::Drafts;
///
/// let mut drafts = Drafts::default();
/// drafts.push(17, 3);
/// drafts.push(18, 3);
/// drafts.end_row();
/// drafts.end_row(); // a row without a draft
/// assert_eq!(drafts.len(), 2);
/// assert_eq!(drafts.row(0), (&[17, 18][..], &[3, 3][..]));
/// assert_eq!(drafts.row(1), (&[][..], &[][..]));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drafts {
    tokens: Vec<u32>,
    classes: Vec<u8>,
    /// End of each row in both.
    ends: Vec<usize>,
}

impl Drafts {
    /// Creates an empty list with room for `rows` rows of `tokens` tokens in total.
    pub fn with_capacity(rows: usize, tokens: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens),
            classes: Vec::with_capacity(tokens),
            ends: Vec::with_capacity(rows),
        }
    }

    /// Removes all rows, and keeps their memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.classes.clear();
        self.ends.clear();
    }

    /// Appends a token to the row that [`Drafts::end_row`] will end. A class that does not exist becomes the highest.
    pub fn push(&mut self, token: u32, class: u8) {
        self.tokens.push(token);
        self.classes.push(class.min(CLASSES as u8 - 1));
    }

    /// Ends a row: the tokens since the end of the row before.
    pub fn end_row(&mut self) {
        self.ends.push(self.tokens.len());
    }

    /// Tokens of row `i`, and the class of each. A row that does not exist has none.
    pub fn row(&self, i: usize) -> (&[u32], &[u8]) {
        let Some(&end) = self.ends.get(i) else { return (&[], &[]) };
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        (&self.tokens[start..end], &self.classes[start..end])
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}
