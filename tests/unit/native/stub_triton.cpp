// A Triton for the backend alone: it sends requests from threads, fails where it is told to, and checks that each request
// is answered and released once, and each error freed. stub_triton FOLDER CONFIG: FOLDER has the version 1 of a model of
// text-classification, for stub_onnxruntime.cpp; FOLDER-other has it with other weights if its net is shared. Prints what came; ends with 1, and words, where something is wrong. With
// a third argument it does something else:
//   load            loads the model, and prints why it can't
//   ask             reads requests from the standard input, sends them at once, and prints code and answer of each. A
//                   request is a line: the number of checks until it is cancelled, or -1, and its tensors: NAME TYPE ROWS
//                   COLUMNS, and the values, texts in hexadecimal digits after an x.
//                   With "wait", waits for the process's end for ten seconds
//   mix N CALLERS   sends N requests from callers, each with a text of its own, until one fails, and prints the metrics
//   bench N S TEXT  sends TEXT from N callers for S seconds, as a Triton with four instances, and prints the answers per second
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>
#include "backend/triton.h"
#include "linear.h"
#include "ort.h"

using Strings = std::vector<std::string>;

struct TRITONSERVER_Error {
    int code;
    std::string words;
};
struct TRITONSERVER_Message {
    std::string text;
};
struct TRITONSERVER_Parameter {
    std::string text;
};
struct TRITONSERVER_Metric {
    std::atomic<long> value{0};
};
struct TRITONBACKEND_Model {
    std::string folder, config;
    void *state;
};
struct TRITONBACKEND_ModelInstance {
    TRITONBACKEND_Model *model;
};
struct TRITONBACKEND_Input {
    std::string name;
    int type;
    std::vector<int64_t> shape;
    Strings buffers;
    int memory;
    std::vector<std::vector<char>> copies;  // of buffers that were read, in memory of their size: ASan finds who reads beyond them
};
struct TRITONBACKEND_Output {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<char> data;
};
struct Parameter {
    std::string name;
    int type;
    int64_t number;
    std::string text = "";
};
struct TRITONBACKEND_Request {
    std::vector<TRITONBACKEND_Input> inputs;
    Strings outputs{"label", "score", "truncated_tokens"};
    std::vector<Parameter> parameters;
    std::string id;  // of its sequence
    uint32_t flags = 0;
    uint64_t timeout = 0;
    std::atomic<bool> cancelled{false};
    std::atomic<int> checks{-1};  // how often it is not cancelled before it is; -1: always
    std::atomic<int> responses{0}, releases{0}, reports{0};
    int code = 0;
    std::string answer;  // all outputs, or the words of the error
};
struct TRITONBACKEND_Response {
    TRITONBACKEND_Request *request;
    std::deque<TRITONBACKEND_Output> outputs;
};

namespace {

std::atomic<long> errors, messages, responses;   // that live
thread_local long calls_left, allocations_left;  // until one fails; 0: none does
thread_local bool failed;                        // one has
std::mutex metrics_lock;
std::map<std::string, TRITONSERVER_Metric> metrics;  // by their labels
size_t most_bytes = SIZE_MAX;                    // of an allocation

void die(const std::string &words) {
    fprintf(stderr, "%s\n", words.c_str());
    _exit(1);
}
template <typename Words> void check(bool right, const Words &words) {
    if (!right) die(words);
}

bool fails(long &left) {
    if (!left || --left) return false;
    return failed = true;
}
TRITONSERVER_Error *call() { return fails(calls_left) ? TRITONSERVER_ErrorNew(1, "this call fails") : nullptr; }

}  // namespace

const char *hfx::replaced() { return getenv("STUB_REPLACED"); }

