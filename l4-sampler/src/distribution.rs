//! What is left of a row of logits: tokens with their shares, and a draw from them.

/// A distribution over tokens. Made by [`crate::Sampler`], in the order of token ids whatever the filters did, so a draw
/// does not depend on how the filters found their tokens.
///
/// Shares are `e^((logit - max) / temperature)`: the largest is 1, and `total` is their sum in f64.
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    // owner's choice: point / sparse (ids ascending, weights) / dense (weights [V])
}

impl Distribution {
    /// All probability on one token.
    pub fn point(token: u32) -> Self {
        let _ = token;
        todo!()
    }

    /// From shares, ids ascending. Shares need not sum to 1.
    ///
    /// # Errors
    /// [`crate::RowError::NothingLeft`] when nothing has a positive, finite share.
    pub fn from_shares(shares: &[(u32, f32)]) -> Result<Self, crate::RowError> {
        let _ = shares;
        todo!()
    }

    /// The probability of a token; 0 for one that is not there.
    pub fn prob(&self, token: u32) -> f64 {
        let _ = token;
        todo!()
    }

    /// How many tokens have a probability above 0.
    pub fn len(&self) -> usize {
        todo!()
    }

    /// Tokens with their probabilities, ids ascending, each above 0.
    pub fn iter(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        std::iter::empty()
    }

    /// The token at `u` in `[0, 1)`: the first at which the summed probability exceeds it.
    pub fn draw(&self, u: f64) -> u32 {
        let _ = u;
        todo!()
    }

    /// The token at `u` of `max(0, self - other)`, made a distribution again; what a rejected draft is replaced by. Where
    /// nothing is left (the two are equal, so nothing is ever rejected but by rounding), of `self`.
    pub fn draw_residual(&self, other: &Distribution, u: f64) -> u32 {
        let _ = (other, u);
        todo!()
    }
}
