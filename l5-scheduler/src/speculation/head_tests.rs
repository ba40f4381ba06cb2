//! Drafts of heads, compared with a head that reads everything at once and keeps nothing.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use l1_tensor::ops::argmax_reference;
use l1_tensor::{Precision, PrecisionRequest, Runtime, RuntimeOptions, Tensor};
use l2_model::draft_head::{EagleHead, EagleWorkspace, Hidden, MedusaHead, MedusaWorkspace};
use l2_model::{Batch, ContiguousState, Decoder, ModelFiles, Tap, Workspace, WorkspaceSpec};
use l4_sampler::draft::{DraftRow, Drafter, Drafts, HiddenSpan};

use super::{DraftMemory, EagleDrafter, MedusaDrafter};

const LEN: usize = 60;
const SPEC: WorkspaceSpec = WorkspaceSpec { max_tokens: LEN, max_rows: LEN, max_context: LEN };

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

fn cpu() -> Runtime {
    Runtime::new(RuntimeOptions {
        precision: PrecisionRequest::Exactly(Precision::F32),
        threads: Some(1),
        ..RuntimeOptions::cpu()
    })
    .unwrap()
}

fn target(rt: &Runtime, name: &str) -> Decoder {
    ModelFiles::open(&fixtures().join(name)).unwrap().decoder(rt).unwrap()
}

/// A text, and the target's hidden rows of all its tokens.
struct Text {
    tokens: Vec<u32>,
    hidden: Vec<Vec<f32>>,
}

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

fn batch<'a>(
    tokens: &'a [u32],
    positions: &'a [i32],
    ends: &'a [i32; 2],
    rows: &'a [u32],
) -> Batch<'a> {
    let state_slots = &[0];
    Batch {
        tokens,
        positions,
        cu_seqlens_q: ends,
        state_slots,
        logit_rows: rows,
        ..Batch::default()
    }
}

fn text(rt: &Runtime, target: &Decoder, taps: &[Tap], dice: &mut Dice) -> Text {
    let config = target.config();
    let tokens: Vec<u32> = (0..LEN).map(|_| dice.roll(config.vocab) as u32).collect();
    let mut ws = Workspace::new(rt, config, SPEC).unwrap();
    let mut state = ContiguousState::new(config, 1, LEN, rt.activation_dtype()).unwrap();
    let positions: Vec<_> = (0..LEN as i32).collect();
    let whole = Batch { taps, ..batch(&tokens, &positions, &[0, LEN as i32], &[0]) };
    target.forward(&whole, &mut state, &mut ws).unwrap();
    let hidden = taps.iter().map(|tap| ws.tapped(*tap).unwrap().to_vec_f32().unwrap()).collect();
    Text { tokens, hidden }
}

/// Drafts behind `len` tokens of a text, of a head that has read the rows from `base` on.
fn naive_eagle(
    rt: &Runtime,
    head: &EagleHead,
    text: &Text,
    base: usize,
    len: usize,
    k: usize,
) -> Vec<u32> {
    let h = head.config().hidden;
    let mut ws = EagleWorkspace::new(rt, head, SPEC).unwrap();
    let mut state = ContiguousState::new(head.config(), 1, LEN, rt.activation_dtype()).unwrap();
    let n = len - 1 - base;
    let rows = |all: &Vec<f32>| Tensor::from_slice(&all[base * h..(len - 1) * h], &[n, h]).unwrap();
    let rows: Vec<_> = text.hidden.iter().map(rows).collect();
    let rows: Vec<_> = rows.iter().map(Tensor::view).collect();
    let positions: Vec<_> = (0..n as i32).collect();
    let mut tokens = text.tokens[base + 1..len].to_vec();
    let (mut drafts, mut hidden, mut at) = (Vec::new(), Hidden::Target(&rows), positions);
    for _ in 0..k {
        let (ends, last) = ([0, tokens.len() as i32], [tokens.len() as u32 - 1]);
        let step = batch(&tokens, &at, &ends, &last);
        let logits =
            head.forward(&step, hidden, &mut state, &mut ws).unwrap().to_vec_f32().unwrap();
        let draft = head.target_id(argmax_reference(&logits)).unwrap();
        drafts.push(draft);
        (tokens, hidden, at) = (vec![draft], Hidden::Previous, vec![at.last().unwrap() + 1]);
    }
    drafts
}

