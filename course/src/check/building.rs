//! What is printed on stderr while cargo builds.
//!
//! On a terminal one line, which is gone afterwards. Elsewhere (a log, a pipe, an editor) a line every quarter of a
//! minute, so that a long build does not look like one that hangs.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::shell;

/// How often a thread looks whether there is something to print.
const TICK: Duration = Duration::from_secs(1);
/// Time between two lines where stderr is not a terminal.
const PERIOD: Duration = Duration::from_secs(15);
/// The line of a build script is about its crate, which is named when it is compiled itself.
const BUILD_SCRIPT: &str = "build-script-";

/// Do something that builds, and print how it goes.
pub fn with_progress<T>(work: impl FnOnce(&mut Building) -> Result<T>) -> Result<T> {
    let mut building = Building::on(Board::new(Box::new(io::stderr()), io::stderr().is_terminal()));
    work(&mut building)
}

/// The builds of a command.
pub struct Building {
    shared: Arc<Shared>,
    ticker: Option<JoinHandle<()>>,
}

struct Shared {
    board: Mutex<Board>,
    closed: Condvar,
}

impl Building {
    fn on(board: Board) -> Self {
        let shared = Arc::new(Shared { board: Mutex::new(board), closed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        // Without the thread a build is as good, with fewer lines.
        let ticker = thread::Builder::new().name("progress".into()).spawn(move || of_thread.tick());
        Self { shared, ticker: ticker.ok() }
    }

    /// Runs a build for a layer, or for something else with a name; `cold` if nothing of it was ever built here. `build`
    /// tells the names of crates that were compiled.
    pub fn during<T>(
        &mut self,
        layer: &str,
        cold: bool,
        build: impl FnOnce(&mut dyn FnMut(&str)) -> Result<T>,
    ) -> Result<T> {
        self.begin(layer, cold);
        let built = build(&mut |name| self.built(name))?;
        self.end();
        Ok(built)
    }

    fn begin(&mut self, layer: &str, cold: bool) {
        self.shared.board().begin(layer, cold, Instant::now());
    }

    /// A crate was compiled.
    fn built(&mut self, name: &str) {
        self.shared.board().built(name, Instant::now());
    }

    /// The build has ended.
    fn end(&mut self) {
        self.shared.board().end();
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        self.shared.board().close();
        self.shared.closed.notify_all();
        if let Some(ticker) = self.ticker.take() {
            // Nothing depends on its lines.
            let _ = ticker.join();
        }
    }
}

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self) {
        let mut board = self.board();
        while !board.closed {
            let woken = self.closed.wait_timeout(board, TICK);
            board = woken.unwrap_or_else(PoisonError::into_inner).0;
            board.tick(Instant::now());
        }
    }
}

/// What is known of the builds, and where it is printed.
struct Board {
    out: Box<dyn Write + Send>,
    on_terminal: bool,
    current: Option<Build>,
    closed: bool,
}

/// A build that goes on.
struct Build {
    layer: String,
    /// Whether the user was told at its beginning.
    announced: bool,
    began: Instant,
    /// When a line was last printed, at the beginning at the earliest.
    said: Instant,
    built: usize,
    last: String,
}

impl Board {
    fn new(out: Box<dyn Write + Send>, on_terminal: bool) -> Self {
        Self { out, on_terminal, current: None, closed: false }
    }

    fn begin(&mut self, layer: &str, cold: bool, now: Instant) {
        self.end();
        if cold {
            self.print(&format!(
                "building {layer} and what it needs for the first time: several minutes on two cores\n"
            ));
        }
        self.current = Some(Build {
            layer: layer.into(),
            announced: cold,
            began: now,
            said: now,
            built: 0,
            last: String::new(),
        });
    }

    fn built(&mut self, name: &str, now: Instant) {
        let Some(build) = &mut self.current else { return };
        build.built += 1;
        if !name.starts_with(BUILD_SCRIPT) {
            build.last = name.into();
        }
        if self.on_terminal {
            self.say(now);
        } else if !build.announced {
            build.announced = true;
            self.print("building what changed ..\n");
        }
    }

    fn tick(&mut self, now: Instant) {
        let Some(build) = &self.current else { return };
        let due = match self.on_terminal {
            true => build.built > 0,
            false => now.saturating_duration_since(build.said) >= PERIOD,
        };
        if due {
            self.say(now);
        }
    }

    fn say(&mut self, now: Instant) {
        let Some(build) = &mut self.current else { return };
        build.said = now;
        build.announced = true;
        let line = build.line(now);
        match self.on_terminal {
            true => self.print(&format!("\r\x1b[K{line}")),
            false => self.print(&format!("{line}\n")),
        }
    }

    fn end(&mut self) {
        if self.current.take().is_some_and(|b| b.built > 0) && self.on_terminal {
            self.print("\r\x1b[K");
        }
    }

    fn close(&mut self) {
        self.end();
        self.closed = true;
    }

    fn print(&mut self, text: &str) {
        // An error of writing these lines does not matter.
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
    }
}

