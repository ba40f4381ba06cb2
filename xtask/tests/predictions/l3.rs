//! The third layer answers its own questions.

use l1_tensor::ops::{AttentionParams, KvCache};
use l1_tensor::{DType, Runtime, RuntimeOptions, Tensor};
use l3_paged_kv::reference::paged_attention;
use l3_paged_kv::sizing::{Budget, Bytes, KvSpec, Memory};
use l3_paged_kv::tier::{
    ChunkKey, ChunkLayout, DRAM_ENTRY_BYTES, DramTier, KvTier, Presence, TierStack,
};
use l3_paged_kv::{
    Admission, BlockHasher, BlockManager, BlockPool, BlockTable, ExtraKeys, ForwardMeta,
    ManagerConfig, SeqId, TokenChain,
};
use serde_json::{Value, json};

use super::l2::config;
use super::{agree, number, numbers};

fn u32s(v: &Value) -> Vec<u32> {
    numbers(v).iter().map(|n| *n as u32).collect()
}

fn manager(num_blocks: usize, block_size: usize) -> BlockManager {
    BlockManager::new(ManagerConfig::new(num_blocks, block_size)).unwrap()
}

/// A chain of these tokens.
fn chain(block_size: usize, tokens: impl IntoIterator<Item = u32>) -> TokenChain {
    let mut chain = TokenChain::new(&BlockHasher::new(block_size), ExtraKeys::default());
    chain.extend(&tokens.into_iter().collect::<Vec<_>>());
    chain
}

/// `len` tokens that no other request has.
fn text(whose: usize, len: usize) -> impl Iterator<Item = u32> {
    (0..len).map(move |i| (10_000 * (whose + 1) + i) as u32)
}

/// Admit a request with room for its whole prompt, and compute it in the open step.
fn admit(manager: &mut BlockManager, chain: &TokenChain) -> l3_paged_kv::Result<SeqId> {
    let hit = manager.lookup(chain);
    let want = Admission { up_to_len: chain.len(), ..Admission::default() };
    let seq = manager.admit(chain, &hit, want)?;
    manager.register(seq, chain, chain.len())?;
    Ok(seq)
}

#[test]
fn blocks_are_handed_out_in_the_order_said() {
    agree(("l3", "evicted-next"), 200, numbers, |facts| {
        let mut manager = manager(number(&facts["last"]) + 1, 4);
        let mut requests = Vec::new();
        for (r, request) in facts["requests"].as_array().unwrap().iter().enumerate() {
            let (full, blocks) = (number(&request["full"]), number(&request["blocks"]));
            let chain = chain(4, text(r, 4 * full + (blocks - full)));
            requests.push((admit(&mut manager, &chain).unwrap(), chain));
        }
        manager.commit_step();
        for r in numbers(&facts["ending"]) {
            manager.free(requests[r].0).unwrap();
        }
        if let Some(r) = facts["back"].as_u64() {
            // One block of the old prompt is hit, and no other is taken.
            let tokens = requests[r as usize].1.tokens()[..4].iter().copied().chain([7]);
            let chain = chain(4, tokens);
            let hit = manager.lookup(&chain);
            assert_eq!(hit.tokens, 4);
            let want = Admission { up_to_len: 4, ..Admission::default() };
            manager.admit(&chain, &hit, want).unwrap();
        }
        let asked = number(&facts["asked"]);
        let next = admit(&mut manager, &chain(4, text(9, 4 * asked))).unwrap();
        let blocks = manager.table(next).unwrap().blocks();
        blocks.iter().map(|block| *block as usize).collect()
    });
}

#[test]
fn a_pool_is_as_full_as_said() {
    let real = |v: &Value| v.as_f64().unwrap();
    agree(
        ("l3", "pool-usage"),
        200,
        |answer| (real(answer) * 1e9).round(),
        |facts| {
            let mut pool = BlockPool::new(number(&facts["num_blocks"])).unwrap();
            let (held, shared) = (numbers(&facts["held"]), number(&facts["shared"]));
            let mut taken = Vec::new();
            for (r, held) in held.iter().enumerate() {
                let own = if r == 1 { held - shared } else { *held };
                taken.extend((0..own).map(|_| pool.pop().unwrap()));
            }
            for block in &taken[..shared] {
                pool.touch(*block).unwrap();
            }
            (pool.usage() * 1e9).round()
        },
    );
}

