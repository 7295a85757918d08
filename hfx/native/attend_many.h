// Attention of many queries to one head's keys and values, as a prompt has them.
//
// Results equal those of attend.h in every bit. A score there is the sum of 16 lanes, of which each multiplies every
// 16th channel; lanes are added in pairs, and so are the pairs. Here a vector has the same lane of 16 keys: the keys are
// transposed once for all queries, so that nothing is added across a vector.
#pragma once
#include "attend.h"

namespace hfx {
namespace {

constexpr long BLOCK = SUM_VECTORS * WIDTH;  // positions
constexpr int LEVELS = 5;                     // of the tree of 16 lanes

inline long smaller(long a, long b) { return a < b ? a : b; }

// Computes the scores of `Queries` queries, [Queries][LARGEST_HEAD], for 16 keys of a block, [width][BLOCK]. They go to
// `scores`, [Queries][CHUNK]. As many lanes are summed at a time as there are registers for, and added in the registers.
template <int Queries>
__attribute__((noinline)) void score_tile(const float *queries, const float *keys, long width, float *scores) {
    constexpr int LANES = SUM_VECTORS;
    Floats tree[LEVELS][Queries];
    int top = 0;
    for (int lane = 0; lane < WIDTH; lane += LANES) {
        Floats sum[LANES][Queries];
#pragma GCC unroll 4
        for (int l = 0; l < LANES; l++)
#pragma GCC unroll 8
            for (int q = 0; q < Queries; q++) sum[l][q] = Floats{};
        for (long d = lane; d < width; d += WIDTH)
#pragma GCC unroll 4
            for (int l = 0; l < LANES; l++) {
                const Floats key = load<Floats>(keys + (d + l) * BLOCK);
#pragma GCC unroll 8
                for (int q = 0; q < Queries; q++) sum[l][q] = fused(all(queries[q * LARGEST_HEAD + d + l]), key, sum[l][q]);
            }
#pragma GCC unroll 4
        for (int step = 1; step < LANES; step *= 2)
#pragma GCC unroll 4
            for (int l = 0; l < LANES; l += 2 * step)
#pragma GCC unroll 8
                for (int q = 0; q < Queries; q++) sum[l][q] = sum[l][q] + sum[l + step][q];
        for (int pairs = lane / LANES; pairs & 1; pairs >>= 1) {
            top--;
#pragma GCC unroll 8
            for (int q = 0; q < Queries; q++) sum[0][q] = tree[top][q] + sum[0][q];
        }
#pragma GCC unroll 8
        for (int q = 0; q < Queries; q++) tree[top][q] = sum[0][q];
        top++;
    }
    for (int q = 0; q < Queries; q++) store(scores + q * CHUNK, tree[0][q]);
}

// Adds `count` rows of a block's values, each times the query's weight, to the sums of `Queries` queries.
template <int Queries, int Vectors>
__attribute__((noinline)) void add_tile(const float *weights, const float *values, long width, long count, float *sums) {
    Floats sum[Queries][Vectors];
#pragma GCC unroll 8
    for (int q = 0; q < Queries; q++)
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; v++) sum[q][v] = load<Floats>(sums + q * LARGEST_HEAD + v * WIDTH);
    for (long row = 0; row < count; row++) {
        Floats value[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; v++) value[v] = load<Floats>(values + row * width + v * WIDTH);
#pragma GCC unroll 8
        for (int q = 0; q < Queries; q++) {
            const Floats weight = all(weights[q * CHUNK + row]);
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; v++) sum[q][v] = fused(value[v], weight, sum[q][v]);
        }
    }
#pragma GCC unroll 8
    for (int q = 0; q < Queries; q++)
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; v++) store(sums + q * LARGEST_HEAD + v * WIDTH, sum[q][v]);
}

