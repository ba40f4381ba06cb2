//! One file known by its hash: which source is asked when, and what is believed.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use strata::hub::{HubError, Options, Pinned, SMOLLM2};

use crate::server::{Reply, Server, Site, files_under, options, sha256};

/// A stand-in for the default model: 64 KiB with a known hash.
const BYTES: &[u8] = &[0x2a; 65_536];

fn pinned(sha256: &str) -> Pinned<'_> {
    Pinned {
        file: "tiny.gguf",
        size: BYTES.len() as u64,
        sha256,
        repo: "org/tiny-GGUF",
        wheel: "tiny==1.0",
        wheel_size: 1000,
        wheel_sha256: "the-hash-of-the-wheel",
        wheel_member: "tiny/tiny.gguf",
    }
}

fn hub() -> Server {
    Site::new("org/tiny-GGUF", &[("tiny.gguf", BYTES)]).serve()
}

/// An address without a server.
const NOBODY: &str = "http://127.0.0.1:9";

fn cached(o: &Options) -> std::path::PathBuf {
    o.cache_dir().unwrap().join("tiny.gguf")
}

#[test]
fn the_default_model_is_named_by_length_and_hash() {
    assert_eq!(SMOLLM2.size, 98_362_432);
    assert_eq!(SMOLLM2.sha256, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53");
    let hash = SMOLLM2.wheel_sha256;
    assert!(hash.len() == 64 && hash.bytes().all(|c| c.is_ascii_hexdigit()), "{hash}");
}

#[test]
fn it_is_fetched_once_and_then_used_without_any_request() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, sha) = (hub(), sha256(BYTES));
    let o = options(dir.path(), &hub.url);
    let path = pinned(&sha).locate(&o).unwrap();
    assert_eq!(path, cached(&o));
    assert_eq!(fs::read(&path).unwrap(), BYTES);
    assert_eq!(files_under(o.cache_dir().unwrap()), ["tiny.gguf"]);
    assert_eq!(pinned(&sha).locate(&o).unwrap(), path);
    assert_eq!(
        pinned(&sha).locate(&options(dir.path(), NOBODY)).unwrap(),
        path,
        "offline is no hindrance"
    );
    assert_eq!(hub.requests().len(), 1);
}

#[test]
fn two_at_the_same_time_fetch_it_once() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::new("org/tiny-GGUF", &[("tiny.gguf", BYTES)]);
    let hub = Server::start(move |request| {
        thread::sleep(Duration::from_millis(100));
        site.answer(request)
    });
    let (o, sha) = (Arc::new(options(dir.path(), &hub.url)), Arc::new(sha256(BYTES)));
    let fetches: Vec<_> = (0..4)
        .map(|_| {
            let (o, sha) = (o.clone(), sha.clone());
            thread::spawn(move || pinned(&sha).locate(&o).unwrap())
        })
        .collect();
    for fetch in fetches {
        assert_eq!(fs::read(fetch.join().unwrap()).unwrap(), BYTES);
    }
    assert_eq!(hub.requests().len(), 1);
}

#[test]
fn other_bytes_from_the_hub_are_a_stop_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Server::start(|_| Reply::body(vec![0x2b; BYTES.len()]));
    let (o, sha) = (options(dir.path(), &hub.url), sha256(BYTES));
    let error = pinned(&sha).locate(&o).unwrap_err();
    let HubError::WrongHash { expected, got, .. } = &error else { panic!("{error}") };
    assert_eq!((expected, got), (&sha, &sha256(&[0x2b; 65_536])));
    assert!(files_under(o.cache_dir().unwrap()).is_empty());
}

