//! Clients that hold every connection that a server allows, and then do nothing.

use std::time::{Duration, Instant};

use crate::alone;
use crate::client::{Link, Outcome, Scene};
use crate::server::Target;

/// Connections that the server allows.
const MOST: usize = 64;

/// A connection without a request is closed after 10 s, one without a body after 60 s: no probe waits for either.
const IN_TIME: Duration = Duration::from_secs(5);

/// Whether `/health` is answered in time.
fn healthy(target: &Target) -> bool {
    let scene = Scene::new(target.served.address(), "", IN_TIME, true);
    let Some(mut link) = scene.open() else { return false };
    link.send("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    matches!(link.response(false), Outcome::Response { status: 200, .. })
}

#[test]
fn clients_that_hold_every_connection_do_not_keep_health_waiting() {
    let _alone = alone();
    let most = MOST.to_string();
    let target = Target::start(false, &["--max-connections", &most]);
    let scene = Scene::new(target.served.address(), "", Duration::from_secs(60), true);
    for start in ["", "POST /v1/completions HTTP/1.1\r\nHost: ", &scene.head("/v1/completions", 99)]
    {
        let mut links: Vec<Link<'_>> = (0..MOST * 2).filter_map(|_| scene.open()).collect();
        links.iter_mut().for_each(|link| {
            link.send(start);
        });
        let began = Instant::now();
        assert!(healthy(&target), "{start:?}: no answer in {:.1?}", began.elapsed());
    }
}
