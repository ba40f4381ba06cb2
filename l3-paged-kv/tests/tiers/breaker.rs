//! The breaker around a tier that fails, hangs, and recovers.

use std::sync::Arc;
use std::time::Duration;

use l3_paged_kv::tier::{
    Breaker, BreakerOptions, BreakerState, DiskOptions, DiskTier, KvTier, Presence, Ticket,
    TierCompletion, TierError, TierOutcome,
};
use tempfile::TempDir;

use crate::support::{Disk, Does, FaultyTier, ManualClock, bytes, key};

const OPTIONS: BreakerOptions = BreakerOptions {
    timeout: Duration::from_secs(2),
    failures: 3,
    retry_after: Duration::from_secs(5),
};

fn breaker(script: &[Does]) -> (Breaker<FaultyTier>, ManualClock) {
    let clock = ManualClock::default();
    let tier = FaultyTier::new(script.iter().copied());
    (Breaker::new(tier, OPTIONS, Arc::new(clock.clone())), clock)
}

/// The outcomes since the last poll.
fn poll(tier: &mut dyn KvTier) -> Vec<(Ticket, TierOutcome)> {
    let mut ended = Vec::new();
    tier.poll(&mut ended);
    ended.into_iter().map(|TierCompletion { ticket, outcome }| (ticket, outcome)).collect()
}

/// Puts a chunk and returns its outcome, if there is one at once.
fn put(tier: &mut dyn KvTier, n: u64) -> Option<TierOutcome> {
    let ticket = tier.put(&key(n), bytes(n, 10));
    poll(tier).into_iter().find(|(t, _)| *t == ticket).map(|(_, outcome)| outcome)
}

fn failed() -> Option<TierOutcome> {
    Some(TierOutcome::Failed(TierError::Io("injected".into())))
}

use Does::{Fails, Hangs, Works};

#[test]
fn failures_in_a_row_open_it_and_others_do_not() {
    let (mut tier, _) = breaker(&[Fails, Fails, Works, Fails, Fails, Fails]);
    assert_eq!([put(&mut tier, 0), put(&mut tier, 1)], [failed(), failed()]);
    assert_eq!(put(&mut tier, 2), Some(TierOutcome::Stored), "a success between");
    assert_eq!([put(&mut tier, 3), put(&mut tier, 4)], [failed(), failed()]);
    assert_eq!(tier.state(), BreakerState::Closed);
    assert_eq!(put(&mut tier, 5), failed());
    assert_eq!(tier.state(), BreakerState::Open { since: Duration::ZERO });
    assert_eq!(tier.stats().opened, 1);
}

/// Misses come without a word from the disk, so they prove nothing.
#[test]
fn a_miss_between_failures_is_no_success() {
    let (mut tier, _) = breaker(&[Fails, Works, Fails, Works, Fails]);
    for n in 0..5 {
        let _ = if n % 2 == 0 { put(&mut tier, n) } else { Some(get_miss(&mut tier)) };
    }
    assert!(matches!(tier.state(), BreakerState::Open { .. }), "{:?}", tier.state());
}

fn get_miss(tier: &mut dyn KvTier) -> TierOutcome {
    let ticket = tier.get(&key(999));
    let outcome = poll(tier).into_iter().find(|(t, _)| *t == ticket).unwrap().1;
    assert_eq!(outcome, TierOutcome::Miss);
    outcome
}

#[test]
fn an_open_breaker_has_nothing_and_leaves_the_tier_alone() {
    let (mut tier, clock) = breaker(&[Works, Fails, Fails, Fails]);
    (0..4).for_each(|n| _ = put(&mut tier, n));
    let before = tier.tier().operations;
    clock.advance(OPTIONS.retry_after - Duration::from_millis(1));
    assert_eq!(tier.contains(&key(0)), Presence::Absent);
    assert_eq!(put(&mut tier, 9), Some(TierOutcome::Refused));
    let ticket = tier.get(&key(0));
    assert_eq!(poll(&mut tier), [(ticket, TierOutcome::Refused)]);
    assert_eq!(tier.tier().operations, before, "operations of the tier");
    assert_eq!(tier.stats().refused, 2);

    // What began before it opened may succeed late. Whether the tier works now, only a probe shows.
    let (mut tier, _) = breaker(&[Hangs, Fails, Fails, Fails]);
    let early = tier.put(&key(0), bytes(0, 10));
    (1..4).for_each(|n| assert_eq!(put(&mut tier, n), failed()));
    release(&mut tier);
    assert_eq!(poll(&mut tier), [(early, TierOutcome::Stored)]);
    assert_eq!(tier.state(), BreakerState::Open { since: Duration::ZERO }, "after a late success");
}

