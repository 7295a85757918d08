// AVX-VNNI: the same products in registers of 256 bits, on processors without AVX-512.
//
// The sums of 3 rows x 32 columns take 12 of the 16 registers.
#include "panel_parts.h"
#include "processor.h"

namespace hfx {
namespace {

#ifdef __AVXVNNI__
inline __m256i add_products(__m256i sum, __m256i bytes, __m256i weights) { return _mm256_dpbusd_avx_epi32(sum, bytes, weights); }
#else  // tests compile this file for AVX-512, which has its own version of the instruction
inline __m256i add_products(__m256i sum, __m256i bytes, __m256i weights) { return _mm256_dpbusd_epi32(sum, bytes, weights); }
#endif

template <int Rows> __attribute__((noinline)) void sum_half(const uint8_t *q, long stride, long depth, const int8_t *w, const int32_t *start, int32_t *sums) {
    __m256i total[Rows][4];
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) total[i][j] = load256(start + 8 * j);
    for (long k = 0; k < depth; k += GROUP, w += COLUMNS * GROUP) {
        for (int j = 0; j < 128; j += 64) __builtin_prefetch(w + AHEAD + j, 0, 2);
#pragma GCC unroll 8
        for (int i = 0; i < Rows; i++) {
            __m256i row = _mm256_set1_epi32(four_bytes(q + i * stride + k));
#pragma GCC unroll 8
            for (int j = 0; j < 4; j++) total[i][j] = add_products(total[i][j], row, load256(w + 32 * j));
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) store256(sums + COLUMNS * i + 8 * j, total[i][j]);
}

constexpr SumPart SUMS[] = {sum_half<1>, sum_half<2>, sum_half<3>};
using Block = PanelParts<3, COLUMNS / 2, SUMS>;

}  // namespace

const Kernels AVX_VNNI = {"avx-vnni", quantize, unpack, multiply_panel<Block>, best<Block>, &FLOATS_AVX};

}  // namespace hfx
