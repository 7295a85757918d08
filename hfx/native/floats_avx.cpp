#include "self_attend.h"
#include "norm.h"

const hfx::FloatKernels hfx::FLOATS_AVX = hfx::FLOATS;
