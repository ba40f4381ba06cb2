//! Tests of lanes, with replicas that report a load and run nothing.

use std::sync::atomic::{AtomicUsize, Ordering};

use l4_sampler::guide::CacheStats;
use l5_scheduler::RequestId;
use proptest::prelude::*;

use super::*;

/// A replica that accepts `room` requests at a time, and runs none.
struct Fake {
    load: Load,
    room: usize,
    ended: Option<EngineError>,
    config: SchedulerConfig,
    facts: ModelFacts,
    taken: AtomicUsize,
    /// What it says to every request, whatever its room.
    rejects: Option<SubmitError>,
}

impl Fake {
    fn new(seconds: Option<f64>, queued_tokens: usize, room: usize, ended: bool) -> Self {
        let ended = ended.then(|| EngineError::Failed("out of luck".into()));
        // The rate and the slack are those of no other fake.
        let (prefill_seconds_per_token, slack) = (seconds, seconds.map(|seconds| 1.0 - seconds));
        let load = Load { seconds, queued_tokens, running: 1, preemptions: 2, ..Load::default() };
        let load = Load { prefill_seconds_per_token, slack, ..load };
        let (config, facts) = (SchedulerConfig::new(8, 16), ModelFacts::default());
        Self { load, room, ended, config, facts, taken: AtomicUsize::new(0), rejects: None }
    }
}

impl Replica for Fake {
    fn submit(
        &self,
        requests: Vec<EngineRequest>,
        samples: u32,
    ) -> Result<Vec<ResponseStream>, SubmitError> {
        let wanted = requests.len() * samples as usize;
        if let Some(why) = &self.rejects {
            return Err(why.clone());
        }
        self.room_for(wanted)?;
        self.taken.fetch_add(wanted, Ordering::Relaxed);
        Ok(Vec::new())
    }

    fn room_for(&self, requests: usize) -> Result<(), SubmitError> {
        match &self.ended {
            Some(why) => Err(why.clone().into()),
            None if requests > self.room => Err(SubmitError::Full { waiting: self.room, most: 9 }),
            None => Ok(()),
        }
    }

    fn load(&self) -> Load {
        self.load
    }

    fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    fn model(&self) -> &ModelFacts {
        &self.facts
    }

    fn compile_guide(&self, _: &GuideSpec, _: &str) -> Result<CompiledGuide, SubmitError> {
        Err(SubmitError::NoTokenizer("guides"))
    }

    fn compiled_guide(&self, _: &GuideSpec, _: &str) -> Option<CompiledGuide> {
        None
    }

    fn guide_stats(&self) -> CacheStats {
        CacheStats::default()
    }

    fn abort(&self, _: RequestId) -> Result<(), EngineError> {
        Ok(())
    }

    fn inbox_polls(&self) -> u64 {
        0
    }

    fn ended(&self) -> Option<EngineError> {
        self.ended.clone()
    }

    fn wait_until_ended(&self) -> EngineError {
        self.ended.clone().unwrap_or(EngineError::ShutDown)
    }

