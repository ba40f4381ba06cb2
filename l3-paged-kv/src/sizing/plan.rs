//! The number of blocks that fit in memory, and the arithmetic behind it as text.

use std::fmt;

use super::{Budget, Bytes, KvSpec, SizingError};

/// Memory of a device, and what the model uses of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Total memory.
    pub total: Bytes,
    /// Fraction of the total that may be used, above 0 and at most 1.
    pub utilisation: f64,
    /// Size of the weights in memory.
    pub weights: Bytes,
    /// Peak size of the activations: see [`peak_activation`](super::peak_activation).
    pub peak_activation: Bytes,
    /// Memory that stays free in addition, for what is not counted.
    pub margin: Bytes,
}

impl Memory {
    /// `total x utilisation`, in whole bytes.
    pub fn requested(&self) -> Bytes {
        Bytes((self.total.0 as f64 * self.utilisation) as u64)
    }

    /// Memory left for keys and values.
    ///
    /// ```text
    /// total x utilisation - weights - peak activation - margin
    /// ```
    ///
    /// # Errors
    /// [`SizingError::BadUtilisation`], and [`SizingError::ModelDoesNotFit`] with what is missing.
    pub fn for_kv(&self) -> Result<Bytes, SizingError> {
        if !(self.utilisation > 0.0 && self.utilisation <= 1.0) {
            return Err(SizingError::BadUtilisation(self.utilisation));
        }
        let &Self { weights, peak_activation, margin, .. } = self;
        let requested = self.requested();
        // exercise l3.sizing
        let taken = weights.0.saturating_add(peak_activation.0).saturating_add(margin.0);
        match requested.0.checked_sub(taken) {
            Some(left) => Ok(Bytes(left)),
            None => {
                let missing = Bytes(taken - requested.0);
                Err(SizingError::ModelDoesNotFit {
                    requested,
                    weights,
                    peak_activation,
                    margin,
                    missing,
                })
            }
        }
        // end of exercise
    }
}

/// Source of the memory for keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Room {
    /// Memory that the model leaves.
    Memory(Memory),
    /// A given size (`--kv-memory`).
    Budget(Budget),
    /// A default size, because none was given.
    Default(Budget),
}

impl From<Memory> for Room {
    fn from(memory: Memory) -> Self {
        Self::Memory(memory)
    }
}

impl From<Budget> for Room {
    fn from(budget: Budget) -> Self {
        Self::Budget(budget)
    }
}

/// Planned number of blocks. Displayed, it shows the whole arithmetic, one step per line.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    spec: KvSpec,
    room: Room,
    budget: Budget,
    num_blocks: usize,
    max_model_len: usize,
}

impl Plan {
    /// Plans as many blocks as fit. Rejects a pool in which one sequence of `max_model_len` tokens does not
    /// fit: such a request would wait for ever.
    ///
    /// # Errors
    /// [`SizingError`], with what is missing.
    pub fn new(
        spec: &KvSpec,
        room: impl Into<Room>,
        max_model_len: usize,
    ) -> Result<Self, SizingError> {
        let room = room.into();
        let budget = match room {
            Room::Memory(memory) => Budget::exact(memory.for_kv()?.0),
            Room::Budget(budget) | Room::Default(budget) => budget,
        };
        if max_model_len == 0 {
            return Err(SizingError::NoContext);
        }
        let num_blocks = spec.blocks_in(budget);
        check_room(spec, budget.bytes(), num_blocks, max_model_len)?;
        Ok(Self { spec: spec.clone(), room, budget, num_blocks, max_model_len })
    }

    /// Number of blocks of the pool, the null block included (vLLM's `num_gpu_blocks`).
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Number of slots: tokens that fit at the same time.
    pub fn tokens(&self) -> usize {
        (self.num_blocks - 1) * self.spec.block_size
    }

    /// Number of sequences of `max_model_len` tokens that fit at the same time.
    pub fn sequences(&self) -> f64 {
        let blocks = self.max_model_len.div_ceil(self.spec.block_size);
        (self.num_blocks - 1) as f64 / blocks as f64
    }

