//! strata
fn main() {}
