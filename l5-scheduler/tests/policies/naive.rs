//! A naive scheduler: lists that are searched from the beginning, tokens compared as tokens, and preemption for a
//! waiting request tried on a copy.
//!
//! Written from what vLLM 0.32 is known to do (its defect about hashes of unscheduled chunks aside), and for
//! `strict-priority` from its rules, not from the code that is tested. Leases are a list that is searched and sorted
//! for each question, and ranks are computed anew for each look at the queue.

use l5_scheduler::{Compose, FinishReason, PolicyKind, Retain, SchedulerConfig};

use crate::driver::{Happened, drafts_behind, verified};
use crate::learning::{Learning, Names};

/// Tenant and job id.
type JobName = (Option<String>, String);

/// Blocks that are kept.
#[derive(Clone, Debug)]
struct NaiveLease {
    number: u64,
    request: u64,
    job: Option<JobName>,
    adapter: Option<String>,
    tokens: Vec<u32>,
    table: Vec<usize>,
    until: Option<f64>,
    storing: bool,
}

#[derive(Clone, Debug)]
pub struct NaiveRequest {
    pub id: u64,
    pub tokens: Vec<u32>,
    pub prompt: usize,
    pub max_tokens: usize,
    pub eos: Option<u32>,
    pub arrival: f64,
    pub priority: i64,
    pub adapter: Option<String>,
    pub tenant: Option<String>,
    pub job: Option<JobName>,
    pub last_step: bool,
    /// When the first request of its job arrived.
    job_arrival: f64,
    ticket: i64,
    computed: usize,
    /// What may follow its tokens.
    drafts: Vec<u32>,
    table: Vec<usize>,
    /// Blocks of the table that can be found.
    hashed: usize,
    preempted_now: bool,
}

impl NaiveRequest {
    pub fn new(id: u64, prompt: &[u32], max_tokens: usize) -> Self {
        Self {
            id,
            tokens: prompt.to_vec(),
            prompt: prompt.len(),
            max_tokens,
            eos: None,
            arrival: 0.0,
            priority: 0,
            adapter: None,
            tenant: None,
            job: None,
            last_step: false,
            job_arrival: 0.0,
            ticket: 0,
            computed: 0,
            drafts: Vec::new(),
            table: Vec::new(),
            hashed: 0,
            preempted_now: false,
        }
    }

    fn decodes(&self) -> bool {
        self.computed + 1 == self.tokens.len()
    }
}

/// Which rows a step may have.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Any,
    Decodes,
    /// Of prompts, so many tokens together.
    Prompts(usize),
}

/// Which adapters a step may have beside none: all; that of the first row that has one; this one.
#[derive(Clone, Debug, PartialEq)]
enum Turn {
    All,
    First,
    Of(String),
}

/// What is known of a block: adapter, tenant, and all tokens up to its end.
type Known = (Option<String>, Option<String>, Vec<u32>);

/// One request's part of a step: its id, tokens computed before, tokens of this step, and blocks that can be hit only
/// since it was planned; then drafts behind the tokens.
type Row = (u64, usize, usize, Vec<usize>, usize);

#[derive(Clone, Debug)]
pub struct Naive {
    config: SchedulerConfig,
    /// Next to be handed out first.
    free: Vec<usize>,
    users: Vec<usize>,
    /// What is known of which block, in the order in which it became known.
    cached: Vec<(Known, usize)>,
    /// In the order in which they are asked; sorted where the policy says so.
    waiting: Vec<NaiveRequest>,
    running: Vec<NaiveRequest>,
    /// The step that is planned.
    rows: Vec<Row>,
    preempted: Vec<u64>,
    ended: Vec<(u64, FinishReason)>,
    budget: usize,
    most: usize,
    shape: Shape,
    turn: Turn,
    /// Steps that decoded since the last one that took prompts.
    decode_steps: usize,
    /// Adapter of the last turn, and its steps: of steps that decode, and of others.
    turns: [(String, usize); 2],
    now: f64,
    /// What is retained, if anything is.
    pub names: Option<Names>,
    /// Whether the order is that of `LeasedFirst`.
    pub leased_first: bool,
    leases: Vec<NaiveLease>,
    next_lease: u64,
    /// Leases and requests that lost their blocks.
    losses: u64,
    /// When jobs began.
    jobs: Vec<(JobName, f64)>,
    front: i64,
    back: i64,
    /// Leases that end for the head of the queue, while others are preempted for it.
    granted: Option<Vec<u64>>,
}

