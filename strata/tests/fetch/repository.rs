//! Whole repositories: what is fetched, what is refused, and what a bad connection leaves behind.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use strata::hub::{HubError, ModelSource, fetch, resolve};

use crate::server::{Reply, Server, Site, files_under, options, ranged};

const WEIGHTS: &[u8] = &[7; 300_000];

fn small_model() -> Site {
    Site::new(
        "org/model",
        &[
            ("config.json", b"{}"),
            ("tokenizer.json", b"{\"a\": 1}"),
            ("README.md", b"not wanted"),
            ("model.safetensors", WEIGHTS),
        ],
    )
}

fn hf_dir(source: ModelSource) -> std::path::PathBuf {
    match source {
        ModelSource::HfDir(dir) => dir,
        other => panic!("{other:?}"),
    }
}

/// Half files and whole ones: everything in the blob store.
fn blobs(dir: &Path) -> Vec<String> {
    files_under(&dir.join("hub/models--org--model/blobs"))
}

#[test]
fn a_repository_is_fetched_once_and_then_found_without_a_request_to_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let hub = small_model().serve();
    let o = options(dir.path(), &hub.url);
    let model = hf_dir(resolve("org/model", &o).unwrap());
    assert_eq!(fs::read(model.join("model.safetensors")).unwrap(), WEIGHTS);
    assert_eq!(files_under(&model), ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(blobs(dir.path()).len(), 3);

    let asked = hub.requests().len();
    assert_eq!(hf_dir(resolve("org/model", &o).unwrap()), model);
    let mut offline = o.clone();
    offline.offline = true;
    assert_eq!(hf_dir(resolve("org/model", &offline).unwrap()), model);
    assert_eq!(hub.requests().len(), asked, "a cached model costs no request");

    // `fetch` does ask, and downloads nothing that is there.
    assert_eq!(hf_dir(fetch("org/model", &o).unwrap()), model);
    assert_eq!(hub.count("/resolve/"), 3);
    assert!(matches!(resolve("org/other", &offline), Err(HubError::Offline { .. })));
}

#[test]
fn the_cache_is_laid_out_as_other_tools_expect_it() {
    let dir = tempfile::tempdir().unwrap();
    let site = small_model();
    let commit = site.commit.clone();
    let hub = site.serve();
    resolve("org/model", &options(dir.path(), &hub.url)).unwrap();
    let theirs = hf_hub::Cache::new(dir.path().join("hub")).model("org/model".to_string());
    let found = theirs.get("model.safetensors").expect("hf-hub finds what was fetched");
    assert!(found.ends_with(format!("snapshots/{commit}/model.safetensors")));
    assert_eq!(fs::read(found).unwrap(), WEIGHTS);
}

#[test]
fn shards_are_learnt_from_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let index = json!({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}});
    let index = index.to_string();
    let files: [(&str, &[u8]); 5] = [
        ("config.json", b"{}"),
        ("tokenizer.json", b"{}"),
        ("model.safetensors.index.json", index.as_bytes()),
        ("m-1.safetensors", b"one"),
        ("m-2.safetensors", b"two"),
    ];
    let hub = Site::new("org/model", &files).serve();
    let o = options(dir.path(), &hub.url);
    let model = hf_dir(resolve("org/model", &o).unwrap());
    assert_eq!(fs::read(model.join("m-2.safetensors")).unwrap(), b"two");
    assert_eq!(hub.count("m-1.safetensors"), 1);

    // A snapshot with a shard missing is not taken for the model.
    fs::remove_file(model.join("m-1.safetensors")).unwrap();
    resolve("org/model", &o).unwrap();
    assert!(model.join("m-1.safetensors").exists());
}

#[test]
fn one_gguf_file_is_picked_by_name_or_quantisation() {
    let dir = tempfile::tempdir().unwrap();
    let hub =
        Site::new("org/model", &[("m.Q4_1.gguf", b"GGUF4"), ("m.Q8_0.gguf", b"GGUF8")]).serve();
    let o = options(dir.path(), &hub.url);
    let error = resolve("org/model", &o).unwrap_err();
    assert!(
        matches!(&error, HubError::AmbiguousGguf { files, .. } if files.contains("m.Q8_0.gguf")),
        "{error}"
    );
    let by_quant = resolve("org/model:q4_1", &o).unwrap();
    assert_eq!(fs::read(by_quant.path()).unwrap(), b"GGUF4");
    assert_eq!(resolve("org/model/m.Q4_1.gguf", &o).unwrap(), by_quant);
    assert_eq!(hub.count("/resolve/"), 1, "the second name finds the file of the first");
    assert!(matches!(resolve("org/model:Q5_0", &o), Err(HubError::NoSuchQuant { .. })));
}

