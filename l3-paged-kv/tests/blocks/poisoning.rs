//! Who must not see whose blocks: the same words, said to different tenants and through different
//! adapters, never share one.

use l3_paged_kv::hash::shared_key;
use l3_paged_kv::{
    Admission, BlockHasher, BlockManager, ExtraKeys, GroupId, ManagerConfig, TokenChain,
};

fn keys(lora: Option<(&str, &str)>, salt: Option<&str>) -> ExtraKeys {
    ExtraKeys {
        lora: lora.map(|(name, path)| (name.to_owned(), path.to_owned())),
        cache_salt: salt.map(str::to_owned),
    }
}

/// The same 40 tokens under some keys.
fn prompt(keys: &ExtraKeys) -> TokenChain {
    let mut chain = TokenChain::new(&BlockHasher::new(8), keys.clone());
    chain.extend(&(0..40).collect::<Vec<_>>());
    chain
}

fn everybody() -> Vec<ExtraKeys> {
    vec![
        keys(None, None),
        keys(None, Some("tenant-a")),
        keys(None, Some("tenant-b")),
        keys(Some(("sql", "adapters/sql@sha256:01")), None),
        keys(Some(("law", "adapters/law@sha256:02")), None),
        // Loaded again from the same place, with other weights.
        keys(Some(("sql", "adapters/sql@sha256:03")), None),
        keys(Some(("sql", "adapters/sql@sha256:01")), Some("tenant-a")),
        keys(Some(("tenant-a", "")), None),
    ]
}

#[test]
fn tenants_and_adapters_never_share_a_block() {
    let mut manager = BlockManager::new(ManagerConfig::new(100, 8)).unwrap();
    let mut tables = Vec::new();
    for keys in everybody() {
        let chain = prompt(&keys);
        let hit = manager.lookup(&chain);
        assert_eq!(hit.tokens, 0, "tokens that {keys:?} finds of what others said");
        let want = Admission { up_to_len: 40, ..Admission::default() };
        let seq = manager.admit(&chain, &hit, want).unwrap();
        manager.register(seq, &chain, 40).unwrap();
        manager.commit_step();
        tables.push(manager.table(seq).unwrap().blocks().to_vec());
    }
    let mut all: Vec<_> = tables.concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 5 * tables.len(), "different blocks of {} requests", tables.len());
    for (keys, table) in everybody().iter().zip(&tables) {
        let again = manager.lookup(&prompt(keys));
        assert_eq!(again.blocks, table[..4], "{keys:?} finds its own, and nothing else");
    }
}

#[test]
fn every_block_keeps_apart_not_only_the_first() {
    let chains: Vec<_> = everybody().iter().map(prompt).collect();
    for (n, a) in chains.iter().enumerate() {
        for b in &chains[n + 1..] {
            for (index, (a_hash, b_hash)) in a.hashes().iter().zip(b.hashes()).enumerate() {
                assert_ne!(a_hash, b_hash, "block {index} of {:?} and {:?}", a.keys(), b.keys());
            }
        }
    }
}

#[test]
fn specialists_keep_apart_in_every_key_that_leaves_the_process() {
    let hash = prompt(&keys(None, None)).hashes()[0];
    let group = GroupId(0);
    let key = shared_key("coder", group, &hash);
    assert_ne!(key, shared_key("writer", group, &hash), "two specialists");
    assert_ne!(key, shared_key("coder", GroupId(1), &hash), "two groups of layers");
    assert_eq!(key, shared_key("coder", group, &hash), "one specialist, twice");
}
