//! What goes into one forward pass.

use l3_paged_kv::ForwardMeta;
use l5_scheduler::policy::Fcfs;
use l5_scheduler::runner::Packed;
use l5_scheduler::{
    Composed, LeaseId, Policy, PolicyContext, Rank, Request, RequestId, RequestView, Resolved,
    Scheduler, SchedulerConfig, StepOutput, StepView, Time, Victim,
};

use crate::support::prompt;

const BLOCK: usize = 4;

/// A scheduler alone: nothing here needs a model.
struct Planner {
    scheduler: Scheduler,
    meta: ForwardMeta,
    packed: Packed,
}

impl Planner {
    fn new(change: impl FnOnce(&mut SchedulerConfig)) -> Self {
        let mut config = SchedulerConfig {
            max_model_len: 64,
            max_num_seqs: 8,
            max_num_batched_tokens: 64,
            ..SchedulerConfig::new(64, BLOCK)
        };
        change(&mut config);
        let meta = ForwardMeta::new(64, 8, 16, BLOCK);
        let scheduler = Scheduler::new(config).unwrap();
        Self { scheduler, meta, packed: Packed::default() }
    }

    fn add(&mut self, id: u64, prompt: Vec<u32>) {
        let request = Request { id: RequestId(id), prompt, max_tokens: 30, ..Request::default() };
        self.scheduler.add_request(request).unwrap();
    }

    /// Plan a step and pack it.
    fn pack(&mut self, widths: &[usize]) -> StepView<'_> {
        self.scheduler.plan(Time(0.0));
        let step = self.scheduler.view();
        self.packed.pack(&step, &mut self.meta, widths).unwrap();
        step
    }

    /// Everybody who samples chooses this token.
    fn apply(&mut self, token: u32) {
        let mut out = StepOutput::default();
        let step = self.scheduler.view().step();
        for (row, _) in step.rows.iter().enumerate().filter(|(_, row)| row.samples) {
            out.push(row, &[token], None);
        }
        let mut resolved = Resolved::default();
        self.scheduler.resolve(&out, &mut resolved).unwrap();
        self.scheduler.apply(&resolved, Time::ZERO);
    }

    fn step(&mut self, token: u32) {
        self.pack(&[]);
        self.apply(token);
    }
}

fn lens(meta: &ForwardMeta) -> Vec<i32> {
    meta.cu_seqlens_q().windows(2).map(|w| w[1] - w[0]).collect()
}

/// A's second chunk, which is its last; B, which decodes; and C, which has just come.
fn mixed() -> Planner {
    let mut planner = Planner::new(|config| config.long_prefill_token_threshold = 5);
    planner.add(0, prompt(0, 10));
    planner.add(1, prompt(1, 4));
    planner.step(77);
    planner.add(2, prompt(2, 3));
    planner
}

/// Two requests that decode, the first one with two drafts.
fn drafting() -> Planner {
    let mut planner = Planner::new(|config| config.num_speculative_tokens = 3);
    planner.add(0, prompt(0, 3));
    planner.add(1, prompt(1, 4));
    planner.pack(&[]);
    let (mut out, mut resolved) = (StepOutput::default(), Resolved::default());
    out.push(0, &[70], None);
    out.push(1, &[71], None);
    out.propose(0, &[5, 6]);
    planner.scheduler.resolve(&out, &mut resolved).unwrap();
    planner.scheduler.apply(&resolved, Time::ZERO);
    planner
}

#[test]
fn rows_of_5_1_and_3_tokens_want_logits_4_5_and_8() {
    let mut planner = mixed();
    planner.pack(&[]);
    assert_eq!(lens(&planner.meta), [5, 1, 3], "q_len of each row");
    assert_eq!(planner.packed.logit_rows(), [4, 5, 8], "the tokens whose logits are wanted");
}

