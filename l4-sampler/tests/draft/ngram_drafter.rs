//! Requests of the n-gram drafter, and the lists of drafts.

use l4_sampler::draft::{CLASSES, DraftError, Drafter, Drafts, NgramDrafter};

use super::proposed::propose;

#[test]
fn each_row_gets_the_draft_of_its_own_request() {
    let mut drafter = NgramDrafter::new(1, 3).unwrap();
    drafter.begin(3, &[1, 2, 3, 1, 2], Some("a"), 10);
    drafter.begin(900_000, &[1, 2, 8, 9], Some("a"), 10);
    drafter.extend(900_000, &[1, 2]);
    let got = propose(&mut drafter, &[(900_000, 2), (3, 2), (5, 2), (3, 0)]);
    assert_eq!(got[0], (vec![8, 9], vec![2, 2]));
    assert_eq!(got[1], (vec![3, 1], vec![2, 2]));
    assert_eq!(got[2], (vec![], vec![]), "of a slot that no request has");
    assert_eq!(got[3], (vec![], vec![]), "of a row that wants none");
}

#[test]
fn a_slot_that_begins_again_has_forgotten_its_request() {
    let mut drafter = NgramDrafter::new(1, 3).unwrap();
    drafter.begin(0, &[1, 2, 1], None, 10);
    drafter.begin(0, &[1, 3, 1], None, 10);
    assert_eq!(propose(&mut drafter, &[(0, 1)])[0].0, [3]);
    drafter.end(0);
    drafter.end(0);
    drafter.extend(0, &[1]);
    assert_eq!(propose(&mut drafter, &[(0, 1)])[0].0, [0; 0]);
    assert_eq!(drafter.bytes(), 0);
}

#[test]
fn the_class_is_the_length_of_the_match() {
    let mut drafter = NgramDrafter::new(1, 32).unwrap();
    for len in 1..=32 {
        let tokens: Vec<u32> = (100..100 + len).chain([7]).chain(100..100 + len).collect();
        drafter.begin(0, &tokens, None, 10);
        let (draft, classes) = &propose(&mut drafter, &[(0, 1)])[0];
        assert_eq!((&draft[..], classes[0]), (&[7][..], len.min(CLASSES as u32 - 1) as u8));
    }
}

#[test]
fn lengths_that_cannot_be_looked_up_are_refused_by_the_names_of_their_options() {
    let refused = NgramDrafter::new(5, 3).unwrap_err();
    assert_eq!(refused, DraftError::NgramLengths { min: 5, max: 3 });
    assert!(refused.to_string().contains("prompt_lookup_min 5"), "{refused}");
}

#[test]
fn a_class_that_does_not_exist_becomes_the_highest() {
    let mut drafts = Drafts::with_capacity(1, 2);
    drafts.push(1, 200);
    assert!(drafts.is_empty(), "a row counts when it has ended");
    drafts.end_row();
    assert_eq!(drafts.row(0), (&[1][..], &[15][..]));
    assert_eq!(drafts.row(1), (&[][..], &[][..]));
    drafts.clear();
    assert!(drafts.is_empty());
}