#[test]
fn one_operation_probes_and_a_success_closes_it() {
    let (mut tier, clock) = breaker(&[Works, Fails, Fails, Fails, Hangs]);
    (0..4).for_each(|n| _ = put(&mut tier, n));
    clock.advance(OPTIONS.retry_after);
    assert_eq!(tier.contains(&key(0)), Presence::Present, "it may be asked again");
    let probe = tier.get(&key(0));
    assert_eq!(poll(&mut tier), []);
    assert!(matches!(tier.state(), BreakerState::HalfOpen { probe: Some(_) }));
    assert_eq!(tier.contains(&key(0)), Presence::Absent, "while the probe is under way");
    assert_eq!(put(&mut tier, 7), Some(TierOutcome::Refused), "a second one beside the probe");
    clock.advance(Duration::from_secs(1));
    release(&mut tier);
    assert_eq!(poll(&mut tier), [(probe, TierOutcome::Hit(bytes(0, 10)))]);
    assert_eq!(tier.state(), BreakerState::Closed);
    assert_eq!(put(&mut tier, 8), Some(TierOutcome::Stored));
}

/// Ends what hangs in the tier of a breaker.
fn release(tier: &mut Breaker<FaultyTier>) {
    tier.tier_mut().release();
}

#[test]
fn a_probe_that_fails_opens_it_for_the_whole_time_again() {
    let (mut tier, clock) = breaker(&[Fails, Fails, Fails, Fails, Works]);
    (0..3).for_each(|n| _ = put(&mut tier, n));
    clock.advance(OPTIONS.retry_after);
    assert_eq!(put(&mut tier, 3), failed(), "the probe");
    assert_eq!(tier.state(), BreakerState::Open { since: OPTIONS.retry_after });
    clock.advance(OPTIONS.retry_after - Duration::from_millis(1));
    assert_eq!(put(&mut tier, 4), Some(TierOutcome::Refused));
    clock.advance(Duration::from_millis(1));
    assert_eq!(put(&mut tier, 5), Some(TierOutcome::Stored));
    assert_eq!((tier.state(), tier.stats().opened), (BreakerState::Closed, 2));
}

#[test]
fn a_probe_that_misses_lets_another_one_probe() {
    let (mut tier, clock) = breaker(&[Fails, Fails, Fails]);
    (0..3).for_each(|n| _ = put(&mut tier, n));
    clock.advance(OPTIONS.retry_after);
    get_miss(&mut tier);
    assert_eq!(tier.state(), BreakerState::HalfOpen { probe: None });
    assert_eq!(put(&mut tier, 3), Some(TierOutcome::Stored));
    assert_eq!(tier.state(), BreakerState::Closed);
}

#[test]
fn an_operation_ends_at_its_timeout_and_a_late_answer_is_dropped() {
    let (mut tier, clock) = breaker(&[Hangs, Works, Hangs]);
    let first = tier.put(&key(0), bytes(0, 10));
    assert_eq!(put(&mut tier, 1), Some(TierOutcome::Stored), "others go on");
    clock.advance(Duration::from_secs(1));
    let third = tier.put(&key(2), bytes(2, 10));
    clock.advance(Duration::from_millis(999));
    assert_eq!(poll(&mut tier), []);
    clock.advance(Duration::from_millis(1));
    let timed_out = TierOutcome::Failed(TierError::TimedOut(OPTIONS.timeout));
    assert_eq!(poll(&mut tier), [(first, timed_out.clone())]);
    release(&mut tier);
    assert_eq!(poll(&mut tier), [(third, TierOutcome::Stored)], "the first one came too late");
    assert_eq!((tier.stats().failed, tier.state()), (1, BreakerState::Closed));
}

