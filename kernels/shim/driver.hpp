// What the files of the driver share: its numbers, and what can be enqueued.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fibers.hpp"
#include "memory.hpp"

// A function of CUDA's interface. Those that can fail forget the last report first, so that none of them is
// ever told with another's words.
#define STRATA_CALL extern "C" __attribute__((visibility("default"))) int

namespace driver {

// As the driver numbers them.
enum Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_WRONG_THREAD = 908,
};

// The device: like a small Ampere, so that paths for later ones are not taken.
constexpr size_t SHARED_MOST = 163 << 10;
constexpr size_t SHARED_PLAIN = 48 << 10;
constexpr unsigned THREADS_MOST = 1024;

struct Function {
    shim::Kernel kernel;
    size_t shared_most = SHARED_PLAIN;
};

struct Module {
    void* library;
    size_t tls_module = 0;
    size_t tls_bytes = 0;
    bool one_thread = false;
    std::map<std::string, std::unique_ptr<Function>> functions;
};

struct Launch {
    Function* function;
    shim::Shape shape;
    std::vector<uint64_t> args;
};

struct Node {
    enum { launch, copy, fill } kind;
    Launch launched;
    uint64_t to;
    uint64_t from;
    size_t bytes;
    unsigned char value;
};

struct Graph {
    std::vector<Node> nodes;
};

struct Stream {
    std::mutex runs;   // what is enqueued by several threads runs one after the other
    bool capturing = false;
    bool broken = false;
    const void* owner = nullptr;   // the thread that captures
    std::unique_ptr<Graph> graph;
};

struct Event {
    bool recorded = false;
    std::chrono::steady_clock::time_point at;
};

// Whether the calling thread has made the context its own.
extern __thread bool context_is_current __attribute__((tls_model("initial-exec")));
Stream* stream_of(void* handle);
// For calls that wait or allocate: they must not come while their thread captures a graph, and end it.
bool breaks_a_capture();
bool is_capturing(void* stream);
void break_capture(void* stream);
// Whether so many bytes are all of one allocation.
bool device_range(uint64_t at, size_t bytes);
bool pinned_range(uint64_t at, size_t bytes);
Result run(const Node& node);
// Run it, or write it down when the stream captures.
Result enqueue(void* stream, Node&& node);
// Streams that are there, so that a thread finds those that it captures.
void add_stream(Stream* stream);
bool remove_stream(void* stream);

}  // namespace driver
