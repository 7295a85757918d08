// For processors with AVX2 but without VNNI: the same results as the VNNI kernels, computed by vpmaddubsw, which adds
// pairs of products in 16 bits.
//
// vpmaddubsw multiplies u8 by s8, and 255 * 127 * 2 would saturate. If neither the positive nor the negative ones of four
// weights add up to more than 128, as in files that are exported on such a processor, two pairs are added in 16 bits. If
// all weights are from -64 to 64, no pair saturates. For other weights, the sign of the weight is moved to the row: the
// factors are |w| <= 128 as u8, and r with the sign of w as s8, where r = q - 128 is from -127 to 127. A pair is then at
// most 2 * 128 * 127 = 32,512. Sums of q begin at -128 times the sum of the weights, and sums of r begin at 0.
//
// Two of four vector units multiply, so a core computes 42 products a cycle with four added in 16 bits, of which 4 rows
// reach 86 %. With two it computes 32, or 21 with signs to move, of which 4 rows reach 97 % (Zen 3). For int4, see
// add_block().
#include "panel_parts.h"
#include "processor.h"

namespace hfx {
namespace {

// The columns that are multiplied at a time, in vectors, so that their sums fit into the registers.
template <int Rows> constexpr int VECTORS = Rows > 2 ? 2 : 4;
constexpr int MOST_ROWS = 4, LANES = 8;

// Four bytes of a row, in each lane. The assembly keeps clang from loading those of all rows at first, for which it
// would move sums to memory.
inline __m256i four_of(const uint8_t *q) {
    __m256i row = _mm256_set1_epi32(four_bytes(q));
    __asm__ volatile("" : "+x"(row));
    return row;
}

// The pairs of `Groups` groups of inputs are added in 16 bits; 0: signs are moved.
//
// One row reads the weights from memory in their order. Several rows read parts of them, and meanwhile fetch the next
// panel in its order. On Zen 3, one row takes 0.83 to 0.91 of the time that it takes by halves, up to 16 rows 0.91 to
// 0.98.
template <int Rows, int Groups> __attribute__((noinline)) void sum_panel(const uint8_t *q, long stride, long depth, const int8_t *w, const int32_t *start, int32_t *sums) {
    constexpr int V = Rows == 1 ? COLUMNS / LANES : VECTORS<Rows>, N = Groups ? Groups : 1;
    const __m256i ones = _mm256_set1_epi16(1), middle = _mm256_set1_epi8(-128);
    const auto pairs = [&](__m256i row, __m256i weights) {
        return Groups ? _mm256_maddubs_epi16(row, weights)
                      : _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(_mm256_xor_si256(row, middle), weights));
    };
    const int8_t *next = w + (Rows == 1 ? AHEAD : depth * COLUMNS);
    for (int column = 0; column < COLUMNS; column += V * LANES) {
        const int8_t *at = w + column * GROUP;
        __m256i total[Rows][V], weights[N][V], four[N];
        for (int i = 0; i < Rows * V; i++) total[i / V][i % V] = Groups ? load256(start + column + i % V * LANES) : _mm256_setzero_si256();
        for (long k = 0; k < depth; k += N * GROUP, at += N * COLUMNS * GROUP) {
            for (int j = 0; j < N * V; j += 2, next += 64) __builtin_prefetch(next, 0, 2);
            for (int j = 0; j < N * V; j++) weights[j / V][j % V] = load256(at + j / V * COLUMNS * GROUP + 32 * (j % V));
            for (int i = 0; i < Rows; i++) {
                for (int n = 0; n < N; n++) four[n] = four_of(q + i * stride + k + n * GROUP);
                for (int j = 0; j < V; j++) {
                    __m256i sum = pairs(four[0], weights[0][j]);
                    for (int n = 1; n < N; n++) sum = _mm256_add_epi16(sum, pairs(four[n], weights[n][j]));
                    total[i][j] = _mm256_add_epi32(total[i][j], _mm256_madd_epi16(sum, ones));
                }
            }
        }
        for (int i = 0; i < Rows * V; i++) store256(sums + i / V * COLUMNS + column + i % V * LANES, total[i / V][i % V]);
    }
}

// The weights of int4, from -8 to 7, in the low bits of bytes.
inline __m256i low_of(__m256i bytes) {
    const __m128i values = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), _mm256_and_si256(bytes, _mm256_set1_epi8(15)));
}
inline __m256i high_of(__m256i bytes) { return low_of(_mm256_srli_epi16(bytes, 4)); }

// Adds the products of four bytes of each row in 16 bits.
template <int Rows, int V> inline void add_pairs(__m256i (&sums)[Rows][V], const uint8_t *q, long stride, const __m256i (&weights)[V]) {
    for (int i = 0; i < Rows; i++) {
        const __m256i row = four_of(q + i * stride);
        for (int j = 0; j < V; j++) sums[i][j] = _mm256_add_epi16(sums[i][j], _mm256_maddubs_epi16(row, weights[j]));
    }
}

