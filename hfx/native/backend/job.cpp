#include "job.h"
#include <time.h>

namespace hfx {
namespace {

constexpr char FRONT[] = "front-";  // the beginning of names that the front makes; a caller can't guess such a name

struct Tensor {
    const char *name = nullptr;
    TRITONSERVER_DataType type = 0;
    const int64_t *shape = nullptr;
    uint32_t rank = 0, buffers = 0;
    uint64_t bytes = 0;
    Span content;

    int64_t elements() const {
        int64_t count = 1;
        for (uint32_t at = 0; at < rank; at++)
            if (shape[at] < 0 || __builtin_mul_overflow(count, shape[at], &count)) return -1;
        return count;
    }
};

// Always returns false.
bool refuse_content(const Tensor &tensor, Job &job) {
    refuse(job.reason, "%.60s does not hold what its shape and type say", tensor.name);
    return job.fail(triton::INVALID_ARGUMENT);
}

// Reads the content of an input: Triton's buffer if there is only one, else a copy.
bool read_content(TRITONBACKEND_Input *input, Tensor &tensor, Text &copy, Job &job) {
    for (uint32_t at = 0; at < tensor.buffers; at++) {
        const void *data = nullptr;
        uint64_t bytes = 0;
        TRITONSERVER_MemoryType memory = triton::CPU;
        int64_t id = 0;
        if (!triton::done(TRITONBACKEND_InputBuffer(input, at, &data, &bytes, &memory, &id))) return refuse_content(tensor, job);
        if (memory != triton::CPU && memory != triton::CPU_PINNED) return refuse_content(tensor, job);
        Span part = {static_cast<const char *>(data), bytes};
        if (tensor.buffers == 1) tensor.content = part;
        else if (!append(copy, part)) return job.fail(triton::UNAVAILABLE);
    }
    if (tensor.buffers > 1) tensor.content = {copy.data(), copy.size()};
    return true;
}

bool read_strings(const Tensor &tensor, Array<Span> &strings, Job &job) {
    int64_t count = tensor.elements();
    // A string has at least 4 bytes, so a count that is too large for the content is refused; so is a second tensor.
    if (tensor.type != triton::BYTES || count < 0 || uint64_t(count) > tensor.content.size / 4 || !strings.empty()) return refuse_content(tensor, job);
    if (!strings.reserve(size_t(count))) return job.fail(triton::UNAVAILABLE);
    size_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t size;
        if (tensor.content.size - at < 4) return refuse_content(tensor, job);
        memcpy(&size, tensor.content.data + at, 4);
        at += 4;
        if (tensor.content.size - at < size || !strings.push({tensor.content.data + at, size})) return refuse_content(tensor, job);
        at += size;
    }
    return at == tensor.content.size || refuse_content(tensor, job);
}

template <typename Value> bool read_values(const Tensor &tensor, TRITONSERVER_DataType type, Array<Value> &values, Job &job) {
    int64_t count = tensor.elements();
    if (tensor.type != type || count < 1 || tensor.content.size / sizeof(Value) != uint64_t(count) || tensor.content.size % sizeof(Value))
        return refuse_content(tensor, job);
    if (!values.resize(size_t(count))) return job.fail(triton::UNAVAILABLE);
    memcpy(values.data(), tensor.content.data, tensor.content.size);
    return true;
}

bool read_tensor(const Tensor &tensor, Job &job) {
    Span name = {tensor.name, strlen(tensor.name)};
    Inputs &inputs = job.inputs;
    if (name.equals("text_input")) return read_strings(tensor, inputs.texts, job);
    if (name.equals("query")) return read_strings(tensor, inputs.queries, job);
    if (name.equals("candidate_labels")) return read_strings(tensor, inputs.labels, job);
    if (name.equals("prompt_name")) return read_strings(tensor, inputs.prompt_names, job);
    if (name.equals("prompt")) return read_strings(tensor, inputs.prompts, job);
    if (name.equals("long")) return read_strings(tensor, inputs.longs, job);
    if (name.equals("stride")) return read_values(tensor, triton::INT32, inputs.stride, job);
    if (name.equals("top_k")) return read_values(tensor, triton::INT32, inputs.top_k, job);
    if (name.equals("dimensions")) return read_values(tensor, triton::INT32, inputs.dimensions, job);
    if (name.equals("multi_label")) return read_values(tensor, triton::BOOL, inputs.multi_label, job);
    return name.equals("raw_scores") ? read_values(tensor, triton::BOOL, inputs.raw_scores, job) : refuse_content(tensor, job);
}

// Checks that a tensor has a row for each text, and one value in each row unless it holds labels.
bool check_shape(const Tensor &tensor, Job &job) {
    bool is_labels = !strcmp(tensor.name, "candidate_labels");
    if (tensor.rank != 2 || (!is_labels && tensor.shape[1] != 1) || tensor.shape[0] < 1) {
        refuse(job.reason, "%.60s must hold one value a row (shape [rows, 1])", tensor.name);
        return job.fail(triton::INVALID_ARGUMENT);
    }
    if (!job.inputs.rows) job.inputs.rows = size_t(tensor.shape[0]);
    if (job.inputs.rows != size_t(tensor.shape[0])) {
        refuse(job.reason, "%.60s has %lld rows, and another tensor %zu", tensor.name, (long long)tensor.shape[0], job.inputs.rows);
        return job.fail(triton::INVALID_ARGUMENT);
    }
    if (is_labels) job.inputs.label_count = size_t(tensor.shape[1]);
    return true;
}

bool add_output(TRITONBACKEND_Response *response, const Output &output) {
    constexpr TRITONSERVER_DataType TYPES[] = {triton::BYTES, triton::FP32, triton::INT32};
    TRITONBACKEND_Output *made = nullptr;
    void *data = nullptr;
    TRITONSERVER_MemoryType memory = triton::CPU;
    int64_t id = 0;
    if (!triton::done(TRITONBACKEND_ResponseOutput(response, &made, output.name, TYPES[output.kind], output.shape.data(), uint32_t(output.shape.size()))))
        return false;
    if (!triton::done(TRITONBACKEND_OutputBuffer(made, &data, output.content.size(), &memory, &id))) return false;
    if (memory != triton::CPU && memory != triton::CPU_PINNED) return false;
    if (!output.content.empty()) memcpy(data, output.content.data(), output.content.size());
    return true;
}

bool add_outputs(TRITONBACKEND_Response *response, const Job &job) {
    uint32_t count = 0;
    if (!triton::done(TRITONBACKEND_RequestOutputCount(job.request, &count))) return false;
    for (uint32_t at = 0; at < count; at++) {
        const char *wanted = nullptr;
        if (!triton::done(TRITONBACKEND_RequestOutputName(job.request, at, &wanted))) return false;
        for (size_t i = 0; i < job.outputs.count; i++)
            if (!strcmp(job.outputs.each[i].name, wanted) && !add_output(response, job.outputs.each[i])) return false;
    }
    return true;
}

// Reports a run of the net to each model that has rows in it, before the models' requests are released.
void report(Job **jobs, size_t count, uint64_t began, uint64_t ended) {
    for (size_t at = 0; at < count; at++) {
        size_t before = 0, rows = 0;
        while (jobs[before]->model != jobs[at]->model) before++;
        if (before < at) continue;
        for (size_t each = at; each < count; each++)
            if (jobs[each]->model == jobs[at]->model && jobs[each]->code != triton::CANCELLED) rows += jobs[each]->inputs.rows;
        if (rows) triton::done(TRITONBACKEND_ModelInstanceReportBatchStatistics(jobs[at]->instance, rows, began, began, ended, now()));
    }
}

TRITONSERVER_Error *failure_of(Job &job) {
    if (job.reason.empty() || !job.reason.push('\0')) return TRITONSERVER_ErrorNew(triton::UNAVAILABLE, NO_MEMORY);
    return TRITONSERVER_ErrorNew(job.code, job.reason.data());
}

}  // namespace

