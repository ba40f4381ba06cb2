//! The compiler and its sandbox against hostile code, on this machine's `g++`; scripts stand in for compilers that
//! misbehave.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{RwLock, RwLockReadGuard};
use std::time::Duration;

use super::sandbox::{End, Run, Sandbox};
use super::*;

/// Held by tests that run compilers; alone by one that uses up the processes of the sandbox's user.
static PROCESSES: RwLock<()> = RwLock::new(());

fn shared() -> RwLockReadGuard<'static, ()> {
    PROCESSES.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn limits(wall_ms: u64) -> SandboxLimits {
    SandboxLimits { wall: Duration::from_millis(wall_ms), ..SandboxLimits::default() }
}

/// A directory that the sandbox's user may enter.
fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

fn options(directory: &Path) -> CompileCheckOptions {
    // Other tests keep the machine busy: what is bounded by time here is bounded by processor time.
    CompileCheckOptions {
        limits: limits(120_000),
        directory: directory.to_owned(),
        ..CompileCheckOptions::default()
    }
}

fn running() -> AtomicBool {
    AtomicBool::new(false)
}

/// A compiler in the strongest sandbox that this machine grants, with its directory.
fn gcc() -> (Compiler, tempfile::TempDir) {
    let directory = open_directory();
    (Compiler::open(&options(directory.path())).unwrap(), directory)
}

fn fenced(code: &str) -> String {
    format!("Here:\n```cpp\n{code}\n```\n")
}

fn why(verdict: &Verdict) -> &Inconclusive {
    match verdict {
        Verdict::Inconclusive { why } => why,
        verdict => panic!("{verdict}"),
    }
}

/// A program in a directory of its own, which plays a compiler: `body` runs unless it is asked for its version.
fn script(shell: &str, body: &str) -> (PathBuf, tempfile::TempDir) {
    let directory = open_directory();
    let path = directory.path().join("compiler");
    let text = format!("#!{shell}\n[ \"$1\" = --version ] && exit 0\n{body}\n");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    (path, directory)
}

/// The modes of sandbox that this machine grants, without Landlock: with namespaces, and with a filter only.
fn modes(program: &Path) -> Vec<SandboxMode> {
    let strongest = Sandbox::new(program, limits(120_000), &std::env::temp_dir()).unwrap().mode();
    assert!(strongest.restricts_network(), "{strongest}");
    let mut modes = vec![strongest];
    if strongest.namespaces && strongest.seccomp {
        modes.push(SandboxMode { namespaces: false, ..strongest });
        modes.push(SandboxMode { seccomp: false, ..strongest });
    }
    modes
}

/// Runs a program in a mode, with Landlock if this machine has it.
fn run(program: &Path, mode: SandboxMode, limits: SandboxLimits) -> (Run, SandboxMode) {
    run_until(program, mode, limits, &running())
}

/// As [`run`], until `stop` is set.
fn run_until(
    program: &Path,
    mode: SandboxMode,
    limits: SandboxLimits,
    stop: &AtomicBool,
) -> (Run, SandboxMode) {
    let directory = open_directory();
    let mut sandbox = Sandbox::with_mode(mode, limits, directory.path());
    let roots = ["/usr", "/bin", "/lib", "/lib64"].map(PathBuf::from);
    let roots: Vec<PathBuf> =
        roots.into_iter().chain(program.parent().map(Path::to_owned)).collect();
    sandbox.restrict_files(program, &roots).unwrap();
    let run = sandbox.run(program, &[], &[], stop).unwrap();
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        0,
        "the run's directory is removed"
    );
    (run, sandbox.mode())
}

/// Processes whose command line has this text.
fn processes(mark: &str) -> usize {
    let ids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok());
    let lines = ids.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(mark)).count()
}