#[test]
fn a_tier_that_is_slow_is_given_up_within_a_stated_time() {
    let (mut tier, clock) = breaker(&[Hangs; 100]);
    let mut waited = Duration::ZERO;
    while !matches!(tier.state(), BreakerState::Open { .. }) {
        let _ = tier.get(&key(0));
        clock.advance(OPTIONS.timeout);
        waited += OPTIONS.timeout;
        assert_eq!(poll(&mut tier).len(), 1);
    }
    assert_eq!(waited, OPTIONS.timeout * OPTIONS.failures);
    // At once, they cost one timeout.
    let (mut tier, clock) = breaker(&[Hangs; 100]);
    (0..50).for_each(|n| _ = tier.get(&key(n)));
    clock.advance(OPTIONS.timeout);
    assert_eq!(poll(&mut tier).len(), 50, "all of them end");
    assert!(matches!(tier.state(), BreakerState::Open { .. }));
    assert_eq!(tier.stats().opened, 1);
}

#[test]
fn a_full_disk_refuses_puts_for_a_time_and_can_be_read() {
    let (dir, disk) = (TempDir::new().unwrap(), Disk::default());
    let inner = DiskTier::over(disk.files(dir.path()), DiskOptions::new(1 << 20)).unwrap();
    let clock = ManualClock::default();
    let mut tier = Breaker::new(inner, OPTIONS, Arc::new(clock.clone()));
    let outcome = |tier: &mut Breaker<DiskTier>, n: u64| {
        let ticket = tier.put(&key(n), bytes(n, 100));
        crate::support::wait(tier, ticket)
    };
    (5..10).for_each(|n| assert_eq!(outcome(&mut tier, n), TierOutcome::Stored));
    disk.set(|f| f.disk_size = Some(0));
    (0..3).for_each(|n| {
        assert!(matches!(outcome(&mut tier, n), TierOutcome::Failed(TierError::Write(_))));
    });
    assert_eq!(outcome(&mut tier, 3), TierOutcome::Refused);
    assert!(!tier.needs(&key(3)), "its bytes need not be read");
    assert_eq!((tier.state(), tier.stats().opened), (BreakerState::Closed, 0));
    let hit = crate::support::get(&mut tier, 9);
    assert!(matches!(hit, TierOutcome::Hit(_)), "{hit:?}");
    disk.set(|f| f.disk_size = None);
    assert_eq!(outcome(&mut tier, 3), TierOutcome::Refused, "it does not know yet");
    clock.advance(OPTIONS.retry_after);
    assert_eq!(outcome(&mut tier, 3), TierOutcome::Stored);
    tier.into_tier().close();
}

/// A server that hangs: each lookup fails after a time, and nothing is ever stored or read.
#[test]
fn lookups_that_fail_open_it_and_open_it_again() {
    let (mut tier, clock) = breaker(&[Works]);
    assert_eq!(put(&mut tier, 0), Some(TierOutcome::Stored));
    tier.tier_mut().failed_lookups = 2;
    poll(&mut tier);
    assert_eq!((tier.state(), tier.contains(&key(0))), (BreakerState::Closed, Presence::Present));
    tier.tier_mut().failed_lookups = 3;
    poll(&mut tier);
    assert_eq!(tier.state(), BreakerState::Open { since: Duration::ZERO });
    clock.advance(OPTIONS.retry_after);
    assert_eq!(tier.contains(&key(0)), Presence::Present, "it tries again");
    tier.tier_mut().failed_lookups = 4;
    poll(&mut tier);
    assert_eq!(tier.state(), BreakerState::Open { since: OPTIONS.retry_after });
    assert_eq!((tier.contains(&key(0)), tier.stats().opened), (Presence::Absent, 2));
}
