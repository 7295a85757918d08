// A model, which turns a request's texts into its answer.
#pragma once
#include "../tokenizer/tokenizer.h"
#include "answer.h"
#include "encode.h"
#include "named.h"
#include "queue.h"

namespace hfx {

class Model {
public:
    // Opens the model that Triton's configuration, in JSON, and the files of the version folder describe. Returns false
    // with the reason in `error`.
    [[nodiscard]] bool open(Span config, const char *folder, Text &error);
    // Answers requests, or refuses them. Each is released to Triton, now or later by the leading thread (queue.h).
    void execute(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests, size_t count);

private:
    bool settings(const Json &config, Text &error);
    bool inputs(const Json &config, Text &error);
    bool outputs(const Json &config, Text &error);
    Job *taken(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *request);
    bool prepare(Job &job);
    size_t estimate(const Inputs &inputs) const;
    void lead();
    void run(Job *batch, bool large);
    static void interlude(void *model);
    void finish(Job *job);
    bool answer(Job &job) const;

    Tokenizer tokenizer_;
    Encoder encoder_;
    Answer answer_;
    Net net_;
    Queue queue_;
    NamedJobs named_;
    Text embedding_;  // the name of the output that is the net's own; empty for tasks with an answering step
    Options options_ = 0;  // settings that requests may have
    bool skips_padding_ = false;
    uint64_t between_ = 0;  // nanoseconds that small requests took between the parts of a large one
};

}  // namespace hfx
