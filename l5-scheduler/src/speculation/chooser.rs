//! The draft of each row of logits, for drafters that run a network: the likeliest token, or one that is drawn.

use std::ops::Range;

use l1_tensor::ops::argmax;
use l1_tensor::{Device, Runtime, TensorRef};
use l4_sampler::draft::{CLASSES, DraftSampling, Drafts, Drawn};
use l4_sampler::{Distribution, Result, Row, Sampler};

use crate::runner::emptied;

/// Class of a draft whose confidence is not measured.
const MIDDLE: u8 = CLASSES as u8 / 2;

/// Chooses drafts. The memory is reused.
pub(super) struct Chooser {
    rt: Runtime,
    /// Created for the first draft that is drawn.
    sampler: Option<Sampler>,
    greedy: DraftSampling,
    rows: Vec<Row<'static>>,
    drawn: Vec<Drawn>,
    likeliest: Vec<u32>,
    /// The draft of each row of the last logits. The others are kept for their memory.
    chosen: Vec<Chosen>,
}

/// A draft.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// The token; `None` if the logits gave none.
    token: Option<u32>,
    class: u8,
    /// What it was drawn from, if it was.
    from: Distribution,
    drawn: bool,
}

impl Chosen {
    /// Renames the tokens of the draft and of what it was drawn from. A draft that gets no name is none.
    pub fn rename(&mut self, id: impl Fn(u32) -> Option<u32>) {
        self.token = self.token.and_then(&id);
        if self.drawn && self.token.is_some() {
            self.from.rename(|own| id(own).unwrap_or(own));
        }
    }
}

/// Where the drafts of a row are in a [`DraftList`].
#[derive(Clone, Copy, Debug)]
pub(super) struct DraftSpan {
    /// Index of the first one.
    pub start: usize,
    /// Maximum number of drafts, and how many there are.
    pub most: usize,
    pub len: usize,
}

impl DraftSpan {
    /// Whether the row gets no more drafts.
    pub fn is_full(&self) -> bool {
        self.len == self.most
    }

