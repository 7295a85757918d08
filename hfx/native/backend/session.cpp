#include "session.h"
#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>
#include "refusals.h"
#include "triton.h"

extern "C" ort::Status *RegisterCustomOps(ort::SessionOptions *options, const ort::ApiBase *base);

namespace hfx {
namespace {

constexpr const char *SPINNING = "session.intra_op.allow_spinning", *SPIN_DURATION = "session.intra_op.spin_duration_us";

// Environments are never released, because threads of sessions may outlive the last session.
ort::Env *environment(const ort::Api *api) {
    struct Opened {
        const ort::Api *api;
        ort::Env *env;
    };
    static Opened opened[8];  // one for each ONNX Runtime library in this process
    static bool busy;
    while (__atomic_test_and_set(&busy, __ATOMIC_ACQUIRE)) sched_yield();
    ort::Env *found = nullptr;
    for (Opened &each : opened) {
        if (!each.api) {
            ort::Status *status = api->make_env(ort::ERRORS, "hfx", &each.env);
            if (status) api->release(status);
            else {
                each.api = api;
                if (ort::Status *kept = api->no_telemetry(each.env)) api->release(kept);
            }
        }
        if (each.api == api) found = each.env;
        if (each.api == api || !each.api) break;
    }
    __atomic_clear(&busy, __ATOMIC_RELEASE);
    return found;
}

}  // namespace

Session::~Session() {
    if (!api_) return;
    if (session_) api_->release(session_);
    if (options_) api_->release(options_);
    if (memory_) api_->release(memory_);
}

bool Session::fails(ort::Status *status, Text &error) const {
    if (!status) return false;
    refuse_with(error, api_->message(status));
    api_->release(status);
    return true;
}

bool Session::load(const Json &config, const char *folder, Text &error) {
    Span runtime = parameter(config, "onnxruntime");
    Text library;
    if (!runtime.size || !parameter(config, "model_file").size)
        return refuse(error, "the parameters onnxruntime and model_file must name files");
    if (!path_in(folder, runtime, library) || !open_library(library.data(), error)) return false;
    env_ = environment(api_);  // before the options, as those of a provider are logged
    if (!env_) return refuse(error, "ONNX Runtime has no environment");
    return reset(config, error) && !fails(api_->cpu_memory(&memory_), error);
}

bool Session::open(const Json &config, const char *folder, Text &error) {
    Text file, inside;
    if (!path_in(folder, parameter(config, "model_file"), file) || !path_in(file.data(), {"model.onnx", 10}, inside)) return false;
    return !fails(api_->make_session(env_, access(inside.data(), F_OK) ? file.data() : inside.data(), options_, &session_), error);
}

bool Session::open_library(const char *path, Text &error) {
    // The library stays when the model is unloaded, because sessions of other models use it.
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) return refuse(error, "%.400s", dlerror());
    auto base = reinterpret_cast<const ort::ApiBase *(*)()>(dlsym(library, "OrtGetApiBase"));
    if (!base) return refuse(error, "%.300s is no ONNX Runtime", path);
    base_ = base();
    api_ = base_->api(ort::VERSION);
    return api_ || refuse(error, "%.200s is ONNX Runtime %.20s; 1.%u or later is needed", path, base_->version(), ort::VERSION);
}

bool Session::reset(const Json &config, Text &error) {
    if (session_) api_->release(session_);
    if (options_) api_->release(options_);
    session_ = nullptr, options_ = nullptr;
    if (fails(api_->make_options(&options_), error) || !numbers(config, error)) return false;
    for (Json each = config["parameters"].first(); each; each = each.next()) {
        Text key, value;
        if (!append(key, each.key()) || !key.push('\0') || !append(value, each["string_value"].text()) || !value.push('\0'))
            return false;
        if (strncmp(key.data(), "session.", 8) || Span{key.data(), key.size() - 1}.equals(SPINNING)) continue;
        if (fails(api_->entry(options_, key.data(), value.data()), error)) return false;
    }
    // A configuration that sets the time to spin also forbids spinning, for runtimes that don't know the entry for the
    // time. This runtime knows it.
    bool spins = parameter(config, SPIN_DURATION).size;
    Text value;
    if (!append(value, spins ? Span{"1", 1} : parameter(config, SPINNING)) || !value.push('\0')) return false;
    if (value.size() > 1 && fails(api_->entry(options_, SPINNING, value.data()), error)) return false;
    if (!parameter(config, "operators").size) return true;
    // A graph defines its operators, except for those of adapters.
    if (const char *reason = parameter(config, "shared_net").size ? nullptr : replaced()) {
        Text line;
        if (append(line, reason) && append(line, ": ONNX Runtime's own operators run ") && append(line, config["name"].text()) && line.push('\0'))
            triton::log(triton::WARNING, line.data());
        return true;
    }
    if (!fails(RegisterCustomOps(options_, base_), error)) return true;
    // Without VNNI the graph's own definitions would compute wrong sums of 8-bit weights.
    if (!append(error, ": export the model on this machine, or in fp32")) error.clear();
    return false;
}

