//! Every check of the device, on the CPU that stands in for one; on the device itself where
//! `STRATA_TEST_DEVICE=cuda` asks for it.

use strata_gpu::{Context, Size, parity};

fn context() -> Context {
    let emulated = std::env::var_os("STRATA_TEST_DEVICE").is_none_or(|device| device != "cuda");
    let size = if emulated { Size::Tiny } else { Size::Full };
    Context::new(emulated, size).unwrap_or_else(|e| panic!("no device to test: {e:#}"))
}

#[test]
fn the_device_agrees_with_the_cpu() {
    let verdicts = parity::run(
        &context(),
        |_| true,
        |verdict| {
            println!("{}", strata_gpu::report::verdict_line(verdict));
        },
    );
    let failed: Vec<String> = verdicts
        .iter()
        .filter_map(|verdict| Some(format!("{}: {}", verdict.name, verdict.why.as_ref()?)))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(verdicts.len(), parity::checks().count());
    assert!(verdicts.iter().all(|verdict| verdict.outcome.cases > 0), "a check tried nothing");
}
