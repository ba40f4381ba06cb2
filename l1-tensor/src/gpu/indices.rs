//! Host numbers on the device.

use std::marker::PhantomData;
use std::sync::Arc;

use kernels::{Buffer, Gpu, Pod, View};

use super::same_device;
use crate::{Element, Error, Index, Result, TensorRef};

/// Numbers on the device: there already, or brought for one op. Dropping those waits for the device.
pub(super) enum Numbers<'a, T> {
    There(View<'a, T>),
    Brought(Buffer, PhantomData<T>),
}

impl<'a, T: Element + Pod> Numbers<'a, T> {
    /// `host`, which was checked, as the device has it.
    pub(super) fn new(
        op: &'static str,
        gpu: &Arc<Gpu>,
        host: &[T],
        device: Option<TensorRef<'a>>,
    ) -> Result<Self> {
        let Some(device) = device else {
            return Ok(Self::Brought(Buffer::from_slice(gpu, host)?, PhantomData));
        };
        let (theirs, view) = device.on_device::<T>(op)?;
        same_device(op, gpu, theirs)?;
        if view.len() < host.len() {
            let (have, want) = (view.len(), host.len());
            let why = format!("{want} numbers on the host, but {have} on the device");
            return Err(Error::BadParameter { op, why });
        }
        Ok(Self::There(view.part(0, host.len())))
    }

    /// The same for an [`Index`].
    pub(super) fn of(op: &'static str, gpu: &Arc<Gpu>, index: Index<'a, T>) -> Result<Self> {
        Self::new(op, gpu, index.host, index.device)
    }

    pub(super) fn view(&self) -> View<'_, T> {
        match self {
            Self::There(view) => *view,
            Self::Brought(buffer, _) => buffer.view().cast(),
        }
    }
}
