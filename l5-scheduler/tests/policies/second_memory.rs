//! A second memory that follows a script: its answers and arrivals depend on nothing but the request and the number of
//! questions about it, so that two schedulers which ask alike get the same answers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use l3_paged_kv::TokenChain;
use l5_scheduler::{KvConnector, Matched, RequestId};

/// Question for the tokens of a request behind token `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub id: u64,
    pub from: usize,
}

/// All answers and arrivals of a second memory, as a number.
#[derive(Clone, Copy, Debug)]
pub struct Script(pub u64);

impl Script {
    /// A number that looks random, for a request and a purpose.
    fn draw(self, id: u64, purpose: u64) -> u64 {
        let mut n = self.0 ^ id.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ purpose.wrapping_mul(0xD1B5);
        for _ in 0..3 {
            n = (n ^ (n >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        }
        n >> 16
    }

    /// The answer to the `nth` question about a request: at once, after some questions, never, or sometimes.
    pub fn answer(self, id: u64, nth: u64) -> Matched {
        let knows_from = match self.draw(id, 0) % 8 {
            0..=3 => 0,
            4 | 5 => 1 + self.draw(id, 1) % 4,
            6 => u64::MAX,
            _ => nth + self.draw(id, 100 + nth) % 2,
        };
        if nth < knows_from {
            return Matched::AskAgain;
        }
        Matched::Tokens(match self.draw(id, 1000 + nth) % 8 {
            0 => 0,
            1 => usize::MAX,
            n => (n as usize * 5) % 24,
        })
    }

    /// Number of steps that a load takes which began in `step`.
    pub fn steps(self, id: u64, step: usize) -> usize {
        (self.draw(id, 2000 + step as u64) % 5) as usize
    }

    /// Number of tokens, of `to`, that are there when a load has ended which began in `step`: none, some or all.
    pub fn arriving(self, id: u64, step: usize, to: usize) -> usize {
        let some = self.draw(id, 3000 + step as u64) as usize;
        match self.draw(id, 4000 + step as u64) % 6 {
            0 => 0,
            1 | 2 => some % to,
            _ => to,
        }
    }
}

/// Gives the answers of a script, and records the questions.
pub struct Scripted {
    script: Script,
    asked: HashMap<RequestId, u64>,
    questions: Arc<Mutex<Vec<Question>>>,
}

impl Scripted {
    /// The connector, and the questions that it is asked.
    pub fn new(script: Script) -> (Self, Arc<Mutex<Vec<Question>>>) {
        let questions = Arc::<Mutex<Vec<Question>>>::default();
        (Self { script, asked: HashMap::new(), questions: Arc::clone(&questions) }, questions)
    }
}

impl KvConnector for Scripted {
    fn matched_tokens(&mut self, id: RequestId, _: &TokenChain, from: usize) -> Matched {
        self.questions.lock().unwrap().push(Question { id: id.0, from });
        let nth = self.asked.entry(id).or_default();
        *nth += 1;
        self.script.answer(id.0, *nth - 1)
    }
}
