//! A place for recurrent state: slots that do not touch, and copies that bring back what was.

use l3_paged_kv::{KvError, RecurrentStore};
use proptest::prelude::*;

/// Three layers of which the middle one keeps nothing, two sequences.
fn store() -> RecurrentStore {
    RecurrentStore::new(&[100, 0, 64], 2).unwrap()
}

#[test]
fn every_layer_has_its_bytes_zeroed_and_aligned() {
    let store = RecurrentStore::new(&[100, 0, 64, 4], 3).unwrap();
    for slot in 0..3 {
        for (layer, bytes) in [100, 0, 64, 4].into_iter().enumerate() {
            let state = store.slot(layer, slot).unwrap();
            assert_eq!(state.len(), bytes, "bytes of layer {layer}, slot {slot}");
            assert_eq!(state.as_ptr() as usize % 64, 0, "alignment of layer {layer}, slot {slot}");
            assert!(state.iter().all(|b| *b == 0), "layer {layer}, slot {slot} begins with zeros");
        }
    }
    assert_eq!((store.slots(), store.bytes_per_slot()), (3, 128 + 64 + 64), "slots, bytes of one");
    assert_eq!(store.bytes(), 3 * 256, "bytes of all");
}

#[test]
fn slots_and_layers_do_not_touch() {
    let mut store = store();
    for (n, (layer, slot)) in [(0, 0), (2, 0), (0, 1), (2, 1)].into_iter().enumerate() {
        store.slot_mut(layer, slot).unwrap().fill(n as u8 + 1);
    }
    for (n, (layer, slot)) in [(0, 0), (2, 0), (0, 1), (2, 1)].into_iter().enumerate() {
        let state = store.slot(layer, slot).unwrap();
        assert!(state.iter().all(|b| *b == n as u8 + 1), "layer {layer}, slot {slot}: {state:?}");
    }
}

#[test]
fn a_snapshot_brings_a_state_back_into_any_slot() {
    let mut store = store();
    store.slot_mut(0, 0).unwrap().fill(7);
    store.slot_mut(2, 0).unwrap().fill(8);
    let snapshot = store.snapshot(0).unwrap();
    assert_eq!(snapshot.bytes(), store.bytes_per_slot(), "bytes of the snapshot");
    store.slot_mut(0, 0).unwrap().fill(9);
    store.slot_mut(0, 1).unwrap().fill(9);
    for slot in [0, 1] {
        store.restore(slot, &snapshot).unwrap();
        assert!(store.slot(0, slot).unwrap().iter().all(|b| *b == 7), "layer 0, slot {slot}");
        assert!(store.slot(2, slot).unwrap().iter().all(|b| *b == 8), "layer 2, slot {slot}");
    }
}

#[test]
fn a_dropped_sequence_leaves_zeros_and_its_neighbour_alone() {
    let mut store = store();
    store.slot_mut(0, 0).unwrap().fill(7);
    store.slot_mut(0, 1).unwrap().fill(8);
    store.drop_sequence(0).unwrap();
    assert!(store.slot(0, 0).unwrap().iter().all(|b| *b == 0), "the slot that was dropped");
    assert!(store.slot(0, 1).unwrap().iter().all(|b| *b == 8), "the other");
}

#[test]
fn a_snapshot_of_another_model_is_refused_and_changes_nothing() {
    let mut store = store();
    store.slot_mut(0, 0).unwrap().fill(7);
    // The same number of bytes, in other layers.
    let other = RecurrentStore::new(&[64, 0, 100], 2).unwrap();
    assert_eq!(other.bytes_per_slot(), store.bytes_per_slot(), "bytes of a slot");
    let error = store.restore(0, &other.snapshot(0).unwrap()).unwrap_err();
    assert!(matches!(error, KvError::Malformed(_)), "{error:?}");
    assert!(error.to_string().contains("a model with other layers"), "{error}");
    assert!(store.slot(0, 0).unwrap().iter().all(|b| *b == 7), "what was there");
}

#[test]
fn places_that_do_not_exist_are_errors() {
    let mut store = store();
    let snapshot = store.snapshot(0).unwrap();
    let errors = [
        store.slot(3, 0).err(),
        store.slot(0, 2).err(),
        store.slot_mut(3, 0).err(),
        store.slot_mut(0, usize::MAX).err(),
        store.snapshot(2).err(),
        store.restore(2, &snapshot).err(),
        store.drop_sequence(2).err(),
    ];
    for (i, error) in errors.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("call {i} was accepted"));
        assert!(error.to_string().contains("recurrent"), "call {i}: {error}");
    }
}

#[test]
fn more_than_there_is_memory_is_refused() {
    for (layers, slots) in [(vec![usize::MAX], 1), (vec![1 << 40; 2], usize::MAX)] {
        let error = RecurrentStore::new(&layers, slots).err().expect("no machine has so much");
        assert!(error.to_string().contains("larger than any memory"), "{error}");
    }
}

#[test]
fn a_model_without_such_layers_takes_nothing() {
    let store = RecurrentStore::new(&[0, 0], 8).unwrap();
    assert_eq!(store.bytes(), 0, "bytes");
    assert!(store.slot(1, 7).unwrap().is_empty(), "a layer that keeps nothing");
}

/// What may happen to a slot.
#[derive(Clone, Debug)]
enum Change {
    Write { slot: usize, layer: usize, value: u8 },
    Snapshot(usize),
    Restore(usize),
    Drop(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0..3usize, 0..3usize, any::<u8>()).prop_map(|(slot, layer, value)| Change::Write {
            slot,
            layer,
            value
        }),
        (0..3usize).prop_map(Change::Snapshot),
        (0..3usize).prop_map(Change::Restore),
        (0..3usize).prop_map(Change::Drop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Against the plain idea of it: a table of one value for each slot and layer.
    #[test]
    fn any_history_leaves_what_a_table_of_values_would_hold(
        changes in prop::collection::vec(change(), 0..40),
    ) {
        let mut store = RecurrentStore::new(&[5, 64, 1], 3).unwrap();
        let mut table = [[0u8; 3]; 3];
        let mut kept = (store.snapshot(0).unwrap(), table[0]);
        for change in changes {
            match change {
                Change::Write { slot, layer, value } => {
                    store.slot_mut(layer, slot).unwrap().fill(value);
                    table[slot][layer] = value;
                }
                Change::Snapshot(slot) => kept = (store.snapshot(slot).unwrap(), table[slot]),
                Change::Restore(slot) => {
                    store.restore(slot, &kept.0).unwrap();
                    table[slot] = kept.1;
                }
                Change::Drop(slot) => {
                    store.drop_sequence(slot).unwrap();
                    table[slot] = [0; 3];
                }
            }
            for (slot, row) in table.iter().enumerate() {
                for (layer, value) in row.iter().enumerate() {
                    let state = store.slot(layer, slot).unwrap();
                    prop_assert!(state.iter().all(|b| b == value), "slot {slot}, layer {layer}");
                }
            }
        }
    }
}