    /// Indices of the drafts.
    pub fn indices(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// Drafts of all rows of a step. The memory is reused.
#[derive(Debug, Default)]
pub(super) struct DraftList {
    drafts: Vec<Chosen>,
    len: usize,
}

impl DraftList {
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Number of drafts.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Makes room for `n` more drafts.
    pub fn add(&mut self, n: usize) {
        self.len += n;
        if self.drafts.len() < self.len {
            self.drafts.resize_with(self.len, Chosen::default);
        }
    }

    /// Token of draft `i`, which was put there.
    pub fn token(&self, i: usize) -> u32 {
        self.drafts[i].token.unwrap_or(0)
    }

    /// Puts a draft at `i`, and leaves an old one there, whose memory can be reused.
    pub fn put(&mut self, i: usize, chosen: &mut Chosen) {
        std::mem::swap(&mut self.drafts[i], chosen);
    }

    /// Appends a draft to those of a row, and leaves an old one, whose memory can be reused. A draft without a token
    /// ends the row: it is full.
    pub fn append(&mut self, row: &mut DraftSpan, chosen: &mut Chosen) {
        if chosen.token.is_none() {
            row.most = row.len;
            return;
        }
        self.put(row.start + row.len, chosen);
        row.len += 1;
    }

    /// Appends the drafts at these indices, up to the first that is none, to the row of `out` that is not ended.
    pub fn write(&mut self, indices: impl Iterator<Item = usize>, out: &mut Drafts) {
        for i in indices {
            let Chosen { token, class, from, drawn } = &mut self.drafts[i];
            match *token {
                Some(token) if *drawn => out.push_drawn(token, *class, from),
                Some(token) => out.push(token, *class),
                None => break,
            }
        }
    }
}

impl Chooser {
    /// Creates a chooser for at most `rows` rows of logits.
    pub fn new(rt: &Runtime, rows: usize) -> Self {
        Self {
            rt: rt.clone(),
            sampler: None,
            greedy: DraftSampling::greedy(),
            rows: Vec::with_capacity(rows),
            drawn: Vec::new(),
            likeliest: Vec::with_capacity(rows),
            chosen: Vec::with_capacity(rows),
        }
    }

    /// The draft of row `i` of the last logits.
    pub fn row(&mut self, i: usize) -> &mut Chosen {
        &mut self.chosen[i]
    }

    /// Chooses a draft for each row of `logits`, f32 `[R, V]`: the likeliest token, or one that is drawn. `rows`: for
    /// each row, how the drafts of its request are drawn, if they are, and the position of this one.
    pub fn choose<'a>(
        &mut self,
        logits: TensorRef<'_>,
        rows: impl Iterator<Item = (Option<&'a DraftSampling>, usize)> + Clone,
    ) -> Result<()> {
        let n = logits.dims()[0];
        self.chosen.resize_with(self.chosen.len().max(n), Chosen::default);
        match rows.clone().any(|(sampling, _)| sampling.is_some()) {
            true => self.draw(logits, rows),
            false => self.take_likeliest(logits),
        }
    }

    fn draw<'a>(
        &mut self,
        logits: TensorRef<'_>,
        rows: impl Iterator<Item = (Option<&'a DraftSampling>, usize)> + Clone,
    ) -> Result<()> {
        let Self { rt, sampler, greedy, drawn, chosen, .. } = self;
        let (n, vocab) = (logits.dims()[0], logits.dims()[1]);
        let sampler = sampler.get_or_insert_with(|| Sampler::new(rt, vocab));
        drawn.resize_with(drawn.len().max(n), Drawn::default);
        let mut asked: Vec<Row<'_>> = emptied(std::mem::take(&mut self.rows));
        asked.extend(rows.clone().map(|(how, position)| how.unwrap_or(greedy).row(position)));
        let ran = sampler.draw(logits, &asked, &mut drawn[..n]);
        self.rows = emptied(asked);
        ran?;
        let on_cpu = logits.device() == Device::Cpu;
        let lines = on_cpu.then(|| logits.rows::<f32>("a draft")).transpose()?;
        let chosen = chosen.iter_mut().zip(drawn).zip(rows).enumerate();
        for (row, ((chosen, drawn), (how, _))) in chosen {
            (chosen.token, chosen.drawn) = (drawn.token, how.is_some());
            // A drawn draft has no class: what depends on the draft must not decide whether it is verified.
            chosen.class = match (lines, drawn.token) {
                (Some(lines), Some(token)) if !chosen.drawn => class(lines.row(row), token),
                _ => MIDDLE,
            };
            std::mem::swap(&mut chosen.from, &mut drawn.from);
        }
        Ok(())
    }

    /// Takes the likeliest token of each row, with its confidence class: its probability, in equal parts. On a device
    /// the class is one in the middle for all, since rows stay there.
    fn take_likeliest(&mut self, logits: TensorRef<'_>) -> Result<()> {
        let Self { rt, likeliest, chosen, .. } = self;
        likeliest.clear();
        likeliest.resize(logits.dims()[0], 0);
        argmax(rt, logits, likeliest)?;
        let on_cpu = logits.device() == Device::Cpu;
        let rows = on_cpu.then(|| logits.rows::<f32>("a draft")).transpose()?;
        for (row, (token, chosen)) in likeliest.iter().zip(chosen).enumerate() {
            let class = rows.map_or(MIDDLE, |rows| class(rows.row(row), *token));
            (chosen.token, chosen.class, chosen.drawn) = (Some(*token), class, false);
        }
        Ok(())
    }
}

fn class(logits: &[f32], token: u32) -> u8 {
    let most = logits[token as usize];
    let sum: f32 = logits.iter().map(|x| (x - most).exp()).sum();
    ((CLASSES as f32 / sum) as u8).min(CLASSES as u8 - 1)
}
