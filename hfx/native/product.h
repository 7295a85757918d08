// The code that all processors' kernels share: the quantization of rows to bytes, the order of blocks, and the steps
// that follow the integer sums.
//
// One .cpp file for each kind of processor includes this file and is compiled for it. The namespace is anonymous so
// that each has functions of its own. The file defines a `Block`: its run(rows, ...) multiplies `rows` <= Block::ROWS
// rows, which are `stride` bytes apart, by one panel. `Block::Int4` adds blocks of int4 to totals.
#pragma once
#include "simd.h"

namespace hfx {
namespace {

float quantize(const float *x, long inputs, long depth, uint8_t *out) {
    long whole = inputs / WIDTH * WIDTH;
    Ints peaks = {};  // magnitudes as integers, which have the order of the floats; NaN is above infinity
    const auto add = [&peaks](Floats v) {
        const Ints bits = (Ints)magnitude(v);
        peaks = bits > peaks ? bits : peaks;
    };
    for (long i = 0; i < whole; i += WIDTH) add(load<Floats>(x + i));
    Floats end = load_some(x + whole, int(inputs - whole));
    add(end);
    int32_t highest = 0;
    for (int i = 0; i < WIDTH; i++) highest = peaks[i] > highest ? peaks[i] : highest;
    if (highest >= 0x7f800000) {
        memset(out, MIDDLE, size_t(depth));
        return __builtin_nanf("");
    }
    float peak;
    memcpy(&peak, &highest, sizeof peak);
    const float gain = LEVELS / (peak > LEAST_PEAK ? peak : LEAST_PEAK);
    auto bytes = [gain](Floats v) {
        return __builtin_convertvector((Bits)(v * gain + (ROUNDER + float(MIDDLE))) & 0xffu, Bytes);
    };
    for (long i = 0; i < whole; i += WIDTH) store(out + i, bytes(load<Floats>(x + i)));
    if (whole < depth) {  // depth is a multiple of 64
        memset(out + whole, MIDDLE, size_t(depth - whole));
        if (whole < inputs) store(out + whole, bytes(end));
    }
    return peak / LEVELS;
}

// The size of the next of the blocks into which `left` rows are divided: nearly the same for all, and at most `most`.
inline int next_block(long left, long most) {
    const long blocks = (left + most - 1) / most;
    return int((left + blocks - 1) / blocks);
}

inline Floats scaled(const Product &p, long column, long row, const int32_t *sums) {
    const Weights &w = *p.weights;
    return as_floats(load<Ints>(sums)) * load<Floats>(w.scale + column) * p.row_scale[row] + load<Floats>(w.bias + column);
}
inline Floats scaled(const Product &p, long column, long, const float *sums) {
    return load<Floats>(sums) + load<Floats>(p.weights->bias + column);
}

template <typename Sum> Floats score(const Product &p, long column, long row, const Sum *sums) {
    Floats v = scaled(p, column, row, sums);
    for (long i = 0; i < p.outliers; i++)
        v += load<Floats>(p.outlier_weights + i * p.weights->panels * COLUMNS + column) * p.outlier_inputs[row * p.outliers + i];
    return v;
}

// The results of so many rows are not in the first caches. Their lines, and those of the residual, are fetched while the
// sums are computed: a product of 1,024 rows then takes 1 to 12 % less time (Zen 4); 16 rows would take 1 % more.
constexpr long MANY_RESULTS = 96;

inline void fetch_results(const Product &p, long panel, long row, int rows) {
    const long first = panel * COLUMNS, left = p.outputs - first < COLUMNS ? p.outputs - first : COLUMNS;
    for (int i = 0; i < rows && p.count >= MANY_RESULTS; i++) {
        const long place = (p.places ? p.places[row + i] : row + i) * p.outputs + first;
        for (long j = 0; j < left; j += WIDTH) {
            __builtin_prefetch(p.y + place + j, 1);
            if (p.residual) __builtin_prefetch(p.residual + place + j);
        }
    }
}

// Turns the sums [rows][64] of one panel into the rows of y from `row` on. `gated_sums` are the sums of the panel in
// the other half. Sums are integers, or for int4 the float totals of the blocks.
template <Activation A, typename Sum>
void finish(const Product &p, long panel, long row, int rows, const Sum *sums, const Sum *gated_sums) {
    const long first = panel * COLUMNS, gated = p.weights->panels / 2 * COLUMNS;
    const long left = p.outputs - first < COLUMNS ? p.outputs - first : COLUMNS;
    for (int i = 0; i < rows; i++) {
        const long place = (p.places ? p.places[row + i] : row + i) * p.outputs + first;
        for (int j = 0; j < COLUMNS; j += WIDTH) {
            const int some = int(left - j);
            if (some <= 0) break;
            Floats v = activate<A>(scaled(p, first + j, row + i, sums + i * COLUMNS + j));
            if (p.gated) v *= scaled(p, first + gated + j, row + i, gated_sums + i * COLUMNS + j);
            if (some >= WIDTH) {
                if (p.residual) v += load<Floats>(p.residual + place + j);
                store(p.y + place + j, v);
            } else {
                if (p.residual) v += load_some(p.residual + place + j, some);
                store_some(p.y + place + j, v, some);
            }
        }
    }
}

template <typename Sum> void finish(const Product &p, long panel, long row, int rows, const Sum *sums, const Sum *gated_sums) {
    with_activation(p.activation, [&](auto activation) { finish<activation.value>(p, panel, row, rows, sums, gated_sums); });
}

constexpr long AHEAD = 4096;  // bytes
typedef int8_t Line __attribute__((vector_size(64)));

void unpack(const int8_t *pairs, long block, int8_t *values) {
    constexpr long LINES = COLUMNS * GROUP;
    for (long k = 0; k < block; k += 2 * GROUP, pairs += LINES, values += 2 * LINES)
        for (long j = 0; j < LINES; j += 64) {
            Line both = load<Line>(pairs + j);
            __builtin_prefetch(pairs + j + AHEAD, 0, 2);
            store(values + j, both << 4);
            store(values + LINES + j, both & -16);
        }
}

// The factors of the sums of a block of int4: `columns` [64], and `rows`, where the rows' factors are `stride` apart.
struct Scales {
    const float *columns, *rows;
    long stride;

