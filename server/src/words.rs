//! Numbers in sentences.

/// `1 token`, `2 tokens`.
pub fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// A number of bytes with a decimal unit, as disks are sold: `98.4 MB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        1 => "1 byte".to_owned(),
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!([0, 1, 2].map(|n| count(n, "token")), ["0 tokens", "1 token", "2 tokens"]);
        assert_eq!([0, 1, 999].map(size), ["0 bytes", "1 byte", "999 bytes"]);
    }

    #[test]
    fn a_size_has_a_unit_in_which_it_is_not_zero() {
        let sizes = [1_000, 36_864, 98_400_000, 2_500_000_000].map(size);
        assert_eq!(sizes, ["1.0 kB", "36.9 kB", "98.4 MB", "2.5 GB"]);
    }
}