impl Naive {
    pub fn new(config: &SchedulerConfig) -> Self {
        Self {
            config: config.clone(),
            free: (1..config.num_gpu_blocks).collect(),
            users: vec![0; config.num_gpu_blocks],
            cached: Vec::new(),
            waiting: Vec::new(),
            running: Vec::new(),
            rows: Vec::new(),
            preempted: Vec::new(),
            ended: Vec::new(),
            budget: 0,
            most: 0,
            shape: Shape::Any,
            turn: Turn::All,
            decode_steps: 0,
            turns: Default::default(),
            now: 0.0,
            names: None,
            leased_first: false,
            leases: Vec::new(),
            next_lease: 0,
            losses: 0,
            jobs: Vec::new(),
            front: 0,
            back: 0,
            granted: None,
        }
    }

    fn blocks(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.config.block_size)
    }

    /// Slots for drafts are wanted beyond a request's tokens, as far as there can be any.
    fn with_drafts(&self, tokens: usize) -> usize {
        let pool = (self.config.num_gpu_blocks - 1) * self.config.block_size;
        let most = self.config.max_model_len.min(pool);
        (tokens + self.config.num_lookahead_tokens).min(most).max(tokens)
    }

    fn strict(&self) -> bool {
        self.config.policy == PolicyKind::StrictPriority
    }

    /// Whether a request is taken.
    pub fn add(&mut self, mut request: NaiveRequest) -> bool {
        let more = usize::from(request.max_tokens > 1);
        let taken = request.prompt > 0
            && request.prompt < self.config.max_model_len
            && self.blocks(request.prompt + more) < self.config.num_gpu_blocks;
        if taken {
            self.back += 1;
            request.ticket = self.back;
            request.job_arrival = request.arrival;
            if let Some(job) = &request.job {
                match self.jobs.iter().find(|(name, _)| name == job) {
                    Some((_, began)) => request.job_arrival = *began,
                    None => self.jobs.push((job.clone(), request.arrival)),
                }
            }
            self.waiting.push(request);
            self.sort();
        }
        taken
    }

    fn has_lease(&self, job: &JobName) -> bool {
        self.leases.iter().any(|lease| lease.job.as_ref() == Some(job))
    }

    fn sort(&mut self) {
        if self.leased_first {
            let mut waiting = std::mem::take(&mut self.waiting);
            waiting.sort_by(|a, b| {
                let [first, second] = [a, b]
                    .map(|request| !request.job.as_ref().is_some_and(|job| self.has_lease(job)));
                let arrivals = a.job_arrival.total_cmp(&b.job_arrival);
                first.cmp(&second).then(arrivals).then(a.ticket.cmp(&b.ticket))
            });
            self.waiting = waiting;
        } else if self.config.policy != PolicyKind::Fcfs {
            self.waiting.sort_by(|a, b| {
                let arrivals = a.arrival.total_cmp(&b.arrival);
                a.priority.cmp(&b.priority).then(arrivals).then(a.id.cmp(&b.id))
            });
        }
    }

    fn is_cached(&self, block: usize) -> bool {
        self.cached.iter().any(|(_, cached)| *cached == block)
    }

    fn lookup(&self, request: &NaiveRequest) -> Vec<usize> {
        let NaiveRequest { tokens, adapter, tenant, .. } = request;
        let size = self.config.block_size;
        let most = if self.config.enable_prefix_caching { (tokens.len() - 1) / size } else { 0 };
        let find = |n: usize| {
            let same = |(of, from, known): &Known| {
                of == adapter && from == tenant && known[..] == tokens[..n * size]
            };
            let found = self.cached.iter().find(|(known, _)| same(known));
            found.map(|(_, block)| *block)
        };
        (1..=most).map_while(find).collect()
    }

    fn take(&mut self) -> usize {
        let block = self.free.remove(0);
        self.cached.retain(|(_, cached)| *cached != block);
        self.users[block] = 1;
        block
    }

    /// Blocks that are full after `len` tokens can be found. Returns the new ones.
    fn register(&mut self, request: &mut NaiveRequest, len: usize) -> Vec<usize> {
        if !self.config.enable_prefix_caching {
            return Vec::new();
        }
        let size = self.config.block_size;
        let mut new = Vec::new();
        while (request.hashed + 1) * size <= len {
            let block = request.table[request.hashed];
            request.hashed += 1;
            let known = request.tokens[..request.hashed * size].to_vec();
            let known = (request.adapter.clone(), request.tenant.clone(), known);
            self.cached.push((known, block));
            new.push(block);
        }
        new
    }

    fn give_back(&mut self, request: &mut NaiveRequest) {
        let table = std::mem::take(&mut request.table);
        (request.computed, request.hashed) = (0, 0);
        request.drafts.clear();
        self.release(table);
    }

    fn release(&mut self, table: Vec<usize>) {
        let mut unknown = Vec::new();
        for block in table.into_iter().rev() {
            self.users[block] -= 1;
            match (self.users[block], self.is_cached(block)) {
                (0, true) => self.free.push(block),
                (0, false) => unknown.push(block),
                _ => {}
            }
        }
        unknown.extend(std::mem::take(&mut self.free));
        self.free = unknown;
    }

    /// The `i`-th of those who run gives way.
    fn preempt(&mut self, i: usize) {
        let mut request = self.running.remove(i);
        if let Some(at) = self.rows.iter().position(|row| row.0 == request.id) {
            let (_, _, len, pending, drafts) = self.rows.remove(at);
            self.budget += len + drafts;
            self.cached.retain(|(_, block)| !pending.contains(block));
        }
        self.give_back(&mut request);
        request.preempted_now = true;
        self.preempted.push(request.id);
        self.losses += 1;
        self.front -= 1;
        request.ticket = self.front;
        self.waiting.insert(0, request);
        self.sort();
    }

    /// A request has ended.
    fn end(&mut self, request: &NaiveRequest, reason: FinishReason) {
        self.ended.push((request.id, reason));
        let Some(job) = &request.job else { return };
        let others = self.running.iter().chain(&self.waiting);
        let over =
            others.clone().all(|other| other.id == request.id || other.job.as_ref() != Some(job));
        if request.last_step && over {
            self.jobs.retain(|(name, _)| name != job);
        }
    }

    /// Leases that can be ended, the soonest first.
    fn soonest(&self) -> Vec<u64> {
        let mut leases: Vec<_> = self.leases.iter().filter(|lease| !lease.storing).collect();
        leases.sort_by(|a, b| {
            let end = |lease: &NaiveLease| lease.until.unwrap_or(f64::INFINITY);
            end(a).total_cmp(&end(b)).then(a.number.cmp(&b.number))
        });
        leases.iter().map(|lease| lease.number).collect()
    }

    /// Leases that end for a request that waits, or for one that runs, in this order.
    fn named(&self, waits: bool) -> Vec<u64> {
        if let Some(granted) = &self.granted {
            return granted.clone();
        }
        let soonest = self.soonest();
        let mut named = match self.names {
            None => return Vec::new(),
            Some(Names::ForRunning) if waits => Vec::new(),
            Some(Names::One) => soonest.iter().take(1).copied().collect(),
            Some(Names::Newest) => {
                let mut all = soonest.clone();
                all.sort_unstable_by(|a, b| b.cmp(a));
                all
            }
            Some(Names::Soonest | Names::ForRunning) => soonest.clone(),
        };
        if waits && self.running.is_empty() {
            // It would wait for ever.
            let others = soonest.into_iter().filter(|lease| !named.contains(lease));
            named.extend(others.collect::<Vec<_>>());
        }
        named
    }

    /// Blocks that are free without these leases.
    fn free_without(&self, leases: &[u64]) -> Vec<usize> {
        let gone = || self.leases.iter().filter(|lease| leases.contains(&lease.number));
        let mut blocks: Vec<usize> = gone().flat_map(|lease| lease.table.clone()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let held = |block: &usize| gone().filter(|lease| lease.table.contains(block)).count();
        blocks.retain(|block| self.users[*block] == held(block));
        blocks
    }

    fn end_lease(&mut self, number: u64) {
        let at = self.leases.iter().position(|lease| lease.number == number).unwrap();
        let lease = self.leases.remove(at);
        self.release(lease.table);
        self.sort();
    }

    /// Ends leases in their order until it is enough, if it ever is. Only those end that free a block.
    fn end_leases(&mut self, waits: bool, enough: impl Fn(&[usize]) -> bool) -> bool {
        let named = self.named(waits);
        let all = (1..=named.len()).map(|n| &named[..n]);
        let Some(ending) = all.into_iter().find(|leases| enough(&self.free_without(leases))) else {
            return false;
        };
        let freed = self.free_without(ending);
        for number in ending {
            let lease = self.leases.iter().find(|lease| lease.number == *number).unwrap();
            if lease.table.iter().any(|block| freed.contains(block)) {
                self.end_lease(*number);
                self.losses += 1;
            }
        }
        true
    }

    /// A request has finished: its blocks are kept, or free.
    fn finish(&mut self, mut request: NaiveRequest) {
        let retain = match (&request.job, self.names) {
            (Some(_), Some(_)) if !request.last_step => {
                Learning::decision(request.id, self.losses, self.now)
            }
            _ => Retain::Free,
        };
        let mine = |lease: &&NaiveLease| lease.job == request.job && lease.job.is_some();
        let before = self.leases.iter().filter(mine).filter(|lease| !lease.storing);
        let begins = |lease: &NaiveLease| {
            lease.adapter == request.adapter && request.tokens.starts_with(&lease.tokens)
        };
        let outlived = before.filter(|lease| request.last_step || begins(lease));
        let outlived: Vec<u64> = outlived.map(|lease| lease.number).collect();
        let size = self.config.block_size;
        let full = request.computed / size;
        let (until, storing) = match retain {
            Retain::LeaseUntil(until) => (Some(until.seconds()), false),
            _ => (None, retain == Retain::Offload),
        };
        if retain != Retain::Free && full > 0 && self.config.enable_prefix_caching {
            // Blocks that accepted drafts have filled can be found from here on.
            self.register(&mut request, full * size);
            let rest = request.table.split_off(full);
            self.release(rest);
            let (number, job) = (self.next_lease, request.job.clone());
            let adapter = request.adapter.clone();
            let tokens = request.tokens[..full * size].to_vec();
            let table = std::mem::take(&mut request.table);
            self.next_lease += 1;
            let request = request.id;
            self.leases.push(NaiveLease {
                number,
                request,
                job,
                adapter,
                tokens,
                table,
                until,
                storing,
            });
        }
        outlived.into_iter().for_each(|lease| self.end_lease(lease));
        let of_job =
            self.leases.iter().filter(|lease| lease.job == request.job && lease.job.is_some());
        if of_job.clone().count() > 8
            && let Some(oldest) = of_job.clone().find(|lease| !lease.storing)
        {
            self.end_lease(oldest.number);
        }
        self.give_back(&mut request);
        self.sort();
    }

    /// What is being stored has been.
    pub fn stored(&mut self, number: u64) {
        self.end_lease(number);
    }

    /// Requests whose blocks are kept.
    pub fn leased(&self) -> Vec<u64> {
        let mut leases: Vec<u64> = self.leases.iter().map(|lease| lease.request).collect();
        leases.sort_unstable();
        leases
    }

    pub fn abort(&mut self, id: u64) {
        if let Some(i) = self.running.iter().position(|request| request.id == id) {
            let mut request = self.running.remove(i);
            self.give_back(&mut request);
            self.end(&request, FinishReason::Aborted);
        } else if let Some(i) = self.waiting.iter().position(|request| request.id == id) {
            let request = self.waiting.remove(i);
            self.end(&request, FinishReason::Aborted);
        }
    }

    pub fn reset(&mut self, preempt: bool) {
        if self.leases.iter().any(|lease| lease.storing) {
            return;
        }
        if preempt {
            while !self.running.is_empty() {
                self.preempt(self.running.len() - 1);
            }
            self.preempted.clear();
            self.waiting.iter_mut().for_each(|request| request.preempted_now = false);
        }
        if self.running.is_empty() {
            self.soonest().into_iter().for_each(|lease| self.end_lease(lease));
            self.cached.clear();
        }
    }

    /// A step, begun and ended.
    pub fn step(&mut self, now: f64) -> Happened {
        self.now = now;
        let due = |naive: &Self, number: u64| {
            let lease = naive.leases.iter().find(|lease| lease.number == number).unwrap();
            let waits = naive.waiting.iter().any(|request| request.job == lease.job);
            lease.until.is_some_and(|until| until <= now) && !waits
        };
        for lease in self.soonest() {
            if due(self, lease) {
                self.end_lease(lease);
            }
        }
        let ended = self.ended.len();
        for attempt in 0..3 {
            self.compose(attempt);
            self.plan();
            let nothing =
                self.rows.is_empty() && self.preempted.is_empty() && self.ended.len() == ended;
            if !nothing {
                self.count();
                break;
            }
        }
        self.finish_step()
    }

    /// What the step is to have: at first as the setting says, then as if nobody waited, then whatever there is.
    fn compose(&mut self, attempt: usize) {
        let seats = self.config.max_num_seqs;
        let seats = seats.min(self.config.max_num_active_seqs.unwrap_or(seats));
        let sits = |head: &&NaiveRequest| {
            let gives_way =
                |request: &NaiveRequest| self.strict() && request.priority > head.priority;
            self.running.len() < seats || self.running.iter().any(gives_way)
        };
        let head = self.waiting.first().filter(|_| attempt == 0).filter(sits);
        let (decode, mut prompts): (Vec<_>, Vec<_>) =
            self.running.iter().partition(|request| request.decodes());
        prompts.extend(head);
        let everybody: Vec<_> = self.running.iter().chain(head).collect();
        let (shape, turn) = match self.config.compose {
            _ if attempt == 2 && self.config.adapter_turn > 0 => (Shape::Any, Turn::First),
            _ if attempt == 2 => (Shape::Any, Turn::All),
            Compose::Mixed => (Shape::Any, self.next_turn(1, &everybody)),
            Compose::Stable { .. } if decode.is_empty() => {
                (Shape::Any, self.next_turn(1, &prompts))
            }
            Compose::Stable { max_decode_steps, chunk }
                if !prompts.is_empty() && self.decode_steps >= max_decode_steps =>
            {
                let whole = chunk == 0 || !self.config.enable_chunked_prefill;
                let chunk = if whole { usize::MAX } else { chunk };
                (Shape::Prompts(chunk), self.next_turn(1, &prompts))
            }
            Compose::Stable { .. } => (Shape::Decodes, self.next_turn(0, &decode)),
        };
        (self.shape, self.turn) = (shape, turn);
    }

    /// The next adapter of those that are ready, in the order of the alphabet.
    fn next_turn(&self, kind: usize, ready: &[&NaiveRequest]) -> Turn {
        if self.config.adapter_turn == 0 {
            return Turn::All;
        }
        let mut names: Vec<&String> = ready.iter().filter_map(|r| r.adapter.as_ref()).collect();
        names.sort();
        let (last, steps) = &self.turns[kind];
        let stays = names.iter().find(|name| **name == last && *steps < self.config.adapter_turn);
        let next = names.iter().find(|name| **name > last);
        let next = stays.or(next).or(names.first());
        next.map_or(Turn::First, |name| Turn::Of((*name).clone()))
    }

    /// The step that is planned counts.
    fn count(&mut self) {
        let decodes = self.shape == Shape::Decodes;
        self.decode_steps = if decodes { self.decode_steps + 1 } else { 0 };
        if let Turn::Of(name) = &self.turn {
            let (last, steps) = &mut self.turns[usize::from(!decodes)];
            let goes_on = last == name && *steps < self.config.adapter_turn;
            *steps = if goes_on { *steps + 1 } else { 1 };
            last.clone_from(name);
        }
    }

    fn in_turn(&self, request: &NaiveRequest) -> bool {
        match (&self.turn, &request.adapter) {
            (Turn::Of(name), Some(own)) => name == own,
            _ => true,
        }
    }

    fn plan(&mut self) {
        let eligible = self.running.len() + self.waiting.len();
        self.budget = self.config.max_num_batched_tokens;
        if let Shape::Prompts(chunk) = self.shape {
            self.budget = self.budget.min(chunk);
        }
        self.most = match self.config.long_prefill_token_threshold {
            0 => usize::MAX,
            _ if eligible <= 1 => usize::MAX,
            t if self.config.long_prefill_token_threshold_adaptive => t.max(self.budget / eligible),
            t => t,
        };
        self.plan_running();
        if self.shape != Shape::Decodes && (self.preempted.is_empty() || self.strict()) {
            while self.admit_next() {}
        }
    }

    /// Takes back the blocks that no request needs without drafts.
    fn take_back_draft_blocks(&mut self) {
        if self.config.num_speculative_tokens == 0 {
            return;
        }
        let needs = |request: &NaiveRequest| {
            let row = self.rows.iter().find(|row| row.0 == request.id);
            self.blocks(self.with_drafts(request.computed + row.map_or(0, |row| row.2)))
        };
        let order: Vec<u64> = self.rows.iter().map(|row| row.0).collect();
        let idle = self.running.iter().map(|request| request.id).filter(|id| !order.contains(id));
        let order: Vec<u64> = order.iter().copied().chain(idle).collect();
        let needs: Vec<usize> = self.running.iter().map(needs).collect();
        for id in order {
            let i = self.running.iter().position(|request| request.id == id).unwrap();
            if self.running[i].table.len() > needs[i] {
                let back = self.running[i].table.split_off(needs[i]);
                back.iter().for_each(|block| self.users[*block] -= 1);
                self.free.splice(0..0, back.into_iter().rev());
            }
            let slots = self.running[i].table.len() * self.config.block_size;
            if let Some(row) = self.rows.iter_mut().find(|row| row.0 == id) {
                // Their tokens of the step are lost.
                row.4 = row.4.min(slots - row.1 - row.2);
            }
        }
    }

    fn plan_running(&mut self) {
        let size = self.config.block_size;
        let mut i = 0;
        'everybody: while i < self.running.len() && self.budget > 0 {
            let id = self.running[i].id;
            let request = &self.running[i];
            let fits = match self.shape {
                Shape::Any => true,
                Shape::Decodes => request.decodes(),
                Shape::Prompts(_) => !request.decodes(),
            };
            if !fits || !self.in_turn(request) {
                i += 1;
                continue;
            }
            let computed = request.computed;
            let room = (self.config.max_model_len - 1).saturating_sub(computed);
            let len = (request.tokens.len() - computed).min(self.most).min(self.budget).min(room);
            if len == 0 {
                i += 1;
                continue;
            }
            if self.blocks(computed + len) > self.config.num_gpu_blocks - 1 {
                let mut request = self.running.remove(i);
                self.give_back(&mut request);
                self.end(&request, FinishReason::KvExhausted);
                continue;
            }
            let wanted = self.blocks(self.with_drafts(computed + len));
            if wanted > self.running[i].table.len() + self.free.len() {
                self.take_back_draft_blocks();
            }
            while wanted > self.running[i].table.len() + self.free.len() {
                if self.end_leases(false, |freed| !freed.is_empty()) {
                    continue;
                }
                let victim = self.victim();
                let victim_id = self.running[victim].id;
                self.preempt(victim);
                if victim_id == id && self.strict() {
                    continue 'everybody;
                }
                if victim_id == id {
                    break 'everybody;
                }
                i = self.running.iter().position(|request| request.id == id).unwrap();
            }
            self.give_row(i, wanted, len);
            i += 1;
            let behind = self.running.len() - i;
            let request = &self.running[i - 1];
            if computed + len == request.tokens.len() {
                let most = self.budget.saturating_sub(behind).min(room - len);
                let most = request.drafts.len().min(most);
                let mut drafts = 0;
                while drafts < most {
                    // Free blocks, if there are any, and never those of another request.
                    if computed + len + drafts == self.running[i - 1].table.len() * size {
                        if self.free.is_empty() {
                            break;
                        }
                        let block = self.take();
                        self.running[i - 1].table.push(block);
                    }
                    drafts += 1;
                }
                self.rows.last_mut().unwrap().4 = drafts;
                self.budget -= drafts;
            }
        }
    }

    fn victim(&self) -> usize {
        if self.config.policy == PolicyKind::Fcfs {
            return self.running.len() - 1;
        }
        let mut worst = 0;
        for i in 1..self.running.len() {
            let (a, b) = (&self.running[i], &self.running[worst]);
            if (a.priority, a.arrival) > (b.priority, b.arrival) {
                worst = i;
            }
        }
        worst
    }

    /// The `i`-th of those who run takes part, with a table of so many blocks.
    fn give_row(&mut self, i: usize, blocks: usize, len: usize) {
        let mut request = self.running.remove(i);
        while request.table.len() < blocks {
            let block = self.take();
            request.table.push(block);
        }
        if let (Turn::First, Some(name)) = (&self.turn, &request.adapter) {
            self.turn = Turn::Of(name.clone());
        }
        let end = request.computed + len;
        let pending = self.register(&mut request, end);
        self.rows.push((request.id, request.computed, len, pending, 0));
        self.budget -= len;
        self.running.insert(i, request);
    }

    /// Admit the first who waits. Returns whether there may be another.
    fn admit_next(&mut self) -> bool {
        let Some(head) = self.waiting.first() else { return false };
        if self.budget == 0 && !self.strict() {
            return false;
        }
        if self.blocks(head.tokens.len()) > self.config.num_gpu_blocks - 1 {
            let head = self.waiting.remove(0);
            self.end(&head, FinishReason::KvExhausted);
            return true;
        }
        if head.preempted_now || !self.in_turn(head) {
            return false;
        }
        if self.admit(self.budget) {
            return true;
        }
        self.strict() && self.make_room()
    }

    /// Admit the first who waits, with at most so many tokens, if it fits.
    fn admit(&mut self, budget: usize) -> bool {
        let config = self.config.clone();
        let seats = config.max_num_seqs.min(config.max_num_active_seqs.unwrap_or(usize::MAX));
        let head = &self.waiting[0];
        let id = head.id;
        let hit = self.lookup(head);
        let computed = hit.len() * config.block_size;
        let mut len = (head.tokens.len() - computed).min(self.most);
        if budget == 0 || (!config.enable_chunked_prefill && len > budget) {
            return false;
        }
        len = len.min(budget);
        let wanted = self.blocks(self.with_drafts(computed + len));
        let capacity = config.num_gpu_blocks - 1;
        let whole = match config.policy {
            PolicyKind::StrictPriority => self.blocks(head.tokens.len() + 1).min(capacity),
            _ if config.scheduler_reserve_full_isl => self.blocks(head.tokens.len()),
            _ => 0,
        };
        let apart = match self.running.is_empty() {
            true => 0,
            false => (config.watermark * config.num_gpu_blocks as f64) as usize,
        };
        let idle = hit.iter().filter(|block| self.users[**block] == 0).count();
        let needed = wanted.max(whole).max(hit.len()) - hit.len() + idle + apart;
        if self.running.len() >= seats {
            return false;
        }
        if needed > self.free.len() {
            self.take_back_draft_blocks();
        }
        let free = self.free.len();
        let enough = |freed: &[usize]| {
            needed + freed.iter().filter(|block| hit.contains(block)).count() <= free + freed.len()
        };
        if needed > free && !self.end_leases(true, enough) {
            return false;
        }
        let head = self.waiting.iter().position(|request| request.id == id).unwrap();
        let mut request = self.waiting.remove(head);
        for block in &hit {
            self.free.retain(|free| free != block);
            self.users[*block] += 1;
        }
        (request.computed, request.hashed, request.table) = (computed, hit.len(), hit);
        self.running.push(request);
        self.give_row(self.running.len() - 1, wanted, len);
        true
    }

    /// Let those give way who are less urgent than the first who waits: as many as it takes, tried on a copy.
    fn make_room(&mut self) -> bool {
        let head = self.waiting[0].clone();
        if !self.running.iter().any(|request| request.priority > head.priority) {
            return false;
        }
        self.take_back_draft_blocks();
        let mut copy = self.clone();
        let mut victims = Vec::new();
        copy.granted = Some(self.named(true));
        // Tokens are no reason to preempt anybody, so they are looked at last.
        let has_room = |copy: &Self| Self { budget: usize::MAX, ..copy.clone() }.admit(usize::MAX);
        if has_room(&copy) {
            return false;
        }
        while !has_room(&copy) {
            let worst = copy.running.iter().filter(|request| {
                request.priority > head.priority && !copy.is_shared_in_this_step(request.id)
            });
            let worst = worst.max_by(|a, b| {
                let arrivals = a.arrival.total_cmp(&b.arrival);
                a.priority.cmp(&b.priority).then(arrivals).then(a.id.cmp(&b.id))
            });
            let Some(worst) = worst else { return false };
            let id = worst.id;
            victims.push(id);
            copy.preempt(copy.running.iter().position(|request| request.id == id).unwrap());
        }
        if !copy.admit(copy.budget) {
            return false;
        }
        self.granted = copy.granted;
        for id in victims {
            self.preempt(self.running.iter().position(|request| request.id == id).unwrap());
        }
        assert!(self.admit(self.budget));
        self.granted = None;
        true
    }

    /// Whether others have hit what a request computes in the step that is being planned.
    fn is_shared_in_this_step(&self, id: u64) -> bool {
        let row = self.rows.iter().find(|row| row.0 == id);
        row.is_some_and(|row| row.3.iter().any(|block| self.users[*block] > 1))
    }

    fn finish_step(&mut self) -> Happened {
        let rows = std::mem::take(&mut self.rows);
        for (id, _, len, ..) in &rows {
            let i = self.running.iter().position(|request| request.id == *id).unwrap();
            self.running[i].computed += len;
        }
        for (id, .., fed) in &rows {
            let i = self.running.iter().position(|request| request.id == *id).unwrap();
            let request = &mut self.running[i];
            if request.computed < request.tokens.len() {
                continue;
            }
            let mut ended = None;
            let right = verified(&request.tokens, &request.drafts[..*fed]);
            // All but the last were fed as drafts.
            for token in &right {
                request.tokens.push(*token);
                let long = request.tokens.len() >= self.config.max_model_len
                    || request.tokens.len() - request.prompt >= request.max_tokens;
                ended = match () {
                    () if request.eos == Some(*token) => Some(FinishReason::Stop),
                    () if long => Some(FinishReason::Length),
                    () => continue,
                };
                break;
            }
            request.computed = request.tokens.len() - 1;
            let Some(reason) = ended else {
                let more = request.max_tokens - (request.tokens.len() - request.prompt) - 1;
                request.drafts = drafts_behind(&request.tokens);
                request.drafts.truncate(more.min(self.config.num_speculative_tokens));
                continue;
            };
            let request = self.running.remove(i);
            self.end(&request, reason);
            self.finish(request);
        }
        self.waiting.iter_mut().for_each(|request| request.preempted_now = false);
        Happened {
            rows: rows
                .into_iter()
                .map(|(id, computed, len, _, n)| (id, computed, len + n))
                .collect(),
            preempted: std::mem::take(&mut self.preempted),
            ended: std::mem::take(&mut self.ended),
            running: self.running.iter().map(|request| request.id).collect(),
            waiting: self.waiting.iter().map(|request| request.id).collect(),
            free: self.free.len(),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }
}