impl Build {
    /// `building l3: 34 built after 45 s, last serde_json`. Cargo's messages do not say of how many.
    fn line(&self, now: Instant) -> String {
        let seconds = now.saturating_duration_since(self.began).as_secs();
        let last = match self.last.as_str() {
            "" => String::new(),
            name => format!(", last {name}"),
        };
        format!("building {}: {} built after {seconds} s{last}", self.layer, self.built)
    }
}

/// Whether no test program of this package was ever built where cargo builds for this workspace.
pub fn is_cold(package: &str) -> bool {
    shell::target_dir()
        .is_ok_and(|target| has_no_tests(&target.join("debug/.fingerprint"), package))
}

/// Cargo keeps a directory `PACKAGE-HASH` for every unit; that of a test program has a file `test-..`. Without the
/// directory of all of them nothing is known, and nothing is said.
fn has_no_tests(fingerprints: &Path, package: &str) -> bool {
    let Ok(units) = fs::read_dir(fingerprints) else { return false };
    let of_package = |name: &str| {
        let hash = name.strip_prefix(package).and_then(|rest| rest.strip_prefix('-'));
        hash.is_some_and(|h| h.len() == 16 && h.chars().all(|c| c.is_ascii_hexdigit()))
    };
    let has_test = |dir: &Path| {
        let mut files = fs::read_dir(dir).into_iter().flatten().flatten();
        files.any(|file| file.file_name().to_string_lossy().starts_with("test-"))
    };
    let mut units = units.flatten();
    !units.any(|unit| of_package(&unit.file_name().to_string_lossy()) && has_test(&unit.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was printed, kept by both the test and the board.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Paper {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn board(on_terminal: bool) -> (Paper, Board) {
        let paper = Paper::default();
        (paper.clone(), Board::new(Box::new(paper), on_terminal))
    }

    #[test]
    fn without_a_terminal_there_is_a_line_every_quarter_of_a_minute() {
        let (paper, mut board) = board(false);
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        board.begin("l3", true, began);
        for second in 1..=40 {
            board.built(if second % 2 == 0 { "serde" } else { "build-script-build" }, at(second));
            board.tick(at(second));
        }
        board.end();
        board.tick(at(90));
        let expected = "\
            building l3 and what it needs for the first time: several minutes on two cores\n\
            building l3: 15 built after 15 s, last serde\n\
            building l3: 30 built after 30 s, last serde\n";
        assert_eq!(paper.text(), expected);
    }

    #[test]
    fn a_crate_that_takes_long_and_a_lock_that_is_waited_for_are_seen_too() {
        let (paper, mut board) = board(false);
        let began = Instant::now();
        board.begin("l1", false, began);
        board.tick(began + Duration::from_secs(16));
        board.built("regex", began + Duration::from_secs(17));
        board.tick(began + Duration::from_secs(31));
        let expected =
            "building l1: 0 built after 16 s\nbuilding l1: 1 built after 31 s, last regex\n";
        assert_eq!(paper.text(), expected);
    }

    #[test]
    fn a_short_build_is_one_line_and_one_of_nothing_none() {
        let (paper, mut board) = board(false);
        let now = Instant::now();
        board.begin("l1", false, now);
        board.built("l1_tensor", now);
        board.built("ops_norm", now);
        board.begin("l2", false, now);
        board.close();
        assert_eq!(paper.text(), "building what changed ..\n");
    }

    #[test]
    fn on_a_terminal_the_line_is_gone_afterwards() {
        let (paper, mut board) = board(true);
        let now = Instant::now();
        board.begin("l1", false, now);
        board.tick(now + Duration::from_secs(20));
        assert_eq!(paper.text(), "", "nothing was built");
        board.built("serde", now + Duration::from_secs(21));
        board.end();
        board.end();
        assert_eq!(paper.text(), "\r\x1b[Kbuilding l1: 1 built after 21 s, last serde\r\x1b[K");
    }

    #[test]
    fn the_thread_ends_with_the_builds() {
        let (paper, board) = board(false);
        let mut building = Building::on(board);
        building.begin("l1", true);
        building.built("serde");
        drop(building);
        assert!(paper.text().contains("for the first time"), "{}", paper.text());
    }

    #[test]
    fn a_layer_is_cold_until_a_test_program_of_it_was_built() {
        let dir = tempfile::tempdir().unwrap();
        let cold = || has_no_tests(dir.path(), "l3-paged-kv");
        let unit = |name: &str, file: &str| {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join(file), "").unwrap();
        };
        assert!(cold());
        unit("l3-paged-kv-reference-0123456789abcdef", "test-lib-l3_paged_kv");
        unit("l3-paged-kv-0123456789abcdef", "lib-l3_paged_kv");
        assert!(cold(), "another package, and a library that layers above needed");
        unit("l3-paged-kv-fedcba9876543210", "test-integration-test-blocks");
        assert!(!cold());
        assert!(!has_no_tests(&dir.path().join("none"), "l3-paged-kv"), "nothing is known");
    }
}
