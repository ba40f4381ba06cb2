//! Guides that cannot be: typed errors, before a request is admitted.

use l4_sampler::guide::{GuideError, GuideSpec, Guides};

use crate::support::{choice, llama, push, refusal, regex, schema, tokenizer, worlds};

#[track_caller]
fn impossible(spec: &GuideSpec, words: &str) {
    let error = refusal(llama(), spec);
    assert!(matches!(error, GuideError::Impossible { .. }), "{spec:?}: {error:?}");
    assert!(error.to_string().contains(words), "`{error}` should say `{words}`");
}

#[track_caller]
fn broken(spec: &GuideSpec, words: &str) {
    let error = refusal(llama(), spec);
    assert!(matches!(error, GuideError::Compile { .. }), "{spec:?}: {error:?}");
    let said = error.to_string();
    assert!(said.contains(words), "`{said}` should say `{words}`");
    assert!(said.len() < 400, "an error to read, not {} bytes: {said}", said.len());
}

#[test]
fn schemas_that_nothing_satisfies_are_impossible() {
    impossible(&schema("false"), "describes nothing");
    for text in [
        r#"{"enum":[]}"#,
        r#"{"type":"integer","minimum":5,"maximum":4}"#,
        r#"{"type":"integer","exclusiveMinimum":1,"exclusiveMaximum":2}"#,
        r#"{"type":"number","minimum":1.5,"maximum":1.25}"#,
        r#"{"type":"string","minLength":5,"maxLength":4}"#,
        r#"{"type":"array","minItems":3,"maxItems":2}"#,
        r#"{"type":"array","items":false,"minItems":1}"#,
        r#"{"allOf":[{"type":"string"},{"type":"integer"}]}"#,
        r#"{"anyOf":[false,{"enum":[]}]}"#,
        r#"{"type":"string","enum":[1,2]}"#,
        r#"{"type":"object","properties":{"a":false},"required":["a"]}"#,
        r#"{"type":"object","additionalProperties":false,"required":["a"]}"#,
        r#"{"type":"string","pattern":"^b$","minLength":2}"#,
    ] {
        impossible(&schema(text), "");
    }
}

#[test]
fn expressions_and_grammars_without_a_text_are_impossible() {
    impossible(&regex(r"[a&&b]"), "no text");
    impossible(&regex(""), "empty answer");
    impossible(&regex("(){7}"), "empty answer");
    impossible(&GuideSpec::Lark("start: X\nX: /a+/ & /b+/".into()), "no text");
}

