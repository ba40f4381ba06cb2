// A launch: its blocks, taken by one thread of the system or by several.
#include <setjmp.h>
#include <time.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "runner.hpp"

namespace shim {
namespace {

std::mutex pool_lock;
std::vector<std::unique_ptr<Runner>> pool;

std::unique_ptr<Runner> take_runner() {
    {
        std::lock_guard<std::mutex> lock(pool_lock);
        if (!pool.empty()) {
            std::unique_ptr<Runner> runner = std::move(pool.back());
            pool.pop_back();
            return runner;
        }
    }
    return std::unique_ptr<Runner>(new Runner());
}

void give_runner(std::unique_ptr<Runner> runner) {
    std::lock_guard<std::mutex> lock(pool_lock);
    pool.push_back(std::move(runner));
}

Ordering from_environment() {
    const char* text = getenv("STRATA_SHIM_ORDER");
    if (text == nullptr || strcmp(text, "forward") == 0) {
        return {Order::forward, 0};
    }
    if (strcmp(text, "backward") == 0) {
        return {Order::backward, 0};
    }
    if (strncmp(text, "random", 6) == 0) {
        return {Order::random, text[6] == ':' ? strtoull(text + 7, nullptr, 10) : 0};
    }
    fprintf(stderr, "kernels: STRATA_SHIM_ORDER=%s is none of forward, backward, random:SEED\n", text);
    return {Order::forward, 0};
}

unsigned from_environment_threads() {
    const char* text = getenv("STRATA_SHIM_THREADS");
    const unsigned asked = text ? static_cast<unsigned>(strtoul(text, nullptr, 10)) : 0;
    if (asked > 0) {
        return asked < 64 ? asked : 64;
    }
    const unsigned cores = std::thread::hardware_concurrency();
    return cores < 1 ? 1 : cores < 4 ? cores : 4;
}

// The order that the calling thread asked for, if it did.
__thread bool order_asked __attribute__((tls_model("initial-exec")));
__thread int order_kind __attribute__((tls_model("initial-exec")));
__thread unsigned long long order_seed __attribute__((tls_model("initial-exec")));

Ordering ordering_now() {
    if (order_asked) {
        return {static_cast<Order>(order_kind), order_seed};
    }
    static const Ordering outside = from_environment();
    return outside;
}

// Blocks that nobody has begun, shared by the threads of the system that run a launch.
struct Work {
    const Kernel* kernel;
    const Shape* shape;
    void* const* args;
    Ordering ordering;
    unsigned long long blocks;
    std::atomic<unsigned long long> next;
    std::atomic<int> outcome;
    std::mutex lock;
    std::string report;
};

long long now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

// Run blocks until there are no more, or until that time if it is not 0.
void run_some(Work& work, long long until) {
    need_signal_stack();
    std::unique_ptr<Runner> runner = take_runner();
    Runner* const mine = runner.get();
    active = mine;
    strata_thread* const outer = strata_current;
    if (sigsetjmp(mine->landing, 1) == 0) {
        mine->running = true;
        while (work.outcome.load(std::memory_order_relaxed) == 0) {
            if (until != 0 && now_ns() > until) {
                break;
            }
            const unsigned long long i = work.next.fetch_add(1);
            if (i >= work.blocks) {
                break;
            }
            unsigned long long number = i;
            if (work.ordering.order == Order::backward) {
                number = work.blocks - 1 - i;
            }
            mine->begin(work.ordering, number);
            mine->block(*work.kernel, *work.shape, work.args, number);
        }
        mine->running = false;
    } else {
        mine->running = false;
        if (mine->fault_signal != 0) {
            report(mine->fault(mine->fault_signal, mine->fault_address));
            mine->fault_signal = 0;
        }
        work.outcome.store(static_cast<int>(mine->outcome));
        {
            std::lock_guard<std::mutex> lock(work.lock);
            work.report = last_report();
        }
        mine->abandon();
    }
    strata_current = outer;
    active = nullptr;
    give_runner(std::move(runner));
}

}  // namespace

void set_order(int kind, unsigned long long seed) {
    order_asked = kind >= 0;
    order_kind = kind;
    order_seed = seed;
}

// How long a launch runs on the calling thread alone: starting another costs some of that.
constexpr long long ALONE_NS = 200000;

Outcome run(const Kernel& kernel, const Shape& shape, void* const* args) {
    static const unsigned most = from_environment_threads();
    Work work;
    work.kernel = &kernel;
    work.shape = &shape;
    work.args = args;
    work.ordering = ordering_now();
    work.blocks = static_cast<unsigned long long>(shape.grid.x) * shape.grid.y * shape.grid.z;
    work.next = 0;
    work.outcome = 0;
    const bool alone = kernel.one_thread || most == 1 || work.blocks == 1;
    run_some(work, alone ? 0 : now_ns() + ALONE_NS);
    if (!alone && work.outcome == 0 && work.next < work.blocks) {
        std::vector<std::thread> helpers;
        for (unsigned i = 1; i < most && i < work.blocks; ++i) {
            helpers.emplace_back([&work] { run_some(work, 0); });
        }
        run_some(work, 0);
        for (std::thread& helper : helpers) {
            helper.join();
        }
    }
    if (work.outcome != 0) {
        // It may have been another thread that saw it.
        keep(work.report);
    }
    return static_cast<Outcome>(work.outcome.load());
}

}  // namespace shim
