//! Many strings looked for at once, one byte after the other, never looking back.
//!
//! (Aho, Corasick, "Efficient string matching: an aid to bibliographic search", 1975.) All beginnings of all strings
//! are the nodes of a tree. Where we are in it is the longest beginning that the text so far ends with: everything
//! about the text that still matters. When the next byte does not lead on, the second longest such beginning is tried,
//! then the third: each node knows the next shorter one, its `shorter`.
//!
//! Bytes, not characters, and still no character is ever cut: in UTF-8 the first byte of a character is never the
//! inside of another, so a string can only be found where one begins.

/// The empty text, which every text ends with.
pub(super) const ROOT: u32 = 0;

/// One beginning of a string.
#[derive(Debug)]
struct Node {
    /// Bytes that lead on, and where. Few nodes have more than one.
    next: Vec<(u8, u32)>,
    /// Its length.
    len: u32,
    /// The longest other beginning that it ends with.
    shorter: u32,
    /// The longest string that it ends with.
    found: Option<Found>,
    /// How much of its end could still become a string.
    open: u32,
    /// How much of its end could still become a string before any other string is found.
    open_to_win: u32,
}

/// A string that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Its number among the strings.
    pub(super) number: u32,
    /// Its length in bytes.
    pub(super) len: u32,
}

/// Strings to look for.
#[derive(Debug)]
pub(super) struct Automaton {
    nodes: Vec<Node>,
}

impl Automaton {
    /// For strings of at least one byte. Of equal ones only the first is ever found.
    pub(super) fn new(strings: &[String]) -> Self {
        let mut automaton = Self { nodes: vec![node(0)] };
        for (number, string) in strings.iter().enumerate() {
            let end = automaton.insert(string.as_bytes());
            let found = Found { number: number as u32, len: string.len() as u32 };
            automaton.nodes[end as usize].found.get_or_insert(found);
        }
        let levels = automaton.levels();
        automaton.link(&levels);
        automaton.open_ends(&levels);
        automaton
    }

    /// The node of a string, made with all nodes on the way to it.
    fn insert(&mut self, string: &[u8]) -> u32 {
        let mut at = ROOT;
        for &byte in string {
            at = self.child(at, byte).unwrap_or_else(|| {
                let new = self.nodes.len() as u32;
                let len = self.nodes[at as usize].len + 1;
                self.nodes[at as usize].next.push((byte, new));
                self.nodes.push(node(len));
                new
            });
        }
        at
    }

    /// Every node but the root, as (parent, byte, node), shorter ones first.
    fn levels(&self) -> Vec<(u32, u8, u32)> {
        let mut levels: Vec<(u32, u8, u32)> = Vec::with_capacity(self.nodes.len());
        let mut seen = 0;
        let mut at = ROOT;
        loop {
            levels.extend(
                self.nodes[at as usize].next.iter().map(|&(byte, child)| (at, byte, child)),
            );
            let Some(&(_, _, next)) = levels.get(seen) else { return levels };
            at = next;
            seen += 1;
        }
    }

    /// Fills in `shorter`, and `found` where only a shorter text was found. What a node needs to know of shorter ones is
    /// there already, since they come before it.
    fn link(&mut self, levels: &[(u32, u8, u32)]) {
        for &(parent, byte, at) in levels {
            // exercise l4.stop
            let shorter = match parent {
                ROOT => ROOT,
                _ => self.step(self.nodes[parent as usize].shorter, byte),
            };
            let found_shorter = self.nodes[shorter as usize].found;
            let node = &mut self.nodes[at as usize];
            node.shorter = shorter;
            node.found = node.found.or(found_shorter);
            // end of exercise
        }
    }

    /// Fills in how much of each node's end is open. A beginning that leads nowhere is closed, but a shorter one that it
    /// ends with may be open. And one inside of whose only string another string ends is open, but cannot win.
    fn open_ends(&mut self, levels: &[(u32, u8, u32)]) {
        let mut wins = vec![false; self.nodes.len()];
        for &(parent, _, at) in levels.iter().rev() {
            let node = &self.nodes[at as usize];
            let first = node.found.map_or(wins[at as usize], |found| found.len == node.len);
            wins[parent as usize] |= first;
        }
        for &(_, _, at) in levels {
            let Node { ref next, len, shorter, .. } = self.nodes[at as usize];
            let Node { open, open_to_win, .. } = self.nodes[shorter as usize];
            let goes_on = !next.is_empty();
            let node = &mut self.nodes[at as usize];
            node.open = if goes_on { len } else { open };
            node.open_to_win = if wins[at as usize] { len } else { open_to_win };
        }
    }

    /// Where one more byte leads. Costs a constant, amortised: every way to a shorter node was paid for by a byte that
    /// led to a longer one.
    pub(super) fn step(&self, from: u32, byte: u8) -> u32 {
        // exercise l4.stop
        let mut at = from;
        loop {
            if let Some(next) = self.child(at, byte) {
                return next;
            }
            if at == ROOT {
                return ROOT;
            }
            at = self.nodes[at as usize].shorter;
        }
        // end of exercise
    }

    /// The longest string that the text ends with here.
    pub(super) fn found(&self, at: u32) -> Option<Found> {
        self.nodes[at as usize].found
    }

    /// How many bytes at the end of the text could still become a string: any, or the first one to be found.
    pub(super) fn open(&self, at: u32, first: bool) -> usize {
        let node = &self.nodes[at as usize];
        (if first { node.open_to_win } else { node.open }) as usize
    }

    fn child(&self, at: u32, byte: u8) -> Option<u32> {
        let next = &self.nodes[at as usize].next;
        next.iter().find(|(b, _)| *b == byte).map(|(_, child)| *child)
    }
}

fn node(len: u32) -> Node {
    Node { next: Vec::new(), len, shorter: ROOT, found: None, open: 0, open_to_win: 0 }
}
