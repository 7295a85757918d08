// For tests, in place of choose.cpp: all kernels in one library, for any processor with AVX512-VNNI.
//
// AVX_VNNI is compiled with AVX-512's form of its instruction, AMX_INT8 with emulated tiles (emulated_tiles.h).
#include "processor.h"
#include "trial.h"
#include <stdlib.h>

namespace hfx {
namespace {

// AVX512_VNNI's, of whose results one bit is wrong.
void wrong_panel(const Product &p, long panel) {
    AVX512_VNNI.panel(p, panel);
    reinterpret_cast<uint32_t *>(p.y)[p.count * p.outputs - 1] ^= 1;
}
void wrong_best(const Product &p, long first, long last, float *values, int32_t *columns) {
    AVX512_VNNI.best(p, first, last, values, columns);
    columns[p.count - 1] ^= 1;
}

// AVX512_VNNI's, which compute everything twice.
void slow_panel(const Product &p, long panel) {
    AVX512_VNNI.panel(p, panel);
    AVX512_VNNI.panel(p, panel);
}

Kernels named(const char *name) {
    const Kernels *const all[] = {&AVX512_VNNI, &AVX512_VNNI_PANELS, &AVX_VNNI, &AMX_INT8, &AVX2};
    for (const Kernels *each : all)
        if (!strcmp(name, each->name)) return *each;
    Kernels wrong = AVX512_VNNI;
    if (!strcmp(name, "wrong panel")) wrong.panel = wrong_panel;
    else if (!strcmp(name, "wrong best")) wrong.best = wrong_best;
    else if (!strcmp(name, "slow panel")) wrong.panel = slow_panel;
    else wrong.name = nullptr;
    return wrong;
}

}  // namespace

bool can_multiply_pairs() { return __builtin_cpu_supports("avx512bf16"); }

const char *refusal() { return "hfx: this processor has no such kernels"; }

const Kernels *kernels() {
    static Kernels found;
    const char *wanted = getenv("HFX_NATIVE_KERNELS");
    if (wanted) found = named(wanted);
    return found.name ? &found : nullptr;
}

}  // namespace hfx

extern "C" __attribute__((visibility("default"))) bool hfx_equal_and_faster(const char *tried, const char *known) {
    return hfx::equal_and_faster(hfx::named(tried), hfx::named(known));
}

extern "C" __attribute__((visibility("default"))) bool hfx_equal_and_faster_from_memory(const char *tried, const char *known) {
    return hfx::equal_and_faster_from_memory(hfx::named(tried), hfx::named(known));
}

extern "C" __attribute__((visibility("default"))) bool hfx_should_multiply_pairs(const char *name) {
    return hfx::should_multiply_pairs(*hfx::named(name).floats);
}
