// The vector registers of aarch64: 32 of 128 bits. A vector of 16 floats takes four.
#pragma once
#include "vectors.h"

namespace hfx {
namespace {

constexpr int MIDDLE = 0;  // the byte of 0 in a quantized row: instructions multiply s8 by s8

// The sums of 6 rows x 16 columns take 24 registers. In dot products, the sums of 2 rows x 2 ranks take 16.
constexpr int SUM_ROWS = 6, SUM_VECTORS = 1, DOT_ROWS = 2, DOT_RANKS = 2;

}  // namespace
}  // namespace hfx
