//! cuBLASLt: NVIDIA's own matmuls, for many tokens.
//!
//! The library is column-major, this crate row-major. A row-major `[R, C]` with row stride `s` is, byte for
//! byte, a column-major `[C, R]` with column stride `s`. So `out = x W^T` (`[T, N]`, `[T, K]`, `[N, K]`, all
//! row-major) is computed as its transpose:
//!
//! ```text
//!   out^T [N, T]  =  W [N, K]  x^T [K, T]
//!   D                A         B
//!   m = N, n = T, k = K
//!   A   memory is [K, N] by columns, w's stride apart: transposed on the way (the T of "TN")
//!   B   memory is [K, T] by columns, x's stride apart: as it is
//!   D   memory is [N, T] by columns, out's stride apart
//! ```
//!
//! A heuristic of the library selects the kernel for a shape. That takes longer than the launch, so the
//! selection is kept for each shape. The library is loaded when it is first needed, and never where a CPU
//! stands in for the device. Where it is missing, does not start or has no kernel for a shape, `gemm.cu`
//! computes the product: see [`gemm_library`].

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{from_ref, null_mut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;

use crate::error::{Error, Result};
use crate::scratch::Purpose;
use crate::{Float, Gpu, Mat, MatMut, compile};

/// Workspace that NVIDIA recommends for Hopper. Earlier devices need less; more does no harm.
const WORKSPACE: usize = 32 << 20;

/// Maximum number of shapes that are remembered. A server sees as many as prompts have lengths; beyond the
/// maximum all are forgotten.
const MOST_SHAPES: usize = 4096;

/// Key of a selection: matmuls that are equal in all of this have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    tokens: usize,
    rows: usize,
    width: usize,
    x_stride: usize,
    w_stride: usize,
    out_stride: usize,
    out: Float,
    adds: bool,
    /// Alignments of the three addresses, as powers of two.
    aligned: [u32; 3],
}

/// The library's handle, and its selection for each shape.
#[derive(Default)]
pub(crate) struct Blas {
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    /// Not queried yet.
    #[default]
    Unused,
    /// Missing, switched off, or it does not start.
    Absent,
    Ready(Library),
}

struct Library {
    handle: sys::cublasLtHandle_t,
    workspace: u64,
    /// `None` where the library has nothing.
    plans: HashMap<Shape, Option<Plan>>,
}

/// Descriptors of a matmul, and its algorithm.
struct Plan {
    of: Descriptors,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// The library's descriptors of a matmul and its matrices; null until they are made.
struct Descriptors {
    matmul: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    d: sys::cublasLtMatrixLayout_t,
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        for layout in [self.a, self.b, self.d].into_iter().filter(|l| !l.is_null()) {
            // SAFETY: made by `describe`, destroyed once. Matmuls that were enqueued do not need it.
            let _ = unsafe { result::destroy_matrix_layout(layout) };
        }
        if !self.matmul.is_null() {
            // SAFETY: as above.
            let _ = unsafe { result::destroy_matmul_desc(self.matmul) };
        }
    }
}

/// Preference of a query; destroyed after it.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `prefer`, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

impl Blas {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Runs `work` while no matmul is being enqueued: a matmul may be several kernels that pass intermediate
    /// results through the workspace.
    pub(crate) fn alone<T>(&self, work: impl FnOnce() -> T) -> T {
        let _lock = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        work()
    }

