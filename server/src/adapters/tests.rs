//! Waits for adapters with the threads and the clock of a server.

use std::sync::atomic::{AtomicUsize, Ordering};

use l5_scheduler::adapters::AdapterOptions;
use tokio::time::timeout;

use super::fake_disk::{Directory, Disk};
use super::*;

/// Maximum number of reads in flight.
const MAX_READS: usize = 2;

/// A request with one prompt token.
const ONE: Waits = Waits { requests: 1, tokens: 1 };

fn adapters(disk: &Disk, max: usize, load_timeout: Duration, max_wait: Duration) -> Adapters {
    let options = AdapterOptions { max_cpu_loras: max, load_timeout, ..AdapterOptions::default() };
    Adapters::new(disk.registry(options), Background::default(), max_wait)
}

/// Adapters whose room a request for `b` has, with that request's adapter. `a` is known, and evicted.
async fn full() -> (Adapters, RequestAdapter) {
    let long = Duration::from_secs(60);
    let adapters = adapters(&Disk::default(), 1, long, long);
    for name in ["a", "b"] {
        adapters.loaded(name).await.unwrap();
    }
    let b = adapters.used("b").await.unwrap();
    (adapters, b)
}

impl Adapters {
    /// Uses an adapter as one request does.
    async fn used(&self, name: &str) -> Result<RequestAdapter, ApiError> {
        let named = NamedAdapter { adapters: self.clone(), name: name.to_owned() };
        named.obtain(ONE, None).await.map(|(adapter, _)| adapter)
    }

    async fn loaded(&self, name: &str) -> Result<(), ApiError> {
        self.load(name.to_owned(), name.into(), true).await.map(drop)
    }
}

