//! Limits of a parser's first step.

use llguidance::TokenParser;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{SimpleVob, TokTrie};

/// Put a parser's limits (lexer fuel of a step, lexer states) into force.
///
/// llguidance does so when it computes a mask, and before that it follows the text that the grammar forces, without any
/// limit: a text of 1 MiB took 300 MiB. So a mask is computed that looks at nothing.
pub(super) fn enforce(parser: &mut TokenParser) {
    let trie = parser.token_env.clone();
    parser.parser.compute_bias(&Nothing(trie.tok_trie()), &[]);
    // The next mask is a real one.
    parser.invalidate_bias_cache();
}

/// Looks at nothing, and allows nothing.
struct Nothing<'a>(&'a TokTrie);

impl BiasComputer for Nothing<'_> {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        self.0.alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.0
    }
}
