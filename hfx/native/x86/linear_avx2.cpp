// For processors with AVX2 but without VNNI: the same results as the VNNI kernels, computed by vpmaddubsw, which adds
// pairs of products in 16 bits.
//
// vpmaddubsw multiplies u8 by s8, and 255 * 127 * 2 would saturate. If all weights are from -64 to 64, as in files that
// are exported on such a processor, no pair saturates. For other weights, the sign of the weight is moved to the row:
// the factors are |w| <= 128 as u8, and r with the sign of w as s8, where r = q - 128 is from -127 to 127. A pair is
// then at most 2 * 128 * 127 = 32,512. Sums of q begin at -128 times the sum of the weights, and sums of r begin at 0.
#include "half_panels.h"
#include "processor.h"

namespace hfx {
namespace {

template <int Rows, bool Narrow> __attribute__((noinline)) void sum_half(const uint8_t *q, long stride, long depth, const int8_t *w, const int32_t *start, int32_t *sums) {
    const __m256i ones = _mm256_set1_epi16(1), middle = _mm256_set1_epi8(-128);
    __m256i total[Rows][4];
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) total[i][j] = Narrow ? load256(start + 8 * j) : _mm256_setzero_si256();
    for (long k = 0; k < depth; k += GROUP, w += COLUMNS * GROUP) {
        fetch_ahead(w);
        __m256i row[Rows];
#pragma GCC unroll 8
        for (int i = 0; i < Rows; i++) {
            row[i] = _mm256_set1_epi32(four_bytes(q + i * stride + k));
            if (!Narrow) row[i] = _mm256_xor_si256(row[i], middle);
        }
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) {
            const __m256i weights = load256(w + 32 * j);
#pragma GCC unroll 8
            for (int i = 0; i < Rows; i++) {
                const __m256i pairs = Narrow ? _mm256_maddubs_epi16(row[i], weights)
                                             : _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(row[i], weights));
                total[i][j] = _mm256_add_epi32(total[i][j], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) store256(sums + COLUMNS * i + 8 * j, total[i][j]);
}

template <bool Narrow> constexpr HalfSum SUMS[] = {sum_half<1, Narrow>, sum_half<2, Narrow>};
template <bool Narrow> using Block = HalfPanels<2, SUMS<Narrow>>;

void panel(const Product &p, long index) {
    if (p.weights->narrow) multiply_panel<Block<true>>(p, index);
    else multiply_panel<Block<false>>(p, index);
}

void best_panels(const Product &p, long first, long last, float *values, int32_t *columns) {
    if (p.weights->narrow) best<Block<true>>(p, first, last, values, columns);
    else best<Block<false>>(p, first, last, values, columns);
}

}  // namespace

const Kernels AVX2 = {"avx2", quantize, unpack, panel, best_panels, &FLOATS_AVX};

}  // namespace hfx
