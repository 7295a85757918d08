// Sixteen floats at a time, in the compiler's own vectors: one AVX-512 register, two of AVX2, four of NEON.
#pragma once
#include "linear.h"
#include <string.h>

namespace hfx {
namespace {

constexpr int WIDTH = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(16)));
typedef int8_t SmallInts __attribute__((vector_size(16)));

template <typename Vector, typename Number> inline Vector load(const Number *from) {
    Vector value;
    memcpy(&value, from, sizeof value);
    return value;
}
template <typename Vector, typename Number> inline void store(Number *to, Vector value) { memcpy(to, &value, sizeof value); }
// A vector of numbers that are stored in another type, converted to floats.
template <typename Number> inline Floats widened(const Number *from) {
    typedef Number Numbers __attribute__((vector_size(WIDTH * sizeof(Number))));
    return __builtin_convertvector(load<Numbers>(from), Floats);
}
// Load or store the first `count` numbers of a vector, for the ends of rows. Memory behind them is not touched.
// registers.h has other versions for processors with masked loads.
template <typename Number> inline Floats load_some(const Number *from, int count) {
    typedef Number Numbers __attribute__((vector_size(WIDTH * sizeof(Number))));
    Numbers value = {};
    memcpy(&value, from, size_t(count) * sizeof(Number));
    return __builtin_convertvector(value, Floats);
}
template <typename Number> inline void store_some(Number *to, Floats value, int count) {
    memcpy(to, &value, size_t(count) * sizeof(Number));
}

}  // namespace
}  // namespace hfx
