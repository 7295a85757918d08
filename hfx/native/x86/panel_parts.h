// Sums in 256-bit registers. Panels are split by columns, because 16 registers can't hold the sums of several rows and
// 64 columns.
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

typedef void (*SumPart)(const uint8_t *q, long stride, long depth, const int8_t *w, const int32_t *start, int32_t *sums);

// `Sums[rows - 1]` is the function that multiplies `rows` rows by `Columns` columns of a panel.
template <int Rows, int Columns, const SumPart *Sums> struct PanelParts {
    using Int4 = Unpacking<PanelParts>;
    static constexpr int ROWS = Rows;
    long count, stride, depth;

    PanelParts(long count, long stride, long depth) : count(count), stride(stride), depth(depth) {}

    int rows(long first) const { return next_block(count - first, ROWS); }

    void run(int rows, const uint8_t *q, const int8_t *w, const int32_t *start, int32_t *sums) const {
        for (int column = 0; column < COLUMNS; column += Columns)
            Sums[rows - 1](q, stride, depth, w + column * GROUP, start + column, sums + column);
    }
};

}  // namespace
}  // namespace hfx
