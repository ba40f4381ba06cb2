//! What stop strings mean, by trying everything. Slow, and plain enough to be believed.

/// The text as it is to be shown, and the string that ended it. A string counts if it ends behind the first `early`
/// bytes.
pub fn cut<'a>(
    text: &'a str,
    early: usize,
    strings: &[String],
    include: bool,
) -> (&'a str, Option<usize>) {
    // The first end, and there the longest string; of equal strings the first.
    for end in early + 1..=text.len() {
        let ends_here = |s: &&String| text.as_bytes()[..end].ends_with(s.as_bytes());
        if let Some(longest) = strings.iter().filter(ends_here).map(String::len).max() {
            let string = &text[end - longest..end];
            let number = strings.iter().position(|s| s == string);
            return (&text[..if include { end } else { end - longest }], number);
        }
    }
    (text, None)
}

/// What of an unfinished text may be shown: all that is part of it whatever comes. `early` is as in [`cut`], `None` if
/// strings that end in what comes may count or not.
pub fn certain<'a>(
    text: &'a str,
    early: Option<usize>,
    strings: &[String],
    include: bool,
) -> &'a str {
    if let Some(early) = early
        && let (shown, Some(_)) = cut(text, early, strings, include)
    {
        return shown;
    }
    // All that matters of what comes is how it completes a string that the text ends with a part of.
    let mut certain = text.len();
    for string in strings {
        for (half, _) in string.char_indices().skip(1) {
            let Some(rest) = text.ends_with(&string[..half]).then_some(&string[half..]) else {
                continue;
            };
            let whole = format!("{text}{rest}");
            let earlies = match early {
                Some(early) => early..early + 1,
                None => text.len()..whole.len(),
            };
            for early in earlies {
                certain = certain.min(cut(&whole, early, strings, include).0.len());
            }
        }
    }
    &text[..certain]
}
