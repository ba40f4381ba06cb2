//! The suffix drafter: whose text is found, how occurrences vote, and what ends a draft.

use l4_sampler::draft::{
    DraftError, Drafter, MAX_CACHED_TOKENS, NgramDrafter, SuffixDrafter, SuffixOptions,
};

use super::proposed::{draft, propose};

fn drafter() -> SuffixDrafter {
    SuffixDrafter::new(SuffixOptions { max_cached_tokens: 1000, ..SuffixOptions::default() })
}

/// Runs a request to its end.
fn ended(drafter: &mut SuffixDrafter, tenant: Option<&str>, output: &[u32]) {
    drafter.begin(99, &[], tenant, output.len());
    drafter.extend(99, output);
    drafter.end(99);
}

#[test]
fn a_repeated_part_of_the_prompt_is_drafted() {
    let mut drafter = drafter();
    drafter.begin(0, &[1, 2, 3, 4, 5, 6], None, 10);
    drafter.extend(0, &[9, 1, 2, 3]);
    assert_eq!(draft(&mut drafter, 0, 10), [4, 5, 6], "as many tokens as the match has");
    assert_eq!(draft(&mut drafter, 0, 2), [4, 5]);
    assert_eq!(draft(&mut drafter, 0, 0), [0; 0]);
}

#[test]
fn one_equal_token_is_no_match() {
    let mut drafter = drafter();
    drafter.begin(0, &[1, 2, 3], None, 10);
    drafter.extend(0, &[9, 2]);
    assert_eq!(draft(&mut drafter, 0, 10), [0; 0]);
}

#[test]
fn outputs_of_ended_requests_are_found() {
    let mut drafter = drafter();
    ended(&mut drafter, None, &[10, 11, 12, 13, 14, 15]);
    drafter.begin(0, &[1], None, 10);
    assert_eq!(draft(&mut drafter, 0, 10), [0; 0]);
    drafter.extend(0, &[11, 12]);
    assert_eq!(draft(&mut drafter, 0, 10), [13, 14]);
}

#[test]
fn outputs_of_running_requests_are_found_while_they_mix() {
    let mut drafter = drafter();
    drafter.begin(0, &[1], Some("a"), 10);
    drafter.begin(1, &[2], Some("a"), 10);
    for i in 0..6 {
        drafter.extend(0, &[10 + i]);
        drafter.extend(1, &[20 + i]);
    }
    drafter.begin(2, &[3, 11, 12, 13], Some("a"), 10);
    assert_eq!(draft(&mut drafter, 2, 10), [14, 15]);
    drafter.extend(2, &[21, 22]);
    assert_eq!(draft(&mut drafter, 2, 10), [23, 24]);
}

#[test]
fn prompts_of_other_requests_are_not_looked_at() {
    let mut drafter = drafter();
    drafter.begin(0, &[10, 11, 12, 13], None, 10);
    drafter.begin(1, &[10, 11], None, 10);
    assert_eq!(draft(&mut drafter, 1, 10), [0; 0]);
}

#[test]
fn an_output_ends_where_it_ends() {
    let mut drafter = drafter();
    ended(&mut drafter, None, &[10, 11, 12]);
    ended(&mut drafter, None, &[13, 14, 15]);
    drafter.begin(0, &[10, 11], None, 10);
    assert_eq!(draft(&mut drafter, 0, 10), [12]);
    // No occurrence goes over the boundary either.
    drafter.begin(0, &[12, 13], None, 10);
    assert_eq!(draft(&mut drafter, 0, 10), [0; 0]);
}

#[test]
fn requests_without_a_tenant_are_a_tenant_of_their_own() {
    let mut drafter = drafter();
    ended(&mut drafter, None, &[10, 11, 12]);
    ended(&mut drafter, Some(""), &[20, 21, 22]);
    for (tenant, last, expected) in [
        (None, [10, 11], &[12][..]),
        (None, [20, 21], &[]),
        (Some(""), [20, 21], &[22]),
        (Some(""), [10, 11], &[]),
        (Some("a"), [10, 11], &[]),
    ] {
        drafter.begin(0, &last, tenant, 10);
        assert_eq!(draft(&mut drafter, 0, 1), expected, "tenant {tenant:?} after {last:?}");
    }
}

