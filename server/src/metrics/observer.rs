//! Observes the engine's steps: a few additions for each request of a step, and no allocation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use l5_scheduler::tiers::LoadedTokens;
use l5_scheduler::{
    Admitted, FinishReason, RequestId, RequestView, Scheduler, StepObserver, StepOp, StepResult,
    StepRow, StepView, Time,
};
use l6_ensemble::shadow::SHADOW_PRIORITY;
use l6_ensemble::slo::SloWindow;

use super::adapters::AdaptersInUse;
use super::engine::EngineFamilies;
use super::slo::SharedSlo;
use super::state::Running;
use super::tiers::TierFamilies;
use super::window::{SharedWindow, Window};

/// Observer of an engine. Clones share the counts: one is attached to the engine, the others are read.
#[derive(Clone, Debug)]
pub struct Watch {
    pub families: Arc<EngineFamilies>,
    /// Metrics of the tiers behind the pool, if there are any.
    pub tiers: Option<Arc<TierFamilies>>,
    seen: Arc<Mutex<Seen>>,
    window: SharedWindow,
    slo: SharedSlo,
}

#[derive(Debug)]
struct Seen {
    /// Requests that have not ended.
    live: HashMap<RequestId, Live>,
    /// The current step: its time by the engine's clock and by the system's, and its number of prompt tokens.
    step: Time,
    planned: Instant,
    prompt_tokens: usize,
    prefix_caching: bool,
}

/// A request that has not ended. Times are of the engine's clock.
#[derive(Clone, Debug)]
struct Live {
    prompt: usize,
    max_tokens: usize,
    arrival: Time,
    scheduled: Option<Time>,
    first: Option<Time>,
    last: Time,
    generated: usize,
    /// Prompt tokens that the first admission found in the pool, and those that it had loaded.
    cached: usize,
    loaded: LoadedTokens,
    /// Tokens that a tier had, whether or not they arrived.
    matched: usize,
    preemptions: u32,
    runs: bool,
    /// Whether it is a shadow, which counts for steps and blocks only.
    shadow: bool,
    /// Name of its adapter.
    adapter: Option<String>,
}

impl Live {
    fn of(request: &RequestView<'_>) -> Self {
        Self {
            prompt: request.prompt_len(),
            max_tokens: request.max_tokens(),
            arrival: request.arrival(),
            scheduled: None,
            first: None,
            last: request.arrival(),
            generated: 0,
            cached: 0,
            loaded: LoadedTokens::default(),
            matched: 0,
            preemptions: 0,
            runs: false,
            shadow: request.priority() == SHADOW_PRIORITY,
            adapter: request.adapter().map(|own| own.name.clone()),
        }
    }
}

impl Watch {
    /// Creates an observer of no steps yet.
    pub fn new(families: EngineFamilies, window: SharedWindow, slo: SharedSlo) -> Self {
        let seen = Seen {
            live: HashMap::new(),
            step: Time::ZERO,
            planned: Instant::now(),
            prompt_tokens: 0,
            prefix_caching: false,
        };
        let (families, seen) = (Arc::new(families), Arc::new(Mutex::new(seen)));
        Self { families, tiers: None, seen, window, slo }
    }

    /// Counts what comes from tiers as well.
    pub fn with_tiers(self, tiers: Option<TierFamilies>) -> Self {
        Self { tiers: tiers.map(Arc::new), ..self }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the names of the adapters that its requests have.
    pub fn add_adapters(&self, to: &mut AdaptersInUse) {
        let seen = self.lock();
        for live in seen.live.values() {
            if let Some(name) = &live.adapter {
                let list = if live.runs { &mut to.running } else { &mut to.waiting };
                list.insert(name.clone());
            }
        }
    }

    /// The first `most` running requests, in order of arrival.
    pub fn running(&self, most: usize) -> Vec<Running> {
        let seen = self.lock();
        let runs = seen.live.iter().filter(|(_, live)| live.runs);
        let mut running: Vec<_> = runs.map(|(id, live)| shown(*id, live)).collect();
        drop(seen);
        running.sort_unstable_by_key(|running| running.id);
        running.truncate(most);
        running
    }
}

fn shown(id: RequestId, live: &Live) -> Running {
    Running {
        id: id.0,
        prompt: live.prompt,
        cached: live.cached + live.loaded.total(),
        generated: live.generated,
        max_tokens: live.max_tokens,
        preemptions: live.preemptions,
    }
}

impl StepObserver for Watch {
    fn attached(&mut self, scheduler: &Scheduler) {
        self.lock().prefix_caching = scheduler.config().enable_prefix_caching;
    }

