// Finds out which kernels can run here, from the processor and from the operating system.
#include "choices.h"
#include "processor.h"
#include "trial.h"
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hfx {
namespace {

struct Leaf {
    unsigned a = 0, b = 0, c = 0, d = 0;
    Leaf(unsigned number, unsigned part) { __get_cpuid_count(number, part, &a, &b, &c, &d); }
};
bool has(unsigned word, int bit) { return word >> bit & 1; }

// The registers that the system saves when it changes threads.
unsigned saved_registers() {
    if (!has(Leaf(1, 0).c, 27)) return 0;  // OSXSAVE
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

constexpr unsigned AVX_STATE = 0x6, AVX512_STATE = 0xe6, TILE_STATE = 0x60000;
bool saves(unsigned state) { return (saved_registers() & state) == state; }

bool can_avx2() {
    Leaf first(1, 0), leaf(7, 0);
    // FMA, F16C; AVX2, BMI1, BMI2
    return saves(AVX_STATE) && has(first.c, 12) && has(first.c, 29) && has(leaf.b, 5) && has(leaf.b, 3) && has(leaf.b, 8);
}

bool can_avx_vnni() { return can_avx2() && has(Leaf(7, 1).a, 4); }

bool can_avx512_vnni() {
    Leaf leaf(7, 0);
    bool foundation = has(leaf.b, 16) && has(leaf.b, 17) && has(leaf.b, 28) && has(leaf.b, 30) && has(leaf.b, 31);
    return saves(AVX512_STATE) && foundation && has(leaf.b, 8) && has(leaf.c, 11);  // F, DQ, CD, BW, VL; BMI2; VNNI
}

// Linux lets a process use tiles once the process has requested them (arch_prctl).
bool can_amx_int8() {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;
    Leaf leaf(7, 0);
    return can_avx512_vnni() && has(leaf.d, 24) && has(leaf.d, 25) && saves(TILE_STATE) &&
           syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

bool can_and_should_amx_int8() { return can_amx_int8() && equal_and_faster(AMX_INT8, AVX512_VNNI); }

bool can_and_should_panels() { return can_avx512_vnni() && equal_and_faster_from_memory(AVX512_VNNI_PANELS, AVX512_VNNI); }

constexpr Choice TABLE[] = {
    {&AMX_INT8, can_amx_int8, can_and_should_amx_int8},
    {&AVX512_VNNI_PANELS, can_avx512_vnni, can_and_should_panels},
    {&AVX512_VNNI, can_avx512_vnni, can_avx512_vnni},
    {&AVX_VNNI, can_avx_vnni, can_avx_vnni},
    {&AVX2, can_avx2, can_avx2},
};

}  // namespace

bool can_multiply_pairs() { return can_avx512_vnni() && has(Leaf(7, 1).a, 5); }

const Choices CHOICES = {
    TABLE, TABLE + sizeof TABLE / sizeof *TABLE, "hfx: HFX_NATIVE_KERNELS is none of amx-int8, avx512-vnni, avx512-vnni-panels, avx-vnni, avx2 and none",
    "hfx: this processor has no AVX2 with FMA and F16C", [] { return can_avx512_vnni() || can_avx_vnni(); },
};

}  // namespace hfx
