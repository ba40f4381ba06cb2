//! Tensors, staged numbers and a step that is recorded.

use l1_tensor::cuda::{Buffer, Graph, Uploader, shim_live_allocations};
use l1_tensor::ops::{RopeScaling, RopeTable, add_in_place, argmax, gather_rows, rms_norm, rope};
use l1_tensor::safetensors::save;
use l1_tensor::{
    DType, Device, DeviceRequest, Error, Index, Precision, Result, Runtime, Staging, Tensor,
    TensorRef, cuda,
};

use crate::support::noise;
use crate::{on_cpu, on_cuda, tensor, zeros};

#[test]
fn a_tensor_goes_to_the_device_and_comes_back() {
    let rt = on_cuda();
    for (n, shape) in [(0, [0, 4]), (1, [1, 1]), (35, [5, 7])] {
        let x = Tensor::from_slice(&noise(n, 1), &shape).unwrap();
        let there = x.to_device(rt.device()).unwrap();
        assert_eq!((there.device(), there.bytes()), (Device::Cuda(0), x.bytes()));
        let again = there.to_device(rt.device()).unwrap();
        let back = again.to_device(Device::Cpu).unwrap();
        assert_eq!(back.device(), Device::Cpu);
        assert_eq!(back.view().as_slice::<f32>("test").unwrap(), noise(n, 1));
        assert_eq!(there.view().to_host::<f32>().unwrap(), noise(n, 1));
    }
}

#[test]
fn a_strided_view_is_read_back_in_row_major_order() {
    let rt = on_cuda();
    let data: Vec<i32> = (0..12).collect();
    let x = Tensor::from_slice(&data, &[3, 4]).unwrap().to_device(rt.device()).unwrap();
    let view = x.view().narrow(1, 1, 2).unwrap().transpose(0, 1).unwrap();
    assert_eq!(view.to_host::<i32>().unwrap(), [1, 5, 9, 2, 6, 10]);
    assert!(view.to_host::<u32>().is_err(), "another type");
}

#[test]
fn the_host_does_not_read_device_memory_by_accident() {
    let rt = on_cuda();
    let mut x = tensor(&rt, &[1.0, 2.0], &[1, 2]);
    let device = |r: Result<()>| assert!(matches!(r, Err(Error::Device { .. })), "{r:?}");
    device(x.view().as_slice::<f32>("test").map(|_| ()));
    device(x.view().rows::<f32>("test").map(|_| ()));
    device(x.view().strided::<f32>("test").map(|_| ()));
    device(x.view_mut().as_mut_slice::<f32>("test").map(|_| ()));
    device(x.view_mut().rows_mut::<f32>("test").map(|_| ()));
    device(x.view_mut().strided_mut::<f32>("test").map(|_| ()));
    let dir = tempfile::tempdir().unwrap();
    device(save(dir.path().join("x.safetensors"), &[("x", x.view())], &[]));
    // And an op runs where its runtime is, or not at all.
    let mut here = tensor(&on_cpu(), &[1.0, 2.0], &[1, 2]);
    device(add_in_place(&on_cpu(), here.view_mut(), x.view()));
    device(add_in_place(&rt, x.view_mut(), here.view()));
    device(here.view().on_device::<f32>("test").map(|_| ()));
}

#[test]
fn bf16_is_what_a_device_computes_with_unless_told_otherwise() {
    let rt = on_cuda();
    assert_eq!((rt.precision(), rt.activation_dtype()), (Precision::Bf16, DType::BF16));
    assert!(rt.gpu().is_some() && on_cpu().gpu().is_none());
    assert_eq!(rt.arithmetic(), cuda::ops::Arithmetic::Fast);
}

