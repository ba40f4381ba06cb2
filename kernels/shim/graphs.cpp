// What is enqueued: run at once, or written down while a graph is captured and run by every replay.
#include <cstdio>
#include <cstring>

#include "driver.hpp"

namespace driver {

namespace {

std::mutex state;
std::vector<Stream*> streams;
Stream null_stream;
// Its address is another one in each thread.
__thread char me __attribute__((tls_model("initial-exec")));

}  // namespace

__thread bool context_is_current __attribute__((tls_model("initial-exec")));

Stream* stream_of(void* handle) {
    return handle == nullptr ? &null_stream : static_cast<Stream*>(handle);
}

// A call that waits or allocates must not come while its thread captures a graph, and ends the capture.
bool breaks_a_capture() {
    std::lock_guard<std::mutex> lock(state);
    bool broke = false;
    for (Stream* stream : streams) {
        if (stream->capturing && stream->owner == &me) {
            stream->broken = true;
            broke = true;
        }
    }
    return broke;
}

bool device_range(uint64_t at, size_t bytes) {
    return shim::inside(shim::Kind::device, at, bytes);
}

bool pinned_range(uint64_t at, size_t bytes) {
    return shim::inside(shim::Kind::pinned, at, bytes);
}

static Result run(const Launch& launch) {
    const shim::Kernel& kernel = launch.function->kernel;
    void* args[64];
    for (size_t i = 0; i < launch.args.size(); ++i) {
        args[i] = const_cast<uint64_t*>(&launch.args[i]);
        if (kernel.signature[i] == 'p' && launch.args[i] != 0 && !shim::known(launch.args[i])) {
            char text[160];
            snprintf(text, sizeof text, "argument %zu, %#llx, is no address of the device's memory", i,
                     static_cast<unsigned long long>(launch.args[i]));
            shim::report("kernel " + kernel.name + ": " + text);
            return ILLEGAL_ADDRESS;
        }
    }
    switch (shim::run(kernel, launch.shape, args)) {
        case shim::Outcome::done:
            for (size_t i = 0; i < launch.args.size(); ++i) {
                if (kernel.signature[i] == 'p' && !shim::intact_around(launch.args[i])) {
                    shim::report("kernel " + kernel.name +
                                 ": it wrote just in front of or behind the memory of argument " +
                                 std::to_string(i));
                    return ILLEGAL_ADDRESS;
                }
            }
            return SUCCESS;
        case shim::Outcome::illegal_address:
            return ILLEGAL_ADDRESS;
        default:
            return LAUNCH_FAILED;
    }
}

Result run(const Node& node) {
    switch (node.kind) {
        case Node::launch:
            return run(node.launched);
        case Node::copy:
            if (!(device_range(node.to, node.bytes) || pinned_range(node.to, node.bytes)) ||
                !(device_range(node.from, node.bytes) || pinned_range(node.from, node.bytes))) {
                shim::report("a graph copies from or to memory that is no longer there");
                return ILLEGAL_ADDRESS;
            }
            memmove(reinterpret_cast<void*>(node.to), reinterpret_cast<const void*>(node.from), node.bytes);
            return SUCCESS;
        default:
            if (!device_range(node.to, node.bytes)) {
                shim::report("a graph clears memory that is no longer there");
                return ILLEGAL_ADDRESS;
            }
            shim::fill(node.to, node.value, node.bytes);
            return SUCCESS;
    }
}

// Run it, or write it down when the stream captures.
Result enqueue(void* handle, Node&& node) {
    Stream* stream = stream_of(handle);
    {
        std::lock_guard<std::mutex> lock(state);
        if (stream->capturing) {
            if (stream->broken) {
                return CAPTURE_INVALIDATED;
            }
            stream->graph->nodes.push_back(std::move(node));
            return SUCCESS;
        }
    }
    std::lock_guard<std::mutex> lock(stream->runs);
    return run(node);
}

bool is_capturing(void* handle) {
    std::lock_guard<std::mutex> lock(state);
    return stream_of(handle)->capturing;
}

void break_capture(void* handle) {
    std::lock_guard<std::mutex> lock(state);
    stream_of(handle)->broken = true;
}

void add_stream(Stream* stream) {
    std::lock_guard<std::mutex> lock(state);
    streams.push_back(stream);
}

bool remove_stream(void* handle) {
    std::lock_guard<std::mutex> lock(state);
    for (size_t i = 0; i < streams.size(); ++i) {
        if (streams[i] == handle) {
            delete streams[i];
            streams.erase(streams.begin() + static_cast<std::ptrdiff_t>(i));
            return true;
        }
    }
    return false;
}

}  // namespace driver

using namespace driver;

STRATA_CALL cuStreamBeginCapture_v2(void* handle, int) {
    shim::forget();
    std::lock_guard<std::mutex> lock(state);
    Stream* stream = stream_of(handle);
    if (stream == &null_stream) {
        return CAPTURE_UNSUPPORTED;
    }
    if (stream->capturing) {
        return INVALID_VALUE;
    }
    stream->capturing = true;
    stream->broken = false;
    stream->owner = &me;
    stream->graph.reset(new Graph);
    return SUCCESS;
}

STRATA_CALL cuStreamEndCapture(void* handle, void** graph) {
    shim::forget();
    std::lock_guard<std::mutex> lock(state);
    Stream* stream = stream_of(handle);
    *graph = nullptr;
    if (!stream->capturing) {
        return CAPTURE_UNMATCHED;
    }
    if (stream->owner != &me) {
        return CAPTURE_WRONG_THREAD;
    }
    stream->capturing = false;
    if (stream->broken) {
        stream->graph.reset();
        return CAPTURE_INVALIDATED;
    }
    *graph = stream->graph.release();
    return SUCCESS;
}

STRATA_CALL cuStreamIsCapturing(void* handle, int* status) {
    std::lock_guard<std::mutex> lock(state);
    Stream* stream = stream_of(handle);
    *status = !stream->capturing ? 0 : stream->broken ? 2 : 1;
    return SUCCESS;
}

// ---- graphs ---------------------------------------------------------------------------------------
STRATA_CALL cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
    *exec = new Graph(*static_cast<const Graph*>(graph));
    return SUCCESS;
}

STRATA_CALL cuGraphUpload(void*, void*) {
    return SUCCESS;
}

STRATA_CALL cuGraphLaunch(void* exec, void* handle) {
    shim::forget();
    if (is_capturing(handle)) {
        break_capture(handle);
        return CAPTURE_UNSUPPORTED;
    }
    std::lock_guard<std::mutex> lock(stream_of(handle)->runs);
    for (const Node& node : static_cast<const Graph*>(exec)->nodes) {
        const Result result = run(node);
        if (result != SUCCESS) {
            return result;
        }
    }
    return SUCCESS;
}

STRATA_CALL cuGraphExecDestroy(void* exec) {
    delete static_cast<Graph*>(exec);
    return SUCCESS;
}

STRATA_CALL cuGraphDestroy(void* graph) {
    delete static_cast<Graph*>(graph);
    return SUCCESS;
}
