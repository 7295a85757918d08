// The vector registers of x86-64: how many sums they hold, and how the ends of rows are read and written.
#pragma once
#include "vectors.h"
#if defined(__AVX512F__) && !defined(HFX_EMULATED_TILES)  // the header of emulated tiles has the same names
#include <immintrin.h>
#endif

namespace hfx {
namespace {

constexpr int MIDDLE = 128;  // the byte of 0 in a quantized row: instructions multiply u8 by s8

// The sums of 6 rows x 64 columns take 24 of AVX-512's 32 registers; 6 rows x 16 columns take 12 of AVX2's 16. Those of 3
// rows x 32 columns leave too few for the columns and a number of a row: products took twice as long (Zen 3). In dot
// products, the sums of 4 rows x 4 ranks take 16 of AVX-512's registers; 2 x 2 take 8 of AVX2's.
#ifdef __AVX512F__
constexpr int SUM_ROWS = 6, SUM_VECTORS = 4, DOT_ROWS = 4, DOT_RANKS = 4;
#else
constexpr int SUM_ROWS = 6, SUM_VECTORS = 1, DOT_ROWS = 2, DOT_RANKS = 2;
#endif

#if defined(__AVX512F__) && !defined(HFX_EMULATED_TILES)
inline __mmask16 first(int count) { return __mmask16((1u << count) - 1); }
inline Floats load_some(const float *from, int count) { return (Floats)_mm512_maskz_loadu_ps(first(count), from); }
inline Floats load_some(const int8_t *from, int count) { return __builtin_convertvector((SmallInts)_mm_maskz_loadu_epi8(first(count), from), Floats); }
inline void store_some(float *to, Floats value, int count) { _mm512_mask_storeu_ps(to, first(count), (__m512)value); }
#endif

}  // namespace
}  // namespace hfx
