// The code that operators share: inputs and outputs as shapes and pointers, and memory for the duration of a run.
//
// There are no exceptions and there is no C++ library: a failure is a status of ONNX Runtime.
#pragma once
#include "linear.h"
#include "ort.h"

namespace hfx {

using ort::Api;
using ort::Status;

// Set when the library is registered.
extern const Api *api;
extern ort::MemoryInfo *cpu_memory;
extern const Kernels *chosen;

#define HFX_TRY(expression) \
    if (Status *failed = (expression)) return failed

inline Status *invalid(const char *message) { return api->fail(ort::INVALID_ARGUMENT, message); }

constexpr size_t MOST_RANK = 8;
struct Shape {
    int64_t sizes[MOST_RANK];
    size_t rank;

    int64_t last() const { return rank ? sizes[rank - 1] : 1; }
    // The number of rows, each of which extends over the last dimension.
    int64_t rows() const {
        int64_t count = 1;
        for (size_t i = 0; i + 1 < rank; i++) count *= sizes[i];
        return count;
    }
    int64_t elements() const { return rank ? rows() * last() : 1; }
};

struct Tensor {
    Shape shape;
    void *data;

    template <typename Type> Type *as() const { return static_cast<Type *>(data); }
};

inline Status *read(const ort::Value *value, Tensor &out) {
    ort::ShapeInfo *info = nullptr;
    HFX_TRY(api->shape(value, &info));
    Status *status = api->rank(info, &out.shape.rank);
    if (!status && out.shape.rank > MOST_RANK) status = invalid("hfx: a tensor has more than 8 dimensions");
    if (!status) status = api->sizes(info, out.shape.sizes, out.shape.rank);
    api->release(info);
    return status ? status : api->data(const_cast<ort::Value *>(value), &out.data);
}

inline Status *read_input(const ort::KernelContext *context, size_t index, Tensor &out) {
    const ort::Value *value = nullptr;
    HFX_TRY(api->input(context, index, &value));
    return read(value, out);
}

// `out` has no data if the node doesn't have the input.
inline Status *read_optional_input(const ort::KernelContext *context, size_t index, Tensor &out) {
    const ort::Value *value = nullptr;
    HFX_TRY(api->input(context, index, &value));
    out = {};
    return value ? read(value, out) : nullptr;
}

inline Status *read_constant(const ort::KernelInfo *info, size_t index, Tensor &out) {
    const ort::Value *value = nullptr;
    int constant = 0;
    HFX_TRY(api->constant(info, index, &constant, &value));
    return constant ? read(value, out) : invalid("hfx: weights, scales and biases must be constants of the graph");
}

// Makes output `index`, which has `shape` but `last` as its last dimension, and sets `data` to its memory.
inline Status *make_output(ort::KernelContext *context, size_t index, Shape shape, int64_t last, void **data) {
    shape.sizes[shape.rank - 1] = last;
    ort::Value *value = nullptr;
    HFX_TRY(api->output(context, index, shape.sizes, shape.rank, &value));
    return api->data(value, data);
}

// Memory of the session's allocator, freed at the end of a scope.
class Scratch {
public:
    ~Scratch() {
        if (memory) api->free(allocator, memory);
        if (allocator) api->release(allocator);
    }
    Status *take(const ort::KernelContext *context, size_t bytes) {
        HFX_TRY(api->allocator(context, cpu_memory, &allocator));
        return api->allocate(allocator, bytes, &memory);
    }
    void *memory = nullptr;

private:
    ort::Allocator *allocator = nullptr;
};

// The functions that every operator must have, and that are the same for all of them.
inline const char *cpu_provider(const ort::Operator *) { return "CPUExecutionProvider"; }
inline int required(const ort::Operator *, size_t) { return ort::REQUIRED; }
inline int default_memory(const ort::Operator *, size_t) { return ort::DEFAULT_MEMORY; }
inline int zero(const ort::Operator *) { return 0; }
inline int one(const ort::Operator *) { return 1; }

inline void fill_common(ort::Operator &op) {
    op.version = ort::VERSION;
    op.provider = cpu_provider;
    op.input_characteristic = op.output_characteristic = required;
    op.input_memory_type = default_memory;
    op.variadic_input_least = op.variadic_output_least = op.variadic_input_alike = op.variadic_output_alike = zero;
    op.first_version = op.last_version = one;
}

Status *add_attention_operators(ort::Domain *domain);
Status *add_self_attention(ort::Domain *domain);
Status *add_float_operators(ort::Domain *domain);
Status *add_adapter_operators(ort::Domain *domain);

}  // namespace hfx
