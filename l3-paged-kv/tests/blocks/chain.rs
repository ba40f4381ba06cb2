//! Chains of hashes: however tokens come and go, a chain is what hashing them from scratch gives.

use l3_paged_kv::{BlockHash, BlockHasher, ExtraKeys, TokenChain};
use proptest::prelude::*;

fn keys() -> ExtraKeys {
    ExtraKeys {
        lora: Some(("sql".into(), "/adapters/sql".into())),
        cache_salt: Some("tenant".into()),
    }
}

fn from_scratch(hasher: &BlockHasher, tokens: &[u32], keys: &ExtraKeys) -> Vec<BlockHash> {
    let mut hashes: Vec<BlockHash> = Vec::new();
    for (i, block) in tokens.chunks_exact(hasher.block_size()).enumerate() {
        hashes.push(hasher.hash(hashes.last(), i, block, keys));
    }
    hashes
}

fn check(chain: &TokenChain, hasher: &BlockHasher, tokens: &[u32]) -> Result<(), TestCaseError> {
    prop_assert_eq!(chain.tokens(), tokens, "tokens");
    prop_assert_eq!(chain.len(), tokens.len(), "len");
    prop_assert_eq!(chain.is_empty(), tokens.is_empty(), "is_empty");
    let want = from_scratch(hasher, tokens, chain.keys());
    prop_assert_eq!(chain.hashes(), want, "hashes of {} tokens", tokens.len());
    Ok(())
}

/// What may happen to a chain.
#[derive(Clone, Debug)]
enum Change {
    Extend(Vec<u32>),
    Push(u32),
    /// To this part of its length, in percent; beyond 100 it must change nothing.
    Truncate(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        prop::collection::vec(0..50u32, 0..40).prop_map(Change::Extend),
        (0..50u32).prop_map(Change::Push),
        (0..130usize).prop_map(Change::Truncate),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_of_changes_gives_the_hashes_of_what_is_left(
        block_size in prop::sample::select(vec![1usize, 2, 3, 4, 8, 16]),
        changes in prop::collection::vec(change(), 0..20),
    ) {
        let hasher = BlockHasher::new(block_size);
        let mut chain = TokenChain::new(&hasher, keys());
        let mut tokens: Vec<u32> = Vec::new();
        for change in changes {
            match change {
                Change::Extend(more) => {
                    chain.extend(&more);
                    tokens.extend(more);
                }
                Change::Push(token) => {
                    chain.push(token);
                    tokens.push(token);
                }
                Change::Truncate(percent) => {
                    let len = tokens.len() * percent / 100;
                    chain.truncate(len);
                    tokens.truncate(len);
                }
            }
            check(&chain, &hasher, &tokens)?;
        }
    }

    #[test]
    fn how_tokens_are_chunked_cannot_be_seen(
        tokens in prop::collection::vec(any::<u32>(), 0..200),
        cuts in prop::collection::vec(1..40usize, 1..10),
    ) {
        let hasher = BlockHasher::new(8);
        let mut whole = TokenChain::new(&hasher, keys());
        whole.extend(&tokens);
        let mut chunked = TokenChain::with_capacity(&hasher, keys(), tokens.len());
        let mut rest = &tokens[..];
        for cut in cuts.iter().cycle() {
            let (chunk, after) = rest.split_at((*cut).min(rest.len()));
            chunked.extend(chunk);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(chunked.hashes(), whole.hashes());
        check(&whole, &hasher, &tokens)?;
    }
}

#[test]
fn only_full_blocks_have_a_hash() {
    let mut chain = TokenChain::new(&BlockHasher::new(4), ExtraKeys::default());
    assert!(chain.is_empty() && chain.hashes().is_empty(), "an empty chain");
    chain.extend(&[1, 2, 3]);
    assert_eq!(chain.hashes().len(), 0, "hashes after 3 tokens of 4");
    chain.push(4);
    assert_eq!(chain.hashes().len(), 1, "hashes after the 4th");
    chain.extend(&[5, 6, 7]);
    assert_eq!(chain.hashes().len(), 1, "hashes after 7");
    chain.truncate(3);
    assert_eq!(chain.hashes().len(), 0, "hashes after going back to 3");
}

/// 100 tokens fill six blocks of sixteen; the last four tokens wait for twelve more.
#[test]
fn a_hundred_tokens_have_six_hashes_at_block_size_sixteen() {
    let mut chain = TokenChain::new(&BlockHasher::new(16), ExtraKeys::default());
    chain.extend(&(0..100).collect::<Vec<u32>>());
    assert_eq!(chain.hashes().len() * chain.block_size(), 96, "tokens in hashed blocks");
}

#[test]
fn other_tokens_after_going_back_give_other_hashes() {
    let hasher = BlockHasher::new(4);
    let mut chain = TokenChain::new(&hasher, ExtraKeys::default());
    chain.extend(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let before = chain.hashes().to_vec();
    chain.truncate(6);
    chain.extend(&[9, 9]);
    assert_eq!(chain.hashes()[0], before[0], "the block before the change");
    assert_ne!(chain.hashes()[1], before[1], "the block with other tokens at its end");
}

/// The addresses stay: nothing was allocated on the way.
#[test]
fn within_its_capacity_a_chain_does_not_move() {
    let mut chain = TokenChain::with_capacity(&BlockHasher::new(8), keys(), 1000);
    let at = (chain.tokens().as_ptr(), chain.hashes().as_ptr());
    (0..1000).for_each(|token| chain.push(token));
    assert_eq!(chain.hashes().len(), 125, "blocks");
    assert_eq!((chain.tokens().as_ptr(), chain.hashes().as_ptr()), at, "where they lie");
}
