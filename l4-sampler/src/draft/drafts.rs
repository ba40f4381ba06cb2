//! Drafts of one step, and what is asked for.

use std::mem::swap;
use std::ops::Range;

use crate::Distribution;

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
/// A draft that was drawn has the distribution that it was drawn from. In a row, all have or none has.
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
#[derive(Clone, Debug, Default)]
pub struct Drafts {
    tokens: Vec<u32>,
    classes: Vec<u8>,
    /// End of each row in both.
    ends: Vec<usize>,
    /// What tokens were drawn from: the first `drawn`. The others are kept for their memory.
    from: Vec<Distribution>,
    drawn: usize,
    /// End of each row in `from`.
    drawn_ends: Vec<usize>,
}

impl Drafts {
    /// Creates an empty list with room for `rows` rows of `tokens` tokens in total.
    pub fn with_capacity(rows: usize, tokens: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens),
            classes: Vec::with_capacity(tokens),
            ends: Vec::with_capacity(rows),
            from: Vec::new(),
            drawn: 0,
            drawn_ends: Vec::with_capacity(rows),
        }
    }

    /// Removes all rows, and keeps their memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.classes.clear();
        self.ends.clear();
        self.drawn = 0;
        self.drawn_ends.clear();
    }

    /// Appends a token to the row that [`Drafts::end_row`] will end. A class that does not exist becomes the highest.
    pub fn push(&mut self, token: u32, class: u8) {
        self.tokens.push(token);
        self.classes.push(class.min(CLASSES as u8 - 1));
    }

    /// Appends a token that was drawn from `from`, and leaves an old distribution there, whose memory can be reused.
    pub fn push_drawn(&mut self, token: u32, class: u8, from: &mut Distribution) {
        self.push(token, class);
        if self.from.len() == self.drawn {
            self.from.push(Distribution::default());
        }
        swap(&mut self.from[self.drawn], from);
        self.drawn += 1;
    }

    /// Ends a row: the tokens since the end of the row before.
    pub fn end_row(&mut self) {
        self.ends.push(self.tokens.len());
        self.drawn_ends.push(self.drawn);
    }

    /// Tokens of row `i`, and the class of each. A row that does not exist has none.
    pub fn row(&self, i: usize) -> (&[u32], &[u8]) {
        let row = span(&self.ends, i);
        (&self.tokens[row.clone()], &self.classes[row])
    }

    /// What each token of row `i` was drawn from; empty if they were not drawn.
    pub fn drawn_from(&mut self, i: usize) -> &mut [Distribution] {
        &mut self.from[span(&self.drawn_ends, i)]
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

/// Range of row `i` in a list whose rows end at `ends`; empty if there is no such row.
fn span(ends: &[usize], i: usize) -> Range<usize> {
    let Some(&end) = ends.get(i) else { return 0..0 };
    let start = if i == 0 { 0 } else { ends[i - 1] };
    start..end
}
