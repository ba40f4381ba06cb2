//! The event stream under the model checker loom: every order in which threads may run, up to a
//! number of preemptions, of the very file that runs in the library.
//!
//! In each order loom also looks for threads that wait for ever and for memory that nobody gives back.

/// Loom's locks, in the place of those of the standard library.
mod sync {
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
}

// The models use a part of it.
#[allow(dead_code)]
#[path = "../src/events/stream.rs"]
mod stream;

use loom::thread;
use stream::{Publisher, StreamError, Subscriber};

/// Three preemptions in one execution, which keeps the number of orders in the thousands. What is
/// wrong with threads mostly shows with two (Musuvathi and Qadeer, *Iterative Context Bounding*, 2007).
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// Everything until the stream ends.
fn drain(mut subscriber: Subscriber<u64>) -> Vec<u64> {
    let mut items = Vec::new();
    while let Some(item) = subscriber.recv().expect("the ring is large enough") {
        items.push(item);
    }
    items
}

#[test]
fn two_subscribers_read_every_batch_once_and_in_order() {
    model(|| {
        let publisher = Publisher::new(4);
        let readers = [(); 2].map(|()| {
            let subscriber = publisher.subscribe(None).unwrap();
            thread::spawn(move || drain(subscriber))
        });
        publisher.publish(|n| n);
        publisher.publish(|n| n);
        drop(publisher);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), [0, 1], "batches read");
        }
    });
}

#[test]
fn who_subscribes_while_another_publishes_has_no_gap_and_no_duplicate() {
    model(|| {
        let publisher = Publisher::new(4);
        let other = publisher.clone();
        let writer = thread::spawn(move || {
            other.publish(|n| n);
            other.publish(|n| n);
        });
        // One asks for all there was, one for what is to come.
        let all = publisher.subscribe(Some(0)).unwrap();
        let live = publisher.subscribe(None).unwrap();
        let begin = live.position();
        drop(publisher);
        assert_eq!(drain(all), [0, 1], "batches from the beginning");
        let want: Vec<u64> = (begin..2).collect();
        assert_eq!(drain(live), want, "batches after subscribing at {begin}");
        writer.join().unwrap();
    });
}

#[test]
fn two_publishers_share_one_count() {
    model(|| {
        let publisher = Publisher::new(4);
        let reader = publisher.subscribe(None).unwrap();
        let other = publisher.clone();
        let writer = thread::spawn(move || other.publish(|n| n * 10));
        publisher.publish(|n| n * 10 + 1);
        drop(publisher);
        let items = drain(reader);
        writer.join().unwrap();
        let numbers: Vec<u64> = items.iter().map(|item| item / 10).collect();
        assert_eq!(numbers, [0, 1], "numbers given to the batches {items:?}");
        assert_eq!(items.iter().map(|item| item % 10).sum::<u64>(), 1, "one of each publisher");
    });
}

/// The publisher stays: no end of a stream wakes anybody here.
#[test]
fn all_who_wait_are_woken_by_one_batch() {
    model(|| {
        let publisher = Publisher::new(1);
        let readers = [(); 2].map(|()| {
            let mut subscriber = publisher.subscribe(None).unwrap();
            thread::spawn(move || subscriber.recv().unwrap())
        });
        publisher.publish(|n| n);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), Some(0), "the batch read");
        }
        drop(publisher);
    });
}

#[test]
fn who_waits_is_woken_by_the_end_of_the_stream() {
    model(|| {
        let publisher = Publisher::<u64>::new(1);
        let readers = [(); 2].map(|()| {
            let subscriber = publisher.subscribe(None).unwrap();
            thread::spawn(move || drain(subscriber))
        });
        let other = publisher.clone();
        let writer = thread::spawn(move || drop(other));
        drop(publisher);
        writer.join().unwrap();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), [0; 0], "batches read");
        }
    });
}

/// A ring of one item and a reader that may be slow: what it reads and what it is told that it lost
/// are, together, all there was.
#[test]
fn what_a_slow_subscriber_loses_is_told_to_the_number() {
    model(|| {
        let publisher = Publisher::new(1);
        let mut subscriber = publisher.subscribe(None).unwrap();
        let reader = thread::spawn(move || {
            let mut next = 0;
            loop {
                match subscriber.recv() {
                    Ok(Some(item)) => {
                        assert_eq!(item, next, "the batch that comes next");
                        next += 1;
                    }
                    Ok(None) => return next,
                    Err(StreamError::Lost { from, first_available }) => {
                        assert_eq!(from, next, "the first that is lost");
                        assert!(first_available > from, "{first_available} is after {from}");
                        next = first_available;
                    }
                    Err(e) => panic!("{e}"),
                }
            }
        });
        (0..3).for_each(|_| publisher.publish(|n| n));
        drop(publisher);
        assert_eq!(reader.join().unwrap(), 3, "batches read or lost");
    });
}

#[test]
fn a_subscriber_that_goes_away_holds_nobody_up_and_leaves_nothing_behind() {
    model(|| {
        // loom's own `Arc`: one that outlives the model is a failure.
        let publisher = Publisher::new(1);
        let gone = publisher.subscribe(None).unwrap();
        let stays = publisher.subscribe(None).unwrap();
        let leaver = thread::spawn(move || drop(gone));
        let item = sync::Arc::new(());
        publisher.publish(|_| item.clone());
        drop(publisher);
        leaver.join().unwrap();
        let mut stays = stays;
        let got = stays.recv().unwrap().expect("the one batch");
        assert!(stays.recv().unwrap().is_none() && stays.is_finished(), "the end");
        drop((got, stays));
        assert_eq!(sync::Arc::strong_count(&item), 1, "holders of the batch");
    });
}
