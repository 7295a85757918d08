// AVX-VNNI: the same products in registers of 256 bits, on processors without AVX-512.
//
// 3 rows x 32 columns of sums stand in 12 of the 16 registers; a panel is two halves of 32 columns.
#include "attention.h"
#include "product.h"
#include "self_attention.h"
#include <immintrin.h>

namespace hfx {
namespace {

#ifdef __AVXVNNI__
inline __m256i add_products(__m256i sum, __m256i bytes, __m256i weights) { return _mm256_dpbusd_avx_epi32(sum, bytes, weights); }
#else  // tests compile it for AVX-512's form of the instruction
inline __m256i add_products(__m256i sum, __m256i bytes, __m256i weights) { return _mm256_dpbusd_epi32(sum, bytes, weights); }
#endif
inline __m256i load256(const void *from) { return _mm256_loadu_si256(static_cast<const __m256i *>(from)); }

template <int Rows> __attribute__((noinline)) void sum_half(const uint8_t *q, long stride, long depth, const int8_t *w, const int32_t *start, int32_t *sums) {
    __m256i total[Rows][4];
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) total[i][j] = load256(start + 8 * j);
    for (long k = 0; k < depth; k += GROUP, w += COLUMNS * GROUP) {
        _mm_prefetch(reinterpret_cast<const char *>(w) + 4096, _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char *>(w) + 4160, _MM_HINT_T1);
#pragma GCC unroll 8
        for (int i = 0; i < Rows; i++) {
            int32_t four;
            memcpy(&four, q + i * stride + k, sizeof four);
            __m256i row = _mm256_set1_epi32(four);
#pragma GCC unroll 8
            for (int j = 0; j < 4; j++) total[i][j] = add_products(total[i][j], row, load256(w + 32 * j));
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) _mm256_storeu_si256(reinterpret_cast<__m256i *>(sums + COLUMNS * i + 8 * j), total[i][j]);
}

struct Block {
    static constexpr int ROWS = 3;
    long count, stride, depth;

    Block(long count, long stride, long depth, bool = false) : count(count), stride(stride), depth(depth) {}

    void restart() {}

    int rows(long first) const { return int(count - first < ROWS ? count - first : ROWS); }

    void run(int rows, const uint8_t *q, const int8_t *w, const int32_t *start, int32_t *sums) const {
        constexpr decltype(&sum_half<1>) SUMS[] = {sum_half<1>, sum_half<2>, sum_half<3>};
        for (int half = 0; half < 2; half++)
            SUMS[rows - 1](q, stride, depth, w + half * COLUMNS / 2 * GROUP, start + half * COLUMNS / 2, sums + half * COLUMNS / 2);
    }
};

}  // namespace

const Kernels AVX_VNNI = {"avx-vnni", quantize, unpack, multiply_panel<Block>, best<Block>, attend_avx, to_float16_avx, self_attend_avx};

}  // namespace hfx