#[test]
fn blocks_have_the_users_said() {
    agree(("l3", "block-users"), 200, numbers, |facts| {
        let (first, hits, lens) =
            (number(&facts["first"]), numbers(&facts["hits"]), numbers(&facts["lens"]));
        let mut manager = manager(20, 4);
        let mut sequences = Vec::new();
        for r in 0..3 {
            let own = if r == 0 { first } else { lens[r] - hits[r] };
            let tokens = text(0, 4 * hits[r]).chain(text(r, 1000).skip(100 * r).take(4 * own));
            sequences.push(admit(&mut manager, &chain(4, tokens)).unwrap());
        }
        manager.commit_step();
        if let Some(r) = facts["ended"].as_u64() {
            manager.free(sequences[r as usize]).unwrap();
        }
        let all = first + (1..3).map(|r| lens[r] - hits[r]).sum::<usize>();
        (1..=all).map(|block| manager.pool().ref_count(block as u32).unwrap() as usize).collect()
    });
}

#[test]
fn a_token_lies_in_the_slot_said() {
    agree(("l3", "token-slot"), 200, number, |facts| {
        let table = BlockTable::from_blocks(number(&facts["block_size"]), &u32s(&facts["table"]));
        table.slot(number(&facts["position"])).unwrap() as usize
    });
}

#[test]
fn tables_lack_the_blocks_said() {
    agree(("l3", "missing-blocks"), 200, number, |facts| {
        let (size, stored) = (number(&facts["block_size"]), number(&facts["stored"]));
        let mut manager = manager(40, size);
        let seq = admit(&mut manager, &chain(size, text(0, stored))).unwrap();
        let before = manager.num_free();
        manager.reserve(seq, stored + number(&facts["more"])).unwrap();
        before - manager.num_free()
    });
}

#[test]
fn prompts_share_the_blocks_said() {
    let keys = |facts: &Value, which: usize| {
        let word = |v: &Value| v.as_str().map(String::from);
        let adapter = &facts["adapters"][which];
        ExtraKeys {
            lora: word(&adapter[0]).zip(word(&adapter[1])),
            cache_salt: word(&facts["salts"][which]),
        }
    };
    agree(
        ("l3", "same-block"),
        300,
        |answer| answer.as_bool().unwrap(),
        |facts| {
            let (size, len) = (number(&facts["block_size"]), number(&facts["len"]));
            let mut tokens: Vec<u32> = text(0, len).collect();
            let mut first = TokenChain::new(&BlockHasher::new(size), keys(facts, 0));
            first.extend(&tokens);
            if let Some(at) = facts["differ"].as_u64() {
                tokens[at as usize] = 1;
            }
            let mut second = TokenChain::new(&BlockHasher::new(size), keys(facts, 1));
            second.extend(&tokens);
            let mut manager = manager(100, size);
            admit(&mut manager, &first).unwrap();
            manager.lookup(&second).blocks.len() > number(&facts["block"])
        },
    );
}

#[test]
fn as_much_of_a_prompt_is_cached_as_said() {
    agree(("l3", "prefix-hit"), 200, number, |facts| {
        let [size, before, evicted, same, prompt] =
            ["block_size", "before", "evicted", "same", "prompt"].map(|key| number(&facts[key]));
        let mut manager = manager(20, size);
        let seq = admit(&mut manager, &chain(size, text(0, before))).unwrap();
        manager.commit_step();
        manager.free(seq).unwrap();
        // Take every block without a hash, and some with one.
        let others = manager.num_free() - before / size;
        let filler = chain(size, text(1, (others + evicted) * size));
        admit(&mut manager, &filler).unwrap();
        let tokens = text(0, same).chain(text(2, prompt - same));
        manager.lookup(&chain(size, tokens)).tokens
    });
}

#[test]
fn as_many_blocks_are_free_after_an_admission_as_said() {
    agree(("l3", "admit-free"), 200, number, |facts| {
        let [size, used, waiting, prompt, free] =
            ["block_size", "used", "waiting", "prompt", "free"].map(|key| number(&facts[key]));
        let hit = used + waiting;
        let begins_so =
            |blocks: usize, whose: usize| chain(size, text(0, blocks * size).chain(text(whose, 1)));
        let mut manager = manager(free + used + 2, size);
        let ends = admit(&mut manager, &begins_so(hit, 1)).unwrap();
        manager.commit_step();
        admit(&mut manager, &begins_so(used, 2)).unwrap();
        manager.commit_step();
        manager.free(ends).unwrap();
        assert_eq!(manager.num_free(), free);
        let tokens = text(0, hit * size).chain(text(3, prompt - hit * size));
        let chain = chain(size, tokens);
        assert_eq!(manager.lookup(&chain).blocks.len(), hit);
        let _ = admit(&mut manager, &chain);
        manager.num_free()
    });
}