/// A request of the mix: its text, what the engine has of it, and the first row of the head's run.
struct Live {
    text: Text,
    len: usize,
    /// Rows that have been read, as positions.
    run: Range<usize>,
}

/// Runs requests through a drafter in steps of all shapes, and compares every proposal.
fn compare(
    drafter: &mut dyn Drafter,
    hidden: usize,
    mut texts: Vec<Text>,
    k: usize,
    dice: &mut Dice,
    naive: impl Fn(&Text, Range<usize>, usize, usize) -> Vec<u32>,
) -> [usize; 3] {
    let taps = texts[0].hidden.len();
    let mut live: HashMap<u32, Live> = HashMap::new();
    let (mut proposals, mut gaps, mut drafts) = (0, 0, Drafts::default());
    let mut ended = 0;
    while !live.is_empty() || !texts.is_empty() {
        if live.len() < 3
            && let Some(text) = texts.pop()
        {
            let slot = (0..).find(|slot| !live.contains_key(slot)).unwrap();
            let len = 1 + dice.roll(12);
            drafter.begin(slot, &text.tokens[..len], None, 100);
            live.insert(slot, Live { text, len, run: 0..0 });
        }
        // The rows of this step, with rows of rejected drafts between them.
        let (mut step, mut spans, mut asked) = (vec![Vec::new(); taps], Vec::new(), Vec::new());
        let mut slots: Vec<u32> = live.keys().copied().collect();
        slots.sort_unstable();
        for slot in slots {
            let one = live.get_mut(&slot).unwrap();
            let computed = match dice.roll(12) {
                0 => continue,
                // Preempted, and begun again, or found in the cache.
                1 => dice.roll(one.len),
                _ => one.run.end.max(one.len.saturating_sub(4)).min(one.len - 1),
            };
            // A part of a prompt, or up to the last token, from which new ones are sampled.
            let partial = one.len - computed > 2 && dice.roll(3) == 0;
            let fed =
                if partial { 1 + dice.roll(one.len - computed - 1) } else { one.len - computed };
            let accepted = if partial { 0 } else { dice.roll(3) };
            let new = if partial { 0 } else { accepted + 1 };
            if one.len + new > LEN {
                live.remove(&slot);
                drafter.end(slot);
                ended += 1;
                continue;
            }
            drafter.extend(slot, &one.text.tokens[one.len..one.len + new]);
            one.len += new;
            let rows = fed + accepted;
            let start = step[0].len() / hidden;
            for (step, all) in step.iter_mut().zip(&one.text.hidden) {
                step.extend_from_slice(&all[computed * hidden..(computed + rows) * hidden]);
                step.resize(step.len() + dice.0 as usize % 2 * hidden, 1e3);
            }
            if dice.roll(10) == 0 {
                continue;
            }
            let most = if partial { 0 } else { dice.roll(k + 1) };
            spans.push(HiddenSpan { slot, first: computed, rows: start..start + rows, most });
            if most > 0 {
                asked.push(DraftRow { slot, most });
            }
            let continues =
                (one.run.start..=one.run.end).contains(&computed) && !one.run.is_empty();
            gaps += usize::from(!continues && computed > 0);
            one.run = if continues { one.run.start } else { computed }..computed + rows;
        }
        let step: Vec<_> = step
            .iter()
            .map(|rows| Tensor::from_slice(rows, &[rows.len() / hidden, hidden]).unwrap())
            .collect();
        let step: Vec<_> = step.iter().map(Tensor::view).collect();
        drafter.read(&spans, &step);
        drafts.clear();
        drafter.propose(&asked, &mut drafts);
        assert_eq!(drafts.len(), asked.len());
        for (i, DraftRow { slot, most }) in asked.iter().enumerate() {
            let one = &live[slot];
            let want = naive(&one.text, one.run.clone(), one.len, *most);
            assert_eq!(drafts.row(i).0, want, "slot {slot} of {} tokens, {:?}", one.len, one.run);
            proposals += 1;
        }
    }
    [proposals, gaps, ended]
}

