//! Drafts from the request's own text and from the outputs of other requests: what most occurrences continue with.
//!
//! The idea is SuffixDecoding (Oliaro and others, arXiv 2411.04975): find the longest suffix of the request's tokens in
//! texts that are there, follow the continuation that is most frequent, stop where it is no longer likely, and draft
//! more behind a longer match. The paper keeps a suffix tree of all outputs. Here each two tokens are linked to where
//! they stood before, and a proposal compares the newest occurrences.

mod options;
mod outputs;
mod own;
mod tenants;
mod text;

use std::collections::HashMap;

use outputs::Outputs;
use own::OwnText;
use tenants::Tenants;
use text::{Guess, Limits, MIN_MATCH, Search};

pub use options::{MAX_CACHED_TOKENS, MAX_TREE_DEPTH, SuffixOptions};

use super::{DraftRow, Drafter, Drafts, MAX_RESERVED_TOKENS};

/// Drafter that looks up the last tokens of a request in its own text, and in the outputs of all requests of its
/// tenant, ended and running.
///
/// In each of the two, the newest occurrences of the last two tokens are compared, 128 at most, and those with the
/// longest match are kept. They vote token by token: the most frequent next token is drafted, and the occurrences that
/// have it vote on. The draft of the two with the higher expected number of accepted tokens is proposed.
///
/// Outputs share one ring of [`SuffixOptions::max_cached_tokens`] tokens; the oldest tokens leave it first, whose
/// tenant they may be. It costs 28 bytes a token, and a running request 16 bytes for each token of its text.
///
/// The class of a drafted token is `4 * share + match`: 0 to 3 for its share of the votes (below 1/2, below 3/4, below
/// 1, all), and 0 to 3 for the length of the match (up to 3, 7, 15 tokens, longer).
///
/// ```
/// use l4_sampler::draft::{DraftRow, Drafter, Drafts, SuffixDrafter, SuffixOptions};
///
/// let mut drafter = SuffixDrafter::new(SuffixOptions::default());
/// drafter.begin(0, &[1, 2], Some("team-a"), 100);
/// drafter.extend(0, &[10, 11, 12, 13, 14]);
/// drafter.end(0);
///
/// // Another prompt, but the output begins alike.
/// drafter.begin(0, &[3, 4], Some("team-a"), 100);
/// drafter.begin(1, &[3, 4], Some("team-b"), 100);
/// drafter.extend(0, &[10, 11, 12]);
/// drafter.extend(1, &[10, 11, 12]);
/// let mut drafts = Drafts::default();
/// drafter.propose(&[DraftRow { slot: 0, most: 5 }, DraftRow { slot: 1, most: 5 }], &mut drafts);
/// assert_eq!(drafts.row(0).0, [13, 14]);
/// assert!(drafts.row(1).0.is_empty()); // the other tenant's outputs are not looked at
/// ```
#[derive(Debug)]
pub struct SuffixDrafter {
    options: SuffixOptions,
    outputs: Outputs,
    tenants: Tenants,
    requests: HashMap<u32, Request>,
    search: Search,
    /// Drafts from the request's own text and from the outputs, while one of them is chosen.
    guesses: [Guess; 2],
}

/// A running request.
#[derive(Debug)]
struct Request {
    tenant: u32,
    text: OwnText,
    /// Position of its last token among the outputs.
    last: Option<u64>,
}

impl SuffixDrafter {
    /// Creates a drafter that has seen no output. Options outside their range count as the nearest value in it
    /// ([`SuffixOptions::check`] finds them).
    pub fn new(options: SuffixOptions) -> Self {
        let options = options.nearest();
        Self {
            options,
            outputs: Outputs::new(options.max_cached_tokens),
            tenants: Tenants::new(),
            requests: HashMap::new(),
            search: Search::new(),
            guesses: Default::default(),
        }
    }

    /// Options, as they count.
    pub fn options(&self) -> &SuffixOptions {
        &self.options
    }

    /// Number of output tokens that can be found, at most [`SuffixOptions::max_cached_tokens`].
    pub fn cached_tokens(&self) -> usize {
        self.outputs.len()
    }

    /// Bytes of memory: the ring, which is reserved at the beginning, and the texts of running requests.
    pub fn bytes(&self) -> usize {
        let texts: usize = self.requests.values().map(|request| request.text.bytes()).sum();
        let guesses = self.guesses.iter().map(|g| g.tokens.capacity() * size_of::<(u32, f64)>());
        self.outputs.bytes()
            + self.tenants.bytes()
            + self.requests.capacity() * (size_of::<(u32, Request)>() + 1)
            + texts
            + self.search.bytes()
            + guesses.sum::<usize>()
    }

    /// Writes the better of the two drafts for a row into `out`.
    fn draft(&mut self, row: DraftRow, out: &mut Drafts) {
        let Some(request) = self.requests.get(&row.slot) else { return };
        let last = request.text.last(self.options.max_tree_depth);
        let [.., a, b] = *last else { return };
        let limits = Limits {
            most: row.most,
            factor: self.options.max_spec_factor,
            min_prob: self.options.min_token_prob,
        };
        let [own, others] = &mut self.guesses;
        self.search.guess(&request.text, request.text.newest(), last, limits, own);
        let newest = self.outputs.newest(request.tenant, [a, b]);
        self.search.guess(&self.outputs, newest, last, limits, others);
        let best = if others.score > own.score { others } else { own };
        for (token, share) in &best.tokens {
            out.push(*token, class(*share, best.matched));
        }
    }
}

impl Drafter for SuffixDrafter {
    fn begin(&mut self, slot: u32, prompt: &[u32], tenant: Option<&str>, max_new: usize) {
        self.end(slot);
        let room = prompt.len() + max_new.min(MAX_RESERVED_TOKENS);
        let mut text = OwnText::with_room(room);
        prompt.iter().for_each(|token| text.push(*token));
        let tenant = self.tenants.enter(tenant);
        self.requests.insert(slot, Request { tenant, text, last: None });
    }

    fn extend(&mut self, slot: u32, tokens: &[u32]) {
        let Some(request) = self.requests.get_mut(&slot) else { return };
        for token in tokens {
            request.text.push(*token);
            let Some((at, evicted)) = self.outputs.push(request.tenant, request.last, *token)
            else {
                continue;
            };
            request.last = Some(at);
            self.tenants.use_again(request.tenant);
            if let Some(tenant) = evicted {
                self.tenants.leave(tenant);
            }
        }
    }

    fn propose(&mut self, rows: &[DraftRow], out: &mut Drafts) {
        for row in rows {
            self.draft(*row, out);
            out.end_row();
        }
    }

    fn end(&mut self, slot: u32) {
        if let Some(request) = self.requests.remove(&slot) {
            self.tenants.leave(request.tenant);
        }
    }
}

/// Confidence class of a token with this share of the votes behind a match of so many tokens.
fn class(share: f64, matched: usize) -> u8 {
    let above = |bounds: [bool; 3]| bounds.iter().filter(|above| **above).count() as u8;
    let share = above([share >= 0.5, share >= 0.75, share >= 1.0]);
    let matched = above([matched > 3, matched > 7, matched > 15]);
    4 * share + matched
}

// A draft needs a match, and the two tokens it begins with are looked up as a pair.
const _: () = assert!(MIN_MATCH == 2);