#[test]
fn the_device_is_taken_when_it_is_asked_for_and_says_what_it_is() {
    let rt = on_cuda();
    let name = &rt.gpu().unwrap().properties().name;
    let words = rt.to_string();
    assert!(words.contains(&format!("cuda:0 ({name})")), "{words}");
    assert!(rt.device_reason().contains("asked for"), "{}", rt.device_reason());
    let (auto, why) = DeviceRequest::Auto.resolve().unwrap();
    if rt.gpu().unwrap().is_emulated() {
        assert!(rt.device_reason().contains("emulated"), "{}", rt.device_reason());
        assert_eq!(auto, Device::Cpu, "{why}");
        assert!(why.contains("--device cuda"), "{why}");
    } else {
        assert_eq!(auto, Device::Cuda(0), "{why}");
    }
    let missing = DeviceRequest::Exactly(Device::Cuda(63)).resolve().unwrap_err().to_string();
    assert!(missing.contains("no CUDA device 63"), "{missing}");
    assert!(missing.ends_with("use --device cpu"), "{missing}");
    assert!(Tensor::zeros(&[1], DType::F32, Device::Cuda(63)).is_err());
}

#[test]
fn staged_numbers_arrive_and_may_be_written_again() {
    let rt = on_cuda();
    let arrays = [(DType::U32, 3), (DType::I64, 4), (DType::I32, 0), (DType::F32, 5)];
    let mut staging = Staging::new(&rt, &arrays).unwrap();
    let host = |view: TensorRef<'_>| view.to_host::<i64>().unwrap();
    for round in 0..3i64 {
        staging.write(0, &[round as u32, 9]).unwrap();
        staging.write(1, &[-1, round, i64::MAX]).unwrap();
        staging.write(3, &[round as f32 + 0.5]).unwrap();
        // Before the copy the device has what it had.
        if round > 0 {
            assert_eq!(host(staging.view(1, 3).unwrap()), [-1, round - 1, i64::MAX]);
        }
        staging.upload().unwrap();
        assert_eq!(staging.view(0, 2).unwrap().to_host::<u32>().unwrap(), [round as u32, 9]);
        assert_eq!(host(staging.view(1, 3).unwrap()), [-1, round, i64::MAX]);
        assert_eq!(staging.view(3, 1).unwrap().to_vec_f32().unwrap(), [round as f32 + 0.5]);
        assert_eq!(staging.view(2, 0).unwrap().to_host::<i32>().unwrap(), [0i32; 0]);
    }
    // What is not written again stays.
    staging.write(0, &[77u32]).unwrap();
    staging.upload().unwrap();
    staging.upload().unwrap();
    assert_eq!(staging.view(0, 2).unwrap().to_host::<u32>().unwrap(), [77, 9]);
    assert_eq!(host(staging.view(1, 3).unwrap()), [-1, 2, i64::MAX]);
}

#[test]
fn staging_refuses_what_does_not_fit() {
    let rt = on_cuda();
    assert!(Staging::new(&on_cpu(), &[(DType::U32, 3)]).is_err(), "a CPU needs none");
    let mut staging = Staging::new(&rt, &[(DType::U32, 3), (DType::I32, 2)]).unwrap();
    assert!(staging.write(0, &[0u32; 4]).is_err(), "too long");
    assert!(staging.write(0, &[0i32; 2]).is_err(), "another type");
    assert!(staging.write(2, &[0i32; 2]).is_err(), "no such array");
    assert!(staging.view(1, 3).is_err() && staging.view(2, 0).is_err());
    assert_eq!((staging.capacity(0), staging.capacity(1), staging.capacity(2)), (3, 2, 0));
}

#[test]
fn large_things_travel_in_pieces_of_whole_rows() {
    let rt = on_cuda();
    let gpu = rt.gpu().unwrap();
    let (unit, rows) = (1000, 37);
    let mut to = Buffer::zeroed(gpu, unit * rows).unwrap();
    let mut uploader = Uploader::with_room_for(gpu, 4096).unwrap();
    let mut pieces = vec![];
    let byte = |i: usize| (i % 251) as u8;
    let fill = |offset: usize, piece: &mut [u8]| -> Result<()> {
        pieces.push(piece.len());
        piece.iter_mut().enumerate().for_each(|(i, b)| *b = byte(offset + i));
        Ok(())
    };
    uploader.upload(&mut to.view_mut(), unit, fill).unwrap();
    uploader.finish().unwrap();
    assert_eq!(pieces, [&[4000; 9][..], &[1000]].concat());
    assert!(to.to_vec::<u8>().unwrap().into_iter().eq((0..unit * rows).map(byte)));
    let too_long = uploader.upload(&mut to.view_mut(), 5000, |_, _| Result::<()>::Ok(()));
    assert!(too_long.unwrap_err().to_string().contains("a row of 5000 bytes"));
}

