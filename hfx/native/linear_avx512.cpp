// AVX512-VNNI: one vpdpbusd a cycle and core, 64 products each.
//
// 6 rows x 64 columns of sums stand in 24 of the 32 registers, 4 hold weights, and activations come from memory as
// broadcasts. 4x4 to 14x2 blocks all reach the peak; 1x4 reaches half of it (latency), 2x4 96 %.
#include "floats.h"
#include "product.h"
#include <immintrin.h>

namespace hfx {
namespace {

// AHEAD: where rows fill one block, weights come from memory all the time

// While a block is computed, some of the weights that come next are fetched: reading and computing overlap, for any
// number of rows. 8 to 16 rows gain 6 to 25 %.
template <int Rows, int Fetched>
__attribute__((noinline)) void sum(const uint8_t *q, long stride, long depth, const int8_t *w, const char *next, const int32_t *start, int32_t *sums) {
    __m512i total[Rows][4];
#pragma GCC unroll 8
    for (int j = 0; j < 4; j++) {
        __m512i first = _mm512_loadu_si512(start + 16 * j);
#pragma GCC unroll 8
        for (int i = 0; i < Rows; i++) total[i][j] = first;
    }
    for (long k = 0; k < depth; k += GROUP, w += COLUMNS * GROUP, next += 64 * Fetched) {
        __m512i weights[4];
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) weights[j] = _mm512_loadu_si512(w + 64 * j);
#pragma GCC unroll 8
        for (int j = 0; j < Fetched; j++) _mm_prefetch(next + 64 * j, _MM_HINT_T1);
#pragma GCC unroll 8
        for (int i = 0; i < Rows; i++) {
            int32_t four;
            memcpy(&four, q + i * stride + k, sizeof four);
            __m512i row = _mm512_set1_epi32(four);
#pragma GCC unroll 8
            for (int j = 0; j < 4; j++) total[i][j] = _mm512_dpbusd_epi32(total[i][j], row, weights[j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) _mm512_storeu_si512(sums + COLUMNS * i + 16 * j, total[i][j]);
}

typedef void (*Sum)(const uint8_t *, long, long, const int8_t *, const char *, const int32_t *, int32_t *);
template <int Fetched> constexpr Sum SUMS[] = {sum<1, Fetched>, sum<2, Fetched>, sum<3, Fetched>, sum<4, Fetched>, sum<5, Fetched>, sum<6, Fetched>};

struct Block {
    static constexpr int ROWS = 6;
    long count, stride, depth, blocks, index = -1;
    bool unpacked;

    Block(long count, long stride, long depth, bool unpacked = false)
        : count(count), stride(stride), depth(depth), blocks((count + ROWS - 1) / ROWS), unpacked(unpacked) {}

    void restart() { index = -1; }

    // Blocks of nearly the same size.
    int rows(long) { return int(count / blocks + (++index < count % blocks)); }

    void run(int rows, const uint8_t *q, const int8_t *w, const int32_t *start, int32_t *sums) const {
        if (unpacked) return SUMS<0>[rows - 1](q, stride, depth, w, nullptr, start, sums);
        const char *panel = reinterpret_cast<const char *>(w), *next = panel + depth * COLUMNS;
        long quarter = depth * COLUMNS / 4;
        if (blocks == 1) return SUMS<4>[rows - 1](q, stride, depth, w, panel + AHEAD, start, sums);
        if (blocks <= 3 && index < 2) return SUMS<2>[rows - 1](q, stride, depth, w, next + index * 2 * quarter, start, sums);
        if (blocks > 3 && index < 4) return SUMS<1>[rows - 1](q, stride, depth, w, next + index * quarter, start, sums);
        SUMS<0>[rows - 1](q, stride, depth, w, panel, start, sums);
    }
};

}  // namespace

const Kernels AVX512_VNNI = {"avx512-vnni", quantize, unpack, multiply_panel<Block>, best<Block>, &FLOATS_AVX512};

}  // namespace hfx
