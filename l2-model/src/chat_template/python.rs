//! Values in the form that Python prints. Chat templates are written for Python, and models were trained on
//! its output: `True` and not `true`, `{'a': 1}`, `1e-05`, and JSON with a space after each comma.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Value as Jinja, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Output, State};
use minijinja_contrib::pycompat;
use serde_json::{Map, Value};

/// Converts a JSON value to a template value, objects in their order.
pub(super) fn value(json: &Value) -> Jinja {
    match json {
        Value::Null => Jinja::from(()),
        Value::Bool(b) => Jinja::from(*b),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Jinja::from(n),
            (None, Some(n)) => Jinja::from(n),
            (None, None) => Jinja::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(s) => Jinja::from(s.as_str()),
        Value::Array(items) => items.iter().map(value).collect(),
        Value::Object(fields) => object(fields),
    }
}

/// Converts a JSON object to a template value.
pub(super) fn object(fields: &Map<String, Value>) -> Jinja {
    Jinja::from_pairs(fields.iter().map(|(name, field)| (name.as_str(), value(field))))
}

/// Output of `{{ value }}`.
pub(super) fn print(out: &mut Output, value: &Jinja) -> Result<(), Error> {
    out.write_str(&text(value)?).map_err(|_| Error::from(ErrorKind::WriteFailure))
}

/// Python's `str(value)`; undefined prints as nothing, as in Jinja2.
pub(super) fn text(value: &Jinja) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_undefined() => Ok(String::new()),
        None => {
            let mut out = String::new();
            repr(value, &mut out)?;
            Ok(out)
        }
    }
}

/// Python's `repr(value)`.
fn repr(value: &Jinja, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&float(f64::try_from(value.clone())?))
        }
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()? {
                out.push_str(if count > 0 { ", " } else { "" });
                repr(&item, out)?;
                count += 1;
            }
            // Python's tuple of one: `(1,)`.
            out.push_str(if value.is_tuple() && count == 1 { "," } else { "" });
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        // minijinja prints the rest (True, None, integers) as Python does.
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// Single quotes, unless double quotes need fewer escapes.
fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(mark);
}

/// Shortest float as in Python: as in Rust, but the exponent has a sign and two digits.
fn float(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() { "nan".into() } else { if x > 0.0 { "inf" } else { "-inf" }.into() };
    }
    let text = format!("{x:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}

/// Methods of Python's values that minijinja does not have: those of its own compatibility layer, and the few
/// others that chat templates use.
pub(super) fn method(
    state: &mut State,
    value: &Jinja,
    name: &str,
    args: &[Jinja],
) -> Result<Jinja, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, name, args);
    };
    match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Jinja::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Jinja::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "rsplit" => {
            let (separator, most): (&str, Option<i64>) = from_args(args)?;
            if separator.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "rsplit: empty separator"));
            }
            let pieces = most
                .and_then(|most| usize::try_from(most).ok())
                .map_or(usize::MAX, |n| n.saturating_add(1));
            let mut parts: Vec<&str> = text.rsplitn(pieces, separator).collect();
            parts.reverse();
            Ok(parts.into_iter().collect())
        }
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// Options of `json.dumps`.
struct Style {
    ascii: bool,
    sort: bool,
    /// One level of indentation; `None` writes everything on one line.
    indent: Option<String>,
    item: String,
    key: String,
}

/// The `tojson` of transformers: `json.dumps(x, ensure_ascii, indent, separators, sort_keys)`, without HTML escapes.
pub(super) fn tojson(
    value: &Jinja,
    ensure_ascii: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let indent = match kwargs.get::<Option<Jinja>>("indent")?.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(64)),
        }),
    };
    let ascii = match ensure_ascii {
        Some(ascii) => ascii,
        None => kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    let (item, key) = match kwargs.get::<Option<Vec<String>>>("separators")?.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: separators are two strings",
            ));
        }
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let sort = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let mut out = String::new();
    dump(value, &Style { ascii, sort, indent, item, key }, 0, &mut out)?;
    Ok(out)
}

