//! Seats are given once at a time, and what is kept for a request is found by its seat.

use proptest::prelude::*;

use super::{BySeat, Seat, Seats};
use crate::RequestId;

fn index(seat: Option<Seat>) -> Option<u32> {
    seat.map(|seat| seat.index)
}

#[test]
fn the_lowest_free_seat_is_given() {
    let mut seats = Seats::new(4);
    let given: Vec<Seat> = (0..4).map_while(|_| seats.take(7)).collect();
    assert_eq!(given.iter().map(|seat| seat.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    for i in [2, 0, 3] {
        seats.give_back(given[i]);
    }
    assert_eq!(index(seats.take(7)), Some(0), "of seats 0, 2 and 3");
    assert_eq!(index(seats.take(7)), Some(2), "of seats 2 and 3");
    assert_eq!(seats.free().collect::<Vec<_>>(), [3], "free seats");
}

#[test]
fn there_are_as_many_seats_as_were_made() {
    let mut seats = Seats::new(2);
    let (first, second) = (seats.take(7), seats.take(7));
    assert_eq!((index(first), index(second)), (Some(0), Some(1)));
    assert_eq!(seats.take(7), None, "a third seat of two");
    assert_eq!(seats.free().len(), 0, "free seats");
    seats.give_back(second.unwrap());
    assert_eq!(index(seats.take(7)), Some(1), "the seat that was returned");
}

#[test]
fn a_seat_that_is_given_again_has_another_generation() {
    let mut seats = Seats::new(1);
    for generation in 0..3 {
        let seat = seats.take(7).unwrap();
        assert_eq!(seat, Seat { index: 0, generation }, "given for time number {generation}");
        seats.give_back(seat);
    }
    seats.generations[0] = u32::MAX;
    for generation in [u32::MAX, 0] {
        let seat = seats.take(7).unwrap();
        assert_eq!(seat.generation, generation, "generations are counted modulo 2^32");
        seats.give_back(seat);
    }
}

#[test]
fn each_seat_has_generations_of_its_own() {
    let mut seats = Seats::new(3);
    let given: Vec<Seat> = (0..3).map_while(|_| seats.take(7)).collect();
    assert_eq!(given.iter().map(|seat| seat.generation).collect::<Vec<_>>(), [0, 0, 0]);
    seats.give_back(given[1]);
    assert_eq!(seats.owner(given[1]), 7, "who had it last");
    assert_eq!(seats.take(9), Some(Seat { index: 1, generation: 1 }), "given for the second time");
    seats.give_back(given[2]);
    assert_eq!(seats.take(9), Some(Seat { index: 2, generation: 1 }), "given for the second time");
}

#[test]
fn a_seat_knows_the_request_that_has_it() {
    let mut seats = Seats::new(2);
    let (first, second) = (seats.take(20).unwrap(), seats.take(30).unwrap());
    assert_eq!((seats.owner(first), seats.owner(second)), (20, 30));
    seats.give_back(first);
    let again = seats.take(40).unwrap();
    assert_eq!((seats.owner(again), seats.owner(second)), (40, 30));
}

proptest! {
    #[test]
    fn whatever_is_taken_and_returned_no_seat_is_given_twice(
        n in 1..8usize,
        takes in prop::collection::vec(any::<Option<prop::sample::Index>>(), 0..100),
    ) {
        let mut seats = Seats::new(n);
        let (mut taken, mut ever): (Vec<Seat>, Vec<Seat>) = (Vec::new(), Vec::new());
        for returned in takes {
            match returned {
                Some(which) if !taken.is_empty() => {
                    seats.give_back(taken.swap_remove(which.index(taken.len())));
                }
                _ => match seats.take(7) {
                    Some(seat) => {
                        prop_assert!((seat.index as usize) < n);
                        prop_assert!(taken.iter().all(|other| other.index != seat.index), "{} has an owner", seat);
                        prop_assert!(!ever.contains(&seat), "{:?} was given before", seat);
                        taken.push(seat);
                        ever.push(seat);
                    }
                    None => prop_assert_eq!(taken.len(), n, "there is no seat, but not all are taken"),
                },
            }
            prop_assert_eq!(seats.free().len() + taken.len(), n);
        }
    }
}

const SEAT: Seat = Seat { index: 3, generation: 0 };

#[test]
fn a_value_is_found_by_seat_and_by_id() {
    let mut values = BySeat::default();
    values.insert(RequestId(7), "seven");
    values.insert(RequestId(8), "eight");
    assert_eq!(values.seated(SEAT, RequestId(8)), Some(&mut "eight"));
    assert_eq!(values.get_seated(SEAT, RequestId(8)), Some(&"eight"));
    assert_eq!(values.get(RequestId(7)), Some(&"seven"), "which has no seat");
    assert_eq!(values.get_mut(RequestId(9)), None, "which has no value");
}

#[test]
fn a_seat_never_leads_to_another_requests_value() {
    let mut values = BySeat::default();
    values.insert(RequestId(7), "seven");
    values.seated(SEAT, RequestId(7));
    assert_eq!(values.remove(RequestId(7)), Some("seven"));
    assert_eq!(values.seated(SEAT, RequestId(7)), None, "the value was removed");
    // It lies where the other one lay, and is not found under that one's name.
    values.insert(RequestId(8), "eight");
    assert_eq!(values.seated(SEAT, RequestId(7)), None, "the seat's former request");
    assert_eq!(values.get_seated(SEAT, RequestId(7)), None, "the seat's former request");
    let next = Seat { generation: 1, ..SEAT };
    assert_eq!(values.seated(next, RequestId(8)), Some(&mut "eight"), "its new one");
}

#[test]
fn a_value_is_replaced_under_its_id() {
    let mut values = BySeat::default();
    assert_eq!(values.insert(RequestId(7), "seven"), None);
    values.seated(SEAT, RequestId(7));
    assert_eq!(values.insert(RequestId(7), "seven again"), Some("seven"));
    assert_eq!(values.seated(SEAT, RequestId(7)), Some(&mut "seven again"));
}
