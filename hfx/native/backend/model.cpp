#include "model.h"
#include <errno.h>
#include <math.h>
#include "runs.h"

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

}  // namespace

bool Model::open(Span config_text, const char *folder, Text &error) {
    Document document, settings_json, answer_json;
    if (const char *wrong = document.parse(config_text)) return refuse(error, "Triton's configuration: %.100s", wrong);
    Json config = document.root();
    if (!can_be_honoured(config, error)) return false;
    Text path;
    if (!path_in(folder, {"tokenizer.hfx", 13}, path)) return false;
    if (const char *wrong = tokenizer_.open(path.data())) return refuse(error, "%.300s: %.100s", path.data(), wrong);
    if (!read(settings_json, folder, "settings.json", error)) return false;
    if (const char *wrong = encoder_.open(settings_json.root(), tokenizer_)) return refuse(error, "settings.json: %.200s", wrong);
    if (encoder_.settings.task != Task::FEATURE_EXTRACTION) {
        if (!read(answer_json, folder, "answer.json", error)) return false;
        if (const char *wrong = answer_.open(answer_json.root())) return refuse(error, "answer.json: %.200s", wrong);
    }
    return settings(config, error) && inputs(config, error) && outputs(config, error) &&
           net_.open(config, folder, embedding_.empty() ? "logits" : embedding_.data(), error) &&
           (net_.has_types() == encoder_.settings.types || refuse(error, "settings.json and the graph differ in token_type_ids"));
}

bool Model::settings(const Json &config, Text &error) {
    long requests = long(queue_.bound.requests), widest = 0, skips = 0;
    int64_t batch = 0;
    if (!whole_number(config, "max_queue_size", 0, requests, error) || !whole_number(config, "max_width", 0, widest, error) ||
        !whole_number(config, "skips_padding", 0, skips, error) || !seconds(config, "max_queue_seconds", queue_.bound.seconds, error))
        return false;
    if (!config["max_batch_size"].integer(batch, 1, INT32_MAX)) return refuse(error, "max_batch_size must be at least 1");
    const Array<int32_t> &widths = encoder_.settings.widths;
    if (widest && widths[widths.size() - 1] > widest) return refuse(error, "parameter max_width is below the widths of settings.json");
    queue_.bound.requests = size_t(requests), queue_.bound.batch = size_t(batch);
    queue_.bound.tokens = queue_.bound.batch * encoder_.settings.max_length;
    skips_padding_ = skips;
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
        job.request = requests[at], job.instance = instance;
        if (made ? prepare(job) : job.fail(triton::UNAVAILABLE)) {
            leads = queue_.add(made) || leads;
        } else {
            if (job.name.size) named_.remove(job);
            respond(job);
            destroy(made);
        }
    }
    if (leads) lead();
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
    if (!queue_.take(rows, estimated, timeout)) return overloaded(job);
    uint64_t began = now();
    bool prepared = read_parameters(options_, job) &&
                    (encoder_.encode(job.inputs, job.tokens, job.reason) || job.fail(triton::INVALID_ARGUMENT));
    job.tokenizing = now() - began;
    job.work = job.tokens.rows * job.tokens.sequences * job.tokens.width;
    if (!prepared) queue_.leave_out(rows, estimated);
    return prepared && (queue_.correct(rows, estimated, job.work, timeout) || overloaded(job));
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

void Model::lead() {
    while (Job *batch = queue_.next()) {
        size_t large = batch->work > LARGE ? batch->work : 0;
        run(batch, large);
        if (large) queue_.finish(large);
    }
}

void Model::interlude(void *model) {
    Model &own = *static_cast<Model *>(model);
    uint64_t began = now();
    if (Job *batch = own.queue_.next_small()) own.run(batch, false);
    own.between_ += now() - began;
}

void Model::run(Job *batch, bool large) {
    Array<Job *> jobs;
    for (Job *job = batch, *next; job; job = next) {
        next = job->next;
        if (!jobs.push(job) && !job->fail(triton::UNAVAILABLE)) finish(job);
    }
    Interlude between;
    if (large) between = {interlude, this}, between_ = 0;
    Runs runs(net_, skips_padding_, encoder_.settings.task == Task::ZERO_SHOT_CLASSIFICATION ? 2 : 1, jobs, between);
    const uint64_t first = now();
    size_t count = 0, all = 0, work = 0;
    for (uint64_t began = first, ended = 0; Job **ran = runs.next(count); began = now()) {
        ended = now();
        TRITONBACKEND_ModelInstance *instance = ran[0]->instance;
        size_t rows = 0;
        for (size_t at = 0; at < count; at++) {
            Job &job = *ran[at];
            if (job.code != triton::CANCELLED) job.began = began, job.ended = ended, rows += job.inputs.rows, work += job.work;
            if (!job.failed() && !answer(job)) job.fail(job.reason.empty() ? triton::UNAVAILABLE : triton::INVALID_ARGUMENT);
            finish(&job);
        }
        if (rows) triton::done(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, rows, began, began, ended, now()));
        all += rows;
    }
    queue_.ran(large ? 0 : all, work, now() - first - (large ? between_ : 0));
}

void Model::finish(Job *job) {
    if (job->name.size) named_.remove(*job);
    respond(*job);
    destroy(job);
}

bool Model::answer(Job &job) const {
    const Values &made = job.made;
    size_t rank = made.shape.size();
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
