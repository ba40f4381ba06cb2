//! What is kept between the turns of a job, and who is served first for it.

use super::*;

/// Blocks of a job's turns are leased for so many seconds.
struct FixedLease(f64);

impl Retention for FixedLease {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        _: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        match finished.job() {
            Some(job) if !job.last_step => Retain::LeaseUntil(context.now + self.0),
            _ => Retain::Free,
        }
    }
}

/// A job whose blocks are evicted from a pool of 24 while its tool runs.
fn evicting() -> String {
    let one = |job: &str, arrival: u32| {
        format!(
            "{{\"job\":\"{job}\",\"arrival\":{arrival},\"turns\":[{{\"prompt_tokens\":32,\"output_tokens\":1}}]}}\n"
        )
    };
    let list = r#"{"job":"A","turns":[{"prompt_tokens":32,"output_tokens":1,"tool":"make","tool_seconds":100},{"prompt_tokens":36,"output_tokens":1}]}"#;
    format!("{list}\n{}{}{}", one("B", 20), one("C", 40), one("D", 60))
}

/// 24 blocks. A's first turn leaves 8 of them; while its tool runs, three others need 8 each. Without a lease the third
/// one gets A's blocks, which have been free for longest.
#[test]
fn a_retention_that_leases_blocks_raises_the_hits_of_later_turns() {
    let list = evicting();
    let pool = SchedulerConfig { num_gpu_blocks: 25, ..config() };
    let run = |retention: Option<Box<dyn Retention>>| {
        let planner = planner(pool.clone());
        let planner = match retention {
            Some(retention) => planner.with_retention(retention),
            None => planner,
        };
        let report = planner.run(jobs(&list)).unwrap();
        assert_eq!(agents(&report).finished, 4);
        let a = agents(&report).e2e.unwrap().max;
        (agents(&report).later_turns.cached_tokens, a)
    };
    // 17 s for the first turn, 100 for the tool, and 1 + 36 / 2 or 1 + 4 / 2 for the second turn.
    assert_eq!(run(None), (0, 17.0 + 100.0 + 19.0));
    assert_eq!(run(Some(Box::new(FixedLease(200.0)))), (32, 17.0 + 100.0 + 3.0));
    assert_eq!(run(Some(Box::new(FixedLease(1.0)))).0, 0, "a lease of 1 s ends before B arrives");
}

/// What a retention was told of each finished request: its tool, and the cost model of the context.
type Told = Arc<Mutex<Vec<(RequestId, Option<String>, Option<CostModel>)>>>;

/// Keeps all blocks, and what it is told.
#[derive(Default)]
struct Listening(Told);

impl Retention for Listening {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        note: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        let tool = note.and_then(|note| note.tool.clone());
        self.0.lock().unwrap().push((finished.id(), tool, context.cost.copied()));
        Retain::Keep
    }

    fn observe(&mut self, event: &PolicyEvent<'_>, _: &PolicyContext<'_>) {
        if let PolicyEvent::Leased(lease) = event {
            let told = self.0.lock().unwrap();
            let (id, tool, _) = told.last().expect("a lease follows the retention's decision");
            assert_eq!((lease.request, &lease.tool), (*id, tool), "the lease and its tool");
        }
    }
}