bool Job::fail(TRITONSERVER_Error_Code with) {
    code = with;
    return false;
}

bool Job::fail(TRITONSERVER_Error_Code with, const char *words) {
    refuse_with(reason, words);
    return fail(with);
}

bool Job::fail_run(const Text &error) {
    if (!error.empty()) refuse_with(reason, "the model could not be run: ", error);
    return fail(triton::INTERNAL);
}

uint64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return uint64_t(time.tv_sec) * 1000000000u + uint64_t(time.tv_nsec);
}

bool read_inputs(Task task, Job &job) {
    uint32_t count = 0;
    size_t copied = 0;
    if (!triton::done(TRITONBACKEND_RequestInputCount(job.request, &count))) return job.fail(triton::INTERNAL, "Triton has no inputs");
    for (uint32_t at = 0; at < count; at++) {
        TRITONBACKEND_Input *input = nullptr;
        Tensor tensor;
        if (!triton::done(TRITONBACKEND_RequestInputByIndex(job.request, at, &input)) ||
            !triton::done(TRITONBACKEND_InputProperties(input, &tensor.name, &tensor.type, &tensor.shape, &tensor.rank, &tensor.bytes, &tensor.buffers)))
            return job.fail(triton::INTERNAL, "Triton has no such input");
        if (copied == sizeof job.copies / sizeof *job.copies) return refuse_content(tensor, job);
        if (!check_shape(tensor, job) || !read_content(input, tensor, job.copies[copied], job) || !read_tensor(tensor, job)) return false;
        copied += tensor.buffers > 1;
    }
    return check_inputs(task, job.inputs, job.reason) || job.fail(triton::INVALID_ARGUMENT);
}

