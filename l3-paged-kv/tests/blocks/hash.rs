//! Block hashes against those that vLLM computes, their encoding against a decoder written from the
//! RFC, and all the ways in which two blocks must not meet.

use std::collections::HashMap;

use l3_paged_kv::hash::shared_key;
use l3_paged_kv::{BlockHash, BlockHasher, ExtraKeys, GroupId};
use proptest::prelude::*;
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// `fixtures/kv-hashes/sha256_cbor.json`: what vLLM 0.32.0 computed.
#[derive(Deserialize)]
struct Known {
    seed: String,
    none_hash: BlockHash,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    block_size: usize,
    tokens: Vec<u32>,
    lora: Option<(String, String)>,
    cache_salt: Option<String>,
    block_hashes: Vec<BlockHash>,
}

fn known() -> Known {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/kv-hashes/sha256_cbor.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The hashes of all full blocks, with nothing but `BlockHasher`.
fn hashes(hasher: &BlockHasher, tokens: &[u32], keys: &ExtraKeys) -> Vec<BlockHash> {
    let mut hashes: Vec<BlockHash> = Vec::new();
    for (i, block) in tokens.chunks_exact(hasher.block_size()).enumerate() {
        hashes.push(hasher.hash(hashes.last(), i, block, keys));
    }
    hashes
}

fn salt(salt: &str) -> ExtraKeys {
    ExtraKeys { cache_salt: Some(salt.into()), ..ExtraKeys::default() }
}

fn lora(name: &str, path: &str) -> ExtraKeys {
    ExtraKeys { lora: Some((name.into(), path.into())), ..ExtraKeys::default() }
}

#[test]
fn the_parent_of_a_first_block_is_the_hash_of_the_seed() {
    let known = known();
    assert_eq!(known.seed, BlockHasher::SEED, "the seed of the known answers");
    assert_eq!(BlockHasher::new(16).none_hash(), known.none_hash, "none hash, default seed");
    let other = BlockHasher::with_seed(16, "another seed");
    assert_ne!(other.none_hash(), known.none_hash, "none hash, another seed");
}

#[test]
fn every_block_has_the_hash_that_vllm_gives_it() {
    let known = known();
    assert!(known.cases.len() >= 5, "cases in the fixture");
    for case in known.cases {
        let hasher = BlockHasher::new(case.block_size);
        let keys = ExtraKeys { lora: case.lora, cache_salt: case.cache_salt };
        let got = hashes(&hasher, &case.tokens, &keys);
        assert_eq!(got, case.block_hashes, "hashes of case `{}`", case.name);
    }
}

/// A CBOR item of a kind that occurs.
#[derive(Clone, Debug, PartialEq)]
enum Item {
    Uint(u64),
    Bytes(Vec<u8>),
    Text(String),
    Array(Vec<Item>),
    Null,
}

/// One item from the front of `bytes`. Refuses what RFC 8949, section 4.2.1, does not allow: an
/// argument that would fit fewer bytes, an indefinite length.
fn decode(bytes: &mut &[u8]) -> Result<Item, String> {
    let first = take(bytes, 1)?[0];
    if first == 0xf6 {
        return Ok(Item::Null);
    }
    let (wide, least) = match first & 31 {
        24 => (1, 24),
        25 => (2, 1 << 8),
        26 => (4, 1 << 16),
        27 => (8, 1 << 32),
        _ => (0, 0),
    };
    let mut argument = u64::from(first & 31);
    if wide > 0 {
        argument = take(bytes, wide)?.iter().fold(0, |n, b| n << 8 | u64::from(*b));
    } else if argument > 27 {
        return Err(format!("reserved or indefinite length in {first:#04x}"));
    }
    if argument < least {
        return Err(format!("{argument} is written in {wide} bytes, which is not the shortest"));
    }
    match first >> 5 {
        0 => Ok(Item::Uint(argument)),
        2 => Ok(Item::Bytes(take(bytes, argument as usize)?.to_vec())),
        3 => {
            let text = String::from_utf8(take(bytes, argument as usize)?.to_vec());
            text.map(Item::Text).map_err(|e| e.to_string())
        }
        4 => (0..argument).map(|_| decode(bytes)).collect::<Result<_, _>>().map(Item::Array),
        major => Err(format!("major type {major} has no business here")),
    }
}

fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Result<&'a [u8], String> {
    let (taken, rest) = bytes.split_at_checked(n).ok_or("the bytes end inside of an item")?;
    *bytes = rest;
    Ok(taken)
}