#[test]
fn the_most_frequent_continuation_wins_and_of_equals_the_newest() {
    let mut drafter = drafter();
    for next in [5, 6, 5, 7] {
        ended(&mut drafter, None, &[1, 2, next]);
    }
    drafter.begin(0, &[1, 2], None, 10);
    assert_eq!(draft(&mut drafter, 0, 1), [5]);
    ended(&mut drafter, None, &[1, 2, 7]);
    assert_eq!(draft(&mut drafter, 0, 1), [7]);
}

#[test]
fn a_draft_ends_where_it_is_no_longer_likely() {
    let options = SuffixOptions {
        max_cached_tokens: 1000,
        max_spec_factor: 8.0,
        min_token_prob: 0.3,
        ..SuffixOptions::default()
    };
    let mut drafter = SuffixDrafter::new(options);
    // Behind 1 2 always 3; then 4 in three of four; then 5 in one of these three: 1, 3/4, 1/4.
    for output in [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 3, 4, 7], [1, 2, 3, 8, 9]] {
        ended(&mut drafter, None, &output);
    }
    drafter.begin(0, &[1, 2], None, 10);
    assert_eq!(propose(&mut drafter, &[(0, 10)])[0], (vec![3, 4], vec![12, 8]));
}

#[test]
fn classes_rise_with_the_share_and_the_length_of_the_match() {
    for (len, matched) in [(2, 0), (3, 0), (4, 1), (7, 1), (8, 2), (15, 2), (16, 3), (24, 3)] {
        for (others, share) in [(0, 3), (1, 2), (2, 1)] {
            let mut drafter = drafter();
            let last: Vec<u32> = (100..100 + len).collect();
            // Three of 3 + n, or two of 2 + n for a share of 1/2.
            let same = if others == 2 { 2 } else { 3 };
            for next in [vec![7; same], vec![8; others]].concat() {
                ended(&mut drafter, None, &[&last[..], &[next]].concat());
            }
            ended(&mut drafter, None, &[&last[1..], &[7]].concat());
            drafter.begin(0, &last, None, 10);
            let classes = &propose(&mut drafter, &[(0, 1)])[0].1;
            let expected = 4 * share + matched;
            // (The last output above has a shorter match, which does not vote.)
            assert_eq!(classes[..], [expected], "{len} tokens, {same} and {others}");
        }
    }
}

#[test]
fn the_better_of_own_text_and_other_outputs_is_drafted() {
    let mut drafter = drafter();
    ended(&mut drafter, None, &[1, 2, 3, 50, 51, 52]);
    // Its own text has a match of two tokens, the other output one of three.
    drafter.begin(0, &[8, 2, 3, 60, 61, 62], None, 10);
    drafter.extend(0, &[1, 2, 3]);
    assert_eq!(draft(&mut drafter, 0, 10), [50, 51, 52]);
    // Of equally good drafts its own counts.
    drafter.begin(0, &[1, 2, 3, 60, 61, 62, 1, 2, 3], None, 10);
    assert_eq!(draft(&mut drafter, 0, 10), [60, 61, 62]);
}

#[test]
fn the_oldest_tokens_are_forgotten_first() {
    let mut drafter =
        SuffixDrafter::new(SuffixOptions { max_cached_tokens: 8, ..SuffixOptions::default() });
    ended(&mut drafter, Some("a"), &[1, 2, 3, 4, 5]);
    drafter.begin(0, &[1, 2], Some("a"), 10);
    assert_eq!(draft(&mut drafter, 0, 1), [3]);
    // Of another tenant, but there is one budget. Tokens 1 and 2 leave.
    ended(&mut drafter, Some("b"), &[6, 7, 8, 9, 6]);
    assert_eq!(drafter.cached_tokens(), 8);
    assert_eq!(draft(&mut drafter, 0, 1), [0; 0]);
    drafter.begin(0, &[3, 4], Some("a"), 10);
    assert_eq!(draft(&mut drafter, 0, 1), [5]);
}

/// Output tokens of requests that take turns: each step is a slot and the tokens that it gets.
fn in_turns(capacity: usize, steps: &[(u32, &[u32])]) -> SuffixDrafter {
    let options = SuffixOptions { max_cached_tokens: capacity, ..SuffixOptions::default() };
    let mut drafter = SuffixDrafter::new(options);
    for slot in 0..4 {
        drafter.begin(slot, &[], None, 10);
    }
    steps.iter().for_each(|(slot, tokens)| drafter.extend(*slot, tokens));
    drafter.begin(9, &[1, 2], None, 10);
    drafter
}

