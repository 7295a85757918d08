// Kernels of floats: what lies between the products of integers. Those of AVX2 and of AVX-512 give the same bits.
#pragma once
#include "attention.h"
#include "self_attention.h"

namespace hfx {

enum class NormKind { layer, rms, unit };

// layer: (x - mean) / sqrt(variance + epsilon) * weight + bias; rms: x / sqrt(mean of squares + epsilon) * weight;
// unit: x / its length, which counts as epsilon where it is smaller.
struct Norm {
    NormKind kind;
    long width;
    float epsilon;
    const float *weight, *bias;  // [width], or null where the kind has none
};

constexpr int MOST_DOT_ROWS = 4, MOST_DOTS = 16;

// Products of `rows` rows with `count` others, [count][depth]: out [rows][MOST_DOTS].
struct Dots {
    const float *x, *others;
    long x_stride, depth;
    int rows, count;
    float *out;
};

struct FloatKernels {
    void (*attend)(const Attention &);
    // `count` numbers as float16, rounded to nearest even; those that are too large become its largest.
    void (*to_float16)(const float *from, long count, void *to);
    void (*self_attend)(const SelfAttention &);
    void (*norm)(const Norm &, const float *x, float *y);
    void (*dots)(const Dots &);
    // The sum of `count` rows [width], each times its weight.
    void (*weighted_sum)(const float *weights, const float *rows, long count, long width, float *y);
    void (*log_softmax)(const float *x, long width, float *y);
    // The best of the scores whose bit is set, the first of equals, or one that is NaN; -1: all are minus infinity.
    long (*best_allowed)(const float *scores, const uint8_t *allowed, long count);
    // Makes the scores whose bit is not set minus infinity.
    void (*forbid)(float *scores, const uint8_t *allowed, long count);
};
extern const FloatKernels FLOATS_AVX, FLOATS_AVX512;

}  // namespace hfx
