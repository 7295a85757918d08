// The kernels for x86-64.
#pragma once
#include "floats.h"
#include <emmintrin.h>

namespace hfx {

extern const Kernels AVX2, AVX512_VNNI, AVX512_VNNI_PANELS, AVX_VNNI, AMX_INT8;
extern const FloatKernels FLOATS_AVX, FLOATS_AVX512;
void multiply_pairs(const Panels &);  // needs AVX512-BF16
bool can_multiply_pairs();

// Takes memory out of all caches.
inline void evict(const int8_t *memory, long bytes) {
    for (long at = 0; at < bytes; at += 64) _mm_clflush(memory + at);
    _mm_mfence();
}

// Tells the processor that this thread waits for another one.
inline void relax() { _mm_pause(); }

}  // namespace hfx
