//! Recordings: what was written is what happened, and what is read is not believed.

use std::io::{self, BufReader, Write};
use std::sync::{Arc, Mutex};

use l3_paged_kv::trace::{self, BlockObserver, BlockOp, PoolState, Recorder, TraceError};
use l3_paged_kv::{
    Admission, BlockHasher, BlockId, BlockManager, ExtraKeys, ManagerConfig, SeqId, TokenChain,
};
use proptest::prelude::*;

const BLOCK_SIZE: usize = 4;

/// A file that the test can read while the recorder owns it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A few requests over a recorded manager, as a scheduler would run them.
struct Run {
    manager: BlockManager,
    file: Shared,
    live: Vec<(SeqId, TokenChain)>,
}

#[derive(Clone, Debug)]
enum Deed {
    Enter { family: u32, shared: usize, own: usize },
    Generate { who: usize, token: u32 },
    End { who: usize },
    RollBack { who: usize, tokens: usize },
    Commit,
    Abandon,
    Reset,
}

impl Run {
    fn new(num_blocks: usize) -> Self {
        let file = Shared::default();
        let config = ManagerConfig {
            namespace: "tiny".to_owned(),
            ..ManagerConfig::new(num_blocks, BLOCK_SIZE)
        };
        let mut manager = BlockManager::new(config).unwrap();
        manager.set_observer(Some(Box::new(Recorder::new(file.clone())))).unwrap();
        Self { manager, file, live: Vec::new() }
    }

    fn enter(&mut self, tokens: &[u32]) {
        let mut chain = TokenChain::new(&BlockHasher::new(BLOCK_SIZE), ExtraKeys::default());
        chain.extend(tokens);
        let hit = self.manager.lookup(&chain);
        let want = Admission { up_to_len: chain.len(), ..Admission::default() };
        if let Ok(seq) = self.manager.admit(&chain, &hit, want) {
            self.manager.register(seq, &chain, chain.len()).unwrap();
            self.manager.note(&BlockOp::Wrote { seq, from: hit.tokens, to: chain.len() });
            self.live.push((seq, chain));
        }
    }

    fn run(&mut self, deed: &Deed) {
        let who = |who: usize| who % self.live.len().max(1);
        match *deed {
            Deed::Enter { family, shared, own } => {
                let beginning = (0..shared as u32).map(|t| family * 1000 + t);
                let tokens: Vec<u32> = beginning.chain((0..own as u32).map(|t| t % 3)).collect();
                self.enter(&tokens);
            }
            Deed::Generate { who: n, token } if !self.live.is_empty() => {
                let at = who(n);
                let (seq, chain) = &mut self.live[at];
                if self.manager.reserve(*seq, chain.len() + 1).is_ok() {
                    chain.push(token);
                    self.manager.register(*seq, chain, chain.len()).unwrap();
                }
            }
            Deed::End { who: n } if !self.live.is_empty() => {
                let (seq, _) = self.live.remove(who(n));
                let unfounded = self.manager.free(seq).unwrap();
                self.live.retain(|(seq, _)| !unfounded.contains(seq));
            }
            Deed::RollBack { who: n, tokens } if !self.live.is_empty() => {
                let at = who(n);
                let (seq, chain) = &mut self.live[at];
                let len = chain.len().saturating_sub(tokens);
                if self.manager.rollback(*seq, len).is_ok() {
                    chain.truncate(len);
                }
            }
            Deed::Commit => self.manager.commit_step(),
            Deed::Abandon => {
                let gone = self.manager.abandon_step();
                self.live.retain(|(seq, _)| !gone.contains(seq));
                for (seq, chain) in &mut self.live {
                    let capacity = self.manager.table(*seq).unwrap().capacity();
                    chain.truncate(capacity.min(chain.len()));
                }
            }
            Deed::Reset => drop(self.manager.reset_prefix_cache()),
            _ => {}
        }
    }

    fn recorded(&self) -> Vec<u8> {
        self.file.0.lock().unwrap().clone()
    }
}

