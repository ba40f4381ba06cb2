//! Requests come in, or are refused at once: only those are taken that can be completed.

use l5_scheduler::{Rejection, Request, RequestId, Scheduler, SchedulerConfig};

use super::world::{World, config, request};

/// Whether a request of so many tokens would be taken that may answer with so many.
fn check(config: SchedulerConfig, prompt: usize, max_tokens: usize) -> Result<(), Rejection> {
    let scheduler = Scheduler::new(config).unwrap();
    scheduler.check(&Request { max_tokens, ..request(1, prompt) })
}

#[test]
fn an_empty_prompt_is_refused() {
    assert_eq!(check(config(8), 0, 4), Err(Rejection::EmptyPrompt), "a prompt of no tokens");
    assert_eq!(check(config(8), 1, 4), Ok(()), "a prompt of one token");
}

#[test]
fn a_prompt_leaves_room_for_one_token_of_an_answer() {
    let short = || SchedulerConfig { max_model_len: 16, ..config(8) };
    assert_eq!(check(short(), 15, 4), Ok(()), "15 tokens where the model takes 16");
    let refused = |prompt| Err(Rejection::MaxModelLen { prompt, max_model_len: 16 });
    assert_eq!(check(short(), 16, 4), refused(16), "16 tokens where the model takes 16");
    assert_eq!(check(short(), 17, 4), refused(17), "17 tokens where the model takes 16");
}

#[test]
fn a_prompt_that_no_pool_of_this_size_holds_is_refused() {
    // 8 blocks of 4 tokens can be handed out; the ninth is the null block.
    assert_eq!(
        check(config(8), 31, 4),
        Ok(()),
        "31 tokens and the first of its answer in 32 slots"
    );
    let refused = |needed| Err(Rejection::ExceedsPool { needed, capacity: 8 });
    assert_eq!(
        check(config(8), 32, 4),
        refused(9),
        "32 tokens, and the first of its answer in 32 slots"
    );
    assert_eq!(check(config(8), 33, 4), refused(9), "33 tokens in 32 slots");
}

#[test]
fn the_last_token_of_an_answer_needs_no_slot() {
    assert_eq!(check(config(8), 32, 1), Ok(()), "32 tokens in 32 slots, and one that is not fed");
    let refused = Err(Rejection::ExceedsPool { needed: 9, capacity: 8 });
    assert_eq!(check(config(8), 32, 2), refused, "32 tokens in 32 slots, and one that is fed");
    assert_eq!(check(config(8), 33, 1), refused, "33 tokens in 32 slots");
}

#[test]
fn what_it_might_say_is_not_held_against_it() {
    assert_eq!(check(config(8), 5, 1_000_000), Ok(()), "a short prompt with a long answer ahead");
    assert_eq!(check(config(8), 5, usize::MAX), Ok(()), "with no end to its answer");
}

#[test]
fn of_several_reasons_the_model_comes_before_the_pool() {
    let short = SchedulerConfig { max_model_len: 20, ..config(4) };
    let refused = Rejection::MaxModelLen { prompt: 20, max_model_len: 20 };
    assert_eq!(check(short, 20, 4), Err(refused), "too long for the model and for the pool");
}

#[test]
fn who_is_refused_leaves_nothing_behind() {
    let mut scheduler = Scheduler::new(config(2)).unwrap();
    assert!(scheduler.add_request(request(1, 40)).is_err(), "40 tokens in 8 slots");
    assert!(scheduler.add_request(request(2, 0)).is_err(), "no tokens");
    assert_eq!(scheduler.num_waiting(), 0, "who waits");
    assert!(!scheduler.has_unfinished(), "somebody is there");
    assert_eq!(scheduler.take_ended().count(), 0, "ends that are told: refusing is not ending");
}

#[test]
fn a_name_is_taken_until_its_request_has_ended() {
    let mut world = World::new(config(8));
    world.add(request(1, 3));
    let taken = Err(Rejection::DuplicateId(RequestId(1)));
    assert_eq!(world.try_add(request(1, 5)), taken, "a second request with the id");
    world.run_to_the_end();
    assert!(world.try_add(request(1, 5)).is_ok(), "the id is free again");
}

#[test]
fn reasons_have_the_names_that_traces_use() {
    let codes = [
        Rejection::EmptyPrompt.code(),
        Rejection::MaxModelLen { prompt: 9, max_model_len: 8 }.code(),
        Rejection::ExceedsPool { needed: 9, capacity: 8 }.code(),
    ];
    assert_eq!(codes, ["empty_prompt", "max_model_len", "exceeds_pool"]);
}

#[test]
fn a_configuration_under_which_nobody_would_ever_run_is_refused() {
    let refused = |config: SchedulerConfig| Scheduler::new(config).unwrap_err().to_string();
    let c = || config(8);
    assert!(
        refused(SchedulerConfig { max_num_seqs: 0, ..c() })
            .contains("max_num_seqs must be at least 1")
    );
    assert!(
        refused(SchedulerConfig { block_size: 0, ..c() }).contains("block_size must be at least 1")
    );
    assert!(
        refused(SchedulerConfig { max_num_active_seqs: Some(0), ..c() }).contains("active_seqs")
    );
    assert!(
        refused(SchedulerConfig { max_num_batched_tokens: 7, ..c() }).contains("max_num_seqs (8)")
    );
    assert!(refused(SchedulerConfig { enable_chunked_prefill: false, ..c() }).contains("chunked"));
    assert!(refused(SchedulerConfig { watermark: 1.0, ..c() }).contains("watermark"));
    assert!(refused(SchedulerConfig { num_gpu_blocks: 1, ..c() }).contains("pool of 1 blocks"));
}