// The linker sends the allocations of the sources here.
extern "C" {
void *__real_malloc(size_t size);
void *__real_realloc(void *memory, size_t size);
void *__wrap_malloc(size_t size) { return size > most_bytes || fails(allocations_left) ? nullptr : __real_malloc(size); }
void *__wrap_realloc(void *memory, size_t size) { return size > most_bytes || fails(allocations_left) ? nullptr : __real_realloc(memory, size); }

// ---- the interface

ort::Status *RegisterCustomOps(ort::SessionOptions *, const ort::ApiBase *) {
    check(!hfx::replaced(), "operators are registered");
    return nullptr;
}

TRITONSERVER_Error *TRITONSERVER_ErrorNew(int code, const char *words) { return errors++, new TRITONSERVER_Error{code, words}; }
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error) { errors--, delete error; }
TRITONSERVER_Error *TRITONSERVER_LogMessage(int, const char *, int, const char *message) { return fprintf(stderr, "log: %s\n", message), nullptr; }
TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *message, const char **text, size_t *bytes) {
    return *text = message->text.data(), *bytes = message->text.size(), call();
}
TRITONSERVER_Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *message) { return messages--, delete message, nullptr; }
TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name, int, const void *value) {
    return new TRITONSERVER_Parameter{std::string(name) + "=" + static_cast<const char *>(value)};
}
void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter *parameter) { delete parameter; }
TRITONSERVER_Error *TRITONSERVER_MetricFamilyNew(TRITONSERVER_MetricFamily **out, int, const char *, const char *) { return *out = nullptr, call(); }
TRITONSERVER_Error *TRITONSERVER_MetricNew(TRITONSERVER_Metric **out, TRITONSERVER_MetricFamily *, const TRITONSERVER_Parameter **labels, uint64_t count) {
    if (auto *error = call()) return error;
    std::string name;
    for (uint64_t at = 0; at < count; at++) name += (at ? "," : "") + labels[at]->text;
    std::lock_guard<std::mutex> held(metrics_lock);
    return *out = &metrics[name], nullptr;
}
TRITONSERVER_Error *TRITONSERVER_MetricIncrement(TRITONSERVER_Metric *metric, double value) { return metric->value += long(value), call(); }
TRITONSERVER_Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor) { return *major = 1, *minor = 19, call(); }
TRITONSERVER_Error *TRITONBACKEND_ModelConfig(TRITONBACKEND_Model *model, uint32_t, TRITONSERVER_Message **out) {
    if (auto *error = call()) return error;
    return messages++, *out = new TRITONSERVER_Message{model->config}, nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ModelRepository(TRITONBACKEND_Model *model, int *type, const char **out) { return *type = 0, *out = model->folder.c_str(), call(); }
TRITONSERVER_Error *TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *, uint64_t *out) { return *out = 1, call(); }
TRITONSERVER_Error *TRITONBACKEND_ModelState(TRITONBACKEND_Model *model, void **out) { return *out = model->state, nullptr; }
TRITONSERVER_Error *TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *model, void *state) {
    auto *error = call();
    if (!error) model->state = state;
    return error;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Model **out) { return *out = instance->model, nullptr; }
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(
    TRITONBACKEND_ModelInstance *, TRITONBACKEND_Request *request, bool, uint64_t began, uint64_t computed, uint64_t made, uint64_t ended) {
    check(began <= computed && computed <= made && made <= ended, "times don't ascend");
    check(!request->releases, "a report on a request that was released");
    return request->reports++, call();
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance *, uint64_t rows, uint64_t, uint64_t, uint64_t, uint64_t) {
    return check(rows, "a batch without rows"), call();
}
TRITONSERVER_Error *TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request *request, uint32_t *out) { return *out = uint32_t(request->inputs.size()), call(); }
TRITONSERVER_Error *TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request *request, uint32_t at, TRITONBACKEND_Input **out) { return *out = &request->inputs.at(at), call(); }
TRITONSERVER_Error *TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request *request, uint32_t *out) { return *out = uint32_t(request->outputs.size()), call(); }
TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request *request, uint32_t at, const char **out) { return *out = request->outputs.at(at).c_str(), call(); }
TRITONSERVER_Error *TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request *request, uint32_t *out) { return *out = uint32_t(request->parameters.size()), call(); }
TRITONSERVER_Error *TRITONBACKEND_RequestParameter(TRITONBACKEND_Request *request, uint32_t at, const char **name, int *type, const void **value) {
    const Parameter &found = request->parameters.at(at);
    return *name = found.name.c_str(), *type = found.type, *value = found.type ? static_cast<const void *>(&found.number) : found.text.c_str(), call();
}
TRITONSERVER_Error *TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request *request, bool *out) {
    return *out = request->cancelled || (request->checks >= 0 && request->checks-- == 0), call();
}
TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationIdString(TRITONBACKEND_Request *request, const char **out) { return *out = request->id.c_str(), call(); }
TRITONSERVER_Error *TRITONBACKEND_RequestFlags(TRITONBACKEND_Request *request, uint32_t *out) { return *out = request->flags, call(); }
TRITONSERVER_Error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(TRITONBACKEND_Request *request, uint64_t *out) { return *out = request->timeout, call(); }
TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *request, uint32_t flags) {
    check(flags == 1 && request->releases == 0, "a request is released twice");
    for (auto &input : request->inputs) input.copies.clear();  // who still reads them is found by ASan
    return request->releases++, nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_InputProperties(
    TRITONBACKEND_Input *input, const char **name, int *type, const int64_t **shape, uint32_t *rank, uint64_t *bytes, uint32_t *buffers) {
    *name = input->name.c_str(), *type = input->type, *shape = input->shape.data(), *rank = uint32_t(input->shape.size()), *bytes = 0;
    for (const std::string &each : input->buffers) *bytes += each.size();
    return *buffers = uint32_t(input->buffers.size()), call();
}
TRITONSERVER_Error *TRITONBACKEND_InputBuffer(TRITONBACKEND_Input *input, uint32_t at, const void **data, uint64_t *bytes, int *memory, int64_t *) {
    const std::string &buffer = input->buffers.at(at);
    input->copies.emplace_back(buffer.begin(), buffer.end());
    return *data = input->copies.back().data(), *bytes = buffer.size(), *memory = input->memory, call();
}
TRITONSERVER_Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **out, TRITONBACKEND_Request *request) {
    if (auto *error = call()) return error;
    return responses++, *out = new TRITONBACKEND_Response{request, {}}, nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *response, TRITONBACKEND_Output **out, const char *name, int, const int64_t *shape, uint32_t rank) {
    if (auto *error = call()) return error;
    response->outputs.push_back({name, {shape, shape + rank}, {}});
    return *out = &response->outputs.back(), nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output *output, void **data, uint64_t bytes, int *memory, int64_t *) {
    return output->data.resize(bytes), *data = output->data.data(), *memory = 0, call();
}
TRITONSERVER_Error *TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *response, uint32_t flags, TRITONSERVER_Error *error) {
    TRITONBACKEND_Request &request = *response->request;
    check(flags == 1 && request.responses == 0 && request.releases == 0, "a request is answered twice, or after its release");
    if (error) request.code = error->code, request.answer = error->words;
    else
        for (const auto &each : response->outputs) request.answer += each.name + std::string(each.data.begin(), each.data.end());
    request.responses++, responses--;
    delete response;
    return call();
}

TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *);
TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *);
TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *, TRITONBACKEND_Request **, uint32_t);
}

namespace {

// ---- requests

constexpr int BOOL = 1, INT32 = 8, BYTES = 13, INVALID = 3, UNAVAILABLE = 4, CANCELLED = 7;

std::string packed(const Strings &texts) {
    std::string all;
    for (const std::string &text : texts) {
        uint32_t size = uint32_t(text.size());
        all.append(reinterpret_cast<char *>(&size), 4).append(text);
    }
    return all;
}
void add_input(TRITONBACKEND_Request &request, const char *name, int type, std::vector<int64_t> shape, Strings buffers, int memory = 0) {
    request.inputs.push_back({name, type, std::move(shape), std::move(buffers), memory, {}});
}

// The kinds of requests, each for a function that fills one; `code` is the error that it gets.
struct Kind {
    int code;
    void (*fill)(TRITONBACKEND_Request &);
};
template <int Rows> void texts(TRITONBACKEND_Request &r) {
    Strings all;
    for (int row = 0; row < Rows; row++) all.push_back(std::string(size_t(row % 3), 'a') + " b a" + (row % 7 == 3 ? " a b a b a b a b a b a b a" : ""));
    add_input(r, "text_input", BYTES, {Rows, 1}, {packed(all)});
}
const Kind KINDS[] = {
    {0, texts<1>},
    {0, texts<5>},
    {0, texts<64>},
    {0, texts<200>},  // more rows than a batch has
    {0, texts<300>},   // a large request, which is run in parts
    {0, texts<1300>},  // on a GPU, too
    {CANCELLED, [](auto &r) { texts<1300>(r); r.checks = 1; }},  // between its parts
    {0, [](auto &r) { add_input(r, "text_input", BYTES, {1, 1}, {packed({""})}); }},
    {0, [](auto &r) { std::string all = packed({"a b a"}); add_input(r, "text_input", BYTES, {1, 1}, {all.substr(0, 2), "", all.substr(2)}); }},
    {0, [](auto &r) { texts<2>(r); add_input(r, "top_k", INT32, {2, 1}, {std::string("\2\0\0\0\2\0", 6), std::string("\0\0", 2)}); }},
    {0, [](auto &r) { texts<2>(r); r.parameters = {{"top_k", 1, 2}, {"triton_x", 0, 0}}; }},
    {0, [](auto &r) { texts<2>(r); r.outputs = {"score", "score", "other"}; }},
    {0, [](auto &r) { texts<2>(r); r.outputs = {}; }},
    {0, [](auto &r) { texts<2>(r); r.timeout = 60'000'000; }},
    {1, [](auto &r) { add_input(r, "text_input", BYTES, {1, 1}, {packed({"fails"})}); }},
    {CANCELLED, [](auto &r) { texts<3>(r); r.cancelled = true; }},
    {INVALID, [](auto &) {}},
    {INVALID, [](auto &r) { add_input(r, "text_input", BYTES, {1, 1}, {}); }},
    {INVALID, [](auto &r) { add_input(r, "text_input", BYTES, {1, 1}, {"\1"}); }},
    {INVALID, [](auto &r) { add_input(r, "text_input", BYTES, {1, 1}, {std::string("\xff\xff\xff\xff" "a", 5)}); }},
    {INVALID, [](auto &r) { add_input(r, "text_input", BYTES, {2, 1}, {packed({"abcd"})}); }},
    {INVALID, [](auto &r) { add_input(r, "text_input", BYTES, {1, 1}, {packed({"a", "b"})}); }},
    {INVALID, [](auto &r) { add_input(r, "text_input", BYTES, {INT64_MAX, 1}, {packed({"a"})}); }},
    {INVALID, [](auto &r) { add_input(r, "text_input", BYTES, {-1, 1}, {packed({"a"})}); }},
    {INVALID, [](auto &r) { add_input(r, "text_input", BYTES, {0, 1}, {""}); }},
    {INVALID, [](auto &r) { add_input(r, "text_input", BYTES, {1}, {packed({"a"})}); }},
    {INVALID, [](auto &r) { add_input(r, "text_input", BYTES, {}, {packed({"a"})}); }},
    {INVALID, [](auto &r) { add_input(r, "text_input", BYTES, {1, 2}, {packed({"a", "b"})}); }},
    {INVALID, [](auto &r) { add_input(r, "text_input", INT32, {1, 1}, {"abcd"}); }},
    {INVALID, [](auto &r) { add_input(r, "text_input", BYTES, {1, 1}, {packed({"a"})}, 2); }},  // of a GPU
    {INVALID, [](auto &r) { add_input(r, "text_input", BYTES, {1, 1}, {packed({"\xff"})}); }},
    {INVALID, [](auto &r) { texts<2>(r); texts<2>(r); }},
    {INVALID, [](auto &r) { texts<2>(r); add_input(r, "top_k", INT32, {2, 1}, {"\1"}); }},
    {INVALID, [](auto &r) { texts<2>(r); add_input(r, "top_k", INT32, {1, 1}, {std::string("\1\0\0\0", 4)}); }},
    {INVALID, [](auto &r) { texts<2>(r); add_input(r, "top_k", INT32, {2, 1}, {std::string(8, '\0')}); }},
    {INVALID, [](auto &r) { texts<2>(r); add_input(r, "top_k", BOOL, {2, 1}, {"\1\1"}); }},
    {INVALID, [](auto &r) { texts<2>(r); add_input(r, "other", INT32, {2, 1}, {"abcdefgh"}); }},
    {INVALID, [](auto &r) { texts<2>(r); r.parameters = {{"top_k", 1, 0}}; }},
    {INVALID, [](auto &r) { texts<2>(r); r.parameters = {{"unknown", 0, 0}}; }},
};
constexpr size_t COUNT = sizeof KINDS / sizeof *KINDS;

void send(TRITONBACKEND_Model &model, TRITONBACKEND_Request &request) {
    TRITONBACKEND_ModelInstance instance = {&model};
    TRITONBACKEND_Request *one = &request;
    auto *error = TRITONBACKEND_ModelInstanceExecute(&instance, &one, 1);
    check(!error, "Execute returns an error");
}
// Another thread may have the request: one that leads, or the thread of a shared net.
void wait_for(const TRITONBACKEND_Request &request) {
    while (!request.releases) std::this_thread::yield();
}
void check_done(const TRITONBACKEND_Request &request, bool answered = true) {
    check(request.releases == 1, "a request is not released");
    check(request.responses == 1 || !answered, "a request is not answered");
}
bool open(TRITONBACKEND_Model &model, std::string &words) {
    auto *error = TRITONBACKEND_ModelInitialize(&model);
    if (error) words = error->words, TRITONSERVER_ErrorDelete(error);
    return !error;
}
void close(TRITONBACKEND_Model &model) { check(!TRITONBACKEND_ModelFinalize(&model), "ModelFinalize returns an error"); }

// ---- what is tried

// Each kind alone: what it gets, which it gets in a batch, too.
Strings alone(TRITONBACKEND_Model &model) {
    Strings answers;
    for (size_t kind = 0; kind < COUNT; kind++) {
        TRITONBACKEND_Request request;
        KINDS[kind].fill(request);
        send(model, request);
        wait_for(request);
        check_done(request);
        check(request.code == KINDS[kind].code, "kind " + std::to_string(kind) + " gets the error " + std::to_string(request.code) + ": " + request.answer);
        answers.push_back(request.answer);
    }
    return answers;
}

// Threads with all kinds in turns. `full`: some are refused because too many wait.
void together(TRITONBACKEND_Model &model, const Strings &answers, int threads, int rounds, bool full) {
    std::atomic<long> refused{0}, sent{0};
    std::vector<std::thread> all;
    for (int thread = 0; thread < threads; thread++)
        all.emplace_back([&, thread] {
            std::deque<TRITONBACKEND_Request> requests;  // that another thread may still have
            std::vector<size_t> kinds;
            for (int round = 0; round < rounds; round++) {
                size_t kind = size_t(thread * 7 + round * 3) % COUNT;
                requests.emplace_back(), kinds.push_back(kind);
                KINDS[kind].fill(requests.back());
                send(model, requests.back());
                sent++;
            }
            for (size_t at = 0; at < requests.size(); at++) {
                auto &request = requests[at];
                wait_for(request);
                check_done(request);
                if (request.code == UNAVAILABLE && request.answer.find("[hfx:QUEUE_FULL] ") == 0) refused++;
                else check(request.answer == answers[kinds[at]], "kind " + std::to_string(kinds[at]) + " is answered otherwise in a batch: " + request.answer);
            }
        });
    for (std::thread &each : all) each.join();
    check(full == (refused > 0), std::to_string(refused) + " requests are refused");
    printf("%ld sent, %ld refused\n", sent.load(), refused.load());
}

// The n-th allocation, or call of Triton, of each kind fails: for all n.
void short_of(long &left, bool calls, TRITONBACKEND_Model &model) {
    long tries = 0;
    for (size_t kind = 0; kind < COUNT; kind++) {
        failed = true;
        for (long n = 1; failed; n++, tries++) {
            TRITONBACKEND_Request request;
            KINDS[kind].fill(request);
            failed = false, left = n;
            send(model, request);
            left = 0;
            wait_for(request);
            check_done(request, !calls);
        }
    }
    printf("%ld requests with a failure of %s\n", tries, calls ? "Triton" : "memory");
}
void short_of_at_load(long &left, const TRITONBACKEND_Model &like, const char *what) {
    long tries = 0;
    std::string words;
    failed = true;
    for (long n = 1; failed; n++, tries++) {
        TRITONBACKEND_Model model = like;
        failed = false, left = n;
        bool opened = open(model, words);
        left = 0;
        if (opened) close(model);
        else check(failed && !words.empty(), "a model can't be loaded: " + words);
    }
    printf("%ld loads with a failure of %s\n", tries, what);
}

// A model is loaded, answers a request, and is unloaded at once, while other models use its net or open and close it.
void come_and_go(const TRITONBACKEND_Model &like, const Strings &answers, int rounds) {
    std::string words;
    for (int round = 0; round < rounds; round++) {
        TRITONBACKEND_Model model = like;
        check(open(model, words), words);
        TRITONBACKEND_Request request;
        KINDS[size_t(round % 3)].fill(request);
        send(model, request);
        wait_for(request);
        close(model);
        check(request.answer == answers[size_t(round % 3)], "a model has the answer of another");
    }
}

int share(TRITONBACKEND_Model first) {
    TRITONBACKEND_Model second = first;
    second.folder += "-other";
    std::string words;
    check(open(first, words) && open(second, words), words);
    Strings answers = alone(first), others = alone(second);
    check(answers[1] != others[1], "two models have the same weights");
    std::vector<std::thread> all;
    all.emplace_back([&] { together(first, answers, 3, 80, false); });
    all.emplace_back([&] { together(second, others, 3, 80, false); });
    all.emplace_back([&] { come_and_go(first, answers, 30); });
    all.emplace_back([&] { come_and_go(second, others, 30); });
    for (std::thread &each : all) each.join();
    short_of(allocations_left, false, second);
    short_of(calls_left, true, second);
    close(first), close(second);
    all.clear();
    for (int each = 0; each < 4; each++) all.emplace_back([&, each] { come_and_go(each % 2 ? second : first, each % 2 ? others : answers, 25); });
    for (std::thread &each : all) each.join();
    short_of_at_load(allocations_left, first, "memory");
    short_of_at_load(calls_left, first, "Triton");
    check(!errors && !messages && !responses, "errors, messages or responses are left");
    return 0;
}

// ---- other uses

std::string from_digits(const std::string &digits) {
    std::string text;
    for (size_t at = 0; at + 1 < digits.size(); at += 2) text += char(std::stoi(digits.substr(at, 2), nullptr, 16));
    return text;
}
std::string to_digits(const std::string &text) {
    std::string digits;
    char two[3];
    for (unsigned char each : text) snprintf(two, sizeof two, "%02x", each), digits += two;
    return digits;
}

int ask(TRITONBACKEND_Model &model, bool waits) {
    std::deque<TRITONBACKEND_Request> requests;
    for (std::string line; std::getline(std::cin, line);) {
        TRITONBACKEND_Request &request = requests.emplace_back();
        request.outputs.push_back("embedding");
        std::istringstream words(line);
        std::string name, value;
        words >> value;
        request.checks = std::stoi(value);
        for (int type, rows, columns; words >> name >> type >> rows >> columns;) {
            Strings texts;
            std::string content;
            for (int each = 0; each < rows * columns && words >> value; each++) {
                int32_t number = type == BYTES ? 0 : std::stoi(value);
                if (type == BYTES) texts.push_back(from_digits(value.substr(1)));
                else content.append(reinterpret_cast<char *>(&number), type == BOOL ? 1 : 4);
            }
            // The names outlive the requests.
            static std::deque<std::string> names;
            add_input(request, names.emplace_back(name).c_str(), type, {rows, columns}, {type == BYTES ? packed(texts) : content});
        }
    }
    std::vector<std::thread> all;
    for (auto &request : requests) all.emplace_back([&] { send(model, request), wait_for(request), check_done(request); });
    for (std::thread &each : all) each.join();
    for (const auto &request : requests) printf("%d %s\n", request.code, to_digits(request.answer).c_str());
    fflush(stdout);
    if (waits) sleep(10);
    return 0;
}

int mix(TRITONBACKEND_Model &model, int count, int callers) {
    std::atomic<int> left{count}, refused{0};
    std::string words;
    std::vector<std::thread> all;
    for (int caller = 0; caller < callers; caller++)
        all.emplace_back([&, caller] {
            const size_t size = size_t(2 * caller % 16);
            for (std::string first; left-- > 0 && !refused;) {
                TRITONBACKEND_Request request;
                add_input(request, "text_input", BYTES, {1, 1}, {packed({std::string(size, ' ') + std::string("a b c a b c a b").substr(0, size + 1)})});
                send(model, request), wait_for(request);
                if (first.empty()) first = request.answer;
                check(request.code || request.answer == first || getenv("STUB_MIXES"), "a caller has another answer");
                if (!request.code) continue;
                std::lock_guard<std::mutex> held(metrics_lock);
                refused++, words = request.answer;
            }
        });
    for (std::thread &each : all) each.join();
    for (const auto &each : metrics) printf("%s: %ld\n", each.first.c_str(), each.second.value.load());
    printf("%s\n", words.c_str());
    return 0;
}

int bench(TRITONBACKEND_Model &model, int callers, double seconds, const std::string &text) {
    std::mutex lock;
    std::condition_variable came;
    std::deque<TRITONBACKEND_Request *> waiting;
    std::atomic<bool> over{false};
    std::atomic<long> answers{0};
    std::vector<std::thread> all;
    for (int instance = 0; instance < 4; instance++)
        all.emplace_back([&] {
            for (;;) {
                std::unique_lock<std::mutex> held(lock);
                came.wait(held, [&] { return over || !waiting.empty(); });
                if (waiting.empty()) return;
                TRITONBACKEND_Request *request = waiting.front();
                waiting.pop_front();
                held.unlock();
                send(model, *request);
            }
        });
    // One thread stands for all callers: each sends its next request when the last one is answered.
    std::deque<TRITONBACKEND_Request> requests;
    auto begin = std::chrono::steady_clock::now();
    auto add = [&] {
        TRITONBACKEND_Request &request = requests.emplace_back();
        add_input(request, "text_input", BYTES, {1, 1}, {packed({text})});
        std::lock_guard<std::mutex> held(lock);
        waiting.push_back(&request);
        came.notify_one();
    };
    for (int caller = 0; caller < callers; caller++) add();
    size_t at = 0;
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds) {
        if (!requests[at].releases) {
            usleep(50);
            continue;
        }
        check(!requests[at++].code, "a request is refused");
        answers++, add();
    }
    for (; at < requests.size(); at++) wait_for(requests[at]);
    over = true, came.notify_all();
    for (std::thread &each : all) each.join();
    printf("%.0f\n", double(answers) / seconds);
    return 0;
}

}  // namespace