    fn drain(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn shutdown(&self) -> Result<(), EngineError> {
        Ok(())
    }
}

fn lane(fakes: Vec<Fake>) -> (Lane<()>, Vec<Arc<Fake>>) {
    let fakes: Vec<Arc<Fake>> = fakes.into_iter().map(Arc::new).collect();
    let replicas = fakes.iter().map(|fake| fake.clone() as Arc<dyn Replica>).collect();
    (Lane::new(LaneId("test".into()), replicas, ()).unwrap(), fakes)
}

fn requests(n: usize) -> Vec<EngineRequest> {
    vec![EngineRequest::default(); n]
}

#[test]
fn a_lane_has_a_replica() {
    let error = Lane::new(LaneId("empty".into()), Vec::new(), ()).unwrap_err();
    assert!(error.to_string().contains("lane empty has no replica"), "{error}");
}

#[test]
fn a_lane_has_failed_when_all_its_replicas_have() {
    let (one_left, _) = lane(vec![Fake::new(None, 0, 1, true), Fake::new(None, 0, 1, false)]);
    assert_eq!(one_left.ended(), None);
    let (failed, _) = lane(vec![Fake::new(None, 0, 1, true), Fake::new(None, 0, 1, true)]);
    assert!(matches!(failed.ended(), Some(EngineError::Failed(_))));
    assert!(matches!(failed.submit(requests(1), 1), Err(SubmitError::Stopped(_))));
    assert!(matches!(failed.room_for(1), Err(SubmitError::Stopped(_))));
}

#[test]
fn a_full_replica_passes_a_request_on_and_a_full_lane_says_so() {
    let (lane, fakes) =
        lane(vec![Fake::new(Some(1.0), 0, 2, false), Fake::new(Some(2.0), 0, 3, false)]);
    assert_eq!(lane.submit(requests(1), 3).unwrap().0, ReplicaId(1));
    assert_eq!(fakes[0].taken.load(Ordering::Relaxed), 0);
    // The error is that of the least busy replica.
    let full = |why| matches!(why, Err(SubmitError::Full { waiting: 2, .. }));
    assert!(full(lane.submit(requests(4), 1).map(drop)) && full(lane.room_for(4)));
}

#[test]
fn a_request_that_is_invalid_is_not_offered_to_another_replica() {
    let invalid = SubmitError::NoTokenizer("guides");
    let first = Fake { rejects: Some(invalid.clone()), ..Fake::new(Some(1.0), 0, 9, false) };
    let (lane, fakes) = lane(vec![first, Fake::new(Some(2.0), 0, 9, false)]);
    let refused = lane.submit(requests(1), 1).map(drop).unwrap_err();
    assert_eq!(refused.to_string(), invalid.to_string());
    assert_eq!(fakes[1].taken.load(Ordering::Relaxed), 0);
}

#[test]
fn seconds_come_before_tokens_and_a_replica_without_a_step_counts_as_idle() {
    let (slow, _) =
        lane(vec![Fake::new(Some(2.0), 1, 9, false), Fake::new(Some(1.0), 50, 9, false)]);
    assert_eq!(slow.submit(requests(1), 1).unwrap().0, ReplicaId(1), "fewer seconds, more tokens");
    let (new, _) = lane(vec![Fake::new(Some(0.1), 0, 9, false), Fake::new(None, 50, 9, false)]);
    assert_eq!(new.submit(requests(1), 1).unwrap().0, ReplicaId(1));
    let (equal, _) = lane(vec![Fake::new(None, 50, 9, false), Fake::new(None, 2, 9, false)]);
    assert_eq!(
        equal.submit(requests(1), 1).unwrap().0,
        ReplicaId(1),
        "of equal seconds fewer tokens"
    );
}

#[test]
fn tokens_that_are_owed_count_as_those_that_wait() {
    let owed = |queued_tokens, pending_output_tokens| {
        let mut fake = Fake::new(None, queued_tokens, 9, false);
        fake.load.pending_output_tokens = pending_output_tokens;
        fake
    };
    let (lane, _) = lane(vec![owed(5, 40), owed(30, 10), owed(41, 0)]);
    assert_eq!(lane.submit(requests(1), 1).unwrap().0, ReplicaId(1));
}

#[test]
fn the_load_of_a_lane_is_a_sum_and_its_wait_the_shortest() {
    let (lane, _) = lane(vec![
        Fake::new(Some(3.0), 10, 1, false),
        Fake::new(Some(2.0), 20, 1, false),
        Fake::new(Some(0.5), 40, 1, true),
    ]);
    let load = lane.load();
    assert_eq!((load.running, load.queued_tokens, load.seconds), (3, 70, Some(2.0)));
    assert_eq!((load.prefill_seconds_per_token, load.preemptions), (Some(2.0), 6));
    assert_eq!(load.slack, Some(-2.0), "the least of all");
}

#[test]
fn the_next_turn_of_a_conversation_goes_to_the_replica_that_has_the_last_one() {
    let fake = |seconds: f64| Fake::new(Some(seconds), 0, 9, false);
    let turn = |tokens: std::ops::Range<u32>| {
        let prompt: Vec<u32> = tokens.collect();
        vec![EngineRequest { prompt: prompt.into(), ..EngineRequest::default() }]
    };
    let (lane, _) = lane(vec![fake(2.0), fake(1.0)]);
    assert_eq!(lane.submit(turn(0..100), 1).unwrap().0, ReplicaId(1), "the least work");
    // Now replica 1 has more work than replica 0, and seats are free in both.
    let (other, _) = self::lane(vec![fake(1.0), fake(2.0)]);
    let lane = Lane { replicas: other.replicas, ..lane };
    assert_eq!(lane.submit(turn(0..150), 1).unwrap().0, ReplicaId(1), "it has 96 tokens of it");
    assert_eq!(lane.submit(turn(500..600), 1).unwrap().0, ReplicaId(0), "another conversation");
    // A replica that takes nothing is not chosen for what it holds.
    let (other, _) = self::lane(vec![fake(1.0), Fake::new(Some(2.0), 0, 0, false)]);
    let lane = Lane { replicas: other.replicas, ..lane };
    assert_eq!(lane.submit(turn(0..200), 1).unwrap().0, ReplicaId(0));
}

#[test]
fn a_prefix_is_not_followed_into_a_queue_that_costs_more() {
    let busy = |seconds: f64| {
        let mut fake = Fake::new(Some(seconds), 0, 9, false);
        // Each seat is taken, and a prompt token takes a millisecond.
        fake.load.running = fake.config.seats();
        fake.load.prefill_seconds_per_token = Some(1e-3);
        fake
    };
    let idle = || {
        let mut fake = Fake::new(Some(0.0), 0, 9, false);
        fake.load.prefill_seconds_per_token = Some(1e-3);
        fake
    };
    let prompt: Arc<[u32]> = (0..96).collect::<Vec<u32>>().into();
    let request = || vec![EngineRequest { prompt: prompt.clone(), ..EngineRequest::default() }];
    let (lane, _) = lane(vec![idle(), busy(1.0)]);
    let held = ReplicaChoice { replica: ReplicaId(1), ..lane.choose(&request()) };
    lane.submit_to(&held, request(), 1).unwrap();
    let seats = lane.config().seats() as f64;
    // One of the seats must end, so a seat's part of the work is the wait.
    let mut lane = lane;
    for (wait, chosen) in [(0.09, 1), (0.11, 0)] {
        let (other, _) = self::lane(vec![idle(), busy(wait * seats)]);
        lane = Lane { replicas: other.replicas, ..lane };
        assert_eq!(lane.choose(&request()).replica, ReplicaId(chosen), "a wait of {wait} s");
    }
}

#[test]
fn a_request_that_failed_goes_to_the_least_busy_other_replica_or_back() {
    let fakes = || {
        vec![
            Fake::new(Some(1.0), 0, 9, false),
            Fake::new(Some(3.0), 0, 9, false),
            Fake::new(Some(2.0), 0, 9, false),
        ]
    };
    let fail_over = |fakes, failed, may| {
        let (lane, _) = lane(fakes);
        lane.fail_over(ReplicaId(failed), may, EngineRequest::default()).map(|(id, _)| id.0)
    };
    assert_eq!(fail_over(fakes(), 0, Move::ElsewhereOrAgain), Ok(2));
    assert_eq!(fail_over(fakes(), 1, Move::Elsewhere), Ok(0));
    let relays_only = || {
        let mut fakes = fakes();
        fakes[1].rejects = Some(SubmitError::NotRelayed("guides"));
        fakes[2].ended = Some(EngineError::Unreachable("down".into()));
        fakes
    };
    assert_eq!(
        fail_over(relays_only(), 0, Move::ElsewhereOrAgain),
        Ok(0),
        "no other one serves it"
    );
    let refused = fail_over(relays_only(), 0, Move::Elsewhere);
    assert_eq!(refused, Err(SubmitError::NotRelayed("guides")));
    let alone = fail_over(vec![Fake::new(None, 0, 9, false)], 0, Move::Elsewhere);
    assert_eq!(alone, Err(SubmitError::Draining));
}

proptest! {
    /// Against a naive model: a request that failed is accepted once, by the live replica with the least work and room
    /// other than the one that failed it; by that one only if there is no other, and it may have it again.
    #[test]
    fn a_request_that_failed_is_served_once_and_elsewhere_if_it_can_be(
        given in prop::collection::vec((0_u8..4, 0_usize..3, any::<bool>()), 1..6),
        failed in 0_usize..6,
        again in any::<bool>(),
    ) {
        let failed = failed % given.len();
        let fakes = given.iter().map(|&(seconds, room, ended)| {
            Fake::new(Some(f64::from(seconds)), 0, room, ended)
        });
        let (lane, fakes) = lane(fakes.collect());
        let able = |at: &usize| given[*at].1 > 0 && !given[*at].2;
        let others = (0..given.len()).filter(|at| *at != failed && able(at));
        let best = others.min_by_key(|at| (given[*at].0, *at));
        let expected = best.or(Some(failed).filter(|at| again && able(at)));
        let may = if again { Move::ElsewhereOrAgain } else { Move::Elsewhere };
        let moved = lane.fail_over(ReplicaId(failed as u32), may, EngineRequest::default());
        prop_assert_eq!(moved.ok().map(|(id, _)| id.0 as usize), expected);
        for (at, fake) in fakes.iter().enumerate() {
            prop_assert_eq!(fake.taken.load(Ordering::Relaxed), usize::from(Some(at) == expected));
        }
    }

    /// Against a naive model: of the live replicas with room, none has less work than the one that is chosen.
    #[test]
    fn a_request_goes_to_the_live_replica_with_the_least_work(
        given in prop::collection::vec(
            (prop::option::of(0_u8..4), 0_usize..4, 0_usize..4, any::<bool>()), 1..6,
        ),
        wanted in 1_usize..4,
    ) {
        let fakes = given.iter().map(|&(seconds, tokens, room, ended)| {
            Fake::new(seconds.map(f64::from), tokens, room, ended)
        });
        let (lane, fakes) = lane(fakes.collect());
        let mut able: Vec<_> = given
            .iter()
            .enumerate()
            .filter(|(_, (_, _, room, ended))| !ended && *room >= wanted)
            .map(|(at, (seconds, tokens, ..))| (seconds.unwrap_or(0), *tokens, at))
            .collect();
        able.sort_unstable();
        let chosen = lane.submit(requests(wanted), 1).ok().map(|(id, _)| id.0 as usize);
        prop_assert_eq!(chosen, able.first().map(|(_, _, at)| *at));
        prop_assert_eq!(lane.room_for(wanted).is_ok(), chosen.is_some());
        for (at, fake) in fakes.iter().enumerate() {
            let taken = if chosen == Some(at) { wanted } else { 0 };
            prop_assert_eq!(fake.taken.load(Ordering::Relaxed), taken);
        }
    }
}
