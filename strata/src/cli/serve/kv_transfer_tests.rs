use super::*;
use crate::cli::serve::layers::{command, given};

const LMCACHE: &str = r#"{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}"#;

/// Tiers, policy and warnings of a command line and an environment.
fn with(words: &[&str], environment: &[(&str, &str)]) -> Result<(String, Vec<String>), String> {
    let line = given(&command().try_get_matches_from(words).unwrap());
    let mut layers = Layers::new(line, |_| None).unwrap();
    let variables = environment.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    let warnings = add_layer(&mut layers, variables).map_err(|why| why.to_string())?;
    let flags = layers.flags().map_err(|why| why.to_string())?;
    let own = &flags.kv.tiers;
    let mut shown = format!("{:?} chunk {}", flags.scheduler.limits.policy, own.kv_tier_chunk);
    if let Some(bytes) = own.kv_tier_dram {
        shown += &format!(" dram {}", bytes.0 >> 20);
    }
    if let Some(dir) = &own.kv_tier_disk {
        shown += &format!(" disk {} {}", dir.display(), own.kv_tier_disk_size.0 >> 20);
    }
    if let Some(redis) = own.kv_tier_redis {
        shown += &format!(" redis {redis}");
    }
    Ok((shown, warnings))
}

fn lmcache(environment: &[(&str, &str)]) -> Result<(String, Vec<String>), String> {
    with(&["--kv-transfer-config", LMCACHE], environment)
}

#[test]
fn lmcaches_settings_are_flags_of_tiers() {
    for (environment, want) in [
        (&[][..], "LmCache chunk 256 dram 5120"),
        (
            &[("LMCACHE_CHUNK_SIZE", "64"), ("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.5")],
            "LmCache chunk 64 dram 512",
        ),
        (
            &[
                ("LMCACHE_LOCAL_CPU", "False"),
                ("LMCACHE_LOCAL_DISK", "file:///var/kv/"),
                ("LMCACHE_MAX_LOCAL_DISK_SIZE", "20"),
            ],
            "LmCache chunk 256 disk /var/kv 20480",
        ),
        (
            &[("LMCACHE_LOCAL_CPU", "true"), ("LMCACHE_REMOTE_URL", "redis://127.0.0.1:6379")],
            "LmCache chunk 256 dram 5120 redis 127.0.0.1:6379",
        ),
        (
            &[
                ("LMCACHE_REMOTE_SERDE", "naive"),
                ("LMCACHE_CACHE_POLICY", "LRU"),
                ("LMCACHE_LOCAL_CPU", ""),
            ],
            "LmCache chunk 256 dram 5120",
        ),
    ] {
        assert_eq!(lmcache(environment), Ok((want.to_owned(), Vec::new())), "{environment:?}");
    }
    let json = r#"{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "kv_rank": null,
        "kv_connector_extra_config": {"lmcache.chunk_size": 32, "lmcache.local_cpu": false,
        "lmcache.remote_url": "redis://127.0.0.1:1"}}"#;
    let (shown, warnings) = with(&["--kv-transfer-config", json], &[]).unwrap();
    assert_eq!((&*shown, warnings.len()), ("LmCache chunk 32 redis 127.0.0.1:1", 0));
}

#[test]
fn a_file_of_lmcache_is_read() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "# LMCache\nchunk_size: 128\nlocal_cpu: False # none\nmax_local_disk_size: 2.5\n\
                local_disk: \"file:///kv#1/\"\nremote_url: null\n";
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap();
    let (shown, warnings) = lmcache(&[("LMCACHE_CONFIG_FILE", path)]).unwrap();
    assert_eq!((&*shown, warnings.len()), ("LmCache chunk 128 disk /kv#1 2560", 0));
    let both = lmcache(&[("LMCACHE_CONFIG_FILE", path), ("LMCACHE_CHUNK_SIZE", "1")]).unwrap_err();
    assert!(both.contains("LMCACHE_CHUNK_SIZE") && both.contains("unset one"), "{both}");
    for (line, why) in [
        ("extra_config:", "line 1: each line must be `name: value`"),
        ("  chunk_size: 1", "line 1"),
        ("chunk_size", "line 1"),
        ("nixl_backends: [\"UCX\"]", "line 1"),
        ("local_disk: \"open", "line 1"),
        ("chunk_size: many", "invalid"),
        ("surprise: 1", "surprise=1: this setting of LMCache has no counterpart here"),
        ("remote_url: \"lm://a:1\"", "lm://"),
    ] {
        std::fs::write(file.path(), line).unwrap();
        let refused = lmcache(&[("LMCACHE_CONFIG_FILE", path)]).unwrap_err();
        assert!(refused.contains(why) && refused.contains(path), "{line}: {refused}");
    }
    let missing = lmcache(&[("LMCACHE_CONFIG_FILE", "/nowhere.yaml")]).unwrap_err();
    assert!(missing.contains("/nowhere.yaml"), "{missing}");
}

