// Sixteen floats at a time: the numbers of registers.h, and the functions that all processors compute in the same way.
//
// Every processor executes the same operations in the same order, and multiply-adds are fused only where the code says
// so. Results are therefore equal in every bit, whichever kernel computes them. Each file that includes this header has
// functions of its own, compiled for its processor.
#pragma once
#include "registers.h"

namespace hfx {
namespace {

// Load or store the vector of which `left` numbers are left in a row; more than 16 may be left.
inline void store_part(float *to, Floats value, long left) {
    if (left >= WIDTH) store(to, value);
    else store_some(to, value, int(left));
}
template <typename Number> inline Floats load_part(const Number *from, long left) { return left >= WIDTH ? widened(from) : load_some(from, int(left)); }

// Calls `work` with `rows` and `vectors` as constants: Rows of 1 to `R`, Vectors of 1 to `V`.
template <int N> struct Constant {
    static constexpr int value = N;
};
template <int R = SUM_ROWS, int V = SUM_VECTORS, typename Work> inline void with_sizes(long rows, long vectors, Work work) {
    if constexpr (R > 1)
        if (rows < R) return with_sizes<R - 1, V>(rows, vectors, work);
    if constexpr (V > 1)
        if (vectors < V) return with_sizes<R, V - 1>(rows, vectors, work);
    work(Constant<R>(), Constant<V>());
}

inline Floats all(float value) { return Floats{value, value, value, value, value, value, value, value, value, value, value, value, value, value, value, value}; }
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
// The largest lane, if none is NaN.
inline float largest(Floats x) {
    x = larger(x, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    x = larger(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3));
    x = larger(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1));
    return x[0] > x[1] ? x[0] : x[1];
}

// Turns rows into columns, in four rounds. Each round interleaves rows i and i + 8 into rows 2 i and 2 i + 1.
inline void transpose(Floats *square) {
    for (int round = 0; round < 4; round++) {
        Floats before[WIDTH];
        for (int i = 0; i < WIDTH; i++) before[i] = square[i];
        for (int i = 0; i < WIDTH / 2; i++) {
            Floats a = before[i], b = before[i + WIDTH / 2];
            square[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            square[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
    }
}

// 1.5 * 2^23. A float of at most 2^22 plus this number has the float's integer, rounded to nearest even, in its low
// bits.
constexpr float ROUNDER = 12582912.0f;

// 2^t with a relative error of 2e-7; the polynomial is the series of 2^f itself for |f| <= 0.5. t is limited to +-126.
inline Floats power_of_two(Floats t) {
    t = smaller(larger(t, all(-126.0f)), all(126.0f));
    Floats shifted = t + ROUNDER, f = t - (shifted - ROUNDER);
    Floats p = fused(f, all(1.5403530e-4f), all(1.3333558e-3f));
    p = fused(p, f, all(9.6181291e-3f));
    p = fused(p, f, all(5.5504109e-2f));
    p = fused(p, f, all(2.4022651e-1f));
    p = fused(p, f, all(6.9314718e-1f));
    p = fused(p, f, all(1.0f));
    Bits exponent = (Bits)shifted << 23;  // the integer's low bits; the higher bits are shifted out
    return (Floats)((Bits)p + exponent);
}

constexpr float LOG2_E = 1.44269504f;
inline Floats exponential(Floats x) { return power_of_two(x * LOG2_E); }
inline Floats times_sigmoid(Floats x, Floats z) { return x / (exponential(-z) + 1.0f); }

// x * Phi(x), with an error of at most 1.2e-7 times |x|. For |x| <= 5.25, erf(x / sqrt(2)) is x times a polynomial of
// x * x, which is fitted to minimize the largest error; for larger |x|, it is +-1 as a float32.
inline Floats gelu(Floats x) {
    const Floats low = larger(all(-5.25f), x), inside = smaller(all(5.25f), low);  // NaN stays NaN
    const Floats s = fused(inside * inside, all(0.07256236f), all(-1.0f));         // -1 to 1
    Floats p = fused(s, all(4.79900220e-4f), all(-1.31316762e-3f));
    constexpr float MORE[] = {1.32946449e-3f, -2.07906938e-3f, 5.78472251e-3f, -1.08970394e-2f, 1.68357417e-2f, -2.55505014e-2f, 3.70772965e-2f,
                              -5.00838645e-2f, 6.40628785e-2f, -7.95268267e-2f, 9.92915705e-2f, -1.34253636e-1f, 2.69318700e-1f};
    for (float each : MORE) p = fused(p, s, all(each));
    const Floats half = low * 0.5f;
    return fused(p * inside, half, half);
}

template <Activation A> inline Floats activate(Floats x) {
    if constexpr (A == Activation::relu) return x <= 0.0f ? Floats{} : x;  // NaN stays NaN
    if constexpr (A == Activation::gelu) return gelu(x);
    if constexpr (A == Activation::gelu_tanh) return times_sigmoid(x, (x * x * 0.044715f + 1.0f) * x * 1.59576912f);
    if constexpr (A == Activation::quick_gelu) return times_sigmoid(x, x * 1.702f);
    if constexpr (A == Activation::silu) return times_sigmoid(x, x);
    if constexpr (A == Activation::tanh) return x == x ? 1.0f - 2.0f / (exponential(x * 2.0f) + 1.0f) : x;
    return x;
}

// Calls `work` with the activation as a constant.
template <Activation A> struct Active {
    static constexpr Activation value = A;
};
template <typename Work> inline void with_activation(Activation activation, Work work) {
    switch (activation) {
    case Activation::none: return work(Active<Activation::none>());
    case Activation::relu: return work(Active<Activation::relu>());
    case Activation::gelu: return work(Active<Activation::gelu>());
    case Activation::gelu_tanh: return work(Active<Activation::gelu_tanh>());
    case Activation::quick_gelu: return work(Active<Activation::quick_gelu>());
    case Activation::silu: return work(Active<Activation::silu>());
    case Activation::tanh: return work(Active<Activation::tanh>());
    }
}

}  // namespace
}  // namespace hfx
