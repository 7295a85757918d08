// Runs a net on the CPU for the requests of its queue, and has their models answer them.
#pragma once
#include "host_thread.h"
#include "runs.h"

namespace hfx {

class Runner {
public:
    explicit Runner(Queue &queue) : queue_(queue) {}

    // Opens the net, and sets the bound of the queue. Returns false with the reason in `error`.
    [[nodiscard]] bool open(const NetOptions &options, Text &error);
    // Whether the net, which is open, answers a model with these options.
    bool answers(const NetOptions &options) const;
    // Runs batch after batch until nothing waits; for the thread that leads (queue.h). A second leader has a thread of
    // its own.
    void run(HostThread *second = nullptr);
    void run_second();

    Net net;

private:
    void run_batch(Job *batch, Array<Job *> &all, bool alone);
    void run_part(Job *job);

    Queue &queue_;
    bool skips_padding_ = false;
    size_t item_rank_ = 1;                // as in Runs
    Array<Job *> jobs_, jobs_of_second_;  // of a batch of each leader
    Checks checks_;
};

// The host of a model's own net: a thread of Triton that adds a request to an idle queue runs the net. Where the net has
// two threads, a second leader may run beside it.
class OwnNet final : public NetHost {
public:
    bool open(const NetOptions &options, int32_t &slot, Text &error) override;
    void release(int32_t) override { destroy(this); }
    void wake() override { runner_.run(&second_); }
    void wake_second() override { second_.wake(); }
    void run() override { runner_.run_second(); }
    bool has_types() const override { return runner_.net.has_types(); }

private:
    Runner runner_{queue};
    HostThread second_;  // ends first
};

}  // namespace hfx
