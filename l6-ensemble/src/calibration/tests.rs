//! Records, the queue, and files that rotate.

use std::collections::BTreeMap;
use std::io;

use proptest::prelude::*;

use super::*;
use crate::shadow::ShadowReason;

fn digest(text: &str) -> InputDigest {
    InputDigest::new(b"salt", [text])
}

fn record(text: &str) -> CalibrationRecord {
    CalibrationRecord::new(1.5, digest(text), "codegen", "stl", 0.5)
}

#[test]
fn a_digest_depends_on_the_salt_and_on_every_part() {
    let base = InputDigest::new(b"salt", ["ab", "c"]);
    assert_eq!(base, InputDigest::new(b"salt", ["ab", "c"]));
    for other in [
        InputDigest::new(b"pepper", ["ab", "c"]),
        InputDigest::new(b"salt", ["a", "bc"]),
        InputDigest::new(b"salt", ["abc"]),
        InputDigest::new(b"salta", ["b", "c"]),
    ] {
        assert_ne!(base, other);
    }
    let text = base.to_string();
    assert_eq!((text.len(), text.parse()), (64, Ok(base)));
    for wrong in
        ["", &text[1..], &text.replace(|c: char| c.is_ascii_digit(), "é"), &"+0".repeat(32)]
    {
        assert_eq!(wrong.parse::<InputDigest>(), Err(InvalidDigest), "{wrong}");
    }
}

#[test]
fn samples_have_their_fraction_and_purposes_are_independent() {
    let digests: Vec<_> = (0..4000).map(|i| digest(&i.to_string())).collect();
    let count = |of: &dyn Fn(&InputDigest) -> bool| digests.iter().filter(|d| of(d)).count();
    assert_eq!(count(&|d| d.sampled("a", 1.0)), 4000);
    assert_eq!(count(&|d| d.sampled("a", 0.0)), 0);
    assert_eq!(count(&|d| d.sampled("a", f64::NAN)), 0);
    // Five standard deviations: sqrt(4000 * p * (1 - p)) is 27 and 14.
    assert!(count(&|d| d.sampled("a", 0.25)).abs_diff(1000) < 137);
    assert!(count(&|d| d.sampled("a", 0.25) && d.sampled("b", 0.25)).abs_diff(250) < 77);
    assert_eq!(
        count(&|d| d.sampled("a", 0.25) && !d.sampled("a", 0.3)),
        0,
        "a sample contains smaller ones"
    );
}

#[test]
fn a_record_is_one_line_and_returns_as_it_was() {
    let mut whole = record("x\ny");
    whole.scores = vec![("stl".into(), 0.5), ("algo".into(), 0.25)];
    whole.decided_by = DecidedBy::Rule;
    whole.why = "tripwire `stl`: 14 of 80 tokens".into();
    whole.primary.verdicts.compiles = Some(true);
    whole.primary.ttft_ms = Some(12.5);
    let verdicts = Verdicts { compiles: Some(false), tests: None };
    let agreement = Agreement::of((&whole.primary.verdicts, "a"), (&verdicts, "b"));
    whole.shadow = Some(ShadowResponse {
        reason: ShadowReason::Fresh,
        response: Response { lane: "algo".into(), verdicts, ..Response::default() },
        agreement,
    });
    whole.prompt = Some("line\nline".into());
    let text = serde_json::to_string(&whole).unwrap();
    assert!(!text.contains('\n'), "{text}");
    assert_eq!(serde_json::from_str::<CalibrationRecord>(&text).unwrap(), whole);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["primary"]["compiles"], true);
    assert_eq!(json["shadow"]["agreement"]["compiles"], "primary_only");
    assert_eq!(json["shadow"]["reason"], "fresh");
    // A field of a later version.
    let later = text.replacen('{', "{\"later\":1,", 1);
    assert_eq!(serde_json::from_str::<CalibrationRecord>(&later).unwrap(), whole);
}

