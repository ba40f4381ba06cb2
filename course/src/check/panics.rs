//! The panics in what a test printed.

/// One panic, as Rust reports it.
#[derive(Debug, PartialEq, Eq)]
pub struct Panic {
    /// Name of the thread.
    pub thread: String,
    /// `file:line` in the workspace.
    pub place: Option<String>,
    /// The message, over several lines perhaps.
    pub message: String,
    /// Functions of the backtrace, the innermost first; empty without `RUST_BACKTRACE`.
    pub frames: Vec<String>,
}

/// All panics, in order.
pub fn read(output: &str) -> Vec<Panic> {
    let mut found: Vec<Panic> = Vec::new();
    let mut part = Part::Outside;
    for line in output.lines() {
        if let Some((thread, place)) = head(line) {
            let (thread, place) = (thread.into(), place);
            found.push(Panic { thread, place, message: String::new(), frames: Vec::new() });
            part = Part::Message;
            continue;
        }
        let Some(panic) = found.last_mut() else { continue };
        match part {
            _ if line.starts_with("note: ") => part = Part::Outside,
            _ if line == "stack backtrace:" => part = Part::Backtrace,
            Part::Message => panic.message = format!("{}{line}\n", panic.message),
            Part::Backtrace => match frame(line) {
                Some(Frame::Function(name)) => panic.frames.push(name.into()),
                Some(Frame::Place) => {}
                None => part = Part::Outside,
            },
            Part::Outside => {}
        }
    }
    for panic in &mut found {
        panic.message.truncate(panic.message.trim_end().len());
    }
    found
}

#[derive(Clone, Copy)]
enum Part {
    Message,
    Backtrace,
    Outside,
}

/// `thread 'NAME' (7) panicked at FILE:LINE:COLUMN:`.
fn head(line: &str) -> Option<(&str, Option<String>)> {
    let rest = line.strip_prefix("thread '")?;
    let (thread, place) = rest.split_once(" panicked at ")?;
    let (thread, _) = thread.rsplit_once('\'')?;
    let (place, _column) = place.strip_suffix(':')?.rsplit_once(':')?;
    // A learner cannot change a file outside of the workspace (the standard library, a crate).
    let ours = split_place(place).is_some() && !place.starts_with('/');
    Some((thread, ours.then(|| place.to_string())))
}

/// The file and the line of `src/a.rs:12`.
pub fn split_place(place: &str) -> Option<(&str, usize)> {
    let (file, line) = place.rsplit_once(':')?;
    Some((file, line.parse().ok()?)).filter(|_| file.ends_with(".rs"))
}

enum Frame<'a> {
    Function(&'a str),
    /// Where the function before it is written, which is known if there is debug information.
    Place,
}

/// `   3: l3_paged_kv::pool::BlockPool::release`.
fn frame(line: &str) -> Option<Frame<'_>> {
    let line = line.trim_start();
    if line.starts_with("at ") {
        return Some(Frame::Place);
    }
    let (number, name) = line.split_once(": ")?;
    let _: usize = number.parse().ok()?;
    Some(Frame::Function(name.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_panic_keeps_its_message_and_its_backtrace() {
        let output = "noise\n\nthread 'strata-1' (4) panicked at src/list.rs:12:51:\nindex out of bounds: \
            the len is 2\n  but more\nstack backtrace:\n   0: __rustc::rust_begin_unwind\n   1: \
            l9_rec::list::List::at\n             at ./src/list.rs:12:51\n  10: \
            l9_rec::pool::Pool::release\nnote: Some details are omitted\n\nthread 'folds' (2) \
            panicked at /rustc/59/library/core/src/x.rs:9:5:\nm\n";
        let panics = read(output);
        let expected = Panic {
            thread: "strata-1".into(),
            place: Some("src/list.rs:12".into()),
            message: "index out of bounds: the len is 2\n  but more".into(),
            frames: vec![
                "__rustc::rust_begin_unwind".into(),
                "l9_rec::list::List::at".into(),
                "l9_rec::pool::Pool::release".into(),
            ],
        };
        assert_eq!(panics[0], expected);
        assert_eq!((panics[1].place.as_deref(), panics[1].message.as_str()), (None, "m"));
        assert!(panics[1].frames.is_empty());
    }

    #[test]
    fn a_place_is_a_file_and_a_line() {
        assert_eq!(split_place("a/b.rs:12"), Some(("a/b.rs", 12)));
        assert_eq!(split_place("20 is not below 20"), None);
        assert_eq!(split_place("b.rs:x"), None);
    }
}
