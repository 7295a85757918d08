// An encoder's attention in the vectors of one kind of processor; one .cpp file for each kind includes this file.
#pragma once
#include "floats.h"
#include "simd.h"

namespace hfx {
namespace {

// A product of matrices: out [rows][columns] = left [rows][depth] @ right [depth][columns]. `places` has the number of
// each row in `left`, or is null. 16 columns of `right` are `vector_stride` numbers behind the 16 columns before them.
struct FloatProduct {
    const float *left, *right;
    float *out;
    long left_stride, right_stride, out_stride, depth;
    const int32_t *places = nullptr;
    long vector_stride = WIDTH;
};

struct Numbers {
    static Floats add(Floats a, Floats b, Floats sum) { return fused(a, b, sum); }
};

// `Terms` says what the 32 bits of a number are, and adds products to sums.
template <typename Terms, int Rows, int Vectors> __attribute__((noinline)) void multiply(const FloatProduct &p) {
    Floats sums[Rows][Vectors];
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; v++) sums[i][v] = Floats{};
    const float *right = p.right, *left[Rows];
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++) left[i] = p.left + (p.places ? p.places[i] : i) * p.left_stride;
    for (long k = 0; k < p.depth; k++, right += p.right_stride) {
        Floats columns[Vectors];
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; v++) columns[v] = load<Floats>(right + v * p.vector_stride);
#pragma GCC unroll 8
        for (int i = 0; i < Rows; i++) {
            Floats number = all(left[i][k]);
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; v++) sums[i][v] = Terms::add(number, columns[v], sums[i][v]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; v++) store(p.out + i * p.out_stride + v * WIDTH, sums[i][v]);
}

// Computes `rows` <= 6 rows and `columns` columns of a product; `columns` is a multiple of 16.
template <typename Terms = Numbers> void multiply_all(const FloatProduct &whole, long rows, long columns) {
    for (long row = 0; row < rows; row += SUM_ROWS)
        for (long column = 0; column < columns; column += SUM_VECTORS * WIDTH) {
            FloatProduct p = whole;
            if (p.places) p.places += row;
            else p.left += row * p.left_stride;
            p.right += column / WIDTH * p.vector_stride, p.out += row * p.out_stride + column;
            const long vectors = (columns - column) / WIDTH;
            with_sizes(rows - row, vectors, [&](auto rows_, auto vectors_) { multiply<Terms, rows_.value, vectors_.value>(p); });
        }
}

template <typename Terms> void multiply_panels(const Panels &p) {
    multiply_all<Terms>({p.x, p.weights, p.out, p.depth, WIDTH, PANEL, p.depth, p.places, p.depth * WIDTH}, p.rows, PANEL);
}

// exp(x), but 0 for the scores that a mask excludes: sums of numbers as small as exponential's least are many times
// slower.
inline Floats weights_of(Floats x) { return x < -87.0f ? Floats{} : exponential(x); }

// Turns the scores of a query into weights, which are 0 beyond `width`; returns their sum. `mask` and `bias` may be
// null.
float weigh(float *scores, const float *mask, const float *bias, long width, float scale) {
    const Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const long whole = width / WIDTH * WIDTH, left = width - whole;
    const Ints inside = lanes < int(left);
    Floats peaks = all(-__builtin_inff());
    for (long at = 0; at < whole; at += WIDTH) {
        Floats v = fused(load<Floats>(scores + at), all(scale), mask ? load<Floats>(mask + at) : Floats{});
        if (bias) v += load<Floats>(bias + at);
        store(scores + at, v);
        peaks = larger(v, peaks);
    }
    if (left) {
        Floats v = fused(load<Floats>(scores + whole), all(scale), mask ? load_some(mask + whole, int(left)) : Floats{});
        if (bias) v += load_some(bias + whole, int(left));
        v = inside ? v : all(-__builtin_inff());
        store(scores + whole, v);
        peaks = larger(v, peaks);
    }
    const float peak = largest(peaks);
    Floats total = {};
    for (long at = 0; at < whole; at += WIDTH) {
        Floats weights = weights_of(load<Floats>(scores + at) - peak);
        store(scores + at, weights);
        total += weights;
    }
    if (left) {
        Floats weights = weights_of(load<Floats>(scores + whole) - peak);
        weights = inside ? weights : Floats{};
        store(scores + whole, weights);
        total += weights;
    }
    float sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += total[i];
    return sum;
}

// Rotates a token's head by the token's position. Each dimension is paired with the dimension half a head further on.
void rotate(const float *x, const float *cos, const float *sin, long dim, float *__restrict out) {
    for (long d = 0; d < dim / 2; d++) {
        const float low = x[d], high = x[d + dim / 2];
        out[d] = low * cos[d] - high * sin[d];
        out[d + dim / 2] = high * cos[d + dim / 2] + low * sin[d + dim / 2];
    }
}

