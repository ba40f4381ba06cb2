//! What a kernel takes of a multiprocessor, as the assembler tells it.

use super::Compiled;

/// What the assembler said of one kernel.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct KernelUse {
    /// Its `extern "C"` name.
    pub name: String,
    /// Registers a thread. 65536 of them are shared by the threads of a multiprocessor.
    pub registers: usize,
    /// Bytes that did not fit into registers and are written to local memory and read again, by the
    /// kernel and by what it calls. 0 in a kernel that is meant to be fast.
    pub spills: usize,
    /// Bytes of local memory a thread has for its arrays and spills.
    pub stack: usize,
    /// Bytes of static shared memory a block has; dynamic memory comes with the launch.
    pub shared: usize,
}

impl Compiled {
    /// The kernels of the file, in the assembler's order.
    pub fn kernels(&self) -> Vec<KernelUse> {
        let mut kernels: Vec<KernelUse> = Vec::new();
        for line in self.log.lines() {
            if let Some((_, rest)) = line.split_once("Compiling entry function '") {
                let name = rest.split('\'').next().unwrap_or_default().to_string();
                kernels.push(KernelUse { name, ..KernelUse::default() });
                continue;
            }
            let Some(kernel) = kernels.last_mut() else { continue };
            kernel.stack = kernel.stack.max(number_before(line, " bytes stack frame").unwrap_or(0));
            kernel.spills += number_before(line, " bytes spill stores").unwrap_or(0);
            kernel.spills += number_before(line, " bytes spill loads").unwrap_or(0);
            if let Some(registers) = number_before(line, " registers") {
                kernel.registers = kernel.registers.max(registers);
                kernel.shared = number_before(line, " bytes smem").unwrap_or(0);
            }
        }
        kernels
    }
}

/// The number that stands before these words.
fn number_before(line: &str, words: &str) -> Option<usize> {
    let (before, _) = line.split_once(words)?;
    let digits = before.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    before[digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernels(log: &str) -> Vec<KernelUse> {
        Compiled { cubin: Vec::new(), log: log.into() }.kernels()
    }

    #[test]
    fn every_kernel_is_told_with_what_it_takes() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'norm_f32' for 'sm_90a'
ptxas info    : Function properties for norm_f32
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 26 registers, used 1 barriers, 128 bytes smem, 400 bytes cmem[0]
ptxas info    : Compiling entry function 'wide' for 'sm_90a'
ptxas info    : Function properties for wide
    64 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 64 bytes cumulative stack size
";
        let norm =
            KernelUse { name: "norm_f32".into(), registers: 26, spills: 0, stack: 0, shared: 128 };
        let wide =
            KernelUse { name: "wide".into(), registers: 255, spills: 32, stack: 64, shared: 0 };
        assert_eq!(kernels(log), [norm, wide]);
    }

    #[test]
    fn what_a_called_function_spills_is_the_kernels() {
        let log = "\
ptxas info    : Compiling entry function 'caller' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers
ptxas info    : Function properties for called
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
";
        let [ref caller] = kernels(log)[..] else { panic!("one kernel") };
        assert_eq!((caller.registers, caller.spills, caller.stack), (10, 8, 8));
    }

    #[test]
    fn other_words_are_no_kernels() {
        assert_eq!(kernels(""), []);
        assert_eq!(kernels("norm.cu(3): warning: variable \"registers\" was declared"), []);
    }
}
