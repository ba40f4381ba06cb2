// The part of the CUDA driver's interface that Strata calls, for a device that is this CPU.
//
// Memory is the host's (memory.cpp), a launch runs its blocks at once (fibers.cpp), a stream is a lock, an
// event is a clock. What is not allowed on a device is refused here with the same code: too many threads,
// shared memory that was not asked for, waiting while a graph is captured. A kernel that goes wrong is told
// by the launch itself, not by some later call.
#include <cstdio>
#include <cstring>

#include "driver.hpp"

using namespace driver;

namespace {

struct Name {
    Result code;
    const char* name;
    const char* words;
};
constexpr Name NAMES[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not while a stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "an earlier call broke the capture"},
    {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "no capture was begun on this stream"},
    {CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "a capture is ended by its own thread"},
};

// Any address will do for a context: there is one.
char the_context;

// A copy with one end on the host. While a graph is captured, that end must be pinned.
Result copy_host(uint64_t to, uint64_t from, size_t bytes, uint64_t device, uint64_t host, void* handle) {
    if (bytes == 0) {
        return SUCCESS;
    }
    if (!device_range(device, bytes)) {
        char text[160];
        snprintf(text, sizeof text, "a copy of %zu bytes leaves the device's memory at %#llx", bytes,
                 static_cast<unsigned long long>(device));
        shim::report(text);
        return INVALID_VALUE;
    }
    if (is_capturing(handle)) {
        if (!pinned_range(host, bytes)) {
            break_capture(handle);
            return CAPTURE_UNSUPPORTED;
        }
        return enqueue(handle, Node{Node::copy, {}, to, from, bytes, 0});
    }
    std::lock_guard<std::mutex> lock(stream_of(handle)->runs);
    memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return SUCCESS;
}

}  // namespace

// ---- the device -----------------------------------------------------------------------------------
STRATA_CALL cuInit(unsigned) {
    static std::once_flag once;
    std::call_once(once, shim::install_handlers);
    return SUCCESS;
}

STRATA_CALL cuDriverGetVersion(int* version) {
    *version = 13000;
    return SUCCESS;
}

STRATA_CALL cuDeviceGetCount(int* count) {
    *count = 1;
    return SUCCESS;
}

STRATA_CALL cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? SUCCESS : INVALID_DEVICE;
}

STRATA_CALL cuDeviceGetName(char* name, int size, int) {
    snprintf(name, static_cast<size_t>(size), "Strata shim (CPU)");
    return SUCCESS;
}

STRATA_CALL cuDeviceTotalMem_v2(size_t* bytes, int) {
    *bytes = shim::total_bytes();
    return SUCCESS;
}

STRATA_CALL cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 1:   // most threads of a block
            *value = THREADS_MOST;
            return SUCCESS;
        case 8:   // shared memory of a block
            *value = SHARED_PLAIN;
            return SUCCESS;
        case 10:   // lanes of a warp
            *value = 32;
            return SUCCESS;
        case 16:   // multiprocessors: few, so that a grid that depends on them is small
            *value = 4;
            return SUCCESS;
        case 38:   // second-level cache
            *value = 4 << 20;
            return SUCCESS;
        case 75:   // compute capability
            *value = 8;
            return SUCCESS;
        case 76:
            *value = 0;
            return SUCCESS;
        case 97:   // shared memory of a block, when asked for
            *value = SHARED_MOST;
            return SUCCESS;
        default:
            *value = 0;
            return INVALID_VALUE;
    }
}

STRATA_CALL cuDevicePrimaryCtxRetain(void** context, int) {
    *context = &the_context;
    return SUCCESS;
}

STRATA_CALL cuDevicePrimaryCtxRelease_v2(int) {
    return SUCCESS;
}

STRATA_CALL cuCtxSetCurrent(void* context) {
    context_is_current = context == &the_context;
    return context == nullptr || context_is_current ? SUCCESS : INVALID_CONTEXT;
}

STRATA_CALL cuCtxGetCurrent(void** context) {
    *context = context_is_current ? &the_context : nullptr;
    return SUCCESS;
}

STRATA_CALL cuCtxSynchronize() {
    return breaks_a_capture() ? CAPTURE_UNSUPPORTED : SUCCESS;
}

STRATA_CALL cuGetErrorName(int code, const char** text) {
    for (const Name& known : NAMES) {
        if (known.code == code) {
            *text = known.name;
            return SUCCESS;
        }
    }
    *text = nullptr;
    return INVALID_VALUE;
}

STRATA_CALL cuGetErrorString(int code, const char** text) {
    for (const Name& known : NAMES) {
        if (known.code == code) {
            *text = known.words;
            return SUCCESS;
        }
    }
    *text = nullptr;
    return INVALID_VALUE;
}

// ---- memory ---------------------------------------------------------------------------------------
STRATA_CALL cuMemGetInfo_v2(size_t* free, size_t* total) {
    *total = shim::total_bytes();
    *free = *total - shim::live_bytes();
    return SUCCESS;
}

STRATA_CALL cuMemAlloc_v2(uint64_t* at, size_t bytes) {
    shim::forget();
    if (!context_is_current) {
        return INVALID_CONTEXT;
    }
    if (bytes == 0) {
        return INVALID_VALUE;
    }
    if (breaks_a_capture()) {
        return CAPTURE_UNSUPPORTED;
    }
    *at = shim::allocate(shim::Kind::device, bytes);
    return *at != 0 ? SUCCESS : OUT_OF_MEMORY;
}

