// smmla: an instruction multiplies two rows x 8 inputs by 8 inputs x two columns, twice as many products as sdot.
//
// Weights lie in groups of four inputs, and an instruction needs 8 of a column: two groups are zipped, with an
// instruction for each operand. Each row more makes their share smaller: a tile has up to 24 rows, whose sums take 24 of
// the 32 registers. Rows are zipped in pairs for each panel. Products of a few rows would leave half of the instruction
// unused: they are computed by sdot.
#include "processor.h"
#include "product.h"
#include <arm_neon.h>

namespace hfx {
namespace {

constexpr long STEP = 8, CHUNK = 1024;          // inputs of an instruction; inputs that are multiplied before sums are stored
constexpr int REGISTER = 16, STRIP = 8;         // bytes; columns that a call multiplies
constexpr int MOST_PAIRS = 12, MOST_SUMS = 24;  // of a tile: pairs of rows; registers
constexpr int FEW_ROWS = 3;                     // the most rows that sdot multiplies

// The operands of a step, each with two columns.
template <int Pairs> constexpr int OPERANDS = Pairs * STRIP / 2 <= MOST_SUMS ? STRIP / 2 : STRIP / 4;

// Reads 8 inputs of some columns. An operand has those of one column, then those of the next.
template <int Operands> inline void read_zipped(const int8_t *w, int8x16_t (&operands)[Operands]) {
#pragma GCC unroll 2
    for (int i = 0; i < Operands; i += 2) {
        const int8_t *from = w + REGISTER / 2 * i;
        const int32x4_t first = vreinterpretq_s32_s8(vld1q_s8(from)), second = vreinterpretq_s32_s8(vld1q_s8(from + COLUMNS * GROUP));
        operands[i] = vreinterpretq_s8_s32(vzip1q_s32(first, second));
        operands[i + 1] = vreinterpretq_s8_s32(vzip2q_s32(first, second));
    }
}

// Returns the sums of one row of a pair and of four columns.
inline int32x4_t halves(int32x4_t a, int32x4_t b, bool high) {
    const int64x2_t one = vreinterpretq_s64_s32(a), other = vreinterpretq_s64_s32(b);
    return vreinterpretq_s32_s64(high ? vzip2q_s64(one, other) : vzip1q_s64(one, other));
}

// A tile: `rows` rows, zipped in pairs to [inputs / 8][pairs][16], times the columns of a strip.
struct Tile {
    const int8_t *pairs, *weights;
    long inputs;
    int rows;
    bool adds;
    int32_t *sums;  // [rows][64]
};

template <int Pairs> inline void sum_operands(const Tile &tile, int column) {
    constexpr int Operands = OPERANDS<Pairs>;
    int32x4_t total[Pairs][Operands] = {};
    const int8_t *w = tile.weights + column * GROUP, *row = tile.pairs;
    for (long k = 0; k < tile.inputs; k += STEP, row += Pairs * REGISTER, w += STEP * COLUMNS) {
        int8x16_t operands[Operands];
        read_zipped(w, operands);
        __builtin_prefetch(w + AHEAD, 0, 2);
#pragma GCC unroll 12
        for (int i = 0; i < Pairs; i++) {
            const int8x16_t pair = vld1q_s8(row + REGISTER * i);
#pragma GCC unroll 4
            for (int j = 0; j < Operands; j++) total[i][j] = vmmlaq_s32(total[i][j], pair, operands[j]);
        }
    }
    for (int i = 0; i < tile.rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < Operands; j += 2) {
            int32_t *sums = tile.sums + i * COLUMNS + column + 2 * j;
            const int32x4_t sum = halves(total[i / 2][j], total[i / 2][j + 1], i % 2);
            vst1q_s32(sums, tile.adds ? vaddq_s32(sum, vld1q_s32(sums)) : sum);
        }
}

template <int Pairs> __attribute__((noinline)) void multiply(const Tile &tile) {
    for (int column = 0; column < STRIP; column += 2 * OPERANDS<Pairs>) sum_operands<Pairs>(tile, column);
}

struct Block {
    using Int4 = Unpacking<Block>;
    static constexpr int ROWS = 64;
    long count, stride, depth;
    alignas(64) int8_t pairs[ROWS * CHUNK];

    Block(long count, long stride, long depth) : count(count), stride(stride), depth(depth) {}

    int rows(long first) const { return next_block(count - first, ROWS); }

    void run(int rows, const uint8_t *q, const int8_t *w, const int32_t *, int32_t *sums) {
        for (long k = 0; k < depth; k += CHUNK) {
            const long inputs = depth - k < CHUNK ? depth - k : CHUNK;
            zip_rows(rows, reinterpret_cast<const int8_t *>(q) + k, inputs);
            for (int column = 0; column < COLUMNS; column += STRIP)
                multiply_strip(rows, w + k * COLUMNS + column * GROUP, inputs, k > 0, sums + column);
        }
    }

    // Calls each(first pair, number of pairs, the rows of the pairs) for tiles of nearly the same size.
    template <typename Each> static void each_tile(int rows, Each each) {
        const int all = (rows + 1) / 2;
        for (int first = 0, some; first < all; first += some) {
            some = next_block(all - first, MOST_PAIRS);
            each(first, some, rows - 2 * first < 2 * some ? rows - 2 * first : 2 * some);
        }
    }

    // The last row of an odd number is its own neighbour.
    void zip_rows(int rows, const int8_t *q, long inputs) {
        each_tile(rows, [&](int first, int some, int) {
            for (int i = 0; i < some; i++) {
                const int row = 2 * (first + i);
                const int8_t *one = q + row * stride, *other = row + 1 < rows ? one + stride : one;
                int8_t *to = pairs + 2 * first * inputs + REGISTER * i;
                for (long k = 0; k < inputs; k += 2 * STEP, to += 2 * REGISTER * some) {
                    const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(one + k)), b = vreinterpretq_s64_s8(vld1q_s8(other + k));
                    vst1q_s8(to, vreinterpretq_s8_s64(vzip1q_s64(a, b)));
                    vst1q_s8(to + REGISTER * some, vreinterpretq_s8_s64(vzip2q_s64(a, b)));
                }
            }
        });
    }

    void multiply_strip(int rows, const int8_t *w, long inputs, bool adds, int32_t *sums) {
        each_tile(rows, [&](int first, int some, int its_rows) {
            const Tile tile = {pairs + 2 * first * inputs, w, inputs, its_rows, adds, sums + 2 * first * COLUMNS};
            with_sizes<MOST_PAIRS, 1>(some, 1, [&](auto pairs_, auto) { multiply<pairs_.value>(tile); });
        });
    }
};

void panel(const Product &p, long index) {
    if (p.count <= FEW_ROWS) NEON_DOT.panel(p, index);
    else multiply_panel<Block>(p, index);
}

void best_panels(const Product &p, long first, long last, float *values, int32_t *columns) {
    if (p.count <= FEW_ROWS) NEON_DOT.best(p, first, last, values, columns);
    else best<Block>(p, first, last, values, columns);
}

}  // namespace

const Kernels NEON_I8MM = {"neon-i8mm", quantize, unpack, panel, best_panels, &FLOATS_NEON};

}  // namespace hfx
