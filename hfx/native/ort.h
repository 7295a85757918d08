// The part of ONNX Runtime's C interface that custom operators need, and that runs a graph.
//
// The interface is a table of functions that only ever grows at its end, so that the number of a slot holds for all
// later versions (onnxruntime_c_api.h; version 17 is the first that has all of these slots).
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
struct Env;
struct Session;
struct TypeInfo;
struct RunOptions;
struct IoBinding;
struct CudaOptions;

constexpr uint32_t VERSION = 17;
constexpr int FAIL = 1, INVALID_ARGUMENT = 2;                    // OrtErrorCode
constexpr int FLOAT = 1, UINT8 = 2, INT8 = 3, INT32 = 6, INT64 = 7, BOOL = 9, FLOAT16 = 10, BFLOAT16 = 16;  // ONNXTensorElementDataType
constexpr int REQUIRED = 0, OPTIONAL = 1;                        // OrtCustomOpInputOutputCharacteristic
constexpr int DEVICE = 0, ARENA = 1, DEFAULT_MEMORY = 0;         // OrtAllocatorType, OrtMemType
constexpr int ERRORS = 3;                                        // OrtLoggingLevel

// What a graph names, in the order in which the functions for them have slots.
enum Element { INPUT, OUTPUT, INITIALIZER };

// OrtApi: a slot is called by its number and signature.
struct Api {
    void *slots[275];

    template <typename Result, typename... Arguments> Result call_at(int slot, Arguments... arguments) const {
        return reinterpret_cast<Result (*)(Arguments...)>(slots[slot])(arguments...);
    }
    template <int Slot, typename Result, typename... Arguments> Result call(Arguments... arguments) const { return call_at<Result>(Slot, arguments...); }
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

    // Functions for sessions.
    const char *message(const Status *status) const { return call<2, const char *>(status); }
    Status *make_env(int level, const char *name, Env **out) const { return call<3, Status *>(level, name, out); }
    Status *no_telemetry(const Env *env) const { return call<6, Status *>(env); }
    Status *make_session(const Env *env, const char *path, const SessionOptions *options, Session **out) const { return call<7, Status *>(env, path, options, out); }
    Status *run(Session *session, const RunOptions *options, const char *const *inputs, const Value *const *values, size_t count, const char *const *outputs, size_t wanted, Value **made) const {
        return call<9, Status *>(session, options, inputs, values, count, outputs, wanted, made);
    }
    Status *make_options(SessionOptions **out) const { return call<10, Status *>(out); }
    Status *execution_mode(SessionOptions *options, int parallel) const { return call<13, Status *>(options, parallel); }
    Status *no_memory_pattern(SessionOptions *options) const { return call<17, Status *>(options); }
    Status *no_memory_arena(SessionOptions *options) const { return call<19, Status *>(options); }
    Status *graph_level(SessionOptions *options, int level) const { return call<23, Status *>(options, level); }
    Status *threads_in_operators(SessionOptions *options, int count) const { return call<24, Status *>(options, count); }
    Status *threads_of_operators(SessionOptions *options, int count) const { return call<25, Status *>(options, count); }
    Status *entry(SessionOptions *options, const char *key, const char *value) const { return call<130, Status *>(options, key, value); }
    Status *count(Element kind, const Session *session, size_t *out) const { return call_at<Status *>(30 + kind, session, out); }
    Status *type(Element kind, const Session *session, size_t index, TypeInfo **out) const { return call_at<Status *>(33 + kind, session, index, out); }
    Status *name(Element kind, const Session *session, size_t index, Allocator *from, char **out) const { return call_at<Status *>(36 + kind, session, index, from, out); }
    Status *tensor_info(const TypeInfo *type, const ShapeInfo **out) const { return call<55, Status *>(type, out); }
    Status *element_type(const ShapeInfo *info, int *out) const { return call<60, Status *>(info, out); }
    Status *default_allocator(Allocator **out) const { return call<78, Status *>(out); }
    Status *tensor(const MemoryInfo *memory, void *data, size_t bytes, const int64_t *shape, size_t rank, int type, Value **out) const {
        return call<49, Status *>(memory, data, bytes, shape, rank, type, out);
    }
    void release(Session *session) const { call<95, void>(session); }
    void release(Value *value) const { call<96, void>(value); }
    void release(TypeInfo *type) const { call<98, void>(type); }
    void release(SessionOptions *options) const { call<100, void>(options); }

    // Functions for sessions on a GPU.
    Status *make_run_options(RunOptions **out) const { return call<39, Status *>(out); }
    Status *memory(const char *name, int id, MemoryInfo **out) const { return call<68, Status *>(name, DEVICE, id, DEFAULT_MEMORY, out); }
    void release(RunOptions *options) const { call<97, void>(options); }
    Status *run(Session *session, const RunOptions *options, IoBinding *binding) const { return call<133, Status *>(session, options, binding); }
    Status *make_binding(Session *session, IoBinding **out) const { return call<134, Status *>(session, out); }
    void release(IoBinding *binding) const { call<135, void>(binding); }
    Status *bind_input(IoBinding *binding, const char *name, const Value *value) const { return call<136, Status *>(binding, name, value); }
    Status *bind_output(IoBinding *binding, const char *name, const Value *value) const { return call<137, Status *>(binding, name, value); }
    Status *entry(RunOptions *options, const char *key, const char *value) const { return call<165, Status *>(options, key, value); }
    Status *add_cuda(SessionOptions *options, const CudaOptions *cuda) const { return call<204, Status *>(options, cuda); }
    Status *make_cuda_options(CudaOptions **out) const { return call<205, Status *>(out); }
    Status *set(CudaOptions *cuda, const char *const *keys, const char *const *values, size_t count) const { return call<206, Status *>(cuda, keys, values, count); }
    void release(CudaOptions *cuda) const { call<208, void>(cuda); }
};

struct ApiBase {
    const Api *(*api)(uint32_t version);  // null if ONNX Runtime is older than that version
    const char *(*version)();
};

// OrtCustomOp: an operator, described by functions that ONNX Runtime calls. Functions that are null are not called.
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
