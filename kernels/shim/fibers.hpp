// Runs the blocks of a launch.
#pragma once

#include <cstddef>
#include <string>

#include "runtime.hpp"

namespace shim {

// A kernel, as it was loaded.
struct Kernel {
    std::string name;
    void (*entry)(void* const* args);
    std::string signature;
    int most_threads;
    // The block of thread-local variables that is its module's shared memory.
    size_t tls_module;
    size_t tls_bytes;
    bool one_thread;
};

struct Shape {
    strata_uint3 grid;
    strata_uint3 block;
    size_t shared;
};

enum class Outcome { done, failed, illegal_address, trapped };

// Order in which threads that could go on do so, for launches of the calling thread of the system. A
// negative kind goes back to what STRATA_SHIM_ORDER says.
enum class Order { forward = 0, backward = 1, random = 2 };
void set_order(int kind, unsigned long long seed);

// Runs all blocks. When it did not end well, `last_report` says what happened.
Outcome run(const Kernel& kernel, const Shape& shape, void* const* args);

// What went wrong in the calling thread's last call, if something did. Reports go to stderr too.
std::string last_report();
void report(const std::string& text);
void forget();

// Catch faults of kernels from now on.
void install_handlers();

}  // namespace shim
