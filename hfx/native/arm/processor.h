// The kernels for aarch64.
#pragma once
#include "floats.h"

namespace hfx {

extern const Kernels NEON_DOT, NEON_I8MM;
extern const FloatKernels FLOATS_NEON;
inline bool can_multiply_pairs() { return false; }

// Takes memory out of all caches.
inline void evict(const int8_t *memory, long bytes) {
    for (long at = 0; at < bytes; at += 64) __asm__ volatile("dc civac, %0" : : "r"(memory + at) : "memory");
    __asm__ volatile("dsb ish" : : : "memory");
}

// Tells the processor that this thread waits for another one.
inline void relax() { __asm__ volatile("yield"); }

}  // namespace hfx
