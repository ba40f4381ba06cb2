// The device's memory, which is the host's, with fences around every allocation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shim {

enum class Kind { device, pinned };

// An address, 16 bytes aligned; 0 when there is no room.
uint64_t allocate(Kind kind, size_t bytes);
// Whether it was an allocation of this kind.
bool release(Kind kind, uint64_t at);
// Whether all these bytes lie within one allocation of this kind.
bool inside(Kind kind, uint64_t at, size_t bytes);
// Whether an address is one of an allocation, and then of which kind.
bool kind_of(uint64_t at, Kind& kind);
// Whether an address is one of an allocation, of either kind, or the one just behind it.
bool known(uint64_t at);
// memset, without touching the pages of something large that is to be zero.
void fill(uint64_t at, unsigned char value, size_t bytes);
// Whether nothing was written just in front of the allocation that this address is of, or just behind it.
bool intact_around(uint64_t at);
// Allocations on the device, and their bytes.
size_t live_count();
size_t live_bytes();
size_t total_bytes();

}  // namespace shim
