// For tests, in place of cpu.cpp: all kernels in one library, for any processor with AVX512-VNNI.
//
// AVX_VNNI is compiled with AVX-512's form of its instruction, AMX_INT8 with emulated tiles (emulated_tiles.h).
#include "linear.h"
#include <stdlib.h>

namespace hfx {

const Kernels *kernels() {
    const Kernels *const all[] = {&AVX512_VNNI, &AVX_VNNI, &AMX_INT8};
    const char *wanted = getenv("HFX_NATIVE_KERNELS");
    for (const Kernels *each : all)
        if (wanted && !strcmp(wanted, each->name)) return each;
    return nullptr;
}

}  // namespace hfx
