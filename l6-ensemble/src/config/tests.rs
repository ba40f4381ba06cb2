use proptest::prelude::*;

use super::*;

fn errors(text: &str) -> Vec<String> {
    match EnsembleConfig::parse(text) {
        Ok(config) => panic!("accepted: {config:?}"),
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
    }
}

const TWO: &str = r#"
    model = "tiny"
    [[specialist]]
    name = "a"
    [[specialist]]
    name = "b"
"#;

#[test]
fn what_a_file_leaves_out_has_a_default() {
    let config = EnsembleConfig::parse(TWO).unwrap();
    assert_eq!((config.name.as_str(), config.fallback.as_deref()), ("ensemble", None));
    assert_eq!(config.kv_memory, Budget::exact(DEFAULT_KV_MEMORY));
    let [a, b] = config.specialists.as_slice() else { panic!("two specialists") };
    assert_eq!((a.model.as_str(), a.replicas, a.block_size, a.kv_share), ("tiny", 1, 16, 0.5));
    assert_eq!(a.classes, ["a"], "a specialist serves the class of its name");
    assert_eq!(a.policy.to_string(), "strict-priority");
    assert_eq!(b.name, "b");
}

#[test]
fn all_errors_are_reported_at_once_with_their_paths() {
    let errors = errors(
        r#"
        kv_memory = "lots"
        fallback = "nothing"
        colour = 1
        [[specialist]]
        name = "Upper"
        model = "tiny"
        replicas = 0
        block_size = 12
        policy = "random"
        [[specialist]]
        name = "b"
        model = 7
        adapter = "dir"
        max_num_seqs = 8
        max_num_batched_tokens = 4
        fallback = "c"
        decoding_policy = "hot"
        [[specialist]]
        model = "tiny"
        "#,
    );
    for path in [
        "kv_memory",
        "fallback",
        "colour",
        "specialist.Upper.name",
        "specialist.Upper.replicas",
        "specialist.Upper.block_size",
        "specialist.Upper.policy",
        "specialist.b.model",
        "specialist.b.adapter",
        "specialist.b.max_num_seqs",
        "specialist.b.fallback",
        "specialist.b.decoding_policy",
        "specialist[2].name",
    ] {
        let of = |error: &&String| error.starts_with(&format!("`{path}` "));
        assert!(errors.iter().any(|error| of(&error)), "{path} is not among {errors:#?}");
    }
}

#[test]
fn memory_that_is_claimed_twice_is_an_error() {
    let shares = |a: &str, b: &str| {
        EnsembleConfig::parse(&format!(
            "model = \"t\"\n[[specialist]]\nname = \"a\"\n{a}\n[[specialist]]\nname = \"b\"\n{b}"
        ))
    };
    let config = shares("kv_share = 0.75", "").unwrap();
    assert_eq!(config.specialists[1].kv_share, 0.25);
    let all = Budget::exact(4000);
    assert_eq!(config.specialists[0].kv_memory(all), Budget::exact(3000));
    let config = shares("kv_share = 0.75\nreplicas = 3", "").unwrap();
    assert_eq!(config.specialists[0].kv_memory(all), Budget::exact(1000), "of one replica");
    assert!(shares("kv_share = 0.7", "kv_share = 0.3").is_ok());
    for (a, b) in [("kv_share = 0.7", "kv_share = 0.4"), ("kv_share = 1.0", "")] {
        let errors = shares(a, b).unwrap_err().0;
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].what.contains("at most 1"), "{}", errors[0]);
    }
}

#[test]
fn a_cycle_of_fallbacks_is_named() {
    let file = |links: &[(&str, Option<&str>)]| {
        let mut text = "model = \"t\"\n".to_owned();
        for (name, fallback) in links {
            text += &format!("[[specialist]]\nname = \"{name}\"\n");
            text += &fallback.map(|to| format!("fallback = \"{to}\"\n")).unwrap_or_default();
        }
        text
    };
    let chain = [("a", Some("b")), ("b", Some("c")), ("c", None)];
    let config = EnsembleConfig::parse(&file(&chain)).unwrap();
    assert_eq!((config.fallback_of(0), config.fallback_of(2)), (Some(1), None));
    let ring = [("a", Some("b")), ("b", Some("c")), ("c", Some("a")), ("d", Some("a"))];
    let errors = errors(&file(&ring));
    assert_eq!(errors.len(), 3, "one for each specialist of the ring, none for d: {errors:?}");
    assert!(errors[0].contains("a -> b -> c -> a"), "{}", errors[0]);
    assert!(EnsembleConfig::parse(&file(&[("a", Some("a"))])).is_err());
}

