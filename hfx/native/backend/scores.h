// Turns logits into scores, equal in every bit to those of numpy 1.26 with AVX2 or AVX-512 in float32.
#pragma once
#include "../memory.h"

namespace hfx {

float exponential(float x);                      // np.exp
float sum(const float *values, size_t count);    // np.sum
float largest(const float *values, size_t count);  // np.max: NaN if there is one; `count` is at least 1

// Each works in place, on one row.
void softmax(float *logits, size_t count);
void sigmoid(float *logits, size_t count);
// Replaces each logit by exp(logit), divided by the sum of these over the row; there are `rows` rows of `columns`
// logits. The largest logit of a row is subtracted first only if exp overflows. Returns false if there is no memory.
[[nodiscard]] bool shares(float *logits, size_t rows, size_t columns);

// Sets `places` to the places of scores, best first: np.argsort(-scores, kind="stable"), where NaN is last. If
// `reversed`, np.argsort(scores, kind="stable")[::-1], which differs only for NaN and equal scores.
[[nodiscard]] bool rank(const float *scores, size_t count, bool reversed, Array<uint32_t> &places);
// The place of the best score, the first among equals, where NaN is best: np.argmax.
size_t best(const float *scores, size_t count);

}  // namespace hfx