#[test]
fn broken_sources_say_what_is_wrong() {
    broken(&regex("a(b"), "unclosed group");
    broken(&regex("a{3,2}"), "repetition");
    broken(&regex("(?=a)b"), "look-around");
    broken(&GuideSpec::Lark("start: nothing_like_it".into()), "nothing_like_it");
    broken(&GuideSpec::Lark("start: \"a".into()), "");
    broken(&GuideSpec::Lark("begin: \"a\"".into()), "start");
    broken(&GuideSpec::Lark(String::new()), "");
    broken(&schema("[1]"), "an object, `true` or `false`");
    broken(&schema("\"string\""), "an object, `true` or `false`");
    broken(&schema(r#"{"type":"strin"}"#), "strin");
    broken(&schema(r##"{"$ref":"#/$defs/missing"}"##), "missing");
    broken(&schema(r#"{"type":"string","pattern":"("}"#), "");
    broken(&schema(r#"{"x-guidance":7}"#), "x-guidance must be an object");
}

#[test]
fn a_keyword_that_cannot_be_enforced_is_ignored_unless_the_schema_is_strict() {
    for (keyword, text, takes) in [
        (
            "uniqueItems",
            r#"{"type":"array","items":{"type":"null"},"uniqueItems":true}"#,
            "[null,null]",
        ),
        ("not", r#"{"type":"string","not":{"const":"x"}}"#, r#""x""#),
        ("if", r#"{"type":"string","if":{"const":"x"},"then":{"minLength":2}}"#, r#""x""#),
        ("contains", r#"{"type":"array","contains":{"type":"string"},"minContains":1}"#, "[]"),
        ("propertyNames", r#"{"type":"object","propertyNames":{"pattern":"^a"}}"#, r#"{"b":1}"#),
        ("dependentRequired", r#"{"type":"object","dependentRequired":{"a":["b"]}}"#, r#"{"a":1}"#),
        ("Unknown format", r#"{"type":"string","format":"password"}"#, r#""x""#),
        ("oneOf", r#"{"oneOf":[{"type":"integer"},{"type":"number"}]}"#, "1"),
    ] {
        assert!(crate::support::accepts(llama(), &schema(text), takes), "{text}");
        let strict = format!(r#"{{"x-guidance":{{"lenient":false}},{}"#, &text[1..]);
        broken(&schema(&strict), keyword);
    }
}

#[test]
fn long_texts_are_refused_with_the_limit() {
    let (fits, long) = ("y".repeat(4000), "x".repeat(4097));
    let quoted = format!("\"{long}\"");
    let world = llama();
    assert!(world.guides.guide(&choice(&[fits.as_str()])).is_ok());
    broken(&choice(&["a", &long]), "4097 bytes in one choice, more than 4096");
    broken(
        &schema(&format!(r#"{{"const":{quoted}}}"#)),
        "4099 bytes in one `const`, more than 4096",
    );
    broken(&schema(&format!(r#"{{"items":{{"enum":["a",{quoted}]}}}}"#)), "one value of an `enum`");
    broken(
        &schema(&format!(r#"{{"properties":{{{quoted}:{{}}}}}}"#)),
        "4097 bytes in the name of a",
    );
    broken(&GuideSpec::Lark(format!("start: {}", quoted.repeat(8))), "more than 24576");
    // Together.
    let many: Vec<String> = (0..70).map(|i| format!("{i}{fits}")).collect();
    let values = serde_json::to_string(&many).unwrap();
    broken(&GuideSpec::Choice(many), "bytes, more than 262144");
    broken(
        &schema(&format!(r#"{{"enum":{values}}}"#)),
        "names, `const`s and `enum`s, more than 262144",
    );
    let numbers = format!(r#"{{"enum":[{}0]}}"#, "1,".repeat(10_000));
    broken(&schema(&numbers), "10001 values in `enum`s");
    let lark = format!("start: a\na: %json {{\"const\": {quoted}}}");
    broken(&GuideSpec::Lark(lark), "4099 bytes in one `const`");
    // What looks like a schema within a text is a part of that text.
    let lark = format!("start: /x %json {{\"title\": {}}}/", quoted.repeat(7).replace("\"\"", ""));
    broken(&GuideSpec::Lark(lark), "more than 24576");
}

#[test]
fn text_without_a_choice_is_followed_within_the_limits_of_a_step() {
    // A hundred thousand bytes that leave no choice, written with a few.
    let repeated = "(abcdefghij){10000}";
    let properties: Vec<String> = (0..60)
        .map(|i| format!(r#""{i}{}":{{"const":"{}"}}"#, "p".repeat(900), "v".repeat(900)))
        .collect();
    let names: Vec<String> = (0..60).map(|i| format!(r#""{i}{}""#, "p".repeat(900))).collect();
    let object = format!(
        r#"{{"type":"object","properties":{{{}}},"required":[{}]}}"#,
        properties.join(","),
        names.join(",")
    );
    for spec in [
        regex(repeated),
        schema(&format!(r#"{{"type":"string","pattern":"^{repeated}$"}}"#)),
        schema(&object),
        GuideSpec::Lark("start: X\nX: \"abcdefghij\"{10000}".into()),
    ] {
        let error = refusal(llama(), &spec);
        assert!(matches!(error, GuideError::TooComplex { .. }), "{error:?}");
        assert!(error.to_string().contains("first step takes more work"), "{error}");
    }
}

#[test]
fn a_vocabulary_without_the_first_byte_is_named_as_the_reason() {
    // The words of this tokenizer's first 100 ids are single characters, among them no blank.
    let tokenizer = tokenizer("llama-bpe");
    let guides = Guides::new(&tokenizer, 90, &[]).unwrap();
    let error = guides.guide(&choice(&[" a"])).unwrap_err();
    assert!(matches!(error, GuideError::Impossible { .. }), "{error:?}");
    assert!(error.to_string().contains("byte 0x20"), "`{error}` should name the blank");
    assert!(guides.guide(&choice(&["a", " b"])).is_ok(), "another beginning can be spelled");
}

#[test]
fn a_dead_end_in_the_middle_is_an_error_and_can_be_left() {
    let tokenizer = tokenizer("llama-bpe");
    let guides = Guides::new(&tokenizer, 90, &[]).unwrap();
    let mut guide = guides.guide(&regex("a( b|cd)")).unwrap();
    let id = |text: &str| tokenizer.token_id(text).unwrap();
    guide.advance(id("a")).unwrap();
    assert_eq!(crate::support::allowed(&mut guide, 90), [id("c")], "what can be spelled");

    let mut guide = guides.guide(&regex("[ax]( b)?y?")).unwrap();
    guide.advance(id("x")).unwrap();
    let mut guide = guides.guide(&regex("(a b)|(xy)")).unwrap();
    guide.advance(id("a")).unwrap();
    let mut mask = l4_sampler::TokenMask::default();
    let stuck = guide.mask(&mut mask);
    assert_eq!(stuck, Err(GuideError::DeadEnd { after: 1 }), "behind `a` comes a blank");
    guide.rollback(1).unwrap();
    guide.advance(id("x")).unwrap();
    assert_eq!(crate::support::allowed(&mut guide, 90), [id("y")], "the other way");
}

#[test]
fn a_character_the_vocabulary_lacks_is_a_dead_end_where_it_is_forced() {
    let world = worlds().iter().find(|w| w.name == "smollm").unwrap();
    let error = refusal(world, &choice(&["\u{1}"]));
    assert!(error.to_string().contains("byte 0x01"), "`{error}` should name the character");
    let mut guide = world.guide(&choice(&["now \u{1} here"]));
    let (_, done) = push(world, &mut guide, "now \u{1} here");
    assert_eq!(done, 4, "characters said before the one that cannot be");
}

#[test]
fn vocabularies_and_ends_that_cannot_be_are_refused() {
    let tokenizer = tokenizer("llama-bpe");
    for (vocab, ends, words) in [
        (0, &[][..], "0 tokens"),
        (1 << 24, &[], "16777216 tokens"),
        (100, &[100], "end token 100"),
    ] {
        let error = Guides::new(&tokenizer, vocab, ends).err().unwrap();
        assert!(matches!(error, GuideError::Vocabulary { .. }), "{error:?}");
        assert!(error.to_string().contains(words), "`{error}` should say `{words}`");
    }
}

#[test]
fn sources_beyond_all_measure_are_refused_before_they_are_compiled() {
    let nested = |n: usize| format!("{}{{}}{}", r#"{"items":"#.repeat(n), "}".repeat(n));
    broken(&schema(&nested(110)), "levels of nesting, more than 100");
    broken(&regex(&format!("{}a{}", "(".repeat(2000), ")".repeat(2000))), "levels of nesting");
    let lark = format!("start: {}\"a\"{}", "(".repeat(9000), ")".repeat(9000));
    broken(&GuideSpec::Lark(lark), "levels of nesting");
    broken(
        &GuideSpec::Lark("// nothing\n".repeat(4000)),
        "bytes without its schemas, more than 24576",
    );
    broken(&regex(&"a".repeat(4097)), "4097 bytes, more than 4096");
    broken(&GuideSpec::Choice(vec!["x".into(); 10_001]), "10001 choices");
    let many: Vec<String> = (0..1001).map(|i| format!("\"p{i}\":{{}}")).collect();
    let many = format!(r#"{{"properties":{{{}}}}}"#, many.join(","));
    broken(&schema(&many), "1001 properties of one object, more than 1000");
    let lists = format!(r#"{{"enum":[{}[]]}}"#, "[],".repeat(2000));
    broken(&schema(&lists), "lists, objects and properties, more than 2000");
    let within = format!("start: a b\na: %json {lists}\nb: %json {lists}");
    broken(&GuideSpec::Lark(within), "lists, objects and properties, more than 2000");
    let bounds: Vec<String> = (0..257).map(|i| format!(r#"{{"minimum":{i}}}"#)).collect();
    broken(&schema(&format!(r#"{{"anyOf":[{}]}}"#, bounds.join(","))), "257 numbers with bounds");
    broken(&schema(&format!(r#"{{"pattern":"{}"}}"#, "a".repeat(9000))), "bytes of one pattern");
    broken(&schema(r#"{"multipleOf":9999991}"#), "multipleOf");
    let inside = r#"start: %json { "type": "integer", "multipleOf": 9999991 }"#;
    broken(&GuideSpec::Lark(inside.into()), "multipleOf");
    broken(&schema(r#"{"allOf":[{"multipleOf":9973},{"multipleOf":0.9967}]}"#), "multipleOf");
}

#[test]
fn sources_that_grow_in_the_compiler_are_refused_by_it() {
    let object = |i: usize| format!(r#"{{"properties":{{"a{i}":{{"type":"string"}}}}}}"#);
    let any = |i: usize| {
        let objects: Vec<String> = (0..8).map(|k| object(i * 8 + k)).collect();
        format!(r#"{{"anyOf":[{}]}}"#, objects.join(","))
    };
    let product: Vec<String> = (0..7).map(any).collect();
    broken(&schema(&format!(r#"{{"allOf":[{}]}}"#, product.join(","))), "too large");
    let both = "start: X\nX: /(.*a.{60}b)+/ & /(.*c.{50}d)+/";
    broken(&GuideSpec::Lark(both.into()), "fuel exhausted");
}

#[test]
fn answers_that_could_never_end_are_refused() {
    let own_child = r##"{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}"##;
    for spec in [
        schema(own_child),
        schema(r##"{"$ref":"#"}"##),
        GuideSpec::ClosedJsonSchema(serde_json::json!({"$ref": "#"})),
        GuideSpec::ClosedJsonSchema(serde_json::from_str(own_child).unwrap()),
        GuideSpec::Lark("start: \"a\" start".into()),
    ] {
        let error = refusal(llama(), &spec);
        let typed = matches!(error, GuideError::Impossible { .. } | GuideError::TooComplex { .. });
        assert!(typed, "{spec:?}: {error:?}");
    }
}

/// A chain of definitions, each of which is the next.
fn chain(links: usize, link: impl Fn(&str) -> String) -> GuideSpec {
    let mut definitions = format!(r#""a{links}":{{"type":"null"}}"#);
    for i in 0..links {
        let next = format!(r##"{{"$ref":"#/$defs/a{}"}}"##, i + 1);
        definitions.push_str(&format!(r#","a{i}":{}"#, link(&next)));
    }
    schema(&format!(r##"{{"$defs":{{{definitions}}},"$ref":"#/$defs/a0"}}"##))
}

#[test]
fn what_is_as_large_as_is_allowed_overflows_no_stack() {
    // Whether these are guides does not matter here: they are answered, and by a thread with a stack of two megabytes.
    let outcome = |spec: &GuideSpec| match llama().guides.guide(spec) {
        Ok(mut guide) => {
            for _ in 0..3 {
                let tokens = crate::support::allowed(&mut guide, llama().vocab);
                guide.advance(tokens[tokens.len() / 2]).unwrap();
            }
        }
        Err(error) => assert!(!error.to_string().contains("more than"), "{error}"),
    };
    let n = 98;
    outcome(&schema(&format!("{}{{}}{}", r#"{"items":"#.repeat(n), "}".repeat(n))));
    outcome(&schema(&format!("{}{{}}{}", r#"{"anyOf":["#.repeat(n / 2), "]}".repeat(n / 2))));
    outcome(&regex(&format!("{}a{}", "(".repeat(n), ")*".repeat(n))));
    outcome(&regex(&format!("{}b", "a?".repeat(2000))));
    outcome(&GuideSpec::Lark(format!("start: {}\"a\"{}", "(".repeat(n), ")".repeat(n))));
    let rules: Vec<String> = (0..1200).map(|i| format!("r{i}: r{} \"a\"?", i + 1)).collect();
    outcome(&GuideSpec::Lark(format!("start: r0\n{}\nr1200: \"x\"", rules.join("\n"))));
    for closed in [false, true] {
        let outcome = |spec: GuideSpec| match spec {
            GuideSpec::JsonSchema(schema) if closed => {
                outcome(&GuideSpec::ClosedJsonSchema(schema));
            }
            spec => outcome(&spec),
        };
        outcome(chain(1_900, |next| next.to_owned()));
        outcome(chain(600, |next| format!(r#"{{"allOf":[{next}]}}"#)));
        outcome(chain(600, |next| format!(r#"{{"anyOf":[{next},true]}}"#)));
        outcome(chain(900, |next| format!(r#"{{"type":"array","items":{next}}}"#)));
        let more = r#"{"properties":{"a":{"type":"null"}}}"#;
        outcome(chain(60, |next| format!(r#"{{"allOf":[{next},{more}]}}"#)));
    }
}

#[test]
fn a_guide_that_gives_up_says_so_and_can_be_taken_back() {
    let world = llama();
    // Whether the 18th letter from the end is an a: half a million states, more than a guide may have.
    let spec = regex("[ab]*a[ab]{17}!");
    let Ok(mut guide) = world.guides.guide(&spec) else { return };
    let (a, b) = (world.vocab_of("a"), world.vocab_of("b"));
    let mut dice = crate::support::Dice::new(3);
    let mut mask = l4_sampler::TokenMask::default();
    let mut gave_up = None;
    for _ in 0..60_000 {
        let token = if dice.chance(50) { a } else { b };
        let step = guide.advance(token).and_then(|()| guide.mask(&mut mask));
        if let Err(error) = step {
            gave_up = Some(error);
            break;
        }
    }
    let error = gave_up.expect("a guide with a bound on its states gives up");
    assert!(matches!(error, GuideError::TooComplex { .. }), "{error:?}");
    guide.rollback(guide.followed()).unwrap();
    guide.mask(&mut mask).unwrap();
    assert!(mask.allows(a) && mask.allows(b), "at the beginning all is well again");
}
