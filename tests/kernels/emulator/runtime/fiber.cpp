// The switch itself: callee-saved registers go to the old stack and come from the new one.

#include "fiber.h"

#if defined(__x86_64__)
asm(R"(
    .text
    .globl emu_switch_stacks
    .hidden emu_switch_stacks
    .type emu_switch_stacks, @function
emu_switch_stacks:
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
    .size emu_switch_stacks, .-emu_switch_stacks
)");
#endif