#[test]
fn a_cached_file_that_was_changed_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, sha) = (hub(), sha256(BYTES));
    let o = options(dir.path(), &hub.url);
    pinned(&sha).locate(&o).unwrap();

    let mut changed = BYTES.to_vec();
    changed[1000] ^= 1;
    fs::write(cached(&o), &changed).unwrap();
    let error = pinned(&sha).locate(&o).unwrap_err();
    assert!(matches!(error, HubError::WrongHash { .. }), "{error}");
    assert!(error.to_string().contains("delete"), "{error}");

    fs::write(cached(&o), &BYTES[..100]).unwrap();
    let error = pinned(&sha).locate(&o).unwrap_err();
    assert!(matches!(error, HubError::WrongSize { got: 100, .. }), "{error}");

    // The right bytes put there by hand are as good as fetched ones.
    fs::write(cached(&o), BYTES).unwrap();
    pinned(&sha).locate(&o).unwrap();
    assert_eq!(hub.requests().len(), 1);
}

#[test]
fn a_copy_in_the_shared_hub_cache_is_used_if_it_is_the_right_one() {
    let dir = tempfile::tempdir().unwrap();
    let (o, sha) = (options(dir.path(), NOBODY), sha256(BYTES));
    let snapshots = o.hf_cache().unwrap().join("models--org--tiny-GGUF/snapshots");
    let put = |commit: &str, bytes: &[u8]| {
        fs::create_dir_all(snapshots.join(commit)).unwrap();
        fs::write(snapshots.join(commit).join("tiny.gguf"), bytes).unwrap();
    };
    put("aaaa", &[0; 65_536]);
    put("bbbb", &BYTES[1..]);
    let error = pinned(&sha).locate(&o).unwrap_err();
    assert!(matches!(error, HubError::NoSource { .. }), "wrong copies are passed over: {error}");
    put("cccc", BYTES);
    assert_eq!(pinned(&sha).locate(&o).unwrap(), snapshots.join("cccc/tiny.gguf"));
    assert!(!cached(&o).exists(), "it is not copied");
}

#[test]
fn offline_and_not_here_says_so_without_trying() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub();
    let mut o = options(dir.path(), &hub.url);
    o.offline = true;
    assert!(matches!(pinned(&sha256(BYTES)).locate(&o), Err(HubError::Offline { .. })));
    assert!(hub.requests().is_empty());
}

#[test]
fn with_no_source_the_error_says_why_each_failed_and_where_to_put_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let o = options(dir.path(), NOBODY);
    let error = pinned(&sha256(BYTES)).locate(&o).unwrap_err();
    let HubError::NoSource { hub, pip, .. } = &error else { panic!("{error}") };
    assert!(
        matches!(**hub, HubError::Unreachable { .. }) && matches!(**pip, HubError::Pip { .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains(cached(&o).to_str().unwrap()) && !text.contains('\n'), "{text}");
    assert!(files_under(o.cache_dir().unwrap()).is_empty());
}

/// A shell script that plays python: `-I -m pip download .. --dest DIR ..` runs `download` with `$dest` and
/// `$requirement` set and keeps its arguments in the file `arguments`; `-I -c CODE WHEEL MEMBER` pours out `content`.
#[cfg(unix)]
fn python(dir: &Path, download: &str, content: &[u8]) -> Vec<String> {
    use std::os::unix::fs::PermissionsExt;
    fs::write(dir.join("content"), content).unwrap();
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = -I ] || {{ echo 'ERROR: not isolated' >&2; exit 1; }}\n\
         if [ \"$2\" = -c ]; then test \"$5\" = tiny/tiny.gguf && exec cat {}; exit 1; fi\n\
         echo run >> {}\necho \"$@\" > {}\nwhile [ $# -gt 0 ]; do\n\
         [ \"$1\" = --dest ] && dest=$2; [ \"$1\" = --requirement ] && requirement=$2; shift; done\n{download}\n",
        dir.join("content").display(),
        dir.join("runs").display(),
        dir.join("arguments").display(),
    );
    let path = dir.join("python");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    vec!["no-such-python".to_string(), path.to_str().unwrap().to_string()]
}