fn token() -> impl Strategy<Value = u32> {
    let edges = vec![0, 23, 24, 255, 256, 65_535, 65_536, u32::MAX];
    prop_oneof![0..24u32, 0..300u32, 0..70_000u32, any::<u32>(), prop::sample::select(edges)]
}

fn keys() -> impl Strategy<Value = ExtraKeys> {
    // Lengths around 24 and 256, where the head of a text grows; and longer than any buffer.
    let text = || prop_oneof![".{0,30}", "[a-c/]{250,260}", "[a-c/]{600,700}"];
    let parts = (prop::option::of((text(), text())), prop::option::of(text()));
    parts.prop_map(|(lora, cache_salt)| ExtraKeys { lora, cache_salt })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_hashed_is_canonical_cbor_of_parent_tokens_and_keys(
        tokens in prop::collection::vec(token(), 1..300),
        keys in keys(),
        parent in prop::option::of(any::<[u8; 32]>()),
        index in 0..3usize,
    ) {
        let hasher = BlockHasher::new(tokens.len());
        let parent = parent.map(BlockHash);
        let bytes = hasher.encoded(parent.as_ref(), index, &tokens, &keys);
        let mut rest = &bytes[..];
        let item = decode(&mut rest).map_err(TestCaseError::fail)?;
        prop_assert!(rest.is_empty(), "{} bytes after the item", rest.len());

        let text = |s: &str| Item::Text(s.into());
        let mut extra = Vec::new();
        if let Some((name, path)) = &keys.lora {
            extra.push(Item::Array(vec![text("lora"), text(name), text(path)]));
        }
        if let (Some(salt), 0) = (&keys.cache_salt, index) {
            extra.push(Item::Array(vec![text("cache_salt"), text(salt)]));
        }
        let want = Item::Array(vec![
            Item::Bytes(parent.unwrap_or(hasher.none_hash()).0.to_vec()),
            Item::Array(tokens.iter().map(|t| Item::Uint(u64::from(*t))).collect()),
            if extra.is_empty() { Item::Null } else { Item::Array(extra) },
        ]);
        prop_assert_eq!(item, want);

        let hash = hasher.hash(parent.as_ref(), index, &tokens, &keys);
        prop_assert_eq!(hash.0, <[u8; 32]>::from(Sha256::digest(&bytes)), "sha256 of those bytes");
    }
}

#[test]
fn equal_blocks_after_different_beginnings_differ() {
    let hasher = BlockHasher::new(4);
    let keys = ExtraKeys::default();
    let a = hashes(&hasher, &[1, 2, 3, 4, 9, 9, 9, 9], &keys);
    let b = hashes(&hasher, &[5, 6, 7, 8, 9, 9, 9, 9], &keys);
    assert_ne!(a[1], b[1], "the second block, same tokens, another block before it");
    let repeated = hashes(&hasher, &[9; 12], &keys);
    assert_ne!(repeated[0], repeated[1], "the same tokens in block 0 and 1");
    assert_ne!(repeated[1], repeated[2], "the same tokens in block 1 and 2");
}

#[test]
fn the_order_of_tokens_matters() {
    let hasher = BlockHasher::new(2);
    let keys = ExtraKeys::default();
    assert_ne!(hasher.hash(None, 0, &[1, 2], &keys), hasher.hash(None, 0, &[2, 1], &keys));
}

#[test]
fn two_tenants_share_no_block() {
    let hasher = BlockHasher::new(4);
    let tokens: Vec<u32> = (0..32).collect();
    let of = |keys: &ExtraKeys| hashes(&hasher, &tokens, keys);
    let (none, a, b) = (of(&ExtraKeys::default()), of(&salt("a")), of(&salt("b")));
    for i in 0..none.len() {
        assert_ne!(a[i], b[i], "block {i} of tenants a and b");
        assert_ne!(a[i], none[i], "block {i} with and without a salt");
    }
    assert_ne!(of(&salt(""))[0], none[0], "block 0 with an empty salt and with none");
    // The salt itself is in block 0 only: after the same parent, it says nothing.
    let parent = Some(&none[0]);
    let later = hasher.hash(parent, 1, &tokens[4..8], &salt("a"));
    assert_eq!(later, none[1], "block 1 with a salt, after a given parent");
}