    /// Size of the pool.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.spec.pool_bytes(self.num_blocks))
    }

    /// Memory that keys and values need.
    pub fn spec(&self) -> &KvSpec {
        &self.spec
    }

    /// The arithmetic: what, how much, and a remark.
    fn lines(&self) -> Vec<[String; 3]> {
        let mut lines: Vec<[String; 3]> = Vec::new();
        let mut line = |what: &str, amount: String, remark: String| {
            lines.push([what.to_owned(), amount, remark]);
        };
        let none = String::new;
        match &self.room {
            Room::Memory(m) => {
                let percent = format!("  x {}% that may be used", m.utilisation * 100.0);
                line("memory", m.total.to_string(), none());
                line(&percent, m.requested().to_string(), none());
                line("  - weights", m.weights.to_string(), none());
                line("  - activations, at most", m.peak_activation.to_string(), none());
                line("  - margin", m.margin.to_string(), none());
                line("for keys and values", self.budget.bytes().to_string(), none());
            }
            Room::Budget(budget) => {
                line("for keys and values", budget.bytes().to_string(), "as given".into());
            }
            Room::Default(budget) => {
                line("for keys and values", budget.bytes().to_string(), "by default".into());
            }
        }
        let spec = &self.spec;
        let kinds = self.kinds_of_layer();
        for (layers, per_token, how) in &kinds {
            line("one token in one layer", Bytes(*per_token).to_string(), how.clone());
            let s = if *layers == 1 { "" } else { "s" };
            let end = if kinds.len() == 1 { ": one token" } else { "" };
            let all = Bytes(per_token * *layers as u64).to_string();
            line(&format!("  x {layers} layer{s}{end}"), all, none());
        }
        if kinds.len() > 1 {
            line("one token", Bytes(spec.bytes_per_token()).to_string(), "all of these".into());
        }
        let of = format!("  x {} tokens: one block", spec.block_size);
        line(&of, Bytes(spec.bytes_per_block()).to_string(), none());
        let null = "block 0 is never handed out";
        line("blocks", grouped(self.num_blocks), format!("{}; {null}", self.bytes()));
        let tokens = format!("{} blocks x {}", grouped(self.num_blocks - 1), spec.block_size);
        line("tokens", grouped(self.tokens()), tokens);
        // Rounded down: 1.999 sequences are not two.
        let sequences = (self.sequences() * 100.0).floor() / 100.0;
        let of = format!("sequences of {}", grouped(self.max_model_len));
        line(&of, format!("{sequences:.2}"), "at once, at full length".into());
        lines
    }

    /// Layers of the same shape: how many, bytes of a token in one of them, and why so many.
    fn kinds_of_layer(&self) -> Vec<(usize, u64, String)> {
        let spec = &self.spec;
        let mut kinds: Vec<(usize, u64, String)> = Vec::new();
        for (i, kv) in spec.layers.iter().enumerate() {
            let Some(kv) = kv else { continue };
            let padded = kv.head_dim.next_multiple_of(16);
            let mut how = format!("2 x {} KV heads x {padded} x {} B", kv.heads, spec.dtype.size());
            if padded != kv.head_dim {
                how += &format!(", {} padded to {padded}", kv.head_dim);
            }
            if spec.dtype == l1_tensor::DType::F8E4M3 {
                how += &format!(", and 2 x {} B of scales", kv.heads);
            }
            match kinds.iter_mut().find(|(.., other)| *other == how) {
                Some((layers, ..)) => *layers += 1,
                None => kinds.push((1, spec.bytes_per_token_layer(i), how)),
            }
        }
        kinds
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.lines();
        let width = |i: usize| lines.iter().map(|l| l[i].chars().count()).max().unwrap_or(0);
        let (left, right) = (width(0), width(1));
        for (i, [what, amount, remark]) in lines.iter().enumerate() {
            let end = if i + 1 < lines.len() { "\n" } else { "" };
            let line = format!("{what:left$}  {amount:>right$}  {remark}");
            write!(f, "{}{end}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Checks that a pool of `num_blocks` blocks, which fit in `have` bytes, holds one sequence of `max_model_len` tokens.
fn check_room(
    spec: &KvSpec,
    have: Bytes,
    num_blocks: usize,
    max_model_len: usize,
) -> Result<(), SizingError> {
    let of_pool = |blocks: usize| {
        let needed = spec.pool_bytes(blocks);
        (Bytes(needed), Bytes(needed.saturating_sub(have.0)))
    };
    // exercise l3.sizing
    if num_blocks < 2 {
        let (needed, missing) = of_pool(2);
        return Err(SizingError::TooFewBlocks { needed, missing });
    }
    // Block 0 is the null block: no token is ever in it.
    let longest = (num_blocks - 1).saturating_mul(spec.block_size());
    if max_model_len > longest {
        let (needed, missing) = of_pool(1 + max_model_len.div_ceil(spec.block_size()));
        return Err(SizingError::ContextDoesNotFit {
            max_model_len,
            needed,
            have,
            missing,
            longest,
        });
    }
    Ok(())
    // end of exercise
}

/// Digits in threes: 5,402.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