    fn arrived(&mut self, request: RequestView<'_>) {
        self.lock().live.insert(request.id(), Live::of(&request));
    }

    fn planned(&mut self, view: &StepView<'_>, _: &Scheduler) {
        let mut seen = self.lock();
        seen.step = view.step().now;
        seen.planned = Instant::now();
        for id in &view.step().preempted {
            self.families.preemptions.inc();
            if let Some(live) = seen.live.get_mut(id) {
                live.preemptions += 1;
                live.runs = false;
            }
        }
        for op in &view.step().ops {
            if let StepOp::Load { id, from, to, .. } = op
                && let Some(live) = seen.live.get_mut(id)
            {
                live.matched = to - from;
            }
        }
        seen.prompt_tokens = 0;
        for row in view.rows() {
            let (computed, prompt) = (row.row.computed, row.request.prompt_len());
            seen.prompt_tokens += (computed + row.row.len).min(prompt).saturating_sub(computed);
            if row.row.admitted != Admitted::Before {
                seen.admitted(row.row, &self.families, self.tiers.as_deref());
            }
        }
    }

    fn applied(&mut self, result: &StepResult, scheduler: &Scheduler) {
        let now = Instant::now();
        self.families.blocks(scheduler);
        if let Some(speculation) = &self.families.speculation {
            speculation.set(scheduler);
        }
        if let Some(tiers) = &self.tiers {
            tiers.fetches(scheduler.kv_fetches());
        }
        if result.scheduled_tokens > 0 {
            self.families.stepped(result);
        }
        let mut seen = self.lock();
        let time = seen.time(result, now);
        let mut window = self.window.lock();
        self.slo.count(now, |slo, at| {
            seen.sampled(result, now, &self.families, (&mut window, slo, at));
            // Last: once the end of a request is visible, so is everything else that was counted of it.
            for (id, reason) in &result.finished {
                seen.ended(*id, *reason, time, &self.families, (slo, at));
            }
        });
    }

    fn lost(&mut self, ended: &[(RequestId, FinishReason)]) {
        let mut seen = self.lock();
        let time = seen.step + seen.planned.elapsed().as_secs_f64();
        self.slo.count(Instant::now(), |slo, at| {
            for (id, reason) in ended {
                seen.ended(*id, *reason, time, &self.families, (slo, at));
            }
        });
    }
}

impl Seen {
    /// Counts an admission. Only cache hits of a request's first admission count: a preempted one finds its own blocks.
    fn admitted(&mut self, row: &StepRow, families: &EngineFamilies, tiers: Option<&TierFamilies>) {
        let (caching, now) = (self.prefix_caching, self.step);
        let Some(live) = self.live.get_mut(&row.id) else { return };
        live.runs = true;
        if live.scheduled.is_some() {
            return;
        }
        live.scheduled = Some(now);
        live.cached = row.cached;
        if let Some(tiers) = tiers
            && row.loaded() > 0
        {
            live.loaded = tiers.loaded_tokens(row.id);
        }
        if caching && !live.shadow {
            families.prefix_queries.inc_by(live.prompt as u64);
            families.prefix_hits.inc_by(row.cached as u64);
            if tiers.is_some() {
                families
                    .external_queries
                    .inc_by((live.prompt - row.cached.min(live.prompt)) as u64);
                families.external_hits.inc_by(live.matched as u64);
            }
        }
    }