#[test]
fn an_eagle_drafter_proposes_what_the_head_does_that_reads_its_run_at_once() {
    let rt = cpu();
    for (name, of) in [("eagle", "tiny-qwen2"), ("eagle3", "tiny-llama-untied")] {
        let (target, mut dice) = (target(&rt, of), Dice(7));
        let open =
            || EagleHead::open(&rt, &fixtures().join("draft-heads").join(name), &target).unwrap();
        let (head, hidden) = (open(), target.config().hidden);
        let memory = DraftMemory { seqs: 3, max_len: LEN + 8, blocks: 80, block_size: 4 };
        let mut drafter = EagleDrafter::new(&rt, open(), memory, 256).unwrap();
        let texts = (0..12).map(|_| text(&rt, &target, head.taps(), &mut dice)).collect();
        let naive = |text: &Text, run: Range<usize>, len, k| {
            assert_eq!(run.end, len - 1);
            naive_eagle(&rt, &head, text, run.start, len, k)
        };
        let [proposals, gaps, ended] = compare(&mut drafter, hidden, texts, 4, &mut dice, naive);
        assert!(
            proposals > 100 && gaps > 10 && ended == 12,
            "{name}: {proposals}, {gaps}, {ended}"
        );
    }
}

#[test]
fn an_eagle_drafter_with_too_little_memory_proposes_less_and_nothing_wrong() {
    let rt = cpu();
    let (target, mut dice) = (target(&rt, "tiny-qwen2"), Dice(11));
    let open = || EagleHead::open(&rt, &fixtures().join("draft-heads/eagle"), &target).unwrap();
    let (head, len) = (open(), 30);
    // Blocks for one request and a half.
    let memory = DraftMemory { seqs: 2, max_len: LEN, blocks: 14, block_size: 4 };
    let mut drafter = EagleDrafter::new(&rt, open(), memory, 256).unwrap();
    let texts: Vec<_> = (0..2).map(|_| text(&rt, &target, head.taps(), &mut dice)).collect();
    let (h, mut drafts) = (target.config().hidden, Drafts::default());
    let mut read = |slots: &[u32]| {
        let (mut spans, mut rows) = (Vec::new(), Vec::new());
        for (i, slot) in slots.iter().enumerate() {
            drafter.begin(*slot, &texts[*slot as usize].tokens[..len], None, 10);
            rows.extend_from_slice(&texts[*slot as usize].hidden[0][..(len - 1) * h]);
            let rows = i * (len - 1)..(i + 1) * (len - 1);
            spans.push(HiddenSpan { slot: *slot, first: 0, rows, most: 2 });
        }
        let rows = Tensor::from_slice(&rows, &[rows.len() / h, h]).unwrap();
        drafter.read(&spans, &[rows.view()]);
        drafts.clear();
        let asked: Vec<_> = slots.iter().map(|slot| DraftRow { slot: *slot, most: 2 }).collect();
        drafter.propose(&asked, &mut drafts);
        (0..slots.len()).map(|i| drafts.row(i).0.to_vec()).collect::<Vec<_>>()
    };
    let want: Vec<_> = texts.iter().map(|text| naive_eagle(&rt, &head, text, 0, len, 2)).collect();
    assert_eq!(read(&[0]), [want[0].clone()]);
    assert_eq!(read(&[1]), [want[1].clone()], "the idle request gives its blocks away");
    assert_eq!(read(&[0, 1]), [vec![0u32; 0], vec![]], "both together do not fit");
    assert_eq!(read(&[0]), [want[0].clone()], "and what did not fit is forgotten");
}

#[test]
fn a_medusa_drafter_proposes_the_likeliest_token_of_each_head() {
    let rt = cpu();
    let (target, mut dice) = (target(&rt, "tiny-llama-linear"), Dice(3));
    let open = || MedusaHead::open(&rt, &fixtures().join("draft-heads/medusa"), &target).unwrap();
    let (heads, h) = (open(), target.config().hidden);
    let mut drafter = MedusaDrafter::new(&rt, open(), h, 3).unwrap();
    let texts = (0..8).map(|_| text(&rt, &target, heads.taps(), &mut dice)).collect();
    let naive = |text: &Text, _: Range<usize>, len: usize, k: usize| -> Vec<u32> {
        let mut ws = MedusaWorkspace::new(&rt, &heads, 1).unwrap();
        let row =
            Tensor::from_slice(&text.hidden[0][(len - 2) * h..(len - 1) * h], &[1, h]).unwrap();
        heads.forward(row.view(), &mut ws).unwrap();
        (0..k).map(|i| argmax_reference(&ws.logits(i).unwrap().to_vec_f32().unwrap())).collect()
    };
    let [proposals, _, ended] = compare(&mut drafter, h, texts, heads.heads(), &mut dice, naive);
    assert!(proposals > 60 && ended == 8, "{proposals}, {ended}");
}