#[test]
fn prompts_are_recorded_only_if_the_configuration_says_so() {
    for store_prompts in [false, true] {
        let config = CalibrationConfig { store_prompts, ..CalibrationConfig::default() };
        let queue = CalibrationQueue::new(&config);
        let prompt = Some("a tenant's secret".to_owned());
        assert!(queue.push(CalibrationRecord { prompt, ..record("a tenant's secret") }));
        let line = String::from_utf8(queue.take()).unwrap();
        assert_eq!(line.contains("secret"), store_prompts, "{line}");
    }
}

#[test]
fn a_full_queue_drops_records_and_counts_them() {
    let config = CalibrationConfig { max_queue_bytes: 4096, ..CalibrationConfig::default() };
    let queue = CalibrationQueue::new(&config);
    let length = serde_json::to_string(&record("x")).unwrap().len() + 1;
    for i in 0..100 {
        assert_eq!(queue.push(record("x")), i < 4096 / length);
    }
    let counts = queue.counts();
    assert_eq!((counts.accepted + counts.dropped, counts.accepted), (100, (4096 / length) as u64));
    assert_eq!(counts.waiting_bytes, queue.take().len());
    assert!(queue.push(record("x")), "there is room again");
    assert_eq!(queue.counts().waiting_bytes, length);
}

/// Files in memory, of which every `fails`-th write fails after half of its bytes.
#[derive(Debug, Default)]
struct Memory {
    files: BTreeMap<String, Vec<u8>>,
    fails: Option<usize>,
    writes: usize,
}