    /// End of a step, by the engine's clock.
    fn time(&self, result: &StepResult, now: Instant) -> Time {
        let since = result.phases.plan + now.saturating_duration_since(self.planned);
        self.step + since.as_secs_f64()
    }

    /// Counts new tokens.
    fn sampled(
        &mut self,
        result: &StepResult,
        now: Instant,
        families: &EngineFamilies,
        (window, slo, at): (&mut Window, &mut SloWindow, Time),
    ) {
        let time = self.time(result, now);
        let (mut generated, mut of_shadows) = (0, 0);
        for (id, tokens) in result.new_tokens() {
            generated += tokens.len();
            let Some(live) = self.live.get_mut(&id) else { continue };
            live.generated += tokens.len();
            let before = std::mem::replace(&mut live.last, time);
            if live.shadow {
                of_shadows += tokens.len();
                continue;
            }
            if live.first.is_some() {
                let seconds = time - before;
                families.itl.observe(seconds);
                window.between(now, seconds);
                slo.inter_token(at, seconds);
                continue;
            }
            live.first = Some(time);
            let seconds = time - live.arrival;
            families.ttft.observe(seconds);
            families.prompt(live.prompt, live.cached, live.loaded);
            window.first(now, live.prompt, seconds);
            let scheduled = live.scheduled.unwrap_or(live.arrival);
            slo.first_token(at, seconds, time - scheduled);
        }
        let of_clients = generated - of_shadows;
        if of_clients > 0 {
            families.generation_tokens.inc_by(of_clients as u64);
            window.generated(now, of_clients);
        }
        if result.scheduled_tokens > 0 {
            families.iteration_tokens.observe((self.prompt_tokens + generated) as f64);
        }
    }

    /// Counts the end of a request. The histograms of phases that it did not reach stay unchanged.
    fn ended(
        &mut self,
        id: RequestId,
        reason: FinishReason,
        now: Time,
        families: &EngineFamilies,
        (slo, at): (&mut SloWindow, Time),
    ) {
        let Some(live) = self.live.remove(&id).filter(|live| !live.shadow) else { return };
        live.ended(now, families);
        families.ended(reason);
        slo.finished(at, live.preemptions > 0);
    }
}

impl Live {
    fn ended(&self, now: Time, families: &EngineFamilies) {
        families.request_prompt.observe(self.prompt as f64);
        families.request_generation.observe(self.generated as f64);
        families.request_max_tokens.observe(self.max_tokens as f64);
        families.request_preemptions.observe(f64::from(self.preemptions));
        if self.preemptions > 0 {
            families.preempted_requests.inc();
        }
        families.e2e.observe(now - self.arrival);
        let Some(scheduled) = self.scheduled else { return };
        let found = self.cached + self.loaded.total();
        families.request_computed.observe((self.prompt - found.min(self.prompt)) as f64);
        families.queue.observe(scheduled - self.arrival);
        let Some(first) = self.first else { return };
        families.prefill.observe(first - scheduled);
        families.decode.observe(self.last - first);
        families.inference.observe(self.last - scheduled);
        let between = self.generated.saturating_sub(1).max(1) as f64;
        families.tpot.observe((self.last - first) / between);
    }
}

impl EngineFamilies {
    /// Counts the tokens of a prompt whose first output token was sampled.
    fn prompt(&self, prompt: usize, cached: usize, loaded: LoadedTokens) {
        let all = loaded.total();
        for (counter, tokens) in [
            (&self.prompt_tokens, prompt),
            (&self.prompt_computed, prompt.saturating_sub(cached + all)),
            (&self.prompt_hit, cached),
            (&self.prompt_loaded, all),
            (&self.prompt_cached, cached + all),
            (&self.prompt_cached_device, cached),
            (&self.prompt_cached_host, loaded.host),
            (&self.prompt_cached_disk, loaded.disk),
            (&self.prompt_cached_external, loaded.external),
        ] {
            counter.inc_by(tokens as u64);
        }
    }

