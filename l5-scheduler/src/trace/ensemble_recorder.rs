//! Writing a recording of an ensemble.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::Recorder;
use super::ensemble::{ENSEMBLE_VERSION, EnsembleEvent, EnsembleHeader, RouteEvent, ShadowEvent};
use super::queue::{EngineQueue, LineQueue};

/// Maximum number of bytes that wait for the file: seconds of a busy server.
const MAX_QUEUE_BYTES: usize = 16 << 20;

/// Writes the events of the engines and of the router of one server to one file.
///
/// A recorder is a handle: clones write to the same file. Events wait in a bounded queue for a thread that writes them.
/// An engine never waits for the file; a line for which the queue has no room is dropped, and the last line of the
/// recording counts those.
#[derive(Clone)]
pub struct EnsembleRecorder(Arc<Shared>);

/// The file. The thread that writes returns it.
type Writer = Box<dyn Write + Send>;

struct Shared {
    queue: Arc<LineQueue>,
    began: Instant,
    routes: AtomicU64,
    engines: Mutex<Vec<Recorder>>,
    writer: Mutex<Option<JoinHandle<io::Result<Writer>>>>,
}

impl EnsembleRecorder {
    /// Records to a file, which is created or truncated.
    ///
    /// # Errors
    /// The file cannot be created, or no thread can be.
    pub fn create(path: impl AsRef<Path>, ensemble: &str, lanes: &[&str]) -> io::Result<Self> {
        Self::new(File::create(path)?, ensemble, lanes)
    }

    /// Records to a writer, which need not be buffered.
    ///
    /// # Errors
    /// No thread can be created.
    pub fn new(
        writer: impl Write + Send + 'static,
        ensemble: &str,
        lanes: &[&str],
    ) -> io::Result<Self> {
        Self::with_queue(writer, ensemble, lanes, MAX_QUEUE_BYTES)
    }

    /// Records as [`EnsembleRecorder::new`] does, with a queue of so many bytes.
    ///
    /// # Errors
    /// No thread can be created.
    pub fn with_queue(
        writer: impl Write + Send + 'static,
        ensemble: &str,
        lanes: &[&str],
        max_bytes: usize,
    ) -> io::Result<Self> {
        let queue = Arc::new(LineQueue::new(max_bytes));
        let lanes = lanes.iter().map(|lane| (*lane).to_owned()).collect();
        let (strata_trace, ensemble) = (ENSEMBLE_VERSION, ensemble.to_owned());
        let header = EnsembleHeader { strata_trace, ensemble, lanes };
        let mut line = serde_json::to_vec(&header)?;
        line.push(b'\n');
        let (lines, mut writer) = (queue.clone(), Box::new(writer) as Writer);
        let thread = std::thread::Builder::new().name("strata-trace".into()).spawn(move || {
            // A recording without its first line could not be read.
            let written = writer.write_all(&line).inspect_err(|_| _ = lines.close());
            written.and_then(|()| lines.write_to(&mut writer)).map(|()| writer)
        })?;
        Ok(Self(Arc::new(Shared {
            queue,
            began: Instant::now(),
            routes: AtomicU64::new(0),
            engines: Mutex::default(),
            writer: Mutex::new(Some(thread)),
        })))
    }

    /// Moment at which the recording's clock begins. Engines must have the same: see
    /// [`EngineOptions::clock`](crate::EngineOptions::clock).
    pub fn began(&self) -> Instant {
        self.0.began
    }

    /// Microseconds of a moment on the recording's clock.
    pub fn us(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.0.began).as_nanos() as f64 / 1000.0
    }

    /// A recorder for an engine, which is a replica of a lane. `model` is the name that the recording states.
    pub fn engine(&self, lane: &str, replica: u32, model: &str) -> Recorder {
        let queue = EngineQueue::new(self.0.queue.clone(), lane, replica);
        let recorder = Recorder::shared(queue).with_model(model);
        lock(&self.0.engines).push(recorder.clone());
        recorder
    }

    /// Number of a request at the server: another one at each call.
    pub fn next_route(&self) -> u64 {
        self.0.routes.fetch_add(1, Ordering::Relaxed)
    }

    /// Records the way of a request to its lane.
    pub fn route(&self, route: RouteEvent) {
        self.push(&EnsembleEvent::Route(route));
    }

    /// Records that the shadow of a request was submitted.
    pub fn shadow(&self, shadow: ShadowEvent) {
        self.push(&EnsembleEvent::Shadow(shadow));
    }

    fn push(&self, event: &EnsembleEvent) {
        if let Ok(line) = line(event) {
            self.0.queue.push(&[&line]);
        }
    }

    /// Writes what waits, and returns whether all was written but for the lines that were dropped. Afterwards nothing
    /// more is recorded.
    ///
    /// # Errors
    /// The first error since the recording began.
    pub fn finish(&self) -> io::Result<()> {
        let mut ended = Ok(());
        for engine in lock(&self.0.engines).drain(..) {
            ended = ended.and(engine.finish());
        }
        let dropped = self.0.queue.close();
        let Some(thread) = lock(&self.0.writer).take() else {
            return Err(io::Error::other("the recording is finished"));
        };
        let mut writer =
            thread.join().map_err(|_| io::Error::other("the recording's writer has failed"))??;
        if dropped > 0 {
            writer.write_all(&line(&EnsembleEvent::Dropped { lines: dropped })?)?;
        }
        writer.flush()?;
        ended
    }
}

/// An event as a line.
fn line(event: &EnsembleEvent) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    Ok(line)
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for EnsembleRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnsembleRecorder").finish_non_exhaustive()
    }
}