bool read_parameters(Options options, Job &job) {
    uint32_t count = 0;
    if (!TRITONBACKEND_RequestParameterCount || !triton::done(TRITONBACKEND_RequestParameterCount(job.request, &count)) || !count) return true;
    Array<Parameter> parameters;
    for (uint32_t at = 0; at < count; at++) {
        const char *name = nullptr;
        TRITONSERVER_ParameterType type = 0;
        const void *value = nullptr;
        if (!triton::done(TRITONBACKEND_RequestParameter(job.request, at, &name, &type, &value))) continue;
        Parameter parameter;
        parameter.name = {name, strlen(name)};
        parameter.kind = type < Parameter::DOUBLE ? Parameter::Kind(type) : Parameter::DOUBLE;
        if (parameter.kind == Parameter::INT) parameter.number = *static_cast<const int64_t *>(value);
        if (parameter.kind == Parameter::BOOL) parameter.number = *static_cast<const bool *>(value);
        if (parameter.kind == Parameter::STRING) parameter.text = {static_cast<const char *>(value), strlen(static_cast<const char *>(value))};
        if (!parameters.push(parameter)) return job.fail(triton::UNAVAILABLE);
    }
    return apply_parameters(options, parameters.data(), parameters.size(), job.inputs, job.reason) || job.fail(triton::INVALID_ARGUMENT);
}

void read_name(Job &job) {
    const char *id = nullptr;
    uint32_t flags = 0;
    if (!TRITONBACKEND_RequestCorrelationIdString || !triton::done(TRITONBACKEND_RequestCorrelationIdString(job.request, &id)) || !id) return;
    if (strncmp(id, FRONT, sizeof FRONT - 1)) return;  // a name that the caller chose
    job.name = {id, strlen(id)};
    job.ends_name = TRITONBACKEND_RequestFlags && triton::done(TRITONBACKEND_RequestFlags(job.request, &flags)) && flags & triton::SEQUENCE_END;
}

bool is_cancelled(const Job &job) {
    if (__atomic_load_n(&job.ended_by_name, __ATOMIC_RELAXED)) return true;
    bool cancelled = false;
    return TRITONBACKEND_RequestIsCancelled && triton::done(TRITONBACKEND_RequestIsCancelled(job.request, &cancelled)) && cancelled;
}

void respond(Job &job) {
    TRITONBACKEND_Response *response = nullptr;
    uint64_t sending = now();
    if (triton::done(TRITONBACKEND_ResponseNew(&response, job.request))) {
        if (!job.failed() && !add_outputs(response, job)) job.fail(triton::INTERNAL, "the answer could not be written");
        TRITONSERVER_Error *error = job.failed() ? failure_of(job) : nullptr;
        triton::done(TRITONBACKEND_ResponseSend(response, triton::FINAL_RESPONSE, error));
        if (error) TRITONSERVER_ErrorDelete(error);
    }
    // In Triton's statistics, compute_input is tokenizing, so the time in the queue ends that much before the net ran.
    bool ran = job.ended;
    uint64_t taken = ran ? job.began - job.tokenizing : sending;
    triton::done(TRITONBACKEND_ModelInstanceReportStatistics(
        job.instance, job.request, !job.failed(), taken, ran ? job.began : sending, ran ? job.ended : sending, now()));
    triton::done(TRITONBACKEND_RequestRelease(job.request, triton::RELEASE_ALL));
}

void list_jobs(Job *batch, Array<Job *> &jobs) {
    jobs.clear();
    for (Job *job = batch, *next; job; job = next) {
        next = job->next;
        if (!jobs.push(job) && !job->fail(triton::UNAVAILABLE)) job->model->finish(job);
    }
}

size_t answer_jobs(Job **jobs, size_t count, uint64_t began, uint64_t ended) {
    size_t rows = 0;
    for (size_t at = 0; at < count; at++) {
        Job &job = *jobs[at];
        const bool cancelled = job.code == triton::CANCELLED;  // its time is not the net's
        job.began = cancelled ? 0 : job.began ? job.began : began, job.ended = cancelled ? 0 : ended;
        rows += cancelled ? 0 : job.inputs.rows;
        if (!job.failed() && !job.model->answer(job)) job.fail(job.reason.empty() ? triton::UNAVAILABLE : triton::INVALID_ARGUMENT);
    }
    report(jobs, count, began, ended);
    // Once the last request of a model that shares the net is released, the model may be gone.
    for (size_t at = 0; at < count; at++) jobs[at]->model->finish(jobs[at]);
    return rows;
}

}  // namespace hfx
