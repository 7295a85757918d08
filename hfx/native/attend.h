// Attention in the vectors of one kind of processor; included by one file for each.
#pragma once
#include "attention.h"
#include "simd.h"

namespace hfx {
namespace {

constexpr long LARGEST_VECTORS = LARGEST_HEAD / WIDTH;

// 16 vectors to the vector of their sums: each step adds neighbouring vectors crosswise and halves their number.
inline Floats sums_of(Floats *v) {
    for (int i = 0; i < 8; i++)
        v[i] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
               __builtin_shufflevector(v[2 * i], v[2 * i + 1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    for (int i = 0; i < 4; i++)
        v[i] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
               __builtin_shufflevector(v[2 * i], v[2 * i + 1], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    for (int i = 0; i < 2; i++)
        v[i] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
               __builtin_shufflevector(v[2 * i], v[2 * i + 1], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    return __builtin_shufflevector(v[0], v[1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(v[0], v[1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}

inline float sum_of(Floats v) {
    float sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += v[i];
    return sum;
}

// Rows of keys or values as whole vectors of float32: where they lie, or copied, converted and padded with zeros.
struct Rows {
    const void *from;
    bool bytes;
    long dim, vectors;
    float *buffer;  // [WIDTH][vectors * WIDTH]

    // Heads lie far from each other, where no processor looks ahead by itself.
    void fetch(long first, long count) const {
        long size = dim * (bytes ? 1 : 4);
        if (from)
            for (long at = first * size; at < (first + count) * size; at += 64)
                __builtin_prefetch(static_cast<const char *>(from) + at, 0, 2);
    }
    const float *read(long first, long count) const {
        if (!bytes && dim == vectors * WIDTH) return static_cast<const float *>(from) + first * dim;
        for (long row = 0; row < count; row++) {
            float *to = buffer + row * vectors * WIDTH;
            if (bytes) widen(static_cast<const int8_t *>(from) + (first + row) * dim, to);
            else copy(static_cast<const float *>(from) + (first + row) * dim, to);
        }
        return buffer;
    }
    void widen(const int8_t *row, float *to) const {
        typedef int8_t Small __attribute__((vector_size(16)));
        long d = 0;
        for (; d + WIDTH <= dim; d += WIDTH) store(to + d, __builtin_convertvector(load<Small>(row + d), Floats));
        for (; d < vectors * WIDTH; d++) to[d] = d < dim ? float(row[d]) : 0.0f;
    }
    void copy(const float *row, float *to) const {
        for (long d = 0; d < vectors * WIDTH; d++) to[d] = d < dim ? row[d] : 0.0f;
    }
};

template <int Queries> struct Attending {
    const Attention &a;
    const long vectors = (a.dim + WIDTH - 1) / WIDTH;
    alignas(64) float queries[Queries][LARGEST_HEAD], sums[Queries][LARGEST_HEAD], scores[Queries][CHUNK];
    alignas(64) float buffer[WIDTH * LARGEST_HEAD];
    float peaks[Queries], totals[Queries];

    explicit Attending(const Attention &a) : a(a) {}

    void run() {
        const bool bytes = a.key_scale != nullptr;
        const Rows keys = {a.keys, bytes, a.dim, vectors, buffer}, values = {a.values, bytes, a.dim, vectors, buffer};
        const Rows next_keys = {a.next_keys, bytes, a.dim, vectors, buffer};
        const Rows next_values = {a.next_values, bytes, a.dim, vectors, buffer};
        long longest = 0;
        for (int q = 0; q < Queries; q++) {
            longest = a.lengths[q] > longest ? a.lengths[q] : longest;
            for (long d = 0; d < a.dim; d += WIDTH) {
                Floats query = part(a.queries[q], d) * a.scale;
                store(queries[q] + d, bytes ? query * part(a.key_scale, d) : query);
                store(sums[q] + d, Floats{});
            }
            peaks[q] = -__builtin_inff(), totals[q] = 0;
        }
        for (long first = 0; first < longest; first += CHUNK) {
            long count = longest - first < CHUNK ? longest - first : CHUNK;
            for (long at = 0; at < count; at += WIDTH) {
                if (first == 0) next_keys.fetch(at, WIDTH);
                long rows = count - at < WIDTH ? count - at : WIDTH;
                const float *from = keys.read(first + at, rows);
                if (rows == WIDTH) score<true>(from, rows, first + at, at);
                else score<false>(from, rows, first + at, at);
            }
            for (int q = 0; q < Queries; q++) weigh(q, count);
            for (long at = 0; at < count; at += WIDTH) {
                long rows = count - at < WIDTH ? count - at : WIDTH;
                if (first == 0) next_values.fetch(at, WIDTH);
                const float *from = values.read(first + at, rows);
                for (long d = 0; d < vectors; d += 4)
                    switch (vectors - d) {
                    case 1: add<1>(from, rows, at, d); break;
                    case 2: add<2>(from, rows, at, d); break;
                    case 3: add<3>(from, rows, at, d); break;
                    default: add<4>(from, rows, at, d);
                    }
            }
        }
        for (int q = 0; q < Queries; q++)
            for (long d = 0; d < a.dim; d += WIDTH) {
                Floats v = load<Floats>(sums[q] + d) / totals[q];
                if (bytes) v *= part(a.value_scale, d);
                if (a.dim - d >= WIDTH) store(a.out[q] + d, v);
                else store_some(a.out[q] + d, v, int(a.dim - d));
            }
    }

    // A vector of a row of `dim` numbers, zeros behind its end.
    Floats part(const float *row, long d) const {
        return a.dim - d >= WIDTH ? load<Floats>(row + d) : load_some(row + d, int(a.dim - d));
    }

    // Scores of 16 positions from `position` on, the chunk's from `at` on; -infinity beyond a query's length. Where there
    // are fewer rows, the last one is read in the place of others.
    template <bool Full> void score(const float *keys, long rows, long position, long at) {
        const Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        for (int q = 0; q < Queries; q++) {
            Floats products[WIDTH] = {};
            for (long d = 0; d < vectors; d++) {
                Floats query = load<Floats>(queries[q] + d * WIDTH);
#pragma GCC unroll 16
                for (int i = 0; i < WIDTH; i++) {
                    long row = Full || i < rows ? i : rows - 1;
                    products[i] += query * load<Floats>(keys + (row * vectors + d) * WIDTH);
                }
            }
            Floats v = sums_of(products);
            long left = a.lengths[q] - position;
            if (a.bias[q] && left > 0) {
                if (left >= WIDTH) v += load<Floats>(a.bias[q] + position);
                else v += load_some(a.bias[q] + position, int(left));
            }
            store(scores[q] + at, lanes < int(left < 0 ? 0 : left) ? v : all(-__builtin_inff()));
        }
    }

    // A query's scores of the chunk to weights; what was summed before is brought to the same peak.
    void weigh(int q, long count) {
        Floats best = all(peaks[q]);
        for (long at = 0; at < count; at += WIDTH) best = larger(best, load<Floats>(scores[q] + at));
        float peak = largest(best);
        if (peak == -__builtin_inff()) peak = 0;  // no position yet: all weights are 0
        Floats total = {};
        for (long at = 0; at < count; at += WIDTH) {
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
        peaks[q] = peak;
    }

    // Adds `count` weighted rows to Vectors vectors of the sums. A weight of 0 takes no part: beyond a query's length
    // there may be anything.
    template <int Vectors> void add(const float *rows, long count, long at, long d) {
        Floats sum[Queries][Vectors];
        for (int q = 0; q < Queries; q++)
            for (int v = 0; v < Vectors; v++) sum[q][v] = load<Floats>(sums[q] + (d + v) * WIDTH);
        for (long row = 0; row < count; row++) {
            Floats value[Vectors];
            for (int v = 0; v < Vectors; v++) value[v] = load<Floats>(rows + (row * vectors + d + v) * WIDTH);
            for (int q = 0; q < Queries; q++) {
                float weight = scores[q][at + row];
                if (weight == 0.0f) continue;
                for (int v = 0; v < Vectors; v++) sum[q][v] += value[v] * weight;
            }
        }
        for (int q = 0; q < Queries; q++)
            for (int v = 0; v < Vectors; v++) store(sums[q] + (d + v) * WIDTH, sum[q][v]);
    }
};

void attend(const Attention &a) {
    switch (a.count) {
    case 1: return Attending<1>(a).run();
    case 2: return Attending<2>(a).run();
    case 3: return Attending<3>(a).run();
    case 4: return Attending<4>(a).run();
    }
}

}  // namespace
}  // namespace hfx
