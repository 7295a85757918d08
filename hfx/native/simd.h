// Sixteen floats at a time, in the compiler's own vectors: one AVX-512 register, or two of AVX2.
//
// The same operations in the same order on every processor, multiply-adds fused where it says so, so that results are
// equal in every bit whichever kernel made them. Each file that includes it has functions of its own, compiled for its processor.
#pragma once
#include "linear.h"
#if defined(__AVX512F__) && !defined(HFX_EMULATED_TILES)  // whose names that header has too
#include <immintrin.h>
#endif
#include <string.h>

namespace hfx {
namespace {

constexpr int WIDTH = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(16)));

template <typename Vector, typename Number> inline Vector load(const Number *from) {
    Vector value;
    memcpy(&value, from, sizeof value);
    return value;
}
template <typename Vector, typename Number> inline void store(Number *to, Vector value) { memcpy(to, &value, sizeof value); }
// The first `count` of a vector, for ends of rows; what lies beyond is not touched.
#if defined(__AVX512F__) && !defined(HFX_EMULATED_TILES)  // whose names that header has too
inline __mmask16 first(int count) { return __mmask16((1u << count) - 1); }
inline Floats load_some(const float *from, int count) { return (Floats)_mm512_maskz_loadu_ps(first(count), from); }
inline void store_some(float *to, Floats value, int count) { _mm512_mask_storeu_ps(to, first(count), (__m512)value); }
#else
inline Floats load_some(const float *from, int count) {
    Floats value = {};
    memcpy(&value, from, size_t(count) * sizeof(float));
    return value;
}
inline void store_some(float *to, Floats value, int count) { memcpy(to, &value, size_t(count) * sizeof(float)); }
#endif

inline Floats all(float value) { return Floats{} + value; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline Floats smaller(Floats a, Floats b) { return a < b ? a : b; }
inline Floats magnitude(Floats x) { return (Floats)((Bits)x & 0x7fffffffu); }
inline Floats as_floats(Ints x) { return __builtin_convertvector(x, Floats); }
inline Floats fused(Floats a, Floats b, Floats c) {  // a * b + c
#ifdef __clang__
    return __builtin_elementwise_fma(a, b, c);
#else
    Floats sum;
    for (int i = 0; i < WIDTH; i++) sum[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return sum;
#endif
}
inline float largest(Floats x) {
    float best = x[0];
    for (int i = 1; i < WIDTH; i++) best = x[i] > best ? x[i] : best;
    return best;
}

// 1.5 * 2^23: a float of at most 2^22 plus this has its integer, rounded to nearest even, in its low bits.
constexpr float ROUNDER = 12582912.0f;

// 2^t; relative error 2e-7 (the polynomial is 2^f's own series for |f| <= 0.5). t beyond +-126 counts as that.
inline Floats power_of_two(Floats t) {
    t = smaller(larger(t, all(-126.0f)), all(126.0f));
    Floats shifted = t + ROUNDER, f = t - (shifted - ROUNDER);
    Floats p = fused(f, all(1.5403530e-4f), all(1.3333558e-3f));
    p = fused(p, f, all(9.6181291e-3f));
    p = fused(p, f, all(5.5504109e-2f));
    p = fused(p, f, all(2.4022651e-1f));
    p = fused(p, f, all(6.9314718e-1f));
    p = fused(p, f, all(1.0f));
    Bits exponent = (Bits)shifted << 23;  // the integer's low bits; those above them leave at the left
    return (Floats)((Bits)p + exponent);
}

constexpr float LOG2_E = 1.44269504f;
inline Floats exponential(Floats x) { return power_of_two(x * LOG2_E); }
inline Floats times_sigmoid(Floats x, Floats z) { return x / (exponential(-z) + 1.0f); }

// x * Phi(x). The complementary error function is Abramowitz and Stegun's 7.1.26, off by at most 1.5e-7.
inline Floats gelu(Floats x) {
    Floats z = magnitude(x) * 0.70710678f, t = 1.0f / (z * 0.3275911f + 1.0f);
    Floats p = fused(t, all(1.061405429f), all(-1.453152027f));
    p = fused(p, t, all(1.421413741f));
    p = fused(p, t, all(-0.284496736f));
    p = fused(p, t, all(0.254829592f));
    Floats tail = x * 0.5f * (p * t * exponential(-z * z));
    return x < 0.0f ? tail : x - tail;
}

template <Activation A> inline Floats activate(Floats x) {
    if constexpr (A == Activation::relu) return x <= 0.0f ? Floats{} : x;  // NaN stays NaN
    if constexpr (A == Activation::gelu) return gelu(x);
    if constexpr (A == Activation::gelu_tanh) return times_sigmoid(x, (x * x * 0.044715f + 1.0f) * x * 1.59576912f);
    if constexpr (A == Activation::quick_gelu) return times_sigmoid(x, x * 1.702f);
    if constexpr (A == Activation::silu) return times_sigmoid(x, x);
    return x;
}

}  // namespace
}  // namespace hfx