    /// Sets the gauges of KV blocks.
    fn blocks(&self, scheduler: &Scheduler) {
        let (blocks, total) = (scheduler.blocks(), scheduler.config().capacity());
        self.kv_usage.set(blocks.usage());
        self.kv_used.set(total.saturating_sub(blocks.num_free()) as f64);
        self.kv_free.set(blocks.num_free() as f64);
        self.kv_cached.set(blocks.cache().len() as f64);
        // Both are counted as leases begin and end, so neither takes a pass over them.
        self.kv_leased.set(scheduler.leases().blocks() as f64);
        self.leases.set(scheduler.leases().len() as f64);
    }

    /// Counts a step and its phases.
    fn stepped(&self, result: &StepResult) {
        self.steps.inc();
        if result.replayed.is_some() {
            self.replayed.inc();
        }
        let (here, took) = (&self.phases, result.phases);
        for (histogram, took) in [
            (&here.plan, took.plan),
            (&here.turn, took.turn),
            (&here.pack, took.pack),
            (&here.forward, took.forward),
            (&here.sample, took.sample),
            (&here.apply, took.apply),
        ] {
            histogram.observe(took.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use l5_scheduler::sim::FakeModel;
    use l5_scheduler::{
        EngineCore, Job, Note, PolicyContext, Request, Retain, Retention, SchedulerConfig,
    };
    use l6_ensemble::slo::{SloOptions, SloTargets};

    use super::super::registry::Registry;
    use super::*;

    /// Keeps the blocks of a step of a job until a time.
    struct Keeps;

    impl Retention for Keeps {
        fn retain(
            &mut self,
            finished: &RequestView<'_>,
            _: Option<&Note>,
            context: &PolicyContext<'_>,
        ) -> Retain {
            match finished.job() {
                Some(_) => Retain::LeaseUntil(context.now + 10.0),
                None => Retain::Free,
            }
        }
    }

    #[test]
    fn leases_and_their_blocks_are_gauges() {
        let config = SchedulerConfig::new(33, 4);
        let families = EngineFamilies::new(&Registry::default(), "tiny", "0", &config, "f32");
        let slo = SharedSlo::new(SloOptions::default(), SloTargets::default());
        let watch = Watch::new(families, SharedWindow::new(Instant::now()), slo);
        let scheduler = Scheduler::new(config).unwrap().with_retention(Box::new(Keeps));
        let mut core = EngineCore::new(scheduler, FakeModel::default());
        core.set_observer(Some(Box::new(watch.clone())));
        let gauges = || {
            let families = &watch.families;
            [&families.leases, &families.kv_leased, &families.kv_used, &families.kv_free]
                .map(|gauge| gauge.get())
        };
        let mut serve = |id, job: Option<&str>, own: u32, now| {
            // All prompts begin with the same two blocks.
            let prompt = [vec![7; 8], vec![own; 7]].concat();
            let job = job.map(|id| Job { id: id.to_owned(), last_step: false });
            let id = RequestId(id);
            let request = Request { id, prompt, max_tokens: 1, job, ..Request::default() };
            core.add_request(request, vec![9]).unwrap();
            core.step_at(Time(now)).unwrap();
        };
        serve(1, None, 1, 0.0);
        assert_eq!(gauges(), [0.0, 0.0, 0.0, 32.0], "nothing of a request without a job");
        serve(2, Some("a"), 2, 1.0);
        assert_eq!(gauges(), [1.0, 3.0, 3.0, 29.0]);
        serve(3, Some("b"), 3, 2.0);
        assert_eq!(gauges(), [2.0, 4.0, 4.0, 28.0], "blocks that both have count once");
        // Nothing is sent any more: the engine steps when a lease expires.
        core.step_at(Time(11.5)).unwrap();
        assert_eq!(gauges(), [1.0, 3.0, 3.0, 29.0]);
        core.step_at(Time(13.0)).unwrap();
        assert_eq!(gauges(), [0.0, 0.0, 0.0, 32.0]);
    }
}