#[test]
fn a_class_and_an_intent_belong_to_one_specialist() {
    let text = r#"
        model = "t"
        [[specialist]]
        name = "a"
        classes = ["x", "y"]
        intents = ["debug"]
        [[specialist]]
        name = "b"
        classes = ["y"]
        intents = ["debug"]
    "#;
    let errors = errors(text);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].contains("`y`") && errors[1].contains("`debug`"), "{errors:?}");
    let config =
        EnsembleConfig::parse(&text.replacen("[\"y\"]", "[\"z\"]", 1)).map_err(|e| e.0.len());
    assert_eq!(config.unwrap_err(), 1, "the intent is still claimed twice");
}

#[test]
fn a_file_that_is_no_toml_is_one_error_with_its_line() {
    let errors = errors("[[specialist]\nname=1");
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("line 1"), "{errors:?}");
}

proptest! {
    #[test]
    fn no_file_makes_the_reader_panic(text in "\\PC{0,200}") {
        let _ = EnsembleConfig::parse(&text);
    }

    #[test]
    fn shares_never_exceed_the_memory(
        shares in prop::collection::vec(prop::option::of(1_u32..500), 1..12),
        bytes in 0_u64..1 << 40,
    ) {
        let mut text = "model = \"t\"\n".to_owned();
        for (i, share) in shares.iter().enumerate() {
            text += &format!("[[specialist]]\nname = \"s{i}\"\n");
            if let Some(share) = share {
                text += &format!("kv_share = {}\n", f64::from(*share) / 1000.0);
            }
        }
        let sum: u32 = shares.iter().flatten().sum();
        let without = shares.iter().filter(|share| share.is_none()).count() as u32;
        match EnsembleConfig::parse(&text) {
            Ok(config) => {
                prop_assert!(sum <= 1000);
                let all = Budget::exact(bytes);
                let used: u64 =
                    config.specialists.iter().map(|own| own.kv_memory(all).bytes().0).sum();
                // Each share is rounded down, and a decimal fraction may be rounded up by one part in 10^9.
                prop_assert!(used <= bytes + bytes / 1_000_000_000 + 1);
            }
            // At 1000 a rounding decides.
            Err(_) => prop_assert!(sum + without >= 1000),
        }
    }
}

#[test]
fn a_file_that_is_read_again_may_change_what_no_engine_depends_on() {
    let old = EnsembleConfig::parse(TWO).unwrap();
    let text = r#"
        name = "other"
        model = "tiny"
        fallback = "b"
        [[specialist]]
        name = "b"
        description = "the second"
        system_prompt = "Be brief."
        decoding_policy = "greedy"
        slo = { ttft = "300ms" }
        [[specialist]]
        name = "a"
        fallback = "b"
        classes = ["x"]
        intents = ["debug"]
        [intents.review]
        shadow_below = 0.1
        [router]
        min_score = 0.9
        [breaker]
        min_samples = 5
        [escalation]
        dwell_up = "1s"
        [slo]
        latency_window = "10m"
        [shadow]
        fresh_fraction = 0.1
    "#;
    let new = EnsembleConfig::parse(text).unwrap();
    let reloaded = old.reloaded(new.clone()).unwrap();
    let names: Vec<&str> = reloaded.specialists.iter().map(|own| own.name.as_str()).collect();
    assert_eq!(names, ["a", "b"], "the order by which lanes are numbered");
    assert_eq!(reloaded.fallback_of(0), Some(1));
    assert_eq!((reloaded.name.as_str(), &reloaded.router), ("other", &new.router));
    assert_eq!(reloaded.specialists[1], new.specialists[0]);
}

