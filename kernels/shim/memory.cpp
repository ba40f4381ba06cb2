// Every allocation has pages of its own between two fences that cannot be touched, and ends where the second
// fence begins: a kernel that goes on behind the end faults. What is left of the first page, and up to 15
// bytes at the end, hold a pattern that is checked after every kernel that was given the allocation.
#include "memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "fibers.hpp"

namespace shim {
namespace {

struct Allocation {
    Kind kind;
    size_t bytes;
    unsigned char* pages;   // between the fences
    size_t page_bytes;
};

std::mutex lock;
std::map<uint64_t, Allocation> allocations;
size_t used = 0, count = 0;

// Width of a fence, in bytes. The system may map other memory right beside it, so a fence is much wider than a
// page: an index that is off by a row of a matrix faults too. It takes addresses, not memory.
constexpr size_t FENCE = 64 << 10;

// Freed memory cannot be touched, and its address is not given again for a while.
struct Gone {
    void* at;
    size_t bytes;
};
std::deque<Gone> gone_ones;
constexpr size_t MOST_GONE = 256;

constexpr unsigned char PATTERN = 0xa5;
// Larger ones are not filled: nobody wants a KV pool of gigabytes to be really there before it is used.
constexpr size_t MOST_FILLED = 64 << 20;

const std::map<uint64_t, Allocation>::value_type* find(uint64_t at) {
    auto next = allocations.upper_bound(at);
    if (next == allocations.begin()) {
        return nullptr;
    }
    return &*--next;
}

bool intact(const unsigned char* from, const unsigned char* to) {
    for (; from < to; ++from) {
        if (*from != PATTERN) {
            return false;
        }
    }
    return true;
}

}  // namespace

size_t total_bytes() {
    static const size_t total = [] {
        const char* text = getenv("STRATA_SHIM_MEMORY");
        const size_t mib = text ? strtoull(text, nullptr, 10) : 0;
        return (mib ? mib : 1024) << 20;
    }();
    return total;
}

uint64_t allocate(Kind kind, size_t bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t padded = (bytes + 15) / 16 * 16;
    const size_t body = (padded + page - 1) / page * page;
    std::lock_guard<std::mutex> guard(lock);
    if (kind == Kind::device && (bytes > total_bytes() || used > total_bytes() - bytes)) {
        return 0;
    }
    void* all = mmap(nullptr, body + 2 * FENCE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) {
        return 0;
    }
    unsigned char* pages = static_cast<unsigned char*>(all) + FENCE;
    if (mprotect(pages, body, PROT_READ | PROT_WRITE) != 0) {
        munmap(all, body + 2 * FENCE);
        return 0;
    }
    unsigned char* start = pages + body - padded;
    memset(pages, PATTERN, static_cast<size_t>(start - pages));
    if (bytes <= MOST_FILLED) {
        memset(start, 0xff, bytes);
    }
    memset(start + bytes, PATTERN, padded - bytes);
    const uint64_t at = reinterpret_cast<uint64_t>(start);
    allocations[at] = {kind, bytes, pages, body};
    if (kind == Kind::device) {
        used += bytes;
        ++count;
    }
    return at;
}

bool release(Kind kind, uint64_t at) {
    std::lock_guard<std::mutex> guard(lock);
    auto found = allocations.find(at);
    if (found == allocations.end() || found->second.kind != kind) {
        return false;
    }
    const Allocation gone = found->second;
    allocations.erase(found);
    if (kind == Kind::device) {
        used -= gone.bytes;
        --count;
    }
    const unsigned char* start = reinterpret_cast<const unsigned char*>(at);
    const unsigned char* end = gone.pages + gone.page_bytes;
    if (!intact(gone.pages, start) || !intact(start + gone.bytes, end)) {
        char text[128];
        snprintf(text, sizeof text, "something wrote just outside of an allocation of %zu bytes", gone.bytes);
        report(text);
    }
    // Mapped anew, so that the pages are the system's again and only the addresses are kept.
    void* const all = gone.pages - FENCE;
    const size_t all_bytes = gone.page_bytes + 2 * FENCE;
    mmap(all, all_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    gone_ones.push_back({all, all_bytes});
    if (gone_ones.size() > MOST_GONE) {
        munmap(gone_ones.front().at, gone_ones.front().bytes);
        gone_ones.pop_front();
    }
    return true;
}

bool inside(Kind kind, uint64_t at, size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    const auto* found = find(at);
    return found != nullptr && found->second.kind == kind && at - found->first <= found->second.bytes &&
           bytes <= found->second.bytes - (at - found->first);
}

void fill(uint64_t at, unsigned char value, size_t bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    char* const from = reinterpret_cast<char*>(at);
    char* const to = from + bytes;
    char* const first = reinterpret_cast<char*>((at + page - 1) / page * page);
    char* const last = reinterpret_cast<char*>((at + bytes) / page * page);
    // Pages that are given back are zero when they are touched again.
    if (value == 0 && bytes >= size_t{1} << 20 &&
        madvise(first, static_cast<size_t>(last - first), MADV_DONTNEED) == 0) {
        memset(from, 0, static_cast<size_t>(first - from));
        memset(last, 0, static_cast<size_t>(to - last));
        return;
    }
    memset(from, value, bytes);
}

bool intact_around(uint64_t at) {
    constexpr size_t LOOKED_AT = 64;
    std::lock_guard<std::mutex> guard(lock);
    const auto* found = find(at);
    if (found == nullptr) {
        return true;
    }
    const Allocation& one = found->second;
    unsigned char* start = reinterpret_cast<unsigned char*>(found->first);
    unsigned char* end = one.pages + one.page_bytes;
    const size_t room = static_cast<size_t>(start - one.pages);
    unsigned char* from = start - (room < LOOKED_AT ? room : LOOKED_AT);
    if (intact(from, start) && intact(start + one.bytes, end)) {
        return true;
    }
    // Told once.
    memset(from, PATTERN, static_cast<size_t>(start - from));
    memset(start + one.bytes, PATTERN, static_cast<size_t>(end - (start + one.bytes)));
    return false;
}

bool known(uint64_t at) {
    std::lock_guard<std::mutex> guard(lock);
    const auto* found = find(at);
    return found != nullptr && at - found->first <= found->second.bytes;
}

bool kind_of(uint64_t at, Kind& kind) {
    std::lock_guard<std::mutex> guard(lock);
    const auto* found = find(at);
    if (found == nullptr || at - found->first >= found->second.bytes) {
        return false;
    }
    kind = found->second.kind;
    return true;
}

size_t live_count() {
    std::lock_guard<std::mutex> guard(lock);
    return count;
}

size_t live_bytes() {
    std::lock_guard<std::mutex> guard(lock);
    return used;
}

}  // namespace shim
