// Products of float rows and weights in int8 or int4, as each processor's kernels compute them.
//
//     y = activation(quantized(x) @ w * column_scale * row_scale + bias) + residual
//
// A row of x is quantized by its own peak, so that its result is the same in any batch: to u8 around 128 on x86-64, to
// s8 on aarch64. Integer sums are exact. The offset of 128 adds 128 times a column's sum of weights to a sum; sums start
// at minus that value.
//
// Weights lie in panels of 64 columns, [panels][depth / 4][64][4]: four weights of a column, then the next column. One
// thread reads a panel from front to end, vpdpbusd takes 16 columns of it at a time, and 16 lines of 256 bytes are an
// AMX tile. `depth` is the number of inputs, rounded up to 64 with weights of 0.
//
// int4: a column has a scale for each `block` of inputs, and a row is quantized by the peak of each block.
//
//     y = activation(sum of blocks(quantized(x) @ w * column_scale * row_scale) + bias) + residual
//
// The sums of a block are exact, and blocks are added in their order as float32. A byte holds two weights from -8 to 7,
// [panels][depth / 8][64][4]: byte i of group g has the weight of input 8 g + i in its low bits, and the weight of
// input 8 g + 4 + i in its high bits. The depth is also a multiple of the block.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace hfx {

enum class Activation { none, relu, gelu, gelu_tanh, quick_gelu, silu, tanh };

constexpr int COLUMNS = 64, GROUP = 4, DEPTH_STEP = 64;
constexpr float UNPACKED = 16;  // an unpacked weight of int4 is this many times its value
constexpr long MOST_BLOCK = 128;  // the most inputs of int4 that share a scale; blocks have 16, 32, 64 or 128
constexpr long LONGEST = 65536;  // the most inputs; 65536 * 255 * 127 is just below 2^31
constexpr float LEVELS = 127.0f;
constexpr float LEAST_PEAK = 1e-35f;  // a row with a lower peak counts as 0, because 127 / peak would be infinite

struct Weights {
    long inputs, depth, panels;
    long block;  // inputs of a block of int4; 0: int8
    const int8_t *values;
    // [panels * 64], 0 behind the last column; for int4, `scale` and `start` are [panels][blocks][64]
    const float *scale, *bias;
    const int32_t *start;
    int groups = 0;  // int8: the pairs of so many groups, at most 2, times u8 can be added in 16 bits

    long blocks() const { return block ? depth / block : 1; }
    long bytes() const { return block ? depth * COLUMNS / 2 : depth * COLUMNS; }  // of a panel
    const int8_t *panel(long index) const { return values + index * bytes(); }
};

// One product. `gated`: the panels are two halves, and y is activation(first half) * second half.
struct Product {
    const Weights *weights;
    const uint8_t *rows;     // [count][depth]
    const float *row_scale;  // [count][blocks]
    const int32_t *places;   // [count]: the number of each row in y and in the residual; null: its own number
    long count;
    Activation activation;
    bool gated;
    const float *residual;  // [count][outputs], or null
    float *y;               // [count][outputs], or null
    long outputs;
    // A head's few outlier inputs, which are multiplied as floats, [count][outliers], and their weights,
    // [outliers][panels * 64].
    long outliers;
    const float *outlier_inputs, *outlier_weights;

    // The product of at most `rows` rows from `row` on.
    Product part(long row, long rows) const {
        Product part = *this;
        part.count = count - row < rows ? count - row : rows;
        part.rows += row * weights->depth, part.row_scale += row * weights->blocks();
        if (places) part.places += row;
        else if (residual) part.residual += row * outputs;
        if (y && !places) part.y += row * outputs;
        if (outliers) part.outlier_inputs += row * outliers;
        return part;
    }
};

struct FloatKernels;  // floats.h

struct Kernels {
    const char *name;
    // Quantizes a row to `depth` bytes, and returns their scale, which is NaN if an input is NaN or infinite.
    float (*quantize)(const float *x, long inputs, long depth, uint8_t *out);
    // Unpacks a block of int4 into bytes that are UNPACKED times its values, [block / 4][64][4].
    void (*unpack)(const int8_t *pairs, long block, int8_t *values);
    // Writes the columns of one panel of the product, from 64 * panel on, to y.
    void (*panel)(const Product &, long panel);
    // Finds the best column of each row, the first among equals, in the panels from `first` to before `last`. Writes y
    // unless it is null.
    void (*best)(const Product &, long first, long last, float *values, int32_t *columns);
    const FloatKernels *floats;
};

// The kernels for this processor, or null if it can run none. HFX_NATIVE_KERNELS selects others that it can run.
const Kernels *kernels();
// Why kernels() is null, as an error: no kernels can run here, or HFX_NATIVE_KERNELS is an unknown name ("none" is known).
const char *refusal();
// Why ONNX Runtime's own operators take the place of these: refusal(), if they are exact here; otherwise null.
const char *replaced();

}  // namespace hfx