#[test]
fn names_that_no_header_can_have_are_errors_and_errors_are_bounded() {
    let of = |text: &str| EnsembleConfig::parse(&format!("{text}\n{TWO}")).unwrap_err().to_string();
    assert!(of("name = \"a\\r\\nb\"").contains("no control characters"));
    let intent =
        EnsembleConfig::parse(&format!("{TWO}\n[intents.\"x\\r\\ny\"]\nspill_below = 0.1"));
    let why = intent.unwrap_err().to_string();
    assert!(why.contains("no control characters") && !why.contains('\r'), "{why:?}");
    let many: String = (0..5000).map(|i| format!("field{i} = 1\n")).collect();
    let errors = EnsembleConfig::parse(&format!("{many}{TWO}")).unwrap_err().0;
    assert_eq!(errors.len(), MAX_ERRORS + 1);
    assert_eq!(errors[MAX_ERRORS].to_string(), "and 4900 more errors");
}

#[test]
fn another_order_of_the_specialists_changes_no_memory() {
    let names = ["a", "b", "c", "d"];
    let tables = ["kv_share = 0.1", "kv_share = 0.2", "kv_share = 0.3", ""];
    let table = |i: usize| format!("[[specialist]]\nname = \"{}\"\n{}\n", names[i], tables[i]);
    let parse = |order: [usize; 4]| {
        let text: String = order.into_iter().map(table).collect();
        EnsembleConfig::parse(&format!("model = \"tiny\"\n{text}")).unwrap()
    };
    for order in [[2, 1, 0, 3], [3, 2, 1, 0], [1, 2, 0, 3]] {
        assert!(parse([0, 1, 2, 3]).reloaded(parse(order)).is_ok(), "{order:?}");
    }
}

#[test]
fn every_change_that_needs_other_engines_is_named() {
    let old = EnsembleConfig::parse(TWO).unwrap();
    let paths = |text: &str| -> Vec<String> {
        let changes = old.reloaded(EnsembleConfig::parse(text).unwrap()).unwrap_err().0;
        changes.into_iter().map(|change| change.path).collect()
    };
    let a = |fields: &str| TWO.replace("name = \"a\"", &format!("name = \"a\"\n{fields}"));
    for (fields, field) in [
        ("model = \"other\"", "model"),
        ("replicas = 2", "replicas"),
        ("remotes = [{ url = \"http://a\", model = \"m\" }]", "remotes"),
        ("block_size = 8", "block_size"),
        ("policy = \"fcfs\"", "policy"),
        ("max_num_seqs = 8", "max_num_seqs"),
        ("max_num_batched_tokens = 64", "max_num_batched_tokens"),
        ("max_model_len = 128", "max_model_len"),
        (
            "speculative_config = { method = \"ngram\", num_speculative_tokens = 2 }",
            "speculative_config",
        ),
    ] {
        assert_eq!(paths(&a(fields)), [format!("specialist.a.{field}")]);
    }
    let share = a("kv_share = 0.25");
    assert_eq!(paths(&share), ["specialist.a.kv_share", "specialist.b.kv_share"]);
    assert_eq!(paths(&format!("kv_memory = \"1GiB\"\n{TWO}")), ["kv_memory"]);
    let shadows = format!("{TWO}\n[shadow]\nmax_in_flight = 2");
    assert_eq!(paths(&shadows), ["shadow.max_in_flight"]);
    let renamed = TWO.replace("\"b\"", "\"c\"");
    assert_eq!(paths(&renamed), ["specialist.b", "specialist.c"]);
    let more = a("replicas = 3\nblock_size = 32").replace("\"b\"", "\"c\"");
    assert_eq!(paths(&more).len(), 4, "all at once");
}

fn remotes(remotes: &str) -> Result<EnsembleConfig, ConfigErrors> {
    EnsembleConfig::parse(&format!(
        "[[specialist]]\nname = \"a\"\nmodel = \"tiny\"\n{remotes}\n\
         [[specialist]]\nname = \"b\"\nmodel = \"tiny\""
    ))
}

