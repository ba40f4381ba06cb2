//! The shape of a step, and the turns of adapters.

use l3_paged_kv::{BlockHasher, ExtraKeys, TokenChain};

use super::{AdapterTurn, Compose, Stable, StepShape, Turns};
use crate::requests::Entry;
use crate::{Adapter, Request, RequestId};

const PROMPTS: StepShape = StepShape::Prefill { chunk: 32 };

/// Shapes of `steps` steps in which requests decode, with prompts waiting in those that `prompts` says.
fn shapes(most: usize, steps: usize, prompts: impl Fn(usize) -> bool) -> Vec<StepShape> {
    let mut stable = Stable::new(most, 32, 0);
    let shapes = (0..steps).map(|step| {
        let shape = stable.shape(true, prompts(step));
        stable.count(shape);
        shape
    });
    shapes.collect()
}

#[test]
fn a_step_of_prompts_comes_after_so_many_steps_that_decode() {
    let got = shapes(3, 9, |_| true);
    let decode = StepShape::DecodeOnly;
    let want = [decode, decode, decode, PROMPTS, decode, decode, decode, PROMPTS, decode];
    assert_eq!(got, want, "with a prompt waiting all the time");
}

#[test]
fn steps_that_decoded_before_the_prompt_came_count() {
    let got = shapes(3, 6, |step| step == 5);
    assert_eq!(got[..5], [StepShape::DecodeOnly; 5], "while no prompt waits");
    assert_eq!(got[5], PROMPTS, "after five steps that decode");
    let got = shapes(3, 3, |step| step == 2);
    assert_eq!(got[2], StepShape::DecodeOnly, "after two steps that decode");
}

#[test]
fn if_no_request_decodes_prompts_have_the_whole_step() {
    let mut stable = Stable::new(3, 32, 0);
    for _ in 0..3 {
        assert_eq!(stable.shape(false, true), StepShape::Mixed, "prompts alone");
        stable.count(StepShape::Mixed);
    }
    assert_eq!(stable.shape(true, true), StepShape::DecodeOnly, "prompts had the last step");
}

#[test]
fn a_mixed_step_takes_prompts_so_the_count_begins_anew() {
    let mut stable = Stable::new(3, 32, 0);
    for _ in 0..3 {
        stable.count(StepShape::DecodeOnly);
    }
    assert_eq!(stable.shape(true, true), PROMPTS, "after three steps that decode");
    stable.count(StepShape::Mixed);
    assert_eq!(stable.shape(true, true), StepShape::DecodeOnly, "prompts had the last step");
}

#[test]
fn steps_that_decoded_before_a_step_of_prompts_count_no_more() {
    let got = shapes(3, 11, |step| step >= 6);
    let decode = StepShape::DecodeOnly;
    assert_eq!(got[..6], [decode; 6], "while no prompt waits");
    assert_eq!(got[6..], [PROMPTS, decode, decode, decode, PROMPTS]);
}

#[test]
fn asking_twice_changes_nothing() {
    let mut stable = Stable::new(1, 32, 0);
    assert_eq!([(); 3].map(|()| stable.shape(true, true)), [StepShape::DecodeOnly; 3], "at first");
    stable.count(StepShape::DecodeOnly);
    assert_eq!([(); 3].map(|()| stable.shape(true, true)), [PROMPTS; 3], "after a step");
}

#[test]
fn there_is_always_a_step_that_decodes_between_two_of_prompts() {
    let mut stable = Stable::new(0, 32, 0);
    stable.count(PROMPTS);
    assert_eq!(stable.shape(true, true), StepShape::DecodeOnly);
}

#[test]
fn names_are_those_of_the_command_line() {
    for compose in [Compose::Mixed, Compose::STABLE] {
        assert_eq!(compose.to_string().parse(), Ok(compose));
        assert_eq!(compose.composer(0).name(), compose.to_string());
    }
    let unknown: Result<Compose, String> = "greedy".parse();
    assert!(unknown.unwrap_err().contains("use mixed or stable"));
}

fn adapter(name: &str) -> Adapter {
    Adapter { name: name.to_owned(), path: name.to_owned() }
}

/// A request of the adapter with this name; of none if the name is empty.
fn entry(name: &str) -> Entry {
    let adapter = (!name.is_empty()).then(|| adapter(name));
    let request = Request { id: RequestId(0), prompt: vec![1, 2], adapter, ..Request::default() };
    Entry::new(request, TokenChain::new(&BlockHasher::new(4), ExtraKeys::default()), 0)
}

/// Names of the adapters that have their turn while requests of `ready` are ready, step by step.
fn turns(most: usize, steps: usize, ready: impl Fn(usize) -> Vec<&'static str>) -> Vec<String> {
    let mut turns = Turns::new(most);
    let names = (0..steps).map(|step| {
        let entries: Vec<Entry> = ready(step).into_iter().map(entry).collect();
        let turn = turns.next(|| entries.iter().map(Entry::view));
        turns.applied(turn);
        match turn {
            AdapterTurn::All => "all".to_owned(),
            AdapterTurn::First => "first".to_owned(),
            AdapterTurn::Of(adapter) => adapter.name.clone(),
        }
    });
    names.collect()
}

#[test]
fn adapters_have_turns_in_the_order_of_their_names() {
    let all = |_| vec!["b", "", "c", "a", "b"];
    assert_eq!(turns(1, 7, all), ["a", "b", "c", "a", "b", "c", "a"], "turns of one step");
    assert_eq!(turns(2, 7, all), ["a", "a", "b", "b", "c", "c", "a"], "turns of two steps");
}

#[test]
fn an_adapter_that_is_not_ready_has_no_turn_and_one_alone_has_all() {
    let ready = |step| if step == 1 { vec!["c", ""] } else { vec!["a", "b", "c"] };
    assert_eq!(turns(1, 4, ready), ["a", "c", "a", "b"], "b is not ready in step 1");
    assert_eq!(turns(2, 5, |_| vec!["a"]), ["a"; 5], "alone");
}

#[test]
fn without_adapters_no_adapter_has_a_turn_and_without_turns_all_have() {
    assert_eq!(turns(1, 2, |_| vec!["", ""]), ["first"; 2], "requests without an adapter");
    assert_eq!(turns(0, 2, |_| vec!["a", "b"]), ["all"; 2], "turns of no steps");
}

#[test]
fn a_request_decodes_when_all_of_its_tokens_but_the_last_are_computed() {
    let mut entry = entry("");
    entry.chain.extend(&[1, 2, 3]);
    for (computed, decodes) in [(0, false), (1, false), (2, true)] {
        entry.computed = computed;
        assert_eq!(entry.view().decodes(), decodes, "{computed} of 3 tokens computed");
    }
}
