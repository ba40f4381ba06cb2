//! What a guide costs: to make one, to find one in the cache, and per token of an answer.
//!
//! ```text
//! STRATA_TIKTOKEN=qwen.tiktoken cargo bench -p l4-sampler --bench guides
//! STRATA_TOKENIZER=tokenizer.json cargo bench -p l4-sampler --bench guides
//! ```
//!
//! The first file is a list of words in base64 with their ids, as the Python package `dashscope` ships one for Qwen
//! (151,643 words; the model has 151,936 logits). Without either, a vocabulary of that size is put together from pieces of
//! words. Answers are texts that are known before: each step takes the longest token that is allowed and fits.

use std::time::{Duration, Instant};

use l2_model::tokenizer::Tokenizer;
use l4_sampler::TokenMask;
use l4_sampler::guide::{DraftMasks, Guide, GuideSpec, Guides, MaskAhead};
use serde_json::{Value, json};

/// Logits of Qwen2.5 and Qwen3.
const VOCAB: usize = 151_936;

fn main() {
    let (name, tokenizer) = tokenizer();
    let vocab = VOCAB.max(tokenizer.vocab_size());
    let end = vocab as u32 - 1;
    println!("vocabulary: {name}, {} words, {vocab} logits", tokenizer.vocab_size());

    let (guides, took) = timed(|| Guides::new(&tokenizer, vocab, &[end]).unwrap());
    println!("  trie and slices, once per model  {took:>10.1?}");

    for (what, spec, answers) in cases() {
        let (guide, compiled) = timed(|| guides.guide(&spec).unwrap());
        let hits: Vec<Duration> =
            (0..50).map(|_| timed(|| guides.guide(&spec).unwrap()).1).collect();
        let mut masks = Vec::new();
        let mut moves = Vec::new();
        let mut allowed = 0;
        for _ in 0..20 {
            for answer in &answers {
                let mut guide = guide.clone();
                allowed += follow(&mut guide, &tokenizer, answer, &mut masks, &mut moves);
            }
        }
        let steps: Vec<Duration> = masks.iter().zip(&moves).map(|(a, b)| *a + *b).collect();
        println!("{what}");
        println!("  compile, first mask included     {compiled:>10.1?}");
        println!("  from the cache                   {:>10.1?} median", at(&hits, 0.5));
        report("advance + mask", &steps);
        report("  of which advance", &moves);
        println!("  {} steps, {} tokens allowed on average", steps.len(), allowed / steps.len());
    }
    beside(&guides);
}

/// Follow a text to its end. Times of each mask and each advance; tokens allowed, summed.
fn follow(
    guide: &mut Guide,
    tokenizer: &Tokenizer,
    text: &str,
    masks: &mut Vec<Duration>,
    moves: &mut Vec<Duration>,
) -> usize {
    let mut mask = TokenMask::none(VOCAB);
    let (mut done, mut allowed) = (0, 0);
    while done < text.len() {
        masks.push(timed(|| guide.mask(&mut mask).unwrap()).1);
        allowed += mask.count();
        let rest = &text.as_bytes()[done..];
        let token = longest(tokenizer, &mask, rest).unwrap_or_else(|| {
            panic!("nothing that is allowed begins `{}`", String::from_utf8_lossy(rest))
        });
        moves.push(timed(|| guide.advance(token).unwrap()).1);
        done += tokenizer.token_bytes(token).unwrap().len();
    }
    assert!(guide.is_complete(), "`{text}` is a whole answer");
    allowed
}

/// The longest allowed token that a text begins with.
fn longest(tokenizer: &Tokenizer, mask: &TokenMask, rest: &[u8]) -> Option<u32> {
    let mut best = (0, None);
    for (i, &word) in mask.words().iter().enumerate() {
        let mut bits = word;
        while bits != 0 {
            let token = i as u32 * 32 + bits.trailing_zeros();
            bits &= bits - 1;
            let bytes = tokenizer.token_bytes(token).unwrap_or_default();
            if bytes.len() > best.0 && rest.starts_with(bytes) {
                best = (bytes.len(), Some(token));
            }
        }
    }
    best.1
}

