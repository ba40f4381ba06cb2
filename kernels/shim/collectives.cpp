// What threads wait for: barriers of a block, collectives of a warp, copies that run by themselves. And the
// functions by which kernels ask for all this.
#include <cstdio>
#include <cstdlib>

#include "runner.hpp"

namespace shim {

// ---- collectives ----------------------------------------------------------------------------------
int Runner::barrier(int flag, Place place) {
    if (live < threads) {
        for (unsigned i = 0; i < threads; ++i) {
            if (fibers[i].state == State::ended) {
                fail(Outcome::failed, "a divergent barrier: " + who(*current) + " waits at " + place.text() +
                                          ", but " + who(fibers[i]) + " has ended");
            }
        }
    }
    if (waiting == 0) {
        first_waiting = current;
    } else if (!first_waiting->place.same(place)) {
        fail(Outcome::failed, "a divergent barrier: " + who(*first_waiting) + " waits at " +
                                  first_waiting->place.text() + ", " + who(*current) + " at " + place.text());
    }
    flags += flag != 0 ? 1 : 0;
    if (++waiting == threads) {
        counted = flags;
        waiting = flags = 0;
        for (unsigned i = 0; i < threads; ++i) {
            fibers[i].state = State::ready;
            make_ready(i);
        }
        wait(State::ready, place);
    } else {
        wait(State::at_barrier, place);
    }
    return static_cast<int>(counted);
}

void Runner::collective(unsigned mask, void* mine, strata_combine combine, Place place) {
    Fiber& self = *current;
    const unsigned i = index(self);
    Warp& warp = warps[i / 32];
    Fiber* lanes = &fibers[i / 32 * 32];
    if (!(mask >> (i % 32) & 1u)) {
        fail(Outcome::failed, who(self) + " calls " + place.text() + " with a mask without its own lane");
    }
    const unsigned missing = mask & (warp.ended | ~warp.exists);
    if (missing) {
        const unsigned lane = static_cast<unsigned>(__builtin_ctz(missing));
        fail(Outcome::failed, who(self) + " calls " + place.text() + " with a mask that names lane " +
                                  std::to_string(lane) +
                                  (warp.ended >> lane & 1u ? ", which has ended"
                                                            : ", which is not in the block"));
    }
    self.mask = mask;
    self.combine = combine;
    self.brought = mine;
    self.place = place;
    warp.arrived |= 1u << (i % 32);
    if ((warp.arrived & mask) != mask) {
        wait(State::at_collective, place);
        return;
    }
    void* brought[32];
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
        const Fiber& other = lanes[lane];
        if (other.mask != mask || other.combine != combine || !other.place.same(place)) {
            // That lane may be at something else, which it will finish first. If it cannot, everybody
            // waits in the end, and stuck() says so.
            wait(State::at_collective, place);
            return;
        }
        brought[lane] = other.brought;
    }
    const char* wrong = combine(brought, mask);
    if (wrong != nullptr) {
        fail(Outcome::failed, who(self) + ", " + place.text() + ": " + wrong);
    }
    warp.arrived &= ~mask;
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        lanes[__builtin_ctz(rest)].state = State::ready;
    }
    ready[i / 64] |= static_cast<unsigned long long>(mask) << (i / 32 % 2 * 32);
    wait(State::ready, place);
}

unsigned Runner::active_lanes() const {
    const Warp& warp = warps[index(*current) / 32];
    return warp.exists & ~warp.ended;
}

// ---- copies that run by themselves ----------------------------------------------------------------
static void do_copy(const Copy& copy) {
    if (copy.wanted) {
        memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
    } else {
        memset(copy.to, 0, static_cast<size_t>(copy.bytes));
    }
}

void Runner::copy(void* to, const void* from, int bytes, bool wanted) {
    const size_t both = reinterpret_cast<size_t>(to) | reinterpret_cast<size_t>(from);
    const size_t odd = both % static_cast<size_t>(bytes);
    if (odd != 0) {
        fail_here("an asynchronous copy between addresses that are not aligned");
    }
    // It must be readable even when it is not wanted.
    *static_cast<const volatile char*>(from);
    const Copy copy{to, from, bytes, wanted};
    // A device may have it done at once, or only when it is waited for. Random order tries both.
    if (ordering.order == Order::random && random.next() % 2 == 0) {
        do_copy(copy);
        return;
    }
    current->copies.push_back(copy);
}

void Runner::commit() {
    size_t before = 0;
    for (size_t count : current->groups) {
        before += count;
    }
    current->groups.push_back(current->copies.size() - before);
}

void Runner::wait_copies(size_t pending) {
    std::vector<size_t>& groups = current->groups;
    std::vector<Copy>& copies = current->copies;
    if (groups.size() <= pending) {
        return;
    }
    const size_t done = groups.size() - pending;
    size_t count = 0;
    for (size_t i = 0; i < done; ++i) {
        count += groups[i];
    }
    for (size_t i = 0; i < count; ++i) {
        do_copy(copies[i]);
    }
    copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(count));
    groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(done));
}

}  // namespace shim

// ---- what kernels call ----------------------------------------------------------------------------
using shim::active;

extern "C" {

int strata_block_barrier(int flag, const char* what, const char* file, int line) {
    return active->barrier(flag, {what, file, line});
}

void strata_warp_collective(unsigned mask, void* mine, strata_combine combine, const char* what,
                            const char* file, int line) {
    active->collective(mask, mine, combine, {what, file, line});
}

unsigned strata_active_lanes() {
    return active->active_lanes();
}

void strata_copy_async(void* to, const void* from, int bytes, int wanted) {
    active->copy(to, from, bytes, wanted != 0);
}

void strata_copy_commit() {
    active->commit();
}

void strata_copy_wait(int pending) {
    active->wait_copies(static_cast<size_t>(pending));
}

void strata_fail(const char* text) {
    active->fail_here(text);
}

void strata_todo(const char* text) {
    active->todo(text);
}

int strata_switched_on(const char* name) {
    // Looked up once: this is asked by every thread of a kernel.
    static const char* const all = getenv("STRATA_SCHEMATA");
    const char* list = all;
    const size_t length = strlen(name);
    while (list != nullptr && *list != '\0') {
        const char* end = strchr(list, ',');
        const size_t size = end ? static_cast<size_t>(end - list) : strlen(list);
        if (size == length && memcmp(list, name, length) == 0) {
            return 1;
        }
        list = end ? end + 1 : nullptr;
    }
    return 0;
}
}
