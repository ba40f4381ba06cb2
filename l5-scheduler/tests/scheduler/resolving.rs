//! Which tokens of a step count, and who ends with them.

use l5_scheduler::{
    FinishReason, Request, RequestId, Resolved, Scheduler, SchedulerConfig, StepOutput,
};

use super::world::{config, request};

/// Which row, its tokens, and why it ends.
type Out<'a> = (usize, &'a [u32], Option<FinishReason>);

/// Whose row, the tokens that count, and why it ends.
type Row = (u64, Vec<u32>, Option<FinishReason>);

/// What counts of a step in which each row gets these tokens, and perhaps an end.
fn resolve(scheduler: &Scheduler, rows: &[Out<'_>]) -> Vec<Row> {
    try_resolve(scheduler, rows).expect("an output that fits the step")
}

fn try_resolve(scheduler: &Scheduler, rows: &[Out<'_>]) -> Result<Vec<Row>, String> {
    let mut output = StepOutput::default();
    rows.iter().for_each(|(row, tokens, finish)| output.push(*row, tokens, *finish));
    let mut resolved = Resolved::default();
    scheduler.resolve(&output, &mut resolved).map_err(|e| e.to_string())?;
    Ok(resolved.rows().map(|row| (row.id.0, row.tokens.to_vec(), row.finish)).collect())
}

/// These requests in the midst of their first step.
fn planned(config: SchedulerConfig, requests: &[Request]) -> Scheduler {
    let mut scheduler = Scheduler::new(config).unwrap();
    for request in requests {
        scheduler.add_request(request.clone()).unwrap();
    }
    scheduler.plan(l5_scheduler::Time::ZERO);
    scheduler
}

/// One request that ends at 7, or at 8 or 9, or after 3 tokens.
fn one() -> Scheduler {
    let ends = Request { eos: vec![7], stop_token_ids: vec![8, 9], max_tokens: 3, ..request(1, 5) };
    planned(config(8), &[ends])
}

#[test]
fn a_token_that_ends_nothing_is_just_a_token() {
    assert_eq!(resolve(&one(), &[(0, &[5], None)]), [(1, vec![5], None)], "a token 5");
    // Many a tokenizer pads with token 0. That is no reason to end when the model says it.
    assert_eq!(resolve(&one(), &[(0, &[0], None)]), [(1, vec![0], None)], "a token 0");
}

#[test]
fn an_end_token_is_said_and_ends() {
    let stop = Some(FinishReason::Stop);
    assert_eq!(resolve(&one(), &[(0, &[7], None)]), [(1, vec![7], stop)], "the model's end token");
    assert_eq!(resolve(&one(), &[(0, &[8], None)]), [(1, vec![8], stop)], "a stop token");
    assert_eq!(resolve(&one(), &[(0, &[9], None)]), [(1, vec![9], stop)], "another stop token");
}

#[test]
fn who_ignores_the_end_token_goes_on() {
    let deaf = planned(config(8), &[Request { eos: vec![], ..request(1, 5) }]);
    assert_eq!(resolve(&deaf, &[(0, &[7], None)]), [(1, vec![7], None)], "a token 7");
}

#[test]
fn an_answer_has_at_most_its_length() {
    let length = Some(FinishReason::Length);
    assert_eq!(resolve(&one(), &[(0, &[5, 5], None)]), [(1, vec![5, 5], None)], "two of three");
    assert_eq!(resolve(&one(), &[(0, &[5, 5, 5], None)]), [(1, vec![5, 5, 5], length)], "three");
    let single = planned(config(8), &[Request { max_tokens: 1, ..request(1, 5) }]);
    assert_eq!(resolve(&single, &[(0, &[5], None)]), [(1, vec![5], length)], "one of one");
}

#[test]
fn prompt_and_answer_have_at_most_the_models_length() {
    let short = SchedulerConfig { max_model_len: 7, ..config(8) };
    let scheduler = planned(short, &[request(1, 5)]);
    assert_eq!(resolve(&scheduler, &[(0, &[4], None)]), [(1, vec![4], None)], "6 tokens of 7");
    let length = Some(FinishReason::Length);
    assert_eq!(resolve(&scheduler, &[(0, &[4, 4], None)]), [(1, vec![4, 4], length)], "7 of 7");
}

#[test]
fn an_end_token_comes_before_the_length() {
    let end = Some(FinishReason::Stop);
    assert_eq!(
        resolve(&one(), &[(0, &[5, 5, 7], None)]),
        [(1, vec![5, 5, 7], end)],
        "both at once"
    );
}

#[test]
fn what_comes_behind_an_end_was_never_said() {
    let end = Some(FinishReason::Stop);
    assert_eq!(resolve(&one(), &[(0, &[5, 7, 6], None)]), [(1, vec![5, 7], end)], "7 ends it");
    let length = Some(FinishReason::Length);
    let five = resolve(&one(), &[(0, &[5; 5], None)]);
    assert_eq!(five, [(1, vec![5; 3], length)], "three of five drafts");
    let cut = resolve(&one(), &[(0, &[5, 7, 6], Some(FinishReason::Failed))]);
    assert_eq!(cut, [(1, vec![5, 7], end)], "an end that the executor saw behind the end");
}

#[test]
fn the_executor_may_have_a_reason_of_its_own() {
    let end = Some(FinishReason::Stop);
    assert_eq!(resolve(&one(), &[(0, &[5], end)]), [(1, vec![5], end)], "a stop string, say");
    let both = resolve(&one(), &[(0, &[5, 5, 5], end)]);
    assert_eq!(both, [(1, vec![5; 3], end)], "a stop string that ends with the last token");
    let failed = Some(FinishReason::Failed);
    assert_eq!(resolve(&one(), &[(0, &[], failed)]), [(1, vec![], failed)], "no token at all");
}

#[test]
fn each_row_is_its_own_requests() {
    let requests = [
        request(1, 5),
        Request { eos: vec![4], ..request(2, 3) },
        Request { max_tokens: 1, ..request(3, 4) },
    ];
    let scheduler = planned(config(8), &requests);
    let rows = resolve(&scheduler, &[(0, &[4], None), (1, &[4], None), (2, &[4], None)]);
    let ends = [None, Some(FinishReason::Stop), Some(FinishReason::Length)];
    assert_eq!(rows, [1, 2, 3].map(|id| (id, vec![4], ends[id as usize - 1])), "a token 4 each");
}

#[test]
fn who_is_not_wanted_any_more_says_nothing() {
    let mut scheduler = planned(config(8), &[request(1, 5), request(2, 3)]);
    assert!(scheduler.abort(RequestId(1)), "there is such a request");
    let rows = resolve(&scheduler, &[(0, &[6], None), (1, &[4], None)]);
    assert_eq!(rows, [(2, vec![4], None)], "request 1 was aborted while the model ran");
}

#[test]
fn an_output_that_does_not_fit_the_step_is_an_error() {
    // Of three rows the last one is not complete, so it gets no token.
    let tight = SchedulerConfig { max_num_batched_tokens: 10, ..config(8) };
    let scheduler = planned(tight, &[request(1, 5), request(2, 3), request(3, 5)]);
    assert!(try_resolve(&scheduler, &[(0, &[6], None), (1, &[4], None)]).is_ok(), "two tokens");
    let wrong: [&[Out<'_>]; 5] = [
        &[(0, &[6], None)],
        &[(1, &[4], None), (0, &[6], None)],
        &[(0, &[6], None), (1, &[4], None), (2, &[9], None)],
        &[(0, &[6], None), (1, &[], None)],
        &[(0, &[6], None), (0, &[6], None), (1, &[4], None)],
    ];
    for rows in wrong {
        assert!(try_resolve(&scheduler, rows).is_err(), "this went through: {rows:?}");
    }
}
