// The kernels of this kind of processor, from the fastest to the most general; cpu.cpp of its folder has the table.
#pragma once
#include "linear.h"

namespace hfx {

struct Choice {
    const Kernels *kernels;
    bool (*can_run)(), (*should_run)();  // if HFX_NATIVE_KERNELS names them; if it is not set
};
struct Choices {
    const Choice *first, *last;
    const char *unknown, *missing;  // errors: the name of other kernels; a processor that can run none
    bool (*adds_exactly)();  // whether ONNX Runtime's own operators add 8-bit products without overflow
    const Choice *begin() const { return first; }
    const Choice *end() const { return last; }
};
extern const Choices CHOICES;

}  // namespace hfx
