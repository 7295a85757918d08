// Attention of queries to one head's keys and values.
//
// Keys and values are [positions][dim], in float32 or float16, or in int8 with a scale for each channel. Scores are
// stored for CHUNK positions at a time only, and the softmax of a chunk is merged with that of the chunks before it. A
// query's result does not depend on the queries beside it: chunks begin at fixed positions, and sums are added in the
// order of positions. Positions before all windows are not read.
#pragma once
#include "linear.h"

namespace hfx {

constexpr long LARGEST_HEAD = 256, CHUNK = 256;
constexpr int FEW_QUERIES = 4, MOST_QUERIES = 96;

enum class Stored { float32, float16, int8 };
inline size_t bytes_of(Stored stored) { return stored == Stored::float32 ? 4 : stored == Stored::float16 ? 2 : 1; }

struct Attention {
    const float *queries[MOST_QUERIES];  // [dim]
    float *out[MOST_QUERIES];            // [dim]
    long lengths[MOST_QUERIES];          // the end of the positions that each query attends to
    long firsts[MOST_QUERIES];           // the first of these positions, before the end; 0 without a window
    const float *bias[MOST_QUERIES];     // [positions], or null
    int count;
    Stored stored;
    const void *keys, *values;
    const void *next_keys, *next_values;  // those of the next attention, to prefetch meanwhile; or null
    const float *key_scale, *value_scale;  // [dim] for int8
    long dim;
    float scale;
};

}  // namespace hfx
