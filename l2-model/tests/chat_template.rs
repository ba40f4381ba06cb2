//! Chat templates render as transformers renders them, and say what is wrong in words.

mod tokenizer_support;

use std::time::{Duration, UNIX_EPOCH};

use l2_model::chat_template::{ChatTemplate, ChatTemplateError, Conversation, Message};
use l2_model::tokenizer::Tokenizer;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tokenizer_support::fixture;

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, Some("<s>"), Some("</s>")).unwrap_or_else(|e| panic!("{source}: {e}"))
}

/// One user's message, and an answer that calls a tool.
fn messages() -> Vec<Message> {
    let conversation = json!([
        {"role": "user", "content": "Hi é <b>"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"function": {"name": "f", "arguments": {"x": 1.0, "y": [true, null, 1e-5], "z": "é\"\n"}}}
        ]}
    ]);
    Conversation::from_json(&conversation.to_string()).unwrap().messages
}

fn render(source: &str) -> Result<String, ChatTemplateError> {
    ChatTemplate::new(source, None, None)?.render(&messages(), false, &Map::new())
}

/// Template, and what `transformers.utils.chat_template_utils.render_jinja_template` (5.19.0) makes of it and
/// [`messages`].
#[rustfmt::skip]
const GOLDENS: &[(&str, &str)] = &[
    ("{{ messages[1] | tojson }}", "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1.0, \"y\": [true, null, 1e-05], \"z\": \"é\\\"\\n\"}}}]}"),
    ("{{ messages[1] | tojson(indent=2) }}", "{\n  \"role\": \"assistant\",\n  \"content\": null,\n  \"tool_calls\": [\n    {\n      \"function\": {\n        \"name\": \"f\",\n        \"arguments\": {\n          \"x\": 1.0,\n          \"y\": [\n            true,\n            null,\n            1e-05\n          ],\n          \"z\": \"é\\\"\\n\"\n        }\n      }\n    }\n  ]\n}"),
    ("{{ messages[1].tool_calls[0].function.arguments | tojson(ensure_ascii=True, sort_keys=True, separators=(',', ':')) }}", "{\"x\":1.0,\"y\":[true,null,1e-05],\"z\":\"\\u00e9\\\"\\n\"}"),
    ("{{ messages[1].tool_calls }}", "[{'function': {'name': 'f', 'arguments': {'x': 1.0, 'y': [True, None, 1e-05], 'z': 'é\"\\n'}}}]"),
    ("{{ messages[1].content }} {{ true }} {{ 1.5 }} {{ 1e-5 }} {{ 1e22 }} {{ [] }} {{ {} }}", "None True 1.5 1e-05 1e+22 [] {}"),
    ("{{ [] | tojson(indent=2) }} {{ {} | tojson(indent=2) }}", "[] {}"),
    ("{% for m in messages %}\n  {% if m.role == 'user' %}\n[{{ m.content }}]\n  {% endif %}\n{% endfor %}\nend", "[Hi é <b>]\nend"),
    ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}", "0134"),
    ("{% for m in messages %}{% generation %}{{ m.role }}{% set x = 1 %}{% endgeneration %}{{ x is defined }};{% endfor %}", "userFalse;assistantFalse;"),
    ("{%- for m in messages -%}\n {%- generation -%} \n{{ m.role }} {%- endgeneration -%} {%- endfor -%}", "userassistant"),
    ("{{ 'a,b'.split(',')[-1] }}{{ ' x '.strip() }}{{ 'abc'.startswith('ab') }}{{ 'abc'.upper() }}{{ {'a':1}.get('b', 2) }}{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "bxTrueABC2a1"),
    ("{{ tools is none }} {{ documents is none }} {{ nothing is defined }}", "True True False"),
    ("{{ messages[::-1][0].role }} {{ messages[1:] | length }} {{ 'héllo'[1:3] }}", "assistant 1 él"),
    ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
    ("{{ messages[0].content is string }} {{ messages is sequence }} {{ messages[0] is mapping }} {{ 'x' is iterable }} {{ 'content' in messages[0] }}", "True True True True True"),
    ("{{ 'a' ~ 1 ~ true ~ none }}", "a1TrueNone"),
    ("{{ 7 // 2 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ 7 % 3 }} {{ 'a' * 3 }}", "3 3.5 8 1 aaa"),
    ("{% macro f(x, y='d') %}<{{ x }}{{ y }}>{% endmacro %}{{ f('a') }}{{ f('a', y='b') }}", "<ad><ab>"),
    ("{{ [3,1,2] | sort | join('-') }} {{ 'x' | default('y') }} {{ '' | default('y', true) }} {{ ['a','b'] | map('upper') | list }}", "1-2-3 x y ['A', 'B']"),
    ("{{ {'it': \"it's\", 'q': '\"', 'b': \"'\\\"\"} }}", "{'it': \"it's\", 'q': '\"', 'b': '\\'\"'}"),
    ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | map(attribute='role') | join(',') }}", "1user,assistant"),
    ("{{ 'x'.replace('x', 'y') }} {{ '  a b '.lstrip() }}| {{ 'a\\nb'.splitlines() }} {{ 'ab'.find('b') }} {{ 'ab'.endswith(('b', 'c')) }}", "y a b | ['a', 'b'] 1 True"),
    ("{{ (messages[0].content | trim).split(' ')[0] }} {{ 'abc' | first }} {{ 'abc' | last }} {{ 'ab' | length }} {{ [1,2,3] | sum }} {{ 'a b' | title }}", "Hi a c 2 6 A B"),
    ("{{- '' if false else 'else' }}{{ 'no' if false }}", "else"),
    ("{{ bos_token }}|{{ messages[0]['nothing'] }}|", "||"),
    ("{# comment #}\n  {%- set x = 'a' %}\n\n{{ x }}\n", "\na"),
    ("{{ '%s-%d' | format('a', 3) }} {{ '{} {}'.format('a', 1) }} {{ 'a-b'.rsplit('-', 1)[0] }} {{ 'abc'.removeprefix('a') }}", "a-3 a 1 a bc"),
    ("{{ messages[0].items() | list }} {{ messages[0].keys() | list }}", "[('role', 'user'), ('content', 'Hi é <b>')] ['role', 'content']"),
    ("{{ messages[0] }}", "{'role': 'user', 'content': 'Hi é <b>'}"),
    ("{{ (1, 'a') }} {{ 10000000000000000000000 }} {{ -0.0 }} {{ 'a\\tb' | string }} {{ [true] | string }}", "(1, 'a') 10000000000000000000000 -0.0 a\tb [True]"),
    ("{% set x %}block{% endset %}{{ x }}{% filter upper %}f{% endfilter %}{% raw %}{{ no }}{% endraw %}", "blockF{{ no }}"),
    ("{%+ if true %}\n x{% endif %}", " x"),
    ("{{ '<a&b>' }}{{ '<a>' | e }}", "<a&b>&lt;a&gt;"),
    ("{% for a, b in [(1, 2), (3, 4)] %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.previtem is defined }}{{ a }}{{ b }};{% endfor %}", "0TrueFalseFalse12;1FalseTrueTrue34;"),
    ("{{ none | tojson }} {{ 'é' | tojson }} {{ '\\u0001\\b\\f/' | tojson }} {{ 1e16 | tojson }} {{ 123456789012345678 | tojson }}", "null \"é\" \"\\u0001\\b\\f/\" 1e+16 123456789012345678"),
];

