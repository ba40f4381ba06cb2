//! KV events: their words, and what a subscriber gets to read. (What threads may do to a stream is in
//! `loom_events.rs`.)

use std::sync::Arc;
use std::time::{Duration, Instant};

use l3_paged_kv::events::{EventBatch, EventStream, KvEvent, Medium, StreamError, Subscription};
use l3_paged_kv::{BlockHash, GroupId};
use proptest::prelude::*;
use serde_json::json;

fn removed(n: u8) -> Vec<KvEvent> {
    let block_hashes = vec![BlockHash([n; 32])];
    vec![KvEvent::BlockRemoved { block_hashes, medium: Medium::Cpu, group_idx: GroupId(0) }]
}

/// Publish `n` batches.
fn publish(stream: &EventStream, n: usize) {
    (0..n).for_each(|i| stream.publish(removed(i as u8)));
}

/// The numbers of all batches that are there to read.
fn numbers(subscription: &mut Subscription) -> Vec<u64> {
    std::iter::from_fn(|| subscription.try_recv().unwrap()).map(|batch| batch.sequence).collect()
}

#[test]
fn a_stored_block_is_told_in_the_words_of_vllm() {
    let event = KvEvent::BlockStored {
        block_hashes: vec![BlockHash([0xab; 32])],
        parent_block_hash: Some(BlockHash([1; 32])),
        token_ids: vec![5, 6, 7, 8],
        block_size: 4,
        lora_name: Some("sql".into()),
        lora_path: Some("/adapters/sql".into()),
        medium: Medium::Cpu,
        group_idx: GroupId(0),
    };
    let batch = EventBatch { sequence: 7, namespace: "coder".into(), events: vec![event] };
    let want = json!({
        "sequence": 7,
        "namespace": "coder",
        "events": [{
            "type": "BlockStored",
            "block_hashes": ["ab".repeat(32)],
            "parent_block_hash": "01".repeat(32),
            "token_ids": [5, 6, 7, 8],
            "block_size": 4,
            "lora_name": "sql",
            "lora_path": "/adapters/sql",
            "medium": "CPU",
            "group_idx": 0,
        }],
    });
    assert_eq!(serde_json::to_value(&batch).unwrap(), want, "as JSON");
    assert_eq!(serde_json::from_value::<EventBatch>(want).unwrap(), batch, "and back");
}

#[test]
fn removed_and_cleared_are_told_in_the_words_of_vllm() {
    let mut events = removed(2);
    events.push(KvEvent::AllBlocksCleared);
    let want = json!([
        { "type": "BlockRemoved", "block_hashes": ["02".repeat(32)], "medium": "CPU", "group_idx": 0 },
        { "type": "AllBlocksCleared" },
    ]);
    assert_eq!(serde_json::to_value(&events).unwrap(), want, "as JSON");
    assert_eq!(serde_json::from_value::<Vec<KvEvent>>(want).unwrap(), events, "and back");
}

#[test]
fn batches_are_numbered_and_say_whose_they_are() {
    let stream = EventStream::new("coder", 8);
    let mut all = stream.subscribe(None).unwrap();
    stream.publish(removed(1));
    stream.publish(Vec::new());
    stream.clone().publish(removed(2));
    let batches: Vec<_> = std::iter::from_fn(|| all.try_recv().unwrap()).collect();
    let want = [removed(1), removed(2)];
    assert_eq!(batches.len(), 2, "batches; one without events is none");
    for (i, (batch, want)) in batches.iter().zip(want).enumerate() {
        assert_eq!((batch.sequence, &*batch.namespace), (i as u64, "coder"), "batch {i}");
        assert_eq!(batch.events, want, "events of batch {i}");
    }
}

#[test]
fn who_comes_late_can_have_what_is_kept_replayed() {
    let stream = EventStream::new("", 3);
    publish(&stream, 5);
    assert_eq!(stream.next_sequence(), 5, "number of the next batch");
    let mut replayed = stream.subscribe(Some(2)).unwrap();
    let mut live = stream.subscribe(None).unwrap();
    let mut at_the_end = stream.subscribe(Some(5)).unwrap();
    publish(&stream, 1);
    // The ring holds 3, 4 and 5 now, and the first of the replay had not been read.
    let lost = replayed.try_recv().unwrap_err();
    assert_eq!(lost, StreamError::Lost { from: 2, first_available: 3 }, "slow by one");
    assert_eq!(numbers(&mut replayed), [3, 4, 5], "what is left of the replay");
    assert_eq!(numbers(&mut live), [5], "live");
    assert_eq!(numbers(&mut at_the_end), [5], "from the next one on");
}

#[test]
fn what_is_not_kept_any_more_cannot_be_replayed() {
    let stream = EventStream::new("", 3);
    publish(&stream, 5);
    let error = stream.subscribe(Some(1)).err().expect("batch 1 is gone");
    assert_eq!(error, StreamError::Lost { from: 1, first_available: 2 }, "subscribing from 1");
    let message = error.to_string();
    assert!(
        message.starts_with("batches 1 to 1 are lost: the oldest that is kept is 2"),
        "{message}"
    );
}