#[test]
fn a_retention_learns_the_tool_of_each_turn_and_the_cost_model() {
    let cost = CostModel { load_bytes_per_second: Some(16.0), ..COST };
    // The pool of the other plans preempts, and rows get two tokens at once.
    let tight = SchedulerConfig { num_gpu_blocks: 9, num_speculative_tokens: 1, ..config() };
    let plans = [(config(), false), (tight.clone(), false), (tight, true)];
    for (config, host_memory) in plans {
        let preempts = config.num_gpu_blocks == 9;
        let told = Told::default();
        let mut planner = Planner::new(config, cost, Goodput::default()).unwrap();
        if host_memory {
            planner = planner.with_host_memory(1 << 20);
        }
        let planner = planner.with_retention(Box::new(Listening(told.clone())));
        let report = planner.run(jobs(&(one_line(THREE_TURNS) + TWO_JOBS))).unwrap();
        assert_eq!(agents(&report).finished, 3, "{report}");
        assert_eq!(report.counts.preemptions > 0, preempts, "{report}");
        let mut told: Vec<_> = told.lock().unwrap().drain(..).collect();
        told.sort_by_key(|(id, ..)| *id);
        let tools: Vec<_> = told.iter().map(|(_, tool, _)| tool.as_deref()).collect();
        assert_eq!(tools, [Some("ls"), Some("cat"), None, Some("make"), None, Some("cc")]);
        assert!(told.iter().all(|(_, _, given)| *given == Some(cost)), "{told:?}");
    }
}

/// The tool of every turn of this job is `bash`; only the command says that it is fast, or that it is not.
#[test]
fn under_context_serve_the_command_of_a_turn_decides() {
    let made = |command: &str| {
        let list = one_line(THREE_TURNS)
            .replace("\"tool\":\"ls\"", &format!("\"tool\":\"bash\",\"command\":\"{command}\""))
            .replace("\"tool\":\"cat\"", "\"tool\":\"bash\",\"command\":\"make\"");
        let config = SchedulerConfig { policy: PolicyKind::ContextServe, ..config() };
        let report = run(config, jobs(&list).with_records());
        report.job_log.expect("a record of the jobs").leases.made
    };
    assert_eq!([made("ls -la"), made("make test")], [1, 0]);
    // The same in a specification.
    let spec = |command: &str| {
        let with = format!("\"name\":\"ls\",\"command\":\"{command}\"");
        let spec = SPEC.replace("\"name\":\"ls\"", &with);
        assert_ne!(spec, SPEC);
        let config = SchedulerConfig { policy: PolicyKind::ContextServe, ..config() };
        run(config, jobs(&spec).with_records()).job_log.expect("a record").leases.made
    };
    assert!(spec("ls") > spec("sleep 60"), "{} and {}", spec("ls"), spec("sleep 60"));
}

/// A block has 4 tokens of 4 bytes. A's 8 blocks are stored from 17 to 25, and its second turn loads them.
#[test]
fn blocks_that_were_evicted_are_loaded_from_a_host_memory() {
    let pool = SchedulerConfig { num_gpu_blocks: 25, ..config() };
    let run = |bytes: u64, bandwidth: Option<f64>| {
        let cost = CostModel { load_bytes_per_second: bandwidth, ..COST };
        let planner = Planner::new(pool.clone(), cost, Goodput::default()).unwrap();
        let report = planner.with_host_memory(bytes).run(jobs(&evicting())).unwrap();
        let agents = agents(&report);
        assert_eq!((agents.finished, agents.later_turns.cached_tokens), (4, 0));
        let seconds = [agents.e2e.unwrap().max, agents.wait.unwrap().max];
        (agents.later_turns.loaded_tokens, seconds, report.host_memory.unwrap())
    };
    // 17 s for the first turn, 100 for the tool, 128 bytes to load, and 1 + 4 / 2 for what was not stored.
    let (loaded, seconds, host) = run(1 << 20, Some(16.0));
    assert_eq!((loaded, seconds), (32, [17.0 + 100.0 + 8.0 + 3.0, 8.0]));
    assert_eq!((host.loaded_bytes, host.evicted_blocks), (128.0, 0));
    // Four requests of 8 blocks, and a ninth block of A's second turn.
    assert_eq!((host.stored_blocks, host.stored_bytes), (33, 33.0 * 16.0));

    assert_eq!(run(1 << 20, None).1, [17.0 + 100.0 + 3.0, 0.0], "a load that takes no time");
    let (loaded, seconds, host) = run(23 * 16, Some(16.0));
    assert_eq!((loaded, seconds[0]), (0, 17.0 + 100.0 + 19.0), "B, C and D have evicted A");
    assert_eq!((host.capacity_blocks, host.used_blocks), (23, 23));
}

