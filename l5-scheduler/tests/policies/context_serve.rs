//! `context-serve`: which tool calls hold the blocks of a step, and for how long.

use l5_scheduler::{PolicyKind, Request, Time};

use crate::driver::{Driver, unique};
use crate::leases::leased;
use crate::retentions::{config, driver, serve, step_of};

fn agents() -> Driver {
    driver(config(PolicyKind::ContextServe, 400))
}

/// Serves a step of a job, alone, whose output calls a tool that runs a command. Returns the seconds for which its
/// blocks are held.
fn held(
    driver: &mut Driver,
    tool: Option<&str>,
    command: Option<&str>,
    request: Request,
) -> Option<f64> {
    driver.command = command.map(str::to_owned);
    let (id, at) = (request.id, request.arrival.seconds());
    let end = serve(driver, tool, request, at);
    let lease = driver.scheduler.leases().iter().find(|lease| lease.request == id)?;
    Some((lease.until()? - Time(end)).max(0.0))
}

/// The first step of a job of its own.
fn first(id: u64, at: f64) -> Request {
    step_of(&format!("job {id}"), false, id, &unique(id, 10), 1, at)
}

/// A job whose only call of a command takes so long, and the seconds for which its blocks were held.
fn whole_job(
    driver: &mut Driver,
    command: &str,
    id: u64,
    tenant: &str,
    at: f64,
    pause: f64,
) -> Option<f64> {
    let of_tenant = |request| Request { cache_salt: Some(tenant.to_owned()), ..request };
    let seconds = held(driver, Some("bash"), Some(command), of_tenant(first(id, at)));
    let job = format!("job {id}");
    let back = step_of(&job, true, id + 1_000_000, &unique(id, 10), 1, at + pause);
    serve(driver, None, of_tenant(back), at + pause);
    seconds
}

#[test]
fn a_call_of_ls_holds_its_blocks_for_three_seconds() {
    let mut driver = agents();
    let seconds = held(&mut driver, Some("bash"), Some("cd src && ls -la"), first(1, 5.0));
    assert_eq!(seconds, Some(3.0));
    driver.step(7.99);
    assert_eq!(leased(&driver), [1]);
    driver.step(8.0);
    assert_eq!(leased(&driver), [0; 0], "its time has come");
}

#[test]
fn a_call_that_is_known_to_be_slow_frees_the_blocks_at_once() {
    let mut driver = agents();
    for (id, command) in (1..).zip([
        "sleep 60",
        "pytest",
        "cd repo && python -m pytest -q 2>&1 | tail -20",
        "cargo build",
        "pip install numpy",
        "seq 1 1000000 | xargs -n1 echo | sort -R | md5sum",
    ]) {
        let seconds = held(&mut driver, Some("bash"), Some(command), first(id, id as f64));
        assert_eq!(seconds, None, "{command}");
    }
    assert_eq!(driver.scheduler.lease_stats().made, 0);
}

#[test]
fn without_a_command_the_name_of_the_tool_counts() {
    let mut driver = agents();
    // The driver puts the number of the request behind the name.
    assert_eq!(held(&mut driver, Some("ls"), None, first(1, 1.0)), Some(3.0));
    assert_eq!(held(&mut driver, Some("pytest"), None, first(2, 2.0)), None);
}

#[test]
fn a_call_of_which_nothing_is_known_holds_its_blocks_for_the_time_of_continuum() {
    let mut driver = agents();
    assert_eq!(held(&mut driver, Some("f"), Some("get_weather"), first(1, 1.0)), Some(2.0));
}

#[test]
fn a_step_without_a_known_tool_and_a_last_step_leave_no_lease() {
    let mut driver = agents();
    assert_eq!(held(&mut driver, None, Some("ls"), first(1, 1.0)), None, "no tool");
    let last = step_of("b", true, 2, &unique(2, 10), 1, 2.0);
    assert_eq!(held(&mut driver, Some("bash"), Some("ls"), last), None, "a last step");
    let alone = Request { job: None, ..first(3, 3.0) };
    assert_eq!(held(&mut driver, Some("bash"), Some("ls"), alone), None, "no step of a job");
    driver.step(9.0);
    assert_eq!(driver.scheduler.lease_stats().made, 0);
}

#[test]
fn a_tool_that_was_short_often_holds_blocks_for_most_of_its_pauses() {
    let mut driver = agents();
    let mut job = |n: u64, command: &str, pause| {
        whole_job(&mut driver, command, n, "a", 100.0 * n as f64, pause)
    };
    let before: Vec<_> = (1..=8).map(|n| job(n, "./check.sh --fast", 0.2)).collect();
    assert!(before.iter().all(|seconds| *seconds == before[0]), "{before:?}");
    let seconds = job(9, "cd repo && ./check.sh --slow", 0.2).expect("it is short");
    assert!((0.2..2.0).contains(&seconds) && before[0] != Some(seconds), "{seconds}");
    // It becomes slow, and so it is taken for slow.
    let after: Vec<_> = (10..40).map(|n| job(n, "./check.sh", 40.0)).collect();
    assert_eq!(after[29], None, "{after:?}");
    assert_eq!(job(40, "ls", 40.0), Some(3.0), "rules come first");
}

#[test]
fn tenants_do_not_learn_of_each_other() {
    let mut driver = agents();
    let mut job = |n: u64, tenant: &str, pause| {
        whole_job(&mut driver, "./check.sh", n, tenant, 100.0 * n as f64, pause)
    };
    for n in 0..12 {
        job(2 * n, "slow", 30.0);
        job(2 * n + 1, "quick", 0.1);
    }
    assert_eq!(job(30, "slow", 30.0), None);
    let seconds = job(31, "quick", 0.1).expect("it is short");
    assert!(seconds < 2.0, "{seconds}");
}

/// Pauses of a tool are 1.35 or 2.6 s, so it is not certain that their median is below 2 s: it is drawn. (Their mean is
/// below 2 s, so blocks are held if the tool is not taken for slow.)
fn drawn(beside: bool) -> Vec<Option<f64>> {
    let mut driver = agents();
    let mut all = Vec::new();
    for n in 0..40 {
        let pause = if n % 2 == 0 { 1.35 } else { 2.6 };
        all.push(whole_job(&mut driver, "./check.sh", n, "a", 100.0 * n as f64, pause));
        if beside {
            let at = 100.0 * n as f64 + 50.0;
            whole_job(&mut driver, "./other.sh", 500 + n, "a", at, 0.1 * n as f64);
        }
    }
    all
}

#[test]
fn what_is_drawn_for_a_job_depends_on_the_job_alone() {
    let alone = drawn(false);
    let late = &alone[8..];
    assert!(late.contains(&None) && late.iter().any(Option::is_some), "both happen: {alone:?}");
    assert_eq!(drawn(false), alone, "the same schedule again");
    assert_eq!(drawn(true), alone, "with draws for other jobs between them");
}