#[test]
fn what_is_yet_to_come_cannot_be_asked_for_by_number() {
    let stream = EventStream::new("", 3);
    publish(&stream, 5);
    let error = stream.subscribe(Some(6)).err().expect("batch 6 is two ahead");
    assert_eq!(error, StreamError::Ahead { asked: 6, next: 5 }, "subscribing from 6");
    assert!(error.to_string().contains("the publisher has restarted"), "{error}");
}

#[test]
fn a_stream_that_is_to_keep_nothing_keeps_one() {
    let stream = EventStream::new("", 0);
    let mut subscription = stream.subscribe(None).unwrap();
    publish(&stream, 1);
    assert_eq!(numbers(&mut subscription), [0], "batches");
}

#[test]
fn a_batch_is_freed_when_the_ring_has_moved_on_whoever_has_not_read_it() {
    let stream = EventStream::new("", 2);
    let mut slow = stream.subscribe(None).unwrap();
    let mut quick = stream.subscribe(None).unwrap();
    publish(&stream, 1);
    let first = Arc::downgrade(&quick.try_recv().unwrap().unwrap());
    publish(&stream, 1);
    assert!(first.upgrade().is_some(), "batch 0 is kept for the slow one");
    publish(&stream, 1);
    assert!(first.upgrade().is_none(), "batch 0 is not kept beyond the ring");
    assert!(matches!(slow.try_recv(), Err(StreamError::Lost { .. })), "the slow one is told");
}

#[test]
fn reading_waits_for_the_next_batch_and_ends_with_the_stream() {
    let stream = EventStream::new("", 100);
    let subscription = stream.subscribe(None).unwrap();
    let reader = std::thread::spawn(move || {
        subscription.map(|batch| batch.unwrap().sequence).collect::<Vec<_>>()
    });
    for _ in 0..50 {
        publish(&stream, 2);
        std::thread::yield_now();
    }
    drop(stream);
    assert_eq!(reader.join().unwrap(), (0..100).collect::<Vec<_>>(), "batches read");
}

#[test]
fn waiting_has_an_end_when_a_time_is_given() {
    let stream = EventStream::new("", 4);
    let mut subscription = stream.subscribe(None).unwrap();
    let (start, timeout) = (Instant::now(), Duration::from_millis(20));
    assert!(subscription.recv_timeout(timeout).unwrap().is_none(), "nothing was published");
    assert!(start.elapsed() >= timeout, "it came back after {:?}", start.elapsed());
    publish(&stream, 1);
    let batch = subscription.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(batch.map(|b| b.sequence), Some(0), "a batch that is there");
    assert!(!subscription.is_finished(), "finished while there is a publisher");
    drop(stream);
    let start = Instant::now();
    assert!(subscription.recv_timeout(Duration::from_secs(60)).unwrap().is_none(), "the end");
    assert!(start.elapsed() < Duration::from_secs(30), "the end of a stream is not waited for");
    assert!(subscription.is_finished(), "finished after the last publisher");
}

/// A stream told in numbers: which are kept, and where each reader stands.
#[derive(Clone, Debug)]
enum Action {
    Publish,
    Subscribe(Option<u64>),
    Read(usize),
    Unsubscribe(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::Publish),
        1 => prop::option::of(0..20u64).prop_map(Action::Subscribe),
        4 => (0..4usize).prop_map(Action::Read),
        1 => (0..4usize).prop_map(Action::Unsubscribe),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_reader_reads_each_batch_once_or_is_told_that_it_is_lost(
        replay in 1..6u64,
        actions in prop::collection::vec(action(), 0..60),
    ) {
        let stream = EventStream::new("", replay as usize);
        let mut readers: Vec<(Subscription, u64)> = Vec::new();
        let mut next = 0u64;
        for action in actions {
            let oldest = next.saturating_sub(replay);
            match action {
                Action::Publish => {
                    stream.publish(removed(next as u8));
                    next += 1;
                }
                Action::Subscribe(from) => match stream.subscribe(from) {
                    Ok(subscription) => {
                        let at = from.unwrap_or(next);
                        prop_assert!((oldest..=next).contains(&at));
                        readers.push((subscription, at));
                    }
                    Err(StreamError::Lost { first_available, .. }) => {
                        prop_assert!(from.is_some_and(|from| from < oldest));
                        prop_assert_eq!(first_available, oldest);
                    }
                    Err(StreamError::Ahead { .. }) => {
                        prop_assert!(from.is_some_and(|from| from > next));
                    }
                },
                Action::Read(i) => {
                    let Some((subscription, at)) = readers.get_mut(i) else { continue };
                    match subscription.try_recv() {
                        Ok(Some(batch)) => {
                            prop_assert_eq!(batch.sequence, *at);
                            prop_assert_eq!(&batch.events, &removed(*at as u8));
                            *at += 1;
                        }
                        Ok(None) => prop_assert_eq!(*at, next),
                        Err(e) => {
                            let want = StreamError::Lost { from: *at, first_available: oldest };
                            prop_assert_eq!(e, want);
                            prop_assert!(*at < oldest);
                            *at = oldest;
                        }
                    }
                    prop_assert_eq!(subscription.next_sequence(), *at);
                }
                Action::Unsubscribe(i) if i < readers.len() => drop(readers.swap_remove(i)),
                Action::Unsubscribe(_) => {}
            }
        }
    }
}
