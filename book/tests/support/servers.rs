//! Commands that go on while others are typed: `cargo run -- serve &`.
//!
//! Such a command is started, and what it prints is shown up to the line with its URL. It ends with the fence, as
//! Ctrl-C ends it for a reader.

use std::io::{BufRead, BufReader, PipeReader, pipe};
use std::process::{Child, Command};
use std::thread::JoinHandle;

use crate::built::Built;
use crate::pages::root;
use crate::run::{Said, as_if_typed, execute, said};

/// How a command ends that is left running.
pub const BEHIND: &str = " &";

/// What a fence has started.
#[derive(Default)]
pub struct Servers(Vec<Running>);

struct Running {
    child: Child,
    /// Reads on, or a server that prints would wait for ever.
    reader: Option<JoinHandle<()>>,
}

impl Servers {
    /// Run a command, or start it and let it run.
    pub fn run(&mut self, command: &str) -> Said {
        match command.strip_suffix(BEHIND) {
            None => execute(command, &root()),
            Some(server) => self.start(server),
        }
    }

    fn start(&mut self, command: &str) -> Said {
        eprintln!("$ {command} &");
        let built = Built::parse(command).and_then(|built| built.program_alone(as_if_typed));
        let mut program = built.unwrap_or_else(|| panic!("only `cargo run` can be left running"));
        // Both streams into one pipe, in the order in which a terminal would show them.
        let (reader, writer) = pipe().expect("a pipe");
        program.stdout(writer.try_clone().expect("a second end")).stderr(writer);
        let child = program.spawn().unwrap_or_else(|e| panic!("{command}: {e}"));
        // It holds the pipe's other ends, too.
        drop(program);
        let mut lines = BufReader::new(reader);
        let (text, serving) = up_to_the_url(&mut lines);
        let reader = std::thread::spawn(move || lines.lines().for_each(drop));
        self.0.push(Running { child, reader: Some(reader) });
        said(command, &text, serving.then_some(0))
    }
}

/// What came before the server said where it is, and whether it did.
fn up_to_the_url(lines: &mut BufReader<PipeReader>) -> (String, bool) {
    let mut text = String::new();
    loop {
        let before = text.len();
        match lines.read_line(&mut text) {
            Ok(0) | Err(_) => return (text, false),
            Ok(_) if text[before..].contains("http://") => return (text, true),
            Ok(_) => {}
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let pid = self.child.id().to_string();
        let asked = Command::new("kill").args(["-INT", &pid]).status();
        if !asked.is_ok_and(|status| status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