#[test]
fn a_row_with_drafts_wants_the_logits_of_its_newest_token_and_of_each_draft() {
    let mut planner = drafting();
    planner.pack(&[4, 8]);
    assert_eq!(lens(&planner.meta), [3, 1], "q_len of each row, without filler");
    assert_eq!(planner.packed.tokens(), [70, 5, 6, 71], "the newest tokens and the drafts");
    assert_eq!(planner.packed.logit_rows(), [0, 1, 2, 3], "the tokens whose logits are wanted");
    assert_eq!(planner.meta.positions(), [3, 4, 5, 4], "positions");
    assert_eq!(planner.meta.seq_lens_kv(), [6, 5], "keys of each, drafts included");
}

#[test]
fn a_decode_step_with_drafts_gets_the_shape_of_one_with_as_many_rows_as_tokens() {
    let mut planner = drafting();
    let table = planner.pack(&[]).rows().next().unwrap().table.blocks().to_vec();
    planner.meta = ForwardMeta::new(24, 16, 16, BLOCK).with_captured_queries(3);
    let Planner { scheduler, meta, packed, .. } = &mut planner;
    let step = scheduler.view();
    assert!(!packed.pack_decodes(&step, meta, &[1, 2], 8).unwrap(), "four rows fit no width");
    assert!(packed.pack_decodes(&step, meta, &[2, 6], 8).unwrap());
    assert_eq!(
        lens(meta),
        [3, 1, 1, 1, 0, 0],
        "a row with two drafts, one without, padding, empty"
    );
    assert_eq!(packed.tokens(), [70, 5, 6, 71, 0, 0], "the newest tokens, drafts and padding");
    assert_eq!(packed.logit_rows(), [0, 1, 2, 3]);
    assert_eq!(meta.positions()[..4], [3, 4, 5, 4]);
    assert_eq!(meta.seq_lens_kv(), [6, 5, 0, 0, 0, 0], "keys of each, drafts included");
    let slot = |at: usize| i64::from(table[at / BLOCK]) * BLOCK as i64 + (at % BLOCK) as i64;
    assert_eq!(meta.slot_mapping()[..3], [3, 4, 5].map(slot));
    assert_eq!(meta.slot_mapping()[4..], [-1, -1]);
    let seats = packed.batch(meta).state_slots;
    assert!(seats[2..].iter().all(|seat| *seat >= 8), "seats of no request: {seats:?}");

    // Captured for a token and one draft: the row with two is launched kernel by kernel.
    let mut short = ForwardMeta::new(24, 16, 16, BLOCK).with_captured_queries(2);
    assert!(!packed.pack_decodes(&step, &mut short, &[2, 6], 8).unwrap());
}

#[test]
fn everybodys_tokens_lie_behind_each_other() {
    let mut planner = mixed();
    planner.pack(&[]);
    let a = &prompt(0, 10)[5..];
    let want = [a, &[77], &prompt(2, 3)].concat();
    assert_eq!(planner.packed.tokens(), want, "tokens of A's second chunk, of B, and of C");
    assert_eq!(planner.meta.positions(), [5, 6, 7, 8, 9, 4, 0, 1, 2], "their places");
    assert_eq!(planner.meta.seq_lens_kv(), [10, 5, 3], "keys of each, this step's included");
}

#[test]
fn every_token_is_stored_in_a_block_of_its_own_request() {
    let mut planner = mixed();
    let step = planner.pack(&[]);
    let mut want = Vec::new();
    for row in step.rows() {
        let places = row.row.computed..row.row.computed + row.row.len;
        want.extend(places.map(|p| i64::from(row.table.blocks()[p / BLOCK]) * 4 + (p % 4) as i64));
    }
    assert_eq!(planner.meta.slot_mapping(), want, "slots of the tokens");
}

#[test]
fn a_partial_prefill_wants_no_logits() {
    let mut planner = Planner::new(|config| config.long_prefill_token_threshold = 3);
    planner.add(0, prompt(0, 8));
    planner.add(1, prompt(1, 2));
    planner.pack(&[]);
    assert_eq!(lens(&planner.meta), [3, 2], "q_len of each row");
    assert_eq!(planner.packed.logit_rows(), [4], "only the second row's last token");
    planner.apply(9);
    planner.pack(&[]);
    assert_eq!(lens(&planner.meta), [3, 1], "q_len of each row");
    assert_eq!(planner.packed.logit_rows(), [3], "the first is still not through");
    planner.apply(9);
    planner.pack(&[]);
    assert_eq!(lens(&planner.meta), [2, 1], "q_len of each row");
    assert_eq!(planner.packed.logit_rows(), [1, 2], "now both");
}

