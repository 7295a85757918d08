// Sums in 256-bit registers. A panel is split into two halves of 32 columns, because 16 registers can't hold the sums
// of 64 columns.
#pragma once
#include "product.h"
#include <immintrin.h>

namespace hfx {
namespace {

inline __m256i load256(const void *from) { return _mm256_loadu_si256(static_cast<const __m256i *>(from)); }
inline void store256(void *to, __m256i value) { _mm256_storeu_si256(static_cast<__m256i *>(to), value); }
inline int32_t four_bytes(const uint8_t *from) {
    int32_t four;
    memcpy(&four, from, sizeof four);
    return four;
}
inline void fetch_ahead(const int8_t *w) {
    _mm_prefetch(reinterpret_cast<const char *>(w) + 4096, _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char *>(w) + 4160, _MM_HINT_T1);
}

typedef void (*HalfSum)(const uint8_t *q, long stride, long depth, const int8_t *w, const int32_t *start, int32_t *sums);

// `Sums[rows - 1]` is the function that multiplies `rows` rows by half a panel.
template <int Rows, const HalfSum *Sums> struct HalfPanels {
    using Int4 = Unpacking<HalfPanels>;
    static constexpr int ROWS = Rows;
    long count, stride, depth;

    HalfPanels(long count, long stride, long depth) : count(count), stride(stride), depth(depth) {}

    int rows(long first) const { return next_block(count - first, ROWS); }

    void run(int rows, const uint8_t *q, const int8_t *w, const int32_t *start, int32_t *sums) const {
        for (int column = 0; column < COLUMNS; column += COLUMNS / 2)
            Sums[rows - 1](q, stride, depth, w + column * GROUP, start + column, sums + column);
    }
};

}  // namespace
}  // namespace hfx
