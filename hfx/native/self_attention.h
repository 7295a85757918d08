// An encoder's attention: all tokens of a text attend to each other, in one head.
//
// The scores of a few queries with all keys are stored in a buffer. The products queries @ keys and weights @ values
// are summed in the order of dimensions and of keys, so that a query's result does not depend on the queries
// beside it.
#pragma once
#include "linear.h"

namespace hfx {

struct SelfAttention {
    const float *query, *key, *value;  // [queries or width][dim], `stride` floats from one token to the next
    const float *added[2];             // added to scaled scores, [width]; a query's is `added_stride` on; or null
    const float *cos, *sin;            // rotate queries and keys, [width][dim]; or null
    // Keys and queries of relative positions, [dim][buckets], or null. A token's queries are multiplied by the position
    // keys, and its keys by the position queries. bucket[n] is the bucket of a key that is n tokens behind a query.
    const float *position_keys, *position_queries;
    const int32_t *bucket;
    float *out;                        // [queries][dim], `out_stride` floats from one token to the next
    float *buffer;                     // self_attention_buffer(width, dim, buckets) floats
    long queries, width, dim, stride, out_stride, added_stride[2], buckets;  // queries: those of the first tokens
    float scale;
};

constexpr long SELF_ATTENTION_QUERIES = 6, SELF_ATTENTION_STEP = 16;  // dim is a multiple of the step
inline long self_attention_columns(long width) { return (width + SELF_ATTENTION_STEP - 1) / SELF_ATTENTION_STEP * SELF_ATTENTION_STEP; }
// The number of queries for which keys are multiplied by position queries at once. A larger block takes more memory;
// with a smaller block, more products are computed in vain.
constexpr long SELF_ATTENTION_BLOCK = 32 * SELF_ATTENTION_QUERIES;
// The buffer holds the keys by dimension, the scores of a few queries, and these queries and a block of keys when they
// are rotated; with positions, also the products of a few tokens, and the terms of the position queries for a block.
inline long self_attention_buffer(long width, long dim, long buckets) {
    const long columns = self_attention_columns(width), block = width < SELF_ATTENTION_BLOCK ? width : SELF_ATTENTION_BLOCK;
    const long of_positions = buckets ? SELF_ATTENTION_QUERIES * buckets + block * columns : 0;
    return (dim + SELF_ATTENTION_QUERIES) * columns + (SELF_ATTENTION_QUERIES + SELF_ATTENTION_STEP) * dim + of_positions;
}

}  // namespace hfx