#[test]
fn the_token_goes_to_the_hub_and_not_to_the_host_it_redirects_to() {
    let dir = tempfile::tempdir().unwrap();
    let store = Server::start(|request| ranged(request, WEIGHTS));
    // The same machine by another name is another host.
    let elsewhere = store.url.replace("127.0.0.1", "localhost");
    let site = Site { token: Some("hf_secret".into()), ..small_model() };
    let hub = Server::start(move |request| {
        let reply = site.answer(request);
        match request.path.ends_with(".safetensors") && reply.status == 200 {
            true => Reply::status(302).with("location", &format!("{elsewhere}/blob")),
            false => reply,
        }
    });
    let mut o = options(dir.path(), &hub.url);

    let error = resolve("org/model", &o).unwrap_err();
    assert!(matches!(error, HubError::Unauthorized { token_sent: false, .. }), "{error}");
    assert!(error.to_string().contains("HF_TOKEN"), "{error}");
    o.token = Some("hf_other".to_string());
    let error = resolve("org/model", &o).unwrap_err();
    assert!(matches!(error, HubError::Unauthorized { token_sent: true, .. }), "{error}");
    assert!(!error.to_string().contains("hf_other"), "{error}");

    o.token = Some("hf_secret".to_string());
    let model = hf_dir(resolve("org/model", &o).unwrap());
    assert_eq!(fs::read(model.join("model.safetensors")).unwrap(), WEIGHTS);
    assert_eq!(store.requests().len(), 1);
    assert_eq!(store.requests()[0].header("authorization"), None);
}

#[test]
fn each_status_of_the_hub_has_its_own_error() {
    let dir = tempfile::tempdir().unwrap();
    let hub = small_model().serve();
    let o = options(dir.path(), &hub.url);
    let error = resolve("org/unknown", &o).unwrap_err();
    assert!(matches!(error, HubError::RepoNotFound { .. }), "{error}");
    let error = resolve("org/model@v9", &o).unwrap_err();
    assert!(
        matches!(&error, HubError::RevisionNotFound { revision, .. } if revision == "v9"),
        "{error}"
    );
    let error = resolve("org/model/none.gguf", &o).unwrap_err();
    assert!(
        matches!(&error, HubError::FileNotFound { file, .. } if file == "none.gguf"),
        "{error}"
    );

    let gated = Server::start(|_| Reply::status(403).with("x-error-code", "GatedRepo"));
    let error = resolve("org/model", &options(dir.path(), &gated.url)).unwrap_err();
    assert!(matches!(error, HubError::Forbidden { .. }), "{error}");
    assert!(error.to_string().contains("licence"), "{error}");

    let broken = Server::start(|_| Reply::status(503));
    let error = resolve("org/model", &options(dir.path(), &broken.url)).unwrap_err();
    assert!(matches!(error, HubError::Status { status: 503, .. }), "{error}");
    assert_eq!(files_under(dir.path()), [""; 0]);
}

#[test]
fn a_plain_file_server_that_does_not_know_the_query_will_do() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Server::start(|request| match request.path.as_str() {
        "/api/models/org/model/revision/main" => {
            let files = ["config.json", "model.safetensors"].map(|name| json!({"rfilename": name}));
            Reply::body(json!({"sha": "abc", "siblings": files}).to_string())
        }
        "/org/model/resolve/main/config.json" => Reply::body("{}"),
        "/org/model/resolve/main/model.safetensors" => Reply::body(WEIGHTS),
        _ => Reply::status(404),
    });
    let model = hf_dir(resolve("org/model", &options(dir.path(), &hub.url)).unwrap());
    assert_eq!(fs::read(model.join("model.safetensors")).unwrap(), WEIGHTS);
}

#[test]
fn a_broken_connection_is_taken_up_where_it_broke_off() {
    let dir = tempfile::tempdir().unwrap();
    let (site, calls) = (small_model(), AtomicUsize::new(0));
    let hub = Server::start(move |request| {
        let reply = site.answer(request);
        let first =
            request.path.ends_with(".safetensors") && calls.fetch_add(1, Ordering::SeqCst) == 0;
        if first { reply.cut_after(100_000) } else { reply }
    });
    let model = hf_dir(resolve("org/model", &options(dir.path(), &hub.url)).unwrap());
    assert_eq!(fs::read(model.join("model.safetensors")).unwrap(), WEIGHTS);
    let ranges: Vec<_> =
        hub.requests().iter().filter_map(|request| request.range_start()).collect();
    assert_eq!(ranges, [100_000]);
}

#[test]
fn a_server_that_cannot_continue_is_asked_from_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (site, calls) = (small_model(), AtomicUsize::new(0));
    let hub = Server::start(move |request| {
        if !request.path.ends_with(".safetensors") {
            return site.answer(request);
        }
        let whole = Reply::body(WEIGHTS);
        if calls.fetch_add(1, Ordering::SeqCst) == 0 { whole.cut_after(100_000) } else { whole }
    });
    let model = hf_dir(resolve("org/model", &options(dir.path(), &hub.url)).unwrap());
    assert_eq!(fs::read(model.join("model.safetensors")).unwrap(), WEIGHTS);
}

