// What all processors' kernels share: rows to bytes, the order of blocks, and what follows the integer sums.
//
// Included by one file for each kind of processor, which is compiled for it; hence the anonymous namespace: each has
// functions of its own. A `Block` is that file's: run(rows, ...) sums `rows` <= Block::ROWS rows times one panel.
#pragma once
#include "simd.h"

namespace hfx {
namespace {

float quantize(const float *x, long inputs, long depth, uint8_t *out) {
    long whole = inputs / WIDTH * WIDTH;
    Floats peaks = {};
    Floats odd = {};  // stays 0 unless a value is NaN or infinite
    for (long i = 0; i < whole; i += WIDTH) {
        Floats v = load<Floats>(x + i);
        peaks = larger(peaks, magnitude(v));
        odd += v - v;
    }
    Floats end = load_some(x + whole, int(inputs - whole));
    peaks = larger(peaks, magnitude(end));
    odd += end - end;
    float sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += odd[i];
    float peak = largest(peaks), gain = LEVELS / (peak > LEAST_PEAK ? peak : LEAST_PEAK);
    if (!(sum == 0.0f)) {
        memset(out, 128, size_t(depth));
        return __builtin_nanf("");
    }
    auto bytes = [gain](Floats v) {
        return __builtin_convertvector((Bits)(v * gain + (ROUNDER + 128.0f)) & 0xffu, Bytes);
    };
    for (long i = 0; i < whole; i += WIDTH) store(out + i, bytes(load<Floats>(x + i)));
    if (whole < depth) {  // depth is a multiple of 64
        memset(out + whole, 128, size_t(depth - whole));
        if (whole < inputs) store(out + whole, bytes(end));
    }
    return peak / LEVELS;
}

inline Floats scaled(const Weights &w, long column, const int32_t *sums, float row_scale) {
    return as_floats(load<Ints>(sums)) * load<Floats>(w.scale + column) * row_scale + load<Floats>(w.bias + column);
}

inline Floats score(const Product &p, long column, long row, const int32_t *sums) {
    Floats v = scaled(*p.weights, column, sums, p.row_scale[row]);
    for (long i = 0; i < p.outliers; i++)
        v += load<Floats>(p.outlier_weights + i * p.weights->panels * COLUMNS + column) * p.outlier_inputs[row * p.outliers + i];
    return v;
}

// Rows from `row` on of one panel, from integer sums [rows][64] to y; `gated_sums` are the other half's.
template <Activation A>
void finish(const Product &p, long panel, long row, int rows, const int32_t *sums, const int32_t *gated_sums) {
    const Weights &w = *p.weights;
    for (int j = 0; j < COLUMNS / WIDTH; j++) {
        long column = panel * COLUMNS + j * WIDTH, left = p.outputs - column;
        if (left <= 0) break;
        for (int i = 0; i < rows; i++) {
            long at = i * COLUMNS + j * WIDTH, place = (p.places ? p.places[row + i] : row + i) * p.outputs + column;
            Floats v = activate<A>(scaled(w, column, sums + at, p.row_scale[row + i]));
            if (p.gated) v *= scaled(w, column + w.panels / 2 * COLUMNS, gated_sums + at, p.row_scale[row + i]);
            if (left >= WIDTH) {
                if (p.residual) v += load<Floats>(p.residual + place);
                store(p.y + place, v);
            } else {
                if (p.residual) v += load_some(p.residual + place, int(left));
                store_some(p.y + place, v, int(left));
            }
        }
    }
}

void finish(const Product &p, long panel, long row, int rows, const int32_t *sums, const int32_t *gated_sums) {
    switch (p.activation) {
    case Activation::none: return finish<Activation::none>(p, panel, row, rows, sums, gated_sums);
    case Activation::relu: return finish<Activation::relu>(p, panel, row, rows, sums, gated_sums);
    case Activation::gelu: return finish<Activation::gelu>(p, panel, row, rows, sums, gated_sums);
    case Activation::gelu_tanh: return finish<Activation::gelu_tanh>(p, panel, row, rows, sums, gated_sums);
    case Activation::quick_gelu: return finish<Activation::quick_gelu>(p, panel, row, rows, sums, gated_sums);
    case Activation::silu: return finish<Activation::silu>(p, panel, row, rows, sums, gated_sums);
    }
}

// Calls then(row, rows, sums, gated sums) for all rows of a panel, some rows at a time.
template <typename Block, typename Then> void each_block(const Product &p, long panel, Then then) {
    const Weights &w = *p.weights;
    alignas(64) int32_t sums[2][Block::ROWS * COLUMNS];
    Block block(p.count, w.depth);
    for (long row = 0; row < p.count;) {
        int rows = block.rows(row);
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
    each_block<Block>(p, panel, [&](long row, int rows, const int32_t *sums, const int32_t *gated_sums) {
        finish(p, panel, row, rows, sums, gated_sums);
    });
}

// The best of a row so far, in each of 16 lanes.
struct Best {
    Floats value;
    Ints column;
};

template <typename Block> void best_of_panels(const Product &p, long first, long last, Best *best) {
    const Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (long panel = first; panel < last; panel++)
        each_block<Block>(p, panel, [&](long row, int rows, const int32_t *sums, const int32_t *) {
            for (int i = 0; i < rows; i++, row++)
                for (int j = 0; j < COLUMNS / WIDTH; j++) {
                    int column = int(panel * COLUMNS + j * WIDTH), left = int(p.outputs) - column;
                    if (left <= 0) break;
                    Floats v = score(p, column, row, sums + i * COLUMNS + j * WIDTH);
                    if (p.y) store_some(p.y + row * p.outputs + column, v, left < WIDTH ? left : WIDTH);
                    Ints columns = lanes + column, better = (v > best[row].value) & (columns < int(p.outputs));
                    best[row].value = better ? v : best[row].value;
                    best[row].column = better ? columns : best[row].column;
                }
        });
}

constexpr long BEST_ROWS = 128;  // rows at a time, whose bests take 16 KB of the stack

template <typename Block>
void best(const Product &whole, long first, long last, float *values, int32_t *columns) {
    alignas(64) Best found[BEST_ROWS];
    for (long row = 0; row < whole.count; row += BEST_ROWS) {
        Product p = whole;
        p.count = whole.count - row < BEST_ROWS ? whole.count - row : BEST_ROWS;
        p.rows += row * whole.weights->depth;
        p.row_scale += row;
        if (p.y) p.y += row * whole.outputs;
        if (p.outliers) p.outlier_inputs += row * p.outliers;
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
