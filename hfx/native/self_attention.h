// Attention of all tokens of a text to each other, for one head: an encoder's.
//
// Scores of a few queries to all keys stand in a buffer, and take part in two products whose sums go in the order of
// dimensions and of keys: what a query gets does not depend on the queries beside it.
#pragma once
#include "linear.h"

namespace hfx {

struct SelfAttention {
    const float *query, *key, *value;  // [width][dim], `stride` floats from one token to the next
    const float *added[2];             // to the scaled scores; [width], that of the next query `added_stride` on; or null
    const float *cos, *sin;            // by which queries and keys are rotated, [width][dim]; or null
    // Keys and queries of relative positions, [dim][buckets]: a token's queries are multiplied by the former, its keys by the
    // latter; and the bucket of a key that stands n tokens behind a query, bucket[n]. Or null.
    const float *position_keys, *position_queries;
    const int32_t *bucket;
    float *out;                        // [width][dim], `out_stride` floats from one token to the next
    float *buffer;                     // self_attention_buffer(width, dim, buckets) floats
    long width, dim, stride, out_stride, added_stride[2], buckets;
    float scale;
};

constexpr long SELF_ATTENTION_QUERIES = 6, SELF_ATTENTION_STEP = 16;  // dim is a multiple of the step
inline long self_attention_columns(long width) { return (width + SELF_ATTENTION_STEP - 1) / SELF_ATTENTION_STEP * SELF_ATTENTION_STEP; }
// Queries for which keys are multiplied by position queries at once: more take memory, with fewer products are made in vain.
constexpr long SELF_ATTENTION_BLOCK = 32 * SELF_ATTENTION_QUERIES;
// Keys by dimension, scores of a few queries, and those and a block of keys when they are rotated; with positions, products
// of a few tokens, and what position queries add to the scores of a block.
inline long self_attention_buffer(long width, long dim, long buckets) {
    const long columns = self_attention_columns(width), block = width < SELF_ATTENTION_BLOCK ? width : SELF_ATTENTION_BLOCK;
    const long of_positions = buckets ? SELF_ATTENTION_QUERIES * buckets + block * columns : 0;
    return (dim + SELF_ATTENTION_QUERIES) * columns + (SELF_ATTENTION_QUERIES + SELF_ATTENTION_STEP) * dim + of_positions;
}

}  // namespace hfx