int main(int count, char **arguments) {
    TRITONBACKEND_Model model = {arguments[1], arguments[2], nullptr}, narrow = model;
    std::string words;
    if (count > 3) {
        std::string use = arguments[3];
        bool opened = open(model, words);
        if (!opened || use == "load") puts(words.c_str());
        int code = opened && use == "ask" ? ask(model, count > 4) : opened && use == "mix" ? mix(model, atoi(arguments[4]), atoi(arguments[5])) : opened && use == "bench" ? bench(model, atoi(arguments[4]), atof(arguments[5]), arguments[6]) : 0;
        if (opened) close(model);
        return code;
    }
    if (model.config.find("shared_net") != std::string::npos) return share(model);
    size_t at = narrow.config.find("\"1000000\"");
    check(at != std::string::npos, "no max_queue_size of 1000000");
    narrow.config.replace(at, 9, "\"2\"");
    check(!TRITONBACKEND_Initialize(nullptr), "Initialize returns an error");
    check(open(model, words) && open(narrow, words), words);
    Strings answers = alone(model);
    together(model, answers, 4, 300, false);
    together(narrow, answers, 8, 200, true);
    short_of(allocations_left, false, model);
    short_of(calls_left, true, model);
    close(model), close(narrow);
    short_of_at_load(allocations_left, model, "memory");
    short_of_at_load(calls_left, model, "Triton");
    check(!errors && !messages && !responses, "errors, messages or responses are left");
    return 0;
}
