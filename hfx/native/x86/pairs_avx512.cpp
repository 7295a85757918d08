// AVX512-BF16: the sums of panels of pairs. vdpbf16ps adds the product of the higher halves, then that of the lower ones,
// each rounded as by a fused multiply-add.
#include "processor.h"
#include "self_attend.h"
#include <immintrin.h>

namespace hfx {
namespace {

struct Pairs {
    static Floats add(Floats a, Floats b, Floats sum) { return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b); }
};

}  // namespace

void multiply_pairs(const Panels &p) { multiply_panels<Pairs>(p); }

}  // namespace hfx
