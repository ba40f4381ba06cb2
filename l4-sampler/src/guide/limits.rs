//! Limits of a parser's first step.

use llguidance::TokenParser;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{SimpleVob, TokTrie};

/// Enforces a parser's limits (lexer fuel of a step, lexer states) from the first step on.
///
/// llguidance enforces them when it computes a mask. Before that it follows the text that the grammar forces, without
/// any limit: a text of 1 MiB took 300 MiB. So an empty mask is computed first.
pub(super) fn enforce(parser: &mut TokenParser) {
    let trie = parser.token_env.clone();
    parser.parser.compute_bias(&Nothing(trie.tok_trie()), &[]);
    // The next mask is a real one.
    parser.invalidate_bias_cache();
}

/// Computes a mask that allows nothing, without work.
struct Nothing<'a>(&'a TokTrie);

impl BiasComputer for Nothing<'_> {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        self.0.alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.0
    }
}