fn fold(recording: &[u8]) -> Result<PoolState, TraceError> {
    let mut reader = trace::read(recording)?;
    while reader.next_frame()?.is_some() {}
    Ok(reader.state().clone())
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        4 => (0u32..3, 0usize..14, 1usize..9)
            .prop_map(|(family, shared, own)| Deed::Enter { family, shared, own }),
        8 => (any::<usize>(), 0u32..3).prop_map(|(who, token)| Deed::Generate { who, token }),
        3 => any::<usize>().prop_map(|who| Deed::End { who }),
        1 => (any::<usize>(), 0usize..7).prop_map(|(who, tokens)| Deed::RollBack { who, tokens }),
        4 => Just(Deed::Commit),
        1 => Just(Deed::Abandon),
        1 => Just(Deed::Reset),
    ];
    prop::collection::vec(deed, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_recording_reads_back_as_the_state_of_the_manager(deeds in deeds()) {
        let mut run = Run::new(17);
        deeds.iter().for_each(|deed| run.run(deed));
        let state = fold(&run.recorded()).unwrap();
        let pool = run.manager.pool();

        let free: Vec<BlockId> = pool.free_list().iter().collect();
        prop_assert_eq!(state.free().collect::<Vec<_>>(), free, "the free list, in order");
        prop_assert_eq!(state.num_free(), pool.num_free());
        for block in 1..17 {
            prop_assert_eq!(state.users(block), pool.ref_count(block).unwrap(), "users of {}", block);
            let hash = state.hashed(block).map(|h| h.hash);
            prop_assert_eq!(hash.as_ref(), run.manager.cache().hash_of(block), "hash of {}", block);
        }
        prop_assert_eq!(state.tables().len(), run.live.len());
        for (seq, _) in &run.live {
            let table = run.manager.table(*seq).unwrap();
            prop_assert_eq!(&state.tables()[seq].blocks, table.blocks(), "table of {}", seq);
        }
        run.manager.commit_step();
        prop_assert!(fold(&run.recorded()).unwrap().pending().is_empty(), "nothing pends after a step");
    }

    #[test]
    fn a_damaged_recording_never_panics(
        deeds in deeds(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 1..6),
    ) {
        let mut run = Run::new(9);
        deeds.iter().for_each(|deed| run.run(deed));
        let mut recording = run.recorded();
        for (at, byte, how) in damage {
            if recording.is_empty() {
                break;
            }
            let at = at.index(recording.len());
            match how {
                0 => recording[at] = byte,
                1 => drop(recording.remove(at)),
                // A digit for a digit: still an op, of another block.
                2 => {
                    if let Some(digit) = recording[at..].iter().position(u8::is_ascii_digit) {
                        recording[at + digit] = b'0' + byte % 10;
                    }
                }
                // A line twice, or elsewhere.
                _ => {
                    let line = recording[at..].split(|b| *b == b'\n').nth(1).unwrap_or_default();
                    let line = [line, b"\n"].concat();
                    let end = recording.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
                    recording.splice(end..end, line);
                }
            }
        }
        let lines = recording.split(|b| *b == b'\n').count();
        if let Err(e) = fold(&recording) {
            let told = e.to_string();
            let line = told.strip_prefix("line ").and_then(|t| t.split([' ', ':']).next());
            let line: usize = line.unwrap().parse().unwrap();
            prop_assert!((1..=lines).contains(&line), "{} of {} lines", told, lines);
        }
    }
}

/// A prompt, and a second one that begins alike and comes while the first is there.
fn two_that_share() -> Run {
    let mut run = Run::new(9);
    run.enter(&[1, 2, 3, 4, 5]);
    run.run(&Deed::Commit);
    run.enter(&[1, 2, 3, 4, 6]);
    run.run(&Deed::Commit);
    run
}

