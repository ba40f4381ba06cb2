//! Grammars: arithmetic, read again by a parser written by hand.

use l4_sampler::TokenMask;
use l4_sampler::guide::{GuideSpec, Guides};

use crate::regexes::wander;
use crate::support::{Dice, accepts, allowed, llama, worlds};

const ARITHMETIC: &str = r#"
start: sum
sum: product (("+" | "-") product)*
product: factor (("*" | "/") factor)*
factor: NUMBER | "-" factor | "(" sum ")"
NUMBER: /0|[1-9][0-9]{0,2}/
"#;

/// A parser by recursive descent. It says the value of what it has read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn eat(&mut self, bytes: &[u8]) -> Option<u8> {
        let first = *self.0.first().filter(|b| bytes.contains(b))?;
        self.0 = &self.0[1..];
        Some(first)
    }

    fn sum(&mut self) -> Option<f64> {
        let mut value = self.product()?;
        while let Some(sign) = self.eat(b"+-") {
            let next = self.product()?;
            value += if sign == b'+' { next } else { -next };
        }
        Some(value)
    }

    fn product(&mut self) -> Option<f64> {
        let mut value = self.factor()?;
        while let Some(sign) = self.eat(b"*/") {
            let next = self.factor()?;
            value = if sign == b'*' { value * next } else { value / next };
        }
        Some(value)
    }

    fn factor(&mut self) -> Option<f64> {
        if self.eat(b"-").is_some() {
            return Some(-self.factor()?);
        }
        if self.eat(b"(").is_some() {
            let value = self.sum()?;
            return self.eat(b")").map(|_| value);
        }
        let digits = self.0.iter().take_while(|b| b.is_ascii_digit()).count();
        let (number, rest) = self.0.split_at(digits);
        if !(1..=3).contains(&digits) || (digits > 1 && number[0] == b'0') {
            return None;
        }
        self.0 = rest;
        std::str::from_utf8(number).ok()?.parse().ok()
    }
}

fn value(text: &str) -> Option<f64> {
    let mut reader = Reader(text.as_bytes());
    reader.sum().filter(|_| reader.0.is_empty())
}

#[test]
fn a_grammar_accepts_what_a_parser_reads_and_nothing_else() {
    assert_eq!(value("2*(3+-4)/1-10"), Some(-12.0), "the parser of this test");
    let spec = GuideSpec::Lark(ARITHMETIC.into());
    let texts =
        ["0", "7*6", "-(1+2)", "((8))", "3-4*5/2", "--1", "100+(2", ")", "1+", "007", "1 +2"];
    for world in worlds() {
        for text in texts {
            let want = value(text).is_some();
            assert_eq!(accepts(world, &spec, text), want, "whether `{text}`, {}", world.name);
        }
    }
}

#[test]
fn whatever_is_written_under_a_grammar_can_be_evaluated() {
    let spec = GuideSpec::Lark(ARITHMETIC.into());
    let mut finished = 0;
    for world in worlds() {
        let mut dice = Dice::new(11);
        for _ in 0..40 {
            if let Some(text) = wander(world, &spec, &mut dice, 12) {
                assert!(value(&text).is_some(), "`{text}` was written over {}", world.name);
                finished += 1;
            }
        }
    }
    assert!(finished >= 100, "{finished} of 240 walks came to an end");
}

#[test]
fn a_grammar_may_hold_schemas_and_name_special_tokens() {
    let world = llama();
    let spec =
        GuideSpec::Lark("start: <|start_header_id|> \"call\" %json {\"type\":\"boolean\"}".into());
    let header = world.tokenizer.token_id("<|start_header_id|>").unwrap();
    let end = world.tokenizer.token_id("<|eot_id|>").unwrap();
    let guides = Guides::new(&world.tokenizer, world.vocab, &[end]).unwrap();
    let mut guide = guides.guide(&spec).unwrap();
    let mut mask = TokenMask::default();
    guide.mask(&mut mask).unwrap();
    assert!(mask.allows(header) && mask.count() == 1, "only the special token that was named");
    guide.advance(header).unwrap();
    let first = guide.forced();
    assert!("call".starts_with(&world.text(&first)), "forced text behind it: {first:?}");
    guide.rollback(1).unwrap();
    guide.mask(&mut mask).unwrap();
    assert!(mask.allows(header) && mask.count() == 1, "the same after the way back");
}

#[test]
fn grammars_that_know_no_way_back_are_taken_back_all_the_same() {
    let world = llama();
    for (source, text) in [
        ("start: word \".\"\nword[max_tokens=20]: /[a-z ]+/", "abcd."),
        ("start: word \".\"\nword[stop=\"!\"]: /[a-z]+/", "abc!."),
    ] {
        let mut guide = world.guide(&GuideSpec::Lark(source.into()));
        let mut masks = Vec::new();
        for c in text.chars() {
            masks.push(allowed(&mut guide, world.vocab));
            guide.advance(world.vocab_of(&c.to_string())).unwrap();
        }
        assert!(guide.is_finished(), "`{text}` is all there is");
        for (n, mask) in masks.iter().enumerate().rev() {
            guide.rollback(1).unwrap();
            let now = allowed(&mut guide, world.vocab);
            assert_eq!(&now, mask, "tokens allowed again behind `{}`", &text[..n]);
        }
    }
}