#[test]
fn what_has_no_counterpart_is_refused_by_name_with_what_to_do() {
    for (name, value, why) in [
        ("LMCACHE_REMOTE_URL", "lm://host:65432", "LMCache's own server (lm://) is not supported"),
        ("LMCACHE_REMOTE_URL", "rediss://host:1", "TLS is not supported"),
        ("LMCACHE_REMOTE_URL", "redis://a:b@host:1", "a password is not supported"),
        ("LMCACHE_REMOTE_URL", "redis://h:1,h:2", "use one server"),
        ("LMCACHE_REMOTE_URL", "mooncakestore://host:1", "use redis://host:port"),
        ("LMCACHE_REMOTE_URL", "127.0.0.1:1", "use redis://host:port"),
        ("LMCACHE_REMOTE_SERDE", "cachegen", "compressed with loss is not supported"),
        (
            "LMCACHE_SAVE_UNFULL_CHUNK",
            "True",
            "chunks that are not full is not supported: unset it, or use false",
        ),
        ("LMCACHE_ENABLE_PD", "true", "different servers is not supported"),
        ("LMCACHE_ENABLE_P2P", "true", "use --kv-tier-redis"),
        ("LMCACHE_GDS_PATH", "/x", "has no counterpart here: unset it"),
        ("LMCACHE_LOCAL_CPU", "maybe", "use true or false"),
        ("LMCACHE_MAX_LOCAL_CPU_SIZE", "lots", "use a number of GB"),
        ("LMCACHE_MAX_LOCAL_CPU_SIZE", "-1", "use a number of GB"),
        ("LMCACHE_LOCAL_DISK", "/a", "set it, or --kv-tier-disk-size"),
        ("LMCACHE_LOCAL_DISK", "/a,/b", "use one directory"),
        ("LMCACHE_CHUNK_SIZE", "0", "LMCACHE_CHUNK_SIZE: "),
    ] {
        let refused = lmcache(&[(name, value)]).unwrap_err();
        assert!(refused.contains(name) && refused.contains(why), "{name}={value}: {refused}");
    }
    let none = lmcache(&[("LMCACHE_LOCAL_CPU", "false")]).unwrap_err();
    assert!(none.contains("no memory is left"), "{none}");
}

#[test]
fn nothing_is_ignored_silently() {
    for (name, value, why) in [
        ("LMCACHE_USE_LAYERWISE", "true", "with all layers"),
        ("LMCACHE_SAVE_DECODE_CACHE", "false", "chunks of outputs are stored"),
        ("LMCACHE_LOG_LEVEL", "DEBUG", "use RUST_LOG"),
        ("LMCACHE_MAX_LOCAL_DISK_SIZE", "3", "local_disk is not set"),
    ] {
        let (_, warnings) = lmcache(&[(name, value)]).unwrap();
        assert_eq!(warnings.len(), 1, "{name}");
        assert!(warnings[0].starts_with(&format!("{name} has no effect: ")), "{warnings:?}");
        assert!(warnings[0].contains(why), "{warnings:?}");
    }
    let (shown, warnings) = lmcache(&[
        ("LMCACHE_LOCAL_CPU", "false"),
        ("LMCACHE_MAX_LOCAL_CPU_SIZE", "5"),
        ("LMCACHE_REMOTE_URL", "redis://127.0.0.1:1/"),
    ])
    .unwrap();
    assert_eq!(shown, "LmCache chunk 256 redis 127.0.0.1:1");
    assert_eq!(warnings, ["LMCACHE_MAX_LOCAL_CPU_SIZE has no effect: local_cpu is false"]);
    // Without the connector, LMCache would not be there.
    let variables = [("LMCACHE_CHUNK_SIZE", "64"), ("LMCACHE_SURPRISE", "1"), ("PATH", "/bin")];
    let (shown, warnings) = with(&[], &variables).unwrap();
    assert_eq!((&*shown, warnings.len()), ("Fcfs chunk 256", 2));
    assert!(warnings[0].starts_with("LMCACHE_CHUNK_SIZE has no effect without"), "{warnings:?}");
    assert!(warnings[0].ends_with("use --kv-tier-chunk"), "{warnings:?}");
}