fn dump(value: &Jinja, style: &Style, depth: usize, out: &mut String) -> Result<(), Error> {
    let new_line = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => {
            let x = f64::try_from(value.clone())?;
            match x.is_finite() {
                true => out.push_str(&float(x)),
                false => out.push_str(if x.is_nan() {
                    "NaN"
                } else if x > 0.0 {
                    "Infinity"
                } else {
                    "-Infinity"
                }),
            }
        }
        ValueKind::String => json_string(value.as_str().unwrap_or_default(), style.ascii, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let mut empty = true;
            out.push('[');
            for item in value.try_iter()? {
                out.push_str(if empty { "" } else { &style.item });
                new_line(depth + 1, out);
                dump(&item, style, depth + 1, out)?;
                empty = false;
            }
            if !empty {
                new_line(depth, out);
            }
            out.push(']');
        }
        ValueKind::Map => {
            let mut keys: Vec<Jinja> = value.try_iter()?.collect();
            if style.sort {
                keys.sort();
            }
            out.push('{');
            for (i, key) in keys.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { &style.item });
                new_line(depth + 1, out);
                match key.as_str() {
                    Some(key) => json_string(key, style.ascii, out),
                    None => {
                        // Python converts other keys to their JSON text, in quotes.
                        let mut text = String::new();
                        dump(key, style, 0, &mut text)?;
                        json_string(&text, style.ascii, out);
                    }
                }
                out.push_str(&style.key);
                dump(&value.get_item(key)?, style, depth + 1, out)?;
            }
            if !keys.is_empty() {
                new_line(depth, out);
            }
            out.push('}');
        }
        other => {
            let message = format!("tojson: {other} is not JSON serializable");
            return Err(Error::new(ErrorKind::BadSerialization, message));
        }
    }
    Ok(())
}

fn json_string(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && c > '~') => {
                // Beyond the basic plane: two UTF-16 units, each escaped. DEL is never escaped.
                if c == '\u{7f}' {
                    out.push(c);
                    continue;
                }
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// `strftime` in English and UTC. Python uses the machine's time zone; a prompt must not depend on where the
/// server is.
pub(super) fn strftime(now: SystemTime, format: &str) -> Result<String, Error> {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let (days, clock) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    let weekday = (days + 4).rem_euclid(7); // 1970-01-01 was a Thursday.
    let day_of_year = days - days_from_civil(year, 1, 1) + 1;
    let (day_name, month_name) = (DAYS[weekday as usize], MONTHS[month as usize - 1]);
    let hour12 = (hour + 11) % 12 + 1;
    let half = if hour < 12 { "AM" } else { "PM" };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        // glibc's `%-d`: the number without its leading zero.
        let bare = code == Some('-');
        if bare {
            code = chars.next();
        }
        let number =
            |width: usize, n: i64| if bare { n.to_string() } else { format!("{n:0width$}") };
        out.push_str(&match code {
            Some('Y') => year.to_string(),
            Some('y') => number(2, year.rem_euclid(100)),
            Some('m') => number(2, month),
            Some('d') => number(2, day),
            Some('e') => format!("{day:>2}"),
            Some('j') => number(3, day_of_year),
            Some('H') => number(2, hour),
            Some('I') => number(2, hour12),
            Some('M') => number(2, minute),
            Some('S') => number(2, second),
            Some('p') => half.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('u') => ((weekday + 6) % 7 + 1).to_string(),
            Some('w') => weekday.to_string(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('D') => format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let code = other.map_or(String::new(), String::from);
                let message = format!("strftime_now: `%{code}` is not supported");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        });
    }
    Ok(out)
}

/// Year, month and day of a count of days since 1970-01-01 (Howard Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms"). Years begin in March, so that the leap day comes last; 146,097 days are 400 years.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, date)
}

/// The inverse of [`civil`].
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let day = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year * 365 + year / 4 - year / 100 + day - 719_468
}