#[test]
fn a_specialist_without_engines_has_remotes_and_no_memory() {
    let config = remotes(
        "replicas = 0\nremotes = [{ url = \"http://host:8000/v1/\", model = \"m\", api_key_env = \"KEY\" }]",
    );
    let config = config.unwrap();
    let [a, b] = config.specialists.as_slice() else { panic!("{config:?}") };
    let remote = RemoteConfig {
        url: "http://host:8000/v1".into(),
        api: RemoteApi::OpenAi,
        model: "m".into(),
        api_key_env: Some("KEY".into()),
        max_num_seqs: 16,
        timeout_seconds: 120.0,
    };
    assert_eq!((a.replicas, a.remotes.as_slice()), (0, [remote].as_slice()));
    assert_eq!((a.kv_share, b.kv_share), (0.0, 1.0));
    assert_eq!((b.replicas, b.remotes.len()), (1, 0));
    let llama = "remotes = [{ url = \"http://h:8080\", model = \"m\", api = \"llama-server\" }]";
    let llama = remotes(llama).unwrap().specialists[0].remotes[0].api;
    assert_eq!(llama, RemoteApi::LlamaServer);
}

#[test]
fn all_errors_of_remotes_are_reported_at_once() {
    let errors = remotes(
        r#"
        replicas = 0
        kv_share = 0.5
        remotes = [
            { url = "host", model = "m", max_num_seqs = 0, key = "sk-1" },
            { url = "http://a/v1", api_key_env = "sk-1", timeout_seconds = 0, api = "ollama" },
            { url = "http://a/v1/", model = "" },
        ]
        "#,
    )
    .unwrap_err();
    let paths: Vec<&str> = errors.0.iter().map(|error| error.path.as_str()).collect();
    for path in ["[0].url", "[0].max_num_seqs", "[0].key", "[1].api_key_env", "[1].model"] {
        assert!(paths.contains(&&*format!("specialist.a.remotes{path}")), "{path}: {errors}");
    }
    for path in ["[1].timeout_seconds", "[1].api", "[2].model", "[2]"] {
        assert!(paths.contains(&&*format!("specialist.a.remotes{path}")), "{path}: {errors}");
    }
    assert!(paths.contains(&"specialist.a.kv_share"), "{errors}");
    let none = remotes("replicas = 0\nremotes = []").unwrap_err();
    assert_eq!(none.0[0].path, "specialist.a.replicas", "{none}");
}

fn all(text: &str) -> Vec<(String, String)> {
    let errors = EnsembleConfig::parse(text).unwrap_err().0;
    errors.into_iter().map(|error| (error.path, error.what)).collect()
}

