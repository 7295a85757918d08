// Runs a net on the CPU for the requests of its queue, and has their models answer them.
#pragma once
#include "net_host.h"
#include "runs.h"

namespace hfx {

class Runner {
public:
    explicit Runner(Queue &queue) : queue_(queue) {}

    // Opens the net, and sets the bound of the queue. Returns false with the reason in `error`.
    [[nodiscard]] bool open(const NetOptions &options, Text &error);
    // Whether the net, which is open, answers a model with these options.
    bool answers(const NetOptions &options) const;
    // Runs batch after batch until nothing waits; for the thread that leads (queue.h).
    void run();

    Net net;

private:
    void run_batch(Job *batch);
    void run_part(Job *job);

    Queue &queue_;
    bool skips_padding_ = false;
    size_t item_rank_ = 1;  // as in Runs
    Array<Job *> jobs_;     // of a batch
    Checks checks_;
};

// The host of a model's own net: a thread of Triton that adds a request to an idle queue runs the net.
class OwnNet final : public NetHost {
public:
    bool open(const NetOptions &options, int32_t &, Text &error) override { return runner_.open(options, error); }
    void release(int32_t) override { destroy(this); }
    void wake() override { run(); }
    void run() override { runner_.run(); }
    bool has_types() const override { return runner_.net.has_types(); }

private:
    Runner runner_{queue};
};

}  // namespace hfx
