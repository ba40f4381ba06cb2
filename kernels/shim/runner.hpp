// The threads of a block, and what each of them is doing.
#pragma once

#include <setjmp.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "fibers.hpp"

namespace shim {

constexpr size_t STACK_BYTES = 64 << 10;
constexpr size_t DYNAMIC_BYTES = 256 << 10;
constexpr unsigned MOST_THREADS = 1024;

inline size_t page() {
    static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

struct Place {
    const char* what;
    const char* file;
    int line;

    bool same(const Place& other) const {
        return line == other.line && what == other.what &&
               (file == other.file || strcmp(file, other.file) == 0);
    }
    std::string text() const {
        const char* slash = strrchr(file, '/');
        return std::string(what) + " (" + (slash ? slash + 1 : file) + ":" + std::to_string(line) + ")";
    }
};

struct Copy {
    void* to;
    const void* from;
    int bytes;
    bool wanted;
};

enum class State { ready, at_barrier, at_collective, ended };

struct Fiber {
    strata_thread self;
    unsigned number;  // in its block
    State state;
    void* stack;      // none before it starts and after it has ended
    void* pointer;    // its stack pointer while it does not run
    Place place;
    unsigned mask;
    strata_combine combine;
    void* brought;
    std::vector<Copy> copies;     // those of no group yet, behind those of groups
    std::vector<size_t> groups;   // how many copies each group has, the oldest first
};

struct Warp {
    unsigned exists;
    unsigned arrived;
    unsigned ended;
};

struct Random {
    unsigned long long state;
    unsigned next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return static_cast<unsigned>(state * 0x2545f4914f6cdd1dull >> 32);
    }
};

struct Ordering {
    Order order;
    unsigned long long seed;
};

// Runs one block after the other on one thread of the system.
class Runner {
  public:
    Runner();
    // Runs the block of that number. When something goes wrong this does not return: it lands.
    void block(const Kernel& kernel, const Shape& shape, void* const* args, unsigned long long number);
    void begin(Ordering ordering, unsigned long long number);

    Outcome outcome = Outcome::done;
    // Where a launch goes on that ends before its end.
    sigjmp_buf landing;
    volatile bool running = false;
    int fault_signal = 0;
    const void* fault_address = nullptr;

    [[noreturn]] void fail(Outcome how, const std::string& why);
    [[noreturn]] void fail_here(const char* why) { fail(Outcome::failed, who(*current) + ": " + why); }
    // An exercise that nobody has done: what to say is in the text.
    [[noreturn]] void todo(const char* text);
    std::string who(const Fiber& fiber) const;
    std::string fault(int signal, const void* address);

    int barrier(int flag, Place place);
    void collective(unsigned mask, void* mine, strata_combine combine, Place place);
    unsigned active_lanes() const;
    void copy(void* to, const void* from, int bytes, bool wanted);
    void commit();
    void wait_copies(size_t pending);
    // Forget the threads of a block that will not be finished.
    void abandon();
    // What a stack runs: threads, until one has to wait for a place of its own.
    [[noreturn]] void work();

  private:
    static unsigned index(const Fiber& fiber) { return fiber.number; }
    void make_ready(unsigned i) { ready[i / 64] |= 1ull << (i % 64); }
    Fiber* pick();
    void* new_stack();
    void give_stack(void* stack) { stacks.push_back(stack); }
    void start(Fiber& fiber);
    void wait(State state, Place place);
    [[noreturn]] void stuck();

    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<void*> stacks;
    std::vector<void*> all_stacks;
    unsigned char* dynamic = nullptr;
    unsigned long long ready[MOST_THREADS / 64] = {};
    unsigned threads = 0;
    unsigned live = 0;
    unsigned waiting = 0;
    unsigned flags = 0;
    unsigned counted = 0;
    const Fiber* first_waiting = nullptr;
    Fiber* current = nullptr;
    void* main = nullptr;
    const Kernel* kernel = nullptr;
    void* const* args = nullptr;
    Ordering ordering{};
    Random random{1};
};

// The runner of the calling thread of the system.
extern __thread Runner* active __attribute__((tls_model("initial-exec")));

// See that the calling thread has a stack for signals: a fiber's own may be what has overflowed.
void need_signal_stack();
// Remember a report without printing it.
void keep(const std::string& text);

}  // namespace shim
