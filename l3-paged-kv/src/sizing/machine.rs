//! Memory of the machine and its devices.

use l1_tensor::Runtime;

use super::Bytes;

/// Returns the total memory of the runtime's device: of a GPU its own, of a CPU the machine's.
///
/// On a GPU it is cut down to what is left beside other processes, as far as the driver tells: what is free
/// now, and what this process holds already (`held`: weights, say).
///
/// # Errors
/// A message, when the system or the driver does not report it.
pub fn device_memory(rt: &Runtime, held: Bytes) -> Result<Bytes, String> {
    let Some(gpu) = rt.gpu() else { return machine_memory().map(Bytes) };
    let (free, total) = gpu.memory().map_err(|e| format!("{} does not say: {e}", rt.device()))?;
    let ours = (free as u64).saturating_add(held.0);
    Ok(Bytes(ours.min(total as u64)))
}

/// All memory of this machine, in bytes.
fn machine_memory() -> Result<u64, String> {
    const FROM: &str = "/proc/meminfo";
    let text = std::fs::read_to_string(FROM).map_err(|e| format!("{FROM} does not say: {e}"))?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| format!("{FROM} does not say"))
}
