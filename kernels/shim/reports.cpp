// What went wrong, in words: faults, threads that wait for ever, and whatever a kernel itself reports.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "runner.hpp"

namespace shim {
namespace {

// What the calling thread did last, if it went wrong.
__thread std::string* last __attribute__((tls_model("initial-exec")));

}  // namespace

void keep(const std::string& text) {
    if (last == nullptr) {
        last = new std::string();
    }
    *last = text;
}

std::string last_report() {
    return last != nullptr ? *last : std::string();
}

void report(const std::string& text) {
    fprintf(stderr, "%s\n", text.c_str());
    keep(text);
}

void forget() {
    if (last != nullptr) {
        last->clear();
    }
}

// ---- what goes wrong ------------------------------------------------------------------------------
std::string Runner::who(const Fiber& fiber) const {
    const strata_thread& t = fiber.self;
    char text[128];
    snprintf(text, sizeof text, "thread (%u, %u, %u) of block (%u, %u, %u)", t.thread.x, t.thread.y,
             t.thread.z, t.block.x, t.block.y, t.block.z);
    return text;
}

void Runner::fail(Outcome how, const std::string& why) {
    report("kernel " + kernel->name + ": " + why);
    outcome = how;
    siglongjmp(landing, 1);
}

void Runner::todo(const char* text) {
    report(std::string("not yet implemented: ") + text);
    outcome = Outcome::failed;
    siglongjmp(landing, 1);
}

// Nobody can go on: say who waits where.
void Runner::stuck() {
    struct Group {
        std::string where;
        std::string first;
        unsigned count;
    };
    std::vector<Group> groups;
    for (unsigned i = 0; i < threads; ++i) {
        const Fiber& fiber = fibers[i];
        std::string where = "have ended";
        if (fiber.state == State::at_barrier) {
            where = "at " + fiber.place.text();
        } else if (fiber.state == State::at_collective) {
            char mask[32];
            snprintf(mask, sizeof mask, " with mask %08x", fiber.mask);
            where = "at " + fiber.place.text() + mask;
        }
        bool found = false;
        for (Group& group : groups) {
            if (group.where == where) {
                ++group.count;
                found = true;
            }
        }
        if (!found) {
            groups.push_back({where, who(fiber), 1});
        }
    }
    std::string text = "its threads wait for each other for ever (a divergent barrier)";
    const char* separator = ": ";
    for (const Group& group : groups) {
        text += separator + std::to_string(group.count) + " " + group.where + ", first " + group.first;
        separator = "; ";
    }
    fail(Outcome::failed, text);
}

std::string Runner::fault(int signal, const void* address) {
    const std::string me = "kernel " + kernel->name + ": " + who(*current);
    if (signal == SIGILL || signal == SIGTRAP || signal == SIGFPE) {
        return me + " was stopped: an index outside of its array, an address that is not aligned for its "
                    "type, a shift by too many bits, a division by zero, or a path without a result";
    }
    const char* at = static_cast<const char*>(address);
    char text[128];
    for (void* stack : all_stacks) {
        const char* low = static_cast<const char*>(stack);
        if (at >= low && at < low + page()) {
            snprintf(text, sizeof text, " needs more than %zu KiB of stack", STACK_BYTES >> 10);
            return me + text;
        }
    }
    const char* end = reinterpret_cast<const char*>(dynamic) + DYNAMIC_BYTES;
    if (at >= end && at < end + page()) {
        snprintf(text, sizeof text, " reads or writes %td bytes behind the dynamic shared memory", at - end);
        return me + text;
    }
    snprintf(text, sizeof text, " reads or writes outside of the device's memory, at address %p", address);
    return me + text;
}

// ---- faults ---------------------------------------------------------------------------------------
namespace {

constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE};
struct sigaction before[5];

void handle(int signal, siginfo_t* info, void* context) {
    Runner* runner = active;
    if (runner != nullptr && runner->running) {
        // Told after the landing: this stack may be a small one.
        runner->fault_signal = signal;
        runner->fault_address = info->si_addr;
        const bool memory = signal == SIGSEGV || signal == SIGBUS;
        runner->outcome = memory ? Outcome::illegal_address : Outcome::trapped;
        siglongjmp(runner->landing, 1);
    }
    // Not ours: whoever was there before decides.
    for (int i = 0; i < 5; ++i) {
        if (SIGNALS[i] == signal) {
            if (before[i].sa_flags & SA_SIGINFO) {
                before[i].sa_sigaction(signal, info, context);
            } else if (before[i].sa_handler == SIG_DFL || before[i].sa_handler == SIG_IGN) {
                // Put back, so that the same instruction faults again and the process ends.
                sigaction(signal, &before[i], nullptr);
            } else {
                before[i].sa_handler(signal);
            }
            return;
        }
    }
}

}  // namespace

void need_signal_stack() {
    stack_t old{};
    if (sigaltstack(nullptr, &old) == 0 && !(old.ss_flags & SS_DISABLE)) {
        return;
    }
    static thread_local std::unique_ptr<char[]> own;
    constexpr size_t bytes = 64 << 10;
    own.reset(new char[bytes]);
    stack_t stack{};
    stack.ss_sp = own.get();
    stack.ss_size = bytes;
    sigaltstack(&stack, nullptr);
}

void install_handlers() {
    struct sigaction action {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < 5; ++i) {
        sigaction(SIGNALS[i], &action, &before[i]);
    }
}

}  // namespace shim
