// A model, which turns a request's texts into its answer.
#pragma once
#include "../tokenizer/tokenizer.h"
#include "answer.h"
#include "device_runner.h"
#include "encode.h"
#include "named.h"
#include "shared_net.h"

namespace hfx {

class Model {
public:
    ~Model();
    // Opens the model that Triton's configuration, in JSON, and the files of the version folder describe. Returns false
    // with the reason in `error`.
    [[nodiscard]] bool open(Span config, const char *folder, Text &error);
    // Answers requests, or refuses them. Each is released to Triton, now or later by the leading thread (queue.h), or
    // by the thread of a shared net or of a net on a GPU.
    void execute(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests, size_t count);

    // Adds the outputs to a request for which the net has run. Returns false with the reason in the job.
    bool answer(Job &job) const;
    // Sends the request's answer and ends the request. If its net is shared, the model may be gone afterwards.
    void finish(Job *job);

private:
    bool open_steps(const Json &config, const char *folder, bool opens, Text &error);
    bool open_net(const Json &config, const char *folder, const char *output, bool opens, Text &error);
    bool open_adapter(const Json &config, const char *folder, bool opens, Text &error);
    bool settings(const Json &config, bool opens, Text &error);
    bool inputs(const Json &config, Text &error);
    bool outputs(const Json &config, Text &error);
    bool prepare(Job &job);
    size_t estimate(const Inputs &inputs) const;
    Queue &queue() { return device_ ? device_->queue : runner_->queue; }
    void lead();
    size_t item_rank() const { return encoder_.settings.task == Task::ZERO_SHOT_CLASSIFICATION ? 2 : 1; }

    Tokenizer tokenizer_;  // not open if the shared net's is used
    Encoder encoder_;
    Answer answer_;
    SharedNet *shared_ = nullptr;  // with the parameter shared_net
    int32_t slot_ = -1;            // in its pool
    Runner own_;                   // without the parameter
    Runner *runner_ = &own_;
    DeviceRunner *device_ = nullptr;  // in place of the runner, on a GPU
    NamedJobs named_;
    Text embedding_;  // the name of the output that is the net's own; empty for tasks with an answering step
    Options options_ = 0;  // settings that requests may have
};

}  // namespace hfx
