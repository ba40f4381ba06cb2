//! Rules: commands whose duration is known by their names.

use super::estimate::{Estimate, FAST_PIN, LONG_SECONDS};
use super::features::{Feature, Features};

/// Estimate for a command that builds, tests or installs, or sleeps, or of which all parts look at a file or two.
/// `None` for all others.
pub(super) fn estimate(features: &Features) -> Option<Estimate> {
    let count = |feature| features.get(feature);
    if count(Feature::Slow) > 0.0 || f64::from(count(Feature::SleepSeconds)) > LONG_SECONDS {
        return Some(Estimate::Slow);
    }
    // A loop may be long, and what runs in a substitution or in the background is not looked at.
    let again = [Feature::Loops, Feature::Background, Feature::Substitutions].map(count);
    let all_fast = count(Feature::Fast) > 0.0 && count(Feature::Fast) == count(Feature::Commands);
    (all_fast && again == [0.0; 3]).then_some(Estimate::Fast(FAST_PIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_commands_are_known_by_their_names() {
        let (fast, slow) = (Some(Estimate::Fast(3.0)), Some(Estimate::Slow));
        for (text, expected) in [
            ("ls", fast),
            ("cd src && ls -la | head -5", fast),
            ("cat > f.py <<'EOF'\nimport os\nEOF", fast),
            ("git status", fast),
            ("cargo --version", fast),
            ("sleep 60", slow),
            ("sleep 1", None),
            ("ls; sleep 1; sleep 1.5", slow),
            ("pytest", slow),
            ("cd repo && python -m pytest -q | tail -5", slow),
            ("cargo build", slow),
            ("pip install numpy", slow),
            ("tail -f log", slow),
            ("for f in *; do cat $f; done", None),
            ("cat $(find / -name x)", None),
            ("grep -rn x .", None),
            ("python x.py", None),
            ("get_weather", None),
            ("", None),
        ] {
            assert_eq!(estimate(&Features::of(text)), expected, "{text}");
        }
    }
}