/// Two turns arrive together, and their loads share the bandwidth: one arrives after 8 s, the other after 16.
#[test]
fn loads_follow_one_another_and_others_run_meanwhile() {
    let turns = r#""turns":[{"prompt_tokens":32,"output_tokens":1,"tool_seconds":200},{"prompt_tokens":36,"output_tokens":1}]}"#;
    let one = |job: &str, arrival: u32, tokens: usize| {
        format!(
            "{{\"job\":\"{job}\",\"arrival\":{arrival},\"turns\":[{{\"prompt_tokens\":{tokens},\"output_tokens\":1}}]}}\n"
        )
    };
    let list = format!("{{\"job\":\"A\",{turns}\n{{\"job\":\"B\",{turns}\n{}", one("C", 50, 128));
    let list = list + &one("D", 235, 4);
    // A and B: 64 tokens in one step, from 0 to 33. C fills the pool of 32 blocks, for 33 + 33 s.
    let pool = SchedulerConfig { num_gpu_blocks: 33, max_model_len: 130, ..config() };
    let cost = CostModel { load_bytes_per_second: Some(16.0), ..COST };
    let planner = Planner::new(pool, cost, Goodput::default()).unwrap().with_host_memory(1 << 20);
    let log = Rc::new(RefCell::new(Log::default()));
    let report = planner.run(Logged { jobs: jobs(&list), log: log.clone() }).unwrap();
    assert_eq!(agents(&report).finished, 4);
    let log = log.take();
    let times = |id| {
        let turn = log.measured[&RequestId(id)];
        [turn.arrival.seconds(), turn.admitted.seconds(), log.finished[&RequestId(id)].seconds()]
    };
    // Both return at 233. A's load is done at 241, B's at 249. D runs from 235 to 238, when neither is.
    assert_eq!(times(1), [233.0, 241.0, 244.0], "A");
    assert_eq!(times(3), [233.0, 249.0, 252.0], "B");
    assert_eq!(times(5), [235.0, 235.0, 238.0], "D");
}

/// Agents whose next turns always find a lease would be first for ever.
#[test]
fn agents_that_come_back_for_ever_do_not_keep_a_chat_waiting() {
    let mut file = String::new();
    for number in 0..6 {
        let turns: Vec<String> = (0..60)
            .map(|turn| {
                let prompt = 12 + 4 * turn;
                format!(r#"{{"prompt_tokens": {prompt}, "output_tokens": 2, "tool_seconds": 0.5}}"#)
            })
            .collect();
        let turns = turns.join(", ");
        file += &format!(r#"{{"job": "a{number}", "arrival": 0, "turns": [{turns}]}}"#);
        file.push('\n');
    }
    for number in 0..4 {
        let arrival = 40 + 150 * number;
        let turns = r#"[{"prompt_tokens": 30, "output_tokens": 4}]"#;
        file += &format!(
            r#"{{"job": "c{number}", "arrival": {arrival}, "has_id": false, "turns": {turns}}}"#
        );
        file.push('\n');
    }
    let longest = |policy| {
        let config = SchedulerConfig { policy, max_num_seqs: 4, ..config() };
        let report = run(config, jobs(&file).with_records());
        let log = report.job_log.expect("records of the jobs");
        let chats = log.jobs.iter().filter(|job| job.turns.len() == 1);
        let waits = chats.map(|job| job.turns[0].first_token - job.arrival);
        (waits.fold(0.0, f64::max), log.mean)
    };
    let (continuum, _) = longest(PolicyKind::Continuum);
    let (adaptive, _) = longest(PolicyKind::Adaptive);
    // A step takes 1 s and 0.5 s for each token of a prompt; the class earns 0.4 of its tokens.
    assert!(adaptive < 150.0, "{adaptive} s until the first token of a chat");
    assert!(continuum > 3.0 * adaptive, "without a floor: {continuum} s, with one: {adaptive} s");
}
