//! Two requests with the same beginning, in a pool of eight blocks:
//! `cargo run -p l3-paged-kv --example shared_prefix`.
//!
//! No model is needed to see what paging does: blocks are numbers.

use l3_paged_kv::{
    Admission, BlockHasher, BlockManager, ExtraKeys, KvError, ManagerConfig, Result, SeqId,
    TokenChain,
};

const BLOCK: usize = 4;

fn main() -> Result<()> {
    // Seven blocks of four tokens, and the null block.
    let mut manager = BlockManager::new(ManagerConfig::new(8, BLOCK))?;
    let hasher = BlockHasher::new(BLOCK);
    let request = |tokens: &[u32]| {
        let mut chain = TokenChain::new(&hasher, ExtraKeys::default());
        chain.extend(tokens);
        chain
    };

    let first = request(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let a = run(&mut manager, "a", &first)?;
    // The first eight tokens are those of a: two blocks are shared, one is new.
    let b = run(&mut manager, "b", &request(&[1, 2, 3, 4, 5, 6, 7, 8, 50, 51]))?;
    // Another beginning shares nothing, whatever comes later.
    let c = run(&mut manager, "c", &request(&[0, 2, 3, 4, 5, 6, 7, 8]))?;

    // Twelve tokens more need three blocks, and one is left: nothing is taken.
    match manager.reserve(c, 20) {
        Err(e @ KvError::NoFreeBlocks { .. }) => println!("c wants 20 tokens: {e}"),
        other => println!("c got {other:?}"),
    }

    for (name, seq) in [("a", a), ("c", c), ("b", b)] {
        manager.free(seq)?;
        show(&manager, &format!("{name} has ended"));
    }
    // What a and b shared is still there, though nobody uses it: at the back of the free list.
    let hit = manager.lookup(&first);
    println!("asked again, a would find {} of its {} tokens", hit.tokens, first.len());
    Ok(())
}

/// Admit a request and compute it in one step.
fn run(manager: &mut BlockManager, name: &str, chain: &TokenChain) -> Result<SeqId> {
    let hit = manager.lookup(chain);
    let want = Admission { up_to_len: chain.len(), ..Admission::default() };
    let seq = manager.admit(chain, &hit, want)?;
    manager.register(seq, chain, chain.len())?;
    // Here a model would run.
    manager.commit_step();
    let table = manager.table(seq)?;
    let (blocks, slot) = (table.blocks(), table.slot(chain.len() - 1));
    println!("{name}: {} tokens cached, blocks {blocks:?}, last token in {slot:?}", hit.tokens);
    show(manager, &format!("{name} is in"));
    Ok(seq)
}

fn show(manager: &BlockManager, when: &str) {
    let free: Vec<_> = manager.pool().free_list().iter().collect();
    println!("    {when}: free {free:?}, {:.0}% in use", 100.0 * manager.usage());
}
