//! Regular expressions, against matchers written by hand.

use l4_sampler::guide::GuideSpec;

use crate::support::{Dice, World, accepts, allowed, regex, worlds};

/// An expression, what it means, and some texts of the language.
type Language = (&'static str, fn(&str) -> bool, &'static [&'static str]);

const LANGUAGES: [Language; 6] = [
    ("a*b+c?", a_then_b, &["b", "aab", "abbc", "bc"]),
    ("[0-9]{4}-(0[1-9]|1[0-2])", month, &["2024-01", "1999-12", "0000-10"]),
    (r"(\d{1,3}\.){3}\d{1,3}", four_numbers, &["1.2.3.4", "255.255.255.0"]),
    ("[a-z]+(/[a-z]+)*", words_and_slashes, &["a", "usr/bin", "etc/x/y"]),
    (r#""(\\.|[^"\\])*""#, quoted, &[r#""""#, r#""a\"b""#, r#""é\\""#]),
    ("(?:ja|nein|vielleicht)!?", german, &["ja", "nein!", "vielleicht"]),
];

fn a_then_b(text: &str) -> bool {
    let rest = text.trim_start_matches('a');
    let tail = rest.trim_start_matches('b');
    tail.len() < rest.len() && (tail.is_empty() || tail == "c")
}

fn month(text: &str) -> bool {
    let Some((year, month)) = text.split_once('-') else { return false };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let in_year = month.parse::<u32>().is_ok_and(|m| (1..=12).contains(&m));
    year.len() == 4 && month.len() == 2 && digits(year) && digits(month) && in_year
}

fn four_numbers(text: &str) -> bool {
    let number = |s: &str| (1..=3).contains(&s.chars().count()) && s.chars().all(is_digit);
    text.split('.').count() == 4 && text.split('.').all(number)
}

/// `\d` knows the digits of all scripts; the fixtures' words spell few of them, so this is enough here.
fn is_digit(c: char) -> bool {
    c.is_numeric()
}

fn words_and_slashes(text: &str) -> bool {
    text.split('/').all(|w| !w.is_empty() && w.bytes().all(|b| b.is_ascii_lowercase()))
}

fn quoted(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('"') else { return false };
    let mut chars = rest.chars();
    loop {
        match chars.next() {
            None => return false,
            Some('"') => return chars.as_str().is_empty(),
            Some('\\') if chars.next().is_none_or(|c| c == '\n') => return false,
            Some(_) => {}
        }
    }
}

fn german(text: &str) -> bool {
    ["ja", "nein", "vielleicht"].contains(&text.strip_suffix('!').unwrap_or(text))
}

#[test]
fn texts_of_a_language_are_accepted_and_their_damaged_copies_judged_right() {
    for world in worlds() {
        for (source, is_in, texts) in LANGUAGES {
            let spec = regex(source);
            for text in texts {
                assert!(is_in(text), "the matcher of {source} knows {text:?}");
                for damaged in damage(text) {
                    let (got, want) = (accepts(world, &spec, &damaged), is_in(&damaged));
                    assert_eq!(got, want, "whether {source} is {damaged:?}, {}", world.name);
                }
            }
        }
    }
}

/// A text, and it with a character less, doubled, or replaced.
fn damage(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let mut all = vec![text.to_owned()];
    for i in 0..chars.len() {
        let (before, after): (String, String) =
            (chars[..i].iter().collect(), chars[i + 1..].iter().collect());
        all.push(format!("{before}{after}"));
        all.push(format!("{before}{0}{0}{after}", chars[i]));
        all.push(format!("{before}7{after}"));
    }
    all
}

/// Walk as a model without any taste would: any token that is allowed, ends preferred after a while.
pub fn wander(world: &World, spec: &GuideSpec, dice: &mut Dice, patience: usize) -> Option<String> {
    let mut guide = world.guide(spec);
    let mut tokens = Vec::new();
    for step in 0..patience * 4 {
        let may = allowed(&mut guide, world.vocab);
        let end = may.iter().copied().find(|t| world.ends.contains(t));
        let token = match end {
            Some(end) if step >= patience || may.len() == world.ends.len() => end,
            _ => *dice.pick(&may),
        };
        guide.advance(token).unwrap();
        if world.ends.contains(&token) {
            return Some(world.text(&tokens));
        }
        tokens.push(token);
    }
    None
}

#[test]
fn whatever_is_written_under_an_expression_matches_it() {
    let mut finished = 0;
    for world in worlds() {
        for (source, is_in, _) in LANGUAGES {
            let mut dice = Dice::new(source.len() as u64);
            for _ in 0..60 {
                if let Some(text) = wander(world, &regex(source), &mut dice, 8) {
                    assert!(is_in(&text), "{text:?} was written under {source}, {}", world.name);
                    finished += 1;
                }
            }
        }
    }
    assert!(finished > 1200, "{finished} of 2160 walks came to an end");
}
