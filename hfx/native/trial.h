// Which of two processors' kernels to use where both run: tried when the library is loaded, in under a millisecond.
#pragma once
#include "linear.h"

namespace hfx {

// Whether products by `tried` are those by `known`, bit for bit, and take less time.
bool equal_and_faster(const Kernels &tried, const Kernels &known);

}  // namespace hfx
