// The code that operators share: inputs and outputs as shapes and pointers, and memory for the duration of a run.
//
// There are no exceptions and there is no C++ library: a failure is a status of ONNX Runtime.
#pragma once
#include <stdlib.h>
#include "alone.h"
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
inline Status *out_of_memory() { return api->fail(ort::FAIL, "hfx: out of memory"); }

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

// Refuses, with `message`, a tensor of INT32 that has a number below `least`, or from `end` on.
inline Status *check_range(const Tensor &tensor, int64_t least, int64_t end, const char *message) {
    for (int64_t i = 0; i < tensor.shape.elements(); i++)
        if (tensor.as<int32_t>()[i] < least || tensor.as<int32_t>()[i] >= end) return invalid(message);
    return nullptr;
}

// Makes output `index`, which has `shape` but `last` as its last dimension, and sets `data` to its memory.
inline Status *make_output(ort::KernelContext *context, size_t index, Shape shape, int64_t last, void **data) {
    shape.sizes[shape.rank - 1] = last;
    ort::Value *value = nullptr;
    HFX_TRY(api->output(context, index, shape.sizes, shape.rank, &value));
    return api->data(value, data);
}

// Which of `all` rows are tokens, and which are padding behind the last token of a text.
struct Tokens {
    Tensor last;  // [texts]; if it has no data, all rows are tokens
    long all, count;

    Status *read(ort::KernelContext *context, size_t input, long rows) {
        all = count = rows;
        HFX_TRY(read_optional_input(context, input, last));
        if (!last.data) return nullptr;
        const long texts = last.shape.elements(), width = texts ? rows / texts : 0;
        if (texts * width != rows) return invalid("hfx: there must be a last token for each text");
        HFX_TRY(check_range(last, 0, width, "hfx: a last token is beyond its text"));
        count = texts;
        for (long text = 0; text < texts; text++) count += last.as<int32_t>()[text];
        return nullptr;
    }
    bool padded() const { return count < all; }
    // Writes the row numbers of the tokens and, behind them, those of the padding to `places`, [all].
    void write(int32_t *places) const {
        const long texts = last.shape.elements(), width = all / texts;
        int32_t *padding = places + count;
        for (long text = 0; text < texts; text++)
            for (long at = 0; at < width; at++) *(at <= last.as<int32_t>()[text] ? places : padding)++ = int32_t(text * width + at);
    }
};

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

inline long smaller(long a, long b) { return a < b ? a : b; }

// Calls work(data, 0) ... work(data, tasks - 1): in the threads of the session, or in this one if the run keeps to it.
inline Status *in_threads(ort::KernelContext *context, void (*work)(void *, size_t), size_t tasks, void *data) {
    if (!runs_alone) return api->parallel(context, work, tasks, data);
    for (size_t task = 0; task < tasks; task++) work(data, task);
    return nullptr;
}

// Up to this many numbers, threads cost more than they save: one thread quantizes 10 values in a nanosecond.
constexpr long ALONE = 32768;

// The same for work that reads `numbers` numbers in all.
inline Status *run_tasks(ort::KernelContext *context, void (*work)(void *, size_t), long tasks, long numbers, void *data) {
    if (tasks > 1 && numbers > ALONE) return in_threads(context, work, size_t(tasks), data);
    for (long task = 0; task < tasks; task++) work(data, size_t(task));
    return nullptr;
}

// An operator, whose class derives from this one. The class also has the functions `inputs()`, the number of inputs, and
// `type(input)`, and replaces those functions here that are not right for it.
struct Described : ort::Operator {
    char title[32];

    size_t outputs() const { return 1; }
    int type_of_output(size_t) const { return ort::FLOAT; }
    bool is_optional(size_t) const { return false; }
};

// Activations of operators, and what they add to the operators' names.
constexpr struct {
    const char *suffix;
    Activation activation;
} ACTIVATIONS[] = {
    {"", Activation::none}, {"Relu", Activation::relu}, {"Gelu", Activation::gelu}, {"GeluTanh", Activation::gelu_tanh},
    {"QuickGelu", Activation::quick_gelu}, {"Silu", Activation::silu}, {"Tanh", Activation::tanh},
};
constexpr size_t ACTIVATION_COUNT = sizeof ACTIVATIONS / sizeof *ACTIVATIONS;

inline Described titled(const char *stem, const char *suffix) {
    Described made = {};
    strncpy(made.title, stem, sizeof made.title - 1);
    strncat(made.title, suffix, sizeof made.title - 1 - strlen(made.title));
    return made;
}

template <typename Form> const Form &as(const ort::Operator *op) { return *static_cast<const Form *>(op); }

// Adds operators, which must live as long as the process. `create`, `compute` and `destroy` are theirs.
template <typename Form>
Status *add_operators(ort::Domain *domain, Form *forms, size_t count, decltype(ort::Operator::create) create, decltype(ort::Operator::compute) compute,
                      decltype(ort::Operator::destroy) destroy) {
    using Op = const ort::Operator *;
    for (size_t i = 0; i < count; i++) {
        ort::Operator &op = forms[i];
        op.version = ort::VERSION;
        op.name = [](Op op) { return as<Form>(op).title; };
        op.provider = [](Op) { return "CPUExecutionProvider"; };
        op.input_count = [](Op op) { return as<Form>(op).inputs(); };
        op.input_type = [](Op op, size_t index) { return as<Form>(op).type(index); };
        op.input_characteristic = [](Op op, size_t index) { return as<Form>(op).is_optional(index) ? ort::OPTIONAL : ort::REQUIRED; };
        op.output_count = [](Op op) { return as<Form>(op).outputs(); };
        op.output_type = [](Op op, size_t index) { return as<Form>(op).type_of_output(index); };
        op.output_characteristic = [](Op, size_t) { return ort::REQUIRED; };
        op.input_memory_type = [](Op, size_t) { return ort::DEFAULT_MEMORY; };
        op.variadic_input_least = op.variadic_output_least = op.variadic_input_alike = op.variadic_output_alike = [](Op) { return 0; };
        op.first_version = op.last_version = [](Op) { return 1; };
        op.create = create, op.compute = compute, op.destroy = destroy;
        HFX_TRY(api->add_operator(domain, &op));
    }
    return nullptr;
}

// Copies what an operator has for a node of the graph to memory that `free` frees.
template <typename Node> Status *store(const Node &node, void **out) {
    *out = malloc(sizeof node);
    if (!*out) return out_of_memory();
    memcpy(*out, &node, sizeof node);
    return nullptr;
}

Status *add_attention_operators(ort::Domain *domain);
Status *add_self_attention(ort::Domain *domain);
Status *add_float_operators(ort::Domain *domain);
Status *add_adapter_operators(ort::Domain *domain);

}  // namespace hfx
