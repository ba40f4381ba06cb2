//! Keys of chunks: everything that bytes depend on makes another key.

use l1_tensor::DType;
use l2_model::ModelDigest;
use l3_paged_kv::tier::{
    ChunkKey, ChunkLayout, DramTier, KeySpace, KvTier, Numerics, Presence, TierOutcome,
};
use l3_paged_kv::{BlockHash, BlockHasher, ExtraKeys, GroupId, TokenChain};
use sha2::{Digest, Sha256};

use crate::support::{bytes, wait};

const MODEL: ModelDigest = ModelDigest([1; 32]);
const LAST: BlockHash = BlockHash([9; 32]);

fn layout() -> ChunkLayout {
    ChunkLayout::new(16, 256).unwrap()
}

/// bf16 everywhere.
fn bf16() -> Numerics {
    Numerics { weights: "bf16".into(), activations: DType::BF16, kv: DType::BF16 }
}

/// A key that differs in one respect from the others.
fn all() -> Vec<(&'static str, ChunkKey)> {
    let key = |space: KeySpace| space.key(GroupId(0), &LAST);
    let (bf16, adapter) = (&bf16(), [3; 32]);
    let kv = |kv| Numerics { kv, ..bf16.clone() };
    let activations = |activations| Numerics { activations, ..bf16.clone() };
    let weights = |name: &str| Numerics { weights: name.into(), ..bf16.clone() };
    let space = |model: &ModelDigest| KeySpace::new(model, None, bf16, layout());
    let other_model = ModelDigest([2; 32]);
    let chunks = |block, tokens| ChunkLayout::new(block, tokens).unwrap();
    vec![
        ("plain", key(space(&MODEL))),
        ("model", key(space(&other_model))),
        ("adapter", key(KeySpace::new(&MODEL, Some(&adapter), bf16, layout()))),
        ("other adapter", key(KeySpace::new(&MODEL, Some(&[4; 32]), bf16, layout()))),
        ("adapter of zeros", key(KeySpace::new(&MODEL, Some(&[0; 32]), bf16, layout()))),
        ("f32", key(KeySpace::new(&MODEL, None, &kv(DType::F32), layout()))),
        ("fp8", key(KeySpace::new(&MODEL, None, &kv(DType::F8E4M3), layout()))),
        ("precision", key(KeySpace::new(&MODEL, None, &activations(DType::F32), layout()))),
        ("quantised weights", key(KeySpace::new(&MODEL, None, &weights("q8_0"), layout()))),
        ("block size", key(KeySpace::new(&MODEL, None, bf16, chunks(32, 256)))),
        ("chunk size", key(KeySpace::new(&MODEL, None, bf16, chunks(16, 512)))),
        ("group", space(&MODEL).key(GroupId(1), &LAST)),
        ("hash", space(&MODEL).key(GroupId(0), &BlockHash([8; 32]))),
    ]
}

#[test]
fn all_that_bytes_depend_on_is_in_the_key() {
    let keys = all();
    for (i, (a, key)) in keys.iter().enumerate() {
        for (b, other) in &keys[..i] {
            assert_ne!(key, other, "{a} and {b}");
        }
    }
    assert_eq!(all(), keys, "the same in every run");
}

#[test]
fn the_key_is_the_documented_hash() {
    let mut hash = Sha256::new();
    hash.update(b"strata kv chunk");
    hash.update([0, 0, 0, 1]);
    hash.update([1; 32]);
    hash.update([0; 33]);
    for format in ["bf16", "BF16", "BF16"] {
        hash.update(4u64.to_be_bytes());
        hash.update(format);
    }
    hash.update(16u64.to_be_bytes());
    hash.update(16u64.to_be_bytes());
    hash.update([0, 0, 0, 0]);
    hash.update([9; 32]);
    let want: [u8; 32] = hash.finalize().into();
    assert_eq!(all()[0].1, ChunkKey(want));
    assert_eq!(all()[0].1.to_string().parse(), Ok(ChunkKey(want)));

    // Each field with a value of its own, so that their order can be seen.
    let mut hash = Sha256::new();
    hash.update(b"strata kv chunk");
    hash.update([0, 0, 0, 1]);
    hash.update([1; 32]);
    hash.update([1]);
    hash.update([3; 32]);
    for (len, format) in [(4u64, "q8_0"), (3, "F32"), (4, "BF16")] {
        hash.update(len.to_be_bytes());
        hash.update(format);
    }
    hash.update(32u64.to_be_bytes());
    hash.update(8u64.to_be_bytes());
    hash.update([0, 0, 1, 2]);
    hash.update([9; 32]);
    let want: [u8; 32] = hash.finalize().into();
    let numerics = Numerics { weights: "q8_0".into(), activations: DType::F32, kv: DType::BF16 };
    let layout = ChunkLayout::new(32, 256).unwrap();
    let space = KeySpace::new(&MODEL, Some(&[3; 32]), &numerics, layout);
    assert_eq!(space.key(GroupId(0x0102), &LAST), ChunkKey(want));
}

#[test]
fn chunks_of_another_model_adapter_or_number_format_never_hit() {
    let mut tier = DramTier::new(1 << 20);
    for (i, (what, key)) in all().into_iter().enumerate() {
        assert_eq!(tier.contains(&key), Presence::Absent, "{what}");
        let ticket = tier.put(&key, bytes(i as u64, 50));
        assert_eq!(wait(&mut tier, ticket), TierOutcome::Stored);
    }
    for (i, (what, key)) in all().into_iter().enumerate() {
        let ticket = tier.get(&key);
        assert_eq!(wait(&mut tier, ticket), TierOutcome::Hit(bytes(i as u64, 50)), "{what}");
    }
}

/// Hashes know adapter and salt by name: so do keys.
#[test]
fn the_salt_and_the_adapters_name_reach_the_key_through_the_hash() {
    let (space, layout) = (KeySpace::new(&MODEL, None, &bf16(), layout()), layout());
    let keys = |lora: Option<&str>, salt: Option<&str>| {
        let lora = lora.map(|name| (name.to_owned(), "path".to_owned()));
        let extra = ExtraKeys { lora, cache_salt: salt.map(str::to_owned) };
        let mut chain = TokenChain::new(&BlockHasher::new(16), extra);
        chain.extend(&(0..600).collect::<Vec<u32>>());
        layout.keys(&space, GroupId(0), chain.hashes())
    };
    let plain = keys(None, None);
    assert_eq!(plain.len(), 2, "whole chunks of 600 tokens");
    assert_eq!(plain, keys(None, None));
    for other in [keys(Some("sql"), None), keys(None, Some("a")), keys(Some("sql"), Some("a"))] {
        assert!(other.iter().all(|key| !plain.contains(key)), "{other:?}");
    }
}

#[test]
fn chunks_that_differ_in_their_last_token_only_have_different_keys() {
    let (space, layout) = (KeySpace::new(&MODEL, None, &bf16(), layout()), layout());
    let keys = |tokens: &[u32]| {
        let mut chain = TokenChain::new(&BlockHasher::new(16), ExtraKeys::default());
        chain.extend(tokens);
        layout.keys(&space, GroupId(0), chain.hashes())
    };
    let mut tokens: Vec<u32> = (0..600).collect();
    let before = keys(&tokens);
    tokens[255] = 7;
    let after = keys(&tokens);
    assert_ne!(after[0], before[0], "token 255 is in the first chunk");
    assert_ne!(after[1], before[1], "the second chunk is behind it");
    tokens[255] = 255;
    tokens[599] = 7;
    assert_eq!(keys(&tokens), before, "the tokens behind the last whole chunk are in no chunk");
}
