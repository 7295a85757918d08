// Products with matrices of a low rank in the vectors of one kind of processor; norm.h includes this file.
#pragma once
#include "attend.h"
#include "floats.h"

namespace hfx {
namespace {

// Computes the products of `Rows` rows of x from `row` on with DOT_RANKS rows of `a` from `rank` on, in 16 lanes each.
template <typename Weight, int Rows> void dot_lanes(const LowRank &l, long row, long rank, Floats *lanes) {
    Floats sums[Rows][DOT_RANKS] = {};
    const float *x = l.x + row * l.depth;
    const Weight *others[DOT_RANKS];
    for (int i = 0; i < DOT_RANKS; i++) others[i] = static_cast<const Weight *>(l.a) + (rank + i < l.rank ? rank + i : l.rank - 1) * l.depth;
    const auto add = [&](long k, auto read) {
        Floats columns[DOT_RANKS];
#pragma GCC unroll 4
        for (int i = 0; i < DOT_RANKS; i++) columns[i] = read(others[i] + k);
#pragma GCC unroll 4
        for (int j = 0; j < Rows; j++) {
            const Floats v = read(x + j * l.depth + k);
#pragma GCC unroll 4
            for (int i = 0; i < DOT_RANKS; i++) sums[j][i] = fused(v, columns[i], sums[j][i]);
        }
    };
    long k = 0;
    for (; k + WIDTH <= l.depth; k += WIDTH) add(k, [](auto *from) { return widened(from); });
    if (k < l.depth) add(k, [&](auto *from) { return load_some(from, int(l.depth - k)); });
    for (int j = 0; j < Rows; j++)
        for (int i = 0; i < DOT_RANKS; i++) lanes[j * FOLD + i] = sums[j][i];
}

// Writes x @ a^T to `out`, in rows of `stride` numbers, which is the rank rounded up to 4.
template <typename Weight> void multiply_down(const LowRank &l, float *out, long stride) {
    for (long row = 0; row < l.rows; row += FOLD)
        for (long rank = 0; rank < l.rank; rank += FOLD) {
            Floats lanes[FOLD * FOLD] = {}, sums[FOLD];
            for (long j = 0; j < FOLD && row + j < l.rows; j += DOT_ROWS)
                for (long i = 0; i < FOLD && rank + i < l.rank; i += DOT_RANKS)
                    with_sizes<DOT_ROWS, 1>(l.rows - row - j, 1, [&](auto rows, auto) { dot_lanes<Weight, rows.value>(l, row + j, rank + i, lanes + j * FOLD + i); });
            for (int j = 0; j < FOLD; j++) sums[j] = folded(lanes[j * FOLD], lanes[j * FOLD + 1], lanes[j * FOLD + 2], lanes[j * FOLD + 3]);
            const Floats all_sums = sums_of(sums[0], sums[1], sums[2], sums[3]);
            float numbers[FOLD * FOLD];
            store(numbers, all_sums);
            for (long j = 0; j < FOLD && row + j < l.rows; j++) memcpy(out + (row + j) * stride + rank, numbers + j * FOLD, FOLD * sizeof(float));
        }
}

// Computes `Rows` rows from `row` on of `Vectors` vectors from `column` on, without the activation. `factors` are the
// results of multiply_down. A single vector may be the last of its rows.
template <typename Weight, int Rows, int Vectors> void multiply_up(const LowRank &l, const float *factors, long stride, long row, long column) {
    const long left = Vectors > 1 ? WIDTH : l.width - column;
    const Weight *b = static_cast<const Weight *>(l.b) + column;
    Floats sums[Rows][Vectors] = {};
    for (long k = 0; k < l.rank; k++) {
        Floats columns[Vectors];
#pragma GCC unroll 4
        for (int i = 0; i < Vectors; i++) columns[i] = load_part(b + k * l.width + i * WIDTH, left);
#pragma GCC unroll 6
        for (int j = 0; j < Rows; j++) {
            const Floats factor = all(factors[(row + j) * stride + k]);
#pragma GCC unroll 4
            for (int i = 0; i < Vectors; i++) sums[j][i] = fused(factor, columns[i], sums[j][i]);
        }
    }
#pragma GCC unroll 6
    for (int j = 0; j < Rows; j++)
#pragma GCC unroll 4
        for (int i = 0; i < Vectors; i++) {
            const long place = (row + j) * l.stride + column + i * WIDTH;
            Floats y = load_part(l.base + place, left);
            if (l.residual) y += load_part(l.residual + place, left);
            if (l.rank) y += sums[j][i];
            store_part(l.y + place, y, left);
        }
}

template <typename Weight, int Rows> void multiply_rows_up(const LowRank &l, const float *factors, long stride, long row) {
    constexpr long TILE = SUM_VECTORS * WIDTH;
    long column = 0;
    for (; column + TILE <= l.width; column += TILE) multiply_up<Weight, Rows, SUM_VECTORS>(l, factors, stride, row, column);
    for (; column < l.width; column += WIDTH) multiply_up<Weight, Rows, 1>(l, factors, stride, row, column);
}

void activate_rows(const LowRank &l, long row, long rows) {
    if (l.activation == Activation::none) return;
    with_activation(l.activation, [&](auto activation) {
        for (long j = row; j < row + rows; j++)
            for (long at = 0; at < l.width; at += WIDTH) {
                float *y = l.y + j * l.stride + at;
                store_part(y, activate<activation.value>(load_part(y, l.width - at)), l.width - at);
            }
    });
}

template <typename Weight> void multiply_low_rank(const LowRank &l) {
    float factors[MOST_LOW_RANK_ROWS * MOST_LOW_RANK];
    const long stride = (l.rank + FOLD - 1) / FOLD * FOLD;
    multiply_down<Weight>(l, factors, stride);
    for (long row = 0; l.scales && row < l.rows; row++)
        for (long rank = 0; rank < l.rank; rank++) factors[row * stride + rank] *= l.scales[rank];
    for (long row = 0; row < l.rows; row += SUM_ROWS) {
        const long rows = l.rows - row < SUM_ROWS ? l.rows - row : SUM_ROWS;
        with_sizes<SUM_ROWS, 1>(rows, 1, [&](auto rows_, auto) { multiply_rows_up<Weight, rows_.value>(l, factors, stride, row); });
        activate_rows(l, row, rows);
    }
}

void low_rank(const LowRank &l) { return l.stored == Stored::int8 ? multiply_low_rank<int8_t>(l) : multiply_low_rank<float>(l); }

}  // namespace
}  // namespace hfx
