// Finds out which kernels can run here: the system says what the processor has.
#include "choices.h"
#include "processor.h"
#include "trial.h"
#include <sys/auxv.h>

namespace hfx {
namespace {

constexpr unsigned long DOT_PRODUCTS = 1ul << 20;  // HWCAP_ASIMDDP, in AT_HWCAP
constexpr unsigned long INT8_MATRICES = 1ul << 13;  // HWCAP2_I8MM, in AT_HWCAP2

bool can_dot() { return getauxval(AT_HWCAP) & DOT_PRODUCTS; }
bool can_i8mm() { return can_dot() && getauxval(AT_HWCAP2) & INT8_MATRICES; }
bool can_and_should_i8mm() { return can_i8mm() && equal_and_faster(NEON_I8MM, NEON_DOT); }

constexpr Choice TABLE[] = {
    {&NEON_I8MM, can_i8mm, can_and_should_i8mm},
    {&NEON_DOT, can_dot, can_dot},
};

}  // namespace

const Choices CHOICES = {
    TABLE, TABLE + sizeof TABLE / sizeof *TABLE, "hfx: HFX_NATIVE_KERNELS is none of neon-i8mm, neon-dot and none",
    "hfx: this processor has no dot products (FEAT_DotProd, from Armv8.2 on)", [] { return true; },
};

}  // namespace hfx
