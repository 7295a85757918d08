// sdot: an instruction adds the products of four inputs with the weights of four columns to their sums.
//
// Rows are s8, and sums begin at 0. An instruction multiplies by four bytes of a register that holds 16 inputs of a row,
// so that a row is loaded once for 16 inputs. Sums of 6 rows x 16 columns take 24 of the 32 registers. Few rows take
// more columns, because a sum must wait for the one before it.
#include "processor.h"
#include "product.h"
#include <arm_neon.h>

namespace hfx {
namespace {

constexpr int LANES = 4, QUADS = COLUMNS / LANES, INPUTS = 16;  // a quad is four columns
constexpr int MOST_ROWS = 6, MOST_PACKED_ROWS = 5;
constexpr long MANY_ROWS = 16;  // from this number on, weights of int4 are unpacked to memory, once for all rows

template <int Rows> constexpr int TAKEN = Rows == 1 ? QUADS : Rows == 2 ? QUADS / 2 : QUADS / 4;

// Computes the sums of `Rows` rows, which are `stride` bytes apart, and of the quads from `w` on. `Packed` weights are
// int4.
template <int Rows, bool Packed> inline void sum_quads(const uint8_t *q, long stride, long depth, const int8_t *w, int32_t *sums) {
    constexpr int Quads = TAKEN<Rows>;
    int32x4_t total[Rows][Quads] = {};
    const int8x16_t high = vdupq_n_s8(-16);
    for (long k = 0; k < depth; k += INPUTS) {
        int8x16_t row[Rows];
#pragma GCC unroll 8
        for (int i = 0; i < Rows; i++) row[i] = vld1q_s8(reinterpret_cast<const int8_t *>(q) + i * stride + k);
        const auto add = [&](int i, int quad, int8x16_t weights, auto group) {
            total[i][quad] = vdotq_laneq_s32(total[i][quad], weights, row[i], group.value);
        };
        // The weights of `group` are four inputs of each column; those of int4 are eight.
        const auto read = [&](auto group) {
#pragma GCC unroll 16
            for (int quad = 0; quad < Quads; quad++) {
                const int8x16_t weights = vld1q_s8(w + INPUTS * quad);
                if (quad % LANES == 0) __builtin_prefetch(w + INPUTS * quad + AHEAD, 0, 2);
#pragma GCC unroll 8
                for (int i = 0; i < Rows; i++) {
                    if constexpr (Packed) {
                        add(i, quad, vshlq_n_s8(weights, 4), Constant<2 * group.value>());
                        add(i, quad, vandq_s8(weights, high), Constant<2 * group.value + 1>());
                    } else add(i, quad, weights, group);
                }
            }
            w += COLUMNS * GROUP;
        };
        read(Constant<0>()), read(Constant<1>());
        if constexpr (!Packed) read(Constant<2>()), read(Constant<3>());
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 16
        for (int quad = 0; quad < Quads; quad++) vst1q_s32(sums + COLUMNS * i + LANES * quad, total[i][quad]);
}

template <int Rows, bool Packed> __attribute__((noinline)) void sum(const uint8_t *q, long stride, long depth, const int8_t *w, int32_t *sums) {
    constexpr int TAKEN_COLUMNS = TAKEN<Rows> * LANES;
    for (int column = 0; column < COLUMNS; column += TAKEN_COLUMNS)
        sum_quads<Rows, Packed>(q, stride, depth, w + column * GROUP, sums + column);
}

// Blocks of nearly the same size, each of at most `most` of the `count` rows.
struct Block {
    struct Int4;
    static constexpr int ROWS = MOST_ROWS;
    long count, stride, depth;
    int most = MOST_ROWS;

    Block(long count, long stride, long depth) : count(count), stride(stride), depth(depth) {}

    int rows(long first) const { return next_block(count - first, most); }
    void run(int rows, const uint8_t *q, const int8_t *w, const int32_t *, int32_t *sums) const { run<false>(rows, q, w, sums); }
    template <bool Packed> void run(int rows, const uint8_t *q, const int8_t *w, int32_t *sums) const {
        with_sizes<Packed ? MOST_PACKED_ROWS : ROWS, 1>(rows, 1, [&](auto rows_, auto) { sum<rows_.value, Packed>(q, stride, depth, w, sums); });
    }
};

// Int4: for a few rows, the weights are unpacked in registers.
struct Block::Int4 : Block {
    const int8_t *pairs = nullptr;
    alignas(64) int8_t values[MOST_BLOCK * COLUMNS];

    Int4(long count, long stride, long depth) : Block(count, stride, depth) { most = is_few() ? MOST_PACKED_ROWS : MOST_ROWS; }
    bool is_few() const { return count < MANY_ROWS; }
    void begin(const int8_t *of_block) {
        pairs = of_block;
        if (!is_few()) unpack(pairs, depth, values);
    }
    void add(int rows, const uint8_t *q, const int32_t *, const Scales &scales, float *totals) const {
        alignas(64) int32_t sums[ROWS * COLUMNS];
        if (is_few()) run<true>(rows, q, pairs, sums);
        else run<false>(rows, q, values, sums);
        scales.add_all(rows, sums, totals);
    }
};

}  // namespace

const Kernels NEON_DOT = {"neon-dot", quantize, unpack, multiply_panel<Block>, best<Block>, &FLOATS_NEON};

}  // namespace hfx
