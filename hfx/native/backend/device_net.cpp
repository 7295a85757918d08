#include "device_net.h"
#include <pthread.h>
#include <stdio.h>
#include "refusals.h"
#include "triton.h"

namespace hfx {
namespace {

constexpr size_t ALIGNMENT = 256;  // of an input, in bytes, as CUDA's own allocations have
// Parameters of a configuration that are options of the provider, with the words that stand for numbers (config.py).
struct Option {
    const char *name, *words[3];
};
constexpr Option OPTIONS[] = {
    {"cudnn_conv_algo_search", {"EXHAUSTIVE", "HEURISTIC", "DEFAULT"}},
    {"arena_extend_strategy", {"kNextPowerOfTwo", "kSameAsRequested", nullptr}},
    {"gpu_mem_limit", {}},
    {"do_copy_in_default_stream", {}},
};
constexpr size_t MOST_REASON = 300, OWN_OPTIONS = 3, OPTION_COUNT = sizeof OPTIONS / sizeof *OPTIONS;
// Entries of a run. The first run with the number of a graph captures it, and later runs launch it; -1 is for runs
// without a graph.
constexpr const char *GRAPH = "gpu_graph_id", *WITHOUT_WAITING = "disable_synchronize_execution_providers";

// Capturing fails if another thread of the process allocates memory of the GPU meanwhile, and so does that thread.
pthread_rwlock_t capturing = PTHREAD_RWLOCK_INITIALIZER;

class Alone {
public:
    explicit Alone(bool alone) { alone ? pthread_rwlock_wrlock(&capturing) : pthread_rwlock_rdlock(&capturing); }
    ~Alone() { pthread_rwlock_unlock(&capturing); }
};

size_t aligned(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }
size_t input_bytes(Shape shape) { return aligned(shape.sequences * shape.width * sizeof(int32_t)); }

}  // namespace

bool Shapes::open(const Array<int32_t> &widths) {
    narrowest_ = size_t(widths[0]), widest_ = size_t(widths[widths.size() - 1]);
    size_t last = 0;
    // Of the widths, those that are at least a quarter apart, and the last one.
    for (size_t at = 0; at < widths.size() && size_t(widths[at]) <= CAPTURED_WIDTH; at++) {
        bool ends = at + 1 == widths.size() || size_t(widths[at + 1]) > CAPTURED_WIDTH;
        if (size_t(widths[at]) * 4 < last * 5 && !ends) continue;
        last = size_t(widths[at]);
        if (!widths_.push(last)) return false;
    }
    return true;
}

size_t Shapes::most(size_t width) {
    size_t fit = MOST_TOKENS / (width ? width : 1);
    return fit > MOST_SEQUENCES ? MOST_SEQUENCES : fit ? fit : 1;
}

Shape Shapes::of(size_t sequences, size_t width) const {
    size_t rounded = 1, most_sequences = most(width);
    while (rounded < sequences) rounded = rounded < 16 ? rounded * 2 : rounded % 3 ? rounded / 2 * 3 : rounded / 3 * 4;
    Shape shape = {rounded > most_sequences ? most_sequences : rounded, width};
    if (sequences > CAPTURED_SEQUENCES) return shape;
    for (size_t each : widths_)
        if (each >= width) {
            for (shape.sequences = 1; shape.sequences < sequences;) shape.sequences *= 2;
            shape.width = each;
            break;
        }
    return shape;
}

size_t Shapes::captured(Shape shape) const {
    for (size_t number = 1;; number++) {
        Shape each = at(number);
        if (!each.sequences || (each.sequences == shape.sequences && each.width == shape.width)) return each.sequences ? number : 0;
    }
}

Shape Shapes::at(size_t number) const {
    constexpr size_t SIZES = 6;  // 1, 2, 4, 8, 16, 32
    static_assert(CAPTURED_SEQUENCES == 1 << (SIZES - 1), "the largest of them");
    size_t width = (number - 1) / SIZES;
    return width < widths_.size() ? Shape{size_t(1) << ((number - 1) % SIZES), widths_[width]} : Shape{};
}

DeviceNet::~DeviceNet() {
    if (binding_) session_.api().release(binding_);
    if (memory_) session_.api().release(memory_);
}

bool DeviceNet::open(const Json &config, const char *folder, const char *output, int number, const Array<int32_t> &widths, Text &error) {
    if (!append(output_, output) || !output_.push('\0') || !shapes_.open(widths)) return false;
    if (!device_.open(number, error) || !session_.load(config, folder, error)) return false;
    if (start(config, folder, number, error)) return true;
    if (!captures_ || device_.lost()) return false;
    Text reason = static_cast<Text &&>(error), line;
    captures_ = false;
    if (binding_) session_.api().release(binding_);
    binding_ = nullptr;
    if (!session_.reset(config, error) || !start(config, folder, number, error)) return false;
    if (reason.push('\0') && !refuse(line, "%.150s: no run is captured as a graph of CUDA: %.300s", folder, reason.data()) && line.push('\0'))
        triton::log(triton::WARNING, line.data());
    return true;
}

bool DeviceNet::start(const Json &config, const char *folder, int number, Text &error) {
    const ort::Api &api = session_.api();
    constexpr const char *INPUTS[] = {IDS, MASK};
    {
        Alone others(false);
        if (!provide(config, number, error) || !session_.open(config, folder, error)) return false;
    }
    types_ = false;
    if (!session_.check(INPUTS, 2, output_.data(), types_, error)) return false;
    if (!memory_ && session_.fails(api.memory("Cuda", number, &memory_), error)) return false;
    if (session_.fails(api.make_binding(session_.handle(), &binding_), error)) return false;
    return probe(error) && (in_ || allocate(error)) && warm_up(error);
}

// Adds the CUDA provider to the session's options.
bool DeviceNet::provide(const Json &config, int number, Text &error) {
    char device[16], stream[24];
    snprintf(device, sizeof device, "%d", number);
    snprintf(stream, sizeof stream, "%llu", static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(device_.stream())));
    const char *keys[OWN_OPTIONS + OPTION_COUNT] = {"device_id", "user_compute_stream", "enable_cuda_graph"};
    const char *values[OWN_OPTIONS + OPTION_COUNT] = {device, stream, captures_ ? "1" : "0"};
    Text texts[OPTION_COUNT];
    size_t count = OWN_OPTIONS;
    for (size_t at = 0; at < OPTION_COUNT; at++) {
        Span value = parameter(config, OPTIONS[at].name);
        if (!value.size) continue;
        const char *word = nullptr;
        for (size_t each = 0; each < 3 && value.size == 1; each++)
            if (*value.data == char('0' + each)) word = OPTIONS[at].words[each];
        if (!word && (!append(texts[at], value) || !texts[at].push('\0'))) return false;
        keys[count] = OPTIONS[at].name, values[count++] = word ? word : texts[at].data();
    }
    const ort::Api &api = session_.api();
    ort::CudaOptions *options = nullptr;
    Text reason;
    // The CPU computes nearly nothing, so ONNX Runtime needs no other threads.
    if (!parameter(config, "intra_op_thread_count").size && session_.fails(api.threads_in_operators(session_.options(), 1), error)) return false;
    bool failed = session_.fails(api.make_cuda_options(&options), reason) || session_.fails(api.set(options, keys, values, count), reason) ||
                  session_.fails(api.add_cuda(session_.options(), options), reason);
    if (options) api.release(options);
    const size_t skipped = reason.size() > MOST_REASON ? reason.size() - MOST_REASON : 0;  // its end names a library that is missing
    if (failed && reason.push('\0'))
        refuse(error, "ONNX Runtime has no CUDA here (%s): install onnxruntime-gpu and CUDA's libraries, or serve on the CPU (--device cpu)", reason.data() + skipped);
    captures_ = captures_ && !failed;  // capturing is not the reason
    return !failed;
}