#[test]
fn the_servers_own_flags_win_over_variables_and_contradict_the_json() {
    let words =
        ["--kv-transfer-config", LMCACHE, "--kv-tier-chunk", "32", "--kv-tier-dram", "1GiB"];
    let (shown, warnings) = with(&words, &[("LMCACHE_CHUNK_SIZE", "64")]).unwrap();
    assert_eq!(shown, "LmCache chunk 32 dram 1024");
    assert_eq!(
        warnings,
        ["LMCACHE_CHUNK_SIZE has no effect: --kv-tier-chunk (command line) overrides it"]
    );
    let json = r#"{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both",
        "kv_connector_extra_config": {"lmcache.chunk_size": 64}}"#;
    let twice = with(&["--kv-transfer-config", json, "--kv-tier-chunk", "64"], &[]).unwrap_err();
    assert!(twice.contains("lmcache.chunk_size") && twice.contains("--kv-tier-chunk"), "{twice}");
    let twice = with(&["--kv-transfer-config", json], &[("LMCACHE_CHUNK_SIZE", "64")]).unwrap_err();
    assert!(twice.contains("LMCACHE_CHUNK_SIZE set the same"), "{twice}");
    let policy = |policy| with(&["--kv-transfer-config", LMCACHE, "--policy", policy], &[]);
    assert_eq!(policy("adaptive").unwrap().0, "Adaptive chunk 256 dram 5120");
    assert_eq!(policy("fcfs").unwrap().0, "Fcfs chunk 256 dram 5120");
}

#[test]
fn vllms_own_offloading_is_a_tier_in_the_hosts_memory() {
    let json = |extra: &str| {
        format!(
            r#"{{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {extra}}}"#
        )
    };
    let run =
        |extra: &str| with(&["--kv-transfer-config", &json(extra)], &[("LMCACHE_CHUNK_SIZE", "8")]);
    let (shown, warnings) = run(r#"{"cpu_bytes_to_use": 1073741824, "block_size": 64}"#).unwrap();
    assert_eq!(shown, "LmCache chunk 64 dram 1024");
    assert!(
        warnings.len() == 1 && warnings[0].starts_with("LMCACHE_CHUNK_SIZE has no effect without")
    );
    assert_eq!(
        run(r#"{"cpu_bytes_to_use": 1e9, "spec_name": "CPUOffloadingSpec"}"#).unwrap().0,
        "LmCache chunk 256 dram 953"
    );
    for (extra, why) in [
        ("{}", "`kv_connector_extra_config.cpu_bytes_to_use` is missing"),
        (r#"{"cpu_bytes_to_use": "4GB"}"#, "must be a number of bytes"),
        (r#"{"num_cpu_blocks": 100}"#, "give the memory in bytes"),
        (r#"{"cpu_bytes_to_use": 1, "spec_name": "TieringOffloadingSpec"}"#, "--kv-tier-disk"),
        (r#"{"cpu_bytes_to_use": 1, "eviction_policy": "arc"}"#, "use lru"),
        (r#"{"cpu_bytes_to_use": 1, "surprise": 1}"#, "kv_connector_extra_config.surprise"),
        (r#"{"cpu_bytes_to_use": 1, "block_size": 2.5}"#, "--kv-transfer-config: "),
    ] {
        let refused = run(extra).unwrap_err();
        assert!(
            refused.contains(why) && refused.contains("--kv-transfer-config"),
            "{extra}: {refused}"
        );
    }
}

#[test]
fn json_that_is_no_connector_of_tiers_is_refused() {
    for (json, why) in [
        ("kv_both", "use an object, such as"),
        ("[]", "use an object"),
        ("{}", "`kv_connector` is missing"),
        (r#"{"kv_connector": "LMCacheConnectorV1"}"#, "`kv_role` is missing"),
        (r#"{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_producer"}"#, "use kv_both"),
        (
            r#"{"kv_connector": "NixlConnector", "kv_role": "kv_both"}"#,
            "`kv_connector` \"NixlConnector\" is not supported",
        ),
        (
            r#"{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "kv_rank": 0}"#,
            "`kv_rank` is for connectors between servers",
        ),
        (
            r#"{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "surprise": 0}"#,
            "`surprise` has no counterpart",
        ),
        (
            r#"{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "kv_load_failure_policy": "fail"}"#,
            "use recompute",
        ),
        (
            r#"{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "kv_connector_extra_config": {"x": 1}}"#,
            "`kv_connector_extra_config.x` has no counterpart",
        ),
    ] {
        let refused = with(&["--kv-transfer-config", json], &[]).unwrap_err();
        assert!(refused.contains(why), "{json}: {refused}");
    }
    let (_, warnings) = with(
        &[
            "--kv-transfer-config",
            r#"{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "engine_id": "a", "kv_load_failure_policy": "recompute"}"#,
        ],
        &[],
    )
    .unwrap();
    assert!(
        warnings.len() == 1 && warnings[0].contains("`engine_id` has no effect"),
        "{warnings:?}"
    );
}
