// Switching between stacks.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emu {

constexpr size_t kStackBytes = 128 * 1024;
constexpr size_t kGuardBytes = 4096;

typedef void (*FiberEntry)();

#if defined(__x86_64__)

extern "C" __attribute__((visibility("hidden"))) void emu_switch_stacks(void** save, void* load);

struct Context {
    void* stack_pointer = nullptr;
};

inline void start_context(Context& context, char* low, size_t bytes, FiberEntry entry) {
    void** top = reinterpret_cast<void**>(low + bytes);
    *--top = nullptr;  // where a return address would be: keeps the stack aligned as after a call
    *--top = reinterpret_cast<void*>(entry);
    top -= 6;
    for (int i = 0; i < 6; ++i) top[i] = nullptr;
    context.stack_pointer = top;
}

inline void switch_context(Context& from, Context& to) { emu_switch_stacks(&from.stack_pointer, to.stack_pointer); }

#else

struct Context {
    ucontext_t context;
};

inline void start_context(Context& context, char* low, size_t bytes, FiberEntry entry) {
    getcontext(&context.context);
    context.context.uc_stack.ss_sp = low;
    context.context.uc_stack.ss_size = bytes;
    context.context.uc_link = nullptr;
    makecontext(&context.context, entry, 0);
}

inline void switch_context(Context& from, Context& to) { swapcontext(&from.context, &to.context); }

#endif

// Stacks of all threads of a block, one after another, each above a guard page.
class Stacks {
  public:
    char* low(unsigned thread) {
        if (base_ == nullptr) reserve();
        return base_ + thread * (kStackBytes + kGuardBytes) + kGuardBytes;
    }
    bool contains(uintptr_t address) const {
        return base_ != nullptr && address - reinterpret_cast<uintptr_t>(base_) < kTotal;
    }

  private:
    static constexpr size_t kTotal = 1024 * (kStackBytes + kGuardBytes);
    void reserve() {
        void* mapped = mmap(nullptr, kTotal, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED) {
            perror("emulator: mmap of stacks");
            abort();
        }
        base_ = static_cast<char*>(mapped);
        for (size_t i = 0; i < 1024; ++i) mprotect(base_ + i * (kStackBytes + kGuardBytes), kGuardBytes, PROT_NONE);
    }
    char* base_ = nullptr;
};

}  // namespace emu