#[test]
fn an_act_opens_a_frame_and_its_changes_fill_it() {
    let recording = two_that_share().recorded();
    let mut reader = trace::read(&recording[..]).unwrap();
    let mut told = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        let act = serde_json::to_value(&frame.act).unwrap()["op"].as_str().unwrap().to_owned();
        told.push((act, frame.changes.len()));
    }
    let told: Vec<_> = told.iter().map(|(act, changes)| (act.as_str(), *changes)).collect();
    assert_eq!(
        told,
        [
            ("pool_made", 0),
            ("step_begins", 0),
            ("sequence_begins", 6), // twice: pop, ref_count, append
            ("registers", 1),
            ("wrote", 0),
            ("step_committed", 0),
            ("step_begins", 0),
            ("sequence_begins", 6), // prefix_hit, ref_count, append; pop, ref_count, append
            ("wrote", 0),
            ("step_committed", 0),
        ]
    );
    let (first, _) = two_that_share().live[0];
    let state = reader.state();
    assert_eq!((state.users(1), state.users(2), state.users(3)), (2, 1, 1), "users");
    assert_eq!(state.tables()[&first].stored, 5, "tokens that the first one stored");
    assert_eq!((state.steps(), state.step_is_open(), state.namespace()), (2, false, "tiny"));
}

#[test]
fn the_format_is_one_object_a_line() {
    let recording = String::from_utf8(two_that_share().recorded()).unwrap();
    let lines: Vec<&str> = recording.lines().collect();
    let expected = [
        r#"{"strata_block_trace":1,"num_blocks":9,"block_size":4,"namespace":"tiny"}"#,
        r#"{"op":"step_begins"}"#,
        r#"{"op":"sequence_begins","seq":"0.0","label":"sequence 0.0"}"#,
        r#"{"op":"pop","block":1}"#,
        r#"{"op":"ref_count","block":1,"count":1}"#,
        r#"{"op":"append","seq":"0.0","block":1}"#,
    ];
    assert_eq!(lines[..expected.len()], expected, "the first lines of a recording");
    for line in &lines[1..] {
        let op: BlockOp<'_> = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_string(&op).unwrap(), *line, "written again");
    }
}

const HEADER: &str =
    "{\"strata_block_trace\":1,\"num_blocks\":4,\"block_size\":4,\"namespace\":\"\"}\n";

#[track_caller]
fn fails(recording: &str, expected: &str) {
    let got = fold(recording.as_bytes()).map(|_| ()).expect_err(expected).to_string();
    assert!(got.contains(expected), "\n  expected  .. {expected} ..\n  got       {got}");
}

#[test]
fn what_is_no_recording_is_told_apart() {
    fails("", "line 1 is not the beginning of a block recording");
    fails("\n", "line 1 is not the beginning of a block recording");
    fails("hello\n", "line 1 is not the beginning of a block recording");
    fails("{\"steps\":[]}\n", "line 1 is not the beginning of a block recording");
    fails("{\"strata_block_trace\":2,\"else\":1}\n", "recording of version 2, and version 1");
    fails("{\"strata_block_trace\":1}\n", "missing field `num_blocks`");
    for num_blocks in [0, 1, u64::MAX] {
        let header = HEADER.replace(":4,\"block", &format!(":{num_blocks},\"block"));
        fails(&header, "a pool has 2 to 2147483647 blocks");
    }
    fold(HEADER.as_bytes()).unwrap();
}

#[test]
fn a_pool_of_any_size_costs_what_happens_in_it() {
    let header = HEADER.replace(":4,\"block", &format!(":{},\"block", i32::MAX));
    let pop = "{\"op\":\"pop\",\"block\":1}\n{\"op\":\"ref_count\",\"block\":1,\"count\":1}\n";
    let state = fold(format!("{header}{pop}").as_bytes()).unwrap();
    assert_eq!(state.num_free(), i32::MAX as usize - 2);
    assert_eq!(state.free().next(), Some(2));
}

#[test]
fn a_line_that_breaks_off_is_told_from_one_that_is_wrong() {
    fails(&format!("{HEADER}{{\"op\":\"po"), "line 2 breaks off");
    fails(&format!("{HEADER}{{\"op\":\"po\n"), "line 2 is not an op");
    fails(&format!("{HEADER}{{\"op\":\"fly\"}}\n"), "line 2 is not an op: unknown variant `fly`");
    fails(&format!("{HEADER}{{\"op\":\"pop\"}}\n"), "line 2 is not an op: missing field `block`");
    let seq = "{\"op\":\"append\",\"seq\":\"first\",\"block\":1}\n";
    fails(&format!("{HEADER}{seq}"), "`first` is no sequence");
}