// Runs one sequence from the machine's memory, and learns the width of the output from it.
bool DeviceNet::probe(Text &error) {
    Alone others(false);
    const ort::Api &api = session_.api();
    const char *names[3] = {IDS, MASK, TYPES}, *wanted[1] = {output_.data()};
    const size_t count = types_ ? 3 : 2, width = shapes_.narrowest();
    int64_t shape[2] = {1, int64_t(width)}, sizes[Session::MOST_RANK];
    Array<int32_t> content;
    ort::Value *values[3] = {}, *out[1] = {};
    ort::RunOptions *options = nullptr;
    size_t rank = 0;
    if (!content.resize(2 * width, 0)) return false;
    content[width] = 1;  // in the mask
    bool failed = session_.fails(api.make_run_options(&options), error) || session_.fails(api.entry(options, GRAPH, "-1"), error);
    for (size_t at = 0; at < count && !failed; at++)
        failed = session_.fails(api.tensor(session_.memory(), content.data() + (at == 1 ? width : 0), 4 * width, shape, 2, ort::INT32, &values[at]), error);
    failed = failed || session_.fails(api.run(session_.handle(), options, names, values, count, wanted, 1, out), error) || !session_.sizes(out[0], sizes, rank, error);
    for (ort::Value *each : values)
        if (each) api.release(each);
    if (out[0]) api.release(out[0]);
    if (options) api.release(options);
    if (failed) return false;
    if (rank != 2 || sizes[0] != 1 || sizes[1] < 1) return refuse(error, "the output %.80s of the graph is not [sequences, numbers]", output_.data());
    classes_ = size_t(sizes[1]);
    return true;
}

