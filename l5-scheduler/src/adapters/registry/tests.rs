//! Reads that fail or never end, what they evict, and the bounds on adapters and on names.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::*;

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

fn options(max_cpu_loras: usize, load_timeout: Duration) -> AdapterOptions {
    AdapterOptions { max_cpu_loras, load_timeout, ..AdapterOptions::default() }
}

/// A registry whose reads of the directory `stuck` end when something is sent. Returns what the reads report, and what
/// ends them.
fn registry(options: AdapterOptions) -> (AdapterRegistry, Receiver<()>, SyncSender<()>) {
    let model = EngineModel::open(&tiny("tiny-llama"), Default::default()).unwrap();
    let (began, begun) = sync_channel(16);
    let (end, ended) = sync_channel::<()>(16);
    let ended = Mutex::new(ended);
    let (rt, config) = (model.rt.clone(), model.decoder.config().clone());
    let read = move |path: &Path| {
        if path == Path::new("stuck") {
            began.send(()).unwrap();
            ended.lock().unwrap().recv().unwrap();
        }
        let files = if path == Path::new("bad") { "none" } else { "adapters/tiny-llama-all" };
        LoraAdapter::open(&rt, &tiny(files), &config, 64)
    };
    (AdapterRegistry::reading(read, options), begun, end)
}

#[test]
fn a_read_past_its_deadline_is_dropped_and_its_name_and_room_are_free() {
    let (registry, begun, end) = registry(options(1, Duration::from_secs(1)));
    let own = registry.clone();
    let stuck = std::thread::spawn(move || own.load("a", Path::new("stuck"), false));
    begun.recv().unwrap();
    // This load waits for the other one until that is past its deadline. Then it has the only room.
    let loaded = registry.load("a", Path::new("fine"), false).unwrap();
    assert_eq!(registry.info("a").unwrap().path, Path::new("fine"));
    end.send(()).unwrap();
    let why = stuck.join().unwrap().unwrap_err();
    assert!(matches!(&why, RegistryError::TimedOut { name, .. } if name == "a"), "{why}");
    assert_eq!(registry.info("a").unwrap().path, Path::new("fine"), "the late read is dropped");
    drop(loaded);
    assert_eq!(registry.num_resident(), 1);
    assert!(registry.has_room());
    registry.unload("a").unwrap();
}

#[test]
fn what_waits_for_a_read_of_its_name_waits_for_no_longer_than_a_read_may_take() {
    let (registry, begun, end) = registry(options(2, Duration::from_millis(100)));
    let own = registry.clone();
    let stuck = std::thread::spawn(move || own.load("a", Path::new("stuck"), false));
    begun.recv().unwrap();
    let unknown = registry.unload("a").unwrap_err();
    assert!(matches!(unknown, RegistryError::NotFound { .. }), "{unknown}");
    end.send(()).unwrap();
    stuck.join().unwrap().unwrap_err();
}

#[test]
fn there_is_room_while_an_adapter_is_idle_and_none_while_all_are_used_or_read() {
    let (registry, begun, end) = registry(options(2, Duration::from_secs(60)));
    assert!(registry.has_room());
    let a = registry.load("a", Path::new("fine"), false).unwrap();
    let own = registry.clone();
    let reads = std::thread::spawn(move || own.load("b", Path::new("stuck"), false).map(drop));
    begun.recv().unwrap();
    assert!(!registry.has_room(), "one is used, and one is being read");
    drop(a);
    assert!(registry.has_room(), "the first one can be evicted");
    end.send(()).unwrap();
    reads.join().unwrap().unwrap();
}

fn resident(registry: &AdapterRegistry) -> Vec<String> {
    let resident = registry.list().into_iter().filter(|info| info.resident);
    resident.map(|info| info.name).collect()
}

#[test]
fn a_read_that_fails_evicts_nothing_and_one_that_does_not_evicts_at_its_end() {
    let (registry, begun, end) = registry(options(1, Duration::from_secs(60)));
    drop(registry.load("a", Path::new("fine"), false).unwrap());
    let bad = registry.load("b", Path::new("bad"), false).unwrap_err();
    assert!(matches!(bad, RegistryError::Load { .. }), "{bad}");
    assert_eq!(resident(&registry), ["a"]);
    let own = registry.clone();
    let reads = std::thread::spawn(move || own.load("b", Path::new("stuck"), false).map(drop));
    begun.recv().unwrap();
    assert_eq!(resident(&registry), ["a"], "it stays until the other one is read");
    end.send(()).unwrap();
    reads.join().unwrap().unwrap();
    assert_eq!(resident(&registry), ["b"]);
}

#[test]
fn an_adapter_that_is_used_during_a_read_stays_beside_what_was_read_until_it_is_idle() {
    let (registry, begun, end) = registry(options(1, Duration::from_secs(60)));
    drop(registry.load("a", Path::new("fine"), false).unwrap());
    let own = registry.clone();
    let reads = std::thread::spawn(move || own.load("b", Path::new("stuck"), false).unwrap());
    begun.recv().unwrap();
    let a = registry.get("a").unwrap();
    end.send(()).unwrap();
    let b = reads.join().unwrap();
    assert_eq!(registry.num_resident(), 2, "the maximum, and the read that was in flight");
    assert!(!registry.has_room() && registry.requests_use_all());
    drop((a, b));
    registry
        .begin("c", ReadFor::Load { path: Path::new("fine"), load_inplace: false }, true)
        .unwrap();
    assert_eq!(resident(&registry), ["b"], "what is above the maximum is evicted");
}

#[test]
fn loads_at_once_wait_for_the_room_of_one_another() {
    let (registry, begun, end) = registry(options(1, Duration::from_secs(60)));
    let own = registry.clone();
    let first = std::thread::spawn(move || own.load("a", Path::new("stuck"), false).map(drop));
    begun.recv().unwrap();
    let own = registry.clone();
    let second = std::thread::spawn(move || own.load("b", Path::new("fine"), false).map(drop));
    // It has the time to be refused.
    std::thread::sleep(Duration::from_millis(50));
    assert!(!second.is_finished());
    end.send(()).unwrap();
    first.join().unwrap().unwrap();
    second.join().unwrap().unwrap();
    assert_eq!(resident(&registry), ["b"]);
}

#[test]
fn names_are_bounded_whether_or_not_their_adapters_are_in_memory() {
    let limits = options(1, Duration::from_secs(60));
    let (registry, ..) = registry(AdapterOptions { max_names: 2, ..limits });
    let load =
        |name: &str, load_inplace| registry.load(name, Path::new("fine"), load_inplace).map(drop);
    load("a", false).unwrap();
    load("b", false).unwrap();
    let why = load("c", false).unwrap_err();
    assert!(matches!(why, RegistryError::TooMany { max: 2 }), "{why}");
    assert!(why.to_string().contains("unload one"), "{why}");
    load("a", true).unwrap();
    registry.unload("b").unwrap();
    load("c", false).unwrap();
}