STRATA_CALL cuMemFree_v2(uint64_t at) {
    shim::forget();
    if (breaks_a_capture()) {
        return CAPTURE_UNSUPPORTED;
    }
    return at == 0 || shim::release(shim::Kind::device, at) ? SUCCESS : INVALID_VALUE;
}

STRATA_CALL cuMemHostAlloc(void** at, size_t bytes, unsigned) {
    shim::forget();
    if (bytes == 0) {
        return INVALID_VALUE;
    }
    if (breaks_a_capture()) {
        return CAPTURE_UNSUPPORTED;
    }
    *at = reinterpret_cast<void*>(shim::allocate(shim::Kind::pinned, bytes));
    return *at != nullptr ? SUCCESS : OUT_OF_MEMORY;
}

STRATA_CALL cuMemFreeHost(void* at) {
    shim::forget();
    if (breaks_a_capture()) {
        return CAPTURE_UNSUPPORTED;
    }
    return shim::release(shim::Kind::pinned, reinterpret_cast<uint64_t>(at)) ? SUCCESS : INVALID_VALUE;
}

STRATA_CALL cuPointerGetAttributes(unsigned count, const int* attributes, void** data, uint64_t at) {
    shim::forget();
    for (unsigned i = 0; i < count; i++) {
        // 2 is the type of memory: 1 for the host's, 2 for the device's, 0 for what the driver does not know.
        if (attributes[i] != 2) {
            return INVALID_VALUE;
        }
        shim::Kind kind;
        const bool known = shim::kind_of(at, kind);
        *static_cast<unsigned*>(data[i]) = !known ? 0 : kind == shim::Kind::pinned ? 1 : 2;
    }
    return SUCCESS;
}

STRATA_CALL cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
    shim::forget();
    const uint64_t host = reinterpret_cast<uint64_t>(from);
    return copy_host(to, host, bytes, to, host, stream);
}

STRATA_CALL cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
    shim::forget();
    const uint64_t host = reinterpret_cast<uint64_t>(to);
    return copy_host(host, from, bytes, from, host, stream);
}

STRATA_CALL cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
    shim::forget();
    if (!device_range(to, bytes) || !device_range(from, bytes)) {
        shim::report("a copy leaves the device's memory");
        return INVALID_VALUE;
    }
    return enqueue(stream, Node{Node::copy, {}, to, from, bytes, 0});
}

STRATA_CALL cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void* stream) {
    shim::forget();
    if (!device_range(at, bytes)) {
        shim::report("clearing leaves the device's memory");
        return INVALID_VALUE;
    }
    return enqueue(stream, Node{Node::fill, {}, at, 0, bytes, value});
}

// ---- streams and events ---------------------------------------------------------------------------
STRATA_CALL cuStreamCreate(void** handle, unsigned) {
    Stream* stream = new Stream;
    add_stream(stream);
    *handle = stream;
    return SUCCESS;
}

STRATA_CALL cuStreamCreateWithPriority(void** handle, unsigned flags, int) {
    return cuStreamCreate(handle, flags);
}

STRATA_CALL cuStreamDestroy_v2(void* handle) {
    return remove_stream(handle) ? SUCCESS : INVALID_HANDLE;
}

STRATA_CALL cuStreamSynchronize(void* handle) {
    shim::forget();
    if (is_capturing(handle)) {
        break_capture(handle);
        return CAPTURE_UNSUPPORTED;
    }
    // Whatever another thread runs there is waited for.
    std::lock_guard<std::mutex> lock(stream_of(handle)->runs);
    return SUCCESS;
}

STRATA_CALL cuStreamWaitEvent(void*, void*, unsigned) {
    return SUCCESS;
}

STRATA_CALL cuEventCreate(void** event, unsigned) {
    *event = new Event;
    return SUCCESS;
}

STRATA_CALL cuEventDestroy_v2(void* event) {
    delete static_cast<Event*>(event);
    return SUCCESS;
}

STRATA_CALL cuEventRecord(void* handle, void* stream) {
    Event* event = static_cast<Event*>(handle);
    if (!is_capturing(stream)) {
        event->recorded = true;
        event->at = std::chrono::steady_clock::now();
    }
    return SUCCESS;
}

STRATA_CALL cuEventQuery(void*) {
    return breaks_a_capture() ? CAPTURE_UNSUPPORTED : SUCCESS;
}

STRATA_CALL cuEventSynchronize(void*) {
    shim::forget();
    return breaks_a_capture() ? CAPTURE_UNSUPPORTED : SUCCESS;
}

STRATA_CALL cuEventElapsedTime_v2(float* ms, void* start, void* end) {
    shim::forget();
    const Event* from = static_cast<const Event*>(start);
    const Event* to = static_cast<const Event*>(end);
    if (!from->recorded || !to->recorded) {
        return INVALID_HANDLE;
    }
    *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
    return SUCCESS;
}

STRATA_CALL cuEventElapsedTime(float* ms, void* start, void* end) {
    return cuEventElapsedTime_v2(ms, start, end);
}

// ---- for tests ------------------------------------------------------------------------------------
// Not of CUDA: src/shim.rs calls these.
extern "C" __attribute__((visibility("default"))) void strata_shim_set_order(int kind,
                                                                             unsigned long long seed) {
    shim::set_order(kind, seed);
}

extern "C" __attribute__((visibility("default"))) size_t strata_shim_last_report(char* out, size_t size) {
    const std::string text = shim::last_report();
    if (size > 0) {
        const size_t length = text.size() < size - 1 ? text.size() : size - 1;
        memcpy(out, text.data(), length);
        out[length] = '\0';
    }
    return text.size();
}

extern "C" __attribute__((visibility("default"))) size_t strata_shim_live_allocations() {
    return shim::live_count();
}