    Floats add(Ints sums, int row, int column, Floats total) const {
        return fused(as_floats(sums) * load<Floats>(columns + column), all(rows[row * stride]), total);
    }
    // Adds the sums of `count` rows, [count][64], to their totals.
    void add_all(int count, const int32_t *sums, float *totals) const {
        for (int i = 0; i < count; i++)
            for (int j = 0; j < COLUMNS; j += WIDTH, sums += WIDTH, totals += WIDTH) store(totals, add(load<Ints>(sums), i, j, load<Floats>(totals)));
    }
};

// Multiplies blocks of int4 with the int8 kernels. The weights are unpacked once for all rows.
template <typename Block> struct Unpacking {
    Block block;
    long inputs;
    alignas(64) int8_t values[MOST_BLOCK * COLUMNS];
    alignas(64) int32_t sums[Block::ROWS * COLUMNS];

    Unpacking(long rows, long stride, long inputs) : block(rows, stride, inputs), inputs(inputs) {}

    void begin(const int8_t *pairs) { unpack(pairs, inputs, values); }
    int rows(long first) { return block.rows(first); }

    void add(int rows, const uint8_t *q, const int32_t *start, const Scales &scales, float *totals) {
        block.run(rows, q, values, start, sums);
        scales.add_all(rows, sums, totals);
    }
};

// Multiplies `rows` rows from `row` on by one panel of int4, into totals [rows][64].
template <typename Blocks> void add_blocks(const Product &p, long panel, long row, long rows, float *totals) {
    const Weights &w = *p.weights;
    const long count = w.blocks();
    memset(totals, 0, size_t(rows) * COLUMNS * sizeof(float));
    Blocks blocks(rows, w.depth, w.block);
    for (long b = 0; b < count; b++) {
        const long place = (panel * count + b) * COLUMNS;
        blocks.begin(w.panel(panel) + b * w.block * COLUMNS / 2);
        for (long at = 0; at < rows;) {
            const int some = blocks.rows(at);
            const Scales scales = {w.scale + place, p.row_scale + (row + at) * count + b, count};
            blocks.add(some, p.rows + (row + at) * w.depth + b * w.block, w.start + place, scales, totals + at * COLUMNS);
            at += some;
        }
    }
}

constexpr long TOTAL_ROWS = 32;  // rows that share an unpacked block; their totals take 8 KB

// Calls then(row, rows, sums, gated sums) for all rows of a panel, some rows at a time.
template <typename Blocks, typename Then> void each_block_of_int4(const Product &p, long panel, Then then) {
    alignas(64) float totals[2][TOTAL_ROWS * COLUMNS];
    for (long row = 0; row < p.count; row += TOTAL_ROWS) {
        long rows = p.count - row < TOTAL_ROWS ? p.count - row : TOTAL_ROWS;
        add_blocks<Blocks>(p, panel, row, rows, totals[0]);
        if (p.gated) add_blocks<Blocks>(p, panel + p.weights->panels / 2, row, rows, totals[1]);
        then(row, int(rows), totals[0], totals[1]);
    }
}

template <typename Block, typename Before, typename Then> void each_block(const Product &p, long panel, Before before, Then then) {
    const Weights &w = *p.weights;
    if (w.block) return each_block_of_int4<typename Block::Int4>(p, panel, then);
    alignas(64) int32_t sums[2][Block::ROWS * COLUMNS];
    Block block(p.count, w.depth, w.depth);
    for (long row = 0; row < p.count;) {
        int rows = block.rows(row);
        before(row, rows);
        block.run(rows, p.rows + row * w.depth, w.panel(panel), w.start + panel * COLUMNS, sums[0]);
        if (p.gated) {
            long other = panel + w.panels / 2;
            block.run(rows, p.rows + row * w.depth, w.panel(other), w.start + other * COLUMNS, sums[1]);
        }
        then(row, rows, sums[0], sums[1]);
        row += rows;
    }
}

template <typename Block> void multiply_panel(const Product &p, long panel) {
    each_block<Block>(
        p, panel, [&](long row, int rows) { fetch_results(p, panel, row, rows); },
        [&](long row, int rows, const auto *sums, const auto *gated_sums) { finish(p, panel, row, rows, sums, gated_sums); });
}

// The best value of a row so far and its column, in each of 16 lanes.
struct Best {
    Floats value;
    Ints column;
};

// Rows of logits are far apart in memory, so each store misses the caches. Lines are therefore fetched two panels
// ahead: storing 32 or 128 rows then takes a quarter of the time (with AMX).
constexpr int AHEAD_OF_LOGITS = 2 * COLUMNS;

template <typename Block> void best_of_panels(const Product &p, long first, long last, Best *best) {
    const Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (long panel = first; panel < last; panel++)
        each_block<Block>(p, panel, [](long, int) {}, [&](long row, int rows, const auto *sums, const auto *) {
            for (int i = 0; i < rows; i++, row++)
                for (int j = 0; j < COLUMNS / WIDTH; j++) {
                    int column = int(panel * COLUMNS + j * WIDTH), left = int(p.outputs) - column;
                    if (left <= 0) break;
                    Floats v = score(p, column, row, sums + i * COLUMNS + j * WIDTH);
                    if (p.y) {
                        float *y = p.y + row * p.outputs + column;
                        store_some(y, v, left < WIDTH ? left : WIDTH);
                        __builtin_prefetch(y + AHEAD_OF_LOGITS, 1, 2);
                    }
                    Ints columns = lanes + column, better = (v > best[row].value) & (columns < int(p.outputs));
                    best[row].value = better ? v : best[row].value;
                    best[row].column = better ? columns : best[row].column;
                }
        });
}

constexpr long BEST_ROWS = 128;  // rows at a time; their Best values take 16 KB of the stack

template <typename Block>
void best(const Product &whole, long first, long last, float *values, int32_t *columns) {
    alignas(64) Best found[BEST_ROWS];
    for (long row = 0; row < whole.count; row += BEST_ROWS) {
        const Product p = whole.part(row, BEST_ROWS);
        for (long i = 0; i < p.count; i++) found[i] = {all(-__builtin_inff()), Ints{} + int(whole.outputs)};
        best_of_panels<Block>(p, first, last, found);
        for (long i = 0; i < p.count; i++) {
            float value = -__builtin_inff();
            int column = int(whole.outputs);
            for (int lane = 0; lane < WIDTH; lane++) {
                float v = found[i].value[lane];
                int c = found[i].column[lane];
                if (v > value || (v == value && c < column)) value = v, column = c;
            }
            values[row + i] = value;
            columns[row + i] = column;
        }
    }
}

}  // namespace
}  // namespace hfx