#[test]
fn two_adapters_share_no_block() {
    let hasher = BlockHasher::new(4);
    let tokens: Vec<u32> = (0..16).collect();
    let variants = [
        ExtraKeys::default(),
        lora("sql", "/adapters/sql"),
        lora("sql", "/adapters/sql#sha256=01"),
        lora("sql", "/adapters/sql#sha256=02"),
        lora("code", "/adapters/sql"),
        // Where a name ends and a path begins is part of the hash.
        lora("a", "b/c"),
        lora("a/b", "c"),
        lora("", "a/b/c"),
        // Nor can a salt look like an adapter.
        salt("a"),
        salt("lora"),
        ExtraKeys { cache_salt: Some("a".into()), ..lora("a", "b/c") },
    ];
    let mut seen: HashMap<BlockHash, usize> = HashMap::new();
    for (n, keys) in variants.iter().enumerate() {
        for hash in hashes(&hasher, &tokens, keys) {
            if let Some(other) = seen.insert(hash, n) {
                panic!("{:?} and {:?} share a block", variants[other], keys);
            }
        }
    }
}

#[test]
fn an_adapter_counts_in_every_block_not_only_through_the_parent() {
    let hasher = BlockHasher::new(4);
    let parent = hasher.none_hash();
    let with = hasher.hash(Some(&parent), 3, &[1, 2, 3, 4], &lora("sql", "/adapters/sql"));
    let without = hasher.hash(Some(&parent), 3, &[1, 2, 3, 4], &ExtraKeys::default());
    assert_ne!(with, without, "block 3 after the same parent, with and without an adapter");
}

#[test]
fn engines_under_different_seeds_share_no_block() {
    let (a, b) = (BlockHasher::with_seed(4, "a"), BlockHasher::with_seed(4, "b"));
    let keys = ExtraKeys::default();
    let (a, b) = (hashes(&a, &[1; 8], &keys), hashes(&b, &[1; 8], &keys));
    assert_ne!(a[0], b[0], "block 0 under seeds a and b");
    assert_ne!(a[1], b[1], "block 1 under seeds a and b");
}

#[test]
fn the_key_of_a_shared_cache_spells_out_namespace_hash_and_group() {
    let hash = BlockHash(std::array::from_fn(|i| i as u8));
    let key = shared_key("sql", GroupId(0x0102_0304), &hash);
    let mut want = vec![0, 0, 0, 0, 0, 0, 0, 3, b's', b'q', b'l'];
    want.extend(0..32);
    want.extend([1, 2, 3, 4]);
    assert_eq!(key, want, "length, namespace, hash, group");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Also where a namespace is made of bytes that look like the rest of another's key.
    #[test]
    fn different_specialists_groups_or_hashes_never_share_a_key(
        a in ("[ab\0]{0,3}", 0..3u32, 0..3u8),
        b in ("[ab\0]{0,3}", 0..3u32, 0..3u8),
    ) {
        let key = |(name, group, fill): &(String, u32, u8)| {
            shared_key(name, GroupId(*group), &BlockHash([*fill; 32]))
        };
        prop_assert_eq!(a == b, key(&a) == key(&b));
    }
}

#[test]
fn a_hash_reads_and_writes_as_hexadecimal() {
    let text = "00ff10".to_owned() + &"ab".repeat(29);
    let hash: BlockHash = text.parse().unwrap();
    assert_eq!(hash.0[..4], [0x00, 0xff, 0x10, 0xab], "the first bytes");
    assert_eq!(hash.to_string(), text, "displayed");
    let json = serde_json::to_string(&hash).unwrap();
    assert_eq!(json, format!("\"{text}\""), "in JSON");
    assert_eq!(serde_json::from_str::<BlockHash>(&json).unwrap(), hash, "and back");
    let upper: BlockHash = text.to_uppercase().parse().unwrap();
    assert_eq!(upper, hash, "in capitals");
}

#[test]
fn what_is_not_a_hash_is_refused() {
    let hex = "ab".repeat(32);
    let umlaut = format!("{}ä", &hex[..62]);
    for bad in ["", "ab", &hex[1..], &format!("{hex}a"), &format!("+{}", &hex[1..]), &umlaut] {
        let error = bad.parse::<BlockHash>().expect_err(bad);
        assert!(error.to_string().contains("64 hexadecimal digits"), "{error}");
    }
}
