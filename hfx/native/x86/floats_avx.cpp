#include "norm.h"
#include "processor.h"

const hfx::FloatKernels hfx::FLOATS_AVX = hfx::FLOATS;
