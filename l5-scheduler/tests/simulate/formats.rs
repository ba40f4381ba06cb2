//! Scenarios: what can be in a file, and what is told of one that cannot be played.

use l5_scheduler::sim::{Scenario, replay};
use serde_json::{Value, json};

fn request(id: &str, arrival_step: u64, prompt: std::ops::Range<u32>, answer: u32) -> Value {
    json!({
        "id": id, "arrival_step": arrival_step, "prompt_token_ids": prompt.collect::<Vec<_>>(),
        "max_tokens": answer, "output_token_ids": (1000..1000 + answer).collect::<Vec<_>>(),
    })
}

/// A scenario of blocks of 4 tokens, `more` in its configuration.
fn scenario(more: Value, requests: Vec<Value>, events: Value) -> Value {
    let mut config = json!({
        "policy": "fcfs", "block_size": 4, "num_gpu_blocks": 17, "max_num_seqs": 4,
        "max_num_batched_tokens": 32, "max_model_len": 64,
    });
    for (name, value) in more.as_object().unwrap() {
        config[name] = value.clone();
    }
    json!({ "name": "test", "config": config, "requests": requests, "events": events })
}

fn play(scenario: &Value) -> Result<Value, String> {
    let scenario = Scenario::from_json(&scenario.to_string()).map_err(|e| e.to_string())?;
    let trace = replay(&scenario).map_err(|e| e.to_string())?;
    let mut json = Vec::new();
    trace.write(&mut json).unwrap();
    Ok(serde_json::from_slice(&json).expect("a trace is JSON"))
}

/// One field of every step.
fn column(trace: &Value, field: &str) -> Vec<Value> {
    trace["steps"].as_array().unwrap().iter().map(|step| step[field].clone()).collect()
}

#[test]
fn steps_in_which_nothing_happens_are_recorded() {
    let got = play(&scenario(json!({}), vec![request("a", 2, 1..6, 1)], json!([]))).unwrap();
    assert_eq!(column(&got, "scheduled"), [json!([]), json!([]), json!([["a", 5]])]);
    assert_eq!(column(&got, "finished"), [json!([]), json!([]), json!(["a"])]);
    assert_eq!(got["steps"][2]["finish_reason"], json!({"a": "length"}));
}

#[test]
fn who_comes_as_somebody_is_aborted_says_words_of_its_own() {
    let requests = vec![request("gone", 0, 1..6, 9), request("new", 1, 11..16, 3)];
    let abort = json!([{ "step": 1, "op": "abort", "ids": ["gone"] }]);
    let trace = play(&scenario(json!({}), requests, abort)).unwrap();
    assert_eq!(trace["steps"][1]["events"][0]["ok"], true);
    let said = json!([["gone"], ["new"], ["new"], ["new"]]);
    assert_eq!(json!(column(&trace, "sampled")), said, "who said a word, step by step");
    assert_eq!(trace["steps"][3]["finish_reason"], json!({ "new": "length" }));
}

#[test]
fn max_steps_ends_it_whoever_is_left() {
    let mut long = scenario(json!({}), vec![request("a", 0, 1..6, 9)], json!([]));
    long["max_steps"] = 3.into();
    let got = play(&long).unwrap();
    assert_eq!(got["summary"]["steps"], 3);
    assert_eq!(got["summary"]["finished"], 0);
}

#[test]
fn what_can_never_fit_is_rejected_and_nothing_stalls() {
    let requests = vec![
        request("empty", 0, 0..0, 4),
        request("long", 0, 0..64, 4),
        request("large", 0, 0..63, 4),
        request("fits", 0, 0..8, 2),
    ];
    let small = json!({"num_gpu_blocks": 16, "max_model_len": 64});
    let got = play(&scenario(small, requests, json!([]))).unwrap();
    let want = json!([
        {"id": "empty", "reason": "empty_prompt"},
        {"id": "long", "reason": "max_model_len"},
        {"id": "large", "reason": "exceeds_pool"},
    ]);
    assert_eq!(got["steps"][0]["rejected"], want);
    assert_eq!(got["stalled"], false);
    assert_eq!(got["summary"]["finished"], 1);
}

#[test]
fn who_outgrows_the_pool_ends_and_says_so() {
    let alone = vec![request("a", 0, 0..10, 20)];
    let got = play(&scenario(json!({"num_gpu_blocks": 5}), alone, json!([]))).unwrap();
    let last = got["steps"].as_array().unwrap().last().unwrap();
    assert_eq!(last["finish_reason"], json!({"a": "kv_exhausted"}));
    assert_eq!(last["num_free_blocks_end"], 4, "all of the pool");
    // 4 blocks of 4 hold 16 tokens: those of the prompt and 6 of the answer; the seventh token needs no place.
    assert_eq!(got["summary"]["sampled"], 7);
}

