//! Masks that are computed on another thread.

use l4_sampler::TokenMask;
use l4_sampler::guide::{GuideError, GuideSpec, Guides, MaskAhead};

use crate::support::{Dice, allowed, choice, ids, llama, regex, tokenizer};

#[test]
fn masks_from_the_thread_are_those_from_the_guide() {
    let world = llama();
    let ahead = MaskAhead::new();
    let specs = [GuideSpec::Json, regex("[a-z]{3,9}( [a-z]+)*"), choice(&["one", "two", "three"])];
    let mut lent: Vec<_> = specs.iter().map(|s| (world.guide(s), TokenMask::default())).collect();
    let mut own: Vec<_> = specs.iter().map(|s| world.guide(s)).collect();
    let mut dice = Dice::new(5);
    for step in 0..40 {
        let pending: Vec<_> =
            lent.drain(..).map(|(guide, mask)| ahead.start(guide, mask)).collect();
        // The forward pass would run here. They are waited for in another order.
        let mut back: Vec<_> =
            pending.into_iter().rev().map(l4_sampler::guide::MaskPending::wait).collect();
        back.reverse();
        for (i, (mut ready, own)) in back.into_iter().zip(&mut own).enumerate() {
            ready.outcome.unwrap();
            let (got, want) = (ids(&ready.mask, world.vocab), allowed(own, world.vocab));
            assert_eq!(got, want, "mask {i} of step {step}");
            let token = *dice.pick(&want);
            own.advance(token).unwrap();
            ready.guide.advance(token).unwrap();
            lent.push((ready.guide, ready.mask));
        }
    }
}

#[test]
fn a_buffer_that_was_lent_comes_back() {
    let world = llama();
    let ahead = MaskAhead::new();
    let mut mask = TokenMask::none(world.vocab);
    let mut guide = world.guide(&GuideSpec::Json);
    let address = mask.words().as_ptr();
    for _ in 0..3 {
        let ready = ahead.start(guide, mask).wait();
        (guide, mask) = (ready.guide, ready.mask);
        assert_eq!(mask.words().as_ptr(), address, "the same memory, step after step");
    }
}

#[test]
fn an_error_brings_guide_and_buffer_back() {
    let tokenizer = tokenizer("llama-bpe");
    let guides = Guides::new(&tokenizer, 90, &[]).unwrap();
    let mut guide = guides.guide(&regex("(a b)|(xy)")).unwrap();
    guide.advance(tokenizer.token_id("a").unwrap()).unwrap();
    let mut ready = MaskAhead::new().start(guide, TokenMask::default()).wait();
    assert_eq!(ready.outcome, Err(GuideError::DeadEnd { after: 1 }), "a blank cannot be spelled");
    ready.guide.rollback(1).unwrap();
    assert!(!allowed(&mut ready.guide, 90).is_empty(), "the guide can be used again");
}

#[test]
fn what_nobody_waits_for_keeps_nobody_waiting() {
    let world = llama();
    let ahead = MaskAhead::new();
    for i in 0..200 {
        let pending = ahead.start(world.guide(&GuideSpec::Json), TokenMask::default());
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
    let pending: Vec<_> =
        (0..20).map(|_| ahead.start(world.guide(&GuideSpec::Json), TokenMask::default())).collect();
    drop(ahead);
    let want = allowed(&mut world.guide(&GuideSpec::Json), world.vocab);
    for (i, pending) in pending.into_iter().enumerate() {
        let ready = pending.wait();
        ready.outcome.unwrap();
        assert_eq!(ids(&ready.mask, world.vocab), want, "mask {i} after the thread is gone");
    }
}

#[test]
fn masks_are_ready_without_being_waited_for() {
    let world = llama();
    let ahead = MaskAhead::new();
    let pending = ahead.start(world.guide(&GuideSpec::Json), TokenMask::default());
    // No clock: the thread gets there whenever it gets there.
    while !pending.is_ready() {
        std::thread::yield_now();
    }
    pending.wait().outcome.unwrap();
}