impl Directory for Memory {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        Ok(self.files.iter().map(|(name, bytes)| (name.clone(), bytes.len() as u64)).collect())
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.writes += 1;
        let file = self.files.entry(name.to_owned()).or_default();
        if self.fails.is_some_and(|every| self.writes.is_multiple_of(every)) {
            file.extend_from_slice(&bytes[..bytes.len() / 2]);
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.extend_from_slice(bytes);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.files.remove(name).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn config(max_file_bytes: u64, max_files: usize) -> CalibrationConfig {
    CalibrationConfig { max_file_bytes, max_files, ..CalibrationConfig::default() }
}

/// All lines that are left, oldest first.
fn left(memory: &Memory) -> Vec<String> {
    let text = memory.files.values().flatten().copied().collect();
    let text = String::from_utf8(text).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

proptest! {
    #[test]
    fn files_hold_the_latest_lines_within_their_bounds(
        batches in proptest::collection::vec(proptest::collection::vec(1_usize..60, 0..12), 0..20),
        max_bytes in 20_u64..120, max_files in 1_usize..5, restart in 1_usize..6,
    ) {
        let config = config(max_bytes, max_files);
        let mut files = RotatingFiles::open(Memory::default(), &config).unwrap();
        let (mut lines, mut lost, mut written) = (vec![], 0, 0);
        for (i, batch) in batches.iter().enumerate() {
            let mut text = String::new();
            for length in batch {
                let line = format!("{:0>width$}", lines.len(), width = (*length).max(5));
                text.push_str(&line);
                text.push('\n');
                if line.len() as u64 >= max_bytes {
                    lost += 1;
                } else {
                    lines.push(line);
                }
            }
            files.write(text.as_bytes()).unwrap();
            if i % restart == 0 {
                written += files.counts().written;
                lost -= files.counts().lost;
                let memory = Memory { files: files.directory().files.clone(), ..Memory::default() };
                files = RotatingFiles::open(memory, &config).unwrap();
            }
        }
        prop_assert_eq!(files.counts().lost, lost);
        prop_assert_eq!(written + files.counts().written, lines.len() as u64);
        let memory = files.directory();
        prop_assert!(memory.files.len() <= max_files);
        prop_assert!(memory.files.values().all(|file| file.len() as u64 <= max_bytes));
        let left = left(memory);
        prop_assert_eq!(&left[..], &lines[lines.len() - left.len()..]);
        let fits = lines.iter().rev().scan(0, |sum, line| {
            *sum += line.len() as u64 + 2;
            Some(*sum)
        });
        // Each file but the newest had no room for the line that followed it, nor for a line end after a restart.
        let full = (max_files as u64 - 1) * max_bytes.saturating_sub(62);
        let least = fits.take_while(|sum| *sum <= full).count();
        prop_assert!(left.len() >= least, "{} of {}", left.len(), least);
    }

    #[test]
    fn an_error_loses_the_lines_that_it_counts_and_no_other(
        batches in proptest::collection::vec(1_usize..6, 1..20), every in 1_usize..5,
    ) {
        let memory = Memory { fails: Some(every), ..Memory::default() };
        let mut files = RotatingFiles::open(memory, &config(4096, 3)).unwrap();
        let (mut sent, mut kept) = (0, vec![]);
        for batch in batches {
            let lines: Vec<_> = (0..batch).map(|i| format!("line {} of a batch", sent + i)).collect();
            sent += batch;
            match files.write(format!("{}\n", lines.join("\n")).as_bytes()) {
                Ok(()) => kept.extend(lines),
                Err(error) => prop_assert_eq!(error.lines, batch as u64),
            }
        }
        prop_assert_eq!(files.counts().written, kept.len() as u64);
        prop_assert_eq!(files.counts().written + files.counts().lost, sent as u64);
        let left = left(files.directory());
        prop_assert!(kept.iter().all(|line| left.contains(line)), "{:?} in {:?}", kept, left);
    }
}

#[test]
fn a_torn_line_of_an_earlier_process_costs_no_other_line() {
    let mut memory = Memory::default();
    memory.files.insert("calibration-00000007.jsonl".into(), b"{\"a\":1}\n{\"torn".to_vec());
    memory.files.insert("calibration-7.jsonl".into(), b"not ours".to_vec());
    memory.files.insert("notes.txt".into(), vec![0; 10_000]);
    let mut files = RotatingFiles::open(memory, &config(4096, 1)).unwrap();
    files.write(b"{\"b\":2}\n").unwrap();
    let file = &files.directory().files["calibration-00000007.jsonl"];
    assert_eq!(std::str::from_utf8(file), Ok("{\"a\":1}\n{\"torn\n{\"b\":2}\n"));
    files.write(&[[b'x'; 4095].as_slice(), b"\n"].concat()).unwrap();
    let names: Vec<_> = files.directory().files.keys().cloned().collect();
    assert_eq!(names, ["calibration-00000008.jsonl", "calibration-7.jsonl", "notes.txt"]);
}

#[test]
fn files_of_the_file_system_grow_rotate_and_are_the_owners() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stream");
    for _ in 0..2 {
        let mut files =
            RotatingFiles::open(FsDirectory::new(&path).unwrap(), &config(4096, 2)).unwrap();
        for i in 0..100 {
            files.write(format!("{i:0>200}\n").as_bytes()).unwrap();
        }
        assert_eq!(files.counts().written, 100);
    }
    let mut left: Vec<_> = std::fs::read_dir(&path).unwrap().map(|f| f.unwrap().path()).collect();
    left.sort();
    assert_eq!(left.len(), 2);
    let last = std::fs::read_to_string(&left[1]).unwrap();
    assert!(last.ends_with(&format!("{:0>200}\n", 99)));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&left[1])), (0o700, 0o600));
    }
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn a_configuration_reports_all_its_errors() {
    assert_eq!(CalibrationConfig::default().errors(), Vec::<String>::new());
    let text = "max_file_bytes = 1\nmax_files = 0\nmax_queue_bytes = 1";
    let config: CalibrationConfig = toml::from_str(text).unwrap();
    assert_eq!(config.errors().len(), 3);
}
