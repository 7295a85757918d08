// AVX512-VNNI: one vpdpbusd a cycle and core (Zen 5: two), 64 products each.
//
// 6 rows x 64 columns of sums stand in 24 of the 32 registers (of int4 5 rows), 4 hold weights, and activations come from
// memory as broadcasts. 4x4 to 14x2 blocks all reach the peak; 1x4 reaches half of it (latency), 2x4 96 %.
#include "floats.h"
#include "product.h"
#include <immintrin.h>

namespace hfx {
namespace {

inline __m512i four_bytes(const uint8_t *from) {  // in each lane
    int32_t four;
    memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
}

template <int Rows> inline void begin(__m512i (&total)[Rows][4], const int32_t *start) {
#pragma GCC unroll 8
    for (int j = 0; j < 4; j++) {
        __m512i first = _mm512_loadu_si512(start + 16 * j);
#pragma GCC unroll 8
        for (int i = 0; i < Rows; i++) total[i][j] = first;
    }
}

// Adds the products of four bytes of each row.
template <int Rows> inline void add_products(__m512i (&total)[Rows][4], const uint8_t *q, long stride, const __m512i (&weights)[4]) {
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++) {
        __m512i row = four_bytes(q + i * stride);
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) total[i][j] = _mm512_dpbusd_epi32(total[i][j], row, weights[j]);
    }
}

// While a block is computed, some of the weights that come next are fetched: reading and computing overlap, for any
// number of rows. 8 to 16 rows gain 6 to 25 %.
template <int Rows, int Fetched>
__attribute__((noinline)) void sum(const uint8_t *q, long stride, long depth, const int8_t *w, const char *next, const int32_t *start, int32_t *sums) {
    __m512i total[Rows][4];
    begin(total, start);
    for (long k = 0; k < depth; k += GROUP, w += COLUMNS * GROUP, next += 64 * Fetched) {
        __m512i weights[4];
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) weights[j] = _mm512_loadu_si512(w + 64 * j);
#pragma GCC unroll 8
        for (int j = 0; j < Fetched; j++) _mm_prefetch(next + 64 * j, _MM_HINT_T1);
        add_products(total, q + k, stride, weights);
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) _mm512_storeu_si512(sums + COLUMNS * i + 16 * j, total[i][j]);
}

typedef void (*Sum)(const uint8_t *, long, long, const int8_t *, const char *, const int32_t *, int32_t *);
template <int Fetched> constexpr Sum SUMS[] = {sum<1, Fetched>, sum<2, Fetched>, sum<3, Fetched>, sum<4, Fetched>, sum<5, Fetched>, sum<6, Fetched>};

// Weights become bytes in registers: from a buffer of bytes a row takes twice the time, 32 rows 1.13 times (Zen 5).
template <int Rows>
__attribute__((noinline)) void add_block(const uint8_t *q, long stride, long inputs, const int8_t *pairs, const int32_t *start, const Scales &scales, float *totals) {
    const __m512i high = _mm512_set1_epi8(-16);
    __m512i total[Rows][4];
    begin(total, start);
    for (long k = 0; k < inputs; k += 2 * GROUP, pairs += COLUMNS * GROUP) {
        __m512i both[4], weights[4];
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) {
            both[j] = _mm512_loadu_si512(pairs + 64 * j);
            _mm_prefetch(reinterpret_cast<const char *>(pairs) + 64 * j + AHEAD, _MM_HINT_T1);
            weights[j] = _mm512_and_si512(_mm512_slli_epi16(both[j], 4), high);
        }
        add_products(total, q + k, stride, weights);
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) weights[j] = _mm512_and_si512(both[j], high);
        add_products(total, q + k + GROUP, stride, weights);
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) {
            float *at = totals + COLUMNS * i + 16 * j;
            store(at, scales.add((Ints)total[i][j], i, 16 * j, load<Floats>(at)));
        }
}

typedef void (*AddBlock)(const uint8_t *, long, long, const int8_t *, const int32_t *, const Scales &, float *);
constexpr AddBlock ADD_BLOCK[] = {add_block<1>, add_block<2>, add_block<3>, add_block<4>, add_block<5>};

// `count` rows in blocks of nearly the same size, of at most `most`.
struct Parts {
    long count, parts, index = -1;

    Parts(long count, long most) : count(count), parts((count + most - 1) / most) {}
    int next() { return int(count / parts + (++index < count % parts)); }
};

struct PackedBlocks {
    long stride, inputs;
    Parts parts;
    const int8_t *pairs = nullptr;

    PackedBlocks(long count, long stride, long inputs) : stride(stride), inputs(inputs), parts(count, 5) {}

    void begin(const int8_t *of_block) { pairs = of_block, parts.index = -1; }
    int rows(long) { return parts.next(); }
    void add(int rows, const uint8_t *q, const int32_t *start, const Scales &scales, float *totals) const {
        ADD_BLOCK[rows - 1](q, stride, inputs, pairs, start, scales, totals);
    }
};

struct Block {
    using Int4 = PackedBlocks;
    static constexpr int ROWS = 6;
    long stride, depth;
    Parts parts;

    Block(long count, long stride, long depth) : stride(stride), depth(depth), parts(count, ROWS) {}

    int rows(long) { return parts.next(); }

    void run(int rows, const uint8_t *q, const int8_t *w, const int32_t *start, int32_t *sums) const {
        const char *panel = reinterpret_cast<const char *>(w), *next = panel + depth * COLUMNS;
        const long quarter = depth * COLUMNS / 4, blocks = parts.parts, index = parts.index;
        // Where rows fill one block, weights come from memory all the time.
        if (blocks == 1) return SUMS<4>[rows - 1](q, stride, depth, w, panel + AHEAD, start, sums);
        if (blocks <= 3 && index < 2) return SUMS<2>[rows - 1](q, stride, depth, w, next + index * 2 * quarter, start, sums);
        if (blocks > 3 && index < 4) return SUMS<1>[rows - 1](q, stride, depth, w, next + index * quarter, start, sums);
        SUMS<0>[rows - 1](q, stride, depth, w, panel, start, sums);
    }
};

}  // namespace

const Kernels AVX512_VNNI = {"avx512-vnni", quantize, unpack, multiply_panel<Block>, best<Block>, &FLOATS_AVX512};

}  // namespace hfx