template <typename Number> struct AttendingMany : Softmaxes<MOST_QUERIES> {
    alignas(64) float block[BLOCK * LARGEST_HEAD];  // keys, [width][BLOCK], or values, [BLOCK][width]

    using Softmaxes::Softmaxes;

    void run() {
        begin();
        for (long first = earliest / CHUNK * CHUNK; first < longest; first += CHUNK) {
            const long count = smaller(longest - first, CHUNK), skipped = first < earliest ? earliest - first : 0;
            for (long at = skipped; at < count; at += BLOCK) {
                const long rows = smaller(count - at, BLOCK);
                read_keys(first + at, rows);
                if (at + BLOCK < count) fetch(a.keys, first + at + BLOCK);
                else fetch(a.values, first + skipped);
                for (int q = 0; q < a.count; q += SUM_ROWS) score(q, rows, first + at, at);
            }
            for (int q = 0; q < a.count; q++)
                if (a.lengths[q] > first) weigh(q, skipped, smaller(count, a.lengths[q] - first));
            for (long at = skipped; at < count; at += BLOCK) {
                const long rows = smaller(count - at, BLOCK);
                read_values(first + at, rows);
                if (at + BLOCK < count) fetch(a.values, first + at + BLOCK);
                else fetch(a.keys, first + CHUNK);
                for (int q = 0; q < a.count; q += SUM_ROWS) add(q, rows, first + at, at);
            }
        }
        for (int q = 0; q < a.count; q++) finish(q);
    }

    int tile(int q) const { return a.count - q < SUM_ROWS ? a.count - q : SUM_ROWS; }

    // A vector of a row of a cache, with zeros behind the end of the row.
    Floats numbers(const Number *row, long d) const {
        if (a.dim - d >= WIDTH) return widened(row + d);
        Floats v = {};
        for (long i = 0; d + i < a.dim; i++) v[i] = float(row[d + i]);
        return v;
    }

    // Prefetches the block of a cache from `position` on, while the one before it is worked on.
    void fetch(const void *cache, long position) const {
        Rows<Number>{static_cast<const Number *>(cache), a.dim}.fetch(position, smaller(longest - position, BLOCK));
    }

    // Transposes the keys of `rows` positions, with zeros in place of further ones.
    void read_keys(long position, long rows) {
        const Number *from = static_cast<const Number *>(a.keys) + position * a.dim;
        for (long at = 0; at < rows; at += WIDTH)
            for (long d = 0; d < a.dim; d += WIDTH) {
                Floats square[WIDTH];
                for (long i = 0; i < WIDTH; i++) square[i] = at + i < rows ? numbers(from + (at + i) * a.dim, d) : Floats{};
                transpose(square);
                for (long i = 0; i < WIDTH; i++) store(block + (d + i) * BLOCK + at, square[i]);
            }
    }

    void read_values(long position, long rows) {
        const Number *from = static_cast<const Number *>(a.values) + position * a.dim;
        for (long row = 0; row < rows; row++)
            for (long d = 0; d < a.dim; d += WIDTH) store(block + row * vectors * WIDTH + d, numbers(from + row * a.dim, d));
    }

    // Computes the scores of a tile of queries for the block's `rows` positions, from `position` on; those behind all
    // lengths are left out.
    void score(int query, long rows, long position, long at) {
        long end = 0, common = rows;
        bool whole = true;  // no query has a bias, or a window that begins later
        for (int q = query; q < query + tile(query); q++) {
            end = a.lengths[q] > end ? a.lengths[q] : end, common = smaller(common, a.lengths[q] - position);
            whole = whole && !a.bias[q] && a.firsts[q] <= position;
        }
        rows = smaller(rows, end - position);
        for (long v = 0; v < rows; v += WIDTH) {
            with_sizes<SUM_ROWS, 1>(tile(query), 1, [&](auto queries_, auto) {
                score_tile<queries_.value>(queries[query], block + v, vectors * WIDTH, scores[query] + at + v);
            });
            if (whole && v + WIDTH <= common) continue;
            for (int q = query; q < query + tile(query); q++) store(scores[q] + at + v, masked(q, load<Floats>(scores[q] + at + v), position + v));
        }
    }

    // Adds the weighted values of the block's `rows` positions to the sums of a tile of queries, for each up to its
    // length.
    void add(int query, long rows, long position, long at) {
        long common = rows;
        for (int q = query; q < query + tile(query); q++) common = smaller(common, a.lengths[q] - position);
        if (common > 0) add_some(query, tile(query), 0, common, at);
        for (int q = query; q < query + tile(query); q++) {
            const long from = common < 0 ? 0 : common, end = smaller(rows, a.lengths[q] - position);
            if (end > from) add_some(q, 1, from, end, at);
        }
    }
    void add_some(int query, int count, long from, long end, long at) {
        for (long v = 0; v < vectors; v += SUM_VECTORS)
            with_sizes(count, smaller(vectors - v, SUM_VECTORS), [&](auto queries_, auto vectors_) {
                add_tile<queries_.value, vectors_.value>(scores[query] + at + from, block + (from * vectors + v) * WIDTH, vectors * WIDTH, end - from,
                                                         sums[query] + v * WIDTH);
            });
    }
};

template <typename Number> void attend_to(const Attention &a) {
    switch (a.count) {
    case 1: return Attending<1, Number>(a).run();
    case 2: return Attending<2, Number>(a).run();
    case 3: return Attending<3, Number>(a).run();
    case 4: return Attending<4, Number>(a).run();
    default: return AttendingMany<Number>(a).run();
    }
}

void attend(const Attention &a) {
    switch (a.stored) {
    case Stored::float32: return attend_to<float>(a);
    case Stored::float16: return attend_to<_Float16>(a);
    case Stored::int8: return attend_to<int8_t>(a);
    }
}

}  // namespace
}  // namespace hfx
