//! Where the tokens of a request were loaded from.

/// Numbers of tokens that were loaded, by the kind of memory that had them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadedTokens {
    /// Tokens of the host's memory.
    pub host: usize,
    /// Tokens of a disk.
    pub disk: usize,
    /// Tokens of another machine.
    pub external: usize,
}

impl LoadedTokens {
    /// Adds tokens of the tier of this name.
    pub(super) fn add(&mut self, tier: &str, tokens: usize) {
        *match tier {
            "dram" => &mut self.host,
            "disk" => &mut self.disk,
            _ => &mut self.external,
        } += tokens;
    }

    /// Number of all of them.
    pub fn total(&self) -> usize {
        self.host + self.disk + self.external
    }
}