#[test]
fn ops_that_contradict_the_state_are_named_by_their_line() {
    let check = |ops: &[&str], expected: &str| {
        let lines: String = ops.iter().map(|op| format!("{{\"op\":{op}}}\n")).collect();
        fails(&format!("{HEADER}{lines}"), expected);
    };
    let began = r#""sequence_begins","seq":"0.0","label":"a""#;
    check(
        &[r#""pop","block":2"#],
        "line 2 contradicts what is before it: block 2 is popped, but block 1",
    );
    check(&[r#""pop","block":0"#], "block 0 is the null block");
    check(&[r#""pop","block":4"#], "the pool has blocks 0 to 3, not 4");
    check(&[r#""ref_count","block":1,"count":1"#], "block 1 was never taken");
    check(&[r#""pop","block":1"#, r#""step_begins""#], "block 1 is neither used nor in the free");
    check(
        &[
            r#""pop","block":1"#,
            r#""ref_count","block":1,"count":1"#,
            r#""push_back","block":1"#,
            r#""step_begins""#,
        ],
        "block 1 is in the free list and has 1 users",
    );
    check(&[r#""push_front","block":1"#], "block 1 enters the free list and is in it already");
    check(
        &[r#""unlink","block":1"#, r#""unlink","block":1"#],
        "leaves the free list and is not in",
    );
    check(&[r#""unlink","block":1"#, r#""unhashed","block":1"#], "a hash which it does not have");
    check(&[began, began], "sequence 0.0 began before");
    check(&[r#""append","seq":"0.0","block":1"#], "sequence 0.0 did not begin, or has ended");
    check(&[began, r#""truncate","seq":"0.0","blocks":1"#], "keeps 1 blocks of 0");
    check(&[began, r#""wrote","seq":"0.0","from":0,"to":1"#], "tokens 0..1 of sequence 0.0");
    check(&[r#""step_committed""#], "a step ends that did not begin");
    check(&[r#""step_begins""#, r#""step_begins""#], "line 3 contradicts");
    let made = r#""pool_made","num_blocks":4,"block_size":4,"namespace":"""#;
    check(&[made], "the pool was made in the first line");
}

/// Takes so many bytes, then the disk is full.
struct FullDisk(usize);

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_does_not_disturb_the_run_and_is_told_at_the_end() {
    for room in [0, 100, 1000] {
        let mut run = Run::new(9);
        run.manager.set_observer(Some(Box::new(Recorder::new(FullDisk(room))))).unwrap();
        for token in 0..40 {
            run.run(&Deed::Enter { family: 0, shared: 5, own: 2 });
            run.run(&Deed::Generate { who: 0, token });
            run.run(&Deed::End { who: 0 });
            run.run(&Deed::Commit);
        }
        let failure = run.manager.take_observer().unwrap().finish().unwrap_err();
        assert_eq!(failure.kind(), io::ErrorKind::StorageFull, "room for {room} bytes");
        assert_eq!(run.manager.num_free(), 8, "blocks that are free");
    }
}

#[test]
fn a_recorder_begins_where_the_pool_is_made() {
    let mut late = Recorder::new(Vec::new());
    late.observe(&BlockOp::StepBegins);
    assert!(late.finish().unwrap_err().to_string().contains("begins where the pool is made"));
}

#[test]
fn a_file_is_recorded_whole_once_it_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl");
    let mut run = Run::new(9);
    run.manager.set_observer(Some(Box::new(Recorder::create(&path).unwrap()))).unwrap();
    run.enter(&[1, 2, 3, 4, 5]);
    run.manager.commit_step();
    run.manager.take_observer().unwrap().finish().unwrap();
    let mut reader = trace::read(BufReader::new(std::fs::File::open(&path).unwrap())).unwrap();
    while reader.next_frame().unwrap().is_some() {}
    assert_eq!(reader.state().free().collect::<Vec<_>>(), [3, 4, 5, 6, 7, 8]);
    assert!(Recorder::create(dir.path().join("no/such/place")).is_err());
}
