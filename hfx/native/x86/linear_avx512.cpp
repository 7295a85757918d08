// AVX512-VNNI: a core executes one vpdpbusd of 64 products in a cycle (Zen 5: two).
//
// The sums of 6 rows x 64 columns (int4: 5 rows) take 24 of the 32 registers, weights take 4, and activations come from
// memory as broadcasts. Blocks of 4x4 to 14x2 all reach the peak; 1x4 reaches half of it (latency), and 2x4
// reaches 96 %.
#include "processor.h"
#include "product.h"
#include <immintrin.h>

namespace hfx {
namespace {

constexpr int FIRST_CACHE = 3, SECOND_CACHE = 2;  // the localities of __builtin_prefetch

inline __m512i four_bytes(const uint8_t *from) {  // in each lane
    int32_t four;
    memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
}

// Loads the sums to start from; those of the rows are `stride` apart.
template <int Rows> inline void begin(__m512i (&total)[Rows][4], const int32_t *from, long stride = 0) {
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) total[i][j] = _mm512_loadu_si512(from + stride * i + 16 * j);
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

// Rows times `depth` inputs of a panel, to be added to the sums at `from`, whose rows are `from_stride` apart.
struct Slice {
    const uint8_t *q;
    long stride, depth;
    const int8_t *weights;
    const int32_t *from;
    long from_stride;
};

// Sums a slice, and meanwhile prefetches later weights, from `next` on, so that reading and computing overlap.
template <int Rows, int Fetched, int Locality>
__attribute__((noinline)) void sum(const Slice &slice, const int8_t *next, int32_t *sums) {
    const int8_t *w = slice.weights;
    __m512i total[Rows][4];
    begin(total, slice.from, slice.from_stride);
    for (long k = 0; k < slice.depth; k += GROUP, w += COLUMNS * GROUP, next += 64 * Fetched) {
        __m512i weights[4];
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) weights[j] = _mm512_loadu_si512(w + 64 * j);
#pragma GCC unroll 8
        for (int j = 0; j < Fetched; j++) __builtin_prefetch(next + 64 * j, 0, Locality);
        add_products(total, slice.q + k, slice.stride, weights);
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) _mm512_storeu_si512(sums + COLUMNS * i + 16 * j, total[i][j]);
}

typedef void (*Sum)(const Slice &, const int8_t *, int32_t *);
template <int Fetched, int Locality = SECOND_CACHE>
constexpr Sum SUMS[] = {
    sum<1, Fetched, Locality>, sum<2, Fetched, Locality>, sum<3, Fetched, Locality>,
    sum<4, Fetched, Locality>, sum<5, Fetched, Locality>, sum<6, Fetched, Locality>,
};

// Adds a block of int4, whose weights are unpacked to bytes in registers. With a buffer of bytes, one row would take
// twice the time, and 32 rows 1.13 times (Zen 5). If there are several blocks of rows, weights are prefetched earlier
// and into the first-level cache: 8 rows gain 2 to 7 %, while one row would lose 2 to 10 %.
template <int Rows, bool Alone>
__attribute__((noinline)) void add_block(const uint8_t *q, long stride, long inputs, const int8_t *pairs, const int32_t *start, const Scales &scales, float *totals) {
    const __m512i high = _mm512_set1_epi8(-16);
    __m512i total[Rows][4];
    begin(total, start);
    for (long k = 0; k < inputs; k += 2 * GROUP, pairs += COLUMNS * GROUP) {
        __m512i both[4], weights[4];
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) {
            both[j] = _mm512_loadu_si512(pairs + 64 * j);
            __builtin_prefetch(pairs + 64 * j + (Alone ? AHEAD : 2 * AHEAD), 0, Alone ? SECOND_CACHE : FIRST_CACHE);
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
template <bool Alone>
constexpr AddBlock ADD_BLOCK[] = {add_block<1, Alone>, add_block<2, Alone>, add_block<3, Alone>, add_block<4, Alone>, add_block<5, Alone>};

// Divides `count` rows into blocks of nearly the same size, each of at most `most` rows.
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
        (parts.parts == 1 ? ADD_BLOCK<true> : ADD_BLOCK<false>)[rows - 1](q, stride, inputs, pairs, start, scales, totals);
    }
};

// 7 to 18 rows are multiplied by CHUNK_INPUTS inputs of a panel at a time. The weights of these inputs are in the
// first-level cache, and meanwhile the next ones are prefetched into it. With whole panels, from the second-level
// cache, 8 rows take 1.1 to 1.6 times as long, and 16 rows 1.2 times (Zen 5, Sapphire Rapids). Other processors may
// read whole panels faster, so both are kernels, and a trial chooses.
constexpr long CHUNK_INPUTS = 256;
constexpr int FEW_BLOCKS = 3;

template <bool Chunks> struct Block {
    using Int4 = PackedBlocks;
    static constexpr int BLOCK_ROWS = 6, ROWS = FEW_BLOCKS * BLOCK_ROWS;
    long count, stride, depth;
    Parts parts;

    Block(long count, long stride, long depth) : count(count), stride(stride), depth(depth), parts(count, BLOCK_ROWS) {}

    bool in_chunks() const { return Chunks && parts.parts <= FEW_BLOCKS; }
    int rows(long) { return in_chunks() ? int(count) : parts.next(); }

    void run(int rows, const uint8_t *q, const int8_t *w, const int32_t *start, int32_t *sums) const {
        const Slice whole = {q, stride, depth, w, start, 0};
        // If one block holds all rows, weights come from memory all the time.
        if (parts.parts == 1) return SUMS<4>[rows - 1](whole, w + AHEAD, sums);
        if (in_chunks()) return run_chunks(whole, sums);
        // Meanwhile the next panel is prefetched: two blocks prefetch half of it each, of three blocks the first one half
        // and the others a quarter each, of more blocks the first four a quarter each.
        const bool half = parts.parts == 2 || (parts.parts == 3 && !parts.index);
        const long quarter = parts.parts == 2 ? 2 * parts.index : parts.parts == 3 && parts.index ? parts.index + 1 : parts.index;
        if (quarter < 4) return (half ? SUMS<2> : SUMS<1>)[rows - 1](whole, w + depth * COLUMNS + quarter * depth * COLUMNS / 4, sums);
        SUMS<0>[rows - 1](whole, w, sums);
    }

    void run_chunks(const Slice &whole, int32_t *sums) const {
        for (long k = 0; k < depth; k += CHUNK_INPUTS) {
            const long inputs = depth - k < CHUNK_INPUTS ? depth - k : CHUNK_INPUTS;
            const int8_t *w = whole.weights + k * COLUMNS, *next = w + inputs * COLUMNS;
            Parts blocks(count, BLOCK_ROWS);
            for (long row = 0; row < count;) {
                const int rows = blocks.next();
                // Two blocks prefetch half of the next inputs each; of three blocks, the first prefetches half, and the
                // others a quarter each.
                const bool half = blocks.parts == 2 || !blocks.index;
                int32_t *to = sums + row * COLUMNS;
                const Slice slice = {whole.q + row * stride + k, stride, inputs, w, k ? to : whole.from, k ? COLUMNS : 0};
                (half ? SUMS<2, FIRST_CACHE> : SUMS<1, FIRST_CACHE>)[rows - 1](slice, next, to);
                next += inputs * COLUMNS / (half ? 2 : 4);
                row += rows;
            }
        }
    }
};

}  // namespace

template <bool Chunks>
constexpr Kernels KERNELS = {
    Chunks ? "avx512-vnni" : "avx512-vnni-panels", quantize, unpack, multiply_panel<Block<Chunks>>, best<Block<Chunks>>, &FLOATS_AVX512,
};
const Kernels AVX512_VNNI = KERNELS<true>, AVX512_VNNI_PANELS = KERNELS<false>;

}  // namespace hfx
