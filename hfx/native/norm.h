// Norms, small products and log-softmax in the vectors of one kind of processor; one .cpp file for each kind includes
// this file.
//
// Sums are computed in 64 lanes, element i in lane i % 64. The lanes are then added up in a fixed order.
#pragma once
#include "attend_many.h"
#include "floats.h"
#include "low_rank.h"
#include "masked.h"
#include "self_attend.h"

namespace hfx {
namespace {

constexpr long LANES = 4 * WIDTH;

// Calls each(vector, index of its first number, which of 4 sums) for a row's vectors from front to end. The last vector
// has zeros behind the row's last number.
template <typename Each> inline void each_vector(const float *x, long width, Each each) {
    long at = 0;
    for (; at + LANES <= width; at += LANES)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) each(load<Floats>(x + at + i * WIDTH), at + i * WIDTH, i);
    for (int i = 0; at < width; at += WIDTH, i++)
        each(width - at < WIDTH ? load_some(x + at, int(width - at)) : load<Floats>(x + at), at, i);
}

// `v` with zeros behind its first `left` numbers.
inline Floats only(Floats v, long left) {
    const Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return left >= WIDTH ? v : lanes < int(left) ? v : Floats{};
}
inline float sum_of(const Floats sums[4]) { return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3])); }
inline float root(float x) { return __builtin_sqrtf(x); }

inline float sum_of_row(const float *x, long width) {
    Floats sums[4] = {};
    each_vector(x, width, [&](Floats v, long, int i) { sums[i] += v; });
    return sum_of(sums);
}

// The sum of (x - mean)^2.
inline float sum_of_squares(const float *x, long width, float mean) {
    Floats sums[4] = {};
    each_vector(x, width, [&](Floats v, long at, int i) {
        const Floats d = only(v - mean, width - at);
        sums[i] = fused(d, d, sums[i]);
    });
    return sum_of(sums);
}

void normalize(const Norm &n, const float *x, float *y) {
    const float mean = n.kind == NormKind::layer ? sum_of_row(x, n.width) / float(n.width) : 0.0f;
    const float squares = sum_of_squares(x, n.width, mean);
    if (n.kind == NormKind::unit) {
        const float length = root(squares), divisor = length < n.epsilon ? n.epsilon : length;
        return each_vector(x, n.width, [&](Floats v, long at, int) { store_part(y + at, v / divisor, n.width - at); });
    }
    const float factor = 1.0f / root(squares / float(n.width) + n.epsilon);
    each_vector(x, n.width, [&](Floats v, long at, int) {
        const Floats normed = (v - mean) * factor, weight = load_part(n.weight + at, n.width - at);
        store_part(y + at, n.bias ? fused(normed, weight, load_part(n.bias + at, n.width - at)) : normed * weight, n.width - at);
    });
}

template <typename Weight, int Rows> void multiply_dots(const Dots &d) {
    constexpr int AT_ONCE = Rows > 1 ? DOT_RANKS : FOLD;  // a single row waits for memory, which four rows of others read faster
    for (int first = 0; first < d.count; first += AT_ONCE) {
        Floats sums[Rows][AT_ONCE] = {};
        const Weight *other[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) other[i] = static_cast<const Weight *>(d.others) + (first + i < d.count ? first + i : d.count - 1) * d.depth;
        for (long k = 0; k < d.depth; k += WIDTH) {
            const long left = d.depth - k;
            Floats columns[AT_ONCE];
#pragma GCC unroll 4
            for (int i = 0; i < AT_ONCE; i++) columns[i] = load_part(other[i] + k, left);
#pragma GCC unroll 4
            for (int row = 0; row < Rows; row++) {
                const Floats v = load_part(d.x + row * d.x_stride + k, left);
#pragma GCC unroll 4
                for (int i = 0; i < AT_ONCE; i++) sums[row][i] = fused(v, columns[i], sums[row][i]);
            }
        }
        for (int row = 0; row < Rows; row++)
            for (int i = 0; i < AT_ONCE && first + i < d.count; i++) d.out[row * MOST_DOTS + first + i] = sum_of(sums[row][i]);
    }
}

