#include "norm.h"
#include "processor.h"

const hfx::FloatKernels hfx::FLOATS_AVX512 = [] {
    FloatKernels floats = FLOATS;
    floats.pairs = multiply_pairs;
    return floats;
}();