/// A little step: angles, gathered rows, a norm, a rotation, a sum.
struct Step {
    table: RopeTable,
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    normed: Tensor,
    cos: Tensor,
    sin: Tensor,
}

impl Step {
    const T: usize = 3;
    const H: usize = 12;

    fn new(rt: &Runtime) -> Self {
        let (t, h) = (Self::T, Self::H);
        let angles = || zeros(rt, &[t, 2], DType::F32);
        Self {
            table: RopeTable::new(4, 1e4, &RopeScaling::None).unwrap(),
            x: tensor(rt, &noise(7 * h, 1), &[7, h]),
            weight: tensor(rt, &noise(h, 2), &[h]),
            rows: zeros(rt, &[t, h], DType::F32),
            normed: zeros(rt, &[t, h], DType::F32),
            cos: angles(),
            sin: angles(),
        }
    }

    fn run(&mut self, rt: &Runtime, rows: Index<'_, u32>, positions: Index<'_, i32>) -> Result<()> {
        self.table.angles(rt, positions, self.cos.view_mut(), self.sin.view_mut())?;
        gather_rows(rt, self.x.view(), rows, self.rows.view_mut())?;
        rms_norm(rt, self.rows.view(), self.weight.view(), 1e-5, self.normed.view_mut())?;
        let heads = self.normed.view_mut().reshape(&[Self::T, Self::H / 4, 4])?;
        rope(rt, heads, self.cos.view(), self.sin.view())?;
        add_in_place(rt, self.normed.view_mut(), self.rows.view())
    }
}

#[test]
fn a_recorded_step_reads_what_was_staged_last_and_allocates_nothing() {
    let rt = on_cuda();
    let gpu = rt.gpu().unwrap();
    let mut staging = Staging::new(&rt, &[(DType::U32, 3), (DType::I32, 3)]).unwrap();
    let mut stage = |rows: &[u32; 3], positions: &[i32; 3]| {
        staging.write(0, rows).unwrap();
        staging.write(1, positions).unwrap();
        staging.upload().unwrap();
    };
    let first = ([6, 0, 2], [0, 1, 2]);
    let second = ([1, 1, 5], [900, 30, 7]);
    let mut step = Step::new(&rt);
    stage(&first.0, &first.1);
    let (rows, positions) = (staging.view(0, 3).unwrap(), staging.view(1, 3).unwrap());
    let (rows, positions) =
        (Index::new(&first.0, Some(rows)), Index::new(&first.1, Some(positions)));
    step.run(&rt, rows, positions).unwrap();
    let live = shim_live_allocations();
    let mut graph = Graph::capture(gpu, || step.run(&rt, rows, positions)).unwrap();
    for _ in 0..3 {
        // SAFETY: `step` and `staging` live on.
        unsafe { graph.replay() }.unwrap();
    }
    let got_first = step.normed.to_vec_f32().unwrap();
    assert_eq!(shim_live_allocations(), live, "a replay allocates nothing");

    let expected = |(rows, positions): ([u32; 3], [i32; 3])| {
        let mut fresh = Step::new(&rt);
        fresh.run(&rt, (&rows).into(), (&positions).into()).unwrap();
        fresh.normed.to_vec_f32().unwrap()
    };
    assert_eq!(got_first, expected(first));
    let mut staging = staging;
    staging.write(0, &second.0).unwrap();
    staging.write(1, &second.1).unwrap();
    staging.upload().unwrap();
    // SAFETY: as above; moving a `Staging` moves no device memory.
    unsafe { graph.replay() }.unwrap();
    assert_eq!(step.normed.to_vec_f32().unwrap(), expected(second));
}

#[test]
fn an_op_that_needs_device_memory_of_its_own_keeps_it() {
    let rt = on_cuda();
    let x = tensor(&rt, &noise(4 * 9, 3), &[4, 9]);
    let mut out = [0; 4];
    argmax(&rt, x.view(), &mut out).unwrap();
    let live = shim_live_allocations();
    for rows in [4, 1, 3] {
        argmax(&rt, x.view().narrow(0, 0, rows).unwrap(), &mut out[..rows]).unwrap();
    }
    assert_eq!(shim_live_allocations(), live);
}
