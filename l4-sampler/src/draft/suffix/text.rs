//! The longest match of a request's last tokens in a text, and the draft that its occurrences agree on.

use crate::draft::MAX_RESERVED_TOKENS;

/// A text, or several, in which tokens are looked up. A position is the number of a token; newer ones are larger.
pub(super) trait Text {
    /// Token at a position.
    fn token(&self, at: u64) -> u32;
    /// Position of the token before, in the same text.
    fn before(&self, at: u64) -> Option<u64>;
    /// Position of the token behind, in the same text.
    fn after(&self, at: u64) -> Option<u64>;
    /// The next older position where the same two tokens end as at this one.
    fn older(&self, at: u64) -> Option<u64>;
}

/// Maximum number of occurrences that are compared, the newest ones. In source code some pairs of tokens (two line
/// breaks, an indentation) are so frequent that the long match is not among fewer.
pub(super) const MAX_CANDIDATES: usize = 128;

/// Maximum number of occurrences that are visited for them: many outputs can end alike, and nothing follows their ends.
const MAX_VISITED: usize = 4 * MAX_CANDIDATES;

/// Fewest tokens of a match.
pub(super) const MIN_MATCH: usize = 2;

/// Draft from one source, with what is needed to compare it with another.
#[derive(Debug, Default)]
pub(super) struct Guess {
    /// Each token, and its share of the occurrences that agree with the tokens before.
    pub tokens: Vec<(u32, f64)>,
    /// Number of tokens of the match.
    pub matched: usize,
    /// Expected number of accepted tokens: each counts with the product of the shares up to its own.
    pub score: f64,
}

/// What ends a draft.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum number of tokens.
    pub most: usize,
    /// Maximum number of tokens for each token of the match; one token is always allowed.
    pub factor: f64,
    /// Smallest product of shares.
    pub min_prob: f64,
}

/// Memory of a search, which keeps its capacity.
#[derive(Debug)]
pub(super) struct Search {
    /// Position of the next token in each occurrence of the longest match, the newest first.
    behind: Vec<u64>,
    /// Different tokens at these positions, and the number of occurrences that have each.
    votes: Vec<(u32, usize)>,
}

impl Search {
    pub(super) fn new() -> Self {
        Self {
            behind: Vec::with_capacity(MAX_CANDIDATES),
            votes: Vec::with_capacity(MAX_CANDIDATES),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.behind.capacity() * size_of::<u64>()
            + self.votes.capacity() * size_of::<(u32, usize)>()
    }

    /// Writes the draft that `text` gives for `last`, the last tokens of a request, into `guess`. `newest` is the
    /// newest position where the last two of them end.
    pub(super) fn guess(
        &mut self,
        text: &impl Text,
        newest: Option<u64>,
        last: &[u32],
        limits: Limits,
        guess: &mut Guess,
    ) {
        guess.tokens.clear();
        // A longer draft than ever before must not allocate.
        guess.tokens.reserve(limits.most.min(MAX_RESERVED_TOKENS));
        guess.score = 0.0;
        guess.matched = self.longest(text, newest, last);
        // A factor that is negative or not a number becomes 0.
        let most = ((limits.factor * guess.matched as f64) as usize).max(1).min(limits.most);
        let mut prob = 1.0;
        while guess.tokens.len() < most {
            let Some((token, share)) = self.winner(text) else { break };
            prob *= share;
            if prob < limits.min_prob {
                break;
            }
            guess.tokens.push((token, share));
            guess.score += prob;
            self.follow(text, token);
        }
    }

    /// Finds the occurrences of the longest match among the candidates, and returns its number of tokens. Occurrences
    /// behind which nothing follows yet are no candidates.
    fn longest(&mut self, text: &impl Text, newest: Option<u64>, last: &[u32]) -> usize {
        self.behind.clear();
        let (mut best, mut candidates, mut visited) = (0, 0, 0);
        let mut next = newest;
        while let Some(at) = next
            && candidates < MAX_CANDIDATES
            && visited < MAX_VISITED
        {
            next = text.older(at);
            visited += 1;
            let Some(behind) = text.after(at) else { continue };
            candidates += 1;
            let matched = matched(text, at, last);
            if matched > best {
                best = matched;
                self.behind.clear();
            }
            if matched == best && matched >= MIN_MATCH {
                self.behind.push(behind);
            }
        }
        best
    }

    /// The token that most occurrences have next, and their share. Of equals, the one of the newest occurrence wins.
    fn winner(&mut self, text: &impl Text) -> Option<(u32, f64)> {
        self.votes.clear();
        for at in &self.behind {
            let token = text.token(*at);
            match self.votes.iter_mut().find(|(voted, _)| *voted == token) {
                Some((_, votes)) => *votes += 1,
                None => self.votes.push((token, 1)),
            }
        }
        let ahead =
            |best: (u32, usize), next: &(u32, usize)| if next.1 > best.1 { *next } else { best };
        let (first, rest) = self.votes.split_first()?;
        let (token, votes) = rest.iter().fold(*first, ahead);
        Some((token, votes as f64 / self.behind.len() as f64))
    }

    /// Keeps the occurrences that have `token` next, and goes one token on in each. Those that end there drop out.
    fn follow(&mut self, text: &impl Text, token: u32) {
        self.behind.retain_mut(|at| {
            let next = text.after(*at).filter(|_| text.token(*at) == token);
            *at = next.unwrap_or(*at);
            next.is_some()
        });
    }
}

/// Number of tokens that end at a position and are equal to the last ones.
fn matched(text: &impl Text, at: u64, last: &[u32]) -> usize {
    let mut at = Some(at);
    let equal = |token: &&u32| {
        let same = at.is_some_and(|at| text.token(at) == **token);
        at = at.and_then(|at| text.before(at));
        same
    };
    last.iter().rev().take_while(equal).count()
}
