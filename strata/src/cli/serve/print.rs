//! `--print-config`: the resulting configuration, as a file that `--config` reads, with the source of each value.

use std::fmt::Write;

use clap::Arg;
use toml::Value;

use super::beside_ensemble::{Beside, beside};
use super::layers::{Layers, command, is_setting};

/// Column of the comments.
const COLUMN: usize = 44;

/// All flags, in the order of the help.
pub fn config(layers: &Layers) -> String {
    let command = command();
    let mut text = String::new();
    let mut heading = None;
    let settings = command.get_arguments().filter(|arg| is_setting(arg) && !arg.is_hide_set());
    for arg in settings.filter(|arg| arg.get_id() != "config") {
        let own = arg.get_help_heading();
        if own != heading {
            let gap = if heading.is_some() { "\n" } else { "" };
            let _ = writeln!(text, "{gap}# {}", own.unwrap_or_default());
            heading = own;
        }
        let _ = writeln!(text, "{}", line(arg, layers));
    }
    text
}

fn line(arg: &Arg, layers: &Layers) -> String {
    let key = arg.get_long().unwrap_or_default();
    let id = arg.get_id().as_str();
    if layers.get("ensemble").is_some() {
        match beside(id) {
            Beside::InFile(field) => {
                return padded(&format!("# {key}"), &format!("by the ensemble: {field}"));
            }
            Beside::OneModel => return padded(&format!("# {key}"), "for a server of one model"),
            Beside::Default(_) | Beside::All => {}
        }
    }
    let (values, source) = match layers.get(id) {
        Some((values, source)) => (values.to_vec(), source.to_string()),
        None => {
            let values = arg.get_default_values().iter().map(|value| value.to_os_string());
            (values.collect(), "default".to_owned())
        }
    };
    // `--no-...` on the command line sets the flag that it turns off.
    if layers.get(&format!("no_{id}")).is_some() {
        return padded(&format!("{key} = false"), "command line");
    }
    if id == "model"
        && let Some((which, source)) = layers.get("which")
    {
        let which = which.iter().map(|w| value(&w.to_string_lossy())).collect::<Vec<_>>();
        return padded(&format!("{key} = {}", which.join("")), &source.to_string());
    }
    if id == "api_key" && !values.is_empty() {
        return format!("# {key}: {} set by {source}, not shown", values.len());
    }
    let mut words: Vec<String> = values.iter().map(|v| value(&v.to_string_lossy())).collect();
    match (words.len(), words.pop()) {
        (_, None) => padded(&format!("# {key}"), unset(arg).as_str()),
        (1, Some(word)) => {
            let specialists = layers.get("ensemble").is_some() && beside(id) != Beside::All;
            let of = if specialists { ", for specialists that do not set it" } else { "" };
            padded(&format!("{key} = {word}"), &format!("{source}{of}"))
        }
        (_, Some(last)) => {
            words.push(last);
            padded(&format!("{key} = [{}]", words.join(", ")), &source)
        }
    }
}

fn padded(setting: &str, comment: &str) -> String {
    format!("{setting:COLUMN$}  # {comment}")
}

/// The default of a flag that was not given, from its help.
fn unset(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let default_of = help.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
    default_of.map_or("not set", |(default, _)| default).replace('\n', " ")
}

/// A value in TOML.
fn value(text: &str) -> String {
    if text == "true" || text == "false" {
        return text.to_owned();
    }
    match text.parse::<i64>() {
        Ok(n) if n.to_string() == text => text.to_owned(),
        _ => Value::from(text).to_string(),
    }
}
