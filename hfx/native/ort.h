// The part of ONNX Runtime's C interface that custom operators need.
//
// The interface is a table of functions that only ever grows at its end, so that a slot's number stays true for all
// later versions (onnxruntime_c_api.h; version 17 is the first with all of these).
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace ort {

struct Status;
struct Value;
struct ShapeInfo;
struct Allocator;
struct MemoryInfo;
struct KernelInfo;
struct KernelContext;
struct Domain;
struct SessionOptions;

constexpr uint32_t VERSION = 17;
constexpr int FAIL = 1, INVALID_ARGUMENT = 2;                    // OrtErrorCode
constexpr int FLOAT = 1, UINT8 = 2, INT8 = 3, INT32 = 6, INT64 = 7, BOOL = 9, FLOAT16 = 10;  // ONNXTensorElementDataType
constexpr int REQUIRED = 0, OPTIONAL = 1;                        // OrtCustomOpInputOutputCharacteristic
constexpr int ARENA = 1, DEFAULT_MEMORY = 0;                     // OrtAllocatorType, OrtMemType

// OrtApi: a slot is called by its number and signature.
struct Api {
    void *slots[275];

    template <int Slot, typename Result, typename... Arguments> Result call(Arguments... arguments) const {
        return reinterpret_cast<Result (*)(Arguments...)>(slots[Slot])(arguments...);
    }
    Status *fail(int code, const char *message) const { return call<0, Status *>(code, message); }
    void release(Status *status) const { call<93, void>(status); }
    Status *new_domain(const char *name, Domain **out) const { return call<26, Status *>(name, out); }
    Status *add_operator(Domain *domain, const struct Operator *op) const { return call<27, Status *>(domain, op); }
    Status *add_domain(SessionOptions *options, Domain *domain) const { return call<28, Status *>(options, domain); }
    Status *data(Value *value, void **out) const { return call<51, Status *>(value, out); }
    Status *rank(const ShapeInfo *info, size_t *out) const { return call<61, Status *>(info, out); }
    Status *sizes(const ShapeInfo *info, int64_t *out, size_t rank) const { return call<62, Status *>(info, out, rank); }
    Status *shape(const Value *value, ShapeInfo **out) const { return call<65, Status *>(value, out); }
    void release(ShapeInfo *info) const { call<99, void>(info); }
    Status *cpu_memory(MemoryInfo **out) const { return call<69, Status *>(ARENA, DEFAULT_MEMORY, out); }
    void release(MemoryInfo *info) const { call<94, void>(info); }
    Status *allocate(Allocator *from, size_t bytes, void **out) const { return call<75, Status *>(from, bytes, out); }
    void free(Allocator *from, void *memory) const { release(call<76, Status *>(from, memory)); }
    Status *attribute(const KernelInfo *info, const char *name, float *out) const { return call<85, Status *>(info, name, out); }
    Status *attribute(const KernelInfo *info, const char *name, int64_t *out) const { return call<86, Status *>(info, name, out); }
    Status *input(const KernelContext *context, size_t index, const Value **out) const { return call<90, Status *>(context, index, out); }
    Status *output(KernelContext *context, size_t index, const int64_t *sizes, size_t rank, Value **out) const { return call<91, Status *>(context, index, sizes, rank, out); }
    Status *constant(const KernelInfo *info, size_t index, int *is_constant, const Value **out) const { return call<249, Status *>(info, index, is_constant, out); }
    Status *allocator(const KernelContext *context, const MemoryInfo *memory, Allocator **out) const { return call<253, Status *>(context, memory, out); }
    void release(Allocator *allocator) const { call<132, void>(allocator); }
    // Runs work(data, 0) ... work(data, count - 1) on the session's threads, and waits for them. Each thread takes the
    // next number of a range of its own, and of another thread's range when its own is done.
    Status *parallel(const KernelContext *context, void (*work)(void *, size_t), size_t count, void *data) const {
        return call<274, Status *>(context, work, count, size_t(0), data);
    }
};

struct ApiBase {
    const Api *(*api)(uint32_t version);  // null where ONNX Runtime is older
    const char *(*version)();
};

// OrtCustomOp: what an operator is, in functions of the operator itself. Those that are null are not called.
struct Operator {
    uint32_t version;
    void *(*create_without_status)(const Operator *, const Api *, const KernelInfo *);
    const char *(*name)(const Operator *);
    const char *(*provider)(const Operator *);
    int (*input_type)(const Operator *, size_t);
    size_t (*input_count)(const Operator *);
    int (*output_type)(const Operator *, size_t);
    size_t (*output_count)(const Operator *);
    void (*compute_without_status)(void *, KernelContext *);
    void (*destroy)(void *);
    int (*input_characteristic)(const Operator *, size_t);
    int (*output_characteristic)(const Operator *, size_t);
    int (*input_memory_type)(const Operator *, size_t);
    int (*variadic_input_least)(const Operator *);
    int (*variadic_input_alike)(const Operator *);
    int (*variadic_output_least)(const Operator *);
    int (*variadic_output_alike)(const Operator *);
    Status *(*create)(const Operator *, const Api *, const KernelInfo *, void **);
    Status *(*compute)(void *, KernelContext *);
    void *infer_shapes;
    int (*first_version)(const Operator *);
    int (*last_version)(const Operator *);
};

}  // namespace ort