#[test]
#[cfg(unix)]
fn without_a_hub_the_file_comes_out_of_the_wheel() {
    let dir = tempfile::tempdir().unwrap();
    let (mut o, sha) = (options(dir.path(), NOBODY), sha256(BYTES));
    o.python = python(dir.path(), "echo zip > $dest/tiny-1.0-py3-none-any.whl", BYTES);
    let path = pinned(&sha).locate(&o).unwrap();
    assert_eq!(fs::read(path).unwrap(), BYTES);
    pinned(&sha).locate(&o).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("runs")).unwrap(), "run\n", "pip ran once");
    assert_eq!(files_under(o.cache_dir().unwrap()), ["tiny.gguf"], "the wheel is gone");
}

#[test]
#[cfg(unix)]
fn pip_is_given_the_hash_of_the_one_wheel_it_may_take() {
    let dir = tempfile::tempdir().unwrap();
    let (mut o, sha) = (options(dir.path(), NOBODY), sha256(BYTES));
    let kept = dir.path().join("kept");
    let download =
        format!("cp $requirement {}; echo zip > $dest/tiny-1.0-py3-none-any.whl", kept.display());
    o.python = python(dir.path(), &download, BYTES);
    pinned(&sha).locate(&o).unwrap();
    assert_eq!(
        fs::read_to_string(kept).unwrap(),
        "tiny==1.0 --hash=sha256:the-hash-of-the-wheel\n"
    );
    let arguments = fs::read_to_string(dir.path().join("arguments")).unwrap();
    let words: Vec<&str> = arguments.split_whitespace().collect();
    assert_eq!(&words[..4], ["-I", "-m", "pip", "download"]);
    for wanted in ["--require-hashes", "--only-binary=:all:", "--no-deps"] {
        assert!(words.contains(&wanted), "{wanted} is not in {arguments}");
    }
    assert!(
        !words.contains(&"tiny==1.0"),
        "only the list with the hash names the wheel: {arguments}"
    );
}

#[test]
#[cfg(unix)]
fn a_hub_that_refuses_is_as_good_as_none() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Server::start(|_| Reply::status(401));
    let mut o = options(dir.path(), &hub.url);
    o.python = python(dir.path(), "echo zip > $dest/tiny-1.0-py3-none-any.whl", BYTES);
    pinned(&sha256(BYTES)).locate(&o).unwrap();
    assert_eq!(hub.requests().len(), 1);
}

#[test]
#[cfg(unix)]
fn each_failure_of_pip_has_its_own_error() {
    let dir = tempfile::tempdir().unwrap();
    let sha = sha256(BYTES);
    let attempt = |download: &str, content: &[u8]| {
        let mut o = options(dir.path(), NOBODY);
        o.python = python(dir.path(), download, content);
        let error = pinned(&sha).locate(&o).unwrap_err();
        assert!(files_under(o.cache_dir().unwrap()).is_empty(), "{error}");
        error
    };
    let wheel = "echo zip > $dest/tiny-1.0-py3-none-any.whl";
    assert!(matches!(attempt(wheel, &[1; 65_536]), HubError::WrongHash { .. }));
    assert!(matches!(attempt(wheel, &BYTES[..10]), HubError::WrongSize { got: 10, .. }));
    let error = attempt("echo 'ERROR: [Errno 28] No space left on device' >&2; exit 1", BYTES);
    assert!(
        matches!(&error, HubError::DiskFull { dir: d, .. } if d == &dir.path().join("strata")),
        "{error}"
    );
    let error = attempt(
        "echo 'WARNING: x' >&2; echo 'ERROR: No matching distribution found' >&2; exit 1",
        BYTES,
    );
    let HubError::NoSource { pip, .. } = &error else { panic!("{error}") };
    assert!(pip.to_string().contains("(No matching distribution found)"), "{pip}");
    let error = attempt("echo 'python: No module named pip' >&2; exit 1", BYTES);
    assert!(error.to_string().contains("no Python with pip was found"), "{error}");
}