#[test]
fn a_download_that_keeps_breaking_off_leaves_no_half_file_and_the_next_one_works() {
    let dir = tempfile::tempdir().unwrap();
    let site = small_model();
    let bad = {
        let site = site.clone();
        Server::start(move |request| {
            match (request.path.ends_with(".safetensors"), request.range_start()) {
                (true, None) => site.answer(request).cut_after(100_000),
                (true, Some(_)) => site.answer(request).cut_after(0),
                _ => site.answer(request),
            }
        })
    };
    let error = resolve("org/model", &options(dir.path(), &bad.url)).unwrap_err();
    assert!(matches!(error, HubError::Interrupted { received: 100_000, .. }), "{error}");
    assert_eq!(blobs(dir.path()).len(), 2, "only what is whole: {:?}", blobs(dir.path()));

    let good = site.serve();
    let model = hf_dir(resolve("org/model", &options(dir.path(), &good.url)).unwrap());
    assert_eq!(fs::read(model.join("model.safetensors")).unwrap(), WEIGHTS);
    assert_eq!(good.count("/resolve/"), 1, "what was whole is not fetched again");
}

#[test]
fn a_server_that_starts_over_and_breaks_off_anywhere_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let (site, calls) = (small_model(), AtomicUsize::new(0));
    let hub = Server::start(move |request| {
        if !request.path.ends_with(".safetensors") {
            return site.answer(request);
        }
        let cut = [100_000, 200_000][calls.fetch_add(1, Ordering::SeqCst) % 2];
        Reply::body(WEIGHTS).cut_after(cut)
    });
    let error = resolve("org/model", &options(dir.path(), &hub.url)).unwrap_err();
    assert!(matches!(error, HubError::Interrupted { .. }), "{error}");
    assert!(hub.count(".safetensors") < 10);
}

#[test]
fn bytes_that_do_not_have_the_listed_hash_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let site = small_model();
    let hub = Server::start(move |request| match request.path.ends_with(".safetensors") {
        true => Reply::body(vec![8; WEIGHTS.len()]),
        false => site.answer(request),
    });
    let error = resolve("org/model", &options(dir.path(), &hub.url)).unwrap_err();
    assert!(matches!(error, HubError::WrongHash { .. }), "{error}");
    assert_eq!(blobs(dir.path()).len(), 2);
}

#[test]
fn a_server_that_never_stops_does_not_fill_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let site = small_model();
    let hub = Server::start(move |request| match request.path.ends_with(".safetensors") {
        true => Reply::body(vec![7; 40_000_000]),
        false => site.answer(request),
    });
    let error = resolve("org/model", &options(dir.path(), &hub.url)).unwrap_err();
    let HubError::WrongSize { expected: 300_000, got, .. } = error else { panic!("{error}") };
    assert!(got < 2_000_000, "stopped after {got} bytes");
}

#[test]
fn a_hostile_listing_cannot_write_outside_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    for sha in ["../../..", "", "/etc", "a/b"] {
        let hub = Server::start(move |_| {
            let files = ["config.json", "model.safetensors"]
                .map(|name| json!({"rfilename": name, "blobId": "../x"}));
            Reply::body(json!({"sha": sha, "siblings": files}).to_string())
        });
        let error = resolve("org/model", &options(dir.path(), &hub.url)).unwrap_err();
        assert!(matches!(error, HubError::MalformedResponse { .. }), "{sha}: {error}");
    }
    let index = json!({"weight_map": {"a": "../../../evil"}}).to_string();
    let files: [(&str, &[u8]); 2] =
        [("config.json", b"{}"), ("model.safetensors.index.json", index.as_bytes())];
    let hub = Site::new("org/model", &files).serve();
    let error = resolve("org/model", &options(dir.path(), &hub.url)).unwrap_err();
    assert!(matches!(error, HubError::MalformedResponse { .. }), "{error}");
    let garbage = Server::start(|_| Reply::body("<html>welcome</html>"));
    let error = resolve("org/model", &options(dir.path(), &garbage.url)).unwrap_err();
    assert!(matches!(error, HubError::MalformedResponse { .. }), "{error}");
}

#[test]
fn a_hub_that_is_missing_or_never_responds_times_out_soon() {
    let dir = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed_url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    for url in [&silent_url, &closed_url, "http://no-such-host.invalid", "not an address"] {
        let mut o = options(dir.path(), url);
        o.connect_timeout = Duration::from_secs(2);
        o.read_timeout = Duration::from_millis(300);
        let start = Instant::now();
        let error = resolve("org/model", &o).unwrap_err();
        assert!(matches!(error, HubError::Unreachable { .. }), "{url}: {error}");
        assert!(start.elapsed() < Duration::from_secs(5), "{url} took {:?}", start.elapsed());
    }
}
