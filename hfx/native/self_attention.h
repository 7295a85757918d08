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
    float *out;                        // [width][dim], `out_stride` floats from one token to the next
    float *buffer;                     // self_attention_buffer(width, dim) floats
    long width, dim, stride, out_stride, added_stride[2];
    float scale;
};

constexpr long SELF_ATTENTION_QUERIES = 6, SELF_ATTENTION_STEP = 16;  // dim is a multiple of the step
inline long self_attention_columns(long width) { return (width + SELF_ATTENTION_STEP - 1) / SELF_ATTENTION_STEP * SELF_ATTENTION_STEP; }
// Keys by dimension, scores of a few queries, and those and a key when they are rotated.
inline long self_attention_buffer(long width, long dim) {
    return (dim + SELF_ATTENTION_QUERIES) * self_attention_columns(width) + (SELF_ATTENTION_QUERIES + 1) * dim;
}

void self_attend_avx512(const SelfAttention &);
void self_attend_avx(const SelfAttention &);

}  // namespace hfx