// Adds a block of int4. Its products are so small that those of 32 inputs can be added in 16 bits: 16 * 255 * 8 is
// 32,640. A core computes 31 to 38 products a cycle. `Packed` weights are unpacked in registers, which takes less time
// for up to 4 rows; others are bytes, [inputs / 4][64][4].
template <int Rows, bool Packed>
__attribute__((noinline)) void add_block(const uint8_t *q, long stride, long inputs, const int8_t *w, const int32_t *start, const Scales &scales, float *totals) {
    constexpr int V = VECTORS<Rows>;
    const int8_t *next = w + AHEAD;
    for (int column = 0; column < COLUMNS; column += V * LANES) {
        const int8_t *at = w + column * GROUP;
        alignas(64) int32_t total[Rows][V * LANES] = {};
        for (long k = 0, end; k < inputs;) {
            __m256i sums[Rows][V] = {}, weights[V];
            for (end = k + 32 < inputs ? k + 32 : inputs; k < end; k += GROUP, at += COLUMNS * GROUP) {
                for (int j = 0; j < V; j++) weights[j] = Packed ? low_of(load256(at + 32 * j)) : load256(at + 32 * j);
                add_pairs(sums, q + k, stride, weights);
                if (!Packed) continue;
                for (int j = 0; j < V; j += 2, next += 64) __builtin_prefetch(next, 0, 2);
                for (int j = 0; j < V; j++) weights[j] = high_of(load256(at + 32 * j));
                add_pairs(sums, q + (k += GROUP), stride, weights);
            }
            for (int i = 0; i < Rows * V; i++) {
                int32_t *to = total[i / V] + i % V * LANES;
                store256(to, _mm256_add_epi32(load256(to), _mm256_madd_epi16(sums[i / V][i % V], _mm256_set1_epi16(1))));
            }
        }
        for (int i = 0; i < Rows; i++)
            for (int j = column; j < column + V * LANES; j += WIDTH) {
                const Ints whole = load<Ints>(total[i] + j - column) * int(UNPACKED) + load<Ints>(start + j);
                store(totals + COLUMNS * i + j, scales.add(whole, i, j, load<Floats>(totals + COLUMNS * i + j)));
            }
    }
}

typedef void (*AddBlock)(const uint8_t *, long, long, const int8_t *, const int32_t *, const Scales &, float *);
template <bool Packed> constexpr AddBlock ADD_BLOCK[] = {add_block<1, Packed>, add_block<2, Packed>, add_block<3, Packed>, add_block<4, Packed>};

struct SmallBlocks {
    long count, stride, inputs;
    const int8_t *pairs = nullptr;
    alignas(64) int8_t values[MOST_BLOCK * COLUMNS];

    SmallBlocks(long count, long stride, long inputs) : count(count), stride(stride), inputs(inputs) {}

    bool packed() const { return count <= MOST_ROWS; }
    void begin(const int8_t *of_block) {
        pairs = of_block;
        for (long k = 0; k < inputs && !packed(); k += 2 * GROUP)
            for (long j = 0; j < COLUMNS * GROUP; j += 32) {
                const __m256i both = load256(pairs + k / 2 * COLUMNS + j);
                __builtin_prefetch(pairs + k / 2 * COLUMNS + j + AHEAD, 0, 2);
                store256(values + k * COLUMNS + j, low_of(both));
                store256(values + (k + GROUP) * COLUMNS + j, high_of(both));
            }
    }
    int rows(long first) const { return next_block(count - first, MOST_ROWS); }
    void add(int rows, const uint8_t *q, const int32_t *start, const Scales &scales, float *totals) const {
        if (packed()) ADD_BLOCK<true>[rows - 1](q, stride, inputs, pairs, start, scales, totals);
        else ADD_BLOCK<false>[rows - 1](q, stride, inputs, values, start, scales, totals);
    }
};

template <int Groups> constexpr SumPart SUMS[] = {sum_panel<1, Groups>, sum_panel<2, Groups>, sum_panel<3, Groups>, sum_panel<4, Groups>};
template <int Groups> struct Block : PanelParts<MOST_ROWS, COLUMNS, SUMS<Groups>> {
    using Int4 = SmallBlocks;
    using PanelParts<MOST_ROWS, COLUMNS, SUMS<Groups>>::PanelParts;
};

void panel(const Product &p, long index) {
    constexpr decltype(&panel) BY_GROUPS[] = {multiply_panel<Block<0>>, multiply_panel<Block<1>>, multiply_panel<Block<2>>};
    BY_GROUPS[p.weights->groups](p, index);
}

void best_panels(const Product &p, long first, long last, float *values, int32_t *columns) {
    constexpr decltype(&best_panels) BY_GROUPS[] = {best<Block<0>>, best<Block<1>>, best<Block<2>>};
    BY_GROUPS[p.weights->groups](p, first, last, values, columns);
}

}  // namespace

const Kernels AVX2 = {"avx2", quantize, unpack, panel, best_panels, &FLOATS_AVX};

}  // namespace hfx