/// What lending a guide to another thread and getting it back costs the caller.
fn beside(guides: &Guides) {
    let ahead = MaskAhead::new();
    let mut lent = Some((guides.guide(&GuideSpec::Json).unwrap(), DraftMasks::default()));
    let mut times = Vec::new();
    for _ in 0..300 {
        let (guide, masks) = lent.take().expect("it came back");
        let begun = Instant::now();
        let pending = ahead.start(guide, &[], masks);
        let started = begun.elapsed();
        // The forward pass.
        std::thread::sleep(Duration::from_micros(500));
        let begun = Instant::now();
        let ready = pending.wait();
        times.push(started + begun.elapsed());
        lent = Some((ready.guide, ready.masks));
    }
    println!("a mask beside a forward pass of 0.5 ms");
    report("the caller's part", &times);
}

fn cases() -> Vec<(&'static str, GuideSpec, Vec<String>)> {
    let ticket = json!({
        "type": "object",
        "properties": {
            "id": {"type": "integer", "minimum": 1, "maximum": 999_999},
            "title": {"type": "string", "minLength": 3, "maxLength": 120},
            "priority": {"enum": ["low", "normal", "high", "urgent"]},
            "reporter": {"$ref": "#/$defs/person"},
            "assignees": {"type": "array", "items": {"$ref": "#/$defs/person"}, "maxItems": 5},
            "labels": {"type": "array", "items": {"type": "string", "pattern": "^[a-z][a-z0-9-]{1,30}$"}},
            "created": {"type": "string", "format": "date-time"},
            "estimate": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 400}, {"type": "null"}]},
            "body": {"type": "string"},
            "blocked": {"type": "boolean"},
            "comments": {"type": "array", "maxItems": 20, "items": {
                "type": "object",
                "properties": {"by": {"$ref": "#/$defs/person"}, "text": {"type": "string", "maxLength": 400}},
                "required": ["by", "text"],
                "additionalProperties": false
            }}
        },
        "required": ["id", "title", "priority", "reporter", "labels", "body"],
        "additionalProperties": false,
        "$defs": {"person": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 60},
                "email": {"type": "string", "format": "email"},
                "age": {"type": "integer", "minimum": 0, "maximum": 130}
            },
            "required": ["name"],
            "additionalProperties": false
        }}
    });
    let answer = json!({
        "id": 48_151,
        "title": "The night train to Lisbon leaves before the ferry arrives",
        "priority": "high",
        "reporter": {"name": "Inês Carvalho", "email": "ines.carvalho@example.org", "age": 41},
        "assignees": [{"name": "Tomás"}, {"name": "R. Okafor", "age": 29}],
        "labels": ["timetable", "ferry-2", "needs-data"],
        "created": "2025-03-14T09:26:53Z",
        "estimate": 12.5,
        "body": "Passengers who change at the harbour wait eleven hours.\nThe old connection had \"forty minutes\", which was enough.\n\nSee the attached table: rows 3 to 17.",
        "blocked": false,
        "comments": [{"by": {"name": "Tomás"}, "text": "Moved to the spring timetable; the quay is closed until then."}]
    });
    let text = answer.to_string();
    let small = json!({"type": "object", "properties": {"answer": {"type": "string"}, "sure": {"type": "boolean"}},
        "required": ["answer", "sure"], "additionalProperties": false});
    let short =
        r#"{"answer":"The capital of Burkina Faso is Ouagadougou.","sure":true}"#.to_owned();
    vec![
        (
            "a ticket: 11 properties, definitions, patterns, formats",
            GuideSpec::JsonSchema(ticket),
            vec![text.clone()],
        ),
        ("a small schema", GuideSpec::JsonSchema(small), vec![short.clone()]),
        ("any JSON", GuideSpec::Json, vec![text, short]),
        (
            "a regular expression",
            GuideSpec::Regex(r"(\+\d{1,3} )?\(?\d{2,4}\)?( \d{2,4}){2,3}".into()),
            vec!["+351 21 885 0120".into(), "(030) 4711 0815 99".into()],
        ),
    ]
}

