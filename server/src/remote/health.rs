//! Checks the health of the server behind a remote replica.

use std::sync::Weak;
use std::time::Duration;

use tokio::time::sleep;

use super::peer::Peer;

/// Time between two checks of a server that is up.
const INTERVAL: Duration = Duration::from_secs(2);

/// Time to the first check of a server that has gone down. Each later one waits twice as long.
const FIRST_RETRY: Duration = Duration::from_millis(500);

/// Maximum time between two checks of a server that is down.
const MAX_RETRY: Duration = Duration::from_secs(8);

/// Checks a server until its replica is dropped.
pub(super) async fn watch(peer: Weak<Peer>) {
    let mut failures = 0;
    loop {
        sleep(wait(failures)).await;
        let Some(peer) = peer.upgrade() else { return };
        peer.check().await;
        failures = if peer.down().is_some() { failures + 1 } else { 0 };
    }
}

/// Time to the next check, after so many in a row that found the server down.
fn wait(failures: u32) -> Duration {
    match failures.checked_sub(1) {
        None => INTERVAL,
        Some(doublings) => FIRST_RETRY.saturating_mul(1 << doublings.min(16)).min(MAX_RETRY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_stays_down_is_asked_less_and_less_often() {
        let waits = [0, 1, 2, 3, 4, 5, 6, u32::MAX].map(|failures| wait(failures).as_millis());
        assert_eq!(waits, [2000, 500, 1000, 2000, 4000, 8000, 8000, 8000]);
    }
}