#[test]
fn a_resumed_request_is_fed_its_prompt_and_its_answer_from_the_beginning() {
    let mut planner = Planner::new(|config| config.enable_prefix_caching = false);
    planner.add(0, prompt(0, 6));
    for token in [70, 71, 72] {
        planner.step(token);
    }
    planner.scheduler.reset_prefix_cache(true).unwrap();
    planner.pack(&[]);
    let want = [&prompt(0, 6)[..], &[70, 71, 72]].concat();
    assert_eq!(planner.packed.tokens(), want, "what a resumed request is fed");
    assert_eq!(planner.packed.logit_rows(), [8], "only what comes behind its last token is open");
}

#[test]
fn a_step_leaves_nothing_behind_for_the_next_one() {
    let mut planner = mixed();
    planner.step(5);
    planner.pack(&[]);
    assert_eq!(planner.packed.tokens(), [5, 5, 5], "each one's last token");
    assert_eq!(planner.packed.logit_rows(), [0, 1, 2], "each one's only row");
    assert_eq!(planner.packed.batch(&planner.meta).state_slots, [0, 1, 2], "the seat of each row");
}

#[test]
fn every_row_keeps_its_seat_when_rows_before_it_are_gone() {
    let mut planner = Planner::new(|config| config.max_num_seqs = 4);
    for id in 0..3 {
        planner.add(id, prompt(id as u32, 5));
    }
    planner.step(9);
    planner.scheduler.abort(RequestId(0));
    planner.pack(&[]);
    assert_eq!(planner.packed.batch(&planner.meta).state_slots, [1, 2], "of the two that are left");
}

#[test]
fn filler_sits_on_free_seats_and_there_is_no_more_of_it_than_free_seats() {
    let mut planner = Planner::new(|config| config.max_num_seqs = 4);
    for id in 0..4 {
        planner.add(id, prompt(id as u32, 5));
    }
    planner.step(9);
    planner.scheduler.abort(RequestId(1));
    planner.pack(&[4]);
    let slots = planner.packed.batch(&planner.meta).state_slots;
    assert_eq!(slots, [0, 2, 3, 1], "three rows, and filler on the seat that is free");
    planner.apply(9);
    planner.pack(&[8]);
    let slots = planner.packed.batch(&planner.meta).state_slots;
    assert_eq!(slots, [0, 2, 3], "of four seats one is free, and width 8 wants five");
}

#[test]
fn a_step_that_only_decodes_is_filled_up_to_a_captured_width() {
    let mut planner = Planner::new(|_| ());
    for id in 0..3 {
        planner.add(id, prompt(id as u32, 5));
    }
    planner.step(9);
    planner.pack(&[1, 2, 4, 8]);
    assert_eq!(planner.meta.sequences(), 4, "rows: three, filled up to the next width");
    assert_eq!(planner.packed.tokens().len(), 4, "tokens");
    assert_eq!(planner.packed.logit_rows(), [0, 1, 2], "nobody wants the filler's logits");
    assert_eq!(planner.packed.batch(&planner.meta).state_slots.len(), 4, "slots");
}

#[test]
fn filler_has_no_blocks_stores_nothing_and_sees_nothing() {
    let mut planner = Planner::new(|_| ());
    // A longer step before: what it leaves behind must not be found by the filler.
    for id in 0..4 {
        planner.add(id, prompt(id as u32, 9 + id as usize));
    }
    planner.step(9);
    planner.scheduler.abort(RequestId(3));
    planner.pack(&[4]);
    let meta = &planner.meta;
    assert_eq!(meta.sequences(), 4, "rows");
    assert!(meta.block_table_row(3).iter().all(|b| *b == -1), "{:?}", meta.block_table_row(3));
    assert_eq!(meta.slot_mapping()[3], -1, "where the filler's key is stored: nowhere");
    assert_eq!(meta.seq_lens_kv()[3], 0, "keys that the filler sees");
}

