//! Two long values, of which only the part that differs is of interest.

/// How many characters of a value are shown.
const SHOWN: usize = 78;
/// How many of them lie before the first that differs.
const BEFORE: usize = 30;

/// Both values as they are if they are short; otherwise the part around the first difference, at the
/// same place in both, with `..` where something was left out.
pub fn around_difference(one: &str, other: &str) -> (String, String) {
    // A value over several lines would not stay beside its label.
    let (one, other) = (one_line(one), one_line(other));
    let longest = one.len().max(other.len());
    if longest <= SHOWN {
        return (one.iter().collect(), other.iter().collect());
    }
    let same = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    let from = same.saturating_sub(BEFORE);
    (window(&one, from), window(&other, from))
}

fn window(text: &[char], from: usize) -> String {
    let from = from.min(text.len());
    let head = if from > 0 { ".." } else { "" };
    let room = SHOWN - head.len();
    let rest = &text[from..];
    if rest.len() <= room {
        return head.to_string() + &rest.iter().collect::<String>();
    }
    format!("{head}{}..", rest[..room - 2].iter().collect::<String>())
}

fn one_line(text: &str) -> Vec<char> {
    text.split('\n').map(str::trim).collect::<Vec<_>>().join(" ").chars().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_values_are_shown_whole_and_on_one_line() {
        assert_eq!(around_difference("[1, 2]", "[1,\n  3]"), ("[1, 2]".into(), "[1, 3]".into()));
    }

    #[test]
    fn long_values_are_shown_around_what_differs() {
        let list = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
        let want = list(500);
        let got = want.replacen(" 250,", " xyz,", 1);
        let (a, b) = around_difference(&want, &got);
        assert!(a.contains(" 250,") && b.contains(" xyz,"), "{a}\n{b}");
        assert_eq!(a.find("250"), b.find("xyz"), "one above the other");
        for shown in [&a, &b] {
            assert!(shown.starts_with("..") && shown.ends_with(".."), "{shown}");
            assert_eq!(shown.chars().count(), SHOWN);
        }
    }

    #[test]
    fn a_value_that_ends_early_shows_its_end() {
        let long = "a".repeat(300);
        let (whole, cut) = around_difference(&long, &long[..200]);
        assert_eq!(cut, format!("..{}", "a".repeat(BEFORE)));
        assert_eq!(whole.len(), SHOWN);
        let (empty, _) = around_difference("", &long);
        assert_eq!(empty, "");
    }

    #[test]
    fn letters_of_several_bytes_are_not_torn() {
        let one = "ä".repeat(200);
        let (a, _) = around_difference(&one, &one.replacen('ä', "ö", 1));
        assert_eq!(a.chars().count(), SHOWN);
    }
}
