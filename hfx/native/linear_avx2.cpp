// AVX2 without VNNI: the same products by vpmaddubsw, which adds pairs in 16 bits.
//
// It takes u8 x s8, and 255 * 127 * 2 would saturate. So a weight's sign goes to the row: |w| <= 128 as u8, and r with the
// sign of w as s8, where r = q - 128 is from -127 to 127; a pair is at most 2 * 128 * 127 = 32,512. Sums of q begin at -128
// times the weights' sum, those of r at 0. 2 rows x 32 columns of sums stand in 8 of the 16 registers.
#include "floats.h"
#include "half_panels.h"

namespace hfx {
namespace {

template <int Rows> __attribute__((noinline)) void sum_half(const uint8_t *q, long stride, long depth, const int8_t *w, const int32_t *, int32_t *sums) {
    const __m256i ones = _mm256_set1_epi16(1), middle = _mm256_set1_epi8(-128);
    __m256i total[Rows][4];
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) total[i][j] = _mm256_setzero_si256();
    for (long k = 0; k < depth; k += GROUP, w += COLUMNS * GROUP) {
        fetch_ahead(w);
        __m256i row[Rows];
#pragma GCC unroll 8
        for (int i = 0; i < Rows; i++) row[i] = _mm256_xor_si256(_mm256_set1_epi32(four_bytes(q + i * stride + k)), middle);
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) {
            const __m256i weights = load256(w + 32 * j), sizes = _mm256_abs_epi8(weights);
#pragma GCC unroll 8
            for (int i = 0; i < Rows; i++) {
                const __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(row[i], weights));
                total[i][j] = _mm256_add_epi32(total[i][j], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) store256(sums + COLUMNS * i + 8 * j, total[i][j]);
}

constexpr HalfSum SUMS[] = {sum_half<1>, sum_half<2>};
using Block = HalfPanels<2, SUMS>;

}  // namespace

const Kernels AVX2 = {"avx2", quantize, unpack, multiply_panel<Block>, best<Block>, &FLOATS_AVX};

}  // namespace hfx
