//! Feeds a program and reads what it writes, without waiting for one while the other is full.

use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::process::Group;
use super::{End, MAX_OUTPUT_BYTES, Run};

/// Time between two looks at the deadline, and at whether the program has ended while a child of it holds the pipe.
const TICK: Duration = Duration::from_millis(20);

/// The program's ends of the pipes.
pub struct Theirs {
    pub stdin: PipeReader,
    pub output: PipeWriter,
}

/// The server's ends of the pipes, which do not block.
pub struct Ours {
    stdin: PipeWriter,
    output: PipeReader,
}

/// Creates the pipes. All descriptors are closed by an exec of any process that does not ask for them.
pub fn pair() -> io::Result<(Theirs, Ours)> {
    let (their_stdin, stdin) = io::pipe()?;
    let (output, their_output) = io::pipe()?;
    unblock(stdin.as_raw_fd())?;
    unblock(output.as_raw_fd())?;
    Ok((Theirs { stdin: their_stdin, output: their_output }, Ours { stdin, output }))
}

fn unblock(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: no memory is involved, and the caller's descriptor is open.
    let set = unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Ours {
    /// Writes the input and reads the output until the program ends, `wall` has passed, or `stop` is set. Then all
    /// processes of the group are killed.
    ///
    /// # Errors
    /// Errors of poll and read. The group is killed then, too.
    pub fn exchange(
        self,
        group: Group,
        input: &[&[u8]],
        wall: Duration,
        stop: &AtomicBool,
    ) -> io::Result<Run> {
        let deadline = Instant::now() + wall;
        let Self { stdin, output: mut from } = self;
        let mut to = Some(stdin);
        let mut parts = input.iter().copied();
        let mut rest: &[u8] = &[];
        let (mut input_written, mut output, mut open) = (false, Vec::new(), true);
        let early = loop {
            if let Some(writer) = &mut to {
                match feed(writer, &mut rest, &mut parts) {
                    Fed::Later => {}
                    Fed::All => (to, input_written) = (None, true),
                    Fed::Closed => to = None,
                }
            }
            open = open && read(&mut from, &mut output)?;
            if group.has_ended() {
                // What it wrote before its end is in the pipe.
                read(&mut from, &mut output)?;
                break None;
            }
            if stop.load(Ordering::Acquire) {
                break Some(End::Stopped);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Some(End::TimedOut);
            }
            let writer = to.as_ref().map_or(-1, |writer| writer.as_raw_fd());
            wait(writer, if open { from.as_raw_fd() } else { -1 }, left.min(TICK))?;
        };
        let ended = group.end();
        Ok(Run { end: early.unwrap_or(ended), output, input_written })
    }
}

/// What became of the input.
enum Fed {
    All,
    Later,
    Closed,
}

/// Writes as much input as fits the pipe.
fn feed<'a>(
    to: &mut PipeWriter,
    rest: &mut &'a [u8],
    parts: &mut impl Iterator<Item = &'a [u8]>,
) -> Fed {
    loop {
        while rest.is_empty() {
            match parts.next() {
                Some(part) => *rest = part,
                None => return Fed::All,
            }
        }
        match to.write(rest) {
            Ok(written) => *rest = &rest[written..],
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Fed::Later,
            // The program does not want it: it has an error to report.
            Err(_) => return Fed::Closed,
        }
    }
}

/// Reads what the pipe holds, at most a bounded number of bytes, and keeps the first bytes of all. Returns whether the
/// pipe is still open.
fn read(from: &mut PipeReader, output: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 16 << 10];
    // Bounded, so that a program that writes without end is stopped at its deadline.
    for _ in 0..16 {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(n) => {
                let room = MAX_OUTPUT_BYTES.saturating_sub(output.len());
                output.extend_from_slice(&buffer[..n.min(room)]);
            }
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => break,
            Err(why) => return Err(why),
        }
    }
    Ok(true)
}

/// Waits until one can be written, the other be read, or the time has passed. -1 stands for none.
fn wait(writer: RawFd, reader: RawFd, time: Duration) -> io::Result<()> {
    let mut entries = [
        libc::pollfd { fd: writer, events: libc::POLLOUT, revents: 0 },
        libc::pollfd { fd: reader, events: libc::POLLIN, revents: 0 },
    ];
    let milliseconds = libc::c_int::try_from(time.as_millis()).unwrap_or(libc::c_int::MAX).max(1);
    // SAFETY: `entries` is writable and has two entries.
    let ready = unsafe { libc::poll(entries.as_mut_ptr(), 2, milliseconds) };
    let why = io::Error::last_os_error();
    if ready < 0 && why.kind() != io::ErrorKind::Interrupted { Err(why) } else { Ok(()) }
}
