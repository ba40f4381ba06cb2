//! What a page holds, held against what was recorded.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use l3_paged_kv::trace::{self, BlockObserver, BlockOp, Recorder};
use l3_paged_kv::{
    Admission, BlockHasher, BlockId, BlockManager, ExtraKeys, ManagerConfig, TokenChain,
};
use serde_json::{Value, json};

use super::load;
use super::mirror::Mirror;
use super::page::Page;

const NUM_BLOCKS: usize = 9;

/// A manager's ops, under names that a test chose.
struct Named(Arc<Mutex<Recorder<Vec<u8>>>>, Arc<Mutex<Vec<String>>>);

impl BlockObserver for Named {
    fn observe(&mut self, op: &BlockOp<'_>) {
        let op = match op {
            BlockOp::SequenceBegins { seq, .. } => {
                let label = self.1.lock().unwrap().remove(0).into();
                BlockOp::SequenceBegins { seq: *seq, label }
            }
            op => op.clone(),
        };
        self.0.lock().unwrap().observe(&op);
    }
}

/// Two prompts that begin alike, a third that must evict, a step that is abandoned, and a refusal.
fn recorded(names: [&str; 4]) -> String {
    let recorder = Arc::new(Mutex::new(Recorder::new(Vec::new())));
    let names = Arc::new(Mutex::new(names.map(str::to_owned).to_vec()));
    let mut manager = BlockManager::new(ManagerConfig::new(NUM_BLOCKS, 4)).unwrap();
    manager.set_observer(Some(Box::new(Named(recorder.clone(), names)))).unwrap();
    let enter = |manager: &mut BlockManager, tokens: &[u32]| {
        let mut chain = TokenChain::new(&BlockHasher::new(4), ExtraKeys::default());
        chain.extend(tokens);
        let hit = manager.lookup(&chain);
        let want = Admission { up_to_len: chain.len(), ..Admission::default() };
        let seq = manager.admit(&chain, &hit, want)?;
        manager.register(seq, &chain, chain.len())?;
        manager.note(&BlockOp::Wrote { seq, from: hit.tokens, to: chain.len() });
        Ok::<_, l3_paged_kv::KvError>((seq, chain))
    };
    let (a, _) = enter(&mut manager, &[1, 2, 3, 4, 5, 6]).unwrap();
    manager.commit_step();
    let (b, _) = enter(&mut manager, &[1, 2, 3, 4, 7, 8]).unwrap();
    manager.commit_step();
    manager.free(a).unwrap();
    manager.free(b).unwrap();
    enter(&mut manager, &(100..130).collect::<Vec<_>>()).unwrap();
    enter(&mut manager, &[9]).unwrap_err();
    manager.abandon_step();
    enter(&mut manager, &[1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
    manager.commit_step();
    drop(manager);
    let recorder = Arc::into_inner(recorder).unwrap().into_inner().unwrap();
    String::from_utf8(recorder.into_inner()).unwrap()
}

fn page_of(recording: &str) -> Page {
    load(recording.as_bytes(), "run.jsonl", 1000).unwrap()
}

fn html_of(page: &Page) -> String {
    let mut html = Vec::new();
    page.write(&mut html).unwrap();
    String::from_utf8(html).unwrap()
}

/// What the page's script will read.
fn data_in(html: &str) -> Value {
    let (_, rest) = html.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn the_frames_of_a_page_lead_through_the_states_of_the_recording() {
    let recording = recorded(["a", "b", "c", "d"]);
    let page = page_of(&recording);
    let mut reader = trace::read(recording.as_bytes()).unwrap();
    let mut mirror = Mirror::default();
    let mut looked_at = 0;
    while reader.next_frame().unwrap().is_some() {
        let frame = &page.frames[looked_at];
        mirror.apply(&frame.deltas);
        let state = reader.state();
        let free: Vec<BlockId> = state.free().collect();
        assert_eq!(mirror.free(NUM_BLOCKS), free, "free after `{}`", frame.text);
        for block in 1..NUM_BLOCKS as BlockId {
            let (users, hash, pending) = mirror.shown(block);
            assert_eq!(users, state.users(block), "users of {block} after `{}`", frame.text);
            let shown = hash.flatten().map(|hash| (page.hashes[hash].short.clone(), pending));
            let expected =
                state.hashed(block).map(|h| (h.hash.to_string()[..8].to_owned(), h.pending));
            assert_eq!(shown, expected, "hash of {block} after `{}`", frame.text);
        }
        let shown: Vec<_> =
            mirror.tables().iter().map(|(seq, t)| (&page.sequences[*seq], t)).collect();
        let mut expected: Vec<_> = state.tables().values().collect();
        expected.sort_by_key(|table| &table.label);
        assert_eq!(shown.len(), expected.len(), "tables after `{}`", frame.text);
        for ((label, (blocks, stored)), table) in shown.into_iter().zip(expected) {
            assert_eq!((label, blocks, *stored), (&table.label, &table.blocks, table.stored));
        }
        looked_at += 1;
    }
    assert_eq!(looked_at, page.frames.len(), "frames");
    assert_eq!(page.checks.last(), Some(&(looked_at - 1, mirror.digest())), "the last digest");
}

#[test]
fn each_frame_has_a_sentence() {
    let page = page_of(&recorded(["a", "b", "c", "d"]));
    let texts: Vec<&str> = page.frames.iter().map(|frame| frame.text.as_str()).collect();
    for text in [
        "A pool of 9 blocks is made, 4 tokens each. {b0} is the null block: it stands for “no block” and is \
        never handed out.",
        "{s0} enters. Nothing of its prompt is cached. {b1} and {b2} come from the front of the free list.",
        "{s0} fills {b1}. Requests that begin with the same tokens can reuse it under the hash {h0} from now on, pending \
        until \
        the step has run.",
        "{s1} enters. Its prompt hit {b1}: 4 tokens need not be computed. {b1} was in use already, and is shared now. \
        {b3} comes from the front of the free list.",
        "Keys and values of positions 4 to 5 of {s1} are written through its table: position 4 to slot 12 = {b3} × 4 \
        + 0, and so on.",
        "{s0} ends. {b2} has no hash and cannot be reused: to the front of the free list, to be handed out next. \
        {b1} stays in use: others share it.",
        "1 block is requested and 0 are free: nothing is allocated, because a part would be of no use.",
    ] {
        assert!(texts.contains(&text), "`{text}` in {texts:#?}");
    }
    let evicts = "{b1} was still cached: a block is evicted when it is handed out.";
    assert!(texts.iter().any(|text| text.ends_with(evicts)), "{texts:#?}");
}

#[test]
fn a_page_needs_nothing_but_itself() {
    let html = html_of(&page_of(&recorded(["a", "b", "c", "d"])));
    for outside in
        ["http:", "https:", "//cdn", " src=", "href=", "url(", "@import", "fetch(", "import("]
    {
        assert!(!html.contains(outside), "`{outside}` in the page");
    }
    assert!(!html.contains("<!--["), "a place that was not filled");
    assert_eq!(html.matches("<title>run · block viewer</title>").count(), 1);
}

#[test]
fn names_cannot_break_out_of_the_page() {
    let names = ["</script><script>alert(1)</script>", "<!--<script>", "\u{2028}\"\\{b5}", "]-->"];
    let html = html_of(&page_of(&recorded(names)));
    assert_eq!(data_in(&html)["sequences"], json!(names), "names as the page reads them");
    assert_eq!(html.matches("</script>").count(), 3, "ends of script elements");
    assert!(!html.contains("alert(1)<"), "markup in a name");

    let recording = recorded(["a", "b", "c", "d"]);
    let page = load(recording.as_bytes(), "<b>&.jsonl", 1000).unwrap();
    assert!(html_of(&page).contains("<title>&lt;b&gt;&amp; · block viewer</title>"));
}

#[test]
fn the_page_carries_the_changes_of_each_frame() {
    let data = data_in(&html_of(&page_of(&recorded(["a", "b", "c", "d"]))));
    assert_eq!((&data["num_blocks"], &data["block_size"]), (&json!(9), &json!(4)));
    assert_eq!(data["blocks"], json!([1, 2, 3, 4, 5, 6, 7, 8]));
    let enters = data["frames"].as_array().unwrap().iter().find(|f| f["kind"] == "enters").unwrap();
    let deltas = json!([
        ["begin", 0],
        ["leave", 1],
        ["users", 1, 1],
        ["append", 0, 1],
        ["leave", 2],
        ["users", 2, 1],
        ["append", 0, 2]
    ]);
    assert_eq!((&enters["deltas"], &enters["step"]), (&deltas, &json!(1)));
}

#[test]
fn a_long_run_is_cut_and_says_so() {
    let recording = recorded(["a", "b", "c", "d"]);
    let whole = page_of(&recording).frames.len();
    let page = load(recording.as_bytes(), "run.jsonl", 5).unwrap();
    assert_eq!((page.frames.len(), page.left_out), (5, whole - 5));
}

#[test]
fn a_run_of_vllm_comes_out_as_it_was_recorded() {
    for name in [
        "eviction_lru",
        "preempt_fcfs_basic",
        "priority_preempt_lowest",
        "shared_prefix_concurrent",
    ] {
        let (trace, blocks) = as_simulated(name);
        let page = load(trace.to_string().as_bytes(), "trace.json", 100_000).unwrap();
        assert_eq!((page.num_blocks, page.block_size), blocks, "{name}: blocks, tokens a block");
        let mut mirror = Mirror::default();
        let mut frames = page.frames.iter().peekable();
        for step in trace["steps"].as_array().unwrap() {
            while let Some(frame) = frames.next_if(|frame| frame.step == step["step"].as_u64()) {
                mirror.apply(&frame.deltas);
            }
            let at = format!("{name}, step {}", step["step"]);
            assert_eq!(
                json!(mirror.free(page.num_blocks)),
                step["free_queue_end"],
                "{at}: free list"
            );
            let hashed = |block: &BlockId| mirror.shown(*block).1.is_some();
            let hashed: Vec<_> = (1..page.num_blocks as BlockId).filter(hashed).collect();
            assert_eq!(json!(hashed), step["hashed_blocks_end"], "{at}: hashed");
            let mut users = BTreeMap::<BlockId, u32>::new();
            for (blocks, _) in mirror.tables().values() {
                blocks.iter().for_each(|block| *users.entry(*block).or_default() += 1);
            }
            for block in 1..page.num_blocks as BlockId {
                let expected = users.get(&block).copied().unwrap_or_default();
                assert_eq!(mirror.shown(block).0, expected, "{at}: users of block {block}");
            }
        }
    }
}

/// A run of `fixtures/kv-traces` in the words of a scheduler's trace, and what is to come out.
fn as_simulated(name: &str) -> (Value, (usize, Option<usize>)) {
    let file = format!("../fixtures/kv-traces/{name}.json");
    let file = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let run: Value = serde_json::from_slice(&file).unwrap();
    let mut tables = BTreeMap::<String, Vec<Value>>::new();
    let mut steps = Vec::new();
    for (number, step) in run["steps"].as_array().unwrap().iter().enumerate() {
        let running: Vec<&str> =
            step["running"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        tables.retain(|id, _| running.contains(&id.as_str()));
        let nothing = serde_json::Map::new();
        let mut changed = BTreeMap::new();
        for (id, new) in step["new_blocks"].as_object().unwrap_or(&nothing) {
            let table = tables.entry(id.clone()).or_default();
            if step["cached"].get(id).is_some() {
                table.clear();
            }
            table.extend_from_slice(new.as_array().unwrap());
            changed.insert(id.clone(), table.clone());
        }
        let scheduled = step["scheduled"].as_array().unwrap().iter();
        let or_empty = |key: &str, empty: Value| step.get(key).cloned().unwrap_or(empty);
        steps.push(json!({
            "step": number,
            "scheduled": scheduled.clone().map(|s| json!([s[0], s[2]])).collect::<Vec<_>>(),
            "num_computed_tokens": scheduled
                .map(|s| (s[0].as_str().unwrap().to_owned(), s[1].clone()))
                .collect::<serde_json::Map<_, _>>(),
            "block_table": changed,
            "new_block_ids": or_empty("new_blocks", json!({})),
            "cached_tokens": or_empty("cached", json!({})),
            "preempted": or_empty("preempted", json!([])),
            "resumed": or_empty("resumed", json!([])),
            "finished": or_empty("finished", json!([])),
            "running": running,
            "num_free_blocks": step["free"],
            "free_queue_end": step["free_list_end"],
            "hashed_blocks_end": step["hashed_end"],
        }));
        for id in or_empty("finished", json!([])).as_array().unwrap() {
            tables.remove(id.as_str().unwrap());
        }
    }
    let size = |key: &str| run["pool"][key].as_u64().unwrap() as usize;
    let trace = json!({"name": name, "block_tables": "changed", "steps": steps});
    (trace, (size("num_blocks"), Some(size("block_size"))))
}

#[test]
fn traces_that_cannot_be_are_refused() {
    let fails = |trace: Value, expected: &str| {
        let error = load(trace.to_string().as_bytes(), "t.json", 10).unwrap_err().to_string();
        assert!(error.contains(expected), "\n  expected  .. {expected} ..\n  got       {error}");
    };
    fails(json!({"steps": []}), "there is nothing to show");
    fails(json!({"steps": [{"step": 0}]}), "there is nothing to show");
    fails(json!({"steps": [{"num_free_blocks": u64::MAX}]}), "can have 2147483647 at most");
    let table = json!({"step": 3, "num_free_blocks": 4, "block_table": {"a": [9]}});
    fails(json!({"steps": [table]}), "step 3 names block 9, and the pool has blocks 1 to 5");
    fails(json!([1, 2]), "neither a block recording");
    fails(json!({"pools": []}), "missing field `steps`");
}