#[test]
fn every_error_of_a_section_has_the_path_of_its_field() {
    let errors = all(r#"
        model = "tiny"
        [[specialist]]
        name = "a"
        slo = { ttft = 3, itl = "fast", compile_pass = 95, p99 = 1 }
        [router]
        min_score = "high"
        margin = 0.5
        max_bytes = -1
        colour = 1
        classifier = 7
        [router.tripwires]
        stl_code = { min_hits = "x", min_density = "y" }
        regex = { enabled = true }
        [breaker]
        trip_below = 3
        window = 3
        dwell = "5 parsecs"
        min_samples = 1.5
        colour = 1
        [escalation]
        queue_seconds = { up = 1 }
        refused = { up = "x", down = "y" }
        slo_missed = { up = 0.1, down = 0.2 }
        levels = [{ shadow_scale = "x" }, { spill_raise = 2, floor = 1 }]
        [slo]
        latency_window = 5
        min_latency_samples = "many"
        [shadow]
        fresh_fraction = 2
        max_queue = true
        max_in_flight = "x"
    "#);
    let expected = [
        ("specialist.a.slo.ttft", "must be a duration such as \"500ms\", got 3"),
        ("specialist.a.slo.itl", "\"fast\" is not a duration"),
        ("specialist.a.slo.compile_pass", "must be a fraction from 0 to 1, got 95"),
        ("specialist.a.slo.p99", "is unknown: the fields here are ttft, itl, compile_pass"),
        ("router.min_score", "must be a number, got \"high\""),
        ("router.margin", "must be at least 1"),
        ("router.max_bytes", "must be a whole number that is not negative, got -1"),
        ("router.colour", "is unknown: the fields here are classifier, min_score"),
        ("router.classifier", "must be a string, got 7"),
        ("router.tripwires.stl_code.min_hits", "must be a number, got \"x\""),
        ("router.tripwires.stl_code.min_density", "must be a number, got \"y\""),
        ("router.tripwires.regex", "is unknown: the names here are sanitizer_report"),
        ("breaker.trip_below", "must be a fraction from 0 to 1, got 3"),
        ("breaker.window", "must be a duration such as \"500ms\", got 3"),
        ("breaker.dwell", "\"5 parsecs\" is not a duration"),
        ("breaker.min_samples", "must be a whole number that is not negative, got 1.5"),
        ("breaker.colour", "is unknown: the fields here are trip_below"),
        ("escalation.queue_seconds", "must have `down`"),
        ("escalation.refused.up", "must be a number, got \"x\""),
        ("escalation.refused.down", "must be a number, got \"y\""),
        ("escalation.slo_missed", "must have `down` above 0 and below `up`"),
        ("escalation.levels[0].shadow_scale", "must be a number, got \"x\""),
        ("escalation.levels[1].floor", "is unknown: the fields here are shadow_scale"),
        ("slo.latency_window", "must be a duration such as \"500ms\", got 5"),
        ("slo.min_latency_samples", "must be a whole number that is not negative, got \"many\""),
        ("shadow.fresh_fraction", "must be a fraction from 0 to 1, got 2"),
        ("shadow.max_queue", "must be a duration such as \"500ms\", got true"),
        ("shadow.max_in_flight", "must be a whole number that is not negative, got \"x\""),
    ];
    for (path, what) in expected {
        let is = |(own, text): &&(String, String)| own == path && text.starts_with(what);
        assert!(errors.iter().any(|error| is(&error)), "{path} {what}: not among {errors:#?}");
    }
    assert_eq!(errors.len(), expected.len(), "and no others: {errors:#?}");
}

#[test]
fn specialists_of_one_name_are_told_apart_by_their_index() {
    let twins = r#"
        model = "tiny"
        [[specialist]]
        name = "a"
        block_size = 3
        [[specialist]]
        name = "a"
        classes = ["b"]
        slo = { itl = "0s" }
    "#;
    let paths: Vec<String> = all(twins).into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["specialist[0].block_size", "specialist[1].name", "specialist[1].slo.itl"]);
}

#[test]
fn what_is_missing_or_of_another_type_is_one_error() {
    for (text, path) in [
        ("model = \"m\"\n[[specialist]]\n[[specialist]]\nname = \"b\"", "specialist[0].name"),
        ("model = \"m\"\n[[specialist]]\nname = 7\nintents = [\"debug\"]", "specialist[0].name"),
        ("model = \"m\"\n[[specialist]]\nname = \"\"", "specialist[0].name"),
        ("[[specialist]]\nname = \"b\"\nmodel = 7", "specialist.b.model"),
        ("specialist = 3", "specialist"),
    ] {
        let errors = all(text);
        assert_eq!(errors.len(), 1, "{text}: {errors:?}");
        assert_eq!(errors[0].0, path);
    }
}

#[test]
fn an_intent_whose_class_no_specialist_serves_is_an_error() {
    let with = |intent: &str| format!("{TWO}\nclasses = [\"x\"]\n[intents.port]\n{intent}");
    assert_eq!(
        all(&with("class = \"y\"")),
        [(
            "intents.port.class".to_owned(),
            "must be a class that a specialist serves (a, b, x), got `y`".to_owned()
        )]
    );
    for fine in ["class = \"x\"", "class = \"b\"", "shadow_below = 0.1"] {
        assert!(EnsembleConfig::parse(&with(fine)).is_ok(), "{fine}");
    }
    let unserved = format!("{TWO}\n[intents.debug]\nshadow_below = 0.1");
    assert!(EnsembleConfig::parse(&unserved).is_ok(), "the class of debug is not the file's");
}