    /// `out = scale x W^T`, or `out += scale x W^T` if it `adds`, by the library. Returns `false` where the library cannot do
    /// it: then nothing was enqueued. `x` and `weight` are bf16, shapes fit, and none of them is empty.
    ///
    /// The first call allocates the workspace, so it must not happen while a graph is captured.
    pub(crate) fn linear(
        &self,
        gpu: &Arc<Gpu>,
        x: Mat<'_>,
        weight: Mat<'_>,
        scale: f32,
        adds: bool,
        out: &MatMut<'_>,
    ) -> Result<bool> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Unused) {
            *state = open(gpu)?;
        }
        let State::Ready(library) = &mut *state else { return Ok(false) };
        gpu.bind()?;
        let shape = Shape {
            tokens: x.rows,
            rows: weight.rows,
            width: x.width,
            x_stride: stride_of(x.rows, x.width, x.stride),
            w_stride: stride_of(weight.rows, weight.width, weight.stride),
            out_stride: stride_of(out.rows, out.width, out.stride),
            out: out.dtype,
            adds,
            aligned: [weight.ptr, x.ptr, out.ptr].map(alignment),
        };
        if library.plans.len() >= MOST_SHAPES && !library.plans.contains_key(&shape) {
            library.plans.clear();
        }
        let plan = match library.plans.entry(shape) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                new.insert(plan(library.handle, &shape)?)
            }
        };
        let Some(plan) = plan else { return Ok(false) };
        // out = alpha product + beta out
        let (alpha, beta) = (scale, if adds { 1.0f32 } else { 0.0 });
        // SAFETY: the descriptors say what lies at these addresses, which the views vouch for; alpha and
        // beta are on the host, and are read before the call returns; the workspace is never freed.
        let enqueued = unsafe {
            result::matmul(
                library.handle,
                plan.of.matmul,
                from_ref(&alpha).cast(),
                from_ref(&beta).cast(),
                weight.ptr as *const c_void,
                plan.of.a,
                x.ptr as *const c_void,
                plan.of.b,
                out.ptr as *const c_void,
                plan.of.d,
                out.ptr as *mut c_void,
                plan.of.d,
                &plan.algorithm,
                library.workspace as *mut c_void,
                WORKSPACE,
                gpu.stream().cast(),
            )
        };
        match enqueued {
            Ok(()) => Ok(true),
            // The library may fail to run a kernel that it recommended; it is not asked for this shape again.
            Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => {
                library.plans.insert(shape, None);
                Ok(false)
            }
            Err(e) => Err(failed("cublasLtMatmul", e)),
        }
    }
}

/// Returns whether cuBLASLt is found and not switched off: `STRATA_GEMM=own` in the environment makes the
/// kernels of `gemm.cu` compute every matmul.
///
/// It is searched for where the system's loader searches, and next to every NVRTC (see
/// [`compile::find_nvrtc`]), since loaders do not search Python packages. The search happens once per
/// process.
pub fn gemm_library() -> bool {
    static HERE: OnceLock<bool> = OnceLock::new();
    *HERE.get_or_init(|| {
        let own = std::env::var_os("STRATA_GEMM").is_some_and(|choice| choice == "own");
        !own && (is_present() || (open_beside_nvrtc() && is_present()))
    })
}

fn is_present() -> bool {
    // SAFETY: only tries to open the library. cudarc panics when it is missing, so this is checked first.
    unsafe { sys::is_culib_present() }
}

/// Opens the library by its path. After that it is found by its name.
fn open_beside_nvrtc() -> bool {
    for folder in compile::nvrtc_directories().iter().filter(|folder| folder.is_absolute()) {
        // One directory for all libraries (toolkits, packages since CUDA 13), or a package for each library.
        for folder in [folder.clone(), folder.join("../../cublas/lib")] {
            for name in ["libcublasLt.so.13", "libcublasLt.so.12"] {
                let path = folder.join(name);
                if !path.is_file() {
                    continue;
                }
                // SAFETY: NVIDIA's library; its initialisation is its own.
                if let Ok(library) = unsafe { libloading::Library::new(&path) } {
                    // The library stays open as long as the process runs.
                    std::mem::forget(library);
                    return true;
                }
            }
        }
    }
    false
}

fn open(gpu: &Arc<Gpu>) -> Result<State> {
    if gpu.is_emulated() || !gemm_library() {
        return Ok(State::Absent);
    }
    gpu.bind()?;
    let Ok(handle) = result::create_handle() else { return Ok(State::Absent) };
    let workspace = gpu.scratch(|s| s.region(gpu, Purpose::MatmulWorkspace, WORKSPACE))?;
    Ok(State::Ready(Library { handle, workspace, plans: HashMap::new() }))
}

fn failed(call: &'static str, e: CublasError) -> Error {
    Error::Blas { call, code: e.0 as u32 }
}

/// The stride of at most one row may have any value; the library requires at least the width.
fn stride_of(rows: usize, width: usize, stride: usize) -> usize {
    if rows <= 1 { width } else { stride }
}

/// The largest power of two up to 256 that divides an address.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

/// Selects the library's kernel for a shape; `None` if it has none.
fn plan(handle: sys::cublasLtHandle_t, shape: &Shape) -> Result<Option<Plan>> {
    // The library allows no overlapping columns; in this crate rows that are only read may overlap.
    if shape.x_stride < shape.width || shape.w_stride < shape.width {
        return Ok(None);
    }
    let of = describe(shape).map_err(|e| failed("describing a matmul", e))?;
    match recommend(handle, shape, &of) {
        Ok(algorithm) => Ok(Some(Plan { of, algorithm })),
        Err(CublasError(
            sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED
            | sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE,
        )) => Ok(None),
        Err(e) => Err(failed("cublasLtMatmulAlgoGetHeuristic", e)),
    }
}