#[test]
fn an_occurrence_of_a_slow_output_does_not_hide_older_ones_when_it_loses_its_first_token() {
    // 1 2 of request 0 is newer than that of request 1, but its 1 is the oldest token.
    let steps: [(u32, &[u32]); 4] = [(0, &[1]), (1, &[5, 1, 2, 3]), (0, &[2, 4]), (2, &[7, 8])];
    assert_eq!(draft(&mut in_turns(9, &steps), 9, 1), [4], "while all are there");
    assert_eq!(draft(&mut in_turns(8, &steps), 9, 1), [3], "when the oldest has gone");
    assert_eq!(draft(&mut in_turns(6, &steps), 9, 1), [0; 0], "when the other 1 has gone");
}

#[test]
fn two_slow_outputs_do_not_hide_older_occurrences_either() {
    let steps: [(u32, &[u32]); 6] =
        [(0, &[1]), (1, &[1]), (2, &[1, 2, 3]), (0, &[2, 4]), (1, &[2, 5]), (3, &[7])];
    assert_eq!(draft(&mut in_turns(10, &steps), 9, 1), [5], "while all are there");
    assert_eq!(draft(&mut in_turns(8, &steps), 9, 1), [3], "when two have gone");
}

#[test]
fn the_newest_128_occurrences_vote() {
    for (newer, expected) in [(63, 5), (64, 6)] {
        let mut drafter = drafter();
        (0..80).for_each(|_| ended(&mut drafter, None, &[1, 2, 5]));
        (0..newer).for_each(|_| ended(&mut drafter, None, &[1, 2, 6]));
        drafter.begin(0, &[1, 2], None, 10);
        assert_eq!(draft(&mut drafter, 0, 1), [expected], "{newer} newer ones");
    }
}

#[test]
fn a_loop_is_drafted_as_by_ngrams() {
    // Where there is one continuation only, voting changes nothing.
    let tokens: Vec<u32> = (0..40).map(|i| i % 4).collect();
    let mut suffix = drafter();
    let mut ngram = NgramDrafter::new(2, 24).unwrap();
    for drafter in [&mut suffix as &mut dyn Drafter, &mut ngram] {
        drafter.begin(0, &tokens, None, 10);
        assert_eq!(draft(drafter, 0, 6), [0, 1, 2, 3, 0, 1]);
    }
}

#[test]
fn options_out_of_range_are_named_and_count_as_the_nearest() {
    let fine = SuffixOptions::default();
    assert_eq!(fine.check(), Ok(()));
    for (options, name) in [
        (SuffixOptions { max_tree_depth: 1, ..fine }, "max_tree_depth"),
        (SuffixOptions { max_tree_depth: usize::MAX, ..fine }, "max_tree_depth"),
        (SuffixOptions { max_cached_tokens: MAX_CACHED_TOKENS + 1, ..fine }, "max_cached_tokens"),
        (SuffixOptions { max_spec_factor: f64::NAN, ..fine }, "max_spec_factor"),
        (SuffixOptions { max_spec_factor: -1.0, ..fine }, "max_spec_factor"),
        (SuffixOptions { max_spec_factor: f64::INFINITY, ..fine }, "max_spec_factor"),
        (SuffixOptions { min_token_prob: f64::NAN, ..fine }, "min_token_prob"),
        (SuffixOptions { min_token_prob: 1.1, ..fine }, "min_token_prob"),
    ] {
        let Err(DraftError::OutOfRange { name: named, .. }) = options.check() else {
            panic!("{options:?} is in range")
        };
        assert_eq!(named, name);
        if options.max_cached_tokens > MAX_CACHED_TOKENS {
            continue; // it would reserve the memory
        }
        let mut drafter = SuffixDrafter::new(options);
        assert_eq!(drafter.options().check(), Ok(()));
        drafter.begin(0, &[1, 2, 3, 1, 2], None, 10);
        assert_eq!(draft(&mut drafter, 0, 1), [3]);
    }
}

#[test]
fn nothing_is_cached_where_nothing_may_be() {
    let options = SuffixOptions { max_cached_tokens: 0, ..SuffixOptions::default() };
    let mut drafter = SuffixDrafter::new(options);
    ended(&mut drafter, None, &[1, 2, 3]);
    drafter.begin(0, &[1, 2], None, 10);
    assert_eq!((draft(&mut drafter, 0, 1), drafter.cached_tokens()), (vec![], 0));
    drafter.extend(0, &[4, 1, 2]);
    assert_eq!(draft(&mut drafter, 0, 1), [4]);
}