#[test]
fn as_many_tokens_are_hashed_as_said() {
    agree(("l3", "hashed-tokens"), 200, number, |facts| {
        let [size, prompt, generated] =
            ["block_size", "prompt", "generated"].map(|key| number(&facts[key]));
        let mut manager = manager(40, size);
        let mut chain = chain(size, text(0, prompt));
        let seq = admit(&mut manager, &chain).unwrap();
        manager.commit_step();
        for token in 1..generated {
            // The token of the step before is fed in this one.
            chain.push(token as u32);
            manager.reserve(seq, chain.len()).unwrap();
            manager.register(seq, &chain, chain.len()).unwrap();
            manager.commit_step();
        }
        manager.cache().len() * size
    });
}

#[test]
fn those_are_planned_again_who_were_said_to_be() {
    agree(("l3", "replanned"), 200, numbers, |facts| {
        let parents = facts["parents"].as_array().unwrap();
        let mut manager = manager(100, 4);
        let mut prompts: Vec<Vec<u32>> = Vec::new();
        let mut sequences = Vec::new();
        for (r, parent) in parents.iter().enumerate() {
            let mut tokens =
                parent.as_u64().map(|p| prompts[p as usize - 1].clone()).unwrap_or_default();
            tokens.extend(text(r, 8));
            sequences.push(admit(&mut manager, &chain(4, tokens.iter().copied())).unwrap());
            prompts.push(tokens);
        }
        let gone = manager.free(sequences[number(&facts["victim"]) - 1]).unwrap();
        let place = |seq: &SeqId| sequences.iter().position(|s| s == seq).unwrap() + 1;
        let mut gone: Vec<usize> = gone.iter().map(place).collect();
        gone.sort_unstable();
        gone
    });
}

#[test]
fn a_batch_writes_to_the_slots_said() {
    agree(("l3", "batch-slots"), 200, numbers, |facts| {
        let size = number(&facts["block_size"]);
        let mut meta = ForwardMeta::new(100, 3, 20, size);
        for sequence in facts["sequences"].as_array().unwrap() {
            let table = BlockTable::from_blocks(size, &u32s(&sequence["table"]));
            meta.push(&table, number(&sequence["computed"]), number(&sequence["q_len"])).unwrap();
        }
        meta.slot_mapping().iter().map(|slot| *slot as usize).collect()
    });
}

#[test]
fn a_batch_has_the_lengths_said() {
    agree(("l3", "batch-lengths"), 200, numbers, |facts| {
        let mut meta = ForwardMeta::new(100, 4, 20, 8);
        let steps = numbers(&facts["computed"]).into_iter().zip(numbers(&facts["q_lens"]));
        for (computed, q_len) in steps {
            meta.push(&BlockTable::from_blocks(8, &[1; 10]), computed, q_len).unwrap();
        }
        let of =
            if facts["asked"] == "cu_seqlens_q" { meta.cu_seqlens_q() } else { meta.seq_lens_kv() };
        of.iter().map(|n| *n as usize).collect()
    });
}

#[test]
fn queries_see_the_keys_said() {
    const DIM: usize = 64;
    let rt = Runtime::new(RuntimeOptions::default()).unwrap();
    agree(("l3", "keys-seen"), 100, numbers, |facts| {
        let (computed, q_len) = (number(&facts["computed"]), number(&facts["q_len"]));
        let kv_len = computed + q_len;
        // The value of key p is 1 in place p: what is not 0 in a query's output was seen.
        let mut values = vec![0.0; kv_len * DIM];
        (0..kv_len).for_each(|p| values[p * DIM + p] = 1.0);
        let dims = [kv_len, 1, DIM];
        let keys = Tensor::from_slice(&vec![0.0; kv_len * DIM], &dims).unwrap();
        let values = Tensor::from_slice(&values, &dims).unwrap();
        let mut cache = KvCache::new(10, 4, 1, DIM, DType::F32).unwrap();
        let table: Vec<u32> = (1..10).collect();
        let slots: Vec<i64> = (4..4 + kv_len as i64).collect();
        cache.write(&rt, &slots, keys.view(), values.view()).unwrap();
        let mut meta = ForwardMeta::new(10, 1, 9, 4);
        meta.push(&BlockTable::from_blocks(4, &table), computed, q_len).unwrap();
        let window = facts["window"].as_u64().map(|w| w as usize);
        let params = AttentionParams { scale: 1.0, window };
        let (q, mut out) = (vec![0.0; q_len * DIM], vec![0.0; q_len * DIM]);
        paged_attention(&cache, &meta, params, &q, 1, &mut out).unwrap();
        out.chunks(DIM).map(|row| row.iter().filter(|x| **x > 0.0).count()).collect()
    });
}

