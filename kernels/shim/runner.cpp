// One fiber for each CUDA thread of a block.
//
// A fiber runs until it waits for others (a barrier, a shuffle); then the next one that can go on does.
// Which one that is follows the order: the first, the last, or any. Where two threads are not kept apart
// by a barrier, one order or another lets the wrong one go first.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "runner.hpp"
#include "switch.hpp"

extern "C" {
__thread strata_thread* strata_current __attribute__((tls_model("initial-exec")));
// The start of this thread's copy of a module's thread-local variables.
void* __tls_get_addr(void* index);
// There when AddressSanitizer is.
void __asan_unpoison_memory_region(const void*, size_t) __attribute__((weak));
}

namespace shim {

__thread Runner* active __attribute__((tls_model("initial-exec")));

// ---- stacks ---------------------------------------------------------------------------------------
Runner::Runner() {
    const size_t bytes = DYNAMIC_BYTES + page();
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
    if (at == MAP_FAILED) {
        perror("kernels: no memory for shared memory");
        abort();
    }
    dynamic = static_cast<unsigned char*>(at);
    mprotect(dynamic + DYNAMIC_BYTES, page(), PROT_NONE);
    fibers.resize(MOST_THREADS);
    warps.resize(MOST_THREADS / 32);
}

void* Runner::new_stack() {
    if (stacks.empty()) {
        // 16 at once; the lowest page of each stops a stack that grows too far.
        constexpr size_t count = 16;
        void* at = mmap(nullptr, count * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) {
            perror("kernels: no memory for stacks");
            abort();
        }
        for (size_t i = count; i-- > 0;) {
            char* low = static_cast<char*>(at) + i * STACK_BYTES;
            mprotect(low, page(), PROT_NONE);
            stacks.push_back(low);
            all_stacks.push_back(low);
        }
    }
    void* stack = stacks.back();
    stacks.pop_back();
    return stack;
}

void Runner::start(Fiber& fiber) {
    fiber.stack = new_stack();
    char* top = static_cast<char*>(fiber.stack) + STACK_BYTES;
    fiber.pointer = strata_prepare_stack(top, [] { active->work(); });
}

void Runner::abandon() {
    stacks = all_stacks;
    memset(ready, 0, sizeof ready);
    if (__asan_unpoison_memory_region != nullptr) {
        for (void* stack : all_stacks) {
            __asan_unpoison_memory_region(static_cast<char*>(stack) + page(), STACK_BYTES - page());
        }
    }
}

// ---- which thread is next -------------------------------------------------------------------------
Fiber* Runner::pick() {
    const unsigned words = (threads + 63) / 64;
    unsigned found = MOST_THREADS;
    if (ordering.order == Order::forward) {
        for (unsigned w = 0; w < words; ++w) {
            if (ready[w]) {
                found = w * 64 + static_cast<unsigned>(__builtin_ctzll(ready[w]));
                break;
            }
        }
    } else if (ordering.order == Order::backward) {
        for (unsigned w = words; w-- > 0;) {
            if (ready[w]) {
                found = w * 64 + 63 - static_cast<unsigned>(__builtin_clzll(ready[w]));
                break;
            }
        }
    } else {
        // The next one from a place drawn at random, going round.
        const unsigned from = random.next() % threads;
        for (unsigned i = 0; i <= words; ++i) {
            const unsigned w = (from / 64 + i) % words;
            unsigned long long bits = ready[w];
            if (i == 0) {
                bits &= ~0ull << (from % 64);
            }
            if (bits) {
                found = w * 64 + static_cast<unsigned>(__builtin_ctzll(bits));
                break;
            }
        }
    }
    if (found == MOST_THREADS) {
        return nullptr;
    }
    ready[found / 64] &= ~(1ull << (found % 64));
    return &fibers[found];
}

// The running thread cannot go on: let another one do so until it can.
void Runner::wait(State state, Place place) {
    Fiber* self = current;
    self->state = state;
    self->place = place;
    Fiber* next = pick();
    if (next == self) {
        return;
    }
    if (next == nullptr) {
        stuck();
    }
    if (next->stack == nullptr) {
        start(*next);
    }
    current = next;
    strata_current = &next->self;
    strata_switch_stack(&self->pointer, next->pointer);
}

void Runner::work() {
    void* stack = current->stack;
    for (;;) {
        kernel->entry(args);
        Fiber* self = current;
        self->state = State::ended;
        self->stack = nullptr;
        const unsigned i = index(*self);
        warps[i / 32].ended |= 1u << (i % 32);
        --live;
        Fiber* next = pick();
        if (next == nullptr && live > 0) {
            stuck();
        }
        if (next != nullptr && next->stack == nullptr) {
            // One that has not begun can have this stack: that is all there is to do for a kernel
            // without barriers.
            next->stack = stack;
            current = next;
            strata_current = &next->self;
            continue;
        }
        give_stack(stack);
        void* ignored;
        current = next;
        if (next != nullptr) {
            strata_current = &next->self;
        }
        strata_switch_stack(&ignored, next != nullptr ? next->pointer : main);
    }
}

// ---- a block --------------------------------------------------------------------------------------
void Runner::begin(Ordering now, unsigned long long number) {
    ordering = now;
    random.state = (now.seed + 1) * 0x9e3779b97f4a7c15ull ^ (number + 1) * 0xd1b54a32d192ed03ull;
    random.state |= 1;
}

void Runner::block(const Kernel& the_kernel, const Shape& shape, void* const* the_args,
                   unsigned long long number) {
    kernel = &the_kernel;
    args = the_args;
    const strata_uint3 grid = shape.grid, size = shape.block;
    threads = size.x * size.y * size.z;
    // Shared memory holds whatever the block before left there. 0xff bytes are NaN as f32 and as bf16, and
    // -1 as an integer: what nobody has written shows.
    if (kernel->tls_bytes > 0) {
        size_t of[2] = {kernel->tls_module, 0};
        memset(__tls_get_addr(of), 0xff, kernel->tls_bytes);
    }
    const size_t room = (shape.shared + 15) / 16 * 16;
    unsigned char* shared = dynamic + DYNAMIC_BYTES - room;
    memset(shared, 0xff, room);

    const strata_uint3 at = {static_cast<unsigned>(number % grid.x),
                             static_cast<unsigned>(number / grid.x % grid.y),
                             static_cast<unsigned>(number / grid.x / grid.y)};
    unsigned i = 0;
    for (unsigned z = 0; z < size.z; ++z) {
        for (unsigned y = 0; y < size.y; ++y) {
            for (unsigned x = 0; x < size.x; ++x, ++i) {
                Fiber& fiber = fibers[i];
                fiber.self = {{x, y, z}, at, size, grid, shared, i % 32};
                fiber.number = i;
                fiber.state = State::ready;
                fiber.stack = nullptr;
                fiber.copies.clear();
                fiber.groups.clear();
                make_ready(i);
            }
        }
    }
    for (unsigned w = 0; w * 32 < threads; ++w) {
        const unsigned lanes = threads - w * 32;
        warps[w] = {lanes >= 32 ? ~0u : (1u << lanes) - 1, 0, 0};
    }
    live = threads;
    waiting = flags = 0;
    outcome = Outcome::done;
    Fiber* first = pick();
    start(*first);
    current = first;
    strata_current = &first->self;
    strata_switch_stack(&main, first->pointer);
}

}  // namespace shim
