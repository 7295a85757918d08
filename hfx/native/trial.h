// Trials of two kernels, to choose between them where both run. They are held when the kernels are chosen.
#pragma once
#include "linear.h"

namespace hfx {

// Whether `tried` computes the same products as `known`, bit for bit, in less time, with weights from the first-level
// cache. It takes under a millisecond.
bool equal_and_faster(const Kernels &tried, const Kernels &known);

// The same for products of 8 and 16 rows, whose weights come from memory, as in a step of generation. It takes 20 ms.
bool equal_and_faster_from_memory(const Kernels &tried, const Kernels &known);

// Whether this processor's pairs of bfloat16 have the sums of their numbers, bit for bit, in less time.
bool should_multiply_pairs(const FloatKernels &floats);

}  // namespace hfx
