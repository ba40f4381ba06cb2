//! A server that is shut down while it is under attack.

use std::thread;
use std::time::{Duration, Instant};

use crate::bodies::{self, MIB};
use crate::client::Scene;
use crate::server::Target;
use crate::{alone, long, raw, say};

/// How long requests that are under way may go on.
const GRACE: Duration = Duration::from_secs(1);

/// How much longer the server may take to end.
const MORE: Duration = Duration::from_secs(10);

/// Clients that would keep a server from its end if it let them: each attack lasts longer than the server may.
const HOLDERS: [fn(&Scene); 7] = [
    raw::slow_heads,
    raw::slow_bodies,
    raw::slow_readers,
    raw::stuck_bodies,
    unread_streams,
    large_bodies,
    slow_guides,
];

#[test]
fn sigterm_ends_a_server_in_time_whatever_its_clients_do() {
    let _alone = alone();
    let grace = GRACE.as_secs().to_string();
    let mut target = Target::start(false, &["--shutdown-grace", &grace]);
    let address = target.served.address().to_owned();
    let lasts = (GRACE + MORE) * 2;
    let scenes = HOLDERS.map(|does| (does, Scene::new(&address, "", lasts, true)));
    thread::scope(|scope| {
        let _end = End(&scenes);
        for (does, scene) in &scenes {
            scope.spawn(move || does(scene));
        }
        thread::sleep(Duration::from_millis(500));
        assert!(target.lives(), "it ended before it was told to");
        let began = Instant::now();
        target.served.signal("TERM");
        let status = target.served.ended(GRACE + MORE);
        if long() {
            say(&format!("SIGTERM under attack: {status} after {:.1?}", began.elapsed()));
        }
        assert!(status.success(), "{status}");
    });
}

/// Ends all attacks when it is dropped, so that a test that fails ends, too.
struct End<'a>(&'a [Attack]);

/// What is done, and where.
type Attack = (fn(&Scene), Scene);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|(_, scene)| scene.end());
    }
}

/// Streams that are asked for and not read.
fn unread_streams(scene: &Scene) {
    let body = bodies::lengthy();
    raw::together(8, || {
        let Some(mut link) = scene.open() else { return };
        link.post("/v1/completions", &body);
        scene.sleep((GRACE + MORE) * 2);
    });
}

/// Large bodies, one after another, as long as the server accepts them.
fn large_bodies(scene: &Scene) {
    let body = bodies::completion("x", &bodies::list("[]", 2 * MIB));
    raw::together(4, || {
        while !scene.over() {
            let Some(mut link) = scene.open() else { return };
            link.post("/v1/completions", &body);
            link.response(false);
        }
    });
}

/// Guides that take long to compile.
fn slow_guides(scene: &Scene) {
    let guides = bodies::expressions(1);
    thread::scope(|scope| {
        for body in &guides {
            scope.spawn(move || {
                let Some(mut link) = scene.open() else { return };
                link.post("/v1/completions", body);
                link.response(false);
            });
        }
    });
}
