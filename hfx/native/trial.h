// A trial of two processors' kernels, to choose between them where both run. It takes under a millisecond, when
// the kernels are chosen.
#pragma once
#include "linear.h"

namespace hfx {

// Whether `tried` computes the same products as `known`, bit for bit, in less time.
bool equal_and_faster(const Kernels &tried, const Kernels &known);

}  // namespace hfx
