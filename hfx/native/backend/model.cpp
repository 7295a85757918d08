#include "model.h"
#include <errno.h>
#include <math.h>
#include "refusals.h"

namespace hfx {
namespace {

constexpr const char *ENDED = "The request of this sequence_id was ended.";
constexpr const char *TRUNCATED = "truncated_tokens";
constexpr const char *SHARED_NET = "shared_net", *ADAPTER_FILE = "adapter.bin";

// Refuses a request because too much work waits. Always returns false.
bool overloaded(Job &job) {
    refuse(job.reason, "[hfx:QUEUE_FULL] %s. %s", IS_OVERLOADED, TRY_AGAIN);
    return job.fail(triton::UNAVAILABLE);
}

bool read(Document &document, const char *folder, const char *name, Text &error) {
    Text path;
    if (!path_in(folder, {name, strlen(name)}, path)) return false;
    const char *wrong = document.read(path.data());
    return !wrong || refuse(error, "%.300s: %.100s", path.data(), wrong);
}

bool seconds(const Json &config, const char *name, double &value, Text &error) {
    Span text = parameter(config, name);
    if (!text.data) return true;
    char digits[32] = {}, *end = digits;
    if (text.size < sizeof digits) memcpy(digits, text.data, text.size);
    value = strtod(digits, &end);
    return (*digits && !*end && value >= 0 && value < INFINITY) || refuse(error, "parameter %s is no number of seconds", name);
}

bool is_digest(Span text) {
    bool is_hexadecimal = text.size == 64;
    for (size_t at = 0; is_hexadecimal && at < text.size; at++) is_hexadecimal = strchr("0123456789abcdef", text.data[at]) && text.data[at];
    return is_hexadecimal;
}

// Leaves the first `classes` logits of each row.
void narrow(Values &logits, size_t classes) {
    size_t rows = size_t(logits.shape[0]), width = size_t(logits.shape[1]);
    for (size_t row = 1; row < rows; row++) memmove(logits.data.data() + row * classes, logits.data.data() + row * width, classes * sizeof(float));
    logits.data.shorten(rows * classes), logits.shape[1] = int64_t(classes);
}

}  // namespace

Model::~Model() {
    destroy(device_);
    if (!shared_) return;
    if (slot_ >= 0) shared_->pool.free(slot_);
    SharedNet::release(shared_);
}

bool Model::open(Span config_text, const char *folder, Text &error) {
    Document document;
    if (const char *wrong = document.parse(config_text)) return refuse(error, "Triton's configuration: %.100s", wrong);
    Json config = document.root();
    int gpu = -1;
    if (!can_be_honoured(config, gpu, error)) return false;
    Span key = parameter(config, SHARED_NET);
    bool opens = true;
    if (key.data && !is_digest(key)) return refuse(error, "parameter %s is no SHA-256 in hexadecimal digits", SHARED_NET);
    if (key.data && !(shared_ = SharedNet::acquire(key, opens))) return false;
    if (shared_) runner_ = &shared_->runner;
    if (gpu >= 0 && shared_) return refuse(error, "%s can't be used on a GPU: adapters are served in one hop on CPUs only", SHARED_NET);
    if (gpu >= 0 && !(device_ = make<DeviceRunner>())) return false;
    if (!open_steps(config, folder, opens, error)) return false;
    const char *output = embedding_.empty() ? "logits" : embedding_.data();
    if (device_ ? !device_->open(config, folder, output, gpu, encoder_.settings, error) : !open_net(config, folder, output, opens, error)) return false;
    return (device_ ? device_->has_types() : runner_->net.has_types()) == encoder_.settings.types || refuse(error, "settings.json and the graph differ in token_type_ids");
}

bool Model::open_steps(const Json &config, const char *folder, bool opens, Text &error) {
    Document settings_json, answer_json;
    Text path;
    if (!path_in(folder, {"tokenizer.hfx", 13}, path)) return false;
    bool again = shared_ && !opens && shared_->tokenizer.has_bytes_of(path.data());
    Tokenizer &tokenizer = shared_ && (opens || again) ? shared_->tokenizer : tokenizer_;
    const char *wrong = again ? nullptr : tokenizer.open(path.data());
    if (wrong) return refuse(error, "%.300s: %.100s", path.data(), wrong);
    if (!read(settings_json, folder, "settings.json", error)) return false;
    if ((wrong = encoder_.open(settings_json.root(), tokenizer))) return refuse(error, "settings.json: %.200s", wrong);
    if (encoder_.settings.task != Task::FEATURE_EXTRACTION) {
        if (!read(answer_json, folder, "answer.json", error)) return false;
        if ((wrong = answer_.open(answer_json.root()))) return refuse(error, "answer.json: %.200s", wrong);
    }
    return settings(config, opens, error) && inputs(config, error) && outputs(config, error);
}

bool Model::open_net(const Json &config, const char *folder, const char *output, bool opens, Text &error) {
    if (opens && !runner_->net.open(config, folder, output, error)) return false;
    if (opens) runner_->item_rank = item_rank();
    if (!runner_->net.makes(output) || runner_->item_rank != item_rank())
        return refuse(error, "the model and the others of its %s have different tasks", SHARED_NET);
    return !shared_ || open_adapter(config, folder, opens, error);
}

// Reads the model's own weights, which are in a file beside the graph, into the pool of the shared net.
bool Model::open_adapter(const Json &config, const char *folder, bool opens, Text &error) {
    Span file = parameter(config, "model_file");
    Text name, path;
    size_t stride = 0;
    while (file.size && file.data[file.size - 1] != '/') file.size--;
    if (!append(name, file) || !append(name, ADAPTER_FILE) || !path_in(folder, {name.data(), name.size()}, path)) return false;
    if (opens) {
        if (!runner_->net.use(shared_->pool, stride, error) || (!stride && !count_floats(path.data(), stride, error))) return false;
        if (!shared_->pool.open(stride, error) || !shared_->start(error)) return false;
    }
    return shared_->pool.load(path.data(), slot_, error);
}

// Reads the settings of the queue and of the net. Those of a shared net are of the model that opens it.
bool Model::settings(const Json &config, bool opens, Text &error) {
    Bound bound;
    long requests = long(bound.requests), widest = 0, skips = 0;
    int64_t batch = 0;
    if (!whole_number(config, "max_queue_size", 0, requests, error) || !whole_number(config, "max_width", 0, widest, error) ||
        !whole_number(config, "skips_padding", 0, skips, error) || !seconds(config, "max_queue_seconds", bound.seconds, error))
        return false;
    if (!config["max_batch_size"].integer(batch, 1, INT32_MAX)) return refuse(error, "max_batch_size must be at least 1");
    const Array<int32_t> &widths = encoder_.settings.widths;
    if (widest && widths[widths.size() - 1] > widest) return refuse(error, "parameter max_width is below the widths of settings.json");
    bound.requests = size_t(requests), bound.batch = size_t(batch);
    // max_batch_size limits a request. On a GPU, a batch may have more rows.
    if (device_ && bound.batch < Shapes::MOST_SEQUENCES) bound.batch = Shapes::MOST_SEQUENCES;
    if (device_) bound.large = Shapes::MOST_TOKENS;
    bound.tokens = bound.batch * encoder_.settings.max_length;
    if (opens) queue().bound = bound, runner_->skips_padding = skips;
    return true;
}

// Checks that all inputs that callers may leave out are settings of the task.
bool Model::inputs(const Json &config, Text &error) {
    for (Json each = config["input"].first(); each; each = each.next()) {
        if (!each["optional"].is_true()) continue;
        Span name = each["name"].text();
        Options option = option_named(name);
        if (!option) return refuse(error, "input %.*s is no setting of the task", int(name.size < 80 ? name.size : 80), name.data);
        options_ |= option;
    }
    return true;
}

// Checks the outputs. For feature-extraction, one of them is the net's own. Refuses outputs that would never be made.
bool Model::outputs(const Json &config, Text &error) {
    Task task = encoder_.settings.task;
    bool embeds = task == Task::FEATURE_EXTRACTION;
    for (Json each = config["output"].first(); each; each = each.next()) {
        Span name = each["name"].text();
        bool is_label = name.equals("label") && task != Task::TEXT_RANKING;
        if (name.equals(TRUNCATED) || (!embeds && (is_label || name.equals("score")))) continue;
        if (!embeds || !embedding_.empty()) return refuse(error, "output %.*s is none of the task's", int(name.size < 80 ? name.size : 80), name.data);
        if (!append(embedding_, name) || !embedding_.push('\0')) return false;
    }
    return !embeds || !embedding_.empty() || refuse(error, "the model has no output of the net");
}

void Model::execute(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests, size_t count) {
    bool leads = false;
    for (size_t at = 0; at < count; at++) {
        Job *made = make<Job>(), without_memory;
        Job &job = made ? *made : without_memory;
        job.request = requests[at], job.instance = instance, job.model = this, job.slot = slot_;
        if (made ? prepare(job) : job.fail(triton::UNAVAILABLE)) {
            leads = queue().add(made) || leads;
        } else {
            if (job.name.size) named_.remove(job);
            respond(job);
            destroy(made);
        }
    }
    if (leads) lead();
}

void Model::lead() {
    if (device_) device_->wake();
    else if (shared_) shared_->wake();
    else runner_->lead();
}

// Turns a request into tokens. Returns false if the request is refused or ends another one, or if the queue is full.
bool Model::prepare(Job &job) {
    Task task = encoder_.settings.task;
    if (!read_inputs(task, job)) return false;
    read_name(job);
    if (job.ends_name && named_.end(job.name)) return job.fail(triton::CANCELLED, ENDED);
    if (job.name.size) named_.add(job);
    TRITONBACKEND_InferenceRequestTimeoutMicroseconds && triton::done(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(job.request, &job.timeout));
    size_t rows = job.inputs.rows, estimated = estimate(job.inputs);
    double timeout = 1e-6 * double(job.timeout);
    if (!queue().take(rows, estimated, timeout)) return overloaded(job);
    uint64_t began = now();
    bool prepared = read_parameters(options_, job) &&
                    (encoder_.encode(job.inputs, job.tokens, job.reason) || job.fail(triton::INVALID_ARGUMENT));
    job.tokenizing = now() - began;
    job.work = job.rest = job.tokens.rows * job.tokens.sequences * job.tokens.width;
    if (!prepared) queue().leave_out(rows, estimated);
    return prepared && (queue().correct(rows, estimated, job.work, timeout) || overloaded(job));
}

// Estimates the number of tokens before texts are tokenized: one token for 4 bytes, as in English.
size_t Model::estimate(const Inputs &inputs) const {
    size_t tokens = 0, most = encoder_.settings.max_length;
    for (const Span &each : inputs.texts) {
        size_t text = each.size / 4 + 1;
        tokens += text < most ? text : most;
    }
    return tokens * (inputs.label_count ? inputs.label_count : 1);
}

void Model::finish(Job *job) {
    if (job->name.size) named_.remove(*job);
    respond(*job);
    destroy(job);
}

bool Model::answer(Job &job) const {
    Values &made = job.made;
    size_t rank = made.shape.size();
    // A shared net has as many logits as the model with most classes.
    if (shared_ && embedding_.empty() && rank == 2 && made.shape[1] > int64_t(answer_.classes())) narrow(made, answer_.classes());
    if (!embedding_.empty()) {
        if (rank != 2) return refuse(job.reason, "the net's vectors have %zu dimensions, not 2", rank);
        Logits vectors = {made.data.data(), size_t(made.shape[0]), 1, size_t(made.shape[1])};
        if (!embed(job.inputs, vectors, embedding_.data(), job.outputs, job.reason)) return false;
    } else {
        size_t wanted = encoder_.settings.task == Task::ZERO_SHOT_CLASSIFICATION ? 3 : 2;
        if (rank != wanted) return refuse(job.reason, "the net's logits have %zu dimensions, not %zu", rank, wanted);
        Logits logits = {made.data.data(), size_t(made.shape[0]), wanted == 3 ? size_t(made.shape[1]) : 1, size_t(made.shape[rank - 1])};
        if (!answer_.answer(job.inputs, logits, job.outputs, job.reason)) return false;
    }
    Output *truncated = job.outputs.add(TRUNCATED, Output::INTS, job.tokens.rows, 1);
    return truncated && truncated->content.append(reinterpret_cast<const char *>(job.tokens.truncated.data()), 4 * job.tokens.truncated.size());
}

}  // namespace hfx
