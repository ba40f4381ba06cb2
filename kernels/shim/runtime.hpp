// What a kernel that was compiled for a CPU asks of the runtime that runs it.
//
// A block is run by one thread of the operating system; each of its CUDA threads is a fiber with a stack
// of its own. A fiber runs until it waits for others. Nothing here is the kernel's business: cuda.hpp and
// ptx.hpp build CUDA's names on it.
#pragma once

#include <stddef.h>

struct strata_uint3 {
    unsigned x, y, z;
};

// Who the running CUDA thread is.
struct strata_thread {
    strata_uint3 thread;
    strata_uint3 block;
    strata_uint3 block_dim;
    strata_uint3 grid_dim;
    unsigned char* dynamic_shared;
    unsigned lane;   // 0 to 31, by the linear index in the block
};

// Does the work of a collective when its last lane has come: `lanes[i]` is what lane i brought, for the
// lanes of the mask. It may write there; a text that it returns ends the launch with that report.
typedef const char* (*strata_combine)(void* const* lanes, unsigned mask);

#pragma GCC visibility push(default)
extern "C" {

// The running CUDA thread. What a fiber sees here never changes, so a compiler may keep it.
extern __thread strata_thread* strata_current __attribute__((tls_model("initial-exec")));

// Wait until every thread of the block is here. Returns for how many of them `flag` was true.
int strata_block_barrier(int flag, const char* what, const char* file, int line);

// Wait until every lane of the mask is here; the last one calls `combine` for all of them.
void strata_warp_collective(unsigned mask, void* mine, strata_combine combine, const char* what,
                            const char* file, int line);

// Lanes of the warp that exist and have not ended.
unsigned strata_active_lanes();

// Copies that run by themselves: nothing arrives before the wait (or, in random order, perhaps at once).
void strata_copy_async(void* to, const void* from, int bytes, int wanted);
void strata_copy_commit();
void strata_copy_wait(int pending);

// End the launch with a report. Does not return.
void strata_fail(const char* text) __attribute__((noreturn));
void strata_todo(const char* text) __attribute__((noreturn));

// Whether STRATA_SCHEMATA, a list with commas, has this name.
int strata_switched_on(const char* name);
}
#pragma GCC visibility pop