fn describe(shape: &Shape) -> std::result::Result<Descriptors, CublasError> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    use sys::cudaDataType::{CUDA_R_16BF, CUDA_R_32F};
    let mut of = Descriptors { matmul: null_mut(), a: null_mut(), b: null_mut(), d: null_mut() };
    let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
    of.matmul = result::create_matmul_desc(compute, CUDA_R_32F)?;
    // cublasOperation_t: 0 is as it is, 1 transposed.
    for (attribute, operation) in [
        (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, 1i32),
        (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, 0),
    ] {
        // SAFETY: the descriptor was made above, and the attribute is an int.
        unsafe {
            result::set_matmul_desc_attribute(
                of.matmul,
                attribute,
                from_ref(&operation).cast(),
                size_of::<i32>(),
            )?;
        }
    }
    let out = match shape.out {
        Float::F32 => CUDA_R_32F,
        Float::Bf16 => CUDA_R_16BF,
    };
    let layout = |kind, rows: usize, columns: usize, apart: usize| {
        result::create_matrix_layout(kind, rows as u64, columns as u64, apart as i64)
    };
    of.a = layout(CUDA_R_16BF, shape.width, shape.rows, shape.w_stride)?;
    of.b = layout(CUDA_R_16BF, shape.width, shape.tokens, shape.x_stride)?;
    of.d = layout(out, shape.rows, shape.tokens, shape.out_stride)?;
    Ok(of)
}

/// Constraints on a kernel for a shape.
fn prefer(shape: &Shape) -> std::result::Result<Preference, CublasError> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let preference = Preference(result::create_matmul_pref()?);
    let set = |attribute, value: *const c_void, size| {
        // SAFETY: the preference was made above; the values are of the attributes' types.
        unsafe { result::set_matmul_pref_attribute(preference.0, attribute, value, size) }
    };
    set(
        Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        from_ref(&WORKSPACE).cast(),
        size_of::<usize>(),
    )?;
    let [a, b, d] = &shape.aligned;
    for (attribute, bytes) in [
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d),
    ] {
        set(attribute, from_ref(bytes).cast(), size_of::<u32>())?;
    }
    Ok(preference)
}

fn recommend(
    handle: sys::cublasLtHandle_t,
    shape: &Shape,
    of: &Descriptors,
) -> std::result::Result<sys::cublasLtMatmulAlgo_t, CublasError> {
    let preference = prefer(shape)?;
    // SAFETY: all descriptors are alive; C has the layout of D.
    let found = unsafe {
        result::get_matmul_algo_heuristic(handle, of.matmul, of.a, of.b, of.d, of.d, preference.0)
    }?;
    Ok(found.algo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_for_the_library_never_panics() {
        assert_eq!(gemm_library(), gemm_library());
    }

    /// The test needs the library, but no device: descriptors are plain memory.
    #[test]
    fn the_library_takes_the_descriptions_of_matmuls() {
        if !gemm_library() {
            eprintln!("skipped: cuBLASLt is missing");
            return;
        }
        for (tokens, rows, width) in [(1, 1, 1), (17, 351, 60), (8192, 24_576, 4096)] {
            for out in [Float::F32, Float::Bf16] {
                let shape = Shape {
                    tokens,
                    rows,
                    width,
                    x_stride: width + 3,
                    w_stride: width,
                    out_stride: rows + 1,
                    out,
                    adds: false,
                    aligned: [2, 16, 256],
                };
                let of = describe(&shape).unwrap();
                assert!(![of.a, of.b, of.d].iter().any(|layout| layout.is_null()));
                let preference = prefer(&shape).unwrap();
                assert!(!preference.0.is_null());
            }
        }
    }

    #[test]
    fn an_address_is_aligned_to_what_divides_it() {
        assert_eq!([1, 6, 48, 0x7f00, 0x1_0000, 0].map(alignment), [1, 2, 16, 256, 256, 256]);
    }

    #[test]
    fn a_single_row_has_the_stride_the_library_wants() {
        assert_eq!((stride_of(1, 60, 7), stride_of(2, 60, 64)), (60, 64));
    }
}