#[tokio::test]
async fn a_name_whose_files_hang_has_one_thread_until_that_ends() {
    let disk = Disk::default();
    let (moment, long) = (Duration::from_millis(50), Duration::from_secs(60));
    let adapters = adapters(&disk, 4, moment, Duration::ZERO);
    disk.set("a", Directory::Stuck);
    for _ in 0..2 {
        let stuck = adapters.loaded("a").await.unwrap_err();
        assert_eq!(stuck.code, Some("adapter_timeout"), "{stuck:?}");
    }
    let unloaded = adapters.unload("a".into()).await.unwrap_err();
    assert_eq!(unloaded.code, Some("adapter_timeout"));
    let other = timeout(long, async {
        while adapters.loaded("b").await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(other.is_ok(), "other names are read");
    disk.set("a", Directory::Fine);
    let again = timeout(long, async {
        while adapters.loaded("a").await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(again.is_ok(), "the name is free when the thread has ended");
}

#[tokio::test]
async fn loads_and_requests_at_once_share_the_room_of_one_adapter_and_none_is_refused() {
    let long = Duration::from_secs(60);
    let adapters = adapters(&Disk::default(), 1, long, long);
    let each = |at: usize| {
        let adapters = adapters.clone();
        tokio::spawn(async move {
            let name = format!("a{}", at % 8);
            adapters.loaded(&name).await?;
            adapters.used(&name).await.map(drop)
        })
    };
    let all: Vec<_> = (0..64).map(each).collect();
    for one in all {
        one.await.unwrap().expect("it gets its turn");
    }
    assert_eq!(adapters.registry().num_resident(), 1);
}

#[tokio::test]
async fn the_wait_is_measured_and_counted_and_ends_with_the_time_of_the_request() {
    let (adapters, b) = full().await;
    let named = NamedAdapter { adapters: adapters.clone(), name: "a".to_owned() };
    let deadline = Instant::now() + Duration::from_millis(20);
    let late = named.obtain(ONE, Some(deadline)).await.unwrap_err();
    assert_eq!(late.code, Some("request_timeout"));
    assert_eq!((adapters.num_waiting(), adapters.waiting().len()), (0, 0));
    let five = Waits { requests: 5, tokens: 50 };
    let waits =
        tokio::spawn(async move { named.obtain(five, None).await.map(|(_, waited)| waited) });
    while adapters.num_waiting() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!((adapters.num_waiting(), adapters.waiting()), (5, vec!["a".to_owned()]));
    let seen = Instant::now();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let waited = seen.elapsed();
    drop(b);
    assert!(waits.await.unwrap().unwrap() >= waited);
    assert_eq!(adapters.num_waiting(), 0);
}

#[tokio::test]
async fn a_shutdown_ends_what_waits_and_what_comes_later() {
    let (adapters, b) = full().await;
    let own = adapters.clone();
    let waits = tokio::spawn(async move { own.used("a").await.map(drop) });
    while adapters.num_waiting() == 0 {
        tokio::task::yield_now().await;
    }
    adapters.close();
    assert_eq!(waits.await.unwrap().unwrap_err().code, Some("draining"));
    assert_eq!(adapters.unload("b".into()).await.unwrap_err().code, Some("draining"));
    drop(b);
}

#[tokio::test]
async fn want_of_memory_ends_a_load_and_a_request_as_something_that_may_pass() {
    let (disk, long) = (Disk::default(), Duration::from_secs(60));
    let adapters = adapters(&disk, 1, long, long);
    adapters.loaded("a").await.unwrap();
    adapters.loaded("b").await.unwrap();
    disk.set("a", Directory::NoMemory);
    let read_again = adapters.used("a").await.unwrap_err();
    let loaded_again = adapters.loaded("a").await.unwrap_err();
    for why in [read_again, loaded_again] {
        assert_eq!((why.status.as_u16(), why.code), (503, Some("out_of_memory")));
        assert!(why.retry_after.is_some() && why.message.contains("`a`"), "{}", why.message);
    }
    disk.set("a", Directory::Fine);
    adapters.used("a").await.expect("it is read when there is memory");
}

/// A sequence of numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        // Knuth's MMIX generator.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Loads, unloads, requests, clients that go, reads that fail and reads that hang past their deadlines.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_at_once_every_wait_ends_and_nothing_is_lost() {
    const MAX: usize = 3;
    const NAMES: u64 = 7;
    let (disk, moment) = (Disk::default(), Duration::from_millis(20));
    let adapters = adapters(&disk, MAX, moment, moment);
    let most = Arc::new(AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..24 {
        let (adapters, disk, most) = (adapters.clone(), disk.clone(), most.clone());
        clients.spawn(async move {
            let (mut numbers, mut used) = (Numbers(client), None);
            for _ in 0..40 {
                let name = format!("a{}", numbers.below(NAMES));
                let done = match numbers.below(10) {
                    0 => {
                        let kinds = [Directory::Fine, Directory::Bad, Directory::Stuck];
                        disk.set(&name, kinds[numbers.below(3) as usize]);
                        Ok(())
                    }
                    1..=3 => adapters.loaded(&name).await,
                    4 => adapters.unload(name).await,
                    5 => {
                        // Its client goes.
                        let gone = Duration::from_millis(numbers.below(5));
                        timeout(gone, adapters.used(&name))
                            .await
                            .unwrap_or_else(|_| Err(draining()))
                            .map(drop)
                    }
                    _ => adapters.used(&name).await.map(|own| used = Some(own)),
                };
                if let Err(why) = done {
                    assert!(matches!(why.status.as_u16(), 400 | 404 | 503), "{why:?}");
                }
                if numbers.below(2) == 0 {
                    used = None;
                }
                most.fetch_max(adapters.registry().num_resident(), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(numbers.below(3))).await;
            }
            drop(used);
        });
    }
    let ended = timeout(Duration::from_secs(120), async {
        while let Some(client) = clients.join_next().await {
            client.unwrap();
        }
    });
    ended.await.expect("every wait ends");
    let most = most.load(Ordering::Relaxed);
    assert!(most <= MAX + MAX_READS, "{most}");
    (0..NAMES).for_each(|at| disk.set(&format!("a{at}"), Directory::Fine));
    for at in 0..NAMES {
        let name = format!("a{at}");
        let again = timeout(Duration::from_secs(60), async {
            while adapters.loaded(&name).await.is_err() {
                tokio::task::yield_now().await;
            }
            while adapters.used(&name).await.is_err() {
                tokio::task::yield_now().await;
            }
        });
        again.await.expect("every name, every thread and all the room are free again");
    }
    assert_eq!((adapters.num_waiting(), adapters.registry().num_resident()), (0, MAX));
    assert!(adapters.registry().has_room());
}
