// From one stack to another.
#pragma once

extern "C" {
// Save where this fiber is in `*from`, and go on where another one was.
void strata_switch_stack(void** from, void* to);
}

// Make a stack that ends at `top` (a multiple of 16) such that going there calls `first`.
void* strata_prepare_stack(void* top, void (*first)());