fn report(what: &str, times: &[Duration]) {
    let (median, late) = (at(times, 0.5), at(times, 0.99));
    println!("  {what:<32} {median:>10.1?} median {late:>10.1?} p99");
}

fn at(times: &[Duration], share: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

fn timed<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let value = f();
    (value, begun.elapsed())
}

fn tokenizer() -> (String, Tokenizer) {
    if let Ok(path) = std::env::var("STRATA_TOKENIZER") {
        return (path.clone(), Tokenizer::from_file(path).unwrap());
    }
    if let Ok(path) = std::env::var("STRATA_TIKTOKEN") {
        let words = std::fs::read_to_string(&path).unwrap();
        let words = words.lines().map(|line| base64(line.split(' ').next().unwrap())).collect();
        return (path, of_words(words));
    }
    println!(
        "set STRATA_TIKTOKEN to a file of words in base64, or STRATA_TOKENIZER to a tokenizer.json"
    );
    ("put together from pieces".to_owned(), of_words(made_up()))
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for digit in text.bytes().take_while(|b| *b != b'=') {
        let value = DIGITS.iter().position(|d| *d == digit).expect("base64");
        bits = bits << 6 | value as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes
}

/// A tokenizer of these words. It has no merges, so a text is cut into bytes: what a guide allows does not depend on that.
fn of_words(words: Vec<Vec<u8>>) -> Tokenizer {
    let alphabet = alphabet();
    let spell = |word: &Vec<u8>| word.iter().map(|&b| alphabet[b as usize]).collect::<String>();
    let vocab: serde_json::Map<String, Value> =
        words.iter().enumerate().map(|(id, word)| (spell(word), json!(id))).collect();
    let file = json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []}
    });
    let path = std::env::temp_dir().join(format!("strata-bench-{}.json", std::process::id()));
    std::fs::write(&path, file.to_string()).unwrap();
    let tokenizer = Tokenizer::from_file(&path);
    let _ = std::fs::remove_file(&path);
    tokenizer.unwrap()
}

/// GPT-2's letters for bytes.
fn alphabet() -> Vec<char> {
    let plain =
        |b: u32| (33..127).contains(&b) || (161..173).contains(&b) || (174..256).contains(&b);
    let mut next = 255;
    let letter = |b: u32| {
        if plain(b) {
            return b;
        }
        next += 1;
        next
    };
    (0..256).map(letter).map(|c| char::from_u32(c).expect("a letter")).collect()
}

/// Words from syllables, with and without a space before them, with capitals, in pieces of code and with digits.
fn made_up() -> Vec<Vec<u8>> {
    let consonants = [
        "b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "st", "tr", "ch", "v", "w",
    ];
    let vowels = ["a", "e", "i", "o", "u", "ea", "io"];
    let tails = ["", "n", "r", "s", "ng", "ly", "é", "東"];
    let marks = [
        "\":\"", "\",\"", "():", " = ", "{\"", "\"}", "];\n", "\n\n    ", ", ", " - ", "://",
        "...", "->",
    ];
    let mut syllables = Vec::new();
    for c in consonants {
        for v in vowels {
            for t in tails {
                syllables.push(format!("{c}{v}{t}"));
            }
        }
    }
    let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|b| vec![b]).collect();
    let mut known: std::collections::HashSet<Vec<u8>> = words.iter().cloned().collect();
    let mut add = |word: String| {
        let word = word.into_bytes();
        if words.len() < VOCAB - 293 && known.insert(word.clone()) {
            words.push(word);
        }
        words.len() < VOCAB - 293
    };
    for mark in marks {
        add(mark.to_owned());
        for syllable in &syllables[..20] {
            add(format!("{mark}{syllable}"));
        }
    }
    (0..1000).for_each(|n| {
        add(n.to_string());
    });
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    let mut state = 1_u64;
    let mut any = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        &syllables[(state >> 33) as usize % syllables.len()]
    };
    for i in 0.. {
        let word = match i {
            0..2000 => any().clone(),
            2000..30_000 => format!("{}{}", any(), any()),
            _ => format!("{}{}{}", any(), any(), any()),
        };
        let more = add(format!(" {word}")) && add(capital(&word)) && add(word);
        if !more {
            break;
        }
    }
    words
}
