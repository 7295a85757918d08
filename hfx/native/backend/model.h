// A model, which turns a request's texts into its answer.
#pragma once
#include "answer.h"
#include "encode.h"
#include "named.h"
#include "net_host.h"

namespace hfx {

class Model final : public Answerer {
public:
    ~Model();
    // Opens the model that Triton's configuration, in JSON, and the files of the version folder describe. Returns false
    // with the reason in `error`.
    [[nodiscard]] bool open(Span config, const char *folder, Text &error);
    // Answers requests, or refuses them. Each is released to Triton, now or later by the leading thread (queue.h).
    void execute(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests, size_t count);

    bool answer(Job &job) const override;
    void finish(Job *job) override;

private:
    bool choose_host(const Json &config, int gpu, Text &error);
    bool open_steps(const char *folder, Text &error);
    bool bound(const Json &config, NetOptions &options, Text &error) const;
    bool inputs(const Json &config, Text &error);
    bool outputs(const Json &config, Text &error);
    bool prepare(Job &job);
    size_t estimate(const Inputs &inputs) const;

    Tokenizer tokenizer_;  // not open if the host's is used
    Encoder encoder_;
    Answer answer_;
    NetHost *host_ = nullptr;
    int32_t slot_ = -1;  // of the model's weights, if models share the net
    NamedJobs named_;
    Text embedding_;  // the name of the output that is the net's own; empty for tasks with an answering step
    Options options_ = 0;  // settings that requests may have
};

}  // namespace hfx
