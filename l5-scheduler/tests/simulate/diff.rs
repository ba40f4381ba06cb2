//! Two traces side by side: the first thing in which they differ.

use serde_json::Value;

/// What is compared, what matters most first: who runs; what is cached and free; which blocks.
const TIERS: [&[&str]; 3] = [
    &[
        "scheduled",
        "scheduled_drafts",
        "num_computed_tokens",
        "sampled",
        "finished",
        "finish_reason",
        "preempted",
        "running",
        "waiting",
    ],
    &["cached_tokens", "resumed", "num_free_blocks", "num_free_blocks_end"],
    &["new_block_ids", "block_table", "free_queue_end", "hashed_blocks_end"],
];

/// The first difference, told as a sentence. A field that a step of `want` has not is empty there, unless `omitted`
/// names it or no step at all has it.
pub fn first_difference(got: &Value, want: &Value) -> Option<String> {
    let steps = |trace: &Value| trace["steps"].as_array().cloned().expect("a trace has steps");
    let omitted: Vec<&str> = want["omitted"]
        .as_array()
        .iter()
        .flat_map(|a| a.iter())
        .filter_map(Value::as_str)
        .collect();
    let (got, want) = (steps(got), steps(want));
    for fields in TIERS {
        let recorded = |field: &str| {
            let optional = matches!(field, "free_queue_end" | "hashed_blocks_end");
            !omitted.contains(&field) && (!optional || want.iter().any(|s| !s[field].is_null()))
        };
        let fields: Vec<&str> = fields.iter().copied().filter(|field| recorded(field)).collect();
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            for field in &fields {
                let (got, want) = (&got[*field], &want[*field]);
                if got != want && !(is_empty(got) && is_empty(want)) {
                    return Some(format!("step {i}: `{field}` is {got}, and vLLM has {want}"));
                }
            }
        }
    }
    let (got, want) = (got.len(), want.len());
    (got != want).then(|| format!("{got} steps, and vLLM takes {want}"))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
