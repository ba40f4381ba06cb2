// From one stack to another.
#include "switch.hpp"

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "fibers are written for x86-64 and aarch64"
#endif

// Only what a callee must keep has to be kept: everything else the compiler has saved before the call.
#if defined(__x86_64__)
asm(R"(
.text
.globl strata_switch_stack
.hidden strata_switch_stack
.type strata_switch_stack,@function
strata_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size strata_switch_stack,.-strata_switch_stack
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl strata_switch_stack
.hidden strata_switch_stack
.type strata_switch_stack,%function
strata_switch_stack:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size strata_switch_stack,.-strata_switch_stack
)");
#endif

void* strata_prepare_stack(void* top, void (*first)()) {
    void** at = static_cast<void**>(top);
#if defined(__x86_64__)
    // A function expects the stack to be 8 off from a multiple of 16, as a call leaves it.
    *--at = nullptr;
    *--at = reinterpret_cast<void*>(first);
    for (int i = 0; i < 6; ++i) {
        *--at = nullptr;
    }
#else
    for (int i = 0; i < 20; ++i) {
        *--at = nullptr;
    }
    at[11] = reinterpret_cast<void*>(first);
#endif
    return at;
}
