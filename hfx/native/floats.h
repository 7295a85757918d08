// Float kernels: the computations between the integer products. All kernels give the same bits.
#pragma once
#include "attention.h"
#include "self_attention.h"

namespace hfx {

enum class NormKind { layer, rms, unit };

// layer: (x - mean) / sqrt(variance + epsilon) * weight + bias; rms: x / sqrt(mean of squares + epsilon) * weight;
// unit: x / max(length of x, epsilon).
struct Norm {
    NormKind kind;
    long width;
    float epsilon;
    const float *weight, *bias;  // [width], or null where the kind has none
};

constexpr int MOST_DOT_ROWS = 4, MOST_DOTS = 16;

// The dot products of `rows` rows of `x` with `count` rows of `others`, [count][depth], go to `out`, [rows][MOST_DOTS].
// `others` are float32 or int8.
struct Dots {
    const float *x;
    const void *others;
    long x_stride, depth;
    int rows, count;
    float *out;
    Stored stored = Stored::float32;
};

constexpr int MOST_PANEL_ROWS = 6, PANEL = 64;

// The products of `rows` rows of `x` with the weights of PANEL outputs, [PANEL / 16][depth][16], go to `out`,
// [rows][PANEL]. Each sum is computed from the first input to the last. `places` has the number of each row in `x`, or
// is null.
struct Panels {
    const float *x, *weights;
    const int32_t *places;
    long depth;
    int rows;
    float *out;
};

// Numbers below 2^-55 count as 0 in bfloat16: sums of products are then multiples of 2^-124, so that none is subnormal.
// vdpbf16ps makes zeros of subnormal numbers.
constexpr uint32_t LEAST_ROUNDED = (127u - 55) << 23;  // the bits of 2^-55

// y = activation(sums + bias) + residual. `places` has the number of each row in y and in the residual, or is null.
struct Finish {
    const float *sums, *bias, *residual;  // [rows][sums_stride]; [columns]; as y, or null
    float *y;                             // [rows][columns], in rows of `stride` numbers
    const int32_t *places;
    long sums_stride, stride, columns;
    int rows;
    Activation activation;
};

constexpr int MOST_LOW_RANK_ROWS = 12;
constexpr long MOST_LOW_RANK = 256;

// y = activation((base + residual) + (x @ a^T) @ b) of `rows` rows. Each number of x @ a^T is a sum over the inputs in 16
// lanes, and each of the product with b a sum from the first rank to the last. Without ranks nothing is added. `a` and
// `b` are float32 or int8. If there are `scales`, the numbers of x @ a^T are multiplied by them.
struct LowRank {
    const float *x;                 // [rows][depth]
    Stored stored;
    const void *a, *b;              // [rank][depth] and [rank][width]
    const float *scales;            // [rank], or null
    const float *base, *residual;   // [rows][width], in rows of `stride` numbers, as y; the residual may be null
    float *y;
    long depth, rank, width, stride;
    int rows;
    Activation activation;
};

struct FloatKernels {
    void (*attend)(const Attention &);
    // Converts `count` numbers to float16, rounded to nearest even; numbers beyond its range are clamped to it.
    void (*to_float16)(const float *from, long count, void *to);
    void (*self_attend)(const SelfAttention &);
    void (*norm)(const Norm &, const float *x, float *y);
    void (*dots)(const Dots &);
    void (*panels)(const Panels &);
    // Rounds `count` numbers to bfloat16, to nearest even. In pairs, the first number of two has the higher bits, and an
    // odd last number is followed by 0; otherwise they stay float32.
    void (*to_bfloat16)(const float *from, long count, bool in_pairs, void *to);
    void (*finish)(const Finish &);  // reads whole vectors of the sums
    // The sum of `count` rows [width], each times its weight.
    void (*weighted_sum)(const float *weights, const float *rows, long count, long width, float *y);
    void (*log_softmax)(const float *x, long width, float *y);
    // The index of the best score whose bit is set: the first among equals, or a NaN. -1 if all are minus infinity.
    long (*best_allowed)(const float *scores, const uint8_t *allowed, long count);
    // Sets the scores whose bit is not set to minus infinity.
    void (*forbid)(float *scores, const uint8_t *allowed, long count);
    void (*low_rank)(const LowRank &);
    // panels() for pairs of bfloat16, each in place of a number; null if no kernel has an instruction for it. Sums equal
    // those of panels() with the rounded numbers in every bit.
    void (*pairs)(const Panels &) = nullptr;
};

}  // namespace hfx