bool DeviceNet::allocate(Text &error) {
    Text reason;
    size_t tokens = shapes_.widest() > Shapes::MOST_TOKENS ? shapes_.widest() : Shapes::MOST_TOKENS;
    size_t in = (types_ ? 3 : 2) * aligned(tokens * sizeof(int32_t)), out = Shapes::MOST_SEQUENCES * classes_ * sizeof(float);
    bool allocated = device_.allocate(in, in_, reason) && device_.allocate(out, out_, reason);
    for (size_t place = 0; place < PLACES; place++)
        allocated = allocated && device_.allocate_host(in, host_in_[place], reason) && device_.allocate_host(out, host_out_[place], reason);
    if (!allocated && reason.push('\0')) refuse(error, "the GPU has no %zu bytes for batches (%.300s): free some of its memory, or use another GPU", in + out, reason.data());
    return allocated;
}

// Runs the largest shape, so that ONNX Runtime allocates its memory now, and captures the small ones.
bool DeviceNet::warm_up(Text &error) {
    const size_t width = shapes_.widest();
    for (size_t sequences = Shapes::most(width); sequences; sequences /= 2) {
        if (try_shape(shapes_.of(sequences, width), error)) break;
        if (device_.lost() || sequences == 1) return false;  // fewer may fit
    }
    for (size_t number = 1; captures_ && shapes_.at(number).sequences; number++)
        if (!try_shape(shapes_.at(number), error)) return false;
    error.clear();
    return true;
}

bool DeviceNet::try_shape(Shape shape, Text &error) {
    Alone alone(captures_);
    const float *output = nullptr;
    for (size_t which = 0; which < (types_ ? 3 : 2); which++) {
        int32_t *values = input(0, shape, which);
        for (size_t at = 0; at < shape.sequences * shape.width; at++) values[at] = which == 1;
    }
    if (!device_.upload(in_, host_in_[0], (types_ ? 3 : 2) * input_bytes(shape), error) || !run(shape, error)) return false;
    return device_.record(0, error) && wait(0, output, error);
}

int32_t *DeviceNet::input(size_t place, Shape shape, size_t which) const {
    return reinterpret_cast<int32_t *>(static_cast<char *>(host_in_[place]) + which * input_bytes(shape));
}

bool DeviceNet::begin(size_t place, Shape shape, Text &error) {
    Alone others(false);
    if (!device_.upload(in_, host_in_[place], (types_ ? 3 : 2) * input_bytes(shape), error)) return false;
    if (!run(shape, error)) {
        Text reason;
        // An error of ONNX Runtime may be the device's: then the driver reports it, too.
        if (!device_.finish(reason)) error = static_cast<Text &&>(reason);
        return false;
    }
    return device_.download(host_out_[place], out_, shape.sequences * classes_ * sizeof(float), error) && device_.record(place, error);
}

bool DeviceNet::run(Shape shape, Text &error) {
    const ort::Api &api = session_.api();
    constexpr const char *NAMES[] = {IDS, MASK, TYPES};
    for (size_t which = 0; which < (types_ ? 3 : 2); which++)
        if (!bind(NAMES[which], static_cast<char *>(in_) + which * input_bytes(shape), sizeof(int32_t), shape, ort::INT32, error)) return false;
    if (!bind(output_.data(), out_, sizeof(float), {shape.sequences, classes_}, ort::FLOAT, error)) return false;
    char graph[24] = "-1";
    if (size_t number = captures_ ? shapes_.captured(shape) : 0) snprintf(graph, sizeof graph, "%zu", number);
    ort::RunOptions *options = nullptr;
    bool ran = !session_.fails(api.make_run_options(&options), error) && !session_.fails(api.entry(options, GRAPH, graph), error) &&
               !session_.fails(api.entry(options, WITHOUT_WAITING, "1"), error) && !session_.fails(api.run(session_.handle(), options, binding_), error);
    if (options) api.release(options);
    return ran;
}

// Binds an input, or the output, which is of FLOAT, to memory of the GPU.
bool DeviceNet::bind(const char *name, void *data, size_t element, Shape shape, int type, Text &error) {
    const ort::Api &api = session_.api();
    int64_t sizes[2] = {int64_t(shape.sequences), int64_t(shape.width)};
    ort::Value *value = nullptr;
    if (session_.fails(api.tensor(memory_, data, element * shape.sequences * shape.width, sizes, 2, type, &value), error)) return false;
    bool failed = session_.fails(type == ort::FLOAT ? api.bind_output(binding_, name, value) : api.bind_input(binding_, name, value), error);
    api.release(value);
    return !failed;
}

bool DeviceNet::wait(size_t place, const float *&output, Text &error) {
    output = static_cast<const float *>(host_out_[place]);
    return device_.wait(place, error);
}

}  // namespace hfx
