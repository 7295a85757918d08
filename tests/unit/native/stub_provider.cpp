// An ONNX Runtime with a CUDA provider whose GPU is the CPU: the real library, except for the functions of the provider.
//
// The memory "Cuda" is the CPU's. STUB_ONNXRUNTIME names the real library. STUB_PROVIDER is a list of words:
//   missing   there is no provider
//   captures  a session that captures graphs can't be opened
//   full:N    a run of more than N sequences fails for lack of memory
//   idle      a run takes no time, and computes nothing
// A run by a second thread is an error, as it would have no captured graphs.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <map>
#include <mutex>
#include "ort.h"

namespace {

const ort::Api *real;
ort::Api table;
thread_local bool captures;     // the options that were set last
thread_local size_t sequences;  // of the last tensor that was bound
std::mutex lock;
std::map<ort::Session *, pthread_t> threads;  // of the sessions that have run

const char *setting(const char *word) {
    const char *variable = getenv("STUB_PROVIDER"), *found = variable ? strstr(variable, word) : nullptr;
    return found ? found + strlen(word) : nullptr;
}

ort::Status *memory(const char *name, int kind, int id, int type, ort::MemoryInfo **out) {
    bool is_gpu = !strcmp(name, "Cuda");
    return real->call<68, ort::Status *>(is_gpu ? "Cpu" : name, kind, is_gpu ? 0 : id, type, out);
}
ort::Status *make_options(ort::CudaOptions **out) {
    if (setting("missing")) return real->fail(ort::FAIL, "CUDA execution provider is not enabled in this build.");
    *out = static_cast<ort::CudaOptions *>(malloc(1));
    return nullptr;
}
ort::Status *set(ort::CudaOptions *, const char *const *keys, const char *const *values, size_t count) {
    bool has_stream = false, has_device = false;
    for (size_t at = 0; at < count; at++) {
        if (!strcmp(keys[at], "enable_cuda_graph")) captures = *values[at] == '1';
        has_stream = has_stream || (!strcmp(keys[at], "user_compute_stream") && strtoull(values[at], nullptr, 10));
        has_device = has_device || (!strcmp(keys[at], "device_id") && !strcmp(values[at], "0"));
    }
    return has_stream && has_device ? nullptr : real->fail(ort::INVALID_ARGUMENT, "no stream, or no device");
}
ort::Status *add(ort::SessionOptions *, const ort::CudaOptions *) { return nullptr; }
ort::Status *make_session(const ort::Env *env, const char *path, const ort::SessionOptions *options, ort::Session **out) {
    if (captures && setting("captures")) return real->fail(ort::FAIL, "all compute graph nodes have not been partitioned to the CUDAExecutionProvider");
    return real->make_session(env, path, options, out);
}
ort::Status *bind_input(ort::IoBinding *binding, const char *name, const ort::Value *value) {
    ort::ShapeInfo *info = nullptr;
    int64_t sizes[2] = {};
    ort::Status *status = real->shape(value, &info);
    if (!status) status = real->sizes(info, sizes, 2);
    if (info) real->release(info);
    sequences = size_t(sizes[0]);
    return status ? status : real->bind_input(binding, name, value);
}
ort::Status *run(ort::Session *session, const ort::RunOptions *options, ort::IoBinding *binding) {
    {
        std::lock_guard<std::mutex> held(lock);
        pthread_t first = threads.emplace(session, pthread_self()).first->second;
        if (!pthread_equal(first, pthread_self())) return real->fail(ort::FAIL, "another thread runs the session");
    }
    const char *most = setting("full:");
    if (most && sequences > strtoull(most, nullptr, 10)) return real->fail(ort::FAIL, "Failed to allocate memory for requested buffer of size 1");
    return setting("idle") ? nullptr : real->run(session, options, binding);
}
void release_session(ort::Session *session) {
    std::lock_guard<std::mutex> held(lock);
    threads.erase(session);
    real->release(session);
}
void release(ort::CudaOptions *options) { free(options); }

const ort::Api *make_table(uint32_t version) {
    auto base = reinterpret_cast<const ort::ApiBase *(*)()>(dlsym(dlopen(getenv("STUB_ONNXRUNTIME"), RTLD_NOW | RTLD_LOCAL), "OrtGetApiBase"));
    real = base()->api(version);
    table = *real;
    auto replace = [](int slot, auto function) { table.slots[slot] = reinterpret_cast<void *>(function); };
    replace(7, make_session), replace(68, memory), replace(95, release_session), replace(133, run), replace(136, bind_input);
    replace(204, add), replace(205, make_options), replace(206, set), replace(208, release);
    return &table;
}
const ort::Api *api(uint32_t version) {
    static const ort::Api *made = make_table(version);
    return made;
}

}  // namespace

extern "C" const ort::ApiBase *OrtGetApiBase() {
    static const ort::ApiBase base = {api, +[]() { return "stub"; }};
    return &base;
}
