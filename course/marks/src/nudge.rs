//! Hints that belong to one gate of an exercise.

use serde::Deserialize;

use crate::Gate;

/// Maximum length of a hint in characters: `cargo x check` shows it whole, on a screen with everything else.
const MAX_CHARS: usize = 400;

/// A hint that is shown instead of the first one when a certain gate is the first that fails.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nudge {
    /// One of the exercise's gates.
    pub gate: Gate,
    /// What to look at when this gate fails.
    pub hint: String,
}

impl Nudge {
    /// The hint for a gate, if there is one.
    pub fn of<'a>(nudges: &'a [Self], gate: &Gate) -> Option<&'a str> {
        nudges.iter().find(|n| n.gate == *gate).map(|n| n.hint.as_str())
    }

    /// What is wrong with the nudges of the exercise `id`, whose gates are `gates`.
    pub fn problem(nudges: &[Self], id: &str, gates: &[Gate]) -> Option<String> {
        nudges.iter().enumerate().find_map(|(n, Self { gate, hint })| {
            if !gates.contains(gate) {
                return Some(format!("{id} has a nudge for {gate}, which is none of its gates"));
            }
            if nudges[..n].iter().any(|earlier| earlier.gate == *gate) {
                return Some(format!("{id} has two nudges for {gate}"));
            }
            let length = hint.chars().count();
            if hint.trim().is_empty() || length > MAX_CHARS {
                return Some(format!(
                    "{id}: the nudge for {gate} has {length} characters; it needs 1 to {MAX_CHARS}"
                ));
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Entry {
        nudges: Vec<Nudge>,
    }

    fn parse(text: &str) -> Result<Vec<Nudge>, String> {
        toml::from_str::<Entry>(text).map(|e| e.nudges).map_err(|e| e.to_string())
    }

    fn gate(text: &str) -> Gate {
        Gate::try_from(text.to_string()).unwrap()
    }

    #[test]
    fn the_hint_of_a_gate_is_found_and_others_have_none() {
        let nudges = parse("nudges = [{ gate = 'lib::tests::a', hint = 'look' }]").unwrap();
        assert_eq!(Nudge::of(&nudges, &gate("lib::tests::a")), Some("look"));
        assert_eq!(Nudge::of(&nudges, &gate("lib::tests::b")), None);
        assert_eq!(Nudge::of(&[], &gate("lib::tests::a")), None);
        assert_eq!(Nudge::problem(&nudges, "l1.a", &[gate("lib::tests::a")]), None);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let gates = [gate("f::a"), gate("f::b")];
        let nudge = |gate: &str, hint: &str| format!("{{ gate = '{gate}', hint = '{hint}' }}");
        let long = "x".repeat(MAX_CHARS + 1);
        for (nudges, said) in [
            (vec![nudge("f::c", "look")], "l1.a has a nudge for f::c, which is none of its gates"),
            (vec![nudge("f::a", "x"), nudge("f::a", "y")], "l1.a has two nudges for f::a"),
            (vec![nudge("f::a", "x"), nudge("f::b", " ")], "the nudge for f::b has 1 characters"),
            (vec![nudge("f::b", &long)], "401 characters; it needs 1 to 400"),
        ] {
            let nudges = parse(&format!("nudges = [{}]", nudges.join(", "))).unwrap();
            let problem = Nudge::problem(&nudges, "l1.a", &gates).unwrap();
            assert!(problem.contains(said), "{problem}");
        }
        assert!(parse("nudges = [{ gate = 'f', hint = 'x' }]").unwrap_err().contains("no test"));
        assert!(parse("nudges = [{ gate = 'f::a' }]").unwrap_err().contains("missing field"));
        assert!(parse("nudges = [{ gate = 'f::a', hint = 'x', x = 1 }]").is_err());
    }
}