/// Waits until so many processes have this text.
fn wait_for(mark: &str, number: usize) {
    for _ in 0..12_000 {
        if processes(mark) >= number {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{} of {number} processes {mark}", processes(mark));
}

/// Children of this process with this name, zombies among them.
fn children(name: &str) -> usize {
    let ids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok());
    let stats = ids.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let parent = std::process::id().to_string();
    stats
        .filter(|stat| {
            // pid (name) state parent ..
            let Some((head, tail)) = stat.rsplit_once(')') else { return false };
            head.ends_with(&format!("({name}")) && tail.split_whitespace().nth(1) == Some(&parent)
        })
        .count()
}

#[test]
fn code_that_compiles_passes_and_code_that_does_not_fails_with_its_first_error() {
    let _shared = shared();
    let (gcc, _directory) = gcc();
    let check = |code: &str| gcc.check(&fenced(code), &running());
    assert_eq!(
        check("#include <vector>\n#include <string>\nint main() { std::vector<std::string> v; }"),
        Verdict::Pass
    );
    let Verdict::Fail { error } = check("#include <vector>\nint main() {\n  std::vector<int> v\n}")
    else {
        panic!()
    };
    assert!(error.starts_with("line 4: ") || error.starts_with("line 3: "), "{error}");
    assert!(error.contains("expected"), "{error}");
    assert_eq!(gcc.check("Hello.", &running()), Verdict::NoCode);
    assert_eq!(*why(&gcc.check("```cpp\nint main() {", &running())), Inconclusive::Truncated);
    assert_eq!(*why(&check("#include <no_such_header.h>\nint x;")), Inconclusive::MissingHeader);
}

#[test]
fn a_fragment_is_checked_with_standard_headers_as_declarations_or_as_statements() {
    let _shared = shared();
    let (gcc, _directory) = gcc();
    let check = |code: &str| gcc.check(&fenced(code), &running());
    assert_eq!(
        check("std::vector<int> twice(std::vector<int> v) { for (auto& x : v) x *= 2; return v; }"),
        Verdict::Pass
    );
    assert_eq!(check("for (int i = 0; i < 3; ++i) {\n  std::cout << i;\n}"), Verdict::Pass);
    assert_eq!(*why(&check("Widget make() { return {}; }")), Inconclusive::MissingContext);
    let Verdict::Fail { error } = check("int f() {\n  return 1\n}") else { panic!() };
    assert!(error.starts_with("line 2: ") || error.starts_with("line 3: "), "{error}");
}

#[test]
fn files_that_code_names_are_refused_before_a_compiler_runs() {
    let _shared = shared();
    let (gcc, _directory) = gcc();
    for code in [
        "#include \"/proc/self/environ\"",
        "#include </dev/zero>",
        "#include __FILE__",
        "#embed \"/etc/passwd\"",
    ] {
        let verdict = gcc.check(&fenced(code), &running());
        assert!(matches!(why(&verdict), Inconclusive::Refused(_)), "{code}: {verdict}");
    }
}

#[test]
fn a_file_outside_of_the_include_roots_is_not_read_even_if_the_textual_check_missed_it() {
    let _shared = shared();
    let (gcc, directory) = gcc();
    let secret = directory.path().join("secret.h");
    fs::write(&secret, "token_of_the_secret + 1;\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    let files = [
        secret.to_str().unwrap(),
        "/etc/passwd",
        "/proc/self/environ",
        "/proc/self/maps",
        "/dev/zero",
    ];
    for file in files {
        for code in [
            format!("#include \"{file}\"\nint x;\n"),
            format!("#if __has_include(\"{file}\")\nint x;\n#else\n#error absent\n#endif\n"),
            format!("#pragma GCC dependency \"{file}\"\n#line 1 \"{file}\"\nint x\n"),
        ] {
            let verdict = gcc.compile(&[code.as_bytes()], false, &running());
            let text = verdict.to_string();
            assert!(!text.contains("token_of") && !text.contains("root"), "{code}: {text}");
            if gcc.mode().restricts_files() {
                let includes = code.starts_with("#include");
                let denied = Inconclusive::Refused("the sandbox denied a file".into());
                let failed = !includes && matches!(verdict, Verdict::Fail { .. });
                assert!(failed || verdict == denied.into(), "{code}: {text}");
            }
        }
    }
    // A file within an include root is read, so the denial above is not of all includes.
    assert_eq!(
        gcc.compile(&[b"#include \"/usr/include/stdio.h\"\n"], false, &running()),
        Verdict::Pass
    );
}

#[test]
fn where_files_are_not_restricted_no_verdict_quotes_the_compiler() {
    let _shared = shared();
    let (gcc, directory) = gcc();
    let mode = SandboxMode { landlock: None, ..gcc.mode() };
    let unrestricted = Sandbox::with_mode(mode, limits(120_000), directory.path());
    let secret = directory.path().join("secret.h");
    fs::write(&secret, "token_of_the_secret + 1;\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    let code = format!("#include \"{}\"\n", secret.display());
    let arguments = ["-x", "c++", "-fsyntax-only", "-"].map(Into::into);
    let run = unrestricted.run(gcc.program(), &arguments, &[code.as_bytes()], &running()).unwrap();
    assert!(String::from_utf8_lossy(&run.output).contains("token_of"), "the file was read");
    let verdict = classify::verdict(&run, false, mode.restricts_files());
    assert_eq!(verdict, Verdict::Fail { error: "in a header".into() });
}

#[test]
fn work_without_end_is_inconclusive_and_bounded() {
    let _shared = shared();
    let directory = open_directory();
    let limits = SandboxLimits { cpu_seconds: 2, ..limits(120_000) };
    let gcc = Compiler::open(&CompileCheckOptions { limits, ..options(directory.path()) }).unwrap();
    for (code, expected) in [
        (
            "template<int N> struct A { static const int v = A<N + 1>::v; }; int x = A<0>::v;",
            &[Inconclusive::TooDeep][..],
        ),
        (
            "constexpr long f() { long s = 0; for (long i = 0; i < 1000000000000; ++i) s += i; return s; }\n\
             constexpr long x = f();",
            // 33 million operations: a slow machine needs more than the limit of CPU time for them.
            &[Inconclusive::TooDeep, Inconclusive::TimedOut],
        ),
        (
            "constexpr int f(int n) { return n ? f(n + 1) : 0; } constexpr int x = f(1);",
            &[Inconclusive::TooDeep],
        ),
        (
            // 2^60 types.
            "template<int N, class T> struct A : A<N - 1, A<N, T>>, A<N - 1, T*> {};\n\
             template<class T> struct A<0, T> {}; A<60, int> a;",
            &[Inconclusive::TimedOut, Inconclusive::OutOfMemory],
        ),
        (
            // Five gigabytes of macros.
            "#define A(x) x x x x x x x x x x\n#define B(x) A(A(A(x)))\nint a = B(B(B(1 +))) 1;",
            &[Inconclusive::TimedOut, Inconclusive::OutOfMemory],
        ),
    ] {
        let verdict = gcc.check(&fenced(&format!("#include <cstddef>\n{code}")), &running());
        assert!(expected.contains(why(&verdict)), "{code}: {verdict}");
    }
}

#[test]
fn a_large_source_is_refused_by_its_size_and_reaches_the_compiler_whole_below_it() {
    let _shared = shared();
    let (gcc, _directory) = gcc();
    let large = format!("#include <vector>\n//{}\nint x;", "x".repeat(10 << 20));
    assert_eq!(*why(&gcc.check(&fenced(&large), &running())), Inconclusive::TooLarge);
    // More than any pipe holds, with the error at its end.
    let large = format!("//{}\nint x", "x".repeat(10 << 20));
    let Verdict::Fail { error } = gcc.compile(&[large.as_bytes()], false, &running()) else {
        panic!()
    };
    assert!(error.starts_with("line 2: "), "{error}");
}

#[test]
fn a_long_message_is_shortened() {
    let _shared = shared();
    let (gcc, _directory) = gcc();
    let code = format!("#include <vector>\n#error {}\n", "x".repeat(500_000));
    let Verdict::Fail { error } = gcc.check(&fenced(&code), &running()) else { panic!() };
    assert!(error.starts_with("line 2: #error xxx") && error.len() < 256, "{error}");
}

#[test]
fn a_compiler_that_hangs_is_killed_with_its_children() {
    let _shared = shared();
    let mark = "98765.25";
    let body = format!(
        "trap '' TERM HUP INT\nsleep {mark} &\n(sleep {mark} & sleep {mark}) &\nsetsid sleep {mark} &\nsleep {mark}"
    );
    let (program, _directory) = script("/bin/sh", &body);
    for mode in modes(&program) {
        let stop = running();
        let run = std::thread::scope(|scope| {
            let run = scope.spawn(|| run_until(&program, mode, limits(120_000), &stop).0);
            // The one in a session of its own is not there where the filter denies it.
            wait_for(mark, 4);
            stop.store(true, Ordering::Release);
            run.join().unwrap()
        });
        assert_eq!((run.end, processes(mark)), (End::Stopped, 0), "{mode}");
    }
}

#[test]
fn a_run_ends_at_its_deadline() {
    let _shared = shared();
    let mark = "98765.125";
    let (program, _directory) = script("/bin/sh", &format!("sleep {mark}"));
    for mode in modes(&program) {
        let (run, _) = run(&program, mode, limits(300));
        assert_eq!((run.end, processes(mark)), (End::TimedOut, 0), "{mode}");
    }
}

#[test]
fn children_that_outlive_a_compiler_are_killed_and_reaped() {
    let _shared = shared();
    let mark = "98765.5";
    let (program, _directory) = script("/bin/sh", &format!("sleep {mark} &\nexit 3"));
    for mode in modes(&program) {
        let (run, _) = run(&program, mode, limits(120_000));
        assert_eq!(run.end, End::Exited(3), "{mode}");
        assert_eq!((processes(mark), children("sleep")), (0, 0), "{mode}");
    }
}

#[test]
fn large_output_blocks_no_compiler_and_is_kept_up_to_a_limit() {
    let _shared = shared();
    let (program, _directory) = script("/bin/sh", "yes | head -c 5000000\nexit 3");
    let mode = modes(&program)[0];
    let (run, _) = run(&program, mode, limits(120_000));
    assert_eq!((run.end, run.output.len()), (End::Exited(3), 64 << 10));
}

#[test]
fn a_compiler_that_forks_without_end_reaches_the_limit_of_processes() {
    let _alone = PROCESSES.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mark = "98765.75";
    let body = format!(
        "i=0\nwhile [ $i -lt 200 ]; do\n  sleep {mark} &\n  i=$((i + 1))\ndone\necho all of them"
    );
    let (program, _directory) = script("/bin/sh", &body);
    for mode in modes(&program) {
        // Without a user of its own, the run is bounded by its deadline only.
        let bounded = mode.namespaces || mode.user == RunsAs::Unprivileged;
        let output = run(&program, mode, limits(120_000)).0.output;
        let all = String::from_utf8_lossy(&output).contains("all of them");
        assert_eq!(all, !bounded, "{mode}: {}", String::from_utf8_lossy(&output));
        assert_eq!(processes(mark), 0, "{mode}: {}", String::from_utf8_lossy(&output));
    }
}

#[test]
fn a_compiler_sees_an_empty_directory_no_variables_and_no_descriptors() {
    let _shared = shared();
    let body = "env | sort | sed 's/^/E /'\necho \"D $(ls -A | wc -l)\"\n(echo x > file) 2>/dev/null && echo W made\n\
        for i in 3 4 5 6 7 8 9; do (eval \"true <&$i\") 2>/dev/null && echo \"F $i\"; done\n\
        echo \"L $(ulimit -t) $(ulimit -v) $(ulimit -f) $(ulimit -c) $(ulimit -n)\"\n[ $(id -u) = 0 ] && echo ROOT";
    let (program, _directory) = script("/bin/sh", body);
    let strongest = modes(&program)[0];
    let (run, mode) = run(&program, strongest, limits(120_000));
    let output = String::from_utf8_lossy(&run.output);
    let lines = |mark: &str| -> Vec<&str> {
        output.lines().filter_map(|line| line.strip_prefix(mark)).collect()
    };
    let known = ["PATH=", "LC_ALL=C", "PWD=", "OLDPWD=", "SHLVL=", "_="];
    assert!(
        lines("E ").iter().all(|line| known.iter().any(|name| line.starts_with(name))),
        "{output}"
    );
    assert_eq!(lines("D "), ["0"], "{output}");
    assert!(lines("F ").is_empty(), "{output}");
    assert_eq!(lines("ROOT").is_empty(), mode.user != RunsAs::Root, "{output}");
    assert_eq!(lines("L "), ["5 524288 0 0 64"], "{output}");
    if mode.restricts_files() {
        // Landlock also denies the making of an empty file, which no limit does.
        assert!(lines("W ").is_empty(), "{output}");
    }
}

#[test]
fn a_compiler_reaches_no_network() {
    let _shared = shared();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let body = format!(
        "(exec 3<>/dev/tcp/127.0.0.1/{port}) && echo CONNECTED\n(exec 3<>/dev/udp/127.0.0.1/{port} && echo x >&3) && echo SENT\necho done"
    );
    let (program, _directory) = script("/bin/bash", &body);
    for mode in modes(&program) {
        let (run, _) = run(&program, mode, limits(120_000));
        let output = String::from_utf8_lossy(&run.output).into_owned();
        assert!(
            output.contains("done") && !output.contains("CONNECTED") && !output.contains("SENT"),
            "{mode}: {output}"
        );
        assert!(listener.accept().is_err(), "{mode}");
    }
}

#[test]
fn a_program_that_is_no_working_compiler_is_an_error_that_says_so() {
    let _shared = shared();
    let directory = open_directory();
    let new = |compiler: &str| {
        let options =
            CompileCheckOptions { compiler: compiler.into(), ..options(directory.path()) };
        CompileChecker::new(&options).unwrap_err()
    };
    assert!(matches!(new("no-such-compiler"), CompileCheckError::NotFound(_)));
    assert!(matches!(new("/no/such/compiler"), CompileCheckError::NotFound(_)));
    assert!(matches!(new("false"), CompileCheckError::NotACompiler { .. }));
    assert!(matches!(new("true"), CompileCheckError::SelfTest { .. }));
    let missing =
        CompileCheckOptions { directory: "/no/such/directory".into(), ..options(directory.path()) };
    let error = CompileChecker::new(&missing).unwrap_err().to_string();
    assert!(error.contains("/no/such/directory") && error.contains("TMPDIR"), "{error}");
}

/// Sends verdicts into a channel.
fn job(response: &str, to: &mpsc::Sender<Verdict>) -> CompileJob {
    let to = to.clone();
    CompileJob {
        response: response.to_owned(),
        done: Box::new(move |verdict| to.send(verdict).unwrap()),
    }
}

#[test]
fn the_checker_counts_verdicts_and_drops_jobs_that_do_not_fit_its_queue() {
    let _shared = shared();
    let (gcc, directory) = gcc();
    let options = CompileCheckOptions {
        max_queued_jobs: 3,
        max_queued_bytes: 200,
        ..options(directory.path())
    };
    let checker = CompileChecker::with(gcc, &options).unwrap();
    // The only worker waits in this job's callback.
    let ((begun, is_begun), (go, may_go)) = (mpsc::channel(), mpsc::channel::<()>());
    let done = Box::new(move |verdict| {
        begun.send(verdict).unwrap();
        let _ = may_go.recv();
        panic!("a receiver that panics stops no other check");
    });
    assert!(checker.submit(CompileJob { response: "no code".into(), done }));
    assert_eq!(is_begun.recv().unwrap(), Verdict::NoCode);

    let (send, verdicts) = mpsc::channel();
    assert!(!checker.submit(job(&"x".repeat(201), &send)), "too many bytes");
    assert!(checker.submit(job(&fenced("int x;"), &send)));
    assert!(checker.submit(job(&fenced("int x"), &send)));
    assert!(checker.submit(job("```cpp\nint x;", &send)));
    assert!(!checker.submit(job("", &send)), "too many jobs");
    drop(go);
    let first: Vec<Verdict> = verdicts.iter().take(3).collect();
    assert_eq!(first[0], Verdict::Pass);
    assert!(matches!(first[1], Verdict::Fail { .. }));
    assert_eq!(first[2], Inconclusive::Truncated.into());
    let counts =
        CompileCounts { checked: 4, passed: 1, failed: 1, no_code: 1, inconclusive: 1, dropped: 2 };
    assert_eq!(checker.counts(), counts);
    assert!(checker.submit(job("", &send)), "the queue has room again");
}

#[test]
fn a_checker_that_is_dropped_leaves_no_process_and_no_directory() {
    let _shared = shared();
    let mark = "98766.25";
    let directory = open_directory();
    let hang = directory.path().join("hang");
    let wrapper = directory.path().join("g++");
    // Reads the code first, so that it hangs in the middle of a check.
    let text =
        format!("#!/bin/sh\n[ -e {} ] && sleep {mark}\nexec /usr/bin/g++ \"$@\"\n", hang.display());
    fs::write(&wrapper, text).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let runs = open_directory();
    let options = CompileCheckOptions { compiler: wrapper, workers: 2, ..options(runs.path()) };
    let checker = CompileChecker::new(&options).unwrap();
    fs::write(&hang, "").unwrap();
    let (send, verdicts) = mpsc::channel();
    for _ in 0..3 {
        assert!(checker.submit(job(&fenced("int x;"), &send)));
    }
    wait_for(mark, 2);
    assert_eq!(fs::read_dir(runs.path()).unwrap().count(), 2);
    drop(checker);
    drop(send);
    assert_eq!(processes(mark), 0);
    assert_eq!(fs::read_dir(runs.path()).unwrap().count(), 0);
    let stopped: Vec<Verdict> = verdicts.iter().collect();
    assert_eq!(
        stopped,
        [Inconclusive::Stopped.into(), Inconclusive::Stopped.into()],
        "the third job was dropped"
    );
}

proptest::proptest! {
    #[test]
    fn a_larger_sample_contains_the_smaller_one(digest: [u8; 32], a in 0.0..1.0_f64, b in 0.0..1.0_f64) {
        let (small, large) = if a < b { (a, b) } else { (b, a) };
        proptest::prop_assert!(!sampled(&digest, small) || sampled(&digest, large));
        proptest::prop_assert_eq!(sampled(&digest, a), sampled(&digest, a));
    }
}
