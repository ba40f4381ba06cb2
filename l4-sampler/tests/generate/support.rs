//! Tiny models with a generator over any state, and a state that can be watched.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use l1_tensor::ops::{AttentionParams, AttentionScratch};
use l1_tensor::{DType, Precision, Runtime, TensorMut, TensorRef};
use l2_model::tokenizer::Tokenizer;
use l2_model::{Batch, BatchError, ContiguousState, Decoder, ModelFiles, SequenceState, Snapshot};
use l3_paged_kv::{PagedOptions, PagedState};
use l4_sampler::generate::{Choice, Generation, Generator, Request};
use l4_sampler::guide::Guides;
use l4_sampler::stop::StopRules;

use crate::runtime::runtime;

/// The longest sequence.
pub const MAX_LEN: usize = 400;

/// A prompt of ids that every tiny model has words for.
pub const PROMPT: [u32; 10] = [5, 17, 100, 3, 64, 200, 9, 33, 71, 150];

/// A tiny model with all that belongs to it.
pub struct Tiny {
    pub rt: Runtime,
    pub decoder: Decoder,
    pub tokenizer: Tokenizer,
    pub ends: Vec<u32>,
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

pub fn tiny(name: &str) -> Tiny {
    on(name, runtime(Precision::F32, 2))
}

pub fn on(name: &str, rt: Runtime) -> Tiny {
    let files = ModelFiles::open(&fixture(name)).unwrap();
    let (decoder, tokenizer) = files.decoder_and_tokenizer(&rt);
    let (decoder, tokenizer) = (decoder.unwrap(), tokenizer.unwrap());
    Tiny { rt, decoder, tokenizer, ends: files.stop_tokens().to_vec() }
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Contiguous,
    /// In blocks of so many tokens.
    Paged(usize),
}

pub const KINDS: [Kind; 4] = [Kind::Contiguous, Kind::Paged(1), Kind::Paged(4), Kind::Paged(16)];

impl Tiny {
    pub fn vocab(&self) -> usize {
        self.decoder.config().vocab
    }

    pub fn dtype(&self) -> DType {
        self.rt.activation_dtype()
    }

    pub fn state(&self, kind: Kind, slots: usize) -> Box<dyn SequenceState> {
        match kind {
            Kind::Contiguous => {
                let config = self.decoder.config();
                Box::new(ContiguousState::new(config, slots, MAX_LEN, self.dtype()).unwrap())
            }
            Kind::Paged(block_size) => Box::new(self.paged(block_size, slots)),
        }
    }

    pub fn paged(&self, block_size: usize, slots: usize) -> PagedState {
        let options = PagedOptions::new(slots, MAX_LEN, block_size, self.dtype());
        PagedState::new(self.decoder.config(), options).unwrap()
    }

    pub fn generator(&self, kind: Kind, slots: usize) -> Generator<'_> {
        self.over(self.state(kind, slots), slots)
    }

    pub fn over<'a>(&'a self, state: Box<dyn SequenceState + 'a>, slots: usize) -> Generator<'a> {
        let tokenizer = Some(&self.tokenizer);
        Generator::new(&self.decoder, tokenizer, &self.rt, state, slots, MAX_LEN).unwrap()
    }

    /// Rules for answers of so many tokens, whatever the model says.
    pub fn long(&self, max_tokens: usize) -> StopRules {
        StopRules { eos: self.ends.clone(), ignore_eos: true, max_tokens, ..StopRules::default() }
    }

    pub fn guides(&self) -> Guides {
        Guides::new(&self.tokenizer, self.vocab(), &self.ends).unwrap()
    }
}

/// The answers, and that what was shown of each is its text.
pub fn answers(generator: &mut Generator, request: &Request) -> Vec<Choice> {
    generate(generator, request).choices
}

pub fn generate(generator: &mut Generator, request: &Request) -> Generation {
    let mut shown = vec![String::new(); request.n.max(request.best_of)];
    let generation = generator.run(request, |i, text| {
        shown[i].push_str(text);
        true
    });
    let generation = generation.unwrap();
    for choice in &generation.choices {
        let shown = &shown[choice.sample - request.first_sample];
        assert_eq!(shown, &choice.text, "what was shown of sample {}", choice.sample);
    }
    generation
}

/// A state that somebody else can look at while a generator has it, and that fails when it is told to.
pub struct Watched<S>(Rc<Watch<S>>);

pub struct Watch<S> {
    pub state: RefCell<S>,
    /// Slots and tokens of each step.
    pub steps: RefCell<Vec<Vec<(u32, usize)>>>,
    /// Steps that are still to succeed before one fails.
    pub fails_after: Cell<Option<usize>>,
}

impl<S> Watched<S> {
    pub fn new(state: S) -> (Self, Rc<Watch<S>>) {
        let watch = Rc::new(Watch {
            state: RefCell::new(state),
            steps: RefCell::default(),
            fails_after: Cell::new(None),
        });
        (Self(Rc::clone(&watch)), watch)
    }
}

impl<S: SequenceState> SequenceState for Watched<S> {
    fn begin(&mut self, batch: &Batch) -> l2_model::Result<()> {
        if let Some(left) = self.0.fails_after.get() {
            self.0.fails_after.set(left.checked_sub(1));
            if left == 0 {
                return Err(BatchError::Full("it was told to fail".into()).into());
            }
        }
        let lens = batch.cu_seqlens_q.windows(2).map(|w| (w[1] - w[0]) as usize);
        let step = batch.state_slots.iter().copied().zip(lens).collect();
        self.0.steps.borrow_mut().push(step);
        self.0.state.borrow_mut().begin(batch)
    }

    fn resume(&mut self, slot: u32, tokens: &[u32]) -> usize {
        self.0.state.borrow_mut().resume(slot, tokens)
    }

    fn attend(
        &mut self,
        rt: &Runtime,
        layer: usize,
        batch: &Batch,
        q: TensorRef,
        k: TensorRef,
        v: TensorRef,
        params: AttentionParams,
        scratch: &mut AttentionScratch,
        out: TensorMut,
    ) -> l2_model::Result<()> {
        self.0.state.borrow_mut().attend(rt, layer, batch, q, k, v, params, scratch, out)
    }

    fn commit(&mut self, batch: &Batch) {
        self.0.state.borrow_mut().commit(batch);
    }

    fn len(&self, slot: u32) -> usize {
        self.0.state.borrow().len(slot)
    }

    fn snapshot(&self, slot: u32) -> l2_model::Result<Snapshot> {
        self.0.state.borrow().snapshot(slot)
    }

    fn restore(&mut self, slot: u32, snapshot: &Snapshot) -> l2_model::Result<()> {
        self.0.state.borrow_mut().restore(slot, snapshot)
    }

    fn rollback(&mut self, slot: u32, len: usize) -> l2_model::Result<()> {
        self.0.state.borrow_mut().rollback(slot, len)
    }

    fn drop_sequence(&mut self, slot: u32) {
        self.0.state.borrow_mut().drop_sequence(slot);
    }

    fn bytes(&self, slot: u32) -> usize {
        self.0.state.borrow().bytes(slot)
    }
}
