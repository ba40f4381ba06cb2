//! Masks that are computed on another thread.

use l4_sampler::guide::{DraftMasks, GuideError, GuideSpec, Guides, MaskAhead};

use crate::support::{Dice, allowed, choice, ids, llama, regex, tokenizer};

#[test]
fn masks_from_the_thread_are_those_from_the_guide() {
    let world = llama();
    let ahead = MaskAhead::new();
    let specs = [GuideSpec::Json, regex("[a-z]{3,9}( [a-z]+)*"), choice(&["one", "two", "three"])];
    let mut lent: Vec<_> = specs.iter().map(|s| (world.guide(s), DraftMasks::default())).collect();
    let mut own: Vec<_> = specs.iter().map(|s| world.guide(s)).collect();
    let mut dice = Dice::new(5);
    for step in 0..40 {
        let pending: Vec<_> =
            lent.drain(..).map(|(guide, masks)| ahead.start(guide, &[], masks)).collect();
        // The forward pass would run here. They are waited for in another order.
        let mut back: Vec<_> =
            pending.into_iter().rev().map(l4_sampler::guide::MaskPending::wait).collect();
        back.reverse();
        for (i, (mut ready, own)) in back.into_iter().zip(&mut own).enumerate() {
            ready.outcome.unwrap();
            let got = ids(ready.masks.after(0).unwrap(), world.vocab);
            let want = allowed(own, world.vocab);
            assert_eq!(got, want, "mask {i} of step {step}");
            let token = *dice.pick(&want);
            own.advance(token).unwrap();
            ready.guide.advance(token).unwrap();
            lent.push((ready.guide, ready.masks));
        }
    }
}

#[test]
fn a_buffer_that_was_lent_comes_back() {
    let world = llama();
    let ahead = MaskAhead::new();
    let (mut masks, mut guide) = (DraftMasks::default(), world.guide(&GuideSpec::Json));
    let mut address = None;
    for _ in 0..3 {
        let ready = ahead.start(guide, &[], masks).wait();
        (guide, masks) = (ready.guide, ready.masks);
        let now = masks.after(0).unwrap().words().as_ptr();
        assert_eq!(*address.get_or_insert(now), now, "the same memory, step after step");
    }
}

#[test]
fn an_error_brings_guide_and_buffer_back() {
    let tokenizer = tokenizer("llama-bpe");
    let guides = Guides::new(&tokenizer, 90, &[]).unwrap();
    let mut guide = guides.guide(&regex("(a b)|(xy)")).unwrap();
    guide.advance(tokenizer.token_id("a").unwrap()).unwrap();
    let mut ready = MaskAhead::new().start(guide, &[], DraftMasks::default()).wait();
    assert_eq!(ready.outcome, Err(GuideError::DeadEnd { after: 1 }), "a blank cannot be spelled");
    assert_eq!(ready.masks.after(0), None, "no mask");
    ready.guide.rollback(1).unwrap();
    assert!(!allowed(&mut ready.guide, 90).is_empty(), "the guide can be used again");
}

#[test]
fn what_nobody_waits_for_keeps_nobody_waiting() {
    let world = llama();
    let ahead = MaskAhead::new();
    for i in 0..200 {
        let pending = ahead.start(world.guide(&GuideSpec::Json), &[], DraftMasks::default());
        if i % 3 == 0 {
            pending.wait().outcome.unwrap();
        } else {
            drop(pending);
        }
    }
    drop(ahead);
}

#[test]
fn what_is_pending_when_the_thread_goes_is_still_answered() {
    let world = llama();
    let ahead = MaskAhead::new();
    let start = |_| ahead.start(world.guide(&GuideSpec::Json), &[], DraftMasks::default());
    let pending: Vec<_> = (0..20).map(start).collect();
    drop(ahead);
    let want = allowed(&mut world.guide(&GuideSpec::Json), world.vocab);
    for (i, pending) in pending.into_iter().enumerate() {
        let ready = pending.wait();
        ready.outcome.unwrap();
        let mask = ready.masks.after(0).unwrap();
        assert_eq!(ids(mask, world.vocab), want, "mask {i} after the thread is gone");
    }
}

#[test]
fn masks_are_ready_without_being_waited_for() {
    let world = llama();
    let ahead = MaskAhead::new();
    let pending = ahead.start(world.guide(&GuideSpec::Json), &[], DraftMasks::default());
    // No clock: the thread gets there whenever it gets there.
    while !pending.is_ready() {
        std::thread::yield_now();
    }
    pending.wait().outcome.unwrap();
}

#[test]
fn behind_each_draft_that_can_follow_there_is_a_mask_and_none_behind_one_that_cannot() {
    let world = llama();
    let ahead = MaskAhead::new();
    let spec = choice(&["one two three", "one four"]);
    let text = world.tokenizer.encode("one two", false).unwrap();
    let odd = world.tokenizer.encode("zebra", false).unwrap();
    let drafts = [&text[..], &odd].concat();
    let ready = ahead.start(world.guide(&spec), &drafts, DraftMasks::default()).wait();
    ready.outcome.unwrap();
    let mut own = world.guide(&spec);
    for (n, token) in drafts[..text.len()].iter().enumerate() {
        let got = ids(ready.masks.after(n).unwrap(), world.vocab);
        assert_eq!(got, allowed(&mut own, world.vocab), "mask behind {n} drafts");
        own.advance(*token).unwrap();
    }
    let got = ids(ready.masks.after(text.len()).unwrap(), world.vocab);
    assert_eq!(got, allowed(&mut own, world.vocab), "mask behind the last draft that can follow");
    assert_eq!(ready.masks.after(text.len() + 1), None, "behind the first that cannot");
    assert_eq!(ready.guide.followed(), 0, "the guide has not moved");
}

#[test]
fn a_draft_behind_which_nothing_can_follow_takes_no_mask_from_the_next_token() {
    let tokenizer = tokenizer("llama-bpe");
    let guides = Guides::new(&tokenizer, 90, &[]).unwrap();
    let guide = guides.guide(&regex("(a b)|(xy)")).unwrap();
    let draft = [tokenizer.token_id("a").unwrap()];
    let ready = MaskAhead::new().start(guide, &draft, DraftMasks::default()).wait();
    assert_eq!(ready.outcome, Ok(()), "what is drafted is no error of the output");
    assert!(ready.masks.after(0).is_some(), "a mask for the next token");
    assert_eq!(ready.masks.after(1), None, "a blank cannot be spelled");
}