#[test]
fn a_reset_waits_for_idle_blocks_unless_it_may_preempt() {
    let requests =
        || vec![request("a", 0, 0..8, 6), request("b", 0, 10..18, 6), request("c", 9, 0..8, 1)];
    let reset = |running: bool| {
        let op =
            json!([{"step": 2, "op": "reset_prefix_cache", "reset_running_requests": running}]);
        play(&scenario(json!({}), requests(), op)).unwrap()
    };
    let refused = reset(false);
    assert_eq!(
        refused["steps"][2]["events"],
        json!([{"op": "reset_prefix_cache", "ok": false, "preempted": []}])
    );
    assert_eq!(refused["steps"][9]["cached_tokens"], json!({"c": 4}), "what is cached stays");
    let forced = reset(true);
    let want = json!([{"op": "reset_prefix_cache", "ok": true, "preempted": ["b", "a"]}]);
    assert_eq!(forced["steps"][2]["events"], want, "the last one admitted goes first");
    assert_eq!(
        forced["steps"][2]["resumed"],
        json!(["a", "b"]),
        "and both come back in their order"
    );
    assert_eq!(forced["steps"][2]["cached_tokens"], json!({"a": 0, "b": 0}), "with nothing cached");
    assert_eq!(forced["summary"]["preemptions"], 2);
}

#[test]
fn names_break_ties_of_priority_as_text() {
    let at_once = |id: &str| {
        let mut request = request(id, 0, 0..4, 1);
        request["arrival_time"] = 1.5.into();
        request
    };
    let requests = ["r2", "r10", "r1"].map(at_once).to_vec();
    let one_seat = json!({"policy": "priority", "max_num_seqs": 1});
    let got = play(&scenario(one_seat, requests, json!([]))).unwrap();
    assert_eq!(column(&got, "finished"), [json!(["r1"]), json!(["r10"]), json!(["r2"])]);
}

#[test]
fn salts_adapters_and_unwilling_readers_find_nothing() {
    let with = |id: &str, at: u64, field: &str, value: Value| {
        let mut request = request(id, at, 0..12, 1);
        request[field] = value;
        request
    };
    let requests = vec![
        request("plain", 0, 0..12, 1),
        with("salted", 1, "cache_salt", "x".into()),
        with("same salt", 2, "cache_salt", "x".into()),
        with("adapted", 3, "lora", json!(["l", "/l"])),
        with("reads nothing", 4, "skip_reading_prefix_cache", true.into()),
        request("again", 5, 0..12, 1),
    ];
    let got = play(&scenario(json!({}), requests, json!([]))).unwrap();
    let want = [0, 0, 8, 0, 0, 8];
    let found: Vec<u64> = column(&got, "cached_tokens")
        .iter()
        .map(|cached| cached.as_object().unwrap().values().next().unwrap().as_u64().unwrap())
        .collect();
    assert_eq!(found, want, "tokens found by each");
}

#[test]
fn eos_and_stop_tokens_end_with_stop() {
    let ends = |field: &str, value: Value| {
        let mut request = request("a", 0, 0..4, 9);
        request[field] = value;
        let got = play(&scenario(json!({}), vec![request], json!([]))).unwrap();
        (
            got["summary"]["sampled"].clone(),
            got["steps"].as_array().unwrap().last().unwrap()["finish_reason"]["a"].clone(),
        )
    };
    assert_eq!(ends("eos_token_id", 1002.into()), (3.into(), "stop".into()));
    assert_eq!(ends("stop_token_ids", json!([5, 1004])), (5.into(), "stop".into()));
    assert_eq!(ends("eos_token_id", Value::Null), (9.into(), "length".into()));
}

#[test]
fn unknown_fields_are_left_alone() {
    let mut known = scenario(json!({"of_later": 1}), vec![request("a", 0, 1..6, 1)], json!([]));
    known["notes"] = "x".into();
    assert!(play(&known).is_ok());
}

#[test]
fn a_bad_scenario_says_where_and_what() {
    let good = scenario(json!({}), vec![request("a", 0, 1..6, 3)], json!([]));
    let told = |change: &dyn Fn(&mut Value)| {
        let mut bad = good.clone();
        change(&mut bad);
        play(&bad).expect_err("this cannot be played")
    };
    type Change<'a> = &'a dyn Fn(&mut Value);
    let cases: [(Change<'_>, &str); 12] = [
        (&|s| s["config"]["policy"] = "lifo".into(), "unknown scheduling policy `lifo`"),
        (&|s| s["config"]["block_size"] = "big".into(), "config.block_size"),
        (&|s| s["config"]["block_size"] = 3.into(), "power of two"),
        (&|s| s["config"]["num_gpu_blocks"] = 0.into(), "config: "),
        (&|s| s["config"]["max_num_batched_tokens"] = 2.into(), "max_num_seqs (4)"),
        (&|s| s["config"] = Value::Null, "config"),
        (
            &|s| s["requests"][0]["prompt_token_ids"][2] = (-1).into(),
            "requests[0].prompt_token_ids[2]",
        ),
        (&|s| s["requests"][0]["id"] = 7.into(), "requests[0].id"),
        (&|s| s["requests"] = json!([s["requests"][0], s["requests"][0]]), "two requests `a`"),
        (&|s| s["events"] = json!([{"step": 0, "op": "explode"}]), "unknown variant `explode`"),
        (&|s| s["requests"][0]["output_token_ids"] = json!([1]), "step 1: request `a`"),
        (
            &|s| s["requests"][0]["arrival_step"] = 1_000_000_000u64.into(),
            "move its arrivals closer together",
        ),
    ];
    for (change, want) in cases {
        let got = told(change);
        assert!(got.contains(want), "told `{got}`, which does not say `{want}`");
    }
}
