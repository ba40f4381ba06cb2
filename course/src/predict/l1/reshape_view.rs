//! Whether a reshape is possible without moving data.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "reshape-view",
    about: "whether a reshape needs no copy",
    chapter: "l1-tensors/layouts.md",
    draw,
};

/// A contiguous tensor, and what was done to it.
struct View {
    base: Vec<usize>,
    narrow: Option<[usize; 3]>,
    transposed: bool,
    dims: Vec<usize>,
    strides: Vec<usize>,
}

impl View {
    fn contiguous(dims: Vec<usize>) -> Self {
        let strides = (0..dims.len()).map(|d| dims[d + 1..].iter().product()).collect();
        Self { base: dims.clone(), narrow: None, transposed: false, dims, strides }
    }

    fn narrow(mut self, d: usize, start: usize, len: usize) -> Self {
        self.narrow = Some([d, start, len]);
        self.dims[d] = len;
        self
    }

    fn transpose(mut self) -> Self {
        self.transposed = true;
        self.dims.swap(0, 1);
        self.strides.swap(0, 1);
        self
    }

    fn made(&self) -> String {
        let narrow = self.narrow.map(|[d, start, len]| format!(".narrow({d}, {start}, {len})"));
        let turn = if self.transposed { ".transpose(0, 1)" } else { "" };
        format!("contiguous {:?}{}{turn}", self.base, narrow.unwrap_or_default())
    }
}

fn draw(draw: &mut Draw) -> Question {
    let (a, b, c) = (draw.between(2, 5), draw.between(2, 4) * 2, draw.between(2, 6));
    let start = draw.between(1, 3);
    let view = match draw.below(4) {
        0 => View::contiguous(vec![a, b, c]),
        1 => View::contiguous(vec![a, b + start + 1]).narrow(1, start, b),
        2 => View::contiguous(vec![a + start, b, c]).narrow(0, start, a),
        _ => View::contiguous(vec![b, a]).transpose(),
    };
    let n: usize = view.dims.iter().product();
    let last = view.dims[view.dims.len() - 1];
    // Merge the first two, split the last, merge all, or cut across.
    let wanted = match draw.below(4) {
        0 if view.dims.len() == 3 => vec![view.dims[0] * view.dims[1], last],
        1 if last.is_multiple_of(2) => {
            let mut dims = view.dims.clone();
            dims.pop();
            dims.extend([last / 2, 2]);
            dims
        }
        2 => vec![n],
        _ => vec![n / 2, 2],
    };
    let fits = can_view(&view.dims, &view.strides, &wanted);
    let text = format!(
        "A view:\n\n{}\n\nIt has shape {:?} and strides {:?}.\n\
         Can it be reshaped to {wanted:?} without moving data?",
        view.made(),
        view.dims,
        view.strides
    );
    let explanation = format!("{}\n{}", merges(&view), verdict(&wanted, fits));
    let facts = json!({
        "base": view.base, "narrow": view.narrow, "transposed": view.transposed,
        "strides": view.strides, "wanted": wanted,
    });
    let why = if fits {
        "look for a gap: outer stride = inner stride * inner size means that there is none"
    } else {
        "look at what would have to be merged: outer stride = inner stride * inner size?"
    };
    Question::new(text, Answer::Yes(fits), explanation, facts).mistake(Answer::Yes(!fits), why)
}

/// Tried out: walk over the elements in the order of the view, and see whether one stride for each
/// wanted dimension visits the same places. Slow, and not how the engine does it.
fn can_view(dims: &[usize], strides: &[usize], wanted: &[usize]) -> bool {
    let place = |dims: &[usize], strides: &[usize], mut i: usize| -> usize {
        let mut at = 0;
        for (n, s) in dims.iter().zip(strides).rev() {
            at += i % n * s;
            i /= n;
        }
        at
    };
    let n: usize = dims.iter().product();
    let mut inner = 1;
    let mut found = vec![0; wanted.len()];
    for d in (0..wanted.len()).rev() {
        // The stride of a dimension is the place of its second element, if it has one.
        found[d] = if wanted[d] > 1 { place(dims, strides, inner) } else { 0 };
        inner *= wanted[d];
    }
    (0..n).all(|i| place(dims, strides, i) == place(wanted, &found, i))
}

fn merges(view: &View) -> String {
    let mut lines = Vec::new();
    for (d, (n, s)) in view.dims.iter().zip(&view.strides).enumerate().skip(1) {
        let outer = view.strides[d - 1];
        let gap = if outer == n * s { "no gap, they merge" } else { "they do not merge" };
        lines.push(format!(
            "{} and {d}: outer stride {outer}, inner * size {s} * {n} = {}: {gap}.",
            d - 1,
            n * s
        ));
    }
    lines.join("\n")
}

fn verdict(wanted: &[usize], fits: bool) -> String {
    if fits {
        format!("{wanted:?} splits dimensions, or merges some without a gap between them.")
    } else {
        format!("{wanted:?} would need a dimension with two different strides.")
    }
}