#[test]
fn a_step_with_a_prefill_is_not_filled_up_and_neither_is_one_wider_than_all_widths() {
    let mut planner = Planner::new(|_| ());
    for id in 0..3 {
        planner.add(id, prompt(id as u32, 5));
    }
    planner.pack(&[4, 8]);
    assert_eq!(planner.meta.sequences(), 3, "rows of a step of prompts");
    planner.apply(9);
    planner.pack(&[1, 2]);
    assert_eq!(planner.meta.sequences(), 3, "rows of a step that is wider than what was captured");
}

fn slots(planner: &Planner) -> Vec<u32> {
    planner.packed.batch(&planner.meta).state_slots.to_vec()
}

#[test]
fn a_row_has_its_seat_though_seats_are_not_in_the_order_of_rows() {
    let mut planner = Planner::new(|config| config.max_num_seqs = 4);
    (0..3).for_each(|id| planner.add(id, prompt(id as u32, 5)));
    planner.step(9);
    planner.scheduler.abort(RequestId(0));
    planner.add(7, prompt(7, 5));
    planner.pack(&[]);
    assert_eq!(slots(&planner), [1, 2, 0], "the newcomer has the seat of the one that has gone");
}

#[test]
fn each_sequence_has_one_seat_however_many_tokens_it_has() {
    let mut planner = mixed();
    planner.pack(&[]);
    assert_eq!(slots(&planner), [0, 1, 2], "rows of 5, 1 and 3 tokens");
    let mut planner = Planner::new(|config| config.long_prefill_token_threshold = 3);
    planner.add(0, prompt(0, 8));
    planner.add(1, prompt(1, 2));
    planner.pack(&[]);
    assert_eq!(slots(&planner), [0, 1], "also one that samples nothing");
}

#[test]
fn each_row_of_filler_has_a_seat_of_its_own() {
    let mut planner = Planner::new(|config| config.max_num_seqs = 4);
    (0..2).for_each(|id| planner.add(id, prompt(id as u32, 5)));
    planner.step(9);
    planner.pack(&[4]);
    let mut all = slots(&planner);
    assert_eq!(all[..2], [0, 1], "two rows");
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3], "every seat once");
}

/// At most two requests in a step that decodes.
struct Pairs;

impl Policy for Pairs {
    fn name(&self) -> &'static str {
        "pairs"
    }

    fn order(&self, request: &RequestView<'_>, context: &PolicyContext<'_>) -> Rank {
        Fcfs.order(request, context)
    }

    fn compose(&self, request: &RequestView<'_>, so_far: &Composed) -> bool {
        request.num_computed() == 0 || so_far.requests < 2
    }

    fn victim(
        &self,
        _needy: &RequestView<'_>,
        _running: &mut dyn Iterator<Item = RequestView<'_>>,
        _lease: Option<LeaseId>,
        _context: &PolicyContext<'_>,
    ) -> Option<Victim> {
        None
    }
}

#[test]
fn filler_leaves_the_seat_of_a_request_that_sits_a_step_out() {
    let mut planner = Planner::new(|config| config.max_num_seqs = 4);
    let idle = Scheduler::new(SchedulerConfig::new(64, BLOCK)).unwrap();
    planner.scheduler =
        std::mem::replace(&mut planner.scheduler, idle).with_policy(Box::new(Pairs));
    (0..3).for_each(|id| planner.add(id, prompt(id as u32, 5)));
    planner.step(9);
    planner.pack(&[3]);
    assert_eq!(slots(&planner), [0, 1, 3], "two rows; seat 2 is taken by a request without a row");
    planner.apply(9);
    planner.pack(&[4]);
    assert_eq!(slots(&planner), [0, 1], "one seat is free, and width 4 wants two");
}