bool Session::numbers(const Json &config, Text &error) {
    long inside = 0, between = 0, arena = 1, pattern = 1, mode = 0, spin = 0;
    if (!whole_number(config, "intra_op_thread_count", 0, inside, error) || !whole_number(config, "inter_op_thread_count", 0, between, error) ||
        !whole_number(config, "enable_mem_arena", 0, arena, error) || !whole_number(config, "enable_mem_pattern", 0, pattern, error) ||
        !whole_number(config, "execution_mode", 0, mode, error) || !whole_number(config, SPIN_DURATION, 0, spin, error))
        return false;
    // The levels are those of NVIDIA's backend: 0 everything, 1 extended, -1 basic, 2 nothing.
    constexpr int LEVELS[] = {1, 99, 2, 0};
    int64_t level = 0;
    Json named = config["optimization"]["graph"]["level"];
    if (named && !named.integer(level, -1, 2)) return refuse(error, "optimization.graph.level is none of -1, 0, 1 and 2");
    return !fails(api_->graph_level(options_, LEVELS[level + 1]), error) &&
           !fails(api_->threads_in_operators(options_, int(inside)), error) &&
           !fails(api_->threads_of_operators(options_, int(between)), error) &&
           !fails(api_->execution_mode(options_, mode == 1), error) &&
           (arena || !fails(api_->no_memory_arena(options_), error)) &&
           (pattern || !fails(api_->no_memory_pattern(options_), error));
}

bool Session::element(ort::Element kind, size_t index, int &type, Text &name, int64_t &width, Text &error) const {
    ort::Allocator *allocator;
    ort::TypeInfo *info = nullptr;
    const ort::ShapeInfo *tensor = nullptr;
    char *text = nullptr;
    int64_t sizes[MOST_RANK];
    size_t rank = 0;
    if (fails(api_->default_allocator(&allocator), error)) return false;
    if (fails(api_->name(kind, session_, index, allocator, &text), error)) return false;
    name.clear();
    bool copied = append(name, text) && name.push('\0');
    api_->free(allocator, text);
    if (!copied || fails(api_->type(kind, session_, index, &info), error)) return false;
    bool known = !fails(api_->tensor_info(info, &tensor), error);
    if (known && !tensor) known = refuse(error, "%.80s is no tensor", name.data());
    known = known && !fails(api_->element_type(tensor, &type), error) && !fails(api_->rank(tensor, &rank), error);
    if (known && rank > MOST_RANK) known = refuse(error, "%.80s has %zu dimensions", name.data(), rank);
    known = known && !fails(api_->sizes(tensor, sizes, rank), error);
    width = known && rank ? sizes[rank - 1] : -1;
    api_->release(info);
    return known;
}

bool Session::check(const char *const *needed, size_t count, const char *output, bool &types, Text &error) const {
    size_t inputs = 0, outputs = 0, known = 0;
    if (fails(api_->count(ort::INPUT, session_, &inputs), error) || fails(api_->count(ort::OUTPUT, session_, &outputs), error)) return false;
    Text name;
    int type = 0;
    int64_t width = 0;
    for (size_t at = 0; at < inputs; at++) {
        if (!element(ort::INPUT, at, type, name, width, error)) return false;
        bool is_types = !strcmp(name.data(), TYPES), is_needed = false;
        for (size_t each = 0; each < count; each++) is_needed = is_needed || !strcmp(name.data(), needed[each]);
        if (!is_types && !is_needed) return refuse(error, "the graph takes %.80s, which the configuration does not name", name.data());
        if (type != ort::INT32) return refuse(error, "the graph takes %.80s not as INT32", name.data());
        types = types || is_types;
        known += is_needed;
    }
    if (known != count) return refuse(error, "the graph lacks one of the inputs %s, %s%s%s", needed[0], needed[1], count > 2 ? ", " : "", count > 2 ? needed[2] : "");
    for (size_t at = 0; at < outputs; at++) {
        if (!element(ort::OUTPUT, at, type, name, width, error)) return false;
        if (strcmp(name.data(), output)) continue;
        return type == ort::FLOAT || refuse(error, "the output %.80s of the graph is not FP32", output);
    }
    return refuse(error, "the graph has no output %.80s", output);
}

bool Session::sizes(const ort::Value *value, int64_t *sizes, size_t &rank, Text &error) const {
    ort::ShapeInfo *info = nullptr;
    if (fails(api_->shape(value, &info), error)) return false;
    bool known = !fails(api_->rank(info, &rank), error) && (rank <= MOST_RANK || refuse(error, "a tensor has %zu dimensions", rank)) &&
                 !fails(api_->sizes(info, sizes, rank), error);
    api_->release(info);
    return known;
}

}  // namespace hfx
