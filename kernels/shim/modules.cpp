// Compiled kernels, and their launches.
#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstring>

#include "driver.hpp"

using namespace driver;

namespace {

struct Search {
    const void* base;
    Module* module;
};

int find_tls(dl_phdr_info* info, size_t, void* data) {
    Search* search = static_cast<Search*>(data);
    if (reinterpret_cast<const void*>(info->dlpi_addr) != search->base) {
        return 0;
    }
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        if (info->dlpi_phdr[i].p_type == PT_TLS) {
            search->module->tls_module = info->dlpi_tls_modid;
            search->module->tls_bytes = info->dlpi_phdr[i].p_memsz;
        }
    }
    return 1;
}

}  // namespace

// ---- modules and launches -------------------------------------------------------------------------
// The image is a line of magic and the path of a shared library: compile/host.rs writes both.
STRATA_CALL cuModuleLoadData(void** handle, const void* image) {
    shim::forget();
    static const char magic[] = "strata shim module\n";
    const char* text = static_cast<const char*>(image);
    if (strncmp(text, magic, sizeof magic - 1) != 0) {
        return INVALID_IMAGE;
    }
    text += sizeof magic - 1;
    const std::string path(text, strcspn(text, "\n"));
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        shim::report(dlerror());
        return INVALID_IMAGE;
    }
    Module* module = new Module;
    module->library = library;
    link_map* map = nullptr;
    dlinfo(library, RTLD_DI_LINKMAP, &map);
    Search search{reinterpret_cast<const void*>(map->l_addr), module};
    dl_iterate_phdr(find_tls, &search);
    module->one_thread = dlsym(library, "strata_one_thread") != nullptr;
    *handle = module;
    return SUCCESS;
}

// The library stays: its thread-local variables may be in use on other threads.
STRATA_CALL cuModuleUnload(void* handle) {
    delete static_cast<Module*>(handle);
    return SUCCESS;
}

STRATA_CALL cuModuleGetFunction(void** handle, void* of, const char* name) {
    shim::forget();
    Module* module = static_cast<Module*>(of);
    static std::mutex lock;
    std::lock_guard<std::mutex> guard(lock);
    std::unique_ptr<Function>& function = module->functions[name];
    if (function == nullptr) {
        auto symbol = [&](const char* prefix) {
            return dlsym(module->library, (std::string(prefix) + name).c_str());
        };
        void* entry = symbol("strata_entry_");
        void* signature = symbol("strata_signature_");
        void* threads = symbol("strata_most_threads_");
        if (entry == nullptr || signature == nullptr || threads == nullptr) {
            module->functions.erase(name);
            return NOT_FOUND;
        }
        function.reset(new Function);
        function->kernel.name = name;
        function->kernel.entry = reinterpret_cast<void (*)(void* const*)>(entry);
        function->kernel.signature = reinterpret_cast<const char* (*)()>(signature)();
        function->kernel.most_threads = reinterpret_cast<int (*)()>(threads)();
        function->kernel.tls_module = module->tls_module;
        function->kernel.tls_bytes = module->tls_bytes;
        function->kernel.one_thread = module->one_thread;
    }
    *handle = function.get();
    return SUCCESS;
}

STRATA_CALL cuFuncSetAttribute(void* handle, int attribute, int value) {
    shim::forget();
    constexpr int MAX_DYNAMIC_SHARED = 8;
    if (attribute == MAX_DYNAMIC_SHARED) {
        if (value < 0 || static_cast<size_t>(value) > SHARED_MOST) {
            return INVALID_VALUE;
        }
        static_cast<Function*>(handle)->shared_most = static_cast<size_t>(value);
    }
    return SUCCESS;
}

STRATA_CALL cuLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                           unsigned bz, unsigned shared, void* stream, void** params, void**) {
    shim::forget();
    Function* function = static_cast<Function*>(handle);
    const shim::Kernel& kernel = function->kernel;
    const unsigned long long threads = 1ull * bx * by * bz;
    auto number = [](unsigned long long n) { return std::to_string(n); };
    auto refuse = [&](Result code, const std::string& why) {
        shim::report("kernel " + kernel.name + ": " + why);
        return code;
    };
    if (!context_is_current) {
        return INVALID_CONTEXT;
    }
    if (gx == 0 || gy == 0 || gz == 0 || gx > 0x7fffffffu || gy > 65535 || gz > 65535 || threads == 0 ||
        threads > THREADS_MOST || bz > 64) {
        return refuse(INVALID_VALUE, "a grid or a block of a size that no device has");
    }
    const unsigned long long most = static_cast<unsigned long long>(kernel.most_threads);
    if (most > 0 && threads > most) {
        return refuse(LAUNCH_OUT_OF_RESOURCES,
                      number(threads) + " threads, but it was compiled for at most " + number(most) +
                          " (__launch_bounds__)");
    }
    if (shared > function->shared_most) {
        return refuse(INVALID_VALUE, number(shared) + " bytes of dynamic shared memory, but " +
                                         number(function->shared_most) + " were asked for beforehand");
    }
    // launch.rs gives 64 bits for every argument and null behind the last one. A device would take what it
    // finds; here it is looked at.
    const size_t count = kernel.signature.size();
    Launch launch{function, {{gx, gy, gz}, {bx, by, bz}, shared}, std::vector<uint64_t>(count)};
    for (size_t i = 0; i < count; ++i) {
        if (params[i] == nullptr) {
            return refuse(INVALID_VALUE, number(i) + " arguments, but it takes " + number(count));
        }
        memcpy(&launch.args[i], params[i], 8);
        const char letter = kernel.signature[i];
        if (letter == 'x') {
            return refuse(INVALID_VALUE, "parameter " + number(i) + " is of a type that cannot be passed");
        }
        if (letter == 'i' && launch.args[i] >> 32 != 0) {
            return refuse(INVALID_VALUE, "argument " + number(i) + " has 64 bits, its parameter has 32");
        }
    }
    if (count < 32 && params[count] != nullptr) {
        return refuse(INVALID_VALUE, "more than the " + number(count) + " arguments it takes");
    }
    return enqueue(stream, Node{Node::launch, std::move(launch), 0, 0, 0, 0});
}

// What launch.rs uses: cuda.h has the same structures.
struct LaunchAttribute {
    int id;
    int pad;
    union {
        char bytes[64];
        int number;
    } value;
};

struct LaunchConfig {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared;
    void* stream;
    const LaunchAttribute* attributes;
    unsigned count;
};

STRATA_CALL cuLaunchKernelEx(const LaunchConfig* config, void* handle, void** params, void** extra) {
    shim::forget();
    constexpr int PROGRAMMATIC_STREAM_SERIALIZATION = 6;
    for (unsigned i = 0; i < config->count; ++i) {
        // A kernel may begin before the one before it has ended. Here it does not.
        if (config->attributes[i].id != PROGRAMMATIC_STREAM_SERIALIZATION) {
            return INVALID_VALUE;
        }
    }
    return cuLaunchKernel(handle, config->grid[0], config->grid[1], config->grid[2], config->block[0],
                          config->block[1], config->block[2], config->shared, config->stream, params, extra);
}
