#include "scores.h"

namespace hfx {
namespace {

constexpr float LARGEST_FLOAT = 3.402823466e38f;

bool is_finite(float x) { return x >= -LARGEST_FLOAT && x <= LARGEST_FLOAT; }

// a * b + c, rounded once, on any processor. The product is exact in double. If the sum is not exact and lies halfway
// between two floats, its last bit is changed to say which float is nearer (rounding to odd; Boldo and Melquiond,
// 2008).
float fused(float a, float b, float c) {
    double product = double(a) * double(b), sum = product + double(c);
    uint64_t bits;
    memcpy(&bits, &sum, 8);
    if ((bits & 0x1fffffff) == 0x10000000) {
        double other = sum - product, lost = (product - (sum - other)) + (double(c) - other);
        if (lost != 0) bits += (lost > 0) == (sum > 0) ? 1 : -1;
        memcpy(&sum, &bits, 8);
    }
    return float(sum);
}

double power_of_two(int exponent) {
    uint64_t bits = uint64_t(1023 + exponent) << 52;
    double power;
    memcpy(&power, &bits, 8);
    return power;
}

struct Scored {
    float score;
    uint32_t at;
};

// Compares by score, then by place, so that equal scores stay in their order; NaN is last.
int ascending(const void *a, const void *b) {
    const Scored &left = *static_cast<const Scored *>(a), &right = *static_cast<const Scored *>(b);
    bool left_nan = left.score != left.score, right_nan = right.score != right.score;
    if (left_nan != right_nan) return left_nan ? 1 : -1;
    if (left.score < right.score || left.score > right.score) return left.score < right.score ? -1 : 1;
    return left.at < right.at ? -1 : 1;
}

void divide(float *values, size_t count) {
    float whole = sum(values, count);
    for (size_t i = 0; i < count; i++) values[i] /= whole;
}

}  // namespace

// numpy's simd_exp_FLOAT (loops_exponent_log.dispatch.c.src, 1.26): Cody and Waite's reduction by ln 2, a rational
// minimax approximation of degrees 5 and 2.
float exponential(float x) {
    if (x != x) return __builtin_nanf("");
    if (x >= 88.72283935546875f) return __builtin_inff();
    if (x <= -103.97208404541015625f) return 0;
    constexpr float LOG2_E = 1.442695040f, ROUND = 0x1.8p+23f;
    constexpr float ABOVE[] = {6.757896990527504603057e-03f, 5.114512081637298353406e-02f, 2.473615434895520810817e-01f,
                               7.257664613233124478488e-01f, 9.999999999980870924916e-01f};
    float quadrant = x * LOG2_E + ROUND - ROUND;
    x = fused(quadrant, -6.93145752e-1f, x);
    x = fused(quadrant, -1.42860677e-6f, x);
    float above = 5.082762527590693718096e-04f;
    for (float factor : ABOVE) above = fused(above, x, factor);
    float below = fused(fused(2.159509375685829852307e-02f, x, -2.742335390411667452936e-01f), x, 1.0f);
    return float(double(above / below) * power_of_two(int(quadrant)));
}

// numpy's pairwise sum (loops_utils.h.src, 1.26).
float sum(const float *values, size_t count) {
    if (count < 8) {
        float all = 0;
        for (size_t i = 0; i < count; i++) all += values[i];
        return all;
    }
    if (count > 128) {
        size_t half = count / 2 - count / 2 % 8;
        return sum(values, half) + sum(values + half, count - half);
    }
    float part[8];
    memcpy(part, values, sizeof part);
    size_t at = 8;
    for (; at < count - count % 8; at += 8)
        for (size_t i = 0; i < 8; i++) part[i] += values[at + i];
    float all = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
    for (; at < count; at++) all += values[at];
    return all;
}

float largest(const float *values, size_t count) { return values[best(values, count)]; }

void softmax(float *logits, size_t count) {
    float most = largest(logits, count);
    for (size_t i = 0; i < count; i++) logits[i] = exponential(logits[i] - most);
    divide(logits, count);
}

void sigmoid(float *logits, size_t count) {
    for (size_t i = 0; i < count; i++) logits[i] = 1.0f / (1.0f + exponential(-logits[i]));
}

bool shares(float *logits, size_t rows, size_t columns) {
    Array<float> kept;
    if (!kept.append(logits, rows * columns)) return false;
    bool finite = true;
    for (float &each : kept) each = exponential(each);
    for (size_t row = 0; row < rows; row++) divide(kept.data() + row * columns, columns);
    for (float each : kept) finite = finite && is_finite(each);
    if (finite) memcpy(logits, kept.data(), rows * columns * sizeof(float));
    for (size_t row = 0; row < rows && !finite; row++) softmax(logits + row * columns, columns);
    return true;
}

bool rank(const float *scores, size_t count, bool reversed, Array<uint32_t> &places) {
    Array<Scored> order;
    if (!order.reserve(count) || !places.resize(count)) return false;
    for (size_t i = 0; i < count; i++)
        if (!order.push({reversed ? scores[i] : -scores[i], uint32_t(i)})) return false;
    if (count) qsort(order.data(), count, sizeof(Scored), ascending);
    for (size_t i = 0; i < count; i++) places[i] = order[reversed ? count - 1 - i : i].at;
    return true;
}

size_t best(const float *scores, size_t count) {
    size_t found = 0;
    for (size_t i = 0; i < count && scores[found] == scores[found]; i++)
        if (!(scores[i] <= scores[found])) found = i;
    return found;
}

}  // namespace hfx
