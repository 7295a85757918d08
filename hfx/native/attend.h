// Attention in the vectors of one kind of processor; one .cpp file for each kind includes this file.
#pragma once
#include "attention.h"
#include "simd.h"

namespace hfx {
namespace {

constexpr int FOLD = 4;

// These functions compute the sums of 16 vectors, as one vector. Each addition combines neighbouring vectors crosswise
// and halves their number: folded() turns four vectors into one, and sums_of() turns four of these into the sums.
inline Floats folded(Floats a, Floats b, Floats c, Floats d) {
    Floats ab = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
                __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    Floats cd = __builtin_shufflevector(c, d, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
                __builtin_shufflevector(c, d, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    return __builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
           __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
inline Floats sums_of(Floats a, Floats b, Floats c, Floats d) {
    Floats ab = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
                __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    Floats cd = __builtin_shufflevector(c, d, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
                __builtin_shufflevector(c, d, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    return __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(ab, cd, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}

inline float sum_of(Floats v) {
    float sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += v[i];
    return sum;
}

// The keys or the values of a head, as a cache stores them: [positions][dim].
template <typename Number> struct Rows {
    const Number *from;
    long dim;

    // Prefetches rows. Heads are too far apart in memory for a processor to look ahead by itself.
    void fetch(long first, long count) const {
        if (!from) return;
        const char *at = reinterpret_cast<const char *>(from + first * dim), *end = at + count * dim * long(sizeof(Number));
        for (; at < end; at += 64) __builtin_prefetch(at, 0, 2);
    }
    // Copies rows to `buffer`, [count][vectors * WIDTH], with zeros behind each row.
    const float *padded(long first, long count, long vectors, float *buffer) const {
        for (long row = 0; row < count; row++)
            for (long d = 0; d < vectors * WIDTH; d++)
                buffer[row * vectors * WIDTH + d] = d < dim ? float(from[(first + row) * dim + d]) : 0.0f;
        return buffer;
    }
};

// The softmax of up to `Most` queries, chunk by chunk, and the sums of values that it weighs.
template <int Most> struct Softmaxes {
    const Attention &a;
    const long vectors = (a.dim + WIDTH - 1) / WIDTH;
    alignas(64) float queries[Most][LARGEST_HEAD], sums[Most][LARGEST_HEAD], scores[Most][CHUNK];
    float peaks[Most], totals[Most];
    long longest = 0, earliest = a.firsts[0];  // the end and the beginning of what any query attends to

    explicit Softmaxes(const Attention &a) : a(a) {}

    void begin() {
        for (int q = 0; q < a.count; q++) {
            longest = a.lengths[q] > longest ? a.lengths[q] : longest;
            earliest = a.firsts[q] < earliest ? a.firsts[q] : earliest;
            for (long d = 0; d < a.dim; d += WIDTH) {
                Floats query = part(a.queries[q], d) * a.scale;
                store(queries[q] + d, a.stored == Stored::int8 ? query * part(a.key_scale, d) : query);
                store(sums[q] + d, Floats{});
            }
            peaks[q] = -__builtin_inff(), totals[q] = 0;
        }
        earliest = earliest / WIDTH * WIDTH;
    }

    // Returns the scores of 16 positions from `position` on with the query's bias. Those beyond its length and before
    // its first position are -infinity.
    Floats masked(int q, Floats v, long position) const {
        const Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const long left = a.lengths[q] - position;
        if (a.bias[q] && left > 0) {
            if (left >= WIDTH) v += load<Floats>(a.bias[q] + position);
            else v += load_some(a.bias[q] + position, int(left));
        }
        if (left < WIDTH) v = lanes < int(left < 0 ? 0 : left) ? v : all(-__builtin_inff());
        const long before = a.firsts[q] - position;
        if (before > 0) v = lanes >= int(before < WIDTH ? before : WIDTH) ? v : all(-__builtin_inff());
        return v;
    }

    // Turns a query's scores of the chunk, from `skipped` on, into weights, and rescales the earlier sums to the same
    // peak.
    void weigh(int q, long skipped, long count) {
        Floats best = all(peaks[q]);
        for (long at = skipped; at < count; at += WIDTH) best = larger(best, load<Floats>(scores[q] + at));
        float peak = largest(best);
        const bool early = peak == -__builtin_inff() && a.firsts[q];  // the window begins behind this chunk
        if (peak == -__builtin_inff()) peak = 0;  // no position yet: all weights are 0
        Floats total = {};
        for (long at = skipped; at < count; at += WIDTH) {
            Floats s = load<Floats>(scores[q] + at), weight = exponential(s - peak);
            weight = s == s ? weight : s;  // NaN
            weight = s == -__builtin_inff() ? Floats{} : weight;
            store(scores[q] + at, weight);
            total += weight;
        }
        if (totals[q] > 0 && peak != peaks[q]) {
            Floats factor = exponential(all(peaks[q] - peak));
            for (long d = 0; d < vectors; d++) store(sums[q] + d * WIDTH, load<Floats>(sums[q] + d * WIDTH) * factor);
            totals[q] *= factor[0];
        }
        totals[q] += sum_of(total);
        peaks[q] = early ? -__builtin_inff() : peak;
    }

    void finish(int q) const {
        for (long d = 0; d < a.dim; d += WIDTH) {
            Floats v = load<Floats>(sums[q] + d) / totals[q];
            if (a.stored == Stored::int8) v *= part(a.value_scale, d);
            if (a.dim - d >= WIDTH) store(a.out[q] + d, v);
            else store_some(a.out[q] + d, v, int(a.dim - d));
        }
    }

    // A vector of a row of `dim` numbers, with zeros behind the end of the row.
    Floats part(const float *row, long d) const {
        return a.dim - d >= WIDTH ? load<Floats>(row + d) : load_some(row + d, int(a.dim - d));
    }
};

template <int Queries, typename Number> struct Attending : Softmaxes<Queries> {
    using Base = Softmaxes<Queries>;
    using Base::a, Base::vectors, Base::queries, Base::sums, Base::scores;
    alignas(64) float buffer[WIDTH * LARGEST_HEAD];
    // The rows, or vectors of a row, whose sums for all queries fit into the registers.
    static constexpr int AT_ONCE = DOT_ROWS * DOT_RANKS / Queries < FOLD ? DOT_ROWS * DOT_RANKS / Queries : FOLD;

    using Base::Base;

    Rows<Number> rows_of(const void *from) const { return {static_cast<const Number *>(from), a.dim}; }

    void run() {
        const bool whole = a.dim % WIDTH == 0;
        const Rows<Number> keys = rows_of(a.keys), values = rows_of(a.values);
        const Rows<Number> next_keys = rows_of(a.next_keys), next_values = rows_of(a.next_values);
        this->begin();
        const long longest = this->longest, earliest = this->earliest, begin = earliest / CHUNK * CHUNK;
        for (long first = begin; first < longest; first += CHUNK) {
            const long count = longest - first < CHUNK ? longest - first : CHUNK, skipped = first < earliest ? earliest - first : 0;
            for (long at = skipped; at < count; at += WIDTH) {
                const long rows = count - at < WIDTH ? count - at : WIDTH;
                if (first == begin) next_keys.fetch(first + at, rows);
                if (whole) score_rows(keys.from + (first + at) * a.dim, rows, first + at, at);
                else score_rows(keys.padded(first + at, rows, vectors, buffer), rows, first + at, at);
            }
            for (int q = 0; q < Queries; q++) this->weigh(q, skipped, count);
            for (long at = skipped; at < count; at += WIDTH) {
                const long rows = count - at < WIDTH ? count - at : WIDTH;
                if (first == begin) next_values.fetch(first + at, rows);
                if (whole) add_rows(values.from + (first + at) * a.dim, rows, first + at, at);
                else add_rows(values.padded(first + at, rows, vectors, buffer), rows, first + at, at);
            }
        }
        for (int q = 0; q < Queries; q++) this->finish(q);
    }

    // Computes the scores of 16 positions from `position` on, which are the chunk's scores from `at` on. If there are
    // fewer than 16 rows, the last row is read in place of the missing ones. An Element is a Number, or a float of
    // padded rows.
    template <typename Element> void score_rows(const Element *keys, long rows, long position, long at) {
        Floats products[Queries][WIDTH / FOLD];
        if (rows == WIDTH) multiply_rows<true>(keys, rows, products);
        else multiply_rows<false>(keys, rows, products);
        for (int q = 0; q < Queries; q++) {
            const Floats *p = products[q];
            store(scores[q] + at, this->masked(q, sums_of(p[0], p[1], p[2], p[3]), position));
        }
    }

    // Multiplies the queries by 16 rows; the products of four rows are folded into one vector.
    template <bool Full, typename Element>
    inline void multiply_rows(const Element *keys, long rows, Floats products[Queries][WIDTH / FOLD]) const {
        for (int fold = 0; fold < WIDTH / FOLD; fold++) {
            const Element *row[FOLD];
            Floats sum[Queries][FOLD] = {};
#pragma GCC unroll 4
            for (int i = 0; i < FOLD; i++) row[i] = keys + (Full || fold * FOLD + i < rows ? fold * FOLD + i : rows - 1) * vectors * WIDTH;
#pragma GCC unroll 4
            for (int first = 0; first < FOLD; first += AT_ONCE)
                for (long d = 0; d < vectors * WIDTH; d += WIDTH) {
                    Floats key[AT_ONCE];
#pragma GCC unroll 4
                    for (int i = 0; i < AT_ONCE; i++) key[i] = widened(row[first + i] + d);
#pragma GCC unroll 4
                    for (int q = 0; q < Queries; q++) {
                        const Floats query = load<Floats>(queries[q] + d);
#pragma GCC unroll 4
                        for (int i = 0; i < AT_ONCE; i++) sum[q][first + i] = fused(query, key[i], sum[q][first + i]);
                    }
                }
#pragma GCC unroll 4
            for (int q = 0; q < Queries; q++) products[q][fold] = folded(sum[q][0], sum[q][1], sum[q][2], sum[q][3]);
        }
    }

    // Adds the weighted rows of the positions from `position` on, for each query up to its length. Rows beyond the
    // length may hold anything.
    template <typename Element> void add_rows(const Element *rows, long count, long position, long at) {
        for (long d = 0; d < vectors; d += AT_ONCE)
            with_sizes<1, AT_ONCE>(1, vectors - d, [&](auto, auto vectors_) { add<vectors_.value>(rows, count, position, at, d); });
    }
    template <int Vectors, typename Element> void add(const Element *rows, long count, long position, long at, long d) {
        Floats sum[Queries][Vectors];
        long common = count;
        for (int q = 0; q < Queries; q++) {
            common = a.lengths[q] - position < common ? a.lengths[q] - position : common;
            for (int v = 0; v < Vectors; v++) sum[q][v] = load<Floats>(sums[q] + (d + v) * WIDTH);
        }
        auto add_row = [&](long row, bool all_queries) {
            Floats value[Vectors];
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; v++) value[v] = widened(rows + (row * vectors + d + v) * WIDTH);
#pragma GCC unroll 4
            for (int q = 0; q < Queries; q++) {
                if (!all_queries && position + row >= a.lengths[q]) continue;
                const Floats weight = all(scores[q][at + row]);
#pragma GCC unroll 4
                for (int v = 0; v < Vectors; v++) sum[q][v] = fused(value[v], weight, sum[q][v]);
            }
        };
        for (long row = 0; row < common; row++) add_row(row, true);
        for (long row = common < 0 ? 0 : common; row < count; row++) add_row(row, false);
        for (int q = 0; q < Queries; q++)
            for (int v = 0; v < Vectors; v++) store(sums[q] + (d + v) * WIDTH, sum[q][v]);
    }
};

void to_float16(const float *from, long count, void *to) {
    typedef _Float16 Halves __attribute__((vector_size(2 * WIDTH)));
    const Floats most = all(65504.0f);
    for (long at = 0; at < count; at += WIDTH) {
        const long left = count - at;
        Floats v = left < WIDTH ? load_some(from + at, int(left)) : load<Floats>(from + at);
        v = v > most ? most : v < -most ? -most : v;  // NaN stays NaN
        const Halves halves = __builtin_convertvector(v, Halves);
        memcpy(static_cast<_Float16 *>(to) + at, &halves, size_t(left < WIDTH ? left : WIDTH) * sizeof(_Float16));
    }
}

}  // namespace
}  // namespace hfx
