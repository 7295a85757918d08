#include "norm.h"
#include "processor.h"

const hfx::FloatKernels hfx::FLOATS_AVX512 = hfx::FLOATS;
