#include "model.h"
#include <math.h>
#include "device_runner.h"
#include "refusals.h"
#include "shared_net.h"

namespace hfx {
namespace {

constexpr const char *ENDED = "The request of this sequence_id was ended.";
constexpr const char *TRUNCATED = "truncated_tokens";

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

// Keeps only the first `classes` logits of each row, or of each sequence.
void narrow(Values &logits, size_t classes) {
    int64_t &last = logits.shape[logits.shape.size() - 1];
    if (!classes || last <= int64_t(classes)) return;
    size_t width = size_t(last), rows = logits.data.size() / width;
    for (size_t row = 1; row < rows; row++) memmove(logits.data.data() + row * classes, logits.data.data() + row * width, classes * sizeof(float));
    logits.data.shorten(rows * classes), last = int64_t(classes);
}

}  // namespace

Model::~Model() {
    if (host_) host_->release(slot_);
}

bool Model::open(Span config_text, const char *folder, Text &error) {
    Document document;
    if (const char *wrong = document.parse(config_text)) return refuse(error, "Triton's configuration: %.100s", wrong);
    Json config = document.root();
    NetOptions options = {config, encoder_.settings, folder, "logits", -1, {}, false};
    if (!can_be_honoured(config, options.gpu, error) || !choose_host(config, options.gpu, error) || !open_steps(folder, error)) return false;
    if (!bound(config, options, error) || !inputs(config, error) || !outputs(config, error)) return false;
    if (!embedding_.empty()) options.output = embedding_.data();
    if (!host_->open(options, slot_, error)) return false;
    return host_->has_types() == encoder_.settings.types || refuse(error, "settings.json and the graph differ in token_type_ids");
}

bool Model::choose_host(const Json &config, int gpu, Text &error) {
    Span key = parameter(config, SHARED_NET);
    if (key.data && !is_digest(key)) return refuse(error, "parameter %s is no SHA-256 in hexadecimal digits", SHARED_NET);
    if (key.data && gpu >= 0) return refuse(error, "%s can't be used on a GPU: adapters are served in one hop on CPUs only", SHARED_NET);
    if (key.data) host_ = SharedNet::acquire(key);
    else if (gpu >= 0) host_ = make<DeviceRunner>();
    else host_ = make<OwnNet>();
    return host_;
}

bool Model::open_steps(const char *folder, Text &error) {
    Document settings_json, answer_json;
    Text path;
    if (!path_in(folder, {"tokenizer.hfx", 13}, path)) return false;
    const bool again = host_->tokenizer.has_bytes_of(path.data());
    Tokenizer &tokenizer = again || !host_->tokenizer.is_open() ? host_->tokenizer : tokenizer_;
    const char *wrong = again ? nullptr : tokenizer.open(path.data());
    if (wrong) return refuse(error, "%.300s: %.100s", path.data(), wrong);
    if (!read(settings_json, folder, "settings.json", error)) return false;
    if ((wrong = encoder_.open(settings_json.root(), tokenizer))) return refuse(error, "settings.json: %.200s", wrong);
    if (encoder_.settings.task == Task::FEATURE_EXTRACTION) return true;
    if (!read(answer_json, folder, "answer.json", error)) return false;
    wrong = answer_.open(answer_json.root());
    return !wrong || refuse(error, "answer.json: %.200s", wrong);
}

// Reads what limits the queue, and the batches, of the net.
bool Model::bound(const Json &config, NetOptions &options, Text &error) const {
    Bound &bound = options.bound;
    long requests = long(bound.requests), widest = 0, skips = 0;
    int64_t batch = 0;
    if (!whole_number(config, "max_queue_size", 0, requests, error) || !whole_number(config, "max_width", 0, widest, error) ||
        !whole_number(config, "skips_padding", 0, skips, error) || !seconds(config, "max_queue_seconds", bound.seconds, error))
        return false;
    if (!config["max_batch_size"].integer(batch, 1, INT32_MAX)) return refuse(error, "max_batch_size must be at least 1");
    const Array<int32_t> &widths = encoder_.settings.widths;
    if (widest && widths[widths.size() - 1] > widest) return refuse(error, "parameter max_width is below the widths of settings.json");
    bound.requests = size_t(requests), bound.batch = size_t(batch), bound.tokens = bound.batch * encoder_.settings.max_length;
    options.skips_padding = skips && !replaced();
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
            leads = host_->queue.add(made) || leads;
        } else {
            if (job.name.size) named_.remove(job);
            respond(job);
            destroy(made);
        }
    }
    if (leads) host_->wake();
    else if (host_->queue.start_second()) host_->wake_second();
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
    if (!host_->queue.take(rows, estimated, timeout)) return overloaded(job);
    uint64_t began = now();
    bool prepared = read_parameters(options_, job) &&
                    (encoder_.encode(job.inputs, job.tokens, job.reason) || job.fail(triton::INVALID_ARGUMENT));
    job.tokenizing = now() - began;
    job.work = job.rest = job.tokens.rows * job.tokens.sequences * job.tokens.width;
    if (!prepared) host_->queue.leave_out(rows, estimated);
    return prepared && (host_->queue.correct(rows, estimated, job.work, timeout) || overloaded(job));
}

// Estimates the number of tokens before texts are tokenized: one token for 4 bytes, as in English.
size_t Model::estimate(const Inputs &inputs) const {
    size_t tokens = 0, most = encoder_.settings.max_length;
    for (size_t row = 0; row < inputs.texts.size(); row++) {
        size_t text = inputs.texts[row].size / 4 + 1;
        tokens += text < most || encoder_.has_windows(inputs, row) ? text : most;
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
    if (host_->pads_logits() && embedding_.empty() && rank > 1) narrow(made, answer_.classes());
    if (!embedding_.empty()) {
        if (rank != 2) return refuse(job.reason, "the net's vectors have %zu dimensions, not 2", rank);
        Logits vectors = {made.data.data(), size_t(made.shape[0]), 1, size_t(made.shape[1])};
        if (!embed(job.inputs, vectors, embedding_.data(), job.outputs, job.reason)) return false;
    } else {
        size_t wanted = encoder_.settings.nested() ? 3 : 2;
        if (rank != wanted) return refuse(job.reason, "the net's logits have %zu dimensions, not %zu", rank, wanted);
        Logits logits = {made.data.data(), size_t(made.shape[0]), wanted == 3 ? size_t(made.shape[1]) : 1, size_t(made.shape[rank - 1]),
                         encoder_.settings.windows ? job.tokens.windows.data() : nullptr};
        if (!answer_.answer(job.inputs, logits, job.outputs, job.reason)) return false;
    }
    Output *truncated = job.outputs.add(TRUNCATED, Output::INTS, job.tokens.rows, 1);
    return truncated && truncated->content.append(reinterpret_cast<const char *>(job.tokens.truncated.data()), 4 * job.tokens.truncated.size());
}

}  // namespace hfx
