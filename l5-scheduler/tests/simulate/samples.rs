//! Every sample scenario, against what vLLM's own scheduler did with it.

use std::fs;
use std::path::{Path, PathBuf};

use l5_scheduler::sim::{Scenario, replay};
use serde_json::Value;

use crate::diff::first_difference;

fn schedules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/schedules")
}

/// Plays a sample, and gives its trace and vLLM's.
fn play(name: &str) -> (Value, Value) {
    let read = |folder: &str| {
        let path = schedules().join(folder).join(format!("{name}.json"));
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let scenario =
        Scenario::from_json(&read("scenarios")).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut got = Vec::new();
    replay(&scenario).unwrap_or_else(|e| panic!("{name}: {e}")).write(&mut got).unwrap();
    let want = serde_json::from_str(&read("traces")).unwrap();
    (serde_json::from_slice(&got).expect("a trace is JSON"), want)
}

fn agrees(name: &str) {
    let (got, want) = play(name);
    if let Some(difference) = first_difference(&got, &want) {
        panic!("{name}: {difference}");
    }
    assert_eq!(got["summary"], want["summary"], "{name}: all steps together");
    assert_eq!(got["stalled"], false, "{name}");
}

macro_rules! samples {
    ($($name:ident,)*) => {
        $(#[test] fn $name() { agrees(stringify!($name)); })*

        #[test]
        fn no_sample_is_left_out() {
            let here = [$(stringify!($name)),*];
            let mut there: Vec<String> = fs::read_dir(schedules().join("scenarios"))
                .unwrap()
                .map(|e| e.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
                .collect();
            there.sort();
            assert_eq!(there, here, "the scenarios, and those that are played");
        }
    };
}

samples! {
    aborts,
    budget_exhaustion,
    chunked_threshold512_prompt10000,
    drafts_all_accepted,
    drafts_beside_long_prefill,
    drafts_end_in_window,
    drafts_some_rejected,
    eviction_lru,
    full_hit_exact_multiple,
    lora_keys,
    preempt_fcfs_basic,
    priority_order,
    priority_preempt_lowest,
    random_drafts_roomy_pool,
    random_drafts_shared_prefixes,
    random_fcfs_small_pool,
    random_priority_small_pool,
    shared_prefix_concurrent,
    three_prompts_5_7_3_bs4,
    three_requests_8_32_5,
}

#[test]
fn a_difference_is_found_and_told() {
    let (got, mut want) = play("three_prompts_5_7_3_bs4");
    want["steps"][1]["num_free_blocks"] = 7.into();
    let told = first_difference(&got, &want).expect("they differ");
    assert!(told.starts_with("step 1: `num_free_blocks` is 11, and vLLM has 7"), "{told}");
    let (got, mut want) = play("three_prompts_5_7_3_bs4");
    want["steps"].as_array_mut().unwrap().pop();
    assert_eq!(first_difference(&got, &want).unwrap(), "6 steps, and vLLM takes 5");
}
