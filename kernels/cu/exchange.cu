// Bytes from many addresses to one range, and back: blocks of a KV cache on their way to the host.
//
//   exchange_gather    range[part.offset ..] = bytes at part.at, for every part
//   exchange_scatter   bytes at part.at = range[part.offset ..], for every part
//
// The keys of a block of one layer are some tens of kilobytes, and a chunk of a prompt has a thousand such runs. Each
// copy that the host enqueues costs it microseconds, in which the bus could move 100 KB and more. So a kernel
// collects the runs in one range, and the bus moves that with one copy. Device memory is some fifty times as fast as
// the bus: collecting adds a few hundredths to the time.
//
// The host cuts runs into parts of at most 16 KiB, one for each block of threads. 256 threads load four times 16
// bytes before the first is used (see quads.cuh). A part whose addresses or size are not multiples of 16 is copied
// byte by byte.
//
// Bytes moved per byte: 1 read, 1 written.
#include "ptx.cuh"

// One entry of the host's list: 16 bytes.
struct alignas(16) Part {
    u64 at;
    u32 offset;
    u32 bytes;
};

// Loads of 16 bytes that a thread has under way.
constexpr int LOADS = 4;

__device__ inline void copy_part(const unsigned char* from, unsigned char* to, u32 bytes) {
    const u64 bits = reinterpret_cast<u64>(from) | reinterpret_cast<u64>(to) | bytes;
    if (bits % 16 != 0) {
        for (u32 i = threadIdx.x; i < bytes; i += blockDim.x) {
            to[i] = from[i];
        }
        return;
    }
    const uint4* source = reinterpret_cast<const uint4*>(from);
    uint4* target = reinterpret_cast<uint4*>(to);
    const u32 words = bytes / 16;
    for (u32 start = threadIdx.x; start < words; start += LOADS * blockDim.x) {
        uint4 loaded[LOADS];
        for (int k = 0; k < LOADS; k++) {
            const u32 i = start + k * blockDim.x;
            loaded[k] = load_once(source + i, i < words);
        }
        for (int k = 0; k < LOADS; k++) {
            const u32 i = start + k * blockDim.x;
            if (i < words) {
                store_16(target + i, loaded[k]);
            }
        }
    }
}

extern "C" __global__ void exchange_gather(const Part* parts, unsigned char* range) {
    wait_for_previous();
    const Part part = parts[blockIdx.x];
    copy_part(reinterpret_cast<const unsigned char*>(part.at), range + part.offset, part.bytes);
}

extern "C" __global__ void exchange_scatter(const Part* parts, const unsigned char* range) {
    wait_for_previous();
    const Part part = parts[blockIdx.x];
    copy_part(range + part.offset, reinterpret_cast<unsigned char*>(part.at), part.bytes);
}
