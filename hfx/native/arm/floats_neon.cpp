#include "norm.h"
#include "processor.h"

const hfx::FloatKernels hfx::FLOATS_NEON = hfx::FLOATS;