// Writes the keys of all tokens to `keys`, [dim][columns], with zeros behind the last token. If keys are rotated, a
// block at a time is rotated in `rotated` first.
void turn_keys(const SelfAttention &a, long columns, float *keys, float *rotated) {
    for (long first = 0; first < columns; first += WIDTH) {
        const long inside = a.width - first;
        for (long i = 0; i < WIDTH && i < inside && a.cos; i++) {
            const long token = first + i;
            rotate(a.key + token * a.stride, a.cos + token * a.dim, a.sin + token * a.dim, a.dim, rotated + i * a.dim);
        }
        const float *block = a.cos ? rotated : a.key + first * a.stride;
        const long stride = a.cos ? a.dim : a.stride;
        for (long d = 0; d < a.dim; d += WIDTH) {
            Floats square[WIDTH];
            for (long i = 0; i < WIDTH; i++) square[i] = i < inside ? load<Floats>(block + i * stride + d) : Floats{};
            transpose(square);
            for (long i = 0; i < WIDTH; i++) store(keys + (d + i) * columns + first, square[i]);
        }
    }
}

// The range of buckets of the keys that are `nearest` to `farthest` tokens behind a query, widened to whole vectors.
struct Span {
    long first, columns;
};

Span span_of(const SelfAttention &a, long nearest, long farthest) {
    int32_t least = a.bucket[nearest], most = least;
    for (long n = nearest; n <= farthest; n++) {
        least = a.bucket[n] < least ? a.bucket[n] : least;
        most = a.bucket[n] > most ? a.bucket[n] : most;
    }
    const long columns = ((most - least) / WIDTH + 1) * WIDTH;
    return {least + columns > a.buckets ? a.buckets - columns : least, columns};
}

// Computes the terms that keys @ position queries add to the scores of a block: out [count][columns], for `count`
// queries from `query` on.
void score_position_queries(const SelfAttention &a, long query, long count, long columns, float *products, float *out) {
    for (long key = 0; key < a.width; key += SELF_ATTENTION_QUERIES) {
        const long rows = a.width - key < SELF_ATTENTION_QUERIES ? a.width - key : SELF_ATTENTION_QUERIES;
        const Span span = span_of(a, key - (query + count - 1), key + rows - 1 - query);
        multiply_all({a.key + key * a.stride, a.position_queries + span.first, products, a.stride, a.buckets, a.buckets, a.dim}, rows, span.columns);
        for (long i = 0; i < count; i++)
            for (long k = 0; k < rows; k++)
                out[i * columns + key + k] = products[k * a.buckets + a.bucket[key + k - query - i] - span.first];
    }
}

// Adds queries @ position keys, and the terms of the position queries (`others`), to the scores of `rows` queries from
// `query` on.
void add_positions(const SelfAttention &a, long query, long rows, long columns, float *products, const float *others, float *scores) {
    const Span span = span_of(a, -(query + rows - 1), a.width - 1 - query);
    multiply_all({a.query + query * a.stride, a.position_keys + span.first, products, a.stride, a.buckets, a.buckets, a.dim}, rows, span.columns);
    for (long i = 0; i < rows; i++) {
        const int32_t *bucket = a.bucket - query - i;
        const float *own = products + i * a.buckets - span.first;
        for (long key = 0; key < a.width; key++) scores[i * columns + key] += own[bucket[key]] + others[i * columns + key];
    }
}

void self_attend(const SelfAttention &a) {
    const long columns = self_attention_columns(a.width);
    float *keys = a.buffer, *scores = keys + a.dim * columns;
    float *queries = scores + SELF_ATTENTION_QUERIES * columns, *rotated = queries + SELF_ATTENTION_QUERIES * a.dim;
    float *products = rotated + WIDTH * a.dim, *others = products + SELF_ATTENTION_QUERIES * a.buckets;
    turn_keys(a, columns, keys, rotated);
    for (long token = 0; token < a.queries; token += SELF_ATTENTION_QUERIES) {
        const long rows = a.queries - token < SELF_ATTENTION_QUERIES ? a.queries - token : SELF_ATTENTION_QUERIES;
        const float *query = a.query + token * a.stride, *added[2];
        float sums[SELF_ATTENTION_QUERIES], *out = a.out + token * a.out_stride;
        for (long i = 0; i < rows && a.cos; i++)
            rotate(query + i * a.stride, a.cos + (token + i) * a.dim, a.sin + (token + i) * a.dim, a.dim, queries + i * a.dim);
        multiply_all({a.cos ? queries : query, keys, scores, a.cos ? a.dim : a.stride, columns, columns, a.dim}, rows, columns);
        if (a.bucket) {
            const long at = token % SELF_ATTENTION_BLOCK, left = a.queries - token;
            if (!at) score_position_queries(a, token, left < SELF_ATTENTION_BLOCK ? left : SELF_ATTENTION_BLOCK, columns, products, others);
            add_positions(a, token, rows, columns, products, others + at * columns, scores);
        }
        for (long i = 0; i < rows; i++) {
            for (int k = 0; k < 2; k++) added[k] = a.added[k] ? a.added[k] + (token + i) * a.added_stride[k] : nullptr;
            sums[i] = weigh(scores + i * columns, added[0], added[1], a.width, a.scale);
        }
        multiply_all({scores, a.value, out, columns, a.stride, a.out_stride, a.width}, rows, a.dim);
        for (long i = 0; i < rows; i++) {
            const float share = 1.0f / sums[i];
            for (long d = 0; d < a.dim; d += WIDTH) store(out + i * a.out_stride + d, load<Floats>(out + i * a.out_stride + d) * share);
        }
    }
}

}  // namespace
}  // namespace hfx