template <typename Weight> void dots_with(const Dots &d) {
    for (Dots some = d; some.rows > 0; some.x += DOT_ROWS * d.x_stride, some.out += DOT_ROWS * MOST_DOTS, some.rows -= DOT_ROWS)
        with_sizes<DOT_ROWS, 1>(some.rows, 1, [&](auto rows, auto) { multiply_dots<Weight, rows.value>(some); });
}

void dots(const Dots &d) { return d.stored == Stored::int8 ? dots_with<int8_t>(d) : dots_with<float>(d); }

void panels(const Panels &p) { multiply_panels<Numbers>(p); }

inline uint32_t rounded(const float *x) {
    uint32_t bits;
    memcpy(&bits, x, sizeof bits);
    const uint32_t size = bits & 0x7fffffffu, nearest = (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
    return size < LEAST_ROUNDED ? 0 : size > 0x7f800000u ? 0x7fc00000u : nearest;
}

void to_bfloat16(const float *from, long count, bool in_pairs, void *to) {
    uint32_t *out = static_cast<uint32_t *>(to);
    if (!in_pairs)
        for (long i = 0; i < count; i++) out[i] = rounded(from + i);
    else
        for (long i = 0; i < count / 2; i++) out[i] = rounded(from + 2 * i) | rounded(from + 2 * i + 1) >> 16;
    if (in_pairs && count % 2) out[count / 2] = rounded(from + count - 1);
}

void finish(const Finish &f) {
    with_activation(f.activation, [&](auto activation) {
        for (long row = 0; row < f.rows; row++) {
            const long place = (f.places ? f.places[row] : row) * f.stride;
            for (long at = 0; at < f.columns; at += WIDTH) {
                const long left = f.columns - at;
                Floats v = activate<activation.value>(load<Floats>(f.sums + row * f.sums_stride + at) + load_part(f.bias + at, left));
                if (f.residual) v += load_part(f.residual + place + at, left);
                store_part(f.y + place + at, v, left);
            }
        }
    });
}

void weighted_sum(const float *weights, const float *rows, long count, long width, float *y) {
    for (long at = 0; at < width; at += LANES) {
        Floats sums[4] = {};
        for (long row = 0; row < count; row++) {
            const long left = width - at < LANES ? width - at : LANES;
            each_vector(rows + row * width + at, left, [&](Floats v, long, int i) { sums[i] = fused(v, all(weights[row]), sums[i]); });
        }
        for (int i = 0; i < 4 && at + i * WIDTH < width; i++) store_part(y + at + i * WIDTH, sums[i], width - at - i * WIDTH);
    }
}

// The logarithm of a number of at least 1, in float64: exponent * ln 2 + 2 * artanh((m - 1) / (m + 1)), where the
// fraction m is from 0.7 to 1.4.
inline double logarithm(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (bits >= 0x7f800000u) return x;  // infinite or NaN
    const int32_t exponent = int32_t(bits - 0x3f3504f3u) >> 23;
    bits -= uint32_t(exponent) << 23;
    memcpy(&x, &bits, sizeof x);
    const double s = (double(x) - 1) / (double(x) + 1), t = s * s;
    double sum = 1.0 / 17;
    for (int power = 15; power > 0; power -= 2) sum = sum * t + 1.0 / power;
    return exponent * 0.69314718055994531 + 2 * s * sum;
}

void log_softmax(const float *x, long width, float *y) {
    Floats peaks = all(-__builtin_inff()), sums[4] = {};
    each_vector(x, width, [&](Floats v, long at, int) {
        if (width - at >= WIDTH) peaks = larger(v, peaks);
    });
    float peak = largest(peaks);
    for (long i = width / WIDTH * WIDTH; i < width; i++) peak = x[i] > peak ? x[i] : peak;
    each_vector(x, width, [&](Floats v, long at, int i) {
        Floats power = exponential(v - peak);
        power = v == v ? power : v;  // NaN
        sums[i] += only(power, width - at);
    });
    const float shift = float(logarithm(sum_of(sums)));
    each_vector(x, width, [&](Floats v, long at, int) { store_part(y + at, v - peak - shift, width - at); });
}

constexpr FloatKernels FLOATS = {attend, to_float16, self_attend, normalize, dots, panels, to_bfloat16, finish, weighted_sum, log_softmax, best_allowed, forbid, low_rank};

}  // namespace
}  // namespace hfx
