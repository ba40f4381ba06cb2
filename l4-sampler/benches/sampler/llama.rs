//! llama.cpp's sampler chain, by the functions that `llama.h` declares, from a library loaded at run
//! time.

use std::cell::RefCell;
use std::ffi::c_void;
use std::hint::black_box;
use std::time::Instant;

use l1_tensor::{Result, TensorRef};
use l4_sampler::SamplingParams;
use libloading::{Library, Symbol};

use crate::rows::{HISTORY, VOCAB};

type Sampler = *mut c_void;

/// `llama_sampler_chain_params`.
#[repr(C)]
struct ChainParams {
    no_perf: bool,
}

/// `llama_token_data`.
#[repr(C)]
#[derive(Clone, Copy)]
struct TokenData {
    id: i32,
    logit: f32,
    p: f32,
}

/// `llama_token_data_array`.
#[repr(C)]
struct TokenDataArray {
    data: *mut TokenData,
    size: usize,
    selected: i64,
    sorted: bool,
}

/// The loaded library.
pub struct Llama {
    library: Library,
}

impl Llama {
    /// The one that `STRATA_LIBLLAMA` names, if there is one.
    pub fn from_env() -> Option<Self> {
        let path = std::env::var_os("STRATA_LIBLLAMA")?;
        // SAFETY: whoever sets the variable vouches for the library, whose initialisers are those
        // of llama.cpp.
        match unsafe { Library::new(path) } {
            Ok(library) => Some(Self { library }),
            Err(e) => {
                println!("STRATA_LIBLLAMA: {e}");
                None
            }
        }
    }

    /// A function of the library.
    ///
    /// # Safety
    /// `T` must be the type that `llama.h` declares.
    unsafe fn get<T>(&self, name: &str) -> Symbol<'_, T> {
        // SAFETY: as the caller promises.
        unsafe { self.library.get(name) }
            .unwrap_or_else(|e| panic!("this libllama has no `{name}`: {e}"))
    }
}

/// The chain that does what a request asks: penalties, top-k, top-p, min-p, typical-p, temperature,
/// draw.
pub struct Chain<'l> {
    chain: Sampler,
    apply: Symbol<'l, unsafe extern "C" fn(Sampler, *mut TokenDataArray)>,
    free: Symbol<'l, unsafe extern "C" fn(Sampler)>,
    /// Kept from row to row, as llama.cpp's own callers do.
    candidates: RefCell<Vec<TokenData>>,
}

impl<'l> Chain<'l> {
    /// The chain for these parameters.
    pub fn of(llama: &'l Llama, params: &SamplingParams) -> Option<Self> {
        type FromFloat = unsafe extern "C" fn(f32) -> Sampler;
        type FromFloatAndMin = unsafe extern "C" fn(f32, usize) -> Sampler;
        // SAFETY: these are the declarations of llama.h, and samplers go from the functions that
        // make them to the chain, which then owns them.
        unsafe {
            let chain_init = llama
                .get::<unsafe extern "C" fn(ChainParams) -> Sampler>("llama_sampler_chain_init");
            let chain = chain_init(ChainParams { no_perf: true });
            let add =
                llama.get::<unsafe extern "C" fn(Sampler, Sampler)>("llama_sampler_chain_add");
            let cut = |name: &str, p: f32| add(chain, llama.get::<FromFloatAndMin>(name)(p, 1));
            if params.has_penalties() {
                let init = llama.get::<unsafe extern "C" fn(i32, f32, f32, f32) -> Sampler>(
                    "llama_sampler_init_penalties",
                );
                let penalties = init(
                    HISTORY.len() as i32,
                    params.repetition_penalty,
                    params.frequency_penalty,
                    params.presence_penalty,
                );
                let accept =
                    llama.get::<unsafe extern "C" fn(Sampler, i32)>("llama_sampler_accept");
                HISTORY.iter().for_each(|token| accept(penalties, *token as i32));
                add(chain, penalties);
            }
            if params.is_greedy() {
                let greedy =
                    llama.get::<unsafe extern "C" fn() -> Sampler>("llama_sampler_init_greedy");
                add(chain, greedy());
            } else {
                if params.top_k > 0 {
                    let top_k = llama
                        .get::<unsafe extern "C" fn(i32) -> Sampler>("llama_sampler_init_top_k");
                    add(chain, top_k(params.top_k as i32));
                }
                if params.top_p < 1.0 {
                    cut("llama_sampler_init_top_p", params.top_p);
                }
                if params.min_p > 0.0 {
                    cut("llama_sampler_init_min_p", params.min_p);
                }
                if params.typical_p < 1.0 {
                    cut("llama_sampler_init_typical", params.typical_p);
                }
                let temp = llama.get::<FromFloat>("llama_sampler_init_temp");
                add(chain, temp(params.temperature));
                let dist =
                    llama.get::<unsafe extern "C" fn(u32) -> Sampler>("llama_sampler_init_dist");
                add(chain, dist(7));
            }
            Some(Self {
                chain,
                apply: llama.get("llama_sampler_apply"),
                free: llama.get("llama_sampler_free"),
                candidates: RefCell::new(Vec::with_capacity(VOCAB)),
            })
        }
    }

    /// How long a token takes it, in us.
    pub fn time(&self, logits: &TensorRef<'_>) -> Result<f64> {
        let logits = logits.as_slice::<f32>("llama.cpp")?;
        let mut candidates = self.candidates.borrow_mut();
        let start = Instant::now();
        candidates.clear();
        candidates.extend((0i32..).zip(logits).map(|(id, x)| TokenData { id, logit: *x, p: 0.0 }));
        let mut array = TokenDataArray {
            data: candidates.as_mut_ptr(),
            size: candidates.len(),
            selected: -1,
            sorted: false,
        };
        // SAFETY: the chain is alive, and the array is what llama.h says it is.
        unsafe { (self.apply)(self.chain, &mut array) };
        let taken = start.elapsed().as_secs_f64() * 1e6;
        assert!(array.selected >= 0, "llama.cpp's chain has chosen a token");
        black_box(array.selected);
        Ok(taken)
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        // SAFETY: nobody else has the chain.
        unsafe { (self.free)(self.chain) };
    }
}
