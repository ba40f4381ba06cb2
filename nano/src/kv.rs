//! Keys and values of tokens, by slot.

use crate::Matrix;

/// Memory for the keys and values of a number of tokens, in all layers. A token's row is at its *slot*, the same one in
/// every layer. Which token is at which slot is not known here: a list of slots or a [block table](crate::BlockTable) says it.
#[derive(Clone, Debug)]
pub struct KvMemory {
    layers: Vec<LayerKv>,
}

#[derive(Clone, Debug)]
struct LayerKv {
    keys: Matrix,
    values: Matrix,
}

impl KvMemory {
    /// Memory of `slots` slots, each with keys and values of `width` elements in every layer.
    pub fn new(layers: usize, slots: usize, width: usize) -> Self {
        let layer =
            LayerKv { keys: Matrix::zeros(slots, width), values: Matrix::zeros(slots, width) };
        Self { layers: vec![layer; layers] }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.keys.rows)
    }

    /// Number of bytes of one slot, in all layers.
    pub fn bytes_per_slot(&self) -> usize {
        self.layers.iter().map(|layer| 2 * layer.keys.cols * size_of::<f32>()).sum()
    }

    /// Writes the key and the value of a token.
    pub fn store(&mut self, layer: usize, slot: usize, key: &[f32], value: &[f32]) {
        let layer = &mut self.layers[layer];
        layer.keys.row_mut(slot).copy_from_slice(key);
        layer.values.row_mut(slot).copy_from_slice(value);
    }

    /// Keys and values of the tokens at these slots, in their order.
    pub fn load(&self, layer: usize, slots: &[usize]) -> (Vec<&[f32]>, Vec<&[f32]>) {
        let layer = &self.layers[layer];
        slots.iter().map(|slot| (layer.keys.row(*slot), layer.values.row(*slot))).unzip()
    }
}