#[test]
fn python_and_jinja_idioms_render_as_in_transformers() {
    let wrong: Vec<String> = GOLDENS
        .iter()
        .filter_map(|(source, expected)| match render(source) {
            Ok(text) if text == *expected => None,
            other => Some(format!("{source}\n  expected {expected:?}\n  got      {other:?}")),
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn variables_are_the_tokens_the_flag_and_the_extras() {
    let source = "{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}{{ tools is none }}{{ enable_thinking }}";
    let extra = |value: Value| value.as_object().cloned().unwrap();
    let rendered =
        template(source).render(&[], true, &extra(json!({"enable_thinking": false}))).unwrap();
    assert_eq!(rendered, "<s></s>TrueTrueFalse");
    let rendered = template(source)
        .render(&[], false, &extra(json!({"tools": [{"a": 1}], "bos_token": "!"})))
        .unwrap();
    assert_eq!(rendered, "!</s>FalseFalse");
    let unnamed = ChatTemplate::new("{{ bos_token is defined }}", None, None).unwrap();
    assert_eq!(
        unnamed.render(&[], true, &Map::new()).unwrap(),
        "False",
        "a token nobody named is undefined, not none"
    );
}

#[test]
fn a_field_that_is_absent_is_not_null() {
    let source =
        "{% for m in messages %}{{ m.content is defined }}{{ m.content is none }};{% endfor %}";
    let text = r#"[{"role": "assistant"}, {"role": "assistant", "content": null}]"#;
    let messages = Conversation::from_json(text).unwrap().messages;
    assert_eq!(
        template(source).render(&messages, false, &Map::new()).unwrap(),
        "FalseFalse;TrueTrue;"
    );
}

#[test]
fn a_syntax_error_names_its_line() {
    for (source, expected) in
        [("{% if %}", 1), ("a\n\n{% for x in %}", 3), ("{{ 1 |\n}}", 2), ("{% if 1 %}", 1)]
    {
        match ChatTemplate::new(source, None, None) {
            Err(ChatTemplateError::Syntax { line, message }) => {
                assert_eq!(line, expected, "{source}: {message}");
                assert!(!message.is_empty());
            }
            other => panic!("{source}: {other:?}"),
        }
    }
}

#[test]
fn raise_exception_is_a_refusal_in_the_templates_own_words() {
    let source = "a\n{% if messages[0].role == 'user' %}\n{{ raise_exception('only ' ~ 'robots') }}{% endif %}";
    match render(source).unwrap_err() {
        ChatTemplateError::Refused { message, line } => {
            assert_eq!((message.as_str(), line), ("only robots", 3))
        }
        other => panic!("{other:?}"),
    }
    // Through a macro as well.
    let source = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}";
    assert!(
        matches!(render(source).unwrap_err(), ChatTemplateError::Refused { message, .. } if message == "deep")
    );
}

#[test]
fn an_error_while_rendering_names_line_and_cause() {
    for source in
        ["\n{{ nonesuch() }}", "\n{{ messages[0].nothing.deeper }}", "\n{{ nothing | tojson }}"]
    {
        match render(source).unwrap_err() {
            ChatTemplateError::Render { line, message } => assert_eq!(line, 2, "{message}"),
            other => panic!("{other:?}"),
        }
    }
    // A filter that does not exist: in Jinja2 too this is only an error where it is used.
    assert!(render("{{ 1 | nonesuch }}").unwrap_err().to_string().contains("nonesuch"));
}

#[test]
fn a_wrong_messages_file_names_the_place() {
    let cases = [
        (r#"{"messages": 3}"#, "messages", "a number"),
        ("{}", "messages", "null"),
        ("\"hi\"", "messages", "a string"),
        (r#"[{"role": "user", "content": "a"}, 7]"#, "messages[1]", "a number"),
        (r#"[{"content": "a"}]"#, "messages[0].role", "nothing"),
        (r#"[{"role": ["user"], "content": "a"}]"#, "messages[0].role", "a list"),
        (r#"[{"role": "user", "content": true}]"#, "messages[0].content", "a boolean"),
        (r#"[{"role": "user", "content": {"text": "a"}}]"#, "messages[0].content", "an object"),
        (
            r#"[{"role": "user", "content": [{"type": "text"}, "a"]}]"#,
            "messages[0].content[1]",
            "a string",
        ),
    ];
    for (text, place, found) in cases {
        match Conversation::from_json(text) {
            Err(ChatTemplateError::Shape { path, problem }) => {
                assert_eq!(path, place, "{text}");
                assert!(problem.ends_with(found), "{text}: {problem}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    assert!(matches!(Conversation::from_json("[{"), Err(ChatTemplateError::Json(_))));
}

#[test]
fn a_conversation_may_carry_tools() {
    let text = r#"{"messages": [{"role": "user", "content": "a", "name": "n"}], "tools": [{"name": "t"}]}"#;
    let conversation = Conversation::from_json(text).unwrap();
    assert_eq!(conversation.messages, [Message::new("user", "a").with("name", "n")]);
    let source = "{{ tools[0].name }}{{ messages[0].name }}{{ messages[0] | tojson }}";
    let rendered =
        template(source).render(&conversation.messages, false, &conversation.extra).unwrap();
    assert_eq!(
        rendered, r#"tn{"role": "user", "content": "a", "name": "n"}"#,
        "fields keep their order"
    );
}

#[test]
fn strftime_now_formats_the_given_clock_in_utc() {
    // 2024-02-29 13:05:09, a Thursday.
    let clock = || UNIX_EPOCH + Duration::from_secs(1_709_211_909);
    let at = |source: &str| {
        let template = ChatTemplate::with_clock(source, None, None, clock)?;
        template.render(&[], false, &Map::new())
    };
    let source = "{{ strftime_now('%d %b %Y|%A %B %-d|%Y-%m-%d %H:%M:%S|%I %p|%j|%y|%a|%%') }}";
    assert_eq!(
        at(source).unwrap(),
        "29 Feb 2024|Thursday February 29|2024-02-29 13:05:09|01 PM|060|24|Thu|%"
    );
    assert!(at("{{ strftime_now('%Q') }}").unwrap_err().to_string().contains("%Q"));
    assert_eq!(at("{{ strftime_now is defined }}").unwrap(), "True");
}

#[test]
fn only_generation_tags_are_taken_for_generation_tags() {
    let source = "{% if add_generation_prompt %}y{% endif %}{% set generation = 1 %}{{ generation }}{{ '{% generation' }}";
    assert_eq!(template(source).render(&[], true, &Map::new()).unwrap(), "y1{% generation");
    assert!(matches!(
        ChatTemplate::new("{% generation %}", None, None),
        Err(ChatTemplateError::Syntax { .. })
    ));
}

#[test]
fn the_templates_of_the_tiny_models_render() {
    for name in ["tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"] {
        let tokenizer = Tokenizer::from_hf_dir(fixture(name)).unwrap();
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id));
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        let Some(source) = tokenizer.chat_template() else { continue };
        let template = ChatTemplate::new(source, bos.as_deref(), eos.as_deref()).unwrap();
        let rendered =
            template.render(&[Message::new("user", "Hello there")], true, &Map::new()).unwrap();
        assert!(rendered.contains("Hello there"), "{name}: {rendered}");
        // A rendered chat holds its own BOS: at most one, and none is added.
        let ids = tokenizer.encode(&rendered, false).unwrap();
        if let Some(bos) = tokenizer
            .bos()
            .filter(|_| rendered.starts_with("<s>") || rendered.starts_with("<|begin"))
        {
            assert_eq!(ids[..2].iter().filter(|&&id| id == bos).count(), 1, "{name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tojson_of_any_text_parses_back_to_it(text in any::<String>(), ascii: bool) {
        let source = format!("{{{{ messages[0].content | tojson(ensure_ascii={ascii}) }}}}");
        let rendered = template(&source).render(&[Message::new("user", &text)], false, &Map::new()).unwrap();
        prop_assert_eq!(serde_json::from_str::<String>(&rendered).unwrap(), text);
        prop_assert!(!ascii || rendered.is_ascii());
    }

    #[test]
    fn no_template_makes_it_panic(source in "(\\{[{%#]|[}%#]\\}|generation|endgeneration|if|for|[a-z' .()|+\\-\n]|é){0,30}") {
        if let Ok(template) = ChatTemplate::new(&source, Some("<s>"), None) {
            let _ = template.render(&[Message::new("user", "x")], true, &Map::new());
        }
    }
}

#[test]
fn a_template_that_would_run_for_hours_is_stopped() {
    let source = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(source, None, None).unwrap();
    let error = template.render(&[Message::new("user", "x")], true, &Map::new()).unwrap_err();
    assert!(matches!(error, ChatTemplateError::Render { .. }), "{error}");
}