#[test]
fn a_rollback_copies_what_was_said() {
    agree(("l3", "rollback-copy"), 200, number, |facts| {
        let (size, len) = (number(&facts["block_size"]), number(&facts["len"]));
        let mut manager = manager(20, size);
        let seq = admit(&mut manager, &chain(size, text(0, len))).unwrap();
        manager.commit_step();
        let copy = manager.rollback(seq, number(&facts["to"])).unwrap();
        copy.map_or(0, |copy| copy.tokens)
    });
}

#[test]
fn blocks_take_the_bytes_said() {
    agree(("l3", "block-bytes"), 200, number, |facts| {
        let dtype = match facts["dtype"].as_str().unwrap() {
            "f32" => DType::F32,
            "bf16" => DType::BF16,
            "fp8" => DType::F8E4M3,
            other => panic!("{other}"),
        };
        let spec = KvSpec::from_config(&config(facts), dtype, number(&facts["block_size"]));
        spec.unwrap().bytes_per_block() as usize
    });
}

#[test]
fn a_device_holds_the_blocks_said() {
    // What 16 keys and values of a head of 64 take in bf16: with enough heads, a block is as large
    // as the question says.
    const HEAD: usize = 16 * 2 * 64 * 2;
    agree(("l3", "budget-blocks"), 200, number, |facts| {
        let bytes = |key: &str| Bytes(facts[key].as_u64().unwrap());
        let heads = number(&facts["block_bytes"]) / HEAD;
        let sizes = json!({ "q_heads": heads, "kv_heads": heads, "head_dim": 64 });
        let spec = KvSpec::from_config(&config(&sizes), DType::BF16, 16).unwrap();
        assert_eq!(spec.bytes_per_block() as usize, number(&facts["block_bytes"]));
        let memory = Memory {
            total: bytes("total"),
            utilisation: number(&facts["percent"]) as f64 / 100.0,
            weights: bytes("weights"),
            peak_activation: bytes("peak"),
            margin: bytes("margin"),
        };
        spec.blocks_in(Budget::exact(memory.for_kv().unwrap().0))
    });
}

#[test]
fn a_pool_ends_where_it_was_said_to() {
    agree(("l3", "longest-context"), 40, number, |facts| {
        let [num_blocks, size, requests, shared] =
            ["num_blocks", "block_size", "requests", "shared"].map(|key| number(&facts[key]));
        let fits = |len: usize| {
            let mut manager = manager(num_blocks, size);
            let all = (0..requests).map(|r| {
                let alike = (shared * size).min(len);
                let tokens = text(0, alike).chain(text(r + 1, len - alike));
                admit(&mut manager, &chain(size, tokens))
            });
            all.collect::<Result<Vec<_>, _>>().is_ok()
        };
        let (mut fit, mut too_long) = ((shared + 1) * size, num_blocks * size);
        assert!(fits(fit) && !fits(too_long));
        while too_long - fit > 1 {
            let middle = fit.midpoint(too_long);
            if fits(middle) { fit = middle } else { too_long = middle }
        }
        fit
    });
}

/// Key of chunk `n`.
fn chunk(n: usize) -> ChunkKey {
    ChunkKey([n as u8; 32])
}

#[test]
fn tiers_have_as_many_tokens_of_a_prompt_as_said() {
    agree(("l3", "tier-tokens"), 200, number, |facts| {
        let layout = ChunkLayout::new(16, number(&facts["chunk"])).unwrap();
        let tiers = ["dram", "disk"].map(|name| {
            let mut tier = DramTier::new(1 << 20);
            for n in numbers(&facts[name]) {
                tier.put(&chunk(n), vec![0; 10].into());
            }
            Box::new(tier) as Box<dyn KvTier>
        });
        let keys: Vec<ChunkKey> =
            (0..number(&facts["prompt"]) / layout.tokens()).map(chunk).collect();
        let mut stack = TierStack::new(tiers.into());
        layout.matched_tokens(&mut stack, &keys, number(&facts["from"])).unwrap()
    });
}

#[test]
fn a_full_tier_keeps_the_chunks_said() {
    agree(("l3", "dram-chunks"), 200, numbers, |facts| {
        let mut tier = DramTier::new(number(&facts["room"]) as u64 * (100 + DRAM_ENTRY_BYTES));
        for op in facts["ops"].as_array().unwrap().iter().map(numbers) {
            match op[0] {
                1 => _ = tier.put(&chunk(op[1]), vec![0; 100].into()),
                _ => _ = tier.get(&chunk(op[1])),
            }
        }
        (0..100).filter(|n| tier.contains(&chunk(*n)) == Presence::Present).collect()
    });
}
