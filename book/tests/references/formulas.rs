//! Formulas: all of them can be typeset.

use strata_book::math;

use crate::none;
use crate::pages::{all, spans};

#[test]
fn every_formula_can_be_typeset() {
    let mut problems = Vec::new();
    let mut seen = 0;
    for page in all() {
        seen += math::formulas(&page.text).map_or(0, |found| found.len());
        if let Err(found) = math::typeset(&page.text) {
            problems.extend(found.into_iter().map(|e| format!("{}:{e}", page.name)));
        }
    }
    assert!(seen > 100, "only {seen} formulas found: is this test reading them?");
    none(&problems);
}

#[test]
fn a_formula_is_no_code_span() {
    let text = "Take `a`, $`x_i`$ and `b$`; `$c` costs 3 $, and `d`.\n```math\n`e`\n```\n";
    let code: Vec<&str> = spans(text).into_iter().map(|(_, span)| span).collect();
    assert_eq!(code, ["a", "b$", "$c", "d"]);
}
