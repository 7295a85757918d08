// From logits to scores, every bit as numpy 1.26 has it with AVX2 or AVX-512 in float32.
#pragma once
#include "../memory.h"

namespace hfx {

float exponential(float x);                      // np.exp
float sum(const float *values, size_t count);    // np.sum
float largest(const float *values, size_t count);  // np.max: NaN where there is one; `count` is at least 1

// Each in place, of one row.
void softmax(float *logits, size_t count);
void sigmoid(float *logits, size_t count);
// exp(logits) as shares of their sum in each of `rows` of `columns`; shifted by the largest only where that overflows.
[[nodiscard]] bool shares(float *logits, size_t rows, size_t columns);

// Places of scores, best first: np.argsort(-scores, kind="stable"), where NaN is last. `reversed`, what is the same but
// for NaN and equal scores: np.argsort(scores, kind="stable")[::-1].
[[nodiscard]] bool rank(const float *scores, size_t count, bool reversed, Array<uint32_t> &places);
// The first of the best; NaN is best: np.argmax.
size_t best(const float *scores, size_t count);

}  // namespace hfx
