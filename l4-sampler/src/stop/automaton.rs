//! Searches a text for many strings at once, byte by byte, reading each byte once.
//!
//! (Aho, Corasick, "Efficient string matching: an aid to bibliographic search", 1975.) All beginnings of all strings
//! are the nodes of a tree. The current node is the longest beginning that the text so far ends with; no other part of
//! the text matters. If the node has no child for the next byte, the second longest such beginning is tried, then the
//! third: each node has a link to the next shorter one, `shorter`.
//!
//! The automaton reads bytes and still never cuts a character: in UTF-8 the first byte of a character never occurs
//! inside another one, so a string is only found at the beginning of a character.

/// The empty text, which every text ends with.
pub(super) const ROOT: u32 = 0;

/// A beginning of a string.
#[derive(Debug)]
struct Node {
    /// Next bytes, with the nodes that they lead to. Few nodes have more than one.
    next: Vec<(u8, u32)>,
    /// Length in bytes.
    len: u32,
    /// The longest other beginning that it ends with.
    shorter: u32,
    /// The longest string that it ends with.
    found: Option<Found>,
    /// Number of bytes at its end that could still become a string.
    open: u32,
    /// Number of bytes at its end that could still become a string before any other string is found.
    open_to_win: u32,
}

/// A string that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Index of the string.
    pub(super) number: u32,
    /// Length of the string in bytes.
    pub(super) len: u32,
}

/// Strings to look for.
#[derive(Debug)]
pub(super) struct Automaton {
    nodes: Vec<Node>,
}

impl Automaton {
    /// Creates the automaton of strings of at least one byte. Of equal strings only the first is ever found.
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

    /// Inserts a string, with all nodes on the way to it, and returns its node.
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

    /// Fills in `shorter`, and `found` of nodes at whose end only a shorter string is found. Shorter nodes come first,
    /// so their links are complete when a longer node needs them.
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

    /// Fills in `open` and `open_to_win`. A node without children is not open itself, but a shorter one that it ends
    /// with can be. A node can be open and unable to win: if another string ends inside every string that it begins.
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

    /// The node after one more byte. Costs a constant, amortised: each link to a shorter node undoes a byte that led to
    /// a longer one.
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

    /// Number of bytes at the end of the text that could still become a string: any string, or the first one to be
    /// found.
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
